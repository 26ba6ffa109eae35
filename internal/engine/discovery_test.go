package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
)

var quiet = slog.New(slog.DiscardHandler)

// recording serves a txtar of recorded answers: each file is called "METHOD
// PATH STATUS [HEADER:VALUE | BODY ASKED]", and everything else is 404.
func recording(a *txtar.Archive) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked, _ := io.ReadAll(r.Body)
		for _, f := range a.Files {
			name := strings.SplitN(f.Name, " ", 4)
			if len(name) < 3 || name[0] != r.Method || name[1] != r.URL.Path {
				continue
			}
			if len(name) == 4 {
				if strings.HasPrefix(name[3], "{") && name[3] != string(asked) {
					continue
				}
				if header, value, ok := strings.Cut(name[3], ":"); ok && !strings.HasPrefix(name[3], "{") {
					w.Header().Set(header, value)
				}
			}
			status, _ := strconv.Atoi(name[2])
			w.WriteHeader(status)
			w.Write(f.Data)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, `{"detail":"Not Found"}`)
	})
}

// probed returns a Finder that has probed once.
func probed(t *testing.T, c Config) *Finder {
	t.Helper()
	c.Log = quiet
	f := assert.Value(NewFinder(c))(t)
	f.Probe(t.Context())
	return f
}

// finder returns a Finder that has probed until nothing was late, as it is on a busy
// computer, but five times at most.
func finder(t *testing.T, c Config) *Finder {
	t.Helper()
	f := probed(t, c)
	late := func(a *address) bool { return a.missed }
	for range 4 {
		if slices.ContainsFunc(f.addresses, late) {
			f.ProbeAgain(t.Context())
		}
	}
	return f
}

// describe formats a finding and its engine as the recordings' "want" does.
func describe(f *Finder) string {
	found := f.Report()[0]
	if found.Kind == "" {
		found.Kind = "none"
	}
	out := strings.TrimSpace(found.Kind+" "+found.Version) + "\n"
	if found.Why != "" {
		return out + found.Why + "\n"
	}
	for _, m := range f.Engines()[0].Models() {
		var families []string
		for _, family := range m.Families {
			families = append(families, family.String())
		}
		out += fmt.Sprintf("%s %s ctx=%d slots=%d %v", m.ID, strings.Join(families, ","), m.ContextLength, m.Slots, m.Capabilities)
		if m.ModelFacts != (fleet.ModelFacts{}) {
			out += fmt.Sprintf(" arch=%s params=%d quant=%s size=%d", m.Architecture, m.Parameters, m.Quantization, m.Size)
		}
		out += "\n"
	}
	return out
}

// The owner's number of slots counts for engines that report none, and for no other.
func TestSlotsOfTheOwner(t *testing.T) {
	for kind, want := range map[enginetest.Kind]int{enginetest.Ollama: 7, enginetest.VLLM: 7, enginetest.Plain: 7, enginetest.LlamaCpp: 3} {
		double := enginetest.New(kind, enginetest.Options{Slots: 3})
		f := finder(t, Config{Endpoints: []string{"http://127.0.0.1:1"}, Transport: double.Transport(), Slots: 7})
		if m := f.Engines()[0].Models()[0]; m.Slots != want {
			t.Errorf("%s: %d slots, want %d", kind, m.Slots, want)
		}
		assert.OK(t, f.Reconfigure(Config{Endpoints: []string{"http://127.0.0.1:1"}, Slots: 9}))
		f.Probe(t.Context())
		if m := f.Engines()[0].Models()[0]; want == 7 && m.Slots != 9 {
			t.Errorf("%s after a change: %d slots", kind, m.Slots)
		}
	}
}

func TestRecordedEngines(t *testing.T) {
	files, err := filepath.Glob("testdata/find/*.txtar")
	assert.Require(t, err == nil && len(files) != 0, "no recordings", err)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			a := assert.Value(txtar.ParseFile(file))(t)
			server := httptest.NewServer(recording(a))
			defer server.Close()
			f := finder(t, Config{Endpoints: []string{server.URL + "/v1/"}})
			assert.Same(t, describe(f), string(a.Files[0].Data), "-want +got")
		})
	}
}

// atPorts reaches doubles as if they listened on these ports.
type atPorts map[string]http.RoundTripper

func (p atPorts) RoundTrip(r *http.Request) (*http.Response, error) {
	if rt, ok := p[r.URL.Host]; ok {
		return rt.RoundTrip(r)
	}
	return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
}

// tripper is a function as a RoundTripper.
type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func kindsOf(f *Finder) []string {
	var out []string
	for _, e := range f.Engines() {
		out = append(out, e.Base()+" "+e.Kind())
	}
	return out
}

// An engine is recognized by its answers, not by its port.
func TestPortsAreHints(t *testing.T) {
	double := func(k enginetest.Kind) http.RoundTripper { return enginetest.New(k, enginetest.Options{}).Transport() }
	synctest.Test(t, func(t *testing.T) {
		f := finder(t, Config{Usual: true, Transport: atPorts{
			"127.0.0.1:8080":  double(enginetest.VLLM),
			"127.0.0.1:11434": double(enginetest.LMStudio),
			"127.0.0.1:1234":  double(enginetest.LlamaCpp),
			"127.0.0.1:8000":  double(enginetest.Ollama),
		}})
		want := []string{"http://127.0.0.1:8080 vllm", "http://127.0.0.1:11434 lmstudio", "http://127.0.0.1:1234 llama.cpp", "http://127.0.0.1:8000 ollama"}
		assert.Same(t, kindsOf(f), want)
	})
}

// A server of an unknown kind counts only at a configured address.
func TestPlainOnlyWhereConfigured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := atPorts{"127.0.0.1:8080": enginetest.New(enginetest.Plain, enginetest.Options{}).Transport()}
		if f := finder(t, Config{Usual: true, Transport: at}); len(f.Engines()) != 0 || !strings.Contains(f.Report()[0].Why, "add its address to endpoints") {
			t.Errorf("usual port: %v %+v", kindsOf(f), f.Report()[0])
		}
		f := finder(t, Config{Usual: true, Endpoints: []string{"http://localhost:8080/v1"}, Transport: at})
		if got := kindsOf(f); !slices.Equal(got, []string{"http://127.0.0.1:8080 openai"}) {
			t.Errorf("configured: %v", got)
		}
	})
}

// The name localhost is 127.0.0.1, but not where it is only the beginning of another
// name, nor over TLS, where the certificate is for the name.
func TestLocalhost(t *testing.T) {
	for address, want := range map[string]string{
		"http://localhost:8080":         "http://127.0.0.1:8080",
		"http://localhost":              "http://127.0.0.1",
		"https://localhost:8443":        "https://localhost:8443",
		"https://localhost.example.com": "https://localhost.example.com",
	} {
		f, err := NewFinder(Config{Endpoints: []string{address}})
		assert.That(t, err == nil && f.addresses[0].base == want, "endpoint", address, f.addresses[0], err)
		a, err := NewAudio(AudioConfig{Engine: address, MaxUpload: minUpload})
		assert.That(t, err == nil && a.Finding().Place == want, "audio engine", address, a, err)
		u, err := NewUpstream(UpstreamConfig{URL: address + "/v1", Dialect: "chat"})
		assert.That(t, err == nil && u.Finding().Place == want+"/v1", "upstream", address, u, err)
	}
}

// All addresses are probed at once, each for at most 300 ms, and longer in the background
// if it was late.
func TestSlowPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := func(d time.Duration, then http.RoundTripper) http.RoundTripper {
			return tripper(func(r *http.Request) (*http.Response, error) {
				select {
				case <-time.After(d):
					return then.RoundTrip(r)
				case <-r.Context().Done():
					return nil, r.Context().Err()
				}
			})
		}
		llama := enginetest.New(enginetest.LlamaCpp, enginetest.Options{}).Transport()
		begun := time.Now()
		f := probed(t, Config{Usual: true, Transport: atPorts{
			"127.0.0.1:8080":  waits(301*time.Millisecond, llama),
			"127.0.0.1:11434": waits(time.Hour, llama),
			"127.0.0.1:1234":  waits(time.Hour, llama),
			"127.0.0.1:8000":  waits(60*time.Millisecond, llama),
		}})
		if took := time.Since(begun); took > 400*time.Millisecond {
			t.Errorf("the look took %v", took)
		}
		if got := kindsOf(f); !slices.Equal(got, []string{"http://127.0.0.1:8000 llama.cpp"}) {
			t.Errorf("found %v", got)
		}
		assert.Equal(t, f.Report()[0].Why, "it did not answer within 300ms", "why")
		assert.That(t, f.Late(), "three engines may be late, and it does not say so")
		// The next probe in the background gives them longer, but only once sooner.
		f.ProbeAgain(t.Context())
		if got := kindsOf(f); !slices.Equal(got, []string{"http://127.0.0.1:8080 llama.cpp", "http://127.0.0.1:8000 llama.cpp"}) || f.Late() {
			t.Errorf("then found %v, late %v", got, f.Late())
		}
	})
}

// An engine that takes 0.8 s for each page is not taken for another kind: the second probe
// has time for all pages. Neither is one that was known before it became slow.
func TestAllPagesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ollama := enginetest.New(enginetest.Ollama, enginetest.Options{Models: []enginetest.Model{{ID: "m"}}}).Transport()
		fast := "2"
		f := probed(t, Config{Endpoints: []string{"http://127.0.0.1:1", "http://127.0.0.1:2"}, Transport: tripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Port() == fast {
				return ollama.RoundTrip(r)
			}
			select {
			case <-time.After(800 * time.Millisecond):
				return ollama.RoundTrip(r)
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		})})
		assert.Same(t, kindsOf(f), []string{"http://127.0.0.1:2 ollama"})
		fast = ""
		for range 3 {
			f.ProbeAgain(t.Context())
			assert.Same(t, kindsOf(f), []string{"http://127.0.0.1:1 ollama", "http://127.0.0.1:2 ollama"})
		}
	})
}

// An engine on a busy machine, whose own page is late once, is not taken for
// another kind. A server that never answers at such a page is taken for what its
// other pages show.
func TestLatePagesDecideNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kobold := enginetest.New(enginetest.KoboldCpp, enginetest.Options{Models: []enginetest.Model{{ID: "m"}}}).Transport()
		looks := 0
		f := probed(t, Config{Endpoints: []string{"http://127.0.0.1:1", "http://127.0.0.1:2"}, Transport: tripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path != "/v1/models" && (looks == 0 || r.URL.Port() == "2") {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			return kobold.RoundTrip(r)
		})})
		if got := kindsOf(f); len(got) != 0 || f.Report()[0].Why != "it did not answer within 300ms" {
			t.Errorf("at first: found %v: %+v", got, f.Report()[0])
		}
		looks++
		f.Probe(t.Context())
		assert.Same(t, kindsOf(f), []string{"http://127.0.0.1:1 koboldcpp", "http://127.0.0.1:2 openai"})
	})
}

// Models whose details are late once do not change: they would lose their slots and
// tools. If the details never come, the models are offered without them.
func TestLateDetails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		llama := enginetest.New(enginetest.LlamaCpp, enginetest.Options{Slots: 4}).Transport()
		late := true
		f := probed(t, Config{Endpoints: []string{"http://127.0.0.1:1"}, Transport: tripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path == "/props" && late {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			return llama.RoundTrip(r)
		})})
		slots := func(when string, want int) {
			t.Helper()
			got := 0
			for _, e := range f.Engines() {
				got = e.Models()[0].Slots
			}
			assert.Equal(t, got, want, when)
		}
		slots("late at first", 0)
		assert.That(t, f.Late(), "the first look does not report that it is to be repeated soon")
		late = false
		f.ProbeAgain(t.Context())
		slots("then in time", 4)
		late = true
		f.ProbeAgain(t.Context())
		slots("late once", 4)
		f.ProbeAgain(t.Context())
		slots("late again", 1)
	})
}

// The calls of other programs still count when the engine's report of them is late once.
func TestLateLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		double := enginetest.New(enginetest.VLLM, enginetest.Options{Behaviour: enginetest.Behaviour{Fault: enginetest.Hang}})
		vllm, wait := double.Transport(), time.Duration(0)
		f := probed(t, Config{Endpoints: []string{"http://127.0.0.1:1"}, Transport: tripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path == "/metrics" {
				select {
				case <-time.After(wait):
				case <-r.Context().Done():
					return nil, r.Context().Err()
				}
			}
			return vllm.RoundTrip(r)
		})})
		theirs, cancel := context.WithCancel(t.Context())
		go func() {
			req, _ := http.NewRequestWithContext(theirs, http.MethodPost, "http://127.0.0.1:1/v1/chat/completions", strings.NewReader(`{"model":"test-model","messages":[{"role":"user","content":"hi"}]}`))
			if resp, err := vllm.RoundTrip(req); err == nil {
				resp.Body.Close()
			}
		}()
		defer synctest.Wait()
		defer cancel()
		assert.OK(t, double.Wait(t.Context(), func(c enginetest.Counts) bool { return c.Running == 1 }))
		for _, look := range []struct {
			when string
			wait time.Duration
			want int
		}{{"in time", 0, 1}, {"late once", time.Hour, 1}, {"slow, but looked at for longer", nearWait + 1, 1}, {"late once more", time.Hour, 1}, {"late again", time.Hour, 0}} {
			wait = look.wait
			f.ProbeAgain(t.Context())
			if got := f.Engines()[0].OtherCalls(); got != look.want || f.Report()[0].Others != look.want {
				t.Errorf("%s: %d calls of others, want %d", look.when, got, look.want)
			}
		}
	})
}

// An engine appears, stays, changes, misses one probe, and disappears.
func TestAppearAndDisappear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var there atomic.Pointer[http.RoundTripper]
		at := tripper(func(r *http.Request) (*http.Response, error) {
			if rt := there.Load(); rt != nil && r.URL.Host == "127.0.0.1:11434" {
				return (*rt).RoundTrip(r)
			}
			return atPorts{}.RoundTrip(r)
		})
		put := func(rt http.RoundTripper) { there.Store(&rt) }
		f := assert.Value(NewFinder(Config{Usual: true, Log: quiet, Transport: at}))(t)
		changes := func(want bool) {
			t.Helper()
			changed := f.Changed()
			f.ProbeAgain(t.Context())
			select {
			case <-changed:
				assert.That(t, want, "a change was told where nothing changed")
			default:
				if want {
					t.Error("the change was not told")
				}
			}
		}
		changes(false)
		put(enginetest.New(enginetest.Ollama, enginetest.Options{}).Transport())
		changes(true)
		same := f.Engines()[0]
		changes(false)
		assert.Equal(t, f.Engines()[0], same, "an engine that stayed the same is another now")
		put(enginetest.New(enginetest.Ollama, enginetest.Options{Models: []enginetest.Model{{ID: "other"}}}).Transport())
		changes(true)
		assert.Equal(t, f.Engines()[0].Models()[0].ID, "other", "model")
		put(tripper(func(r *http.Request) (*http.Response, error) { return nil, context.DeadlineExceeded }))
		changes(false) // busy, perhaps
		changes(true)  // gone
		assert.Equal(t, len(f.Engines()), 0, "it is still there")
	})
}

// Real sockets: each double at a configured address, a closed port, an endless
// answer.
func TestRealPlaces(t *testing.T) {
	var endpoints, want []string
	for _, k := range append(slices.Clone(enginetest.Kinds), enginetest.Plain) {
		e := enginetest.New(k, enginetest.Options{Slots: 3, Models: []enginetest.Model{{ID: "m", Tools: true}}})
		assert.OK(t, e.Start())
		defer e.Close()
		endpoints = append(endpoints, e.URL())
		base := e.URL()
		if k == enginetest.Docker {
			base += "/engines"
		}
		want = append(want, base+" "+string(k))
	}
	huge := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := []byte(strings.Repeat(" ", 64<<10))
		for r.Context().Err() == nil {
			if _, err := w.Write(page); err != nil {
				return
			}
		}
	}))
	defer huge.Close()
	f := finder(t, Config{Endpoints: append(endpoints, "http://"+enginetest.FreeAddress(), huge.URL)})
	// On a busy computer not every page comes in time: look again.
	for range 100 {
		if slices.Equal(kindsOf(f), want) {
			break
		}
		f.Probe(t.Context())
	}
	assert.Same(t, kindsOf(f), want)
	report := f.Report()
	assert.Equal(t, report[len(report)-2].Why, "nothing listens there", "dead port")
	// How much of it arrives in time depends on this computer.
	if why := report[len(report)-1].Why; !strings.Contains(why, "larger than") && !strings.Contains(why, "did not answer") {
		t.Errorf("huge answer: %q", why)
	}
}

func TestOddEndpointsAreRefused(t *testing.T) {
	for _, place := range []string{"", "127.0.0.1:8080", "ftp://127.0.0.1", "http://", "http://u:p@127.0.0.1", "http://127.0.0.1/?a=b", "http://[::1"} {
		if _, err := NewFinder(Config{Endpoints: []string{place}}); err == nil {
			t.Errorf("%q was spooled", place)
		}
	}
}

func TestOddModelIDsAreLeftOut(t *testing.T) {
	models := []enginetest.Model{{ID: "good/one:8b"}, {ID: " space"}, {ID: "line\nbreak"}, {ID: "good/one:8b"}, {ID: strings.Repeat("x", 257)}, {ID: ""}}
	synctest.Test(t, func(t *testing.T) {
		at := atPorts{"127.0.0.1:8000": enginetest.New(enginetest.VLLM, enginetest.Options{Models: models}).Transport()}
		f := finder(t, Config{Usual: true, Transport: at})
		if got := f.Engines()[0].Models(); len(got) != 1 || got[0].ID != "good/one:8b" {
			t.Errorf("offered: %v", got)
		}
	})
	for _, id := range []string{" m", "m ", "\u00a0m"} { // never offered as "m"
		synctest.Test(t, func(t *testing.T) {
			double := enginetest.New(enginetest.VLLM, enginetest.Options{Models: []enginetest.Model{{ID: id}}})
			f := finder(t, Config{Endpoints: []string{"http://127.0.0.1:1"}, Transport: double.Transport()})
			if text := describe(f); len(f.Engines()) != 0 || !strings.Contains(text, "without a space at either end") {
				t.Errorf("%q: %s", id, text)
			}
		})
	}
}

func TestOllamaHost(t *testing.T) {
	for value, want := range map[string]string{
		"": "", "127.0.0.1": "http://127.0.0.1:11434", "127.0.0.1:8000": "http://127.0.0.1:8000", ":9000": "http://127.0.0.1:9000", "0.0.0.0": "http://127.0.0.1:11434",
		"0.0.0.0:1234": "http://127.0.0.1:1234", "http://localhost:5000/": "http://127.0.0.1:5000", "[::1]:7": "http://[::1]:7", "::1": "http://[::1]:11434", "[::]": "http://127.0.0.1:11434",
		" '127.0.0.1:8000' ": "http://127.0.0.1:8000", "10.0.0.7": "", "https://ollama.example.com": "", "https://127.0.0.1:4": "https://127.0.0.1:4",
	} {
		assert.Equal(t, ollamaHost(value), want, value)
	}
	t.Setenv("OLLAMA_HOST", "127.0.0.1:18765")
	f := assert.Value(NewFinder(Config{Usual: true, Log: quiet}))(t)
	if !slices.ContainsFunc(f.addresses, func(a *address) bool { return a.base == "http://127.0.0.1:18765" && !a.configured }) {
		t.Error("the finder does not look there")
	}
}
