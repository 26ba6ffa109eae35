package tunnel

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coder "github.com/coder/websocket"
	"golang.org/x/net/websocket"

	"github.com/kith/kith/internal/assert"
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

// eitherWay runs a test on a hub that can be reached directly, and on one that can only
// be reached in a WebSocket.
func eitherWay(t *testing.T, test func(t *testing.T, pass passage)) {
	t.Run("plain", func(t *testing.T) { test(t, everything) })
	t.Run("WebSocket", func(t *testing.T) { test(t, onlyWebSocket) })
}

// proxy is a real proxy between real connections. It passes WebSockets to the hub and
// handles any other upgrade with the given handler.
func proxy(t *testing.T, hub string, refuse func(net.Conn)) (address string, asked <-chan string) {
	t.Helper()
	listener := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
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

// A machine behind a proxy that passes only WebSockets connects with its second attempt,
// and from then on with each first attempt.
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
			out := make(chan *Client, 1)
			server := httptest.NewServer(acceptTunnels(t, out))
			defer server.Close()
			address, asked := proxy(t, server.Listener.Addr().String(), refuse)
			m := newMachine(nil, echo)
			m.HubURL = "http://" + address
			m.run(t)
			for range 2 {
				client := <-out
				assert.Value(first(t.Context(), client))(t)
				assert.OK(t, client.Ack(t.Context()))
				m.until(t, Acked)
				payload := strings.Repeat("0123456789", 100_000)
				status, body, err := call(t.Context(), client, "/v1/chat/completions", payload)
				if status != 200 || body != payload || err != nil {
					t.Errorf("call = %d, %d bytes, %v", status, len(body), err)
				}
				client.Close()
			}
			for i, want := range []string{Protocol, webSocket, webSocket} {
				if got := <-asked; got != want {
					t.Errorf("attempt %d asked for %q, want %q", i+1, got, want)
				}
			}
		})
	}
}

// TestRefusalsNameTheProxy checks that errors that only a proxy can cause name the proxy,
// for both kinds of upgrade.
func TestRefusalsNameTheProxy(t *testing.T) {
	drop := func(hub http.Handler) http.Handler { // like nginx without its lines for upgrades
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Upgrade")
			r.Header.Set("Connection", "close")
			hub.ServeHTTP(w, r)
		})
	}
	hub := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = Upgrade(w, r, UpgradeConfig{Generation: 1})
	})
	gone := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	for name, c := range map[string]struct {
		handler http.Handler
		want    string
	}{
		"upgrade dropped": {drop(hub), "dropped the upgrade from GET /tunnel (426 Upgrade Required)"},
		"no hub behind":   {gone, "a proxy in front of the hub answered the upgrade with 502 Bad Gateway"},
	} {
		server := httptest.NewServer(c.handler)
		m := newMachine(nil, echo)
		target := assert.Value(parseHub(server.URL))(t)
		for _, inWebSocket := range []bool{false, true} {
			if _, err := m.upgrade(t.Context(), target, inWebSocket); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, WebSocket %v: %v", name, inWebSocket, err)
			}
		}
		server.Close()
	}
}

// The kind of upgrade of each attempt, after every result of the previous one.
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
			client, err := Upgrade(w, r, UpgradeConfig{Generation: 1})
			if err != nil {
				return
			}
			defer client.Close()
			if client.Ack(context.Background()) == nil {
				time.Sleep(d) // in the bubble
			}
		}
	}
	for name, test := range map[string]struct {
		hub  []http.HandlerFunc // one for each attempt; a further attempt ends the test
		want string             // p: plain, w: in a WebSocket
	}{
		"refused":        {[]http.HandlerFunc{answer(426), lasting(0)}, "pww"},
		"every status":   {[]http.HandlerFunc{answer(200), answer(302), answer(403), answer(404), answer(500), answer(502)}, "pwpwpwp"},
		"cut":            {[]http.HandlerFunc{cut, lasting(0)}, "pww"},
		"silence":        {[]http.HandlerFunc{silent, lasting(0)}, "pww"},
		"101 lost":       {[]http.HandlerFunc{unacked, lasting(0)}, "pww"},
		"neither":        {[]http.HandlerFunc{cut, cut, cut, cut, lasting(0)}, "pwpwpp"},
		"the gate":       {[]http.HandlerFunc{answer(503, "Retry-After", "1"), answer(503), answer(429, "Retry-After", "1"), answer(429), lasting(0)}, "pppppp"},
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
				for s := range m.states {
					if errors.Is(s.Err, ErrRefused) {
						break
					}
				}
				assert.Equal[any](t, took.Load(), test.want, "ways")
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // an unreachable hub is no evidence against either kind
		var w upgradeMode
		m := newMachine(nil, echo)
		m.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, io.ErrUnexpectedEOF }
		target, err := parseHub(m.HubURL)
		assert.OK(t, err)
		_, err = m.attempt(t.Context(), target, w.at(time.Now()), new(sync.WaitGroup))
		if blocked := (*blockedError)(nil); err == nil || errors.As(err, &blocked) {
			t.Errorf("out of reach: %v", err)
		}
	})
}

// The framing conforms to RFC 6455: a tunnel works between our ends and another
// library's.
func TestForeignEnds(t *testing.T) {
	payload := strings.Repeat("0123456789", 50_000)
	t.Run("daemon", func(t *testing.T) {
		out := make(chan *Client, 1)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Origin") // that client always sends it
			acceptTunnels(t, out)(w, r)
		}))
		defer server.Close()
		config, err := websocket.NewConfig("ws://"+server.Listener.Addr().String()+"/tunnel", "http://nowhere.example")
		assert.OK(t, err)
		config.Protocol = []string{webSocketProtocol}
		config.Header.Set(HeaderVersion, "1")
		config.Header.Set(HeaderInstance, "one")
		ws, err := websocket.DialConfig(config)
		assert.OK(t, err)
		ws.PayloadType = websocket.BinaryFrame
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			newSession(newMachine(nil, echo).Dialer, upgraded{Conn: ws, generation: 1}).run(t.Context())
		}()
		client := <-out
		assert.OK(t, client.Ack(t.Context()))
		if _, body, err := call(t.Context(), client, "/v1/x", payload); err != nil || body != payload {
			t.Errorf("%d bytes, %v", len(body), err)
		}
		client.Close()
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
				client := clientOn(t, ws)
				defer client.Close()
				if err := client.Ack(context.Background()); err != nil {
					t.Error(err)
				}
				if _, body, err := call(context.Background(), client, "/v1/x", payload); err != nil || body != payload {
					t.Errorf("%d bytes, %v", len(body), err)
				}
			},
		})
		defer server.Close()
		m := newMachine(nil, echo)
		m.HubURL = server.URL
		target := assert.Value(parseHub(m.HubURL))(t)
		m.attempt(t.Context(), target, true, new(sync.WaitGroup))
	})
}

// askForWebSocket turns a request for the tunnel into one for a WebSocket.
func askForWebSocket(h http.Header) {
	h.Set("Upgrade", webSocket)
	h.Set("Sec-WebSocket-Version", "13")
	h.Set("Sec-WebSocket-Protocol", webSocketProtocol)
	h.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==") // RFC 6455, 1.3
}

// If the hub's response to a WebSocket request is malformed, the error names the defect.
func TestOddWebSocketHub(t *testing.T) {
	good := func() http.Header {
		return http.Header{
			"Connection": {"Upgrade"}, "Upgrade": {webSocket}, "Sec-Websocket-Protocol": {webSocketProtocol},
			HeaderGeneration: {"7"},
		}
	}
	for name, test := range map[string]struct{ header, value, want string }{
		"good":           {"Server", "hub", ""},
		"other protocol": {"Sec-WebSocket-Protocol", "chat", "chat"},
		"no protocol":    {"Sec-WebSocket-Protocol", "", `speaks ""`},
		"other key":      {"Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "Sec-WebSocket-Accept"},
		"compression":    {"Sec-WebSocket-Extensions", "permessage-deflate", "extensions"},
		"no generation":  {HeaderGeneration, "", HeaderGeneration},
		"plain":          {"Upgrade", Protocol, "Upgrade"},
		"endless header": {"X", strings.Repeat("x", 2*maxHeader), "cannot read"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := serveHub(t, func(w http.ResponseWriter, r *http.Request) {
					c, _, _ := http.NewResponseController(w).Hijack()
					defer c.Close()
					header := good()
					sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
					header.Set("Sec-WebSocket-Accept", base64.StdEncoding.EncodeToString(sum[:]))
					header.Set(test.header, test.value)
					io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n")
					header.Write(c)
					io.WriteString(c, "\r\n")
				})
				m := newMachine(h, echo)
				target, err := parseHub(m.HubURL)
				assert.OK(t, err)
				on, err := m.upgrade(t.Context(), target, true)
				switch {
				case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
					t.Errorf("error %v, want %q", err, test.want)
				case test.want == "" && (err != nil || on.generation != 7):
					t.Errorf("generation %d, %v", on.generation, err)
				case err == nil:
					on.Conn.(*webSocketConn).raw.Close()
				}
			})
		})
	}
}

// A redirect by a hub is not followed, because the credential is only for this hub.
func TestWebSocketIsNotRedirected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		h := serveHub(t, func(w http.ResponseWriter, r *http.Request) {
			asked++
			http.Redirect(w, r, "http://elsewhere.example/tunnel", http.StatusTemporaryRedirect)
		})
		m := newMachine(h, echo)
		target := assert.Value(parseHub(m.HubURL))(t)
		if _, err := m.upgrade(t.Context(), target, true); err == nil || !strings.Contains(err.Error(), "307") || asked != 1 {
			t.Errorf("asked %d times, %v", asked, err)
		}
	})
}

// A page in a browser cannot open a tunnel, and neither can a request that is not for a
// WebSocket.
func TestWebSocketRefuses(t *testing.T) {
	good := func() *http.Request {
		r := httptest.NewRequest(http.MethodGet, "/tunnel", nil)
		r.Header.Set("Connection", "keep-alive, Upgrade")
		r.Header.Set(HeaderVersion, "1")
		r.Header.Set(HeaderInstance, "one")
		askForWebSocket(r.Header)
		return r
	}
	assert.OK(t, checkUpgrade(good()), "the good one")
	for name, test := range map[string]struct {
		status      int
		header, set string
	}{
		"a page":         {403, "Origin", "https://evil.example"},
		"a page of ours": {403, "Origin", "http://example.com"}, // the request's own host
		"a sandbox":      {403, "Origin", "null"},
		"no origin":      {403, "Origin", ""},
		"no key":         {400, "Sec-WebSocket-Key", ""},
		"short key":      {400, "Sec-WebSocket-Key", "c2hvcnQ="},
		"no base64":      {400, "Sec-WebSocket-Key", strings.Repeat("!", 24)},
		"old":            {400, "Sec-WebSocket-Version", "8"},
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

// frame returns a frame as sent by a client (RFC 6455, 5.2), with a mask of zeros.
func frame(first byte, payload string) string {
	return string([]byte{first, 0x80 | byte(len(payload)), 0, 0, 0, 0}) + payload
}

// knock connects, requests a tunnel in a WebSocket and discards what it receives. ended
// is closed when the hub has closed the connection.
func (h *hub) knock(t *testing.T) (c net.Conn, ended <-chan struct{}) {
	t.Helper()
	c = assert.Value(h.Dial(t.Context(), "", ""))(t)
	t.Cleanup(func() { c.Close() })
	r, _ := http.NewRequest(http.MethodGet, "http://hub/tunnel", nil)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set(HeaderVersion, "1")
	r.Header.Set(HeaderInstance, "one")
	askForWebSocket(r.Header)
	assert.OK(t, r.Write(c))
	end := make(chan struct{})
	go func() {
		defer close(end)
		io.Copy(io.Discard, c)
	}()
	return c, end
}

// Frames that a tunnel does not use, or that only add overhead, end the peer's
// connection, with a cause.
func TestHostileFrames(t *testing.T) {
	for name, test := range map[string]struct{ frames, want string }{
		"text":           {frame(0x81, "hello"), "unexpected frame type"},
		"unknown":        {frame(0x83, "hello"), "opcode"},
		"unmasked":       {"\x82\x05hello", "unmasked"},
		"compressed":     {frame(0xc2, "hello"), "rsv"},
		"a long ping":    {"\x89\xfe\x00\x7e", "control frame"},
		"pings":          {frame(0x89, "there?"), errOverhead.Error()},
		"pongs":          {frame(0x8a, "unasked"), errOverhead.Error()},
		"empty messages": {frame(0x82, ""), errOverhead.Error()},
		"empty parts":    {frame(0x02, "") + frame(0x80, ""), errOverhead.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				out := make(chan *Client, 1)
				h := serveHub(t, acceptTunnels(t, out))
				c, _ := h.knock(t)
				client := <-out
				defer client.Close()
				sent := 0
				for ; client.Err() == nil && sent < 1<<20; sent += len(test.frames) {
					if _, err := io.WriteString(c, test.frames); err != nil {
						break
					}
				}
				synctest.Wait()
				assert.Fails(t, client.Err(), test.want, "after", sent, "bytes")
			})
		})
	}
}

// A peer that begins an invalid frame and then is silent is disconnected. The library's
// read would wait for the rest of the frame.
func TestUnfinishedFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := make(chan *Client, 1)
		h := serveHub(t, acceptTunnels(t, out))
		c, ended := h.knock(t)
		client := <-out
		defer client.Close()
		if _, err := io.WriteString(c, "\x81\xff\x00\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\x00"); err != nil { // text of 1 GiB
			t.Fatal(err)
		}
		<-client.Done()
		<-ended
		if err := client.Err(); !strings.Contains(err.Error(), "unexpected frame type") {
			t.Error(err)
		}
	})
}

// If a write fails because a read closed the WebSocket, it returns the error of the read.
func TestWriteSaysWhyReadFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accepted := make(chan net.Conn, 1)
		h := serveHub(t, func(w http.ResponseWriter, r *http.Request) {
			c, err := acceptWebSocket(w, r)
			if err != nil {
				t.Error(err)
			}
			accepted <- c
		})
		peer, _ := h.knock(t)
		c := <-accepted
		defer c.Close()
		wrote := make(chan error)
		go func() {
			for {
				if _, err := c.Write([]byte("hello")); err != nil {
					wrote <- err
					return
				}
			}
		}()
		go io.WriteString(peer, frame(0x83, "hello"))
		_, read := c.Read(make([]byte, 16))
		if write := <-wrote; read == nil || !strings.Contains(read.Error(), "opcode") || write != read {
			t.Errorf("read: %v; write: %v", read, write)
		}
	})
}

// Bursts of pings during calls, as sent by proxies, stop neither end.
func TestPingsFromBetween(t *testing.T) {
	out := make(chan *Client, 1)
	server := httptest.NewServer(acceptTunnels(t, out))
	defer server.Close()
	var below *meteredConn
	ws, _, err := coder.Dial(t.Context(), server.URL, &coder.DialOptions{
		HTTPClient: &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, network, address)
				below = &meteredConn{Conn: c}
				return below, err
			},
		}},
		HTTPHeader: newMachine(nil, echo).header(), Subprotocols: []string{webSocketProtocol},
	})
	assert.OK(t, err)
	var ended sync.WaitGroup
	ended.Go(func() {
		newSession(newMachine(nil, echo).Dialer, upgraded{Conn: newWebSocketConn(ws, below), generation: 1}).run(t.Context())
	})
	client := <-out
	if err := client.Ack(t.Context()); err != nil { // otherwise the tunnel ends after ackTimeout
		t.Fatal(err)
	}
	payload := strings.Repeat("x", 100_000)
	pings, stop := context.WithCancel(t.Context())
	defer stop()
	for range 20 {
		for range 100 {
			ended.Go(func() { ws.Ping(pings) })
		}
		if _, body, err := call(t.Context(), client, "/v1/x", payload); err != nil || body != payload {
			t.Fatalf("%d bytes, %v", len(body), err)
		}
	}
	client.Close()
	stop() // the last ones get no response
	ended.Wait()
}
