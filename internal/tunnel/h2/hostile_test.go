package h2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// peer speaks frames by hand.
type peer struct {
	*http2.Framer
	c     net.Conn
	block bytes.Buffer
	enc   *hpack.Encoder
	got   chan string // what came, in words
}

// newPeer begins as an asking end does if it is one, else as an answering one.
func newPeer(c net.Conn, asks bool) *peer {
	p := &peer{Framer: http2.NewFramer(c, c), c: c, got: make(chan string, 100_000)}
	p.enc = hpack.NewEncoder(&p.block)
	p.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if !asks {
		io.ReadFull(c, make([]byte, len(http2.ClientPreface)))
	}
	go func() {
		defer close(p.got)
		for {
			f, err := p.ReadFrame()
			if err != nil {
				return
			}
			switch f := f.(type) {
			case *http2.RSTStreamFrame:
				p.got <- fmt.Sprintf("reset %d %v", f.StreamID, f.ErrCode)
			case *http2.GoAwayFrame:
				p.got <- fmt.Sprintf("goaway %v", f.ErrCode)
			case *http2.MetaHeadersFrame:
				p.got <- fmt.Sprintf("head %d %s", f.StreamID, f.PseudoValue("status"))
			}
		}
	}()
	if asks {
		io.WriteString(c, http2.ClientPreface)
	}
	p.WriteSettings()
	return p
}

// head sends a block of fields.
func (p *peer) head(id uint32, last bool, fields ...string) {
	p.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		p.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.block.Bytes(), EndStream: last, EndHeaders: true})
}

func (p *peer) ask(id uint32, last bool, fields ...string) {
	p.head(id, last, append([]string{":method", "POST", ":scheme", "http", ":authority", "machine", ":path", "/v1/x"}, fields...)...)
}

// A hub that breaks the protocol breaks its stream, or is told and cut off;
// what is only odd is taken. The server goes on in any case but the second.
func TestHostileHub(t *testing.T) {
	const gone = "goaway "
	for name, test := range map[string]struct {
		send func(p *peer)
		want string // the first of what comes, "" if nothing
	}{
		"a call":                    {func(p *peer) { p.ask(1, true) }, "head 1 200"},
		"unknown frames":            {func(p *peer) { p.WriteRawFrame(0xfa, 0xff, 7, []byte("x")); p.ask(1, true) }, "head 1 200"},
		"priorities":                {func(p *peer) { p.WritePriority(3, http2.PriorityParam{StreamDep: 1}); p.ask(1, true) }, "head 1 200"},
		"a body of another length":  {func(p *peer) { p.ask(1, false, "content-length", "3"); p.WriteData(1, true, []byte("four")) }, "reset 1 PROTOCOL_ERROR"},
		"a body that is short":      {func(p *peer) { p.ask(1, false, "content-length", "3"); p.WriteData(1, true, []byte("2.")) }, "reset 1 PROTOCOL_ERROR"},
		"a length and no body":      {func(p *peer) { p.ask(1, true, "content-length", "3") }, "reset 1 PROTOCOL_ERROR"},
		"two lengths":               {func(p *peer) { p.ask(1, false, "content-length", "3", "content-length", "4") }, "reset 1 PROTOCOL_ERROR"},
		"no length":                 {func(p *peer) { p.ask(1, false, "content-length", "-3") }, "reset 1 PROTOCOL_ERROR"},
		"no path":                   {func(p *peer) { p.head(1, true, ":method", "POST", ":scheme", "http") }, "reset 1 PROTOCOL_ERROR"},
		"a path that is none":       {func(p *peer) { p.head(1, true, ":method", "GET", ":scheme", "http", ":path", "v1") }, "reset 1 PROTOCOL_ERROR"},
		"CONNECT":                   {func(p *peer) { p.head(1, true, ":method", "CONNECT", ":authority", "a:1") }, "reset 1 PROTOCOL_ERROR"},
		"a field of HTTP/1":         {func(p *peer) { p.ask(1, true, "transfer-encoding", "chunked") }, "reset 1 PROTOCOL_ERROR"},
		"upper case":                {func(p *peer) { p.ask(1, true, "Kith-Caller", "x") }, "reset 1 PROTOCOL_ERROR"},
		"line break in a value":     {func(p *peer) { p.ask(1, true, "kith-caller", "x\r\ny: z") }, "reset 1 PROTOCOL_ERROR"},
		"a head of 65 KB":           {func(p *peer) { p.long(1, 65_000) }, "reset 1 ENHANCE_YOUR_CALM"},
		"a head without end":        {func(p *peer) { p.long(1, 1<<20) }, gone + "PROTOCOL_ERROR"},
		"trailers that end nothing": {func(p *peer) { p.ask(1, false); p.head(1, false, "a", "b") }, "reset 1 PROTOCOL_ERROR"},
		"a head of a stream gone":   {func(p *peer) { p.ask(3, true); p.ask(1, true); synctest.Wait(); p.ask(5, true) }, "head 3 200"},
		"more than the window":      {func(p *peer) { p.flood(1) }, "reset 1 FLOW_CONTROL_ERROR"},
		"a credit too large":        {func(p *peer) { p.ask(1, false); p.WriteWindowUpdate(1, 1<<31-1); p.WriteWindowUpdate(1, 1<<31-1) }, "reset 1 FLOW_CONTROL_ERROR"},
		"its own stream":            {func(p *peer) { p.ask(2, true) }, gone + "PROTOCOL_ERROR"},
		"data of no stream":         {func(p *peer) { p.WriteData(7, false, []byte("x")) }, gone + "PROTOCOL_ERROR"},
		"a reset of no stream":      {func(p *peer) { p.WriteRSTStream(7, http2.ErrCodeCancel) }, gone + "PROTOCOL_ERROR"},
		"credit of no stream":       {func(p *peer) { p.WriteWindowUpdate(7, 1) }, gone + "PROTOCOL_ERROR"},
		"a credit of all too large": {func(p *peer) { p.WriteWindowUpdate(0, 1<<31-1) }, gone + "FLOW_CONTROL_ERROR"},
		"credit of nothing":         {func(p *peer) { p.WriteRawFrame(http2.FrameWindowUpdate, 0, 0, make([]byte, 4)) }, gone + "PROTOCOL_ERROR"},
		"a push":                    {func(p *peer) { p.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true}) }, gone + "PROTOCOL_ERROR"},
		"a frame of 100 KB":         {func(p *peer) { p.ask(1, false); p.WriteData(1, true, make([]byte, 100<<10)) }, gone + "FRAME_SIZE_ERROR"},
		"a window of 3 GiB":         {func(p *peer) { p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3 << 30}) }, gone + "FLOW_CONTROL_ERROR"},
		"CONTINUATION of nothing":   {func(p *peer) { p.WriteContinuation(1, true, nil) }, gone + "PROTOCOL_ERROR"},
		"a field table of nonsense": {func(p *peer) {
			p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff}, EndHeaders: true})
		}, gone + "COMPRESSION_ERROR"},
		"pings without end":      {func(p *peer) { p.again(func() error { return p.WritePing(false, [8]byte{}) }) }, gone + "ENHANCE_YOUR_CALM"},
		"settings twice":         {func(p *peer) { p.WriteSettings(http2.Setting{ID: 4, Val: 1}, http2.Setting{ID: 4, Val: 2}) }, gone + "PROTOCOL_ERROR"},
		"settings without end":   {func(p *peer) { p.again(func() error { return p.WriteSettings() }) }, gone + "ENHANCE_YOUR_CALM"},
		"empty data without end": {func(p *peer) { p.ask(1, false); p.again(func() error { return p.WriteData(1, false, nil) }) }, gone + "ENHANCE_YOUR_CALM"},
		"nonsense without end":   {func(p *peer) { p.again(func() error { return p.WriteRawFrame(0xfa, 0, 0, nil) }) }, gone + "ENHANCE_YOUR_CALM"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				server := serve(t, ours, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.ContentLength != 0 {
						<-r.Context().Done() // else its answer might come first
					}
				}))
				p := newPeer(theirs, true)
				p.AllowIllegalWrites = true
				test.send(p)
				synctest.Wait()
				got := ""
				if len(p.got) > 0 {
					got = <-p.got
				}
				if got != test.want {
					t.Errorf("%q, want %q", got, test.want)
				}
				if err := server.Err(); (err != nil) != strings.HasPrefix(test.want, gone) {
					t.Errorf("it ended with %v", err)
				}
				if server.Err() == nil {
					p.ask(99, true)
					synctest.Wait()
					for got = ""; len(p.got) > 0; got = <-p.got {
					}
					if got != "head 99 200" {
						t.Errorf("the next call: %q", got)
					}
				}
				theirs.Close()
			})
		})
	}
}

// long sends a head of n bytes in frames of 16 KiB.
func (p *peer) long(id uint32, n int) {
	p.block.Reset()
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":path", "/"}} {
		p.enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	for i := range n / 1000 {
		p.enc.WriteField(hpack.HeaderField{Name: fmt.Sprint("x", i), Value: strings.Repeat("~", 1000)})
	}
	block := p.block.Bytes()
	err := p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:bulk], EndStream: true})
	for block = block[bulk:]; err == nil; block = block[bulk:] {
		if len(block) <= bulk {
			p.WriteContinuation(id, true, block)
			return
		}
		err = p.WriteContinuation(id, false, block[:bulk])
	}
}

// flood sends one frame more than a stream's window.
func (p *peer) flood(id uint32) {
	p.ask(id, false)
	for range StreamWindow/bulk + 1 {
		p.WriteData(id, false, make([]byte, bulk))
	}
}

func (p *peer) again(write func() error) {
	for range mostIdle + 100 {
		if write() != nil {
			return
		}
	}
}

// One that does not begin as HTTP/2 does is cut off.
func TestNotHTTP2(t *testing.T) {
	for name, words := range map[string]string{
		"HTTP/1":   "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"headless": http2.ClientPreface + "\x00\x00\x08\x06\x00\x00\x00\x00\x00" + "12345678",
		"silence":  "",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				server := serve(t, ours, http.NotFoundHandler())
				go io.Copy(io.Discard, theirs)
				began := time.Now()
				io.WriteString(theirs, words)
				<-server.Done()
				if err := server.Err(); words != "" && !errors.Is(err, errNotBegun) || time.Since(began) > WriteWithin {
					t.Errorf("%v after %v", err, time.Since(began))
				}
			})
		})
	}
}

// Streams that are reset at once start no more handlers than are allowed, and
// those of the others are told.
func TestRapidReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		var running, most atomic.Int64
		stop := make(chan struct{})
		server := serve(t, ours, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			most.Store(max(most.Load(), running.Add(1)))
			<-stop
		}))
		p := newPeer(theirs, true)
		for id := uint32(1); id < 2*(maxHandlers+1000); id += 2 {
			p.ask(id, true)
			p.WriteRSTStream(id, http2.ErrCodeCancel)
		}
		synctest.Wait()
		if most.Load() != maxHandlers || server.Err() != nil {
			t.Errorf("%d handlers, %v", most.Load(), server.Err())
		}
		if got := <-p.got; !strings.HasSuffix(got, "REFUSED_STREAM") {
			t.Errorf("told %q", got)
		}
		close(stop)
		theirs.Close()
	})
}

// A daemon that breaks the protocol breaks its stream, or is cut off; what is
// only odd is taken.
func TestHostileDaemon(t *testing.T) {
	head := func(p *peer) { p.head(1, false, ":status", "200") }
	for name, test := range map[string]struct {
		send func(p *peer)
		want string // the answer, or part of the error
		ends bool   // the connection
	}{
		"an answer":          {func(p *peer) { head(p); p.WriteData(1, true, []byte("pong")) }, "pong", false},
		"informational ones": {func(p *peer) { p.head(1, false, ":status", "103"); head(p); p.WriteData(1, true, []byte("pong")) }, "pong", false},
		"a cut after all":    {func(p *peer) { head(p); p.WriteData(1, true, []byte("pong")); p.WriteRSTStream(1, http2.ErrCodeNo) }, "pong", false},
		"data after all":     {func(p *peer) { head(p); p.WriteData(1, true, []byte("pong")); p.WriteData(1, true, []byte("!")) }, "pong", false},
		"a cut": {func(p *peer) {
			head(p)
			p.WriteData(1, false, []byte("po"))
			p.WriteRSTStream(1, http2.ErrCodeInternal)
		}, "INTERNAL_ERROR", false},
		"a cut before the head": {func(p *peer) { p.WriteRSTStream(1, http2.ErrCodeInternal) }, "INTERNAL_ERROR", false},
		"only an informational": {func(p *peer) { p.head(1, true, ":status", "103") }, "PROTOCOL_ERROR", false},
		"no status":             {func(p *peer) { p.head(1, false, "a", "b") }, "PROTOCOL_ERROR", false},
		"status 99":             {func(p *peer) { p.head(1, false, ":status", "099") }, "PROTOCOL_ERROR", false},
		"a request's fields":    {func(p *peer) { p.ask(1, false) }, "PROTOCOL_ERROR", false},
		"a body without a head": {func(p *peer) { p.WriteData(1, false, []byte("x")) }, "PROTOCOL_ERROR", false},
		"more than announced": {func(p *peer) {
			p.head(1, false, ":status", "200", "content-length", "1")
			p.WriteData(1, true, []byte("pong"))
		}, "PROTOCOL_ERROR", false},
		"less than announced": {func(p *peer) {
			p.head(1, false, ":status", "200", "content-length", "9")
			p.WriteData(1, true, []byte("pong"))
		}, "PROTOCOL_ERROR", false},
		"nothing, but announced":   {func(p *peer) { p.head(1, true, ":status", "200", "content-length", "9") }, "PROTOCOL_ERROR", false},
		"two heads":                {func(p *peer) { head(p); head(p) }, "PROTOCOL_ERROR", false},
		"a field of HTTP/1":        {func(p *peer) { p.head(1, false, ":status", "200", "connection", "close") }, "PROTOCOL_ERROR", false},
		"a head of 65 KB":          {func(p *peer) { p.long(1, 65_000) }, "PROTOCOL_ERROR", false},
		"more than the window":     {func(p *peer) { head(p); p.pour(1) }, "FLOW_CONTROL_ERROR", false},
		"a stream of its own":      {func(p *peer) { p.head(2, false, ":status", "200") }, "PROTOCOL_ERROR", true},
		"a stream nobody opened":   {func(p *peer) { p.head(3, false, ":status", "200") }, "PROTOCOL_ERROR", true},
		"a push":                   {func(p *peer) { p.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true}) }, "PROTOCOL_ERROR", true},
		"a farewell with an error": {func(p *peer) { p.WriteGoAway(1, http2.ErrCodeInternal, []byte("oops")) }, "oops", true},
		"a farewell before it":     {func(p *peer) { p.WriteGoAway(0, http2.ErrCodeNo, nil) }, "no further streams", false},
		"its end":                  {func(p *peer) { head(p); p.c.Close() }, "closed the connection", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				line := dial(t, ours)
				p := newPeer(theirs, false)
				p.AllowIllegalWrites = true
				go func() {
					<-p.got // the request's head
					synctest.Wait()
					test.send(p)
				}()
				answer, err := line.RoundTrip(post(t.Context(), strings.NewReader("ping")))
				got := ""
				if err == nil {
					synctest.Wait() // nobody reads meanwhile
					var text []byte
					text, err = io.ReadAll(answer.Body)
					answer.Body.Close()
					got = string(text)
				}
				if err != nil {
					got = err.Error()
				}
				if !strings.Contains(got, test.want) || err == nil && got != test.want {
					t.Errorf("%q, want %q", got, test.want)
				}
				synctest.Wait()
				if err := line.Err(); (err != nil) != test.ends {
					t.Errorf("the connection: %v", err)
				}
				theirs.Close()
			})
		})
	}
}

func (p *peer) pour(id uint32) {
	for range StreamWindow/bulk + 1 {
		p.WriteData(id, false, make([]byte, bulk))
	}
}

// What is unsent at the end goes, to a peer that takes it; one that takes a byte
// now and then holds the connection no longer than any other.
func TestCloseSendsTheRest(t *testing.T) {
	for name, pause := range map[string]time.Duration{"at once": 0, "by drops": lastWrite / 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				line := Dial(ours)
				synctest.Wait() // it writes, and nobody reads
				line.mu.Lock()
				_, _ = unsent{&line.conn}.Write(make([]byte, 3*bulk))
				all := line.taken
				line.mu.Unlock()
				got := make(chan int64)
				go func() {
					n, buffer := int64(0), make([]byte, 64<<10)
					if pause > 0 {
						buffer = buffer[:1]
					}
					for {
						k, err := theirs.Read(buffer)
						if n += int64(k); err != nil {
							got <- n
							return
						}
						time.Sleep(pause) // in the bubble
					}
				}()
				began := time.Now()
				line.Close(net.ErrClosed)
				line.Wait()
				if took := time.Since(began); took > lastWrite {
					t.Errorf("it took %v", took)
				}
				if n := <-got; n > all || pause == 0 && n != all {
					t.Errorf("%d bytes of %d", n, all)
				}
			})
		})
	}
}

// The streams' writes wait while much is unsent, and end with the connection.
func TestWritesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		line := Dial(ours)
		p := newPeer(theirs, false)
		p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
		p.WriteWindowUpdate(0, 1<<30)
		synctest.Wait()
		begin, ended := make(chan struct{}), make(chan error)
		call := func() {
			answer, err := line.RoundTrip(post(context.Background(), io.LimitReader(endless{begin}, 1<<30)))
			if err == nil {
				_, err = io.ReadAll(answer.Body)
			}
			ended <- err
		}
		for range 10 {
			go call()
		}
		synctest.Wait() // their heads are sent
		line.mu.Lock()
		line.below = &stalled{Conn: theirs}
		line.mu.Unlock()
		close(begin)
		for range 10 {
			go call()
		}
		synctest.Wait() // all of them wait
		line.mu.Lock()
		if n := len(line.unsent); n < mostUnsent || n >= mostUnsent+2*bulk {
			t.Errorf("%d bytes are unsent, the bound is %d", n, mostUnsent)
		}
		line.mu.Unlock()
		line.Close(io.ErrClosedPipe)
		for range 20 {
			if err := <-ended; !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("a call ended with %v", err)
			}
		}
		ours.Close()
		line.Wait()
	})
}

// stalled takes nothing until its deadline, which the end of a connection sets.
type stalled struct{ net.Conn }

func (s *stalled) Write([]byte) (int, error) {
	time.Sleep(WriteWithin) // in the bubble
	return 0, net.ErrClosed
}

// endless is nothing but zeros, from begin on if there is one.
type endless struct{ begin chan struct{} }

func (e endless) Read(p []byte) (int, error) {
	if e.begin != nil {
		<-e.begin
	}
	clear(p)
	return len(p), nil
}

// Whatever bytes come, an end neither panics nor stays.
func FuzzEnds(f *testing.F) {
	var seed bytes.Buffer
	p := &peer{Framer: http2.NewFramer(&seed, nil)}
	p.enc = hpack.NewEncoder(&p.block)
	p.WriteSettings()
	p.ask(1, false, "content-length", "4")
	p.WriteData(1, true, []byte("ping"))
	p.WritePing(false, [8]byte{})
	f.Add(seed.Bytes())
	seed.Reset()
	p.block.Reset()
	p.enc = hpack.NewEncoder(&p.block)
	p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100})
	p.head(1, false, ":status", "200", "trailer", "a")
	p.WriteData(1, false, []byte("pong"))
	p.head(1, true, "a", "b")
	p.WriteGoAway(1, http2.ErrCodeNo, nil)
	f.Add(seed.Bytes())
	f.Fuzz(func(t *testing.T, words []byte) {
		for _, asks := range []bool{true, false} {
			ours, theirs := net.Pipe()
			go func() {
				if asks {
					io.WriteString(theirs, http2.ClientPreface)
				}
				theirs.Write(words)
				theirs.Close()
			}()
			go io.Copy(io.Discard, theirs)
			if asks {
				s := Serve(t.Context(), ours, http.HandlerFunc(echo), slog.New(slog.DiscardHandler))
				s.Wait()
				continue
			}
			line := Dial(ours)
			if answer, err := line.RoundTrip(post(t.Context(), strings.NewReader("ping"))); err == nil {
				io.ReadAll(answer.Body)
				answer.Body.Close()
			}
			line.Wait()
		}
	})
}
