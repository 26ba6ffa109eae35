package h2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"
)

// pair is an asking and an answering end on one connection.
type pair struct {
	name string
	with func(t *testing.T, handler http.Handler) http.RoundTripper
}

// pairs are our ends with each other and with the standard library's, which
// older daemons and hubs have.
var pairs = []pair{
	{"ours", func(t *testing.T, handler http.Handler) http.RoundTripper {
		ours, theirs := pipe(t)
		serve(t, theirs, handler)
		return dial(t, ours)
	}},
	{"their server", func(t *testing.T, handler http.Handler) http.RoundTripper {
		ours, theirs := pipe(t)
		server, l := &http.Server{Handler: handler, Protocols: plainly(), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}, newOne(theirs)
		served := make(chan struct{})
		go func() { defer close(served); server.Serve(l) }()
		t.Cleanup(func() { server.Close(); l.Close(); <-served })
		return dial(t, ours)
	}},
	{"their client", func(t *testing.T, handler http.Handler) http.RoundTripper {
		ours, theirs := pipe(t)
		serve(t, theirs, handler)
		transport := &http.Transport{
			DialContext:        func(context.Context, string, string) (net.Conn, error) { return ours, nil },
			Protocols:          plainly(),
			DisableCompression: true,
		}
		c, err := transport.NewClientConn(t.Context(), "http", "machine:80")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}},
}

func plainly() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

func eachPair(t *testing.T, test func(t *testing.T, with func(http.HandlerFunc) http.RoundTripper)) {
	for _, p := range pairs {
		t.Run(p.name, func(t *testing.T) {
			test(t, func(h http.HandlerFunc) http.RoundTripper { return p.with(t, h) })
		})
	}
}

// pipe is a connection over loopback.
func pipe(t testing.TB) (ours, theirs net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if ours, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if theirs, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

func dial(t testing.TB, below net.Conn) *Client {
	c := Dial(below)
	t.Cleanup(func() { c.Close(net.ErrClosed); c.Wait() })
	return c
}

func serve(t testing.TB, below net.Conn, handler http.Handler) *Server {
	s := Serve(context.Background(), below, handler, slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		if err := s.Err(); err != nil {
			t.Log("the server ended:", err)
		}
		s.Close(net.ErrClosed)
		s.Wait()
	})
	return s
}

// one is a listener of one connection.
type one struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newOne(c net.Conn) *one {
	l := &one{conns: make(chan net.Conn, 1), done: make(chan struct{})}
	l.conns <- c
	return l
}

func (l *one) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *one) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *one) Addr() net.Addr { return &net.TCPAddr{} }

func post(ctx context.Context, body io.Reader) *http.Request {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://machine/v1/x?y=1", body)
	if err != nil {
		panic(err)
	}
	return r
}

func echo(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }

// What was asked is what the handler sees, and what it answers is what is read.
func TestHeads(t *testing.T) {
	eachPair(t, func(t *testing.T, with func(http.HandlerFunc) http.RoundTripper) {
		line := with(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if r.Method != http.MethodPost || r.RequestURI != "/v1/x?y=1" || r.URL.Path != "/v1/x" || r.Host != "machine" ||
				r.ContentLength != 4 || string(body) != "ping" || err != nil || r.Header.Get("Kith-Attempt") != "1 7" ||
				len(r.Header.Values("Twice")) != 2 || r.Header.Get("User-Agent") != "" || r.RemoteAddr == "" {
				t.Errorf("%+v %q %v", r, body, err)
			}
			w.Header().Set("Retry-After", "7")
			w.Header().Add("Twice", "a")
			w.Header().Add("Twice", "b")
			w.Header().Set("Bad", "a\nb")
			w.WriteHeader(http.StatusServiceUnavailable)
			w.Header().Set("Late", "x")
			io.WriteString(w, "pong")
		})
		for range 3 { // by the third the fields are in HPACK's tables
			r := post(t.Context(), strings.NewReader("ping"))
			r.Header = http.Header{"Kith-Attempt": {"1 7"}, "Twice": {"a", "b"}, "User-Agent": {""}}
			if _, ours := line.(*Client); ours { // theirs would obey
				r.Header.Set("Connection", "close")
			}
			answer, err := line.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(answer.Body)
			if answer.StatusCode != 503 || answer.Header.Get("Retry-After") != "7" || len(answer.Header.Values("Twice")) != 2 ||
				answer.Header.Get("Late") != "" || string(body) != "pong" || err != nil || answer.Request != r {
				t.Errorf("%+v %q %v", answer, body, err)
			}
			answer.Body.Close()
		}
	})
}

// Bodies of every size come through both ways, however they are read and
// written, many at once.
func TestBodies(t *testing.T) {
	eachPair(t, func(t *testing.T, with func(http.HandlerFunc) http.RoundTripper) {
		line := with(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("y") == "" {
				t.Error("no query")
			}
			flush := http.NewResponseController(w).Flush
			chunk := make([]byte, 1+rand.IntN(20_000))
			for {
				n, err := r.Body.Read(chunk)
				w.Write(chunk[:n])
				if rand.IntN(2) == 0 {
					flush()
				}
				if err != nil {
					return
				}
			}
		})
		var wait sync.WaitGroup
		for _, size := range []int{0, 1, bulk - 1, bulk, bulk + 1, 65535, 65536, StreamWindow, StreamWindow + 1, 3 << 20, 8 << 20} {
			for _, known := range []bool{true, false} {
				wait.Go(func() {
					want := make([]byte, size)
					for i := range want {
						want[i] = byte(rand.Uint32())
					}
					var body io.Reader = bytes.NewReader(want)
					if !known {
						body = iotest.HalfReader(body)
					}
					answer, err := line.RoundTrip(post(t.Context(), body))
					if err != nil {
						t.Error(size, err)
						return
					}
					defer answer.Body.Close()
					got, err := io.ReadAll(answer.Body)
					if err != nil || !bytes.Equal(got, want) {
						t.Errorf("%d bytes of %d: %v", len(got), size, err)
					}
				})
			}
		}
		wait.Wait()
	})
}

// Many short calls at once, some of which are given up, mix nothing up.
func TestManyAtOnce(t *testing.T) {
	eachPair(t, func(t *testing.T, with func(http.HandlerFunc) http.RoundTripper) {
		line := with(echo)
		var wait sync.WaitGroup
		for range 50 {
			wait.Go(func() {
				for i := range 100 {
					want := strings.Repeat(fmt.Sprint(i, " "), 1+rand.IntN(2000))
					ctx, cancel := context.WithCancel(t.Context())
					if i%5 == 0 {
						time.AfterFunc(time.Duration(rand.IntN(2000))*time.Microsecond, cancel)
					}
					answer, err := line.RoundTrip(post(ctx, strings.NewReader(want)))
					if err == nil {
						var got []byte
						if got, err = io.ReadAll(answer.Body); err == nil && string(got) != want {
							t.Errorf("%d bytes of %d", len(got), len(want))
						}
						answer.Body.Close()
					}
					if err != nil && ctx.Err() == nil {
						t.Error(err)
					}
					cancel()
				}
			})
		}
		wait.Wait()
	})
}

// The trailers that were announced come after the body.
func TestTrailers(t *testing.T) {
	eachPair(t, func(t *testing.T, with func(http.HandlerFunc) http.RoundTripper) {
		for _, body := range []string{"", "text"} {
			line := with(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Trailer", "Kith-Usage, Never")
				io.WriteString(w, body)
				w.Header().Set("Kith-Usage", "1 2")
			})
			answer, err := line.RoundTrip(post(t.Context(), nil))
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := answer.Trailer["Kith-Usage"]; !ok || answer.Trailer.Get("Kith-Usage") != "" {
				t.Errorf("before the end: %v", answer.Trailer)
			}
			if text, err := io.ReadAll(answer.Body); string(text) != body || err != nil {
				t.Errorf("%q %v", text, err)
			}
			if got := answer.Trailer.Get("Kith-Usage"); got != "1 2" {
				t.Errorf("after it: %v", answer.Trailer)
			}
		}
	})
}

// A caller who leaves ends the handler's context; one who stops reading does too.
func TestCallerLeaves(t *testing.T) {
	eachPair(t, func(t *testing.T, with func(http.HandlerFunc) http.RoundTripper) {
		left := make(chan error)
		line := with(func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength != 0 {
				io.ReadAll(r.Body)
			}
			if r.Header.Get("Answer") != "" {
				io.WriteString(w, "begun")
				http.NewResponseController(w).Flush()
			}
			<-r.Context().Done()
			_, err := w.Write([]byte("too late"))
			if err == nil {
				err = http.NewResponseController(w).Flush()
			}
			left <- err
		})
		for name, leave := range map[string]func(cancel func(), answer *http.Response){
			"context": func(cancel func(), _ *http.Response) { cancel() },
			"close":   func(_ func(), answer *http.Response) { answer.Body.Close() },
		} {
			ctx, cancel := context.WithCancel(t.Context())
			r := post(ctx, strings.NewReader("x"))
			r.Header.Set("Answer", "yes")
			answer, err := line.RoundTrip(r)
			if err != nil {
				t.Fatal(name, err)
			}
			io.ReadFull(answer.Body, make([]byte, 5))
			leave(cancel, answer)
			if _, err := answer.Body.Read(make([]byte, 1)); err == nil {
				t.Errorf("%s: the body goes on", name)
			}
			if err := <-left; err == nil {
				t.Errorf("%s: the handler writes on", name)
			}
			cancel()
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, cancel)
		if _, err := line.RoundTrip(post(ctx, nil)); !errors.Is(err, context.Canceled) {
			t.Errorf("before the head: %v", err)
		}
		<-left
	})
}

// A handler that breaks off is a broken answer and nothing else; what came
// before is read.
func TestHandlerBreaksOff(t *testing.T) {
	eachPair(t, func(t *testing.T, with func(http.HandlerFunc) http.RoundTripper) {
		line := with(func(w http.ResponseWriter, r *http.Request) {
			switch r.Header.Get("How") {
			case "early":
				panic(http.ErrAbortHandler)
			case "short":
				w.Header().Set("Content-Length", "100")
				io.WriteString(w, "begun")
			case "late":
				io.WriteString(w, "begun")
				http.NewResponseController(w).Flush()
				panic("a defect")
			default:
				echo(w, r)
			}
		})
		for _, how := range []string{"early", "late", "short"} {
			r := post(t.Context(), nil)
			r.Header.Set("How", how)
			answer, err := line.RoundTrip(r)
			if err == nil {
				var text []byte
				if text, err = io.ReadAll(answer.Body); how == "late" && string(text) != "begun" {
					t.Errorf("%s: %q", how, text)
				}
				answer.Body.Close()
			}
			if err == nil {
				t.Errorf("%s: ended well", how)
			}
			answer, err = line.RoundTrip(post(t.Context(), strings.NewReader("next")))
			if err != nil {
				t.Fatalf("after %s: %v", how, err)
			}
			if text, err := io.ReadAll(answer.Body); string(text) != "next" || err != nil {
				t.Errorf("after %s: %q, %v", how, text, err)
			}
		}
	})
}

// An answer that does not wait for the request is read; the rest of the request
// is not sent, and its body is closed.
func TestEarlyAnswer(t *testing.T) {
	eachPair(t, func(t *testing.T, with func(http.HandlerFunc) http.RoundTripper) {
		line := with(func(w http.ResponseWriter, r *http.Request) {
			r.Body.Read(make([]byte, 10))
			w.WriteHeader(http.StatusServiceUnavailable)
			io.WriteString(w, "busy")
		})
		closed := make(chan struct{})
		body, writer := io.Pipe()
		go func() {
			defer close(closed)
			for {
				if _, err := writer.Write(make([]byte, 100_000)); err != nil {
					return
				}
			}
		}()
		answer, err := line.RoundTrip(post(t.Context(), body))
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(answer.Body); string(text) != "busy" || answer.StatusCode != 503 || err != nil {
			t.Errorf("%d %q %v", answer.StatusCode, text, err)
		}
		answer.Body.Close()
		<-closed
	})
}

// What cannot be sent is refused before it is.
func TestBadRequests(t *testing.T) {
	ours, theirs := pipe(t)
	serve(t, theirs, http.HandlerFunc(echo))
	line := dial(t, ours)
	for name, r := range map[string]*http.Request{
		"value": {Header: http.Header{"A": {"b\r\nc: d"}}},
		"name":  {Header: http.Header{"a b": {"c"}}},
	} {
		good := post(t.Context(), strings.NewReader("x"))
		good.Header = r.Header
		if _, err := line.RoundTrip(good); err == nil {
			t.Errorf("%s: sent", name)
		}
	}
	broken := post(t.Context(), iotest.ErrReader(io.ErrNoProgress))
	for _, length := range []int64{-1, 5} {
		broken.ContentLength = length
		if _, err := line.RoundTrip(broken); !errors.Is(err, io.ErrNoProgress) {
			t.Errorf("a broken body: %v", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := line.RoundTrip(post(ctx, nil)); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that was over: %v", err)
	}
	line.Close(io.ErrClosedPipe)
	if _, err := line.RoundTrip(post(t.Context(), nil)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("after the end: %v", err)
	}
}

// Whoever traces a request learns when its head is on its way.
func TestWroteHeaders(t *testing.T) {
	ours, theirs := pipe(t)
	wrote := make(chan struct{}, 1)
	serve(t, theirs, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-wrote }))
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteHeaders: func() { wrote <- struct{}{} }})
	answer, err := dial(t, ours).RoundTrip(post(ctx, nil))
	if err != nil || answer.StatusCode != http.StatusOK || answer.Body != http.NoBody {
		t.Errorf("%v, %v", answer, err)
	}
}

// A server that is shut down serves what runs and is sent no more.
func TestGoAway(t *testing.T) {
	ours, theirs := pipe(t)
	begun, release := make(chan struct{}), make(chan struct{})
	server, l := &http.Server{Protocols: plainly(), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-release
		io.WriteString(w, "whole")
	})}, newOne(theirs)
	go server.Serve(l)
	defer l.Close()
	line := dial(t, ours)
	got := make(chan string)
	go func() {
		answer, err := line.RoundTrip(post(t.Context(), nil))
		if err != nil {
			got <- err.Error()
			return
		}
		text, _ := io.ReadAll(answer.Body)
		got <- string(text)
	}()
	<-begun
	down := make(chan error)
	go func() { down <- server.Shutdown(t.Context()) }()
	for away := false; !away; time.Sleep(time.Millisecond) {
		line.mu.Lock()
		away = line.away
		line.mu.Unlock()
	}
	if _, err := line.RoundTrip(post(t.Context(), nil)); !errors.Is(err, ErrFull) {
		t.Errorf("a further call: %v", err)
	}
	close(release)
	if text := <-got; text != "whole" {
		t.Errorf("the call that ran: %q", text)
	}
	if err := <-down; err != nil {
		t.Error(err)
	}
}

// A client ends before its streams' numbers do.
func TestNumbersUsedUp(t *testing.T) {
	ours, theirs := pipe(t)
	serve(t, theirs, http.HandlerFunc(echo))
	line := dial(t, ours)
	line.mu.Lock()
	line.newest = lastStream - 2
	line.mu.Unlock()
	for i, want := range []error{nil, errUsedUp} {
		answer, err := line.RoundTrip(post(t.Context(), nil))
		if !errors.Is(err, want) {
			t.Errorf("call %d: %v", i, err)
		}
		if err == nil {
			io.ReadAll(answer.Body)
		}
	}
	<-line.Done()
}
