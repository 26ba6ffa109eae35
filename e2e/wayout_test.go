package e2e_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// wayOut is a network whose only way out is a proxy that wants a password: the names in
// hosts, which no name server knows, are hosts behind it.
type wayOut struct {
	t     *testing.T
	dir   string
	proxy *httptest.Server
	env   []string // of the machine; without a proxy
	cert  tls.Certificate

	mu    sync.Mutex
	hosts map[string]string // HOST:443 → the address on loopback
	asked []string          // for which hosts the proxy was asked
}

// newWayOut starts the proxy, and makes a certificate for the hosts that the machine trusts.
func newWayOut(t *testing.T) *wayOut {
	t.Helper()
	w := &wayOut{t: t, dir: t.TempDir(), hosts: map[string]string{}}
	key := assert.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(90 * 24 * time.Hour),
		DNSNames: []string{"hub.test", "upstream.test", "models.test"}, IsCA: true, BasicConstraintsValid: true,
	}
	der := assert.Value(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	pkcs8 := assert.Value(x509.MarshalPKCS8PrivateKey(key))(t)
	w.write("cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	w.write("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})))
	w.cert = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	w.proxy = httptest.NewServer(http.HandlerFunc(w.pass))
	t.Cleanup(w.proxy.Close)
	w.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir, "KITH_HOME=" + filepath.Join(w.dir, "kith"), "NO_COLOR=1",
		"KITH_SYSTEM_ROOT=" + filepath.Join(w.dir, "system"), "SSL_CERT_FILE=" + filepath.Join(w.dir, "cert.pem"), "SSL_CERT_DIR=" + w.dir,
	}
	return w
}

// pass is the proxy: it lets ann through, to the known hosts.
func (w *wayOut) pass(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.asked = append(w.asked, r.Host)
	to := w.hosts[r.Host]
	w.mu.Unlock()
	switch {
	case r.Header.Get("Proxy-Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte("ann:p@ss")):
		rw.Header().Set("Proxy-Authenticate", `Basic realm="out"`)
		rw.WriteHeader(http.StatusProxyAuthRequired)
		return
	case r.Method != http.MethodConnect || to == "":
		rw.WriteHeader(http.StatusForbidden)
		return
	}
	out, err := net.Dial("tcp", to)
	if err != nil {
		rw.WriteHeader(http.StatusBadGateway)
		return
	}
	defer out.Close()
	c, in, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	fmt.Fprint(c, "HTTP/1.1 200 Connection established\r\n\r\n")
	go func() { _, _ = io.Copy(out, in); out.Close() }()
	_, _ = io.Copy(c, out)
}

// host makes a name known to the proxy.
func (w *wayOut) host(name, address string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hosts[name+":443"] = address
}

// serve makes a handler a host behind the proxy, over TLS.
func (w *wayOut) serve(name string, handler http.Handler) {
	server := httptest.NewUnstartedServer(handler)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{w.cert}}
	server.StartTLS()
	w.t.Cleanup(server.Close)
	w.host(name, server.Listener.Addr().String())
}

func (w *wayOut) write(name, text string) string {
	path := filepath.Join(w.dir, name)
	assert.OK(w.t, os.MkdirAll(filepath.Dir(path), 0o700))
	assert.OK(w.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// kith runs a command of the machine with the proxy at address, and returns what it prints.
func (w *wayOut) kith(proxy string, args ...string) (out string, err error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, builtBinary(w.t), args...)
	cmd.Env = append(slices.Clone(w.env), "HTTPS_PROXY="+proxy)
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// run starts a process that the test ends.
func (w *wayOut) run(env []string, args ...string) {
	var log bytes.Buffer
	cmd := exec.Command(builtBinary(w.t), args...)
	cmd.Env, cmd.Stderr = env, &log
	assert.OK(w.t, cmd.Start())
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if w.t.Failed() {
			w.t.Logf("%v said:\n%s", args[0], &log)
		}
	})
}

// until repeats try until it returns true.
func (w *wayOut) until(what string, try func() (got string, done bool)) {
	w.t.Helper()
	var got string
	for limit := time.Now().Add(patience); time.Now().Before(limit); <-time.After(100 * time.Millisecond) {
		var done bool
		if got, done = try(); done {
			return
		}
	}
	w.t.Fatalf("%s: not within %v: %s", what, patience, got)
}

// must returns the output of a command that succeeds, read as JSON into the result.
func must[T any](w *wayOut, env []string, args ...string) (out T) {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), builtBinary(w.t), args...)
	cmd.Env = env
	text, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		w.t.Fatalf("kith %v: %v\n%s", args, err, text)
	}
	return out
}

// TestWayOut: a machine whose only way out is a proxy that wants a password signs in,
// opens its tunnel, uses its upstream, fetches a model and passes kith doctor, which names
// the proxy's failures.
func TestWayOut(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Logf("%s does not read SSL_CERT_FILE, by which the machine trusts the hosts here", runtime.GOOS)
		return
	}
	w := newWayOut(t)
	right := strings.Replace(w.proxy.URL, "://", "://ann:p%40ss@", 1)
	upstream := enginetest.New(enginetest.Service, enginetest.Options{Key: "sk-1", Models: []enginetest.Model{{ID: "far-model"}}})
	w.serve("upstream.test", upstream)
	model := ggufOf(1)
	w.serve("models.test", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		http.ServeContent(rw, r, "tiny.gguf", time.Unix(1, 0), bytes.NewReader(model))
	}))

	// The hub, beyond the proxy, and a member with a key.
	address, hubEnv := enginetest.FreeAddress(), []string{"HOME=" + w.dir, "KITH_HOME=" + filepath.Join(w.dir, "operator"), "NO_COLOR=1"}
	data := filepath.Join(w.dir, "hub")
	config := w.write("hub.toml", fmt.Sprintf("[hub]\nlisten = %q\ndata = %q\npublic_url = \"https://hub.test\"\n[tls]\ncertificate = %q\nkey = %q\n",
		address, data, filepath.Join(w.dir, "cert.pem"), filepath.Join(w.dir, "key.pem")))
	w.run(hubEnv, "hub", "--config", config, "--admin", enginetest.FreeAddress())
	w.host("hub.test", address)
	w.until("the hub starts", func() (string, bool) {
		c, err := net.Dial("unix", filepath.Join(data, "admin.sock"))
		if err != nil {
			return err.Error(), false
		}
		return "", c.Close() == nil
	})
	must[any](w, hubEnv, "admin", "member", "create", "ann", "--data", data, "--json")
	key := must[struct{ Secret string }](w, hubEnv, "admin", "key", "create", "--member", "ann", "--data", data, "--json").Secret
	token := must[struct{ Token string }](w, hubEnv, "admin", "machine", "token", "--member", "ann", "--data", data, "--json").Token

	// Without the password, and with it.
	out, err := w.kith(w.proxy.URL, "login", "--hub", "https://hub.test", "--token", token)
	if err == nil || !strings.Contains(out, "wants a user and a password (407); set HTTPS_PROXY=http://USER:PASSWORD@") {
		t.Errorf("login without the proxy's password: %v\n%s", err, out)
	}
	if out, err := w.kith(right, "login", "--hub", "https://hub.test", "--token", token); err != nil {
		t.Fatalf("login: %v\n%s", err, out)
	}
	local := enginetest.FreeAddress()
	w.write("kith/config.toml", "[daemon]\nlisten = \""+local+"\"\n[engine]\nbuiltin = false\n[discovery]\nenabled = false\n"+
		"[[upstream]]\nname = \"far\"\nurl = \"https://upstream.test/v1\"\nkey = \"sk-1\"\nshare = true\n")
	w.run(append(slices.Clone(w.env), "https_proxy="+right), "serve")
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}, TLSClientConfig: &tls.Config{ServerName: "hub.test", RootCAs: x509.NewCertPool()}}}
	leaf, _ := x509.ParseCertificate(w.cert.Certificate[0])
	client.Transport.(*http.Transport).TLSClientConfig.RootCAs.AddCert(leaf)
	w.until("a call through the tunnel to the upstream", func() (string, bool) {
		r, _ := http.NewRequest(http.MethodPost, "https://hub.test/v1/chat/completions", strings.NewReader(`{"model":"far-model","messages":[{"role":"user","content":"hi"}]}`))
		r.Header.Set("Authorization", "Bearer "+key)
		r.Header.Set("Content-Type", "application/json")
		response, err := client.Do(r)
		if err != nil {
			return err.Error(), false
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		return string(text), response.StatusCode == http.StatusOK
	})
	response, err := http.Post("http://"+local+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"nowhere","messages":[]}`))
	assert.OK(t, err)
	if response.Body.Close(); response.StatusCode != http.StatusNotFound { // the hub's answer; 503 if it is not reached
		t.Errorf("a local call that the hub answers: %s", response.Status)
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(model))
	if out, err := w.kith(right, "pull", "https://models.test/tiny.gguf"); err != nil || !strings.Contains(out, "tiny") {
		t.Errorf("pull: %v\n%s", err, out)
	}
	if got, err := os.ReadFile(filepath.Join(w.dir, "kith", "models", "tiny.gguf")); err != nil || fmt.Sprintf("%x", sha256.Sum256(got)) != sum {
		t.Errorf("the model: %d bytes, %v", len(got), err)
	}
	for name, c := range map[string]struct{ proxy, want string }{
		"good":           {right, "https://hub.test responds through the proxy " + w.proxy.Listener.Addr().String() + " and accepts the secret"},
		"wrong password": {strings.Replace(right, "ann:", "bob:", 1), "refuses the user and password in HTTPS_PROXY (407)"},
		"no proxy there": {"http://127.0.0.1:1", "proxyconnect tcp: dial tcp 127.0.0.1:1"},
	} {
		w.until("doctor, "+name+": "+c.want, func() (string, bool) { // it waits 5 s for each answer
			out, err := w.kith(c.proxy, "doctor")
			if strings.Contains(out, "p@ss") || strings.Contains(out, "p%40ss") {
				t.Errorf("doctor, %s, prints the password:\n%s", name, out)
			}
			return out, (err == nil) == (name == "good") && strings.Contains(out, c.want)
		})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, host := range []string{"hub.test:443", "upstream.test:443", "models.test:443"} {
		assert.That(t, slices.Contains(w.asked, host), "the proxy was never asked for", host, w.asked)
	}
}
