package tunnel

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
)

// kept is a request body that records whether it was read.
type kept struct {
	io.Reader
	read atomic.Bool
}

func (b *kept) Read(p []byte) (int, error) {
	b.read.Store(true)
	return b.Reader.Read(p)
}

// The body of a request that expects 100-continue is not sent until the daemon's handler
// reads it, however long that takes and however the daemon ends the call.
func TestTheBodyFollowsTheHead(t *testing.T) {
	refuses := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(HeaderRefused, string(RefusedBusy))
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	serves := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Minute)
		_, _ = io.Copy(w, r.Body)
	}
	hangs := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for name, c := range map[string]struct {
		expect  string
		handler http.HandlerFunc
		status  int // 0: the caller gives up after an hour
		read    bool
	}{
		"refused":         {"100-continue", refuses, 503, false},
		"served":          {"100-continue", serves, 200, true},
		"neither":         {"100-continue", hangs, 0, false},
		"expects nothing": {"", hangs, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				out := make(chan *Client, 1)
				h := serveHub(t, acceptTunnels(t, out))
				newMachine(h, c.handler).run(t)
				client := <-out
				defer client.Close()
				assert.OK(t, client.Ack(t.Context()))
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				body := &kept{Reader: strings.NewReader("the prompt")}
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://machine/v1/chat/completions", body)
				assert.OK(t, err)
				r.ContentLength = int64(len("the prompt"))
				if c.expect != "" {
					r.Header.Set("Expect", c.expect)
				}
				answer, err := client.RoundTrip(r)
				switch {
				case c.status == 0:
					assert.Is(t, err, context.DeadlineExceeded, "ended with")
				case err != nil:
					t.Fatal(err)
				default:
					text, _ := io.ReadAll(answer.Body)
					answer.Body.Close()
					if answer.StatusCode != c.status || c.status == 200 && string(text) != "the prompt" {
						t.Errorf("%d %s", answer.StatusCode, text)
					}
				}
				assert.Equal(t, body.read.Load(), c.read, "the body was read")
			})
		})
	}
}
