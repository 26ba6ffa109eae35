package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/tunnel"
)

var long = flag.Bool("long", false, "TestProxies with 300 tunnels, 500 streams at once of 215 browsers, and a stream of 5 minutes")

// recipe is a configuration of deploy/proxies, and how a test runs its proxy.
type recipe struct {
	file    string
	command []string // with FILE and DIR
	replace []string // what the test changes: pairs of old and new, with ADDRESS, HUB, CHAIN, KEY, BOTH and DIR
}

var (
	nginxRecipe = recipe{"nginx.conf",
		[]string{"nginx", "-p", "DIR", "-c", "FILE", "-g", "daemon off; pid DIR/pid; error_log stderr;"},
		[]string{
			"listen 443 ssl", "listen ADDRESS ssl", "server 127.0.0.1:8700", "server HUB",
			"/etc/ssl/kith/fullchain.pem", "CHAIN", "/etc/ssl/kith/privkey.pem", "KEY",
			"http {\n", "http {\n    access_log off;\n    client_body_temp_path DIR/1;\n    proxy_temp_path DIR/2;\n    fastcgi_temp_path DIR/3;\n    scgi_temp_path DIR/4;\n    uwsgi_temp_path DIR/5;\n",
		}}
	caddyRecipe = recipe{"Caddyfile",
		[]string{"caddy", "run", "--adapter", "caddyfile", "--config", "FILE"},
		[]string{
			"hub.example.org {", "{\n\tadmin off\n\tauto_https disable_redirects\n\tdefault_sni 127.0.0.1\n}\nhttps://ADDRESS {\n\tbind 127.0.0.1\n\ttls CHAIN KEY\n\t#",
			"127.0.0.1:8700", "HUB",
		}}
	haproxyRecipe = recipe{"haproxy.cfg",
		[]string{"haproxy", "-db", "-f", "FILE"},
		[]string{"bind :443", "bind ADDRESS", "/etc/ssl/kith/both.pem", "BOTH", "127.0.0.1:8700", "HUB"}}

	// A network in which only WebSockets pass.
	webSocketsOnly = recipe{"nginx.conf", nginxRecipe.command, append([]string{
		"    map $http_upgrade $connection_upgrade {\n        default upgrade;\n        ''      '';\n    }\n",
		"    map $http_upgrade $connection_upgrade {\n        default   '';\n        websocket upgrade;\n    }\n    map $http_upgrade $passed {\n        default   '';\n        websocket websocket;\n    }\n",
		"Upgrade $http_upgrade", "Upgrade $passed",
	}, nginxRecipe.replace...)}
	// A proxy that passes on bytes, and names the client in a PROXY header.
	passesBytes = recipe{"haproxy.cfg", haproxyRecipe.command, []string{
		"mode http\n", "mode tcp\n", "    option httplog\n", "", "    option forwardfor\n", "", "    option http-no-delay\n", "",
		"    retry-on conn-failure\n", "", " ssl crt /etc/ssl/kith/both.pem alpn h2,http/1.1", "",
		"bind :443", "bind ADDRESS", "127.0.0.1:8700", "HUB send-proxy-v2",
	}}
)

// start runs the recipe's proxy in front of a hub and returns its address and the file of
// its certificate.
func (c recipe) start(t *testing.T, hub string) (address, chain string) {
	t.Helper()
	if _, err := exec.LookPath(c.command[0]); err != nil {
		t.Fatalf("%v: make setup-test installs it", err)
	}
	text := assert.Value(os.ReadFile(filepath.Join("..", "..", "deploy", "proxies", c.file)))(t)
	chain, key := selfSigned(t)
	dir := t.TempDir()
	address = enginetest.FreeAddress()
	both := filepath.Join(dir, "both.pem")
	var pair []byte
	for _, file := range []string{chain, key} {
		part := assert.Value(os.ReadFile(file))(t)
		pair = append(pair, part...)
	}
	write(t, both, string(pair))
	config := string(text)
	for i := 0; i < len(c.replace); i += 2 {
		assert.Require(t, strings.Contains(config, c.replace[i]), c.file, "has no", c.replace[i])
		config = strings.ReplaceAll(config, c.replace[i], c.replace[i+1])
	}
	file := filepath.Join(dir, c.file)
	values := strings.NewReplacer("ADDRESS", address, "HUB", hub, "CHAIN", chain, "KEY", key, "BOTH", both, "DIR", dir, "FILE", file)
	config = values.Replace(config)
	if c.command[0] == "nginx" && os.Geteuid() == 0 {
		config = "user root;\n" + config // its workers read the test's folder
	}
	write(t, file, config)
	var args []string
	for _, arg := range c.command[1:] {
		args = append(args, values.Replace(arg))
	}
	cmd := exec.Command(c.command[0], args...)
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	said := newPrinted()
	cmd.Stdout, cmd.Stderr = said, said
	assert.OK(t, cmd.Start())
	t.Cleanup(func() {
		// SIGTERM ends nginx's workers, too. An interrupt does not end HAProxy where
		// the tests are a shell's background job, in which interrupts are ignored.
		late := time.AfterFunc(soon, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			all := said.String()
			t.Logf("%s: …%s", c.command[0], all[max(0, len(all)-3000):])
		}
	})
	return address, chain
}

// proxied is a hub behind a proxy, with machines whose tunnels the test opens.
type proxied struct {
	*rig
	secrets []string             // of the machines
	daemons [2]daemon.Credential // of the machines that run a real daemon
	release atomic.Pointer[chan struct{}]
}

const chunkText = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"test-model","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":%s}]}` + "\n\n"

// ServeHTTP is a machine's engine: a stream has its first chunk at once and ends once it
// is released, or after 5 minutes.
func (p *proxied) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start, _ := io.ReadAll(io.LimitReader(r.Body, 200))
	_, _ = io.Copy(io.Discard, r.Body)
	if !strings.Contains(string(start), `"stream":true`) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"id":"c","object":"chat.completion","created":1,"model":"test-model","choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}]}`)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = fmt.Fprintf(w, chunkText, "null")
	_ = http.NewResponseController(w).Flush()
	if strings.Contains(string(start), "five minutes") {
		for range 30 {
			time.Sleep(10 * time.Second)
			_, _ = fmt.Fprintf(w, chunkText, "null")
			_ = http.NewResponseController(w).Flush()
		}
	} else {
		select {
		case <-*p.release.Load():
		case <-r.Context().Done():
			return
		}
	}
	_, _ = fmt.Fprintf(w, chunkText, `"stop"`)
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// browser is a client with an address of its own.
func browser(t *testing.T, n int, secure *tls.Config) *http.Client {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, byte(1+n/250), byte(1+n%250))}}
	transport := &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: secure.Clone(), ForceAttemptHTTP2: n%2 == 0}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 10 * time.Minute}
}

// ask posts a body to the chat route.
func (p *proxied) ask(client *http.Client, base, body string) (*http.Response, error) {
	return p.post(client, base+"/v1/chat/completions", int64(len(body)), func() io.Reader { return strings.NewReader(body) })
}

// askOfSize posts a body of that many bytes, which is nowhere in memory as a whole.
func (p *proxied) askOfSize(client *http.Client, url, model string, size int64) (*http.Response, error) {
	const tail = `"}]}`
	head := `{"model":"` + model + `","messages":[{"role":"user","content":"`
	return p.post(client, url, size, func() io.Reader {
		return io.MultiReader(strings.NewReader(head), io.LimitReader(xs{}, size-int64(len(head)+len(tail))), strings.NewReader(tail))
	})
}

// xs is a reader of x without end.
type xs struct{}

var manyX = bytes.Repeat([]byte("x"), 32<<10)

func (xs) Read(p []byte) (int, error) { return copy(p, manyX), nil }

// post sends a body of a known length, which starts again if the request is sent again.
func (p *proxied) post(client *http.Client, url string, size int64, body func() io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, url, body())
	if err != nil {
		return nil, err
	}
	req.ContentLength = size
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(body()), nil }
	req.Header.Set("Authorization", "Bearer "+p.key)
	return client.Do(req)
}

// TestProxies runs each recipe's proxy in front of a hub, with tunnels and clients that
// know its address only: streams that are open at once, of more clients than one may have
// connections, bodies of the greatest size, and the forms of a tunnel.
func TestProxies(t *testing.T) {
	tunnels, streams, browsers, limit := 8, 40, 20, 10
	if *long {
		tunnels, streams, browsers, limit = 300, 500, 215, 200
	}
	p := &proxied{rig: emptyRig(t)}
	p.listen = enginetest.FreeAddress()
	p.engine = enginetest.New(enginetest.LlamaCpp, enginetest.Options{}) // not used: the machines are in this process
	settings := fmt.Sprintf("[hub]\nproxies = [\"127.0.0.1\"]\n[limits]\nrunning = 0\n[ratelimit]\nrps = 0\nconnections = %d\n", limit)
	p.write("hub.toml", settings)
	p.startHub()
	t.Cleanup(func() {
		p.hub.kill()
		if t.Failed() {
			all := p.hub.errs.String()
			t.Logf("hub: …%s", all[max(0, len(all)-3000):])
		}
	})
	p.until("the hub's socket answers", func() error {
		if p.front.to.Load() == nil {
			return errors.New("it has not printed its address")
		}
		_, _, err := fetch(t.Context(), p.operator(), "look", api.OperatorListMembers.With(api.None{}))
		return err
	})
	p.signIn("ada")
	for i := range tunnels + len(p.daemons) {
		token, _, err := fetch(t.Context(), p.operator(), "make a token", api.OperatorCreateToken.With(api.NewToken{Member: "ada"}))
		assert.OK(t, err)
		saved, err := redeem(t.Context(), toHub(p.base, ""), token.Token)
		assert.OK(t, err)
		if i < len(p.daemons) {
			p.daemons[i] = saved
		} else {
			p.secrets = append(p.secrets, saved.Secret)
		}
	}
	for name, c := range map[string]recipe{"nginx": nginxRecipe, "Caddy": caddyRecipe, "HAProxy": haproxyRecipe, "WebSockets only": webSocketsOnly} {
		t.Run(name, func(t *testing.T) {
			address, chain := c.start(t, p.listen)
			p.in(t).check(address, chain, streams, browsers)
		})
	}
	// The hub ends TLS itself.
	chain, key := selfSigned(t)
	p.hub.stop(t)
	p.write("hub.toml", settings+fmt.Sprintf("[tls]\ncertificate = %q\nkey = %q\n", chain, key))
	p.startHub()
	t.Run("PROXY header", func(t *testing.T) {
		address, _ := passesBytes.start(t, p.listen)
		p.in(t).check(address, chain, streams, browsers)
	})
}

// TestUnusedConnections: each proxy closes an unused connection before the hub does. Else
// a request now and then meets one that is just being closed, and is answered 502.
func TestUnusedConnections(t *testing.T) {
	hub := gateway.NewServer(nil, slog.New(slog.DiscardHandler)).IdleTimeout
	for file, idle := range map[string]struct {
		setting *regexp.Regexp
		own     time.Duration // without the setting
	}{
		"nginx.conf": {regexp.MustCompile(`(?s)upstream.*?keepalive_timeout (\w+);.*?}`), time.Minute},
		"Caddyfile":  {regexp.MustCompile(`(?m)^\s*keepalive (\w+)$`), 2 * time.Minute},
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "proxies", file))
		assert.OK(t, err)
		unused := idle.own
		if found := idle.setting.FindSubmatch(text); found != nil {
			if unused, err = time.ParseDuration(string(found[1])); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
		}
		assert.That(t, unused <= hub/2, file, "keeps an unused connection for", unused, "the hub for", hub)
	}
}

// in returns the same hub and machines for a subtest.
func (p *proxied) in(t *testing.T) *proxied {
	r := *p.rig
	r.t = t
	return &proxied{rig: &r, secrets: p.secrets, daemons: p.daemons}
}

// check opens the tunnels and makes the calls through a proxy.
func (p *proxied) check(address, chain string, streams, browsers int) {
	t, base := p.t, "https://"+address
	secure := trusting(t, chain).Transport.(*http.Transport).TLSClientConfig
	release := make(chan struct{})
	p.release.Store(&release)
	one := browser(t, 0, secure)
	p.until("the proxy serves", func() error {
		res, err := one.Get(base + "/readyz")
		if err == nil {
			res.Body.Close()
			if res.StatusCode != http.StatusOK {
				err = errors.New(res.Status)
			}
		}
		return err
	})
	p.openTunnels(base, secure)

	for _, c := range []struct {
		path string
		size int64
		want int
		code string
	}{
		{"/v1/chat/completions", 32 << 20, http.StatusOK, ""},
		{"/v1/chat/completions", 32<<20 + 4096, http.StatusRequestEntityTooLarge, "request_too_large"},
		// These bodies are not sealed: only the hub can see that.
		{"/v1/sealed", 41 << 20, http.StatusBadRequest, "it does not begin with KSEAL1"},
		{"/v1/sealed", 41<<20 + 4096, http.StatusRequestEntityTooLarge, "request_too_large"},
	} {
		res, err := p.askOfSize(one, base+c.path, "test-model", c.size)
		assert.OK(t, err, c.path, "with", c.size, "bytes")
		text, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != c.want || !strings.Contains(string(text), c.code) {
			t.Errorf("%s with %d bytes: %s %s", c.path, c.size, res.Status, text)
		}
	}
	p.sealLargest(base, chain)

	clients := make([]*http.Client, browsers)
	for i := range clients {
		clients[i] = browser(t, i, secure)
	}
	var begun, ended sync.WaitGroup
	stream := func(client *http.Client, content string) {
		begun.Add(1)
		ended.Go(func() {
			arrived := sync.OnceFunc(begun.Done)
			defer arrived()
			res, err := p.ask(client, base, `{"model":"test-model","stream":true,"messages":[{"role":"user","content":"`+content+`"}]}`)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			if res.StatusCode != http.StatusOK {
				text, _ := io.ReadAll(res.Body)
				t.Errorf("%s %s", res.Status, text)
				return
			}
			if _, err := io.ReadFull(res.Body, make([]byte, 1)); err != nil { // a chunk that the proxy does not hold back
				t.Error(err)
				return
			}
			arrived()
			text, err := io.ReadAll(res.Body)
			if err != nil || !strings.HasSuffix(string(text), "data: [DONE]\n\n") {
				t.Errorf("%s: cut after %d bytes: %v: …%s", res.Header.Get("X-Correlation-Id"), len(text), err, text[max(0, len(text)-300):])
			}
		})
	}
	for i := range streams {
		stream(clients[i%browsers], "hi")
	}
	if *long {
		stream(one, "five minutes")
	}
	begun.Wait() // all are open at once
	close(release)
	ended.Wait()
}

// sealLargest makes a call of the greatest size at a daemon, which seals it for another
// one: sealed it is longer than any call in clear (spec/sealed.md#limits).
func (p *proxied) sealLargest(base, chain string) {
	t := p.t
	t.Helper()
	engine := enginetest.New(enginetest.LlamaCpp, enginetest.Options{
		Models: []enginetest.Model{{ID: "sealed-model"}}, Behaviour: enginetest.Behaviour{Text: "opened"},
	})
	assert.OK(t, engine.Start())
	t.Cleanup(func() { engine.Close() })
	local := enginetest.FreeAddress()
	var desk, lap *rig
	for i, r := range []**rig{&desk, &lap} {
		*r = &rig{t: t, home: shortDir(t), hub: p.hub, env: []string{"SSL_CERT_FILE=" + chain}}
		machine, engines, listen := p.daemons[i], "", local
		if machine.Hub = base; r == &desk {
			engines, listen = `"`+engine.URL()+`"`, "127.0.0.1:0"
		}
		(*r).write("config.toml", "[engine]\nbuiltin = false\n[discovery]\nenabled = false\nendpoints = ["+engines+"]\n")
		assert.OK(t, daemon.SaveCredential((*r).home, machine))
		(*r).daemon = (*r).start("serve", "--listen", listen)
		t.Cleanup((*r).daemon.kill)
	}
	lap.until("a sealed call of the greatest size is served", func() error {
		res, err := p.askOfSize(http.DefaultClient, "http://"+local+"/v1/chat/completions", "sealed-model", 32<<20)
		if err != nil {
			return err
		}
		_, err = complete(res, false)
		return err
	})
	lap.until("the call is counted, which follows its answer", func() error {
		var now daemon.Status
		if _, err := control(lap.home).call(t.Context(), "look", request{http.MethodGet, "/status", nil}, &now); err != nil {
			return err
		}
		assert.That(t, now.Sealed.Clear == 0, now.Sealed)
		if now.Sealed.Sealed == 0 {
			return errors.New("no sealed call is counted")
		}
		return nil
	})
}

// openTunnels opens the machines' tunnels until the test ends, and waits for them.
func (p *proxied) openTunnels(base string, secure *tls.Config) {
	t := p.t
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	var acked atomic.Int64
	var last atomic.Pointer[error]
	for _, secret := range p.secrets {
		up := false
		dialer := &tunnel.Dialer{
			Instance: rand.Text(),
			HubURL:   base, Credential: func() string { return secret }, Handler: p, TLS: secure.Clone(),
			Advertise: func() (tunnel.Advertisement, <-chan struct{}) {
				return tunnel.Advertisement{Name: "box", Slots: 100, Free: 100, Models: []tunnel.Model{{
					ID: "test-model", Families: []string{"chat"}, Endpoints: []string{"/v1/chat/completions"}, Slots: 100, Free: 100,
				}}}, nil
			},
			OnState: func(s tunnel.State) {
				if is := s.Phase == tunnel.Acked; is != up {
					up = is
					acked.Add(map[bool]int64{true: 1, false: -1}[is])
				}
				if s.Err != nil {
					last.Store(&s.Err)
				}
			},
		}
		running.Go(func() { _ = dialer.Run(ctx) })
	}
	p.until("the tunnels are open", func() error {
		if n := acked.Load(); n < int64(len(p.secrets)) {
			err := fmt.Errorf("%d of %d", n, len(p.secrets))
			if cause := last.Load(); cause != nil {
				err = errors.Join(err, *cause)
			}
			return err
		}
		return nil
	})
}
