package cli

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/storetest"
)

// TestBehindHAProxy runs HAProxy, with the configuration of deploy/compose, in front of two
// hubs. The daemon and the callers know its address only. Each hub in turn stops and comes
// back: calls go on by the other one, to which the machine connects. The metrics of both
// say who did what.
func TestBehindHAProxy(t *testing.T) {
	t.Parallel()
	certificate, key := selfSigned(t)
	settings := fmt.Sprintf("[database]\nurl = %q\n[peer]\nlisten = \"127.0.0.1:0\"\n", storetest.Postgres(t))
	a := newRig(t, settings, "[hub]\nnode = \"a\"\nproxies = [\"127.0.0.1\"]\n")
	a.hub.stop(t)
	a.listen, a.health = enginetest.FreeAddress(), enginetest.FreeAddress()
	a.startHub()
	b := emptyRig(t)
	b.key, b.engine, b.listen, b.health = a.key, a.engine, enginetest.FreeAddress(), enginetest.FreeAddress()
	b.open(settings, "[hub]\nnode = \"b\"\nproxies = [\"127.0.0.1\"]\n")

	proxied := &rig{t: t, base: "https://" + startHAProxy(t, certificate, key, a, b), key: a.key, hub: a.hub, client: trusting(t, certificate)}
	a.daemon.kill()
	saved := assert.Value(daemon.LoadCredential(a.home))(t)
	saved.Hub = proxied.base
	assert.OK(t, daemon.SaveCredential(a.home, saved))
	a.env = []string{"SSL_CERT_FILE=" + certificate} // of the daemon
	a.startDaemon()
	proxied.daemon = a.daemon

	// settled waits until each hub knows where the machine is: earlier a call waits at a hub
	// that has just started, and these give up after a second.
	settled := func(hubs ...*rig) {
		t.Helper()
		proxied.until("the hubs know each other and the machine", func() error {
			var tunnels float64
			for _, hub := range hubs {
				text := hub.metrics()
				ready, machines, peers := sumOf(t, text, "kith_ready"), sumOf(t, text, "kith_machines_online"), sumOf(t, text, "kith_peer_up")
				if ready != 1 || machines != 1 || peers != 1 {
					return fmt.Errorf("%s: ready %v, machines %v, peers %v", hub.base, ready, machines, peers)
				}
				tunnels += sumOf(t, text, "kith_tunnels")
			}
			if tunnels != 1 {
				return fmt.Errorf("%v tunnels", tunnels)
			}
			return nil
		})
	}
	served := func(when string) {
		t.Helper()
		proxied.until("a call is served "+when, func() error { _, err := proxied.ask(false); return err })
		for i := range 20 { // the last one is a stream, which is counted before its end is sent
			if _, err := proxied.ask(i%2 == 1); err != nil {
				t.Fatalf("call %d %s: %v", i, when, err)
			}
		}
	}
	settled(a, b)
	served("by two hubs")
	// A call that comes to the hub without the tunnel is sent on to the other one.
	home, entry := a, b
	if b.metric("kith_tunnels") == 1 {
		home, entry = b, a
	}
	const complete, ok = `kith_forwards_total{outcome="complete"}`, `kith_calls_total{code="ok",dialect="chat",route="/v1/chat/completions"}`
	forwards, calls := entry.metric(complete), entry.metric(ok)
	assert.Value(entry.ask(true))(t)
	entry.until("it is counted where it came in", func() error {
		if entry.metric(ok) != calls+1 || entry.metric(complete) <= forwards {
			return fmt.Errorf("calls %v → %v, forwards %v → %v", calls, entry.metric(ok), forwards, entry.metric(complete))
		}
		return nil
	})
	for _, hub := range []*rig{home, entry} {
		hub.hub.stop(t)
		served("while a hub is away")
		hub.startHub()
		settled(a, b)
		served("when it is back")
	}
}

// startHAProxy runs HAProxy in front of two hubs and returns its address.
func startHAProxy(t *testing.T, certificate, key string, a, b *rig) string {
	t.Helper()
	program, err := exec.LookPath("haproxy")
	if err != nil {
		t.Fatalf("%v: make setup-test installs it", err)
	}
	both := filepath.Join(t.TempDir(), "certificate.pem")
	var text []byte
	for _, file := range []string{certificate, key} {
		part := assert.Value(os.ReadFile(file))(t)
		text = append(text, part...)
	}
	write(t, both, string(text))
	address := enginetest.FreeAddress()
	_, healthA, _ := net.SplitHostPort(a.health)
	_, healthB, _ := net.SplitHostPort(b.health)
	cmd := exec.Command(program, "-db", "-f", filepath.Join("..", "..", "deploy", "compose", "haproxy.cfg"))
	cmd.Env = append(os.Environ(),
		"KITH_BIND="+address, "KITH_BIND_PLAIN="+enginetest.FreeAddress(), "KITH_BIND_HEALTH="+enginetest.FreeAddress(), "KITH_CERTIFICATE="+both,
		"KITH_HUB_1="+a.listen, "KITH_HUB_1_ADMIN="+healthA,
		"KITH_HUB_2="+b.listen, "KITH_HUB_2_ADMIN="+healthB)
	log := newPrinted()
	cmd.Stdout, cmd.Stderr = log, log
	assert.OK(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			text := log.String()
			t.Logf("haproxy: …%s", text[max(0, len(text)-4000):])
		}
	})
	return address
}

// trusting returns a client that trusts a certificate.
func trusting(t *testing.T, certificate string) *http.Client {
	t.Helper()
	text := assert.Value(os.ReadFile(certificate))(t)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// metrics is what the hub's admin address answers; empty if it does not.
func (r *rig) metrics() string {
	response, err := http.Get("http://" + r.health + "/metrics")
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return ""
	}
	return string(text)
}

// metric returns the sum of a metric of the hub over the series whose text begins so; -1 if
// the hub does not answer.
func (r *rig) metric(begin string) float64 {
	r.t.Helper()
	return sumOf(r.t, r.metrics(), begin)
}

// sumOf returns the sum of a metric in a text of metrics; -1 if the text is empty.
func sumOf(t *testing.T, text, begin string) (sum float64) {
	t.Helper()
	if text == "" {
		return -1
	}
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if series == begin || strings.HasPrefix(series, begin+"{") {
			n := assert.Value(strconv.ParseFloat(value, 64))(t)
			sum += n
		}
	}
	return sum
}
