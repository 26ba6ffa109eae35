package deploy_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"
)

// soon is how long anything here may take on a busy computer. It only ends a test that
// hangs.
const soon = 3 * time.Minute

// authority is Let's Encrypt's test server, in this process.
type authority struct {
	directory string
	file      string         // the certificate of its own listener
	roots     *x509.CertPool // of the certificates that it issues
}

// newAuthority starts an ACME server that proves domains at a port of this computer. Its
// certificates end after 4 minutes, so that they are renewed whenever that is checked.
func newAuthority(t *testing.T, port int) *authority {
	t.Helper()
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	t.Setenv("PEBBLE_WFE_NONCEREJECT", "0")
	quiet, store := log.New(io.Discard, "", 0), db.NewMemoryStore()
	issuer := ca.New(quiet, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {Description: "short", ValidityPeriod: 240}})
	prover := va.New(quiet, 1, port, false, names(t), store)
	front := wfe.New(quiet, store, prover, issuer, []string{"ca.example.org"}, false, false, 1, 1)
	a := &authority{roots: x509.NewCertPool()}
	server := httptest.NewTLSServer(front.Handler())
	t.Cleanup(server.Close)
	a.directory = server.URL + wfe.DirectoryPath
	a.roots.AddCert(issuer.GetRootCert(0).Cert)
	a.file = filepath.Join(t.TempDir(), "authority.pem")
	if err := os.WriteFile(a.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

// names is a DNS server that knows every name as this computer's.
func names(t *testing.T) (address string) {
	t.Helper()
	listener := value(net.Listen("tcp", "127.0.0.1:0"))(t)
	server := &dns.Server{Listener: listener, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, asked *dns.Msg) {
		answer := new(dns.Msg).SetReply(asked)
		for _, q := range asked.Question {
			if q.Qtype == dns.TypeA {
				answer.Answer = append(answer.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: q.Qclass, Ttl: 1}, A: net.IPv4(127, 0, 0, 1)})
			}
		}
		_ = w.WriteMsg(answer)
	})}
	go server.ActivateAndServe()
	t.Cleanup(func() { _ = server.Shutdown() })
	return listener.Addr().String()
}

// TestACME: a hub gets a certificate from an ACME server, serves it, and renews it while
// requests come: none fails.
func TestACME(t *testing.T) {
	bin := os.Getenv("KITH_BIN")
	if bin == "" {
		t.Fatal("KITH_BIN is not set: `make build-slim`, then KITH_BIN=$PWD/bin/kith-slim")
	}
	port := freePort(t)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	authority := newAuthority(t, port)

	home, err := os.MkdirTemp("", "kith") // a socket's path has to be short
	ok(t, err)
	t.Cleanup(func() { os.RemoveAll(home) })
	config := fmt.Sprintf("[hub]\nlisten = %q\n[tls]\nacme = true\ndomains = [\"hub.example.org\"]\ndirectory = %q\n", address, authority.directory)
	ok(t, os.WriteFile(filepath.Join(home, "hub.toml"), []byte(config), 0o600))
	hub := exec.Command(bin, "hub", "--admin", "")
	hub.Env = append(os.Environ(), "KITH_HOME="+home, "SSL_CERT_FILE="+authority.file)
	said := new(bytes.Buffer)
	hub.Stderr = said
	ok(t, hub.Start())
	t.Cleanup(func() {
		_ = hub.Process.Kill()
		_ = hub.Wait()
		if t.Failed() {
			t.Logf("the hub said: %s", said)
		}
	})

	get := func() (serial string, err error) {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authority.roots, ServerName: "hub.example.org"}}
		defer transport.CloseIdleConnections()
		res, err := (&http.Client{Transport: transport, Timeout: soon}).Get("https://" + address + "/readyz")
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return "", errors.New(res.Status)
		}
		return res.TLS.PeerCertificates[0].SerialNumber.String(), nil
	}
	until := func(what string, try func() error) {
		t.Helper()
		var err error
		for late := time.Now().Add(soon); time.Now().Before(late); time.Sleep(100 * time.Millisecond) {
			if err = try(); err == nil {
				return
			}
		}
		t.Fatalf("%s: not within %s: %v", what, soon, err)
	}
	var first string
	until("a certificate is issued", func() (err error) { first, err = get(); return err })

	done := make(chan struct{})
	var load sync.WaitGroup
	for range 2 {
		load.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				case <-time.After(20 * time.Millisecond):
				}
				if _, err := get(); err != nil {
					t.Errorf("request %d: %v", n, err)
				}
			}
		})
	}
	ok(t, hub.Process.Signal(syscall.SIGHUP))
	until("the certificate is renewed", func() error {
		now, err := get()
		if err == nil && now == first {
			err = errors.New("the first one is served")
		}
		return err
	})
	close(done)
	load.Wait()
	ok(t, hub.Process.Signal(syscall.SIGTERM))
	if err := hub.Wait(); err != nil {
		t.Error(err)
	}
	if text := said.String(); strings.Count(text, "got a certificate") < 2 || !strings.Contains(text, "renewed=true") {
		t.Errorf("the hub does not log its certificates: %s", text)
	}
}
