package cli

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
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
	p.status = `{"version":"v1","local":"http://127.0.0.1:8701/v1","line":{"signed_in":true,"state":"acked"},"sharing":{},"open":true,` +
		`"models":["tiny"],"engines":[{"place":"http://127.0.0.1:11434","kind":"ollama","name":"Ollama","models":1},{"place":"http://127.0.0.1:1234","why":"nobody listens there"}]}`
	listener, err := net.Listen("unix", filepath.Join(p.home, "daemon.sock"))
	if err != nil {
		t.Fatal(err)
	}
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
		app:    &app{out: p.out, err: io.Discard, home: p.home},
		free:   func(string) (uint64, error) { return 1 << 40, nil },
		lookup: func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil },
	}
	return p
}

func (p *patient) write(t *testing.T, name, text string) {
	t.Helper()
	write(t, filepath.Join(p.home, name), text)
}

// TestDoctorNamesTheCause: each planted fault is named, alone, with what to do.
func TestDoctorNamesTheCause(t *testing.T) {
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
		},
			"hub", "is not a kith hub's (status 200)", "kith login --hub"},
		{"another kith hub, or a stale credential", func(t *testing.T, p *patient) {
			p.write(t, "credential", `{"hub":"`+p.hub.URL+`","machine":"mch_1","member":"ann","region":"home","secret":"kithm_old"}`)
		}, "hub", "does not know the secret", "sign in again: `kith login --hub"},
		{"hub away", func(t *testing.T, p *patient) { p.hub.Close() }, "hub", "connection refused", "check the network"},
		{"hub moved", func(t *testing.T, p *patient) {
			p.answer = func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "http://localhost:1/", http.StatusFound)
			}
		}, "hub", "points to http://localhost:1, and a secret is sent only where", "hub's address"},
		{"hub in need", func(t *testing.T, p *patient) {
			p.answer = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-Correlation-ID", "req_1")
				refuse(503, "CASCADE_EXHAUSTED", "no database")(w, "")
			}
		}, "hub", "answers 503", "operator"},
		{"DNS", func(t *testing.T, p *patient) {
			p.doctor.lookup = func(_ context.Context, host string) ([]string, error) {
				return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			}
		}, "hub", "the name 127.0.0.1 cannot be found", "name servers"},
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
			other, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { other.Close() })
			p.write(t, "config.toml", "[discovery]\nenabled = false\nendpoints = [\""+engineThere(t)+"\"]\n[daemon]\nlisten = \""+other.Addr().String()+"\"\n")
		}, "port", "address already in use", "[daemon] listen"},
		{"dead engine", func(t *testing.T, p *patient) {
			p.status = strings.Replace(p.status, `{"place":"http://127.0.0.1:1234",`, `{"place":"http://127.0.0.1:1234","configured":true,`, 1)
		}, "engines", "no engine can be used at http://127.0.0.1:1234: nobody listens there", "start the engine there"},
		{"no model", func(t *testing.T, p *patient) {
			p.status = strings.Replace(p.status, `"models":["tiny"]`, `"models":[]`, 1)
		}, "models", "there is no model on this machine", "put a GGUF file into"},
		{"credential for all", func(t *testing.T, p *patient) { chmod(t, filepath.Join(p.home, "credential"), 0o644) },
			"credential", "its mode 0644 gives others access", "sign in again"},
		{"broken credential", func(t *testing.T, p *patient) { p.write(t, "credential", "{") }, "credential", "cannot read", "sign in again"},
		{"wrong configuration", func(t *testing.T, p *patient) { p.write(t, "config.toml", "[daemon]\nlisen = \"127.0.0.1:1\"\n") },
			"configuration", `config.toml:2:1: unknown key "daemon.lisen"; the nearest right key is "daemon.listen"`, "kith config check"},
		{"unreadable configuration", func(t *testing.T, p *patient) {
			file := filepath.Join(p.home, "config.toml")
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(file, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "configuration", "cannot read the configuration: ", "kith config check"},
		{"folder for all", func(t *testing.T, p *patient) { chmod(t, p.home, 0o777) }, "folder", "other users can change", "chmod 700"},
		{"full disk", func(t *testing.T, p *patient) {
			p.doctor.free = func(string) (uint64, error) { return 1000, nil }
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
			"line", "the hub refused this machine", "kith login"},
		{"two daemons with one credential", func(t *testing.T, p *patient) { p.status = strings.Replace(p.status, `"acked"`, `"fenced"`, 1) },
			"line", "another daemon uses this machine's credential", "kith login"},
		{"no line", func(t *testing.T, p *patient) {
			p.status = strings.Replace(p.status, `"acked"`, `"lost","trouble":"the proxy cuts it"`, 1)
		}, "line", "lost, the proxy cuts it", "between this machine and the hub"},
		{"key of another hub", func(t *testing.T, p *patient) { t.Setenv("KITH_API_KEY", "kith_home_other") },
			"API key", "does not know the secret", "set KITH_API_KEY"},
		{"paused", func(t *testing.T, p *patient) {
			p.status = strings.Replace(p.status, `"sharing":{}`, `"sharing":{"paused":true}`, 1)
		}, "", "", ""},
		{"not signed in", func(t *testing.T, p *patient) {
			if err := os.Remove(filepath.Join(p.home, "credential")); err != nil {
				t.Fatal(err)
			}
		}, "", "", ""},
	} {
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
				if err != nil || failed != nil {
					t.Errorf("%v: %+v", err, failed)
				}
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
}

// engineThere is the address of an engine with a model.
func engineThere(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
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
	if err != nil || free == 0 {
		t.Errorf("%d free: %v", free, err)
	}
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
