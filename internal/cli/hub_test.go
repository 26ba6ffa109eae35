package cli

import (
	"bytes"
	"context"
	"encoding/json/v2"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// printed is what a command that serves has printed so far.
type printed struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // a write, for who waits for one
}

func newPrinted() *printed { return &printed{more: make(chan struct{}, 1)} }

func (p *printed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case p.more <- struct{}{}:
	default:
	}
	return p.text.Write(b)
}

func (p *printed) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// until is what was printed once it holds the text.
func (p *printed) until(t *testing.T, text string) string {
	t.Helper()
	late := time.After(time.Minute)
	for {
		if all := p.String(); strings.Contains(all, text) {
			return all
		}
		select {
		case <-p.more:
		case <-late:
			t.Fatalf("%q was not printed: %s", text, p)
		}
	}
}

// TestPlainWarning: a hub that is open to a network without TLS says so at its start.
func TestPlainWarning(t *testing.T) {
	proxied := proxy{netip.MustParsePrefix("10.0.0.1/32")}
	for _, c := range []struct {
		listens string
		set     func(*hubFile)
		warns   bool
	}{
		{"0.0.0.0:8700", func(*hubFile) {}, true},
		{"[::]:8700", func(*hubFile) {}, true},
		{"192.168.1.4:80", func(f *hubFile) { f.Hub.PublicURL.Text = "https://hub.example" }, true},
		{"127.0.0.1:8700", func(*hubFile) {}, false},
		{"[::1]:8700", func(*hubFile) {}, false},
		{"[::ffff:127.0.0.1]:8700", func(*hubFile) {}, false},
		{"0.0.0.0:443", func(f *hubFile) { f.TLS.Certificate = "cert.pem" }, false},
		{"0.0.0.0:443", func(f *hubFile) { f.TLS.ACME = true }, false},
		{"0.0.0.0:8700", func(f *hubFile) { f.Hub.Proxies = []proxy{proxied} }, false},
	} {
		config := new(hubFile)
		c.set(config)
		got := config.plainWarning(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.listens)))
		if (got != "") != c.warns || c.warns && !strings.Contains(got, c.listens+" without TLS") {
			t.Errorf("%s: %q", c.listens, got)
		}
	}
}

// A hub says that it waits for its database, and Ctrl-C ends the wait.
func TestSilentDatabase(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // connections are accepted, and hear nothing
	assert.OK(t, err)
	defer silent.Close()
	home := t.TempDir()
	file := filepath.Join(home, "hub.toml")
	write(t, file, "[hub]\nlisten = \"127.0.0.1:0\"\ndata = \""+home+"\"\n[database]\nurl = \"postgres://u@"+silent.Addr().String()+"/x?sslmode=disable&connect_timeout=3600\"\n")
	config, err := loadHubFile(home, file)
	assert.OK(t, err)
	ctx, interrupt := context.WithCancel(t.Context())
	said, ended := newPrinted(), make(chan error)
	go func() {
		_, err := openHub(ctx, config, logTo(said, slog.LevelInfo))
		ended <- err
	}()
	said.until(t, "opening the database takes long")
	interrupt()
	assert.Is(t, <-ended, context.Canceled, "it ended with")
}

// TestHubDoors runs a hub: the first link is in a file that its user alone can read,
// the log names the client behind a trusted proxy, no web page can read the metrics,
// and the web applications that are configured can call the API.
func TestHubDoors(t *testing.T) {
	home := t.TempDir()
	t.Setenv("KITH_HOME", home)
	data := filepath.Join(home, "hub")
	write(t, filepath.Join(home, "hub.toml"), "[hub]\nproxies = [\"127.0.0.1\"]\ncors = [\"https://app.example\"]\n")
	ctx, cancel := context.WithCancel(t.Context())
	out, errs, ended := newPrinted(), newPrinted(), make(chan int, 1)
	go func() {
		ended <- Main(ctx, []string{"hub", "--json", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", data}, strings.NewReader(""), out, errs)
	}()
	t.Cleanup(func() {
		cancel()
		assert.Equal(t, <-ended, 0, "status", errs)
	})
	var at struct {
		Hub, Admin    string
		FirstLink     string `json:"first_link"`
		FirstLinkFile string `json:"first_link_file"`
	}
	assert.OK(t, json.Unmarshal([]byte(out.until(t, "\n")), &at, json.MatchCaseInsensitiveNames(true)))
	link, err := os.ReadFile(at.FirstLinkFile)
	assert.Require(t, err == nil && at.FirstLink == "" && filepath.Dir(at.FirstLinkFile) == data, at, err)
	if info, err := os.Stat(at.FirstLinkFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	_, code, _ := strings.Cut(strings.TrimSpace(string(link)), "/welcome/")
	if code == "" || strings.Contains(out.String()+errs.String(), code) {
		t.Errorf("the link %q was printed: %s%s", link, out, errs)
	}
	send := func(method, address string, form url.Values, headers ...string) (int, http.Header, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(form.Encode()))
		assert.OK(t, err)
		if form != nil {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
			if headers[i] == "Host" {
				r.Host = headers[i+1]
			}
		}
		response, err := http.DefaultTransport.RoundTrip(r)
		assert.OK(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		assert.OK(t, err)
		return response.StatusCode, response.Header, string(body)
	}
	if status, _, body := send("GET", at.Hub+"/", nil); status != 200 || !strings.HasPrefix(body, `{"name":"kith","version":"`+thisBuild().Version+`","base_url":"`+at.Hub+`/v1","messages_base":"`+at.Hub+`"}`) {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := send("GET", at.Hub+"/", nil, "Accept", "text/html"); status != 200 || !strings.Contains(body, "<html") {
		t.Errorf("%d %s", status, body)
	}
	if status, h, _ := send("OPTIONS", at.Hub+"/v1/models", nil, "Origin", "https://app.example", "Access-Control-Request-Method", "GET"); status != 204 || h.Get("Access-Control-Allow-Origin") != "https://app.example" {
		t.Errorf("%d %v", status, h)
	}
	for _, c := range []struct {
		name, value string
		status      int
	}{{"Accept", "*/*", 200}, {"Host", "evil.example", 403}, {"Origin", "https://evil.example", 403}} {
		if status, _, _ := send("GET", at.Admin+"/metrics", nil, c.name, c.value); status != c.status {
			t.Errorf("metrics for %s: %s: %d", c.name, c.value, status)
		}
	}
	send("POST", at.Hub+"/signin", url.Values{"name": {"x"}, "password": {"y"}}, "X-Forwarded-For", "6.6.6.6, 198.51.100.7")
	errs.until(t, `"sign-in refused" from=198.51.100.7`)
	status, _, body := send("POST", at.Hub+"/signup", url.Values{"link": {code}, "name": {"root"}, "password": {"a long enough word"}})
	if _, err := os.Stat(at.FirstLinkFile); status != 303 || !os.IsNotExist(err) {
		t.Errorf("after the link was used: %d, %v: %s", status, err, body)
	}
}
