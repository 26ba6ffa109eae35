package tunnel

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"golang.org/x/net/websocket"
)

// passage is what a network between hub and machine lets through.
type passage func(hub http.HandlerFunc) http.HandlerFunc

func everything(hub http.HandlerFunc) http.HandlerFunc { return hub }

// onlyWebSocket is a hub behind a network that passes no other upgrade.
func onlyWebSocket(hub http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != webSocket {
			w.WriteHeader(http.StatusUpgradeRequired)
			return
		}
		hub(w, r)
	}
}

// eitherWay runs a test on a hub that is reached plainly, and on one that is
// reached in a WebSocket only.
func eitherWay(t *testing.T, test func(t *testing.T, pass passage)) {
	t.Run("plain", func(t *testing.T) { test(t, everything) })
	t.Run("WebSocket", func(t *testing.T) { test(t, onlyWebSocket) })
}

// proxy is a real one between real connections: it passes WebSockets to the
// hub and has its own way with any other upgrade.
func proxy(t *testing.T, hub string, refuse func(net.Conn)) (address string, asked <-chan string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan string, 1000)
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				in := bufio.NewReader(c)
				r, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				seen <- r.Header.Get("Upgrade")
				if r.Header.Get("Upgrade") != "websocket" {
					refuse(c)
					return
				}
				out, err := net.Dial("tcp", hub)
				if err != nil {
					return
				}
				defer out.Close()
				r.Write(out)
				go func() { io.Copy(out, in); out.Close() }()
				io.Copy(c, out)
			}()
		}
	}()
	t.Cleanup(func() { listener.Close() })
	return listener.Addr().String(), seen
}

// A machine behind a proxy that passes only WebSocket comes through with its
// second attempt, and from then on with each first one.
func TestBehindAProxy(t *testing.T) {
	say := func(text string) func(net.Conn) {
		return func(c net.Conn) { io.WriteString(c, text) }
	}
	for name, refuse := range map[string]func(net.Conn){
		"400":              say("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
		"426":              say("HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\n\r\n"),
		"200":              say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
		"cut":              say(""),
		"half an answer":   say("HTTP/1.1 101 Swi"),
		"101 and cut":      say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + Protocol + "\r\n" + HeaderGeneration + ": 1\r\n\r\n"),
		"101 of something": say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			out := make(chan *Line, 1)
			server := httptest.NewServer(lines(t, out))
			defer server.Close()
			address, asked := proxy(t, server.Listener.Addr().String(), refuse)
			m := newMachine(nil, echo)
			m.HubURL = "http://" + address
			m.run(t)
			for range 2 {
				line := <-out
				if _, err := first(t.Context(), line); err != nil {
					t.Fatal(err)
				}
				if err := line.Ack(t.Context()); err != nil {
					t.Fatal(err)
				}
				m.until(t, Acked)
				payload := strings.Repeat("0123456789", 100_000)
				status, body, err := call(t.Context(), line, "/v1/chat/completions", payload)
				if status != 200 || body != payload || err != nil {
					t.Errorf("call = %d, %d bytes, %v", status, len(body), err)
				}
				line.Close()
			}
			for i, want := range []string{Protocol, webSocket, webSocket} {
				if got := <-asked; got != want {
					t.Errorf("attempt %d asked for %q, want %q", i+1, got, want)
				}
			}
		})
	}
}

// Which way each attempt takes, for every end the one before may have had.
func TestWaysByTurns(t *testing.T) {
	answer := func(status int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(status)
		}
	}
	cut := func(w http.ResponseWriter, _ *http.Request) {
		c, _, _ := http.NewResponseController(w).Hijack()
		c.Close()
	}
	silent := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	unacked := func(w http.ResponseWriter, r *http.Request) { Upgrade(w, r, UpgradeConfig{Generation: 1}) }
	lasting := func(d time.Duration) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			line, err := Upgrade(w, r, UpgradeConfig{Generation: 1})
			if err != nil {
				return
			}
			defer line.Close()
			if line.Ack(context.Background()) == nil {
				time.Sleep(d) // in the bubble
			}
		}
	}
	for name, test := range map[string]struct {
		hub  []http.HandlerFunc // one an attempt; a further attempt is the end
		want string             // p: plain, w: in a WebSocket
	}{
		"refused":        {[]http.HandlerFunc{answer(426), lasting(0)}, "pww"},
		"every status":   {[]http.HandlerFunc{answer(200), answer(302), answer(403), answer(404), answer(500), answer(502)}, "pwpwpwp"},
		"cut":            {[]http.HandlerFunc{cut, lasting(0)}, "pww"},
		"silence":        {[]http.HandlerFunc{silent, lasting(0)}, "pww"},
		"101 lost":       {[]http.HandlerFunc{unacked, lasting(0)}, "pww"},
		"neither":        {[]http.HandlerFunc{cut, cut, cut, cut, lasting(0)}, "pwpwpp"},
		"the gate":       {[]http.HandlerFunc{answer(503, "Retry-After", "1"), answer(503), answer(429, "Retry-After", "1"), lasting(0)}, "ppppp"},
		"401":            {[]http.HandlerFunc{answer(401)}, "p"},
		"401, WebSocket": {[]http.HandlerFunc{cut, answer(401)}, "pw"},
		"plain stays":    {[]http.HandlerFunc{lasting(time.Minute), lasting(3 * time.Hour), lasting(0)}, "pppp"},
		"other way stays": {[]http.HandlerFunc{
			answer(400), lasting(20 * time.Minute), answer(503), lasting(20 * time.Minute), lasting(10 * time.Minute),
		}, "pwwwww"},
		"plain again":       {[]http.HandlerFunc{answer(400), lasting(61 * time.Minute), lasting(2 * time.Hour), lasting(0)}, "pwppp"},
		"plain in vain":     {[]http.HandlerFunc{answer(400), lasting(2 * time.Hour), answer(400), lasting(30 * time.Minute)}, "pwpww"},
		"long in WebSocket": {[]http.HandlerFunc{answer(400), lasting(3 * time.Hour)}, "pwp"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var took atomic.Value
				took.Store("")
				h := serveHub(t, func(w http.ResponseWriter, r *http.Request) {
					way := "p"
					if r.Header.Get("Upgrade") == webSocket {
						way = "w"
					}
					so := took.Load().(string)
					took.Store(so + way)
					if len(so) < len(test.hub) {
						test.hub[len(so)](w, r)
						return
					}
					w.WriteHeader(http.StatusUnauthorized)
				})
				m := newMachine(h, echo)
				m.run(t)
				if err := <-m.ended; !errors.Is(err, ErrRefused) {
					t.Errorf("Run = %v", err)
				}
				if got := took.Load(); got != test.want {
					t.Errorf("ways %q, want %q", got, test.want)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // a hub out of reach says nothing of either way
		var w way
		m := newMachine(nil, echo)
		m.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, io.ErrUnexpectedEOF }
		target, err := parseHub(m.HubURL)
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.attempt(t.Context(), target, w.at(time.Now()))
		if blocked := (*blockedError)(nil); err == nil || errors.As(err, &blocked) {
			t.Errorf("out of reach: %v", err)
		}
	})
}

// The framing is RFC 6455's: another's ends speak with ours, whole tunnels long.
func TestForeignEnds(t *testing.T) {
	payload := strings.Repeat("0123456789", 50_000)
	t.Run("daemon", func(t *testing.T) {
		out := make(chan *Line, 1)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Origin") // that client cannot leave it out
			lines(t, out)(w, r)
		}))
		defer server.Close()
		config, err := websocket.NewConfig("ws://"+server.Listener.Addr().String()+"/tunnel", "http://nowhere.example")
		if err != nil {
			t.Fatal(err)
		}
		config.Protocol = []string{webSocketProtocol}
		config.Header.Set(HeaderVersion, "2")
		ws, err := websocket.DialConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		ws.PayloadType = websocket.BinaryFrame
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			newSession(newMachine(nil, echo).Dialer, ws, 1).run(t.Context())
		}()
		line := <-out
		if _, body, err := call(t.Context(), line, "/v1/x", payload); err != nil || body != payload {
			t.Errorf("%d bytes, %v", len(body), err)
		}
		line.Close()
		<-ended
	})
	t.Run("hub", func(t *testing.T) {
		server := httptest.NewServer(websocket.Server{
			Handshake: func(c *websocket.Config, r *http.Request) error {
				if !slices.Equal(c.Protocol, []string{webSocketProtocol}) || r.Header.Get("Origin") != "" {
					t.Errorf("asked for %q from %q", c.Protocol, r.Header.Get("Origin"))
				}
				c.Header = http.Header{HeaderGeneration: {"7"}}
				return nil
			},
			Handler: func(ws *websocket.Conn) {
				ws.PayloadType = websocket.BinaryFrame
				line := newLine(ws, 7)
				defer line.Close()
				if _, body, err := call(context.Background(), line, "/v1/x", payload); err != nil || body != payload {
					t.Errorf("%d bytes, %v", len(body), err)
				}
			},
		})
		defer server.Close()
		m := newMachine(nil, echo)
		m.HubURL = server.URL
		target, err := parseHub(m.HubURL)
		if err != nil {
			t.Fatal(err)
		}
		m.attempt(t.Context(), target, true)
	})
}

// The proof of the handshake is the RFC's (1.3), and a wrong one is refused.
func TestWebSocketHandshake(t *testing.T) {
	if got := acceptance("dGhlIHNhbXBsZSBub25jZQ=="); got != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Errorf("acceptance = %q", got)
	}
	good := func() http.Header {
		return http.Header{"Sec-Websocket-Accept": {acceptance("k")}, "Sec-Websocket-Protocol": {webSocketProtocol}}
	}
	if err := checkAccepted(good(), "k"); err != nil {
		t.Errorf("the good one: %v", err)
	}
	for name, value := range map[string]string{
		"Sec-WebSocket-Accept": acceptance("l"), "Sec-WebSocket-Protocol": "chat", "Sec-WebSocket-Extensions": "permessage-deflate",
	} {
		h := good()
		h.Set(name, value)
		if err := checkAccepted(h, "k"); err == nil {
			t.Errorf("%s: %s is taken", name, value)
		}
	}
}

// No page in a browser opens a tunnel, and what is no WebSocket for one neither.
func TestWebSocketRefuses(t *testing.T) {
	good := func() *http.Request {
		r := httptest.NewRequest(http.MethodGet, "/tunnel", nil)
		r.Header.Set("Connection", "keep-alive, Upgrade")
		r.Header.Set(HeaderVersion, "2")
		offerWebSocket(r.Header)
		return r
	}
	if err := checkUpgrade(good()); err != nil {
		t.Fatalf("the good one: %v", err)
	}
	for name, test := range map[string]struct {
		status      int
		header, set string
	}{
		"a page":         {403, "Origin", "https://evil.example"},
		"a page of ours": {403, "Origin", "http://example.com"}, // the request's own host
		"a sandbox":      {403, "Origin", "null"},
		"no origin":      {403, "Origin", ""},
		"no key":         {426, "Sec-WebSocket-Key", ""},
		"short key":      {426, "Sec-WebSocket-Key", "c2hvcnQ="},
		"no base64":      {426, "Sec-WebSocket-Key", strings.Repeat("!", 24)},
		"old":            {426, "Sec-WebSocket-Version", "8"},
		"no protocol":    {426, "Sec-WebSocket-Protocol", ""},
		"other protocol": {426, "Sec-WebSocket-Protocol", "chat, kith-tunnel-2"},
	} {
		r, w := good(), httptest.NewRecorder()
		r.Header.Set(test.header, test.set)
		if _, err := Upgrade(w, r, UpgradeConfig{}); err == nil || w.Code != test.status {
			t.Errorf("%s: %d, %v", name, w.Code, err)
		}
	}
	plain := good()
	plain.Header.Set("Upgrade", Protocol)
	plain.Header.Set("Origin", "https://evil.example")
	w := httptest.NewRecorder()
	if _, err := Upgrade(w, plain, UpgradeConfig{}); err == nil || w.Code != http.StatusForbidden {
		t.Errorf("a page without a WebSocket: %d, %v", w.Code, err)
	}
}

// frame is one frame as a client sends it.
func frame(first byte, payload string) string {
	return sized(first, []byte{bitMasked | byte(len(payload))}, payload)
}

// sized is a client's frame whose length is written so.
func sized(first byte, size []byte, payload string) string {
	key := "\x01\xf2\x73\x94"
	out := append([]byte{first}, size...)
	out = append(out, key...)
	for i := range len(payload) {
		out = append(out, payload[i]^key[i%4])
	}
	return string(out)
}

// end is a connection made of what comes in and where the answers go.
type end struct {
	net.Conn // nil
	io.Reader
	io.Writer
}

func (e end) Read(p []byte) (int, error)  { return e.Reader.Read(p) }
func (e end) Write(p []byte) (int, error) { return e.Writer.Write(p) }
func (e end) Close() error                { return nil }

func (e end) SetWriteDeadline(time.Time) error { return nil }

// A stream may come in frames of any size, with pings between.
func TestFramesReadAsOne(t *testing.T) {
	large := strings.Repeat("large", 200)
	text := frame(bitFinal|opBinary, "one ") + frame(bitFinal|opBinary, "") +
		frame(opBinary, "two ") + frame(bitFinal|opPing, "there?") + frame(opContinuation, "") + frame(bitFinal|opContinuation, "three ") +
		frame(bitFinal|opPong, "unasked") +
		sized(bitFinal|opBinary, []byte{0xfe, 0, 5}, "four ") + sized(bitFinal|opBinary, []byte{0xff, 0, 0, 0, 0, 0, 0, 0, 5}, "five ") +
		sized(bitFinal|opBinary, []byte{0xfe, byte(len(large) >> 8), byte(len(large) & 0xff)}, large)
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"at once": func(r io.Reader) io.Reader { return r }, "by bytes": iotest.OneByteReader, "by halves": iotest.HalfReader,
	} {
		var answered bytes.Buffer
		got, err := io.ReadAll(newFrames(end{Reader: wrap(strings.NewReader(text)), Writer: &answered}, false))
		if want := "one two three four five " + large; err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if got, want := answered.String(), "\x8a\x06there?"; got != want {
			t.Errorf("%s: answered %q, want %q", name, got, want)
		}
	}
}

// What no tunnel sends ends the connection, before anything of it is read.
func TestHostileFrames(t *testing.T) {
	fine := frame(bitFinal|opBinary, "fine")
	for name, test := range map[string]struct{ frames, want string }{
		"text":                 {frame(bitFinal|1, "hello"), "opcode 0x1"},
		"unknown data":         {frame(bitFinal|3, "hello"), "opcode 0x3"},
		"unknown control":      {frame(bitFinal|0xb, "hello"), "opcode 0xb"},
		"unmasked":             {"\x82\x05hello", "wrong side"},
		"unmasked ping":        {"\x89\x05hello", "wrong side"},
		"compressed":           {frame(bitFinal|0x40|opBinary, "hello"), "reserved"},
		"continues nothing":    {frame(bitFinal|opContinuation, "hello"), "opcode 0x0"},
		"two beginnings":       {frame(opBinary, "") + frame(bitFinal|opBinary, "hello"), "opcode 0x2"},
		"fragmented ping":      {frame(opPing, "hello"), "fragmented or too long"},
		"fragmented close":     {frame(opClose, ""), "fragmented or too long"},
		"long ping":            {sized(bitFinal|opPing, []byte{0xfe, 0, 126}, strings.Repeat("x", 126)), "fragmented or too long"},
		"over the bound":       {sized(bitFinal|opBinary, []byte{0xff, 0, 0, 0, 0, 0, 0x10, 0, 1}, "x"), "1048577 bytes is longer"},
		"no number":            {sized(bitFinal|opBinary, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "x"), "longer"},
		"close with a reason":  {frame(bitFinal|opClose, "\x03\xf1too much"), `closed with 1009: "too much"`},
		"close without one":    {frame(bitFinal|opClose, ""), "EOF"},
		"half a head":          {"\x82", "unexpected EOF"},
		"half a length":        {"\x82\xfe\x00", "unexpected EOF"},
		"half a key":           {"\x82\x81\x00\x00", "unexpected EOF"},
		"half a ping":          {frame(bitFinal|opPing, "hello")[:8], "unexpected EOF"},
		"no WebSocket, HTTP/2": {"PRI * HTTP/2.0\r\n\r\n", "reserved"},
	} {
		f := newFrames(end{Reader: strings.NewReader(fine + test.frames), Writer: io.Discard}, false)
		got := make([]byte, len("fine"))
		if _, err := io.ReadFull(f, got); err != nil || string(got) != "fine" {
			t.Fatalf("%s: %q, %v", name, got, err)
		}
		n, err := f.Read(make([]byte, 100))
		if n != 0 || err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %d bytes, error %v, want %q", name, n, err, test.want)
		}
	}
	// The other way round: a hub does not mask.
	f := newFrames(end{Reader: strings.NewReader(fine)}, true)
	if _, err := f.Read(make([]byte, 100)); err == nil || !strings.Contains(err.Error(), "wrong side") {
		t.Errorf("a hub that masks: %v", err)
	}
}

// A hostile frame ends the line of whoever sent it, and the line says why.
func TestHostileFrameEndsTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := make(chan *Line, 1)
		h := serveHub(t, lines(t, out))
		c, err := h.Dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		d := newMachine(h, echo).Dialer
		target, err := parseHub(d.HubURL)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := d.ask(c, target, true); err != nil {
			t.Fatal(err)
		}
		go io.Copy(io.Discard, c)
		line := <-out
		io.WriteString(c, frame(bitFinal|1, "hello"))
		<-line.Done()
		if err := line.Err(); err == nil || !strings.Contains(err.Error(), "opcode 0x1") {
			t.Errorf("Err = %v", err)
		}
	})
}

// Whatever arrives, reading it ends, without a panic and with no more bytes
// than came.
func FuzzFrames(f *testing.F) {
	f.Add(frame(opBinary, "one")+frame(bitFinal|opPing, "x")+frame(bitFinal|opContinuation, "two"), false)
	f.Add("\x82\x7e\x00\x03one\x88\x02\x03\xe8", true)
	f.Fuzz(func(t *testing.T, text string, client bool) {
		got, err := io.ReadAll(newFrames(end{Reader: strings.NewReader(text), Writer: io.Discard}, client))
		if len(got) > len(text) {
			t.Errorf("%d bytes of %d, %v", len(got), len(text), err)
		}
	})
}

// mask is the byte by byte one, from any place in the key.
func TestMask(t *testing.T) {
	for size := range 40 {
		for cut := range size + 1 {
			got := bytes.Repeat([]byte{0x5a}, size)
			mask(got[cut:], mask(got[:cut], 0x04030201))
			for i, b := range got {
				if want := 0x5a ^ byte(i%4+1); b != want {
					t.Fatalf("%d bytes cut at %d: byte %d is %#x, want %#x", size, cut, i, b, want)
				}
			}
		}
	}
}

// Bursts of a proxy's own pings, in the middle of calls, stop neither end.
func TestPingsFromBetween(t *testing.T) {
	out := make(chan *Line, 1)
	server := httptest.NewServer(lines(t, out))
	defer server.Close()
	m := newMachine(nil, echo)
	m.HubURL = server.URL
	target, err := parseHub(m.HubURL)
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := m.upgrade(t.Context(), target, true)
	if err != nil {
		t.Fatal(err)
	}
	session, burst := make(chan struct{}), make(chan struct{})
	go func() { defer close(session); newSession(m.Dialer, c, 1).run(t.Context()) }()
	go func() {
		f := c.(*frames)
		for range burst {
			for range 200 {
				ping := []byte("there?")
				f.writing.Lock()
				head := f.appendHead(nil, opPing, len(ping))
				mask(ping, f.sentKey)
				f.Conn.Write(append(head, ping...))
				f.writing.Unlock()
			}
		}
	}()
	defer close(burst)
	line := <-out
	payload := strings.Repeat("x", 100_000)
	for range 20 {
		burst <- struct{}{}
		if _, body, err := call(t.Context(), line, "/v1/x", payload); err != nil || body != payload {
			t.Fatalf("%d bytes, %v", len(body), err)
		}
	}
	line.Close()
	<-session
}

// A ping from between is answered also where nothing was written for long.
func TestPingAfterSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		f, read := newFrames(ours, false), make(chan error)
		if err := f.SetWriteDeadline(time.Now()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // in the bubble
		go func() {
			_, err := f.Read(make([]byte, 1))
			read <- err
		}()
		go theirs.Write([]byte{bitFinal | opPing, bitMasked, 0, 0, 0, 0})
		frame := make([]byte, 2)
		if _, err := io.ReadFull(theirs, frame); err != nil || frame[0] != bitFinal|opPong {
			t.Errorf("no pong but %x, %v", frame, err)
		}
		ours.Close()
		<-read
	})
}
