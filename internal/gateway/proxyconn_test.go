package gateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/kith/kith/internal/assert"
)

// behindProxy starts a server that accepts through Clients with a limit, and answers each
// request with the caller's address. The proxies are those of loopback, or none.
func behindProxy(t *testing.T, limit int, proxies ...string) (address string, clients *Clients, log *printedLog) {
	t.Helper()
	log = new(printedLog)
	clients, _ = clientsOf(limit, proxies...)
	clients.log = slog.New(slog.NewTextHandler(log, nil))
	inner := assert.Value(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	server := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hijack" {
			conn, buffered, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
				_, _ = io.Copy(conn, buffered)
			}()
			return
		}
		r, proxied := clients.Resolve(r)
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil {
			t.Error(err)
		}
		fmt.Fprint(w, from.Addr(), " ", proxied)
	}), clients.log)
	server.ConnState = clients.ConnState
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(clients.Listen(inner)) }()
	t.Cleanup(func() { _ = server.Close(); <-ended })
	return inner.Addr().String(), clients, log
}

// printedLog collects the log of a server.
type printedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *printedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *printedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// caller is the caller's end of a connection.
type caller struct {
	net.Conn
	in *bufio.Reader
}

// connect opens a connection and sends begin.
func connect(t *testing.T, address string, begin []byte) *caller {
	t.Helper()
	conn := assert.Value(new(net.Dialer).DialContext(t.Context(), "tcp", address))(t)
	t.Cleanup(func() { _ = conn.Close() })
	assert.Value(conn.Write(begin))(t)
	return &caller{conn, bufio.NewReader(conn)}
}

// ask sends a request and returns the body of the answer, or "" if the connection was
// closed.
func (c *caller) ask(method, path, forwarded string) string {
	_, _ = fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: %s\r\nContent-Length: 0\r\n\r\n", method, path, forwarded)
	response, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return ""
	}
	if response.StatusCode == http.StatusSwitchingProtocols {
		return "hijacked"
	}
	body, _ := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		return response.Status
	}
	return string(body)
}

// proxyHeader returns the PROXY header for a connection of a client.
func proxyHeader(t *testing.T, version byte, client string) []byte {
	t.Helper()
	from := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(client))
	to := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 443}
	if from.IP.To4() == nil {
		to.IP = net.ParseIP("2001:db8::1")
	}
	var text bytes.Buffer
	assert.Value(proxyproto.HeaderProxyFromAddrs(version, from, to).WriteTo(&text))(t)
	return text.Bytes()
}

// TestProxyHeader: a trusted proxy names the client in a PROXY header of either version.
// Without one, the client is in X-Forwarded-For.
func TestProxyHeader(t *testing.T) {
	address, _, log := behindProxy(t, 10, "127.0.0.1/32", "10.0.0.0/8")
	local := []byte("\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00") // of a health check
	for name, c := range map[string]struct {
		begin     []byte
		forwarded string
		want      string
	}{
		"version 1":                 {proxyHeader(t, 1, "198.51.100.1:99"), "6.6.6.6", "198.51.100.1 false"},
		"version 2":                 {proxyHeader(t, 2, "198.51.100.1:99"), "6.6.6.6", "198.51.100.1 false"},
		"version 2, IPv6":           {proxyHeader(t, 2, "[2001:db8::7]:99"), "6.6.6.6", "2001:db8::7 false"},
		"of a proxy before a proxy": {proxyHeader(t, 2, "10.0.0.9:99"), "198.51.100.2", "198.51.100.2 true"},
		"the proxy's own":           {local, "198.51.100.3", "198.51.100.3 true"},
		"unknown":                   {[]byte("PROXY UNKNOWN\r\n"), "198.51.100.3", "198.51.100.3 true"},
		"none":                      {nil, "6.6.6.6, 198.51.100.4", "198.51.100.4 true"},
	} {
		conn := connect(t, address, c.begin)
		for range 2 {
			assert.Equal(t, conn.ask("POST", "/", c.forwarded), c.want, name)
		}
	}
	assert.Equal(t, log.String(), "", log)
	if got := connect(t, address, []byte("PROXY TCP4 nonsense\r\n")).ask("GET", "/", ""); got != "" {
		t.Errorf("a header that cannot be read: %q", got)
	}
	assert.Contains(t, log.String(), "PROXY header that cannot be read", "logged", log)
}

// pipe is one end of a net.Pipe. Like TCP, and unlike net.Pipe, it reads into an empty
// buffer without blocking.
type pipe struct{ net.Conn }

func (p pipe) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	return p.Conn.Read(b)
}

// TestSlowProxy: a trusted proxy that sends its request 25 s after connecting, as on an
// overloaded computer, gets the answer. A connection that stays silent is closed.
func TestSlowProxy(t *testing.T) {
	for after, want := range map[time.Duration]string{25 * time.Second: "200 OK", 40 * time.Second: ""} {
		t.Run(after.String(), func(t *testing.T) {
			clients, _ := clientsOf(10, "127.0.0.1/32")
			served := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
			over := func(conn net.Conn) net.Conn { return newProxyConn(clients, pipe{conn}) }
			virtually(t, served, over, func(t *testing.T, conn net.Conn) {
				time.Sleep(after)
				status := ""
				if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"); err == nil {
					response := assert.Value(http.ReadResponse(bufio.NewReader(conn), nil))(t)
					status = response.Status
				}
				assert.Equal(t, status, want)
			})
		})
	}
}

// TestProxyHeaderOfOthers: an untrusted peer cannot name a client in any way.
func TestProxyHeaderOfOthers(t *testing.T) {
	address, _, _ := behindProxy(t, 10, "10.0.0.0/8")
	if got := connect(t, address, nil).ask("GET", "/", "198.51.100.1"); got != "127.0.0.1 false" {
		t.Errorf("with X-Forwarded-For: %q", got)
	}
	if got := connect(t, address, proxyHeader(t, 1, "198.51.100.1:99")).ask("GET", "/", ""); got != "400 Bad Request" {
		t.Errorf("with a PROXY header: %q", got)
	}
}

// TestProxyHeaderIsCounted: if a proxy names the client of a connection, it is counted
// for that client. A connection that became a tunnel is not counted.
func TestProxyHeaderIsCounted(t *testing.T) {
	address, clients, log := behindProxy(t, 2, "127.0.0.1/32")
	first := proxyHeader(t, 2, "198.51.100.1:99")
	open := func(begin []byte, path string) (*caller, string) {
		conn := connect(t, address, begin)
		return conn, conn.ask("GET", path, "")
	}
	tunnel, got := open(first, "/hijack")
	assert.Require(t, got == "hijacked", got)
	assert.Value(io.WriteString(tunnel, "hello"))(t)
	if _, err := io.ReadFull(tunnel.in, make([]byte, 5)); err != nil {
		t.Error(err)
	}
	kept, got := open(first, "/")
	assert.Require(t, got != "", "the first was refused")
	if _, got = open(first, "/"); got == "" {
		t.Error("the second was refused: the tunnel is counted")
	}
	if _, got = open(first, "/"); got != "" {
		t.Errorf("the third: %q", got)
	}
	assert.Contains(t, log.String(), "198.51.100.1/32", "logged", log)
	if _, got = open(proxyHeader(t, 1, "198.51.100.2:99"), "/"); got == "" {
		t.Error("another client was refused")
	}
	_ = kept.Close()
	late := time.Now().Add(2 * time.Minute)
	for _, got = open(first, "/"); got == ""; _, got = open(first, "/") {
		assert.Require(t, !time.Now().After(late), "one that ended is still counted")
	}
	clients.Reconfigure(nil, 2)
	if _, got = open(first, "/"); got != "400 Bad Request" {
		t.Errorf("from a proxy that is not trusted any more: %q", got)
	}
}
