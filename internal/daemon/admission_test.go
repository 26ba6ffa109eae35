package daemon

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/spool"
	"github.com/kith/kith/internal/tunnel"
)

// keptBack is a request body that records whether it was read.
type keptBack struct {
	io.Reader
	read bool
}

func (b *keptBack) Read(p []byte) (int, error) {
	b.read = true
	return b.Reader.Read(p)
}

// A call whose head names its model is refused before its body is read, at every
// route; one that is admitted runs only the model that its head names.
func TestAdmittedByTheHead(t *testing.T) {
	e := enginetest.New(enginetest.LlamaCpp, enginetest.Options{Models: []enginetest.Model{{ID: "test-model"}, {ID: "größer+ %"}}})
	r, _, l := joined(t, Config{Sharing: Sharing{Slots: 1, Timezone: "UTC"}}, e)
	yes, no, shut, always := true, false, closedNow(), ""
	ask := func(path, model, caller, body string) (*httptest.ResponseRecorder, bool) {
		sent := &keptBack{Reader: bytes.NewReader([]byte(body))}
		q := httptest.NewRequest("POST", path, sent)
		q.Header.Set(tunnel.HeaderCaller, caller)
		q.Header.Set(tunnel.HeaderModel, tunnel.EscapeModel(model))
		q.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		r.machineHandler().ServeHTTP(w, q)
		return w, sent.read
	}
	const completions = "/v1/chat/completions"
	hanging := func(run func()) {
		e.Set(enginetest.Behaviour{Fault: enginetest.Hang, After: 1})
		resp := l.served(completions, chat(true))
		firstFrame(t, resp.Body)
		run()
		resp.Body.Close()
		e.Set(enginetest.Behaviour{})
		r.await("idle", func(s Status) bool { return s.Routed == 0 })
	}
	for _, step := range []struct {
		name   string
		change fleet.Control
		path   string
		model  string
		busy   bool
		want   tunnel.Refusal
	}{
		{"another model", fleet.Control{}, completions, "another", false, tunnel.RefusedUnknownModel},
		{"another endpoint", fleet.Control{}, "/v1/embeddings", "test-model", false, tunnel.RefusedUnknownModel},
		{"speech", fleet.Control{}, "/v1/audio/transcriptions", "test-model", false, tunnel.RefusedUnknownModel},
		{"a count", fleet.Control{}, tunnel.PathTokenize, "another", false, tunnel.RefusedUnknownModel},
		{"busy", fleet.Control{}, completions, "test-model", true, tunnel.RefusedBusy},
		{"paused", fleet.Control{Paused: &yes}, completions, "test-model", false, tunnel.RefusedPaused},
		{"out of hours", fleet.Control{Paused: &no, Hours: &shut}, completions, "test-model", false, tunnel.RefusedHours},
	} {
		assert.OK(t, tunnel.SendControl(t.Context(), l, step.change))
		check := func() {
			w, read := ask(step.path, step.model, "group eve", chat(false))
			if got := tunnel.Refusal(w.Header().Get(tunnel.HeaderRefused)); got != step.want || w.Code != http.StatusServiceUnavailable || read {
				t.Errorf("%s: status %d, refused %q, body read: %v", step.name, w.Code, got, read)
			}
		}
		if step.busy {
			hanging(check)
		} else {
			check()
		}
	}
	assert.OK(t, tunnel.SendControl(t.Context(), l, fleet.Control{Hours: &always}))
	if w, read := ask(completions, "test-model", "group eve", chat(false)); w.Code != 200 || !read {
		t.Errorf("admitted: %d %s", w.Code, w.Body)
	}
	if w, _ := ask(completions, "größer+ %", "own ada", `{"model":"größer+ %","messages":[{"role":"user","content":"x"}]}`); w.Code != 200 {
		t.Errorf("an id that no header can hold: %d %s", w.Code, w.Body)
	}
	runs := e.Counts().Runs
	if w, _ := ask(completions, "größer+ %", "own ada", chat(false)); w.Code != 400 || e.Counts().Runs != runs {
		t.Errorf("another model than the head's: %d %s, %d runs", w.Code, w.Body, e.Counts().Runs-runs)
	}
	assert.Equal(t, r.Status().Routed, 0, "slots are not given back")
}

// A hub holds no more of this computer with the bodies of its calls than half of what
// its spool may; the other bodies are refused at that byte.
func TestHubCannotFillTheSpool(t *testing.T) {
	const mib, bodies = 1 << 20, 100
	room, err := spool.Open(filepath.Join(t.TempDir(), "spool"), spool.Limits{Memory: 8 * mib, Disk: 8 * mib})
	assert.OK(t, err)
	r, _, _ := joined(t, Config{Spool: room}, enginetest.New(enginetest.LlamaCpp, enginetest.Options{Slots: bodies}))
	var calls sync.WaitGroup
	var refused atomic.Int64
	settled, release := make(chan struct{}, bodies), make(chan struct{})
	for i := range bodies {
		calls.Go(func() {
			rest := stuck{settled, release}
			q := httptest.NewRequest("POST", "/v1/chat/completions", io.MultiReader(strings.NewReader(strings.Repeat(" ", mib/2+i%2*mib)), rest))
			q.ContentLength = -1
			q.Header.Set(tunnel.HeaderModel, "test-model")
			w := httptest.NewRecorder()
			r.machineHandler().ServeHTTP(w, q)
			if w.Header().Get(tunnel.HeaderRefused) == string(tunnel.RefusedBusy) {
				refused.Add(1)
				settled <- struct{}{}
			}
		})
	}
	for range bodies {
		<-settled
	}
	if use := room.Use(); use.Memory > 4*mib || use.Disk > 4*mib || use.Memory+use.Disk < mib/2 {
		t.Errorf("%d unfinished bodies hold %+v", bodies, use)
	}
	close(release)
	calls.Wait()
	if n := refused.Load(); n < bodies/2 || n == bodies {
		t.Errorf("%d of %d were refused", n, bodies)
	}
	if use := room.Use(); use.Memory != 0 || use.Disk != 0 {
		t.Errorf("still held: %+v", use)
	}
}

// stuck is the rest of a body that does not come before the release.
type stuck struct {
	waits   chan<- struct{}
	release <-chan struct{}
}

func (s stuck) Read([]byte) (int, error) {
	s.waits <- struct{}{}
	<-s.release
	return 0, io.EOF
}

// The hub sends a call at once when it has cancelled another one, which may end here
// later. The call waits for that, but not long, and not where the owner's calls go first.
func TestAwaitsTheEndOfACancelledCall(t *testing.T) {
	home := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		e := enginetest.New(enginetest.Plain, enginetest.Options{})
		d, _ := falseTime(t, Config{Home: home, Sharing: Sharing{Slots: 1}}, e)
		for _, c := range []struct {
			name   string
			ends   time.Duration // when the cancelled call does
			local  bool          // a call of the owner runs, too
			yields bool          // one has just ended, and goes first
			want   tunnel.Refusal
			after  time.Duration
		}{
			{"it ends", 150 * time.Millisecond, false, false, "", 150 * time.Millisecond},
			{"it runs on", time.Second, false, false, tunnel.RefusedBusy, endWithin},
			{"beside a local call", 150 * time.Millisecond, true, false, tunnel.RefusedBusy, 0},
			{"after a local call", 150 * time.Millisecond, false, true, tunnel.RefusedBusy, 0},
		} {
			release, ok := d.admission.admit("test-model", 1, 0)
			assert.Require(t, ok, c.name, "an idle machine is full")
			time.AfterFunc(c.ends, release)
			d.admission.setYields(c.yields)
			leave := d.admission.startLocal("test-model", 1, true)
			if !c.local {
				leave()
			}
			began := time.Now()
			q := httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(chat(false)))
			q.Header.Set(tunnel.HeaderCaller, "shared bob")
			q.Header.Set(tunnel.HeaderModel, "test-model")
			q.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			d.machineHandler().ServeHTTP(w, q)
			if got := tunnel.Refusal(w.Header().Get(tunnel.HeaderRefused)); got != c.want || (w.Code == 200) != (c.want == "") || time.Since(began) != c.after {
				t.Errorf("%s: status %d, refused %q after %v", c.name, w.Code, got, time.Since(began))
			}
			leave()
			d.admission.setYields(false)
			time.Sleep(time.Minute)
		}
	})
}
