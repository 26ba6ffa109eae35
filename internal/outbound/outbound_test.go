package outbound

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// startProxy starts a proxy that lets ann:s3cret@: through to host, wherever they ask to go.
// scheme is the authentication that it offers.
func startProxy(t *testing.T, host, scheme string, status int) *httptest.Server {
	t.Helper()
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("ann:s3cret@:"))
	proxy := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodConnect:
			http.Error(w, "CONNECT only", http.StatusMethodNotAllowed)
			return
		case r.Header.Get("Proxy-Authorization") != want:
			w.Header().Set("Proxy-Authenticate", scheme)
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		case status != http.StatusOK:
			w.WriteHeader(status)
			return
		}
		out, err := net.Dial("tcp", host)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		c, in, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		defer out.Close()
		fmt.Fprint(c, "HTTP/1.1 200 Connection established\r\n\r\n")
		go func() { io.Copy(out, in); out.Close() }()
		io.Copy(c, out)
	}))
	t.Cleanup(proxy.Close)
	return proxy
}

// useProxy sets the environment, and returns the proxy's host.
func useProxy(t *testing.T, server *httptest.Server, user string) string {
	t.Helper()
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "https_proxy", "NO_PROXY", "no_proxy", "REQUEST_METHOD"} {
		t.Setenv(name, "")
	}
	scheme, host, _ := strings.Cut(server.URL, "://")
	t.Setenv("HTTPS_PROXY", scheme+"://"+user+host)
	return host
}

// ways are the two ways out: that of net/http, and Connect with TLS over it.
func ways(ctx context.Context, target string, roots *tls.Config) map[string]func() error {
	return map[string]func() error{
		"transport": func() error {
			transport := NewTransport()
			transport.TLSClientConfig, transport.TLSHandshakeTimeout = roots.Clone(), 0
			defer transport.CloseIdleConnections()
			r, _ := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
			response, err := transport.RoundTrip(r)
			if err != nil {
				return err
			}
			return response.Body.Close()
		},
		"connection": func() error {
			u, _ := url.Parse(target)
			c, err := Connect(ctx, u, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")), roots)
			if err != nil {
				return err
			}
			defer c.Close()
			config := roots.Clone()
			config.ServerName, config.NextProtos = u.Hostname(), []string{"http/1.1"}
			secure := tls.Client(c, config)
			if err := secure.HandshakeContext(ctx); err != nil {
				return err
			}
			fmt.Fprintf(secure, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			_, err = http.ReadResponse(bufio.NewReader(secure), nil)
			return err
		},
	}
}

// TestProxy: both ways out use the proxy, sign in to it, heed NO_PROXY, and say what the
// proxy did.
func TestProxy(t *testing.T) {
	host := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer host.Close()
	roots := &tls.Config{RootCAs: x509.NewCertPool()}
	roots.RootCAs.AddCert(host.Certificate())
	for name, c := range map[string]struct {
		target, user, scheme string
		overTLS, down        bool
		status               int
		want                 string // of the error; <at> is the proxy's host; empty: none
	}{
		"through":          {user: "ann:s3cret%40%3A@"},
		"proxy over TLS":   {user: "ann:s3cret%40%3A@", overTLS: true},
		"no password":      {want: "the proxy <at> wants a user and a password (407); set HTTPS_PROXY=http://USER:PASSWORD@<at>"},
		"wrong password":   {user: "ann:other@", want: "the proxy <at> refuses the user and password in HTTPS_PROXY (407)"},
		"other scheme":     {user: "ann:other@", scheme: "NTLM", want: "the proxy <at> signs in by NTLM, and kith by Basic only"},
		"not allowed":      {user: "ann:s3cret%40%3A@", status: 403, want: "the proxy <at> does not connect to example.com:443: it answered 403 Forbidden"},
		"host not found":   {user: "ann:s3cret%40%3A@", status: 502, want: "it answered 502 Bad Gateway"},
		"proxy down":       {down: true, want: "proxyconnect tcp: dial tcp <at>: connect"},
		"NO_PROXY":         {target: "https://direct.test/", want: "cancel"},
		"loopback: direct": {target: host.URL, down: true},
	} {
		t.Run(name, func(t *testing.T) {
			proxy := startProxy(t, host.Listener.Addr().String(), cmp.Or(c.scheme, `Basic realm="out"`), cmp.Or(c.status, 200))
			roots := roots.Clone()
			if c.overTLS {
				proxy.StartTLS()
				roots.RootCAs = roots.RootCAs.Clone()
				roots.RootCAs.AddCert(proxy.Certificate())
			} else {
				proxy.Start()
			}
			at := useProxy(t, proxy, c.user)
			t.Setenv("NO_PROXY", "direct.test")
			if c.down {
				proxy.Close()
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if c.target == "https://direct.test/" {
				cancel() // what the look-up finds is not of interest
			}
			for way, try := range ways(ctx, cmp.Or(c.target, "https://example.com/"), roots) {
				err := try()
				want := strings.ReplaceAll(c.want, "<at>", at)
				switch {
				case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), want)):
					t.Errorf("%s: %v\nwant %q", way, err, want)
				case err != nil && strings.Contains(err.Error(), "s3cret"):
					t.Errorf("%s: the error has the password: %v", way, err)
				case c.want != "" && IsProxyFailure(err) != (c.target == ""):
					t.Errorf("%s: a failure of the proxy is %v: %v", way, IsProxyFailure(err), err)
				}
			}
		})
	}
}

// TestSocks: a SOCKS5 proxy is a way out, too, as it is for net/http.
func TestSocks(t *testing.T) {
	listener := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	asked := make(chan string, 1)
	go func() {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.ReadFull(c, make([]byte, 3)) // version 5, one method
		c.Write([]byte{5, 0})
		head := make([]byte, 5) // version, command, reserved, type of address, length
		io.ReadFull(c, head)
		rest := make([]byte, int(head[4])+2)
		io.ReadFull(c, rest)
		asked <- string(rest[:head[4]])
		c.Write([]byte{5, 0, 0, 1, 127, 0, 0, 1, 0, 80})
		io.Copy(c, c)
	}()
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "https_proxy", "NO_PROXY", "no_proxy", "REQUEST_METHOD"} {
		t.Setenv(name, "")
	}
	t.Setenv("HTTPS_PROXY", "socks5://"+listener.Addr().String())
	u, _ := url.Parse("https://hub.test")
	c := assert.Value(Connect(t.Context(), u, "hub.test:443", nil))(t)
	defer c.Close()
	assert.Equal(t, <-asked, "hub.test", "the proxy was asked for")
}
