package pull

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/kith/kith/internal/assert"
)

// TestPublicClient reaches the owner's model hub wherever it is, and nothing else of this
// machine, neither directly nor by a redirect or a name.
func TestPublicClient(t *testing.T) {
	inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		t.Error("a request came into the machine's network")
	}))
	defer inside.Close()
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if to := r.FormValue("to"); to != "" {
			http.Redirect(w, r, to, http.StatusFound)
		}
	}))
	defer hub.Close()
	port := inside.URL[strings.LastIndex(inside.URL, ":"):]
	s := &Source{Endpoint: hub.URL, Public: true, Client: NewPublicClient(hub.URL)}
	defer s.Client.CloseIdleConnections()
	get := func(address string) error {
		response, err := s.do(assert.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil))(t))
		if err == nil {
			response.Body.Close()
		}
		return err
	}
	assert.OK(t, get(hub.URL+"/ann/words"))
	for _, address := range []string{inside.URL, "http://localhost" + port, hub.URL + "?to=" + url.QueryEscape(inside.URL)} {
		assert.Is(t, get(address), errPrivate, address)
	}
	assert.Is(t, get("http://LOCALHOST."+port), errPrivate, "a name of this machine")
	// A name that is looked up: the check is of the address that the connection is made to.
	resolveTo(t, [4]byte{127, 0, 0, 1})
	assert.Is(t, get("http://rebound.test"+port), errPrivate, "a name that leads here")

	// With a proxy the proxy decides about names; addresses are checked here.
	asked := ""
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked = r.URL.String() }))
	defer proxy.Close()
	t.Setenv("HTTP_PROXY", proxy.URL)
	s.Client = NewPublicClient(hub.URL)
	assert.OK(t, get("http://files.test/w.gguf"))
	assert.Equal(t, asked, "http://files.test/w.gguf", "asked of the proxy")
	assert.Is(t, get("http://10.0.0.1/w.gguf"), errPrivate, "an address behind the proxy")
}

// resolveTo makes every name an alias of an IPv4 address until the end of the test.
func resolveTo(t *testing.T, address [4]byte) {
	t.Helper()
	server := assert.Value(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	go func() {
		buffer := make([]byte, 512)
		for {
			n, from, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			var query dnsmessage.Message
			if query.Unpack(buffer[:n]) != nil || len(query.Questions) != 1 {
				continue
			}
			answer := dnsmessage.Message{Header: dnsmessage.Header{ID: query.ID, Response: true}, Questions: query.Questions}
			if q := query.Questions[0]; q.Type == dnsmessage.TypeA {
				answer.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}, Body: &dnsmessage.AResource{A: address},
				}}
			}
			if text, err := answer.Pack(); err == nil {
				_, _ = server.WriteTo(text, from)
			}
		}
	}()
	before := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
	t.Cleanup(func() { net.DefaultResolver = before; server.Close() })
}
