package h2

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// atOnce sends frames in one write, so that they are here together. Its heads
// are the first of the connection: their HPACK table is their own.
func atOnce(c net.Conn, send func(p *peer)) {
	var all bytes.Buffer
	p := &peer{Framer: http2.NewFramer(&all, nil)}
	p.enc = hpack.NewEncoder(&p.block)
	send(p)
	c.Write(all.Bytes())
}

// whole says whether all of the connection's window is with the peer or owed to it.
func (c *conn) whole() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.window+c.owed == ConnectionWindow && len(c.streams) == 0
}

// A request that comes while the connection ends starts no handler, which would
// never learn of the end.
func TestRequestAfterEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		var asked atomic.Int64
		server := serve(t, ours, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
		io.WriteString(theirs, http2.ClientPreface)
		atOnce(theirs, func(p *peer) { p.WriteSettings() })
		synctest.Wait() // it writes its own settings, and nobody reads
		server.Close(net.ErrClosed)
		atOnce(theirs, func(p *peer) { p.ask(1, false) })
		server.Wait()
		synctest.Wait()
		server.mu.Lock()
		defer server.mu.Unlock()
		if asked.Load() > 0 || len(server.streams) > 0 {
			t.Errorf("%d handlers ran, %d streams are left", asked.Load(), len(server.streams))
		}
	})
}

// A head that is here only in part holds up nothing that came before it.
func TestHeadInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		serve(t, ours, http.HandlerFunc(echo))
		p := newPeer(theirs, true)
		atOnce(theirs, func(p *peer) {
			p.ask(1, true)
			p.WriteHeaders(http2.HeadersFrameParam{StreamID: 3})
		})
		synctest.Wait()
		if len(p.got) == 0 {
			t.Error("no answer")
		}
		theirs.Close()
	})
}

// A reader that is always a little behind makes a stream hold no more than its
// window, and mixes nothing up.
func TestReaderBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		line := dial(t, ours)
		p := newPeer(theirs, false)
		go func() {
			<-p.got
			p.head(1, false, ":status", "200")
		}()
		answer, err := line.RoundTrip(post(t.Context(), nil))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the head's writer is through
		s, got := answer.Body.(*answerBody).s, make([]byte, 1000)
		for i := range 1000 {
			p.WriteData(1, false, bytes.Repeat([]byte{byte(i)}, 1000))
			if i < 2 {
				continue
			}
			synctest.Wait() // it is here
			if _, err := io.ReadFull(answer.Body, got); err != nil || got[0] != byte(i-2) || got[999] != byte(i-2) {
				t.Fatalf("part %d: %d and %d, %v", i-2, got[0], got[999], err)
			}
		}
		if cap(s.in) > 20_000 {
			t.Errorf("%d bytes are held for %d", cap(s.in), len(s.in)-s.off)
		}
		answer.Body.Close()
		theirs.Close()
	})
}

// A call that was answered before it was sent ends when its answer is closed,
// even one without a body, and its own body is closed once.
func TestAnswerBeforeTheEnd(t *testing.T) {
	for name, body := range map[string]func() io.Reader{
		"whole": func() io.Reader { return bytes.NewReader(make([]byte, bulk)) },
		"rest":  func() io.Reader { return io.LimitReader(endless{}, 1<<30) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				line := dial(t, ours)
				p := newPeer(theirs, false)
				p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
				synctest.Wait()
				go func() {
					<-p.got
					p.head(1, true, ":status", "200")
				}()
				r := post(t.Context(), body())
				counted := &closes{Reader: r.Body}
				r.Body = counted
				answer, err := line.RoundTrip(r)
				if err != nil || answer.ContentLength != 0 {
					t.Fatal(answer, err)
				}
				if text, err := io.ReadAll(answer.Body); len(text) > 0 || err != nil {
					t.Errorf("%q, %v", text, err)
				}
				answer.Body.Close()
				synctest.Wait()
				if n := counted.n.Load(); n != 1 || !line.whole() {
					t.Errorf("the body was closed %d times, %d streams are left", n, len(line.streams))
				}
				theirs.Close()
			})
		})
	}
}

// closes counts them.
type closes struct {
	io.Reader
	n atomic.Int64
}

func (c *closes) Close() error { c.n.Add(1); return nil }

// A call that is given up before its handler began costs the connection's
// window nothing.
func TestResetAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		server := serve(t, ours, http.HandlerFunc(echo))
		newPeer(theirs, true)
		atOnce(theirs, func(p *peer) {
			p.ask(1, false)
			p.WriteData(1, false, make([]byte, 1000))
			p.WriteRSTStream(1, http2.ErrCodeCancel)
		})
		synctest.Wait()
		if !server.whole() {
			t.Errorf("%d bytes of the window and %d that are owed", server.window, server.owed)
		}
		theirs.Close()
	})
}

// However calls end, the connection's window is whole when none is left.
func TestWindowStaysWhole(t *testing.T) {
	ours, theirs := pipe(t)
	server := serve(t, theirs, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("How") == "early" {
			return
		}
		if r.Header.Get("How") == "large" {
			io.Copy(w, r.Body)
			return
		}
		io.CopyN(w, r.Body, 300_000)
		if r.Header.Get("How") == "close" {
			r.Body.Close()
		}
	}))
	line := dial(t, ours)
	r := post(t.Context(), io.LimitReader(endless{}, connectionRefund+1))
	r.Header.Set("How", "large")
	answer, err := line.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, answer.Body); n != connectionRefund+1 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	answer.Body.Close()
	for i := range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		r := post(ctx, io.LimitReader(endless{}, 400_000))
		r.Header.Set("How", []string{"early", "close", "", "", ""}[i%5])
		answer, err := line.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		if i%5 != 3 {
			answer.Body.Read(make([]byte, 100_000))
		}
		if i%5 == 4 {
			cancel()
		}
		answer.Body.Close()
		cancel()
	}
	for end := time.Now().Add(10 * time.Second); !(line.whole() && server.whole()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			line.mu.Lock()
			server.mu.Lock()
			t.Fatalf("the client's lacks %d bytes, the server's %d", ConnectionWindow-line.window-line.owed, ConnectionWindow-server.window-server.owed)
		}
	}
}

// What comes for a stream that it breaks, or behind it, is given back; what is
// more than the connection's window ends it.
func TestWindowOfBrokenStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		server := serve(t, ours, http.HandlerFunc(echo))
		p := newPeer(theirs, true)
		p.ask(1, false, "content-length", "3")
		for range 3 {
			p.WriteData(1, false, make([]byte, 1000))
		}
		synctest.Wait()
		if !server.whole() {
			t.Errorf("%d bytes of the window and %d that are owed", server.window, server.owed)
		}
		server.mu.Lock()
		server.window = 1000
		server.mu.Unlock()
		for range 2 {
			p.WriteData(1, false, make([]byte, 1000))
		}
		synctest.Wait()
		if err := server.Err(); !errors.Is(err, http2.ConnectionError(http2.ErrCodeFlowControl)) {
			t.Error(err)
		}
		theirs.Close()
	})
}

// A request's body that the handler wants no more of is taken all the same, and
// holds up nobody.
func TestUnwantedBody(t *testing.T) {
	eachPair(t, func(t *testing.T, with func(http.HandlerFunc) http.RoundTripper) {
		sent := make(chan struct{})
		line := with(func(w http.ResponseWriter, r *http.Request) {
			r.Body.Close()
			select {
			case <-sent:
			case <-time.After(5 * time.Second):
				t.Error("it stands still")
			}
		})
		if _, theirs := line.(*Client); theirs && strings.Contains(t.Name(), "their_server") {
			t.Skip("it takes no more than the window")
		}
		body := io.MultiReader(io.LimitReader(endless{}, 4*StreamWindow), atEnd(func() { close(sent) }))
		answer, err := line.RoundTrip(post(t.Context(), body))
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
	})
}

// That holds too if a whole window of it had come.
func TestUnwantedWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		server := serve(t, ours, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second) // in the bubble
			r.Body.Close()
			<-r.Context().Done()
		}))
		p := newPeer(theirs, true)
		p.ask(1, false)
		for range StreamWindow / bulk {
			p.WriteData(1, false, make([]byte, bulk))
		}
		time.Sleep(2 * time.Second)
		server.mu.Lock()
		if window := server.streams[1].window; window != StreamWindow {
			t.Errorf("the window is %d", window)
		}
		server.mu.Unlock()
		theirs.Close()
	})
}

// atEnd is called when all before it was read.
type atEnd func()

func (f atEnd) Read([]byte) (int, error) { f(); return 0, io.EOF }

// Padding counts for both windows and is given back.
func TestPadding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		line := dial(t, ours)
		p := newPeer(theirs, false)
		go func() {
			<-p.got
			p.head(1, false, ":status", "200")
			for range 2 * StreamWindow / 256 {
				p.WriteDataPadded(1, false, []byte("x"), make([]byte, 254))
			}
			p.WriteData(1, true, nil)
		}()
		answer, err := line.RoundTrip(post(t.Context(), nil))
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(answer.Body); len(text) != 2*StreamWindow/256 || err != nil {
			t.Errorf("%d bytes, %v", len(text), err)
		}
		if !line.whole() {
			t.Errorf("%d bytes of the window and %d that are owed", line.window, line.owed)
		}
		theirs.Close()
	})
}

// What a handler writes goes out from 16 KiB on, flushed or not.
func TestWritesGo(t *testing.T) {
	eachPair(t, func(t *testing.T, with func(http.HandlerFunc) http.RoundTripper) {
		read := make(chan struct{})
		line := with(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(20 * time.Millisecond) // else the answer to settings takes it along
			for range 2 * bulk >> 10 {
				w.Write(make([]byte, 1<<10))
			}
			select {
			case <-read:
			case <-time.After(5 * time.Second):
				t.Error("it stays")
			}
		})
		answer, err := line.RoundTrip(post(t.Context(), nil))
		if err != nil {
			t.Fatal(err)
		}
		io.ReadFull(answer.Body, make([]byte, bulk)) // the rest may stay
		close(read)
		answer.Body.Close()
	})
}

// Who was answered before the end of the request is told to send no more.
func TestNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		server := serve(t, ours, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		p := newPeer(theirs, true)
		p.ask(1, false)
		synctest.Wait()
		for _, want := range []string{"head 1 200", "reset 1 NO_ERROR"} {
			if len(p.got) == 0 {
				t.Fatalf("nothing, want %q", want)
			}
			if got := <-p.got; got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		if !server.whole() {
			t.Error("the stream is left")
		}
		theirs.Close()
	})
}

// Frames that carry nothing are taken at a pace, and beside those that carry
// something.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		server := serve(t, ours, http.HandlerFunc(echo))
		p := newPeer(theirs, true)
		pings := func(n int) {
			for range n {
				p.WritePing(false, [8]byte{})
			}
		}
		pings(mostIdle - 10)
		time.Sleep(pingEvery + time.Second)
		pings(mostIdle - 10)
		for id := range uint32(100) {
			p.ask(2*id+1, true)
			pings(10)
		}
		synctest.Wait()
		if err := server.Err(); err != nil {
			t.Error(err)
		}
		theirs.Close()
	})
}

// Settings that widen the streams' windows let those go on that wait.
func TestWiderWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		line := dial(t, ours)
		p := newPeer(theirs, false)
		p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
		synctest.Wait()
		body := &closes{Reader: io.LimitReader(endless{}, 2*bulk)}
		go line.RoundTrip(post(t.Context(), body))
		synctest.Wait()
		if body.n.Load() > 0 {
			t.Error("it does not wait")
		}
		p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
		synctest.Wait()
		if body.n.Load() == 0 {
			t.Error("it waits on")
		}
		theirs.Close()
	})
}

// Who makes us answer more and more and reads none of it is cut off.
func TestAnswersUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		server := serve(t, ours, http.HandlerFunc(echo))
		p := newPeer(theirs, true)
		synctest.Wait()
		server.mu.Lock()
		server.below = &stalled{Conn: ours}
		server.mu.Unlock()
		p.ask(1, true)
		for i := 0; server.Err() == nil && i < mostReplies/10; i++ {
			p.WritePing(false, [8]byte{})
			if i%10 == 9 {
				p.ask(1, true) // of a stream that is gone, but something
			}
		}
		if err := server.Err(); !errors.Is(err, errUnread) {
			t.Error(err)
		}
		theirs.Close()
		ours.Close()
	})
}

// What a peer calls its fields is not kept if it is long.
func TestLongNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		server := serve(t, ours, http.HandlerFunc(echo))
		p := newPeer(theirs, true)
		for i := range uint32(200) {
			p.ask(2*i+1, true, strings.Repeat("x", 200+int(i)), "y")
		}
		synctest.Wait()
		server.mu.Lock()
		kept := 0
		for name, form := range server.names {
			kept += len(name) + len(form)
		}
		server.mu.Unlock()
		if kept > 10_000 || server.Err() != nil {
			t.Errorf("%d bytes are kept, %v", kept, server.Err())
		}
		theirs.Close()
	})
}

// A handler that has returned can neither write nor read on.
func TestAfterTheHandler(t *testing.T) {
	ours, theirs := pipe(t)
	late := make(chan func() error, 1)
	serve(t, theirs, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		late <- func() error {
			if n, err := r.Body.Read(make([]byte, 1)); n > 0 || err == nil {
				t.Errorf("it read %d bytes: %v", n, err)
			}
			w.Write([]byte("late"))
			return http.NewResponseController(w).Flush()
		}
	}))
	answer, err := dial(t, ours).RoundTrip(post(t.Context(), nil))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(answer.Body); len(text) > 0 || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	time.Sleep(20 * time.Millisecond) // the handler returns after its last words
	if err := (<-late)(); err == nil {
		t.Error("it wrote")
	}
}

// A request is the caller's own: nothing of it but its body is used up.
func TestRequestStays(t *testing.T) {
	ours, theirs := pipe(t)
	serve(t, theirs, http.HandlerFunc(echo))
	r := post(t.Context(), nil)
	r.Body = nil
	answer, err := dial(t, ours).RoundTrip(r)
	if err != nil || r.Body != nil {
		t.Errorf("%v, %v", r.Body, err)
	} else {
		answer.Body.Close()
	}
}

// A hub that says farewell is answered what it asked: its last stream would be
// one of ours, which there is none of.
func TestFarewellOfAHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		serve(t, ours, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); err != nil {
				t.Error(err)
			}
		}))
		p := newPeer(theirs, true)
		p.ask(1, false)
		p.WriteGoAway(0, http2.ErrCodeNo, nil)
		p.WriteData(1, true, []byte("x"))
		synctest.Wait()
		if len(p.got) == 0 {
			t.Fatal("no answer")
		}
		if got := <-p.got; got != "head 1 200" {
			t.Errorf("%q", got)
		}
		theirs.Close()
	})
}

// What a peer says in farewell is quoted in part: each call's error holds it.
func TestLongFarewell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		line := dial(t, ours)
		newPeer(theirs, false).WriteGoAway(0, http2.ErrCodeInternal, bytes.Repeat([]byte{1}, 10_000))
		<-line.Done()
		if n := len(line.Err().Error()); n > 2000 {
			t.Errorf("an error of %d bytes", n)
		}
	})
}

// Streams broken again and again are a flood like any other.
func TestBrokenStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		server := serve(t, ours, http.HandlerFunc(echo))
		p := newPeer(theirs, true)
		p.again(func() error { return p.WriteRawFrame(http2.FrameWindowUpdate, 0, 1, make([]byte, 4)) })
		synctest.Wait()
		if err := server.Err(); !errors.Is(err, errFlood) {
			t.Error(err)
		}
		theirs.Close()
	})
}

// An end is never a good end of an answer, whatever the connection says of it.
func TestEndOfWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		line := dial(t, ours)
		p := newPeer(theirs, false)
		go func() {
			<-p.got
			p.head(1, false, ":status", "200")
		}()
		answer, err := line.RoundTrip(post(t.Context(), nil))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		line.mu.Lock()
		line.below = ended{ours}
		line.mu.Unlock()
		go p.WritePing(false, [8]byte{})
		if _, err := io.ReadAll(answer.Body); err == nil {
			t.Error("it ended well")
		}
	})
}

// ended takes nothing more.
type ended struct{ net.Conn }

func (ended) Write([]byte) (int, error) { return 0, io.EOF }

// A peer that takes bytes slowly is waited for, also over TLS, which cannot go on
// with a write that a deadline cut; one that takes next to nothing is not.
func TestSlowPeer(t *testing.T) {
	for name, test := range map[string]struct {
		bytes  int // a second
		secure bool
		stays  bool
	}{
		"slow":               {2 << 10, false, true},
		"slow, over TLS":     {2 << 10, true, true},
		"by drops":           {1, false, false},
		"by drops, over TLS": {1, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				low := &slow{Conn: theirs}
				theirs = low
				if test.secure {
					theirs = tls.Server(theirs, &tls.Config{Certificates: []tls.Certificate{certificate()}})
					ours = tls.Client(ours, &tls.Config{InsecureSkipVerify: true})
					go theirs.(*tls.Conn).Handshake()
					if err := ours.(*tls.Conn).Handshake(); err != nil {
						t.Fatal(err)
					}
				}
				line := dial(t, ours)
				p := newPeer(theirs, false)
				synctest.Wait()
				low.pace.Store(int64(test.bytes))
				go func() {
					for p.WritePing(true, [8]byte{}) == nil {
						time.Sleep(time.Second)
					}
				}()
				line.mu.Lock()
				_, _ = unsent{&line.conn}.Write(bytes.Repeat([]byte{0, 0, 0, 0xfa, 0, 0, 0, 0, 0}, mostUnsent/9))
				line.reply()
				line.mu.Unlock()
				time.Sleep(2 * WriteWithin)
				if stays := line.Err() == nil; stays != test.stays {
					t.Errorf("after %v: %v", 2*WriteWithin, line.Err())
				}
				low.Close()
				line.Wait()
				time.Sleep(time.Minute) // the peer's goroutines wake and end
			})
		})
	}
}

// slow is read at a pace, in bytes a second.
type slow struct {
	net.Conn
	pace atomic.Int64
}

func (s *slow) Read(p []byte) (int, error) {
	pace := int(s.pace.Load())
	if pace == 0 {
		return s.Conn.Read(p)
	}
	n, err := s.Conn.Read(p[:min(len(p), pace)])
	time.Sleep(time.Duration(n) * time.Second / time.Duration(pace)) // in the bubble
	return n, err
}

// certificate is one that a test server of the standard library has.
func certificate() tls.Certificate {
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	defer server.Close()
	return server.TLS.Certificates[0]
}
