package clients_test

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/kith/kith/internal/assert"
)

// TestSix stages the six refusals with separate processes and asks through the
// official library: what it makes of each is what programs branch on. A daemon that seals
// the calls passes the same ones on.
func TestSix(t *testing.T) {
	t.Parallel()
	n := startNetwork(t, "")
	n.member("ben")
	n.member("eve")
	closed := time.Now().UTC().AddDate(0, 0, 3).Format("Mon") + " 00:00-24:00"
	n.machine("private", "")
	paused, busy, gone := n.machine("paused", ""), n.machine("busy", ""), n.machine("gone", "")
	n.machine("closed", closed)
	n.kith("admin", "share", "add", "--owner", "ada", "--with", "ben", "--data", n.data)
	for _, model := range []string{"private", "paused", "busy", "gone", "closed"} {
		n.eventually("ada", model, "") // also the ones that are not for others
	}
	n.curl(paused.home, "/pause")
	n.eventually("ben", "paused", "CASCADE_EXHAUSTED")
	go n.ask(t.Context(), "ada", "busy", "hang")
	<-busy.running
	gone.kill()
	sealed := *n
	sealed.clients = map[string]openai.Client{}
	for name := range n.clients {
		sealed.clients[name] = n.remote(name).openAI()
	}
	for name, at := range map[string]*staged{"hub": n, "sealed": &sealed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at.six(t)
		})
	}
}

// six asks for each of the refusals, unary and streamed.
func (n *staged) six(t *testing.T) {
	for _, c := range []struct {
		code, caller, model string
		status              int
		wait                [2]int // Prefer: wait, unary and streamed
		retry               string // x-should-retry
		frame               bool   // when streamed
	}{
		{code: "model_not_found", caller: "ben", model: "nowhere", status: 404},
		{code: "NOT_IN_CIRCLE", caller: "eve", model: "private", status: 403},
		{code: "CASCADE_EXHAUSTED", caller: "ben", model: "paused", status: 503},
		{code: "CAPACITY_FULL", caller: "ben", model: "busy", status: 503, wait: [2]int{1, 15}, frame: true},
		{code: "machine_offline", caller: "ben", model: "gone", status: 503},
		{code: "outside_sharing_hours", caller: "ben", model: "closed", status: 503, retry: "false"},
	} {
		wait := func(seconds int) []option.RequestOption {
			if seconds == 0 {
				return nil
			}
			return []option.RequestOption{option.WithHeader("Prefer", "wait="+strconv.Itoa(seconds))}
		}
		check := func(t *testing.T, err error) {
			t.Helper()
			var api *openai.Error
			assert.Require(t, errors.As(err, &api), "gave", err)
			if api.Code != c.code || api.StatusCode != c.status || api.Message == "" {
				t.Errorf("gave %d %s %q, not %d %s", api.StatusCode, api.Code, api.Message, c.status, c.code)
			}
			h := api.Response.Header
			seconds, _ := strconv.Atoi(h.Get("Retry-After"))
			if ok := 1 <= seconds && seconds <= 30; ok != (c.status == 503) {
				t.Errorf("Retry-After is %q with a %d", h.Get("Retry-After"), c.status)
			}
			assert.Equal(t, h.Get("X-Should-Retry"), c.retry, "x-should-retry")
		}
		t.Run(c.code, func(t *testing.T) { check(t, n.ask(t.Context(), c.caller, c.model, "Hello", wait(c.wait[0])...)) })
		t.Run(c.code+"/streamed", func(t *testing.T) {
			err := n.askStreamed(t.Context(), c.caller, c.model, wait(c.wait[1])...)
			if !c.frame {
				check(t, err)
			} else if err == nil || !strings.Contains(err.Error(), `"code":"`+c.code+`"`) || !strings.Contains(err.Error(), `"reason":"wait_elapsed"`) {
				t.Errorf("the stream gave %v, not a frame with %s after a wait", err, c.code)
			}
		})
	}
	t.Run("no retries where they cannot help", func(t *testing.T) {
		tries := 0
		count := option.WithMiddleware(func(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
			tries++
			return next(r)
		})
		if err := n.ask(t.Context(), "ben", "closed", "Hello", option.WithMaxRetries(2), count); err == nil || tries != 1 {
			t.Errorf("the library tried %d times: %v", tries, err)
		}
	})
}
