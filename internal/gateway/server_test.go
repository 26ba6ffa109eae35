package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
)

// listen serves the edge on loopback as the hub does, and returns its address.
func listen(t testing.TB, h http.Handler) string {
	t.Helper()
	l := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	server := NewServer(h, slog.New(slog.DiscardHandler))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return l.Addr().String()
}

// raw sends text on a new connection and returns everything that it receives until the
// server closes the connection, which must happen before the time limit of a body.
func raw(t *testing.T, address, text string) (reply string) {
	t.Helper()
	c := assert.Value(net.Dial("tcp", address))(t)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(bodyGrace))
	assert.Value(io.WriteString(c, text))(t)
	all, _ := io.ReadAll(c)
	return string(all)
}

// held is a log whose lines block until it is released.
type held struct {
	slog.Handler
	until chan struct{}
}

func (h held) Enabled(context.Context, slog.Level) bool { return true }
func (h held) Handle(context.Context, slog.Record) error {
	<-h.until
	return nil
}

// The caller has the complete answer, or the refusal, while its log line is still being
// written.
func TestAnswerBeforeTheLog(t *testing.T) {
	for _, b := range []*backend{answers(chatAnswer), refuses(fault.New(fault.MachineOffline, "gone"))} {
		c, log := hostedConfig(b), held{until: make(chan struct{})}
		c.Log = slog.New(log)
		address := listen(t, New(c))
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+address+"/v1/chat/completions", strings.NewReader(chatRequest))
		assert.OK(t, err)
		r.Header.Set("Authorization", "Bearer "+goodKey)
		client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(r)
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		close(log.until)
		if err != nil {
			t.Error(err)
		}
	}
}

const rawHead = "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + goodKey + "\r\nContent-Type: application/json\r\n"

// A body over the limit is refused at its first excess byte, not when the rest has
// arrived or its time is over.
func TestTooLargeAtTheByte(t *testing.T) {
	c := hostedConfig(answers(chatAnswer))
	c.Limits.Body = 1000
	body := func(n int) string { return `{"model":"m","x":"` + strings.Repeat("y", n-20) + `"}` }
	chunked := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
	answered(t, c, map[string]sending{
		"length at the limit":   {rawHead + "Connection: close\r\nContent-Length: 1000\r\n\r\n" + body(1000), "200"},
		"length over it":        {rawHead + "Content-Length: 1001\r\n\r\n", "413"}, // before its first byte arrived
		"huge length":           {rawHead + "Content-Length: 99999999999\r\n\r\n", "413"},
		"chunked at the limit":  {rawHead + "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(body(1000)) + "0\r\n\r\n", "200"},
		"chunked one byte over": {rawHead + "Transfer-Encoding: chunked\r\n\r\n" + chunked(body(1000)) + "1\r\nz", "413"}, // the end never arrives
		"in a chunk":            {rawHead + "Transfer-Encoding: chunked\r\n\r\nfff\r\n" + body(1001), "413"},
	})
}

// sending is what a caller sends and the status of the answer.
type sending struct{ text, status string }

// answered checks that each text is answered at once.
func answered(t *testing.T, config Config, cases map[string]sending) {
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			virtually(t, New(config), nil, func(t *testing.T, conn net.Conn) {
				began := time.Now()
				go func() { _, _ = io.WriteString(conn, c.text) }()
				response := assert.Value(http.ReadResponse(bufio.NewReader(conn), nil))(t)
				took := time.Since(began)
				body, _ := io.ReadAll(response.Body)
				if took != 0 || strconv.Itoa(response.StatusCode) != c.status || response.Header.Get("X-Correlation-Id") == "" {
					t.Errorf("%s after %v: %s", response.Status, took, body)
				}
				assert.That(t, c.status != "413" || strings.Contains(string(body), `"code":"request_too_large"`), body)
			})
		})
	}
}

func TestSmuggling(t *testing.T) {
	var calls atomic.Int32
	b := answers(chatAnswer)
	served := b.do
	b.do = func(ctx context.Context, call *Call) (*Answer, error) { calls.Add(1); return served(ctx, call) }
	address := listen(t, New(hostedConfig(b)))
	whole := fmt.Sprintf("Content-Length: %d\r\n", len(chatRequest))
	second := "GET /v1/models HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
	for name, text := range map[string]string{
		"two lengths":         rawHead + whole + "Content-Length: 5\r\n\r\n" + chatRequest + second,
		"length and chunked":  rawHead + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + second,
		"odd coding":          rawHead + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + second,
		"two codings":         rawHead + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + second,
		"signed length":       rawHead + "Content-Length: +57\r\n\r\n" + chatRequest + second,
		"space before colon":  rawHead + "Content-Length : 5\r\n\r\n" + chatRequest + second,
		"folded header":       rawHead + "X-A: b\r\n Content-Length: 5\r\nTransfer-Encoding : chunked\r\n\r\n" + chatRequest + second,
		"bare LF in chunk":    rawHead + "Transfer-Encoding: chunked\r\n\r\n39\n" + chatRequest + "\r\n0\r\n\r\n" + second,
		"two hosts":           "GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" + second,
		"no host":             "GET /v1/models HTTP/1.1\r\n\r\n" + second,
		"header with a NUL":   "GET /v1/models HTTP/1.1\r\nHost: h\r\nX: a\x00b\r\n\r\n" + second,
		"headers over 16 KiB": "GET /v1/models HTTP/1.1\r\nHost: h\r\nX: " + strings.Repeat("a", 24<<10) + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			got := raw(t, address, text)
			if !strings.HasPrefix(got, "HTTP/1.1 4") && !strings.HasPrefix(got, "HTTP/1.1 501") || strings.Count(got, "HTTP/1.1 ") != 1 {
				t.Errorf("%q", got)
			}
		})
	}
	assert.Equal(t, calls.Load(), 0, "calls ran")
}

// memory is a listener of in-memory connections, so that time limits can be tested in
// virtual time. Writes block until the other side reads.
type memory struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *memory) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *memory) Close() error   { close(l.closed); return nil }
func (l *memory) Addr() net.Addr { return &net.TCPAddr{} }

// virtually runs client against the edge in virtual time, on a connection that over
// wraps, or on an unwrapped one if over is nil.
func virtually(t *testing.T, h http.Handler, over func(net.Conn) net.Conn, client func(t *testing.T, c net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &memory{conns: make(chan net.Conn), closed: make(chan struct{})}
		server := NewServer(h, slog.New(slog.DiscardHandler))
		ended := make(chan struct{})
		go func() { _ = server.Serve(l); close(ended) }()
		near, far := net.Pipe()
		if over != nil {
			far = over(far)
		}
		l.conns <- far
		client(t, near)
		_ = near.Close()
		_ = server.Close()
		<-ended
		time.Sleep(time.Second) // net/http lingers half a second on a connection that it closes
	})
}

// Slow callers are disconnected in time: after 5 s for the headers, and after 30 s plus a
// second for each 64 KiB for a body. There is no 408.
func TestSlowCallers(t *testing.T) {
	trickle := func(size int, every time.Duration) func(net.Conn) {
		return func(c net.Conn) {
			for {
				if _, err := c.Write(bytes.Repeat([]byte("y"), size)); err != nil {
					return
				}
				time.Sleep(every)
			}
		}
	}
	text := func(s string) func(net.Conn) { return func(c net.Conn) { _, _ = io.WriteString(c, s) } }
	for name, c := range map[string]struct {
		sends    []func(net.Conn)
		from, to float64 // seconds until the connection is closed
		status   string
	}{
		"no headers":      {nil, 5, 5, ""},
		"half a header":   {[]func(net.Conn){text(rawHead)}, 5, 5, ""},
		"no body":         {[]func(net.Conn){text(rawHead + "Content-Length: 5000000\r\n\r\n")}, 30, 30, ""},
		"no chunk":        {[]func(net.Conn){text(rawHead + "Transfer-Encoding: chunked\r\n\r\n")}, 30, 30, ""},
		"trickled body":   {[]func(net.Conn){text(rawHead + "Content-Length: 5000000\r\n\r\n"), trickle(1000, time.Second)}, 30, 30, ""},
		"below the floor": {[]func(net.Conn){text(rawHead + "Content-Length: 30000000\r\n\r\n"), trickle(32<<10, time.Second)}, 55, 62, ""},
		"body never sent and not wanted": {[]func(net.Conn){
			text("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n")}, 1, 3, "401"},
		"large body not wanted": {[]func(net.Conn){
			text("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n")}, 0, 3, "401"},
		"body of a GET": {[]func(net.Conn){
			text("GET /v1/models HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\nAuthorization: Bearer " + goodKey + "\r\n\r\n")}, 1, 3, "200"},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, New(hostedConfig(answers(chatAnswer))), nil, func(t *testing.T, conn net.Conn) {
				began := time.Now()
				var sending sync.WaitGroup
				sending.Go(func() {
					for _, send := range c.sends {
						send(conn)
					}
				})
				got, _ := io.ReadAll(conn)
				if took := time.Since(began).Seconds(); took < c.from || took > c.to {
					t.Errorf("closed after %g s, want %g to %g", took, c.from, c.to)
				}
				if c.status == "" && len(got) > 0 || !strings.HasPrefix(strings.TrimPrefix(string(got), "HTTP/1.1 "), c.status) {
					t.Errorf("%q", got)
				}
				_ = conn.Close()
				sending.Wait()
			})
		})
	}
}

// A body over the limit is refused at its first excess byte, not when the rest has
// arrived or its time is over.
func TestTooLargeAtOnce(t *testing.T) {
	c := hostedConfig(answers(chatAnswer))
	c.Limits.Body = 10
	for name, text := range map[string]string{
		"length":  rawHead + "Content-Length: 11\r\n\r\n",
		"chunked": rawHead + "Transfer-Encoding: chunked\r\n\r\nff\r\n01234567890",
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, New(c), nil, func(t *testing.T, conn net.Conn) {
				began := time.Now()
				_, _ = io.WriteString(conn, text)
				status, err := bufio.NewReader(conn).ReadString('\n')
				if took := time.Since(began); took != 0 || !strings.HasPrefix(status, "HTTP/1.1 413") {
					t.Errorf("%q after %v, %v", status, took, err)
				}
			})
		})
	}
}

// EndBodies immediately answers a request whose body has not arrived.
func TestEndBodies(t *testing.T) {
	for name, length := range map[string]int{"small": 100, "large": 1_000_000} {
		t.Run(name, func(t *testing.T) {
			g := New(hostedConfig(answers(chatAnswer)))
			virtually(t, g, nil, func(t *testing.T, conn net.Conn) {
				fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n{", rawHead, length)
				synctest.Wait()
				began := time.Now()
				g.EndBodies(fault.New(fault.CascadeExhausted, "this hub is being replaced"))
				status, err := bufio.NewReader(conn).ReadString('\n')
				if took := time.Since(began); took != 0 || !strings.HasPrefix(status, "HTTP/1.1 503") {
					t.Errorf("%q after %v, %v", status, took, err)
				}
			})
		})
	}
}

// docs/faults.md#5: the limit is 32 MiB, and the byte after them is one too many.
func TestFault05OneByteTooMany(t *testing.T) {
	const limit = 32 << 20
	for name, request := range map[string]string{"unary": chatRequest, "streamed": streamRequest} {
		for length, status := range map[int]string{limit: "HTTP/1.1 200", limit + 1: "HTTP/1.1 413"} {
			t.Run(fmt.Sprint(name, length), func(t *testing.T) {
				b := sends(0, line{0, frame, nil}, line{0, done, nil})
				if name == "unary" {
					b = answers(chatAnswer)
				}
				c := hostedConfig(b)
				c.Spool = files(t)
				virtually(t, New(c), nil, func(t *testing.T, conn net.Conn) {
					go func() {
						fmt.Fprintf(conn, "%sTransfer-Encoding: chunked\r\n\r\n%x\r\n", rawHead, length)
						_, _ = io.Copy(conn, padded(request, length))
						_, _ = io.WriteString(conn, "\r\n0\r\n\r\n")
					}()
					got, err := bufio.NewReader(conn).ReadString('\n')
					assert.That(t, strings.HasPrefix(got, status), got, err)
				})
			})
		}
	}
}

// A caller that does not read is disconnected 20 s after the first write that it did not
// read.
func TestSlowReaders(t *testing.T) {
	for name, body := range map[string]string{"unary": chatRequest, "streamed": streamRequest} {
		t.Run(name, func(t *testing.T) {
			var ended chan Outcome
			c := hostedConfig(&backend{do: func(ctx context.Context, call *Call) (*Answer, error) {
				if call.Stream {
					return answer(&script{ctx: ctx, lines: []line{{0, frame, nil}, {0, done, nil}}}), nil
				}
				return answer(io.NopCloser(strings.NewReader(`{"x":"` + strings.Repeat("y", 1<<20) + `"}`))), nil
			}})
			c.Finished = func(_ *Call, o Outcome) { ended <- o }
			virtually(t, New(c), nil, func(t *testing.T, conn net.Conn) {
				ended = make(chan Outcome, 1) // made in the bubble
				fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n%s", rawHead, len(body), body)
				if out := <-ended; out.Code != Cancelled || out.Duration.Seconds() != 20 {
					t.Errorf("%+v", out)
				}
			})
		})
	}
}

// Each frame is flushed: the caller has it before the next one is made. When the body
// breaks off, the complete error frame is sent, then HTTP itself reports the incomplete
// answer.
func TestFramesArriveOneByOneThenTheCut(t *testing.T) {
	next := make(chan string)
	defer close(next)
	closed := make(chan struct{})
	b := &backend{do: func(context.Context, *Call) (*Answer, error) {
		r, w := io.Pipe()
		go func() {
			for text := range next {
				if text == "" {
					_ = w.CloseWithError(fault.New(fault.MachineOffline, "the machine went away"))
					continue
				}
				_, _ = io.WriteString(w, text)
			}
		}()
		return answer(closing{r, func() { close(closed) }}), nil
	}}
	address := listen(t, New(hostedConfig(b)))
	r, _ := http.NewRequest("POST", "http://"+address+"/v1/chat/completions", strings.NewReader(streamRequest))
	r.Header.Set("Authorization", "Bearer "+goodKey)
	go func() { next <- frame }()
	response, err := http.DefaultClient.Do(r)
	assert.OK(t, err)
	defer response.Body.Close()
	got := make([]byte, len(frame))
	for i := range 5 {
		if i > 0 {
			next <- frame[:10]
			next <- frame[10:]
		}
		if _, err := io.ReadFull(response.Body, got); err != nil || string(got) != frame {
			t.Fatalf("%q, %v", got, err)
		}
	}
	next <- ""
	rest, err := io.ReadAll(response.Body)
	if !errors.Is(err, io.ErrUnexpectedEOF) || !bytes.HasPrefix(rest, []byte(`data: {"error":{"code":"machine_offline"`)) || !bytes.HasSuffix(rest, []byte("\n\n")) {
		t.Errorf("%q, %v", rest, err)
	}
	<-closed
}

// closing is a body that reports when it is closed.
type closing struct {
	io.Reader
	closed func()
}

func (c closing) Close() error { c.closed(); return nil }

func TestCallerHangsUp(t *testing.T) {
	closed := make(chan time.Time, 1)
	b := &backend{do: func(ctx context.Context, _ *Call) (*Answer, error) {
		r, w := io.Pipe()
		context.AfterFunc(ctx, func() { _ = w.CloseWithError(ctx.Err()) })
		go func() { _, _ = io.WriteString(w, frame) }()
		return answer(closing{r, func() { closed <- time.Now() }}), nil
	}}
	virtually(t, New(hostedConfig(b)), nil, func(t *testing.T, c net.Conn) {
		fmt.Fprintf(c, "%sContent-Length: %d\r\n\r\n%s", rawHead, len(streamRequest), streamRequest)
		for reader := bufio.NewReader(c); ; {
			text := assert.Value(reader.ReadString('\n'))(t)
			if strings.HasPrefix(text, "data:") {
				break
			}
		}
		left := time.Now()
		_ = c.Close()
		if took := (<-closed).Sub(left); took > 0 {
			t.Errorf("the body was closed %v after the caller left", took)
		}
	})
}

// The connection is kept after a complete stream, a refusal and a unary answer.
func TestConnectionIsKept(t *testing.T) {
	address := listen(t, New(hostedConfig(&backend{do: func(_ context.Context, call *Call) (*Answer, error) {
		if call.Stream {
			return answer(io.NopCloser(strings.NewReader(frame + done))), nil
		}
		return nil, fault.New(fault.CapacityFull, "busy")
	}})))
	c := assert.Value(net.Dial("tcp", address))(t)
	defer c.Close()
	reader := bufio.NewReader(c)
	for i := range 6 {
		body := chatRequest
		if i%2 == 0 {
			body = streamRequest
		}
		fmt.Fprintf(c, "%sContent-Length: %d\r\n\r\n%s", rawHead, len(body), body)
		response, err := http.ReadResponse(reader, nil)
		assert.OK(t, err, i)
		text, err := io.ReadAll(response.Body)
		if err != nil || (response.StatusCode == 200) != (i%2 == 0) || i%2 == 0 && string(text) != frame+done {
			t.Errorf("%d: %d %q %v", i, response.StatusCode, text, err)
		}
	}
}

// HTTP/2 is used over TLS; there a broken answer resets the stream.
func TestHTTP2(t *testing.T) {
	h := New(hostedConfig(&backend{do: func(context.Context, *Call) (*Answer, error) {
		return answer(io.NopCloser(strings.NewReader(frame))), nil
	}}))
	server := httptest.NewUnstartedServer(nil)
	server.Config = NewServer(h, slog.New(slog.DiscardHandler))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	r, _ := http.NewRequest("POST", server.URL+"/v1/chat/completions", strings.NewReader(streamRequest))
	r.Header.Set("Authorization", "Bearer "+goodKey)
	response, err := server.Client().Do(r)
	assert.OK(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if response.ProtoMajor != 2 || err == nil || !strings.HasPrefix(string(text), frame+`data: {"error":{"code":"engine_error"`) {
		t.Errorf("%s %q %v", response.Proto, text, err)
	}
}

func BenchmarkUnary(b *testing.B) {
	c := hostedConfig(answers(chatAnswer))
	c.Rate = Rate{PerSecond: 1e9, Burst: 1 << 30}
	c.Log = slog.New(slog.NewJSONHandler(io.Discard, nil))
	h := New(c)
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", 110) + `"}]}`
	b.ReportAllocs()
	for b.Loop() {
		w := &sink{header: http.Header{}}
		r := &http.Request{Method: "POST", URL: target.URL, Header: benchHeader, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body))}
		h.ServeHTTP(w, r)
		assert.Require(b, w.status == 200, w.status)
	}
}

func BenchmarkChunk(b *testing.B) {
	text := `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}]}` + "\n\n"
	n := 0
	c := hostedConfig(&backend{do: func(context.Context, *Call) (*Answer, error) {
		return answer(io.NopCloser(repeat(func(p []byte) (int, error) {
			if n++; n > b.N {
				return copy(p, done), io.EOF
			}
			return copy(p, text), nil
		}))), nil
	}})
	h := New(c)
	b.ReportAllocs()
	w := &sink{header: http.Header{}}
	r := ask("POST", "/v1/chat/completions", streamRequest)
	b.ResetTimer()
	defer func() { _ = recover() }() // a stream holds 64 MiB
	h.ServeHTTP(w, r)
}

var (
	target, _   = http.NewRequest("POST", "http://h/v1/chat/completions", nil)
	benchHeader = http.Header{"Authorization": {"Bearer " + goodKey}, "Content-Type": {"application/json"}}
)

// repeat is a Reader of one function.
type repeat func([]byte) (int, error)

func (f repeat) Read(p []byte) (int, error) { return f(p) }

// sink is a ResponseWriter that keeps nothing.
type sink struct {
	header http.Header
	status int
}

func (w *sink) Header() http.Header         { return w.header }
func (w *sink) WriteHeader(status int)      { w.status = status }
func (w *sink) Write(p []byte) (int, error) { return len(p), nil }
func (w *sink) Flush()                      {}
