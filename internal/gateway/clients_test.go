package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
)

func clientsOf(limit int, proxies ...string) (*Clients, *bytes.Buffer) {
	var prefixes []netip.Prefix
	for _, p := range proxies {
		prefixes = append(prefixes, netip.MustParsePrefix(p))
	}
	log := new(bytes.Buffer)
	return NewClients(prefixes, limit, slog.New(slog.NewTextHandler(log, nil))), log
}

// accepting starts a counted listener on loopback. open dials it and returns the accepted
// end; dial returns the dialing end.
func accepting(t *testing.T, c *Clients) (open, dial func() net.Conn) {
	t.Helper()
	inner := assert.Value(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	l := c.Listen(inner)
	t.Cleanup(func() { _ = l.Close() })
	accepted := make(chan net.Conn, 10)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	dial = func() net.Conn {
		conn := assert.Value(new(net.Dialer).DialContext(t.Context(), "tcp", inner.Addr().String()))(t)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	return func() net.Conn {
		t.Helper()
		conn, closed := dial(), make(chan struct{})
		go func() {
			_, _ = conn.Read(make([]byte, 1))
			close(closed)
		}()
		select {
		case conn := <-accepted:
			return conn
		case <-closed:
			t.Fatal("the connection was refused")
			return nil
		}
	}, dial
}

// refused fails the test unless the other end closes the connection.
func refused(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection was not refused: %v", err)
	}
}

func TestConnectionsOfAClient(t *testing.T) {
	clients, log := clientsOf(2)
	open, dial := accepting(t, clients)
	first := open()
	if near := clients.BusyClients(10); len(near) != 0 {
		t.Errorf("one of two connections is near the limit: %+v", near)
	}
	open()
	refused(t, dial())
	if near := clients.BusyClients(10); len(near) != 1 || near[0].Held != 2 || near[0].Limit != 2 || near[0].What != "connections" || !near[0].Client.IsSingleIP() {
		t.Errorf("two of two connections: %+v", near)
	}
	if _, ok := first.(interface{ CloseWrite() error }); !ok {
		t.Error("an accepted connection cannot be half-closed")
	}
	_ = first.Close()
	_ = first.Close() // its place is released only once
	open()
	refused(t, dial())
	assert.Equal(t, strings.Count(log.String(), "[hub] proxies"), 1, "warnings", log)
	clients.Reconfigure(nil, 0) // off
	if near := clients.BusyClients(10); near != nil {
		t.Errorf("without a limit: %+v", near)
	}
	for range 5 {
		open()
	}
	clients.Reconfigure(nil, 2)
	refused(t, dial())
}

// A tunnel is counted by its machine's credential, so it takes no connection from the
// browsers of the same household.
func TestTunnelsAreNotConnections(t *testing.T) {
	clients, _ := clientsOf(1)
	open, dial := accepting(t, clients)
	tunnel := open()
	refused(t, dial())
	clients.ConnState(tunnel, http.StateActive)
	refused(t, dial())
	clients.ConnState(tunnel, http.StateHijacked)
	browser := open()
	_ = tunnel.Close()
	refused(t, dial())
	_ = browser.Close()
}

// The connections of a trusted proxy are not counted for one client.
func TestProxysConnections(t *testing.T) {
	clients, log := clientsOf(1, "127.0.0.0/8")
	open, _ := accepting(t, clients)
	for range 5 {
		open()
	}
	assert.That(t, log.Len() == 0, log)
}

func TestResolve(t *testing.T) {
	clients, _ := clientsOf(0, "10.0.0.0/8", "2001:db8::5/128")
	for _, c := range []struct {
		remote    string
		forwarded []string
		want      string
	}{
		{"192.0.2.1:5", []string{"198.51.100.1"}, "192.0.2.1:5"}, // not trusted
		{"127.0.0.1:5", []string{"198.51.100.1"}, "127.0.0.1:5"}, // neither
		{"@", []string{"198.51.100.1"}, "@"},
		{"10.0.0.1:5", nil, "10.0.0.1:0"},
		{"10.0.0.1:5", []string{"198.51.100.1"}, "198.51.100.1:0"},
		{"10.0.0.1:5", []string{"6.6.6.6, 198.51.100.1"}, "198.51.100.1:0"},                // not what the client claims
		{"10.0.0.1:5", []string{"6.6.6.6", "198.51.100.1 ,10.0.0.2"}, "198.51.100.1:0"},    // over two proxies, in two lines
		{"10.0.0.1:5", []string{"6.6.6.6, nonsense, 10.0.0.2"}, "10.0.0.2:0"},              // the last readable address
		{"10.0.0.1:5", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3:0"},                       // the innermost proxy
		{"10.0.0.1:5", []string{"198.51.100.1:4711"}, "198.51.100.1:0"},                    // some write a port
		{"10.0.0.1:5", []string{"[2001:db8::7]:80"}, "[2001:db8::7]:0"},                    // or brackets
		{"[2001:db8::5]:5", []string{"::ffff:198.51.100.1"}, "198.51.100.1:0"},             // one address, one spelling
		{"[::ffff:10.0.0.1]:5", []string{"fe80::1%eth0"}, "[fe80::1]:0"},                   // no zone
		{"10.0.0.1:5", []string{strings.Repeat("10.0.0.2,", 1000) + "x"}, "10.0.0.1:0"},    // nothing readable
		{"10.0.0.1:5", []string{"198.51.100.1", "unknown"}, "10.0.0.1:0"},                  // RFC 7239's word
		{"10.0.0.1:5", []string{"198.51.100.1, 2001:db8::5, 10.9.9.9"}, "198.51.100.1:0"},  // proxies of both kinds
		{"10.0.0.1:5", []string{"198.51.100.1, 2001:db8::6, 10.9.9.9"}, "[2001:db8::6]:0"}, // that one is not trusted
		{"10.0.0.1:5", []string{"10.0.0.1", "127.0.0.1"}, "127.0.0.1:0"},                   // untrusted loopback
		{"10.0.0.1:5", []string{"198.51.100.1", ""}, "10.0.0.1:0"},                         // an empty line
		{"10.0.0.1:5", []string{"198.51.100.1\t,\t10.0.0.2\t"}, "198.51.100.1:0"},          // spaces and tabs
		{"10.0.0.1:5", []string{"evil.example, 0x7f.1"}, "10.0.0.1:0"},                     // a name, an odd number
		{"10.0.0.1:5", []string{"198.51.100.1:99999"}, "10.0.0.1:0"},                       // an impossible port
		{"10.0.0.1:5", []string{"010.0.0.1"}, "10.0.0.1:0"},                                // no octal
		{"10.0.0.1:5", []string{"[198.51.100.1]"}, "198.51.100.1:0"},                       // harmless
		{"10.0.0.1:5", []string{"for=198.51.100.1"}, "10.0.0.1:0"},                         // another header's syntax
		{"10.0.0.1:5", []string{"198.51.100.1;10.0.0.2"}, "10.0.0.1:0"},                    // not a list
		{"10.0.0.1:5", []string{"198.51.100.1, 10.0.0.2, 10.0.0.3, 10.0.0.4"}, "198.51.100.1:0"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = c.remote
		if c.forwarded != nil {
			r.Header["X-Forwarded-For"] = c.forwarded
		}
		got, proxied := clients.Resolve(r)
		if got.RemoteAddr != c.want || proxied != (c.remote != "@" && !strings.HasPrefix(c.remote, "192.") && !strings.HasPrefix(c.remote, "127.")) {
			t.Errorf("%+v: %s, %v", c, got.RemoteAddr, proxied)
		}
		assert.Equal(t, r.RemoteAddr, c.remote, c, "the request was changed")
	}
	var none *Clients
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-Forwarded-For", "198.51.100.1")
	if got, proxied := none.Resolve(r); got != r || proxied {
		t.Error("no Clients believe a header")
	}
}

// Behind a proxy each client has its own limit of simultaneous requests. An IPv6 /64
// counts as one client, and 80 % of the limit is logged once a minute.
func TestRequestsBehindAProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients, log := clientsOf(10, "10.0.0.0/8")
		from := func(client string) (leave func(), err error) {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = "10.0.0.1:5"
			r.Header.Set("X-Forwarded-For", client)
			r, _ = clients.Resolve(r)
			return clients.Admit(r)
		}
		var leaves []func()
		for i := range 10 {
			leave, err := from(fmt.Sprintf("2001:db8::%x", i))
			assert.OK(t, err, "request", i)
			leaves = append(leaves, leave)
			assert.Equal(t, log.Len() > 0, (i >= 7), "request", i, "warned")
		}
		if held, limit := clients.Fullest(); held != 10 || limit != 10 {
			t.Errorf("the fullest client holds %d of %d", held, limit)
		}
		assert.Fails(t, assert.Err(from("2001:db8::ff:1")), "10 requests", "one more")
		if _, err := from("2001:db8:0:1::1"); err != nil {
			t.Errorf("another client: %v", err)
		}
		leaves[0]()
		leaves[0]() // counts only once
		if _, err := from("2001:db8::1"); err != nil {
			t.Errorf("after one ended: %v", err)
		}
		if _, err := from("2001:db8::1"); err == nil {
			t.Error("one end made two places")
		}
		assert.Equal(t, strings.Count(log.String(), "\n"), 1, "warnings", log)
		time.Sleep(time.Minute)
		_, _ = from("2001:db8::1")
		assert.Equal(t, strings.Count(log.String(), "\n"), 2, "warnings after a minute", log)
	})
}

// A refusal before routing is rendered in the dialect that the path selects.
func TestRefuse(t *testing.T) {
	edge := New(hostedConfig(answers(chatAnswer)))
	clients, _ := clientsOf(1, "192.0.2.0/24")
	first, err := clients.Admit(httptest.NewRequest("GET", "/", nil))
	assert.OK(t, err)
	defer first()
	_, err = clients.Admit(httptest.NewRequest("GET", "/", nil))
	for path, want := range map[string]string{
		"/v1/chat/completions": `{"error":{"code":"rate_limit_exceeded",`,
		"/v1/messages":         `{"type":"error","error":{"type":"rate_limit_error",`,
	} {
		w := httptest.NewRecorder()
		edge.Refuse(w, httptest.NewRequest("POST", path, nil), err)
		if body, _ := io.ReadAll(w.Body); w.Code != 429 || w.Header().Get("Retry-After") == "" || w.Header().Get("X-Correlation-ID") == "" || !strings.HasPrefix(string(body), want) {
			t.Errorf("%s: %d %v %s", path, w.Code, w.Header(), body)
		}
	}
}
