package cli

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json/v2"
	"errors"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/enginetest"
)

// patient is a machine without failures, and the parts that a test breaks.
type patient struct {
	home   string
	hub    *httptest.Server
	answer http.HandlerFunc // the hub's
	status string           // the daemon's
	daemon *httptest.Server // on its socket
	doctor *doctor
	out    *bytes.Buffer
}

func newPatient(t *testing.T) *patient {
	t.Helper()
	p := &patient{home: shortDir(t), out: new(bytes.Buffer)}
	p.answer = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Correlation-ID", "req_1")
		if r.Header.Get("Authorization") != "Bearer kithm_x" {
			refuse(401, "invalid_api_key", "wrong")(w, "")
			return
		}
		io.WriteString(w, `{"object":"list","data":[]}`)
	}
	p.hub = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.answer(w, r) }))
	t.Cleanup(p.hub.Close)
	p.status = `{"version":"` + thisBuild().Version + `","local":"http://127.0.0.1:8701/v1","tunnel":{"signed_in":true,"state":"acked"},"sharing":{},"open":true,` +
		`"models":["tiny"],"engines":[{"place":"http://127.0.0.1:11434","kind":"ollama","name":"Ollama","models":1},{"place":"http://127.0.0.1:1234","why":"nobody listens there"}]}`
	listener, err := net.Listen("unix", filepath.Join(p.home, "daemon.sock"))
	assert.OK(t, err)
	p.daemon = &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, p.status)
	})}}
	p.daemon.Start()
	t.Cleanup(p.daemon.Close)
	p.write(t, "credential", `{"hub":"`+p.hub.URL+`","machine":"mch_1","member":"ann","region":"home","secret":"kithm_x"}`)
	p.write(t, "config.toml", "[discovery]\nenabled = false\n[daemon]\nlisten = \"127.0.0.1:0\"\n")
	for _, name := range []string{"KITH_HUB", "KITH_API_KEY"} {
		t.Setenv(name, "")
	}
	p.doctor = &doctor{
		app:    &app{out: screen{p.out}, err: screen{io.Discard}, home: p.home},
		away:   map[string]bool{},
		free:   func(string) (uint64, error) { return 1 << 40, nil },
		write:  tryWrite,
		lookup: func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil },
	}
	return p
}

// behindProxy makes the proxy the only way to the hub, whose name no name server knows.
func (p *patient) behindProxy(t *testing.T, proxy string) {
	t.Helper()
	for _, name := range []string{"https_proxy", "NO_PROXY", "no_proxy"} {
		t.Setenv(name, "")
	}
	t.Setenv("HTTPS_PROXY", proxy)
	p.write(t, "credential", `{"hub":"https://hub.test","machine":"mch_1","member":"ann","region":"home","secret":"kithm_x"}`)
	p.lost("lost")
	p.doctor.lookup = func(_ context.Context, host string) ([]string, error) {
		if host == "hub.test" {
			return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
		}
		return []string{host}, nil
	}
}

// wayOut starts a proxy that answers CONNECT requests with that status, and returns its
// address. It connects all hosts to the hub, over TLS.
func wayOut(t *testing.T, p *patient, status int) string {
	t.Helper()
	certificate := certificateUntil(t, time.Now().Add(365*24*time.Hour))
	hub := httptest.NewUnstartedServer(p.hub.Config.Handler)
	hub.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	hub.StartTLS()
	t.Cleanup(hub.Close)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		if status != http.StatusOK {
			return
		}
		out, err := net.Dial("tcp", hub.Listener.Addr().String())
		if err != nil {
			return
		}
		defer out.Close()
		_ = http.NewResponseController(w).Flush()
		c, in, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		go func() { _, _ = io.Copy(out, in); out.Close() }()
		_, _ = io.Copy(c, out)
	}))
	t.Cleanup(proxy.Close)
	return proxy.URL
}

// lost makes the daemon's status what it is while its hub cannot be reached, or refuses
// the machine.
func (p *patient) lost(state string) {
	p.status = strings.Replace(p.status, `"acked"`, `"`+state+`"`, 1)
}

// sealed makes that the part about sealed calls of the daemon's status.
func (p *patient) sealed(part string) {
	p.status = strings.Replace(p.status, `"sharing"`, `"sealed":`+part+`,"sharing"`, 1)
}

// overTLS puts the hub behind a certificate, and returns its credential for that address.
func (p *patient) overTLS(t *testing.T, certificate *tls.Certificate, host string) {
	t.Helper()
	server := httptest.NewUnstartedServer(p.hub.Config.Handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if certificate != nil {
		server.TLS = &tls.Config{Certificates: []tls.Certificate{*certificate}}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	address := strings.Replace(server.URL, "127.0.0.1", host, 1)
	p.write(t, "credential", `{"hub":"`+address+`","machine":"mch_1","member":"ann","region":"home","secret":"kithm_x"}`)
	p.lost("lost")
}

func (p *patient) write(t *testing.T, name, text string) {
	t.Helper()
	write(t, filepath.Join(p.home, name), text)
}

// TestDoctorNamesTheCause: each planted fault is named, alone, with what to do.
func TestDoctorNamesTheCause(t *testing.T) {
	troubles, planted := readTroubles(t), []string{}
	for _, test := range []struct {
		name  string
		plant func(*testing.T, *patient)
		check string // the one that fails; empty: none
		found string
		do    string
	}{
		{"in good health", func(*testing.T, *patient) {}, "", "", ""},
		{"hub of another kind", func(t *testing.T, p *patient) {
			p.answer = func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }
			p.lost("lost")
		},
			"hub", "is not a kith hub's (status 200)", "kith login --hub"},
		{"another kith hub, or a stale credential", func(t *testing.T, p *patient) {
			p.write(t, "credential", `{"hub":"`+p.hub.URL+`","machine":"mch_1","member":"ann","region":"home","secret":"kithm_old"}`)
			p.lost("refused")
		}, "hub", "does not know the secret", "sign in again: `kith login --hub"},
		{"hub away", func(t *testing.T, p *patient) {
			p.hub.Close()
			p.lost("lost")
			t.Setenv("KITH_HUB", p.hub.URL)
			t.Setenv("KITH_API_KEY", "kith_home_mine")
		}, "hub", "connection refused", "check the network"},
		{"hub moved", func(t *testing.T, p *patient) {
			p.answer = func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "http://localhost:1/", http.StatusFound)
			}
			p.lost("lost")
		}, "hub", "points to http://localhost:1, and a secret is sent only where", "hub's address"},
		{"hub in need", func(t *testing.T, p *patient) {
			p.answer = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-Correlation-ID", "req_1")
				refuse(503, "CASCADE_EXHAUSTED", "no database")(w, "")
			}
			p.lost("lost")
		}, "hub", "answers 503", "operator"},
		{"proxy without its hub", func(t *testing.T, p *patient) {
			p.answer = func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "<html>Bad Gateway", http.StatusBadGateway)
			}
			p.lost("lost")
		}, "hub", "it does not reach the hub behind it", "ask its operator to start it"},
		{"unknown authority", func(t *testing.T, p *patient) { p.overTLS(t, nil, "127.0.0.1") },
			"hub", "certificate signed by unknown authority", "have this machine trust that authority"},
		{"certificate that ends soon", func(t *testing.T, p *patient) {
			soon := certificateUntil(t, time.Now().Add(13*24*time.Hour+time.Hour))
			p.overTLS(t, &soon, "127.0.0.1")
			p.status = strings.Replace(p.status, `"lost"`, `"acked"`, 1)
		}, "certificate", "ends in 13 days", "ask the hub's operator to renew it"},
		{"graphics library without its driver", func(t *testing.T, p *patient) {
			p.status = strings.Replace(p.status, `"models":1}`, `"models":1,"graphics":{"unused":{"vulkan":"libvulkan.so.1 is missing","cuda":"it finds no graphics card"}}}`, 1)
		}, "graphics", "cuda is not used: it finds no graphics card; and vulkan is not used: libvulkan.so.1 is missing", "kith engine remove"},
		{"graphics library in use", func(t *testing.T, p *patient) {
			p.status = strings.Replace(p.status, `"models":1}`, `"models":1,"graphics":{"library":"cuda","cards":["A"],"unused":{"vulkan":"kith uses cuda"}}}`, 1)
		}, "", "", ""},
		{"certificate that ends late", func(t *testing.T, p *patient) {
			late := certificateUntil(t, time.Now().Add(15*24*time.Hour))
			p.overTLS(t, &late, "127.0.0.1")
			p.status = strings.Replace(p.status, `"lost"`, `"acked"`, 1)
		}, "", "", ""},
		{"DNS", func(t *testing.T, p *patient) {
			p.doctor.lookup = func(_ context.Context, host string) ([]string, error) {
				return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			}
			p.lost("lost")
		}, "hub", "the name 127.0.0.1 cannot be found", "name servers"},
		{"way out: no proxy there", func(t *testing.T, p *patient) { p.behindProxy(t, "http://127.0.0.1:1") },
			"hub", "proxyconnect tcp: dial tcp 127.0.0.1:1", "correct HTTPS_PROXY and NO_PROXY"},
		{"way out: proxy's name", func(t *testing.T, p *patient) {
			p.behindProxy(t, "http://proxy.test:3128")
			p.doctor.lookup = func(_ context.Context, host string) ([]string, error) {
				return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			}
		}, "hub", "the proxy's name proxy.test cannot be found", "correct HTTPS_PROXY"},
		{"way out: password", func(t *testing.T, p *patient) {
			p.behindProxy(t, wayOut(t, p, http.StatusProxyAuthRequired))
		}, "hub", "wants a user and a password (407); set HTTPS_PROXY=http://USER:PASSWORD@127.0.0.1", "correct HTTPS_PROXY and NO_PROXY"},
		{"way out: host refused", func(t *testing.T, p *patient) {
			p.behindProxy(t, wayOut(t, p, http.StatusForbidden))
		}, "hub", "does not connect to hub.test:443: it answered 403 Forbidden", "have its operator let this machine through"},
		{"way out: daemon without the proxy", func(t *testing.T, p *patient) {
			p.behindProxy(t, wayOut(t, p, http.StatusOK))
		}, "connection", "this command reached the hub through a proxy", "start the daemon with the same HTTPS_PROXY"},
		{"way out: all use the proxy", func(t *testing.T, p *patient) {
			p.behindProxy(t, wayOut(t, p, http.StatusOK))
			p.status = strings.Replace(p.status, `"lost"`, `"acked"`, 1)
		}, "", "", ""},
		{"clock behind", func(t *testing.T, p *patient) {
			good := p.answer
			p.answer = func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Date", time.Now().Add(2*time.Hour).UTC().Format(http.TimeFormat))
				good(w, r)
			}
		}, "clock", "this machine's clock is 2h0m0s behind the hub's", "timedatectl"},
		{"clock ahead", func(t *testing.T, p *patient) {
			good := p.answer
			p.answer = func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Date", time.Now().Add(-time.Minute).UTC().Format(http.TimeFormat))
				good(w, r)
			}
		}, "clock", "ahead of the hub's", "timedatectl"},
		{"daemon down", func(t *testing.T, p *patient) {
			p.daemon.Close()
			p.write(t, "tiny.gguf", "GGUF")
			p.write(t, "config.toml", "[discovery]\nenabled = false\nendpoints = [\""+engineThere(t)+"\"]\n[daemon]\nlisten = \"127.0.0.1:0\"\n")
		}, "daemon", "the daemon does not run", "kith service install"},
		{"port taken", func(t *testing.T, p *patient) {
			p.daemon.Close()
			other := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
			t.Cleanup(func() { other.Close() })
			p.write(t, "config.toml", "[discovery]\nenabled = false\nendpoints = [\""+engineThere(t)+"\"]\n[daemon]\nlisten = \""+other.Addr().String()+"\"\n")
		}, "port", "address already in use", "[daemon] listen"},
		{"dead engine", func(t *testing.T, p *patient) {
			p.status = strings.Replace(p.status, `{"place":"http://127.0.0.1:1234",`, `{"place":"http://127.0.0.1:1234","configured":true,`, 1)
		}, "engines", "no engine can be used at http://127.0.0.1:1234: nobody listens there", "start the engine there"},
		{"dead engine that had all models", func(t *testing.T, p *patient) {
			p.status = `{"version":"` + thisBuild().Version + `","local":"http://127.0.0.1:8701/v1","tunnel":{"signed_in":true,"state":"acked"},"sharing":{},"open":true,` +
				`"models":[],"engines":[{"place":"http://127.0.0.1:1234","configured":true,"why":"nobody listens there"}]}`
		}, "engines", "no engine can be used at http://127.0.0.1:1234", "start the engine there"},
		{"engine that ends at each start", func(t *testing.T, p *patient) {
			p.status = strings.Replace(p.status, `"models":["tiny"]`, `"models":[]`, 1)
			p.status = strings.Replace(p.status, `"engines":[`, `"engines":[{"place":"http://builtin","kind":"builtin","name":"kith","models":1,"why":"the built-in engine is starting again: it ended before it was ready"},`, 1)
		}, "engines", "is starting again: it ended before it was ready", "the daemon's log"},
		{"model file that ends too early", func(t *testing.T, p *patient) {
			p.status = strings.Replace(p.status, `"engines":[`, `"engines":[{"place":"http://kith","kind":"kith","name":"kith for broken","model":"broken","models":0,"why":"the file ends before its tensors"},`, 1)
		}, "models", "the model broken cannot be served: the file ends before its tensors", "kith models rm broken"},
		{"no model", func(t *testing.T, p *patient) {
			p.status = strings.Replace(p.status, `"models":["tiny"]`, `"models":[]`, 1)
		}, "models", "there is no model on this machine", "kith pull"},
		{"credential for all", func(t *testing.T, p *patient) { chmod(t, filepath.Join(p.home, "credential"), 0o644) },
			"credential", "its mode 0644 gives others access", "sign in again"},
		{"broken credential", func(t *testing.T, p *patient) { p.write(t, "credential", "{") }, "credential", "cannot read", "sign in again"},
		{"wrong configuration", func(t *testing.T, p *patient) { p.write(t, "config.toml", "[daemon]\nlisen = \"127.0.0.1:1\"\n") },
			"configuration", `config.toml:2:1: unknown key "daemon.lisen"; the nearest right key is "daemon.listen"`, "kith config check"},
		{"unreadable configuration", func(t *testing.T, p *patient) {
			file := filepath.Join(p.home, "config.toml")
			assert.OK(t, os.Remove(file))
			assert.OK(t, os.Mkdir(file, 0o700))
		}, "configuration", "cannot read the configuration: ", "kith config check"},
		{"wrong configuration, and so no daemon", func(t *testing.T, p *patient) {
			p.daemon.Close()
			p.write(t, "config.toml", "[daemon]\nlisten = 8701\n")
		}, "configuration", "config.toml:2:10: daemon.listen takes", "kith config check"},
		{"folder that cannot be written", func(t *testing.T, p *patient) {
			p.doctor.write = func(string) error { return os.ErrPermission }
		}, "folder", "nothing can be written in", "chown"},
		{"path too long", func(t *testing.T, p *patient) {
			long := filepath.Join(t.TempDir(), strings.Repeat("a", 100))
			assert.OK(t, os.Mkdir(long, 0o700))
			p.write(t, "config.toml", "[daemon]\nlisten = \"127.0.0.1:0\"\ndata = \""+long+"\"\n[discovery]\nenabled = false\nendpoints = [\""+engineThere(t)+"\"]\n")
		}, "folder", "systems take about 100", "shorter path"},
		{"folder for all", func(t *testing.T, p *patient) { chmod(t, p.home, 0o777) }, "folder", "other users can change", "chmod 700"},
		{"full disk", func(t *testing.T, p *patient) {
			p.doctor.free = func(string) (uint64, error) { return 1000, nil }
			p.doctor.write = func(string) error { return errors.New("no space left on device") }
			assert.OK(t, os.Mkdir(filepath.Join(p.home, "models"), 0o700))
		}, "disk", "is full: 1.0k bytes are free", "free some"},
		{"full models folder", func(t *testing.T, p *patient) {
			models := t.TempDir()
			p.write(t, "config.toml", "[engine]\nmodels = [\""+models+"\"]\n")
			p.doctor.free = func(folder string) (uint64, error) {
				if folder == models {
					return 0, nil
				}
				return 1 << 40, nil
			}
		}, "models folder", "is full: 0 bytes", "before you add a model"},
		{"no such models", func(t *testing.T, p *patient) { p.write(t, "config.toml", "[engine]\nmodels = [\"none.gguf\"]\n") },
			"models folder", "none.gguf: no such file", "correct [engine] models"},
		{"refused line", func(t *testing.T, p *patient) { p.status = strings.Replace(p.status, `"acked"`, `"refused"`, 1) },
			"connection", "the hub refused this machine", "kith login"},
		{"two daemons with one credential", func(t *testing.T, p *patient) { p.status = strings.Replace(p.status, `"acked"`, `"fenced"`, 1) },
			"connection", "another daemon uses this machine's credential", "kith login"},
		{"proxy that refuses tunnels", func(t *testing.T, p *patient) {
			p.status = strings.Replace(p.status, `"acked"`, `"lost","error":"the proxy cuts it"`, 1)
		}, "connection", "lost, the proxy cuts it", "between this machine and the hub"},
		{"no calls can be sealed", func(t *testing.T, p *patient) {
			p.sealed(`{"mode":"prefer","error":"seal.json is open to others"}`)
		}, "sealed calls", "no call can be sealed: seal.json is open to others", "correct that"},
		{"hub of no address", func(t *testing.T, p *patient) {
			t.Setenv("KITH_HUB", "ftp://x")
			t.Setenv("KITH_API_KEY", "kith_home_other")
		}, "API key", "cannot use \"ftp://x\" as a hub", "set KITH_HUB to the address"},
		{"key of another hub", func(t *testing.T, p *patient) { t.Setenv("KITH_API_KEY", "kith_home_other") },
			"API key", "does not know the secret", "set KITH_API_KEY"},
		{"paused", func(t *testing.T, p *patient) {
			p.status = strings.Replace(p.status, `"sharing":{}`, `"sharing":{"paused":true}`, 1)
		}, "", "", ""},
		{"engine that starts", func(t *testing.T, p *patient) {
			p.status = strings.Replace(p.status, `"models":["tiny"]`, `"models":[]`, 1)
			p.status = strings.Replace(p.status, `{"place":"http://127.0.0.1:11434","kind":"ollama","name":"Ollama","models":1}`,
				`{"place":"http://builtin","kind":"builtin","name":"kith","models":1,"why":"the built-in engine is starting"}`, 1)
		}, "", "", ""},
		{"not signed in", func(t *testing.T, p *patient) {
			assert.OK(t, os.Remove(filepath.Join(p.home, "credential")))
		}, "", "", ""},
	} {
		if test.check != "" {
			planted = append(planted, slug(test.name))
			if row := troubles[slug(test.name)]; !strings.Contains(row, "`"+test.check+"`") || !strings.Contains(row, test.do) && !strings.Contains(row, "`"+test.do+"`") {
				t.Errorf("docs/operate/troubleshooting.md has no row %s with the check `%s` and the remedy %q: %q", slug(test.name), test.check, test.do, row)
			}
		}
		t.Run(test.name, func(t *testing.T) {
			p := newPatient(t)
			test.plant(t, p)
			p.doctor.examine(t.Context())
			err := p.doctor.report()
			var failed []finding
			for _, f := range p.doctor.findings {
				if f.State == "fail" {
					failed = append(failed, f)
				}
			}
			if test.check == "" {
				assert.That(t, err == nil && failed == nil, err, failed)
				return
			}
			if len(failed) != 1 || failed[0].Check != test.check || !strings.Contains(failed[0].Found, test.found) || !strings.Contains(failed[0].Do, test.do) {
				t.Fatalf("failed: %+v\nwant %s: %s → %s", failed, test.check, test.found, test.do)
			}
			if err == nil || !strings.HasPrefix(err.Error(), "this machine has failures: "+test.check) {
				t.Errorf("the error is %v", err)
			}
			if got := p.out.String(); !strings.Contains(got, "FAIL  "+test.check) || !strings.Contains(got, "→ "+failed[0].Do) {
				t.Errorf("a person reads\n%s", got)
			}
		})
	}
	slices.Sort(planted)
	if rows := slices.Sorted(maps.Keys(troubles)); !slices.Equal(rows, planted) || len(planted) < 24 {
		t.Errorf("docs/operate/troubleshooting.md has the rows %v, planted are %v", rows, planted)
	}
}

// certificateUntil returns a certificate for 127.0.0.1, which this process trusts until the
// test ends.
func certificateUntil(t *testing.T, end time.Time) tls.Certificate {
	t.Helper()
	key := assert.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: end, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"hub.test"}, IsCA: true, BasicConstraintsValid: true,
	}
	der := assert.Value(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	leaf := assert.Value(x509.ParseCertificate(der))(t)
	trusting := http.DefaultTransport.(*http.Transport).Clone()
	trusting.TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool()}
	trusting.TLSClientConfig.RootCAs.AddCert(leaf)
	before := http.DefaultTransport
	http.DefaultTransport = trusting
	t.Cleanup(func() {
		http.DefaultTransport = before
		trusting.CloseIdleConnections()
	})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// slug is the id of a fault in docs/operate/troubleshooting.md.
func slug(name string) string {
	return strings.NewReplacer(" ", "-", ",", "", ":", "", "'", "").Replace(strings.ToLower(name))
}

// readTroubles returns the rows of docs/operate/troubleshooting.md by their ids.
func readTroubles(t *testing.T) map[string]string {
	t.Helper()
	text := assert.Value(os.ReadFile("../../docs/operate/troubleshooting.md"))(t)
	rows := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^\| <a id="([\w-]+)"></a>(.*)$`).FindAllStringSubmatch(string(text), -1) {
		rows[m[1]] = m[2]
	}
	return rows
}

// engineThere is the address of an engine with a model, which is late for the first
// request, as on a busy computer.
func engineThere(t *testing.T) string {
	t.Helper()
	var late sync.Once
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		late.Do(func() { time.Sleep(400 * time.Millisecond) })
		switch r.URL.Path {
		case "/api/version":
			io.WriteString(w, `{"version":"0.12.0"}`)
		case "/api/tags":
			io.WriteString(w, `{"models":[{"name":"tiny","model":"tiny"}]}`)
		case "/api/show":
			io.WriteString(w, `{"capabilities":["completion"],"model_info":{}}`)
		case "/v1/models":
			io.WriteString(w, `{"object":"list","data":[{"id":"tiny","object":"model","owned_by":"library"}]}`)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	assert.OK(t, os.Chmod(path, mode))
}

// With --json there is one document on standard output and the error beside it.
func TestDoctorJSON(t *testing.T) {
	p := newPatient(t)
	p.hub.Close()
	t.Setenv("KITH_HOME", p.home)
	got := kith(t, "", "doctor", "--json")
	var report struct {
		OK     bool      `json:"ok"`
		Checks []finding `json:"checks"`
	}
	if err := json.Unmarshal([]byte(got.out), &report); err != nil || report.OK || len(report.Checks) < 5 {
		t.Errorf("%v %+v", err, got)
	}
	check(t, said{got.status, "", got.err}, said{1, "", "this machine has failures: hub"})
}

// A real disk is asked, and a real folder written.
func TestDisk(t *testing.T) {
	dir := t.TempDir()
	free, err := freeSpace(dir)
	assert.That(t, err == nil && free != 0, free, "free", err)
	if _, err := freeSpace(filepath.Join(dir, "none")); err == nil {
		t.Error("a folder that is not there has room")
	}
	if err := tryWrite(filepath.Join(dir, "none")); err == nil {
		t.Error("a folder that is not there was written")
	}
	if left, err := os.ReadDir(dir); tryWrite(dir) != nil || err != nil || len(left) != 0 {
		t.Errorf("left %v %v", left, err)
	}
}

// Doctor and status say how calls to others are sealed, and what the owner can do.
func TestSealedCallsAreShown(t *testing.T) {
	const last = `"last_clear":{"started":"2026-11-21T08:00:00Z","model":"llama3","sealed":"no; reason=no_key"}`
	for _, c := range []struct{ part, status, doctor string }{
		{`{"mode":"prefer","approved":true}`, "prefer: no call to other machines yet\n",
			"ok    sealed calls   prefer: no call to other machines yet; 0 keys of others, 0 of them compared"},
		{`{"mode":"require","approved":true,"keys":2,"confirmed":1,"sealed":3,"clear":0}`, "require: 3 calls sealed\n",
			"ok    sealed calls   require: 3 calls sealed; 2 keys of others, 1 of them compared"},
		{`{"mode":"off","keys":0}`, "off: the hub can read calls to other machines", "note  sealed calls   off: the hub can read"},
		{`{"mode":"prefer","approved":true,"sealed":1,"clear":2,` + last + `}`, "prefer: 1 call sealed, 2 sent in clear, the last at ",
			"for llama3: no machine that it could run on has a key\n      " + strings.Repeat(" ", 13) + "  → `kith trust`"},
		{`{"mode":"prefer"}`, "prefer: ", "note  sealed calls   this machine has an account key of its own"},
	} {
		p := newPatient(t)
		p.sealed(c.part)
		p.answer = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Correlation-ID", "req_1")
			io.WriteString(w, `{"object":"list","data":[{"id":"mch_1"},{"id":"mch_2"}]}`)
		}
		p.doctor.examine(t.Context())
		assert.OK(t, p.doctor.report(), c.part)
		assert.Contains(t, p.out.String(), c.doctor, c.part)
		assert.That(t, strings.Contains(p.out.String(), "of its own") == (c.part == `{"mode":"prefer"}`), c.part)
		t.Setenv("KITH_HOME", p.home)
		assert.Contains(t, kith(t, "", "status").out, "sealed    "+c.status, c.part)
	}
}

// An id that is the path of its file is seen by everyone who may use the model: doctor and
// status say so, with the flag that changes it, and of no other id.
// TestDoctorWaitsForSlowEngines: an engine that does not answer at three pages keeps the
// second look for 6 s, and is found.
func TestDoctorWaitsForSlowEngines(t *testing.T) {
	t.Parallel()
	kobold := enginetest.New(enginetest.KoboldCpp, enginetest.Options{Models: []enginetest.Model{{ID: "m"}}})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/readyz", "/api/v0/models", "/engines/status":
			<-r.Context().Done()
		default:
			kobold.ServeHTTP(w, r)
		}
	}))
	defer server.Close()
	config, err := configured(t, "[engine]\nbuiltin = false\n[discovery]\nenabled = false\nendpoints = [\""+server.URL+"\"]\n", 0o600)
	assert.OK(t, err)
	d := &doctor{app: &app{}}
	d.engines(t.Context(), config, daemon.Status{}, false)
	assert.Same(t, d.findings[:1], []finding{{"engines", "ok", "KoboldCpp at " + server.URL + ": 1 model", ""}})
}

func TestPathsAsIDsAreNamed(t *testing.T) {
	const path = "/home/ann/models/tiny.gguf"
	p := newPatient(t)
	p.status = strings.Replace(p.status, `["tiny"]`, `["tiny","`+path+`"]`, 1)
	p.doctor.examine(t.Context())
	if err := p.doctor.report(); err != nil {
		t.Errorf("it is no failure: %v", err)
	}
	t.Setenv("KITH_HOME", p.home)
	for what, out := range map[string]string{"doctor": p.out.String(), "status": kith(t, "", "status").out} {
		if strings.Count(out, "is a path on this computer") != 1 || !strings.Contains(out, "the id "+path+" is") || !strings.Contains(out, "--alias NAME") {
			t.Errorf("%s says %s", what, out)
		}
	}
}
