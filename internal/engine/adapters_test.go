package engine

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
)

// oneOfEach returns a double of each kind with one model named after the kind.
func oneOfEach() map[enginetest.Kind]*enginetest.Engine {
	doubles := map[enginetest.Kind]*enginetest.Engine{}
	for _, k := range enginetest.Kinds {
		doubles[k] = enginetest.New(k, enginetest.Options{Models: []enginetest.Model{{ID: "model-of-" + string(k)}}})
	}
	return doubles
}

// A kind is recognized by its answers on each other kind's port.
func TestNoKindIsTakenForAnother(t *testing.T) {
	ports := []int{8080, 11434, 1234, 8000, 30000, 12434, 5001, 5000, 1337}
	for _, k := range enginetest.Kinds {
		synctest.Test(t, func(t *testing.T) {
			double := oneOfEach()[k].Transport()
			at := atPorts{}
			for _, port := range ports {
				at[fmt.Sprintf("127.0.0.1:%d", port)] = double
			}
			f := finder(t, Config{Usual: true, Transport: at})
			assert.Equal(t, len(f.Engines()), len(ports), k, "engines at")
			for _, e := range f.Engines() {
				if e.Kind() != string(k) || e.Models()[0].ID != fleet.ModelID("model-of-"+string(k)) {
					t.Errorf("%s is spooled for %s with %v", k, e.Kind(), e.Models())
				}
			}
		})
	}
}

// Two engines on the same port, one on each loopback address, are both found. One
// engine that listens on both counts once.
func TestOnePortTwoAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		same := enginetest.Options{Models: []enginetest.Model{{ID: "m"}}}
		ollama := enginetest.New(enginetest.Ollama, same).Transport()
		f := finder(t, Config{Usual: true, Transport: atPorts{
			"127.0.0.1:8080":  enginetest.New(enginetest.LlamaCpp, same).Transport(),
			"[::1]:8080":      enginetest.New(enginetest.MLX, same).Transport(),
			"127.0.0.1:11434": ollama,
			"[::1]:11434":     ollama,
		}})
		want := []string{"http://127.0.0.1:8080 llama.cpp", "http://127.0.0.1:11434 ollama", "http://[::1]:8080 mlx"}
		assert.Same(t, kindsOf(f), want)
		for _, finding := range f.Report() {
			if strings.Contains(finding.Place, "[::1]") && finding.Place != "http://[::1]:8080" {
				t.Errorf("a place with nothing to say is reported: %+v", finding)
			}
		}
	})
}

// A server that is no engine is not probed completely each time.
func TestStrangersAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, says := 0, "not found"
		at := tripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host != "127.0.0.1:5000" {
				return atPorts{}.RoundTrip(r)
			}
			asked++
			return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(says))}, nil
		})
		f := finder(t, Config{Usual: true, Transport: at})
		first := asked
		for range 10 {
			time.Sleep(otherAge / 20)
			f.ProbeAgain(t.Context())
		}
		if asked != first+10 {
			t.Errorf("it was asked %d times, then %d in ten looks", first, asked-first)
		}
		for what, then := range map[string]func(){
			"another first page": func() { says = "not here" },
			"time":               func() { time.Sleep(otherAge) },
		} {
			before := asked
			then()
			f.ProbeAgain(t.Context())
			if asked < before+first {
				t.Errorf("%s: asked %d times, %d at first", what, asked-before, first)
			}
		}
		before := asked
		f.Probe(t.Context())
		if asked != before+first {
			t.Errorf("on demand: asked %d times, %d at first", asked-before, first)
		}
	})
}

// The calls of other programs are counted where the engine reports them, without
// our own calls.
func TestCallsOfOthers(t *testing.T) {
	for _, k := range []enginetest.Kind{enginetest.LlamaCpp, enginetest.VLLM, enginetest.SGLang, enginetest.KoboldCpp, enginetest.Docker} {
		t.Run(string(k), func(t *testing.T) {
			double := enginetest.New(k, enginetest.Options{Slots: 4, Models: []enginetest.Model{{ID: "m"}}, Behaviour: enginetest.Behaviour{Fault: enginetest.Hang}})
			assert.OK(t, double.Start())
			defer double.Close()
			f := finder(t, Config{Endpoints: []string{double.URL()}})
			e := f.Engines()[0]
			others := func(want int, when string) {
				t.Helper()
				for range 100 { // on a busy computer not every page comes in time
					if f.ProbeAgain(t.Context()); f.Report()[0].Others == want {
						break
					}
				}
				if got := f.Engines()[0].OtherCalls(); got != want || f.Report()[0].Others != want {
					t.Errorf("%s: %d calls of others, want %d (report %+v)", when, got, want, f.Report()[0])
				}
			}
			running := func(n int) {
				t.Helper()
				assert.OK(t, double.Wait(t.Context(), func(c enginetest.Counts) bool { return c.Running == n }))
			}
			others(0, "idle")
			body := `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`
			ours, cancelOurs := context.WithCancel(t.Context())
			defer cancelOurs()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				resp, err := e.Do(ours, Request{Endpoint: fleet.ChatCompletions, Model: "m", Stream: true, Trusted: true, Body: []byte(body)})
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			running(1)
			others(0, "ours runs")
			theirs, cancelTheirs := context.WithCancel(t.Context())
			defer cancelTheirs()
			go func() {
				req, _ := http.NewRequestWithContext(theirs, http.MethodPost, e.Base()+"/v1/chat/completions", strings.NewReader(body))
				if resp, err := http.DefaultClient.Do(req); err == nil {
					resp.Body.Close()
				}
			}()
			running(2)
			changed := f.Changed()
			cancelOurs()
			<-ended
			running(1)
			others(1, "theirs runs")
			select {
			case <-changed:
			default:
				t.Error("the change was not told")
			}
			cancelTheirs()
			running(0)
			others(0, "all over")
		})
	}
}

// Hostile servers are bounded in time and bytes and never taken for an engine.
func TestHostilePlaces(t *testing.T) {
	t.Parallel()
	zeros := func() io.Reader { return io.LimitReader(silent{}, 1<<40) }
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request){
		"huge": func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, zeros()) },
		"gzip": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.Copy(w, zeros())
		},
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/v1/models", http.StatusTemporaryRedirect)
		},
		"wrong JSON": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"object":"list","data":{"id":7}}`)
		},
		"deep JSON": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat(`{"data":[`, 1<<17))
		},
		"drip": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, " "); err != nil {
					return
				}
				http.NewResponseController(w).Flush()
				select {
				case <-time.After(20 * time.Millisecond):
				case <-r.Context().Done():
				}
			}
		},
		"break": func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
			server := &http.Server{Handler: http.HandlerFunc(answer), ReadHeaderTimeout: time.Second}
			go func() { _ = server.Serve(l) }()
			defer server.Close()
			f := finder(t, Config{Endpoints: []string{"http://" + l.Addr().String()}}) // returns, however long the answer
			if len(f.Engines()) != 0 || f.Report()[0].Why == "" || strings.Contains(f.Report()[0].Why, "192.0.2.1") {
				t.Errorf("found %v: %+v", kindsOf(f), f.Report()[0])
			}
		})
	}
}

func TestGauges(t *testing.T) {
	for text, want := range map[string]int{
		"":                              -1,
		"vllm:num_requests_waiting 3\n": -1,
		"# HELP vllm:num_requests_running x\nvllm:num_requests_running 2\nvllm:num_requests_waiting 1.0\n":                                                         3,
		"vllm:num_requests_running{engine=\"0\",model_name=\"a b} c\"} 2.0 1795219200\nvllm:num_requests_running{engine=\"1\"} 1\nvllm:num_requests_running_x 9\n": 3,
		"vllm:num_requests_running NaN\n": -1,
		"vllm:num_requests_running -5\n":  -1,
		"vllm:num_requests_running{\n":    -1,
	} {
		p := &probe{pages: map[string]page{"GET /metrics ": {status: http.StatusOK, body: []byte(text)}}}
		sum, known := p.gauges("vllm:num_requests_running", "vllm:num_requests_waiting")
		if !known {
			sum = -1
		}
		assert.Equal(t, sum, want, text)
	}
	if !slices.Contains(enginetest.Kinds, enginetest.Jan) || len(enginetest.Kinds) != len(kinds) {
		t.Errorf("%d kinds have a double, of %d", len(enginetest.Kinds), len(kinds))
	}
}
