package tunnel

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/kith/kith/internal/assert"
)

// rawDaemon is a machine's end that writes HTTP/2 frames directly and so can break every
// rule.
type rawDaemon struct {
	*http2.Framer
	net.Conn
	block bytes.Buffer
	head  *hpack.Encoder
}

// connectRaw connects a hub's Client to a rawDaemon. The settings have been exchanged,
// and the daemon's settings grant each stream the given window.
func connectRaw(t *testing.T, window uint32) (*Client, *rawDaemon) {
	t.Helper()
	ours, theirs := net.Pipe()
	d := &rawDaemon{Framer: http2.NewFramer(theirs, theirs), Conn: theirs}
	d.head = hpack.NewEncoder(&d.block)
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		io.ReadFull(theirs, make([]byte, len(http2.ClientPreface)))
		d.ReadFrame() // settings
		d.ReadFrame() // the window of the connection
		d.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
		d.ReadFrame() // the acknowledgement
		d.WriteWindowUpdate(0, 1<<30)
	}()
	client := clientOn(t, ours)
	t.Cleanup(func() { client.Close(); theirs.Close() })
	<-settled
	synctest.Wait()
	return client, d
}

// reads discards everything that the hub sends.
func (d *rawDaemon) reads() { go io.Copy(io.Discard, d.Conn) }

// answers sends the header of a response.
func (d *rawDaemon) answers(stream uint32) {
	d.block.Reset()
	d.head.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
	d.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: d.block.Bytes(), EndHeaders: true})
}

// upload returns a call with a body of the given size.
func upload(ctx context.Context, size int) *http.Request {
	r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://machine/v1/x", strings.NewReader(strings.Repeat("x", size)))
	return r
}

// Nothing is sent on a tunnel that has ended, and the error shows that the call was not
// tried.
func TestEndedBeforeTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, daemon := connectRaw(t, 1<<20)
		daemon.reads()
		client.Close()
		if _, err := client.RoundTrip(upload(t.Context(), 10)); !errors.Is(err, ErrEnded) || !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v, want ErrEnded, and why", err)
		}
	})
}

// promptly checks that a call ends within 100 ms after its context, in false time. begin
// returns when the call waits.
func promptly(t *testing.T, begin func(ctx context.Context, ended chan<- error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	begin(ctx, ended)
	start := time.Now()
	cancel()
	assert.Is(t, <-ended, context.Canceled, "the call ended with")
	if took := time.Since(start); took > 100*time.Millisecond {
		t.Errorf("the call ended %v after its context", took)
	}
}

// stall starts calls that write until they block, because the daemon reads nothing. The
// lock for writing is then held.
func stall(t *testing.T, client *Client) {
	t.Helper()
	for range 8 {
		go client.RoundTrip(upload(t.Context(), 8<<20))
	}
	for { // not synctest.Wait or a sleep: a call that waits for a mutex stops both
		client.conn.mu.Lock()
		waits := client.conn.written-client.conn.sent >= blockingWrite
		client.conn.mu.Unlock()
		if waits {
			return
		}
		runtime.Gosched()
	}
}

// A call ends immediately with its context, whatever it waits for and whatever the daemon
// does.
func TestCancelIsPrompt(t *testing.T) {
	roundTrip := func(client *Client, size int) func(context.Context, chan<- error) {
		return func(ctx context.Context, ended chan<- error) {
			go func() {
				_, err := client.RoundTrip(upload(ctx, size))
				ended <- err
			}()
		}
	}
	for name, test := range map[string]func(t *testing.T){
		"for the answer": func(t *testing.T) {
			client, daemon := connectRaw(t, 1<<20)
			daemon.reads()
			promptly(t, roundTrip(client, 10))
		},
		"for the stream's window": func(t *testing.T) {
			client, daemon := connectRaw(t, 0)
			daemon.reads()
			promptly(t, roundTrip(client, 1<<20))
		},
		"to open a stream, which no one reads": func(t *testing.T) {
			client, _ := connectRaw(t, 1<<30)
			stall(t, client)
			promptly(t, roundTrip(client, 10))
		},
		"behind another that opens a stream": func(t *testing.T) {
			client, _ := connectRaw(t, 1<<30)
			stall(t, client)
			go client.RoundTrip(upload(t.Context(), 10))
			promptly(t, roundTrip(client, 10))
		},
		"for a stream that the daemon took back": func(t *testing.T) {
			client, daemon := connectRaw(t, 1<<20)
			daemon.reads()
			// The reservation comes first, then the settings, then the call.
			assert.OK(t, client.reserveStream())
			daemon.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 0})
			synctest.Wait()
			promptly(t, func(ctx context.Context, ended chan<- error) {
				go func() {
					_, err := client.http.RoundTrip(upload(ctx, 10))
					ended <- err
				}()
			})
		},
		"for more of an answer, while no one reads": func(t *testing.T) {
			client, daemon := connectRaw(t, 1<<30)
			promptly(t, func(ctx context.Context, ended chan<- error) {
				r := upload(ctx, 0)
				go func() {
					daemon.ReadFrame()
					daemon.answers(1)
				}()
				answer := assert.Value(client.RoundTrip(r))(t)
				stall(t, client)
				go func() {
					_, err := answer.Body.Read(make([]byte, 1))
					answer.Body.Close()
					ended <- err
				}()
			})
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
}

// A daemon may grant any number of streams, but no call waits for one, and no tunnel
// carries more than maxStreams.
func TestStreamsGranted(t *testing.T) {
	for name, test := range map[string]struct {
		grants uint32
		want   int
	}{"none": {0, 0}, "few": {3, 3}, "too many": {1 << 31, maxStreams}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, daemon := connectRaw(t, 1<<20)
				daemon.reads()
				daemon.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: test.grants})
				synctest.Wait()
				ctx, cancel := context.WithCancel(t.Context())
				got, full := 0, make(chan struct{})
				for range test.want {
					go client.RoundTrip(upload(ctx, 0))
				}
				synctest.Wait()
				got = client.http.InFlight()
				assert.Equal(t, got, test.want, "streams are open")
				go func() {
					defer close(full)
					assert.Is(t, assert.Err(client.RoundTrip(upload(ctx, 10))), ErrFull, "one more")
				}()
				<-full
				cancel()
			})
		})
	}
}
