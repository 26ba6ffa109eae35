package gateway

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
)

// hostForms returns ways to write a loopback address, and strings that look like one.
func hostForms() []string {
	names := []string{
		"", ".", "localhost", "LOCALHOST", "Localhost", "localhost.", "localhost.localdomain", "localhost.evil.example", "evil.localhost",
		"localhоst" /* Cyrillic */, "xn--lcalhst-6fgb", " localhost", "localhost ", "localhost\t", "user@localhost", "localhost@evil.example",
		"127.0.0.1", "127.0.0.1.", "127.0.0.1.nip.io", "127.0.0.2", "127.1", "127.0.1", "127.000.000.001", "0127.0.0.1", "0x7f.0.0.1", "0x7f.1",
		"0x7f000001", "2130706433", "017700000001", "0", "0.0.0.0", "127.0.0.1/", "127.0.0.1,evil.example", "１２７.0.0.1",
		"[::1]", "::1", "[::01]", "[0:0:0:0:0:0:0:1]", "[::0001]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[::1%lo]",
		"[::1%25lo]", "[::1", "::1]", "[[::1]]", "evil.example", "192.168.1.4", "10.0.0.1", "host.docker.internal", "kith.local", "*", "null",
	}
	ports := []string{"", ":", ":8701", ":08701", ":8700", ":80", ":8701 ", ":+8701", ":8701:8701", ":0x21fd"}
	var forms []string
	for _, name := range names {
		for _, port := range ports {
			forms = append(forms, name+port)
		}
	}
	return forms
}

func TestGuardHost(t *testing.T) {
	forms, passed := hostForms(), map[string]bool{}
	assert.Require(t, len(forms) >= 200, "only", len(forms), "forms")
	h := New(localConfig(&backend{}))
	for _, host := range forms {
		r := ask("GET", "/v1/models", "")
		r.Host = host
		w, _ := do(h, r)
		if w.Code == 200 {
			passed[host] = true
			continue
		}
		checkFault(t, w, 403, fault.ForbiddenOrigin)
	}
	for _, host := range []string{"localhost:8701", "127.0.0.1:8701", "[::1]:8701"} {
		assert.That(t, passed[host], host, "was refused")
		delete(passed, host)
	}
	for host := range passed {
		t.Errorf("%q passed", host)
	}
	on80 := &Guard{Port: 80}
	for _, host := range []string{"localhost", "localhost:80", "[::1]"} {
		assert.That(t, on80.ownHost(host), host, "was refused on port 80")
	}
}

func TestGuardOrigin(t *testing.T) {
	runs := 0
	b := answers(chatAnswer)
	served := b.do
	b.do = func(ctx context.Context, call *Call) (*Answer, error) { runs++; return served(ctx, call) }
	c := localConfig(b)
	c.Guard.Origins = []string{"https://app.example"}
	h := New(c)
	const target = "http://localhost:8701/v1/chat/completions"
	for _, headers := range [][]string{
		{"Origin", "https://evil.example"},
		{"Origin", "null"},
		{"Origin", "http://localhost:8701"},
		{"Origin", "https://app.example.evil.example"},
		{"Origin", "https://app.example", "Origin", "https://evil.example"},
		{"Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "same-site"},
		{"Sec-Fetch-Site", "odd"},
		{"Sec-Fetch-Site", "none", "Sec-Fetch-Site", "cross-site"},
	} {
		w, _ := do(h, ask("POST", target, chatRequest, headers...))
		checkFault(t, w, 403, fault.ForbiddenOrigin)
		for name := range w.Header() {
			assert.That(t, !strings.HasPrefix(name, "Access-Control"), headers, name)
		}
	}
	for _, method := range []string{"GET", "POST", "PUT", "OPTIONS", "HEAD"} {
		for _, path := range []string{"/", "/v1/models", "/v1/chat/completions", "/nowhere", "/v1/completions"} {
			w, _ := do(h, ask(method, "http://localhost:8701"+path, "", "Origin", "https://evil.example"))
			assert.Equal(t, w.Code, 403, method, path, "of a page")
		}
	}
	for _, contentType := range []string{"text/plain", "text/plain; application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "application/jsonp", "x;;"} {
		for _, mark := range []string{"Referer", "Origin", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest", "Sec-Fetch-User"} {
			value := map[string]string{"Origin": "https://app.example", "Sec-Fetch-Site": "none"}[mark]
			if value == "" {
				value = "http://localhost:8701/"
			}
			w, _ := do(h, ask("POST", target, chatRequest, "Content-Type", "", "Content-Type", contentType, mark, value))
			checkFault(t, w, 400, fault.InvalidRequest)
		}
	}
	assert.Require(t, runs == 0, runs, "calls ran")
	for _, headers := range [][]string{
		{}, {"Sec-Fetch-Site", "none"}, {"Sec-Fetch-Site", "same-origin"},
		{"Origin", "https://app.example", "Sec-Fetch-Site", "cross-site"},
		{"Content-Type", "", "Content-Type", "application/json; charset=utf-8"},
		{"Content-Type", "", "Content-Type", "application/x-www-form-urlencoded"}, // a bare curl -d
		{"Content-Type", ""}, {"Content-Type", "", "Content-Type", "text/plain"},
		{"Authorization", "", "Authorization", "Bearer anything"}, {"Authorization", ""},
	} {
		if w, _ := do(h, ask("POST", target, chatRequest, headers...)); w.Code != 200 {
			t.Errorf("%v: %d %s", headers, w.Code, w.Body)
		}
	}
}

func TestGuardNamesItsPort(t *testing.T) {
	err := (&Guard{Port: 8701}).check(ask("GET", "http://evil.example/", ""))
	assert.Contains(t, fmt.Sprint(err), "8701", err)
}

// The guard also works around a handler that is not an edge. With AnyHost it accepts
// unknown names, but still refuses pages.
func TestGuardHandler(t *testing.T) {
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	own, wide := &Guard{Port: 8702}, &Guard{Port: 8702, AnyHost: true}
	for _, c := range []struct {
		guard             *Guard
		host, name, value string
		status            int
	}{
		{own, "127.0.0.1:8702", "", "", 418},
		{own, "localhost:8702", "Sec-Fetch-Site", "none", 418},
		{own, "evil.example:8702", "", "", 403}, // a rebound name
		{own, "hub.lan:8702", "", "", 403},
		{own, "127.0.0.1:8702", "Origin", "https://evil.example", 403},
		{own, "127.0.0.1:8702", "Sec-Fetch-Site", "cross-site", 403},
		{wide, "hub.lan:8702", "", "", 418},
		{wide, "hub.lan:8702", "Origin", "http://hub.lan:8702", 403},
		{wide, "hub.lan:8702", "Sec-Fetch-Site", "same-site", 403},
	} {
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.Host = c.host
		if c.name != "" {
			r.Header.Set(c.name, c.value)
		}
		w := httptest.NewRecorder()
		c.guard.Handler(served).ServeHTTP(w, r)
		assert.Equal(t, w.Code, c.status, c, w.Body)
	}
}
