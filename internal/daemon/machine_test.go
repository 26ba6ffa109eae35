package daemon

import (
	"context"
	"encoding/json/v2"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// A call down a real tunnel, unary and streamed; the engine gets an allow-list
// of fields, even of a call that says it is the owner's.
func TestRoutedCall(t *testing.T) {
	e := enginetest.New(enginetest.LlamaCpp, enginetest.Options{})
	_, _, l := joined(t, Config{}, e)
	if want := []string{"test-model"}; len(l.ad.Models) != 1 || l.ad.Models[0].ID != want[0] || l.ad.Name != "laptop" || l.ad.Slots != 1 || l.ad.Free != 1 {
		t.Fatalf("advertised %+v", l.ad)
	}
	for _, class := range []string{"own ada", "shared bob", "group eve", ""} {
		body := strings.Replace(chat(false), "{", `{"n_probs":3,"temperature":0.5,`, 1)
		resp := l.served("/v1/chat/completions", body, tunnel.HeaderCaller, class)
		if text := read(t, resp.Body); resp.StatusCode != 200 || !strings.Contains(text, "one two three") {
			t.Fatalf("%q: status %d, body %s", class, resp.StatusCode, text)
		}
		if sent := string(e.Last().Body); strings.Contains(sent, "n_probs") || !strings.Contains(sent, "temperature") {
			t.Errorf("%q: the engine got %s", class, sent)
		}
	}
	resp := l.served("/v1/chat/completions", chat(true))
	if text := read(t, resp.Body); !strings.HasSuffix(text, done) || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%s %s", resp.Header.Get("Content-Type"), text)
	}
	assert.Equal(t, resp.Trailer.Get(dialect.UsageTrailer), "3 3", "the engine's counts")
}

// The prompt cache that a call uses follows from the header Kith-Cache. The owner's calls
// use that of local calls. An engine with one cache for all callers uses it for others
// only after a reload with SharedCache.
func TestPromptCaches(t *testing.T) {
	vllm := enginetest.New(enginetest.VLLM, enginetest.Options{})
	r, _, l := joined(t, Config{}, vllm)
	salt := func(header ...string) string {
		t.Helper()
		if resp := l.served("/v1/chat/completions", chat(false), header...); resp.StatusCode != 200 {
			t.Fatalf("status %d", resp.StatusCode)
		}
		var b struct {
			Salt string `json:"cache_salt"`
		}
		assert.OK(t, json.Unmarshal(vllm.Last().Body, &b))
		return b.Salt
	}
	bob, again, eve := salt(tunnel.HeaderCache, "1"), salt(tunnel.HeaderCache, "1", tunnel.HeaderCaller, "group robert"), salt(tunnel.HeaderCache, "2")
	assert.That(t, bob != "" && bob == again && bob != eve, "by the header", bob, again, eve)
	assert.Equal(t, salt(tunnel.HeaderCaller, "own ada", tunnel.HeaderCache, "3"), "", "the owner's")
	read(t, r.post("/v1/chat/completions", chat(false)).Body)
	assert.Lacks(t, string(vllm.Last().Body), "cache_salt", "a local call")

	single := enginetest.New(enginetest.LlamaCpp, enginetest.Options{})
	r, _, l = joined(t, Config{}, single)
	for _, want := range []bool{false, true} {
		for _, class := range []string{"own ada", "shared bob", "group eve", ""} {
			l.served("/v1/chat/completions", chat(false), tunnel.HeaderCaller, class)
			off := strings.Contains(string(single.Last().Body), `"cache_prompt":false`)
			if off != (!want && class != "own ada") {
				t.Errorf("%q, one cache for all %v: %s", class, want, single.Last().Body)
			}
		}
		changed := r.config
		changed.SharedCache = true
		assert.OK(t, r.Reload(t.Context(), changed))
	}
}

// Each reason a machine does not take a call; whatever has no Kith-Refused came
// from the engine.
func TestRefusals(t *testing.T) {
	e := enginetest.New(enginetest.Ollama, enginetest.Options{Models: []enginetest.Model{{ID: "test-model"}, {ID: "vectors", Embeddings: true}}})
	r, _, l := joined(t, Config{Sharing: Sharing{Slots: 2, Timezone: "UTC"}}, e)
	yes, no, shut, always := true, false, closedNow(), ""
	for _, step := range []struct {
		name   string
		change fleet.Control
		path   string
		body   string
		caller string
		want   tunnel.Refusal // empty: taken
	}{
		{"open", fleet.Control{}, "/v1/chat/completions", chat(false), "shared bob", ""},
		{"another model", fleet.Control{}, "/v1/chat/completions", `{"model":"unknown","messages":[]}`, "own ada", tunnel.RefusedUnknownModel},
		{"another endpoint", fleet.Control{}, "/v1/embeddings", `{"model":"test-model","input":"x"}`, "own ada", tunnel.RefusedUnknownModel},
		{"not native", fleet.Control{}, "/v1/messages", `{"model":"test-model","messages":[]}`, "own ada", tunnel.RefusedUnknownModel},
		{"paused, other member", fleet.Control{Paused: &yes}, "/v1/chat/completions", chat(false), "shared bob", tunnel.RefusedPaused},
		{"paused, owner", fleet.Control{}, "/v1/chat/completions", chat(false), "own ada", tunnel.RefusedPaused},
		{"resumed, out of hours, other member", fleet.Control{Paused: &no, Hours: &shut}, "/v1/chat/completions", chat(false), "group eve", tunnel.RefusedHours},
		{"out of hours, no caller named", fleet.Control{}, "/v1/chat/completions", chat(false), "", tunnel.RefusedHours},
		{"out of hours, owner", fleet.Control{}, "/v1/chat/completions", chat(false), "own ada", ""},
		{"always open", fleet.Control{Hours: &always}, "/v1/embeddings", `{"model":"vectors","input":"x"}`, "shared bob", ""},
		{"no stream of embeddings", fleet.Control{}, "/v1/embeddings", `{"model":"vectors","input":"x","stream":true}`, "shared bob", ""},
	} {
		assert.OK(t, tunnel.SendControl(t.Context(), l, step.change))
		resp := l.served(step.path, step.body, tunnel.HeaderCaller, step.caller)
		read(t, resp.Body)
		got := tunnel.Refusal(resp.Header.Get(tunnel.HeaderRefused))
		if got != step.want || (got == "") != (resp.StatusCode == 200) || got != "" && resp.StatusCode != 503 {
			t.Errorf("%s: status %d, refused %q, want %q", step.name, resp.StatusCode, got, step.want)
		}
	}
	if ad, _ := r.advertise(); ad.Hours != "" || ad.Paused || ad.Slots != 2 {
		t.Errorf("advertised %+v", ad)
	}
}

// closedNow are hours that are not now, whatever the clock says.
func closedNow() string {
	return time.Now().UTC().AddDate(0, 0, 3).Weekday().String()[:3] + " 00:00-24:00"
}

// Slots: the machine's, the model's, and those that local calls hold.
func TestBusy(t *testing.T) {
	e := enginetest.New(enginetest.LlamaCpp, enginetest.Options{Slots: 2, Behaviour: enginetest.Behaviour{Fault: enginetest.Hang, After: 1}})
	r, _, l := joined(t, Config{}, e)
	first := l.served("/v1/chat/completions", chat(true))
	firstFrame(t, first.Body)
	local := r.post("/v1/chat/completions", chat(true))
	firstFrame(t, local.Body)
	l.until("notified of the local call", func(ad tunnel.Advertisement) bool { return ad.Local == 1 && ad.Models[0].Local == 1 })
	if s := r.Status(); s.Routed != 1 || s.Own != 1 || s.Slots != 2 {
		t.Errorf("status %+v", s)
	}
	if got := l.served("/v1/chat/completions", chat(true)).Header.Get(tunnel.HeaderRefused); got != string(tunnel.RefusedBusy) {
		t.Errorf("beyond the slots: refused %q", got)
	}
	local.Body.Close()
	l.until("notified of its end", func(ad tunnel.Advertisement) bool { return ad.Local == 0 })
	if got := l.served("/v1/chat/completions", chat(true)); got.StatusCode != 200 {
		t.Errorf("a slot came free: status %d, refused %q", got.StatusCode, got.Header.Get(tunnel.HeaderRefused))
	}
}

// What is free: the machine's slots less all that runs, and the model's own.
func TestAdmission(t *testing.T) {
	k := &admission{onLocal: func() {}}
	end, ok := k.admit("m", 3, 1)
	assert.Require(t, ok, "an idle machine is full")
	if _, ok := k.admit("m", 3, 1); ok {
		t.Error("a second call of a model with one slot")
	}
	if _, ok := k.admit("n", 3, 0); !ok {
		t.Error("another model, with no limit of its own")
	}
	leave := k.startLocal("o", 1, true)
	if _, ok := k.admit("n", 3, 0); ok {
		t.Error("a slot that a local call holds was given away")
	}
	leave()
	leave() // a body may be closed twice
	end()
	if routed, local := k.running(""); routed != 1 || local != 0 {
		t.Errorf("%d routed and %d local calls run", routed, local)
	}
	if _, ok := k.admit("m", 3, 1); !ok {
		t.Error("the model's slot did not come back")
	}
}

// A call for several answers holds a slot for each, and waits for one only.
func TestAdmissionCountsChoices(t *testing.T) {
	k := &admission{onLocal: func() {}}
	call := func(answers int) (end func()) {
		t.Helper()
		release, ok := k.admit("m", 4, 0)
		assert.Require(t, ok, "a slot is free")
		narrow := k.addChoices("m", answers)
		return func() { narrow(); release() }
	}
	full := func() {
		t.Helper()
		if _, ok := k.admit("m", 4, 0); ok {
			t.Error("a call beside one that has every slot")
		}
	}
	end := call(4)
	full()
	end()
	leave := k.startLocal("m", 3, true)
	end = call(4)
	if routed, local := k.running("m"); routed != 4 || local != 3 {
		t.Errorf("%d and %d answers run", routed, local)
	}
	leave()
	full()
	end()
	call(0)()
	if routed, local := k.running(""); routed != 0 || local != 0 {
		t.Errorf("%d and %d answers run on", routed, local)
	}
}

// A call of the hub for several answers holds a slot for each while it runs.
func TestRoutedChoices(t *testing.T) {
	e := enginetest.New(enginetest.LlamaCpp, enginetest.Options{Slots: 3, Behaviour: enginetest.Behaviour{Fault: enginetest.Hang, After: 1}})
	r, _, l := joined(t, Config{}, e)
	first := l.served("/v1/chat/completions", strings.Replace(chat(true), "{", `{"n":3,`, 1))
	firstFrame(t, first.Body)
	assert.Equal(t, r.Status().Routed, 3, "slots are held for 3 answers")
	if got := l.served("/v1/chat/completions", chat(true)).Header.Get(tunnel.HeaderRefused); got != string(tunnel.RefusedBusy) {
		t.Errorf("beside them: refused %q", got)
	}
	first.Body.Close()
	r.await("idle", func(s Status) bool { return s.Routed == 0 })
}

// Every status of the engine reaches the hub unchanged, its body bounded, and frees
// the slot.
func TestRoutedEngineStatuses(t *testing.T) {
	e := enginetest.New(enginetest.Plain, enginetest.Options{})
	r, _, l := joined(t, Config{}, e)
	for _, status := range []int{400, 401, 403, 422, 429, 500, 503, 404} {
		e.Set(enginetest.Behaviour{Status: status})
		resp := l.served("/v1/chat/completions", chat(false))
		text := read(t, resp.Body)
		if resp.StatusCode != status || resp.Header.Get(tunnel.HeaderRefused) != "" || !strings.Contains(text, "asked for") {
			t.Errorf("engine's %d: got %d, refused %q, %s", status, resp.StatusCode, resp.Header.Get(tunnel.HeaderRefused), text)
		}
	}
	// The last one said that it does not have the model, of that one call: it lists
	// it, and serves the next one.
	e.Set(enginetest.Behaviour{})
	if got := l.served("/v1/chat/completions", chat(false)); got.StatusCode != 200 {
		t.Errorf("after a 404: status %d, refused %q", got.StatusCode, got.Header.Get(tunnel.HeaderRefused))
	}
	if ad, _ := r.advertise(); len(ad.Models) != 1 {
		t.Errorf("offered after a 404: %+v", ad.Models)
	}
	r.await("idle", func(s Status) bool { return s.Routed == 0 })
}

// A model that its engine denies having, and does not list any more, is withdrawn at
// once, long before the next regular check; in false time.
func TestRoutedEngineUnlisted(t *testing.T) {
	home := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		listing := func(models ...enginetest.Model) http.RoundTripper {
			return enginetest.New(enginetest.Plain, enginetest.Options{Models: models}).Transport()
		}
		var place replaced
		place.Store(new(listing(enginetest.Model{ID: "gone"}, enginetest.Model{ID: "other"})))
		_, l := falseTime(t, Config{Home: home, Discovery: engine.Config{Endpoints: []string{"http://127.0.0.1:8080"}, Transport: &place}},
			enginetest.New(enginetest.Plain, enginetest.Options{}))
		assert.Require(t, len(l.ad.Models) == 3, "offered", l.ad.Models)
		time.Sleep(2 * time.Second)
		place.Store(new(listing(enginetest.Model{ID: "other"})))
		asked := time.Now()
		if got := l.served("/v1/chat/completions", strings.Replace(chat(false), "test-model", "gone", 1)); got.StatusCode != 404 || got.Header.Get(tunnel.HeaderRefused) != "" {
			t.Errorf("status %d, refused %q", got.StatusCode, got.Header.Get(tunnel.HeaderRefused))
		}
		l.until("withdrawn", func(ad tunnel.Advertisement) bool { return len(ad.Models) == 2 })
		if took := time.Since(asked); took > time.Second {
			t.Errorf("withdrawn after %v", took)
		}
	})
}

// replaced is the transport to an engine that another one may replace.
type replaced struct {
	atomic.Pointer[http.RoundTripper]
}

func (p *replaced) RoundTrip(r *http.Request) (*http.Response, error) {
	return (*p.Load()).RoundTrip(r)
}

// An engine that cannot be reached is a 503 of its own, so that the hub tries
// another machine.
func TestRoutedEngineUnreachable(t *testing.T) {
	model := engine.Model{ID: "test-model", Families: []fleet.Family{fleet.Chat}, Endpoints: []fleet.Endpoint{fleet.ChatCompletions}, Slots: 1}
	r, _, l := joined(t, Config{Own: []*engine.Engine{engine.Builtin("kith", noWay{}, engine.BuiltinState{Models: []engine.Model{model}})}})
	resp := l.served("/v1/chat/completions", chat(false))
	if resp.StatusCode != 503 || resp.Header.Get(tunnel.HeaderRefused) != "" {
		t.Errorf("status %d, refused %q", resp.StatusCode, resp.Header.Get(tunnel.HeaderRefused))
	}
	r.await("recorded", func(s Status) bool {
		return len(s.RecentErrors) == 1 && strings.Count(s.RecentErrors[0].What, "cannot be reached") == 1 && s.Routed == 0
	})
}

// noWay is an engine that does not listen.
type noWay struct{}

func (noWay) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, &net.OpError{Op: "dial", Net: "unix", Err: errors.New("connection refused")}
}

// The models of an engine that does not respond are withdrawn long before the next
// regular check; when it responds again they are offered.
func TestRoutedEngineGone(t *testing.T) {
	e := enginetest.New(enginetest.Plain, enginetest.Options{})
	address := enginetest.FreeAddress()
	assert.OK(t, e.Listen(address))
	t.Cleanup(func() { e.Close() })
	r, _, l := joined(t, Config{}, e)
	e.Close()
	// 503, or 502 on a connection that was open when it died.
	if resp := l.served("/v1/chat/completions", chat(false)); resp.StatusCode < 502 || resp.Header.Get(tunnel.HeaderRefused) != "" {
		t.Errorf("status %d, refused %q", resp.StatusCode, resp.Header.Get(tunnel.HeaderRefused))
	}
	l.until("without it", func(ad tunnel.Advertisement) bool { return len(ad.Models) == 0 })
	assert.OK(t, e.Listen(address))
	r.discoverNow.request()
	l.until("with it", func(ad tunnel.Advertisement) bool { return len(ad.Models) == 1 })
}

// An engine that dies is never an orderly end (docs/faults.md#44): the hub's read fails.
func TestRoutedEngineDies(t *testing.T) {
	e := enginetest.New(enginetest.Plain, enginetest.Options{Behaviour: enginetest.Behaviour{Fault: enginetest.Die, After: 2}})
	r, _, l := joined(t, Config{}, e)
	resp := l.served("/v1/chat/completions", chat(true))
	text, err := io.ReadAll(resp.Body)
	if err == nil || errors.Is(err, io.EOF) || !strings.Contains(string(text), "two") || strings.Contains(string(text), "[DONE]") {
		t.Errorf("after %s: %v", text, err)
	}
	// Before its first byte it is the engine's failure on this very call: it
	// must not walk on to the next machine.
	e.Set(enginetest.Behaviour{Fault: enginetest.Die})
	if resp := l.served("/v1/chat/completions", chat(false)); resp.StatusCode != 502 {
		t.Errorf("died before the first byte: status %d", resp.StatusCode)
	}
	r.await("idle", func(s Status) bool { return s.Routed == 0 })
	if s := r.Status(); len(s.RecentErrors) != 1 || !strings.Contains(s.RecentErrors[0].What, "failed on a call") { // twice the same
		t.Errorf("recent errors: %+v", s.RecentErrors)
	}
}

// A caller's mistake, which the daemon refuses before any engine is asked, is no trouble
// of the engine.
func TestRoutedMistake(t *testing.T) {
	e := enginetest.New(enginetest.Plain, enginetest.Options{})
	r, _, l := joined(t, Config{}, e)
	body := strings.TrimSuffix(chat(false), "}") + `,"max_tokens":0}`
	assert.Equal(t, l.served("/v1/chat/completions", body).StatusCode, 400, "status")
	r.await("idle", func(s Status) bool { return s.Routed == 0 })
	if s := r.Status(); len(s.RecentErrors) != 0 {
		t.Errorf("recent errors: %+v", s.RecentErrors)
	}
}

// The hub cancels a call: the engine stops within 2 s.
func TestRoutedCancel(t *testing.T) {
	home := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		e := enginetest.New(enginetest.Plain, enginetest.Options{})
		d, l := falseTime(t, Config{Home: home}, e)
		for _, stream := range []bool{true, false} {
			e.Set(enginetest.Behaviour{Fault: enginetest.Hang, After: 1})
			if !stream {
				e.Set(enginetest.Behaviour{Fault: enginetest.Hang})
			}
			before := e.Counts()
			ctx, giveUp := context.WithCancel(t.Context())
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				if resp, err := l.call(ctx, "/v1/chat/completions", chat(stream)); err == nil {
					<-ctx.Done()
					resp.Body.Close()
				}
			}()
			assert.OK(t, e.Wait(t.Context(), func(c enginetest.Counts) bool { return c.Runs > before.Runs }))
			giveUp()
			soon, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			if err := e.Wait(soon, func(c enginetest.Counts) bool { return c.Cancelled > before.Cancelled }); err != nil {
				t.Errorf("stream %v: the engine computes on: %+v", stream, e.Counts())
			}
			cancel()
			<-gone
			if synctest.Wait(); d.Status().Routed != 0 {
				t.Errorf("stream %v: the call is not over: %+v", stream, d.Status())
			}
		}
	})
}

// The tunnel's end ends its calls at the engine (docs/faults.md#30).
func TestTunnelEnds(t *testing.T) {
	e := enginetest.New(enginetest.Plain, enginetest.Options{Behaviour: enginetest.Behaviour{Fault: enginetest.Hang, After: 1}})
	_, h, l := joined(t, Config{}, e)
	firstFrame(t, l.served("/v1/chat/completions", chat(true)).Body)
	l.Close()
	soon, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := e.Wait(soon, func(c enginetest.Counts) bool { return c.Cancelled == 1 }); err != nil {
		t.Errorf("the engine computes on: %+v", e.Counts())
	}
	// It reconnects by itself and serves.
	e.Set(enginetest.Behaviour{})
	if resp := h.connected().served("/v1/chat/completions", chat(false)); resp.StatusCode != 200 {
		t.Errorf("after the tunnel came back: status %d", resp.StatusCode)
	}
}

// The hub's deadline ends the call; one in the past shows a wrong clock here, and the
// hub's clock counts (docs/faults.md#38).
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for offset, want := range map[time.Duration]bool{time.Minute: true, -time.Hour: false} {
			ctx, cancel := withDeadline(t.Context(), time.Now().Add(offset).Format(time.RFC3339))
			deadline, has := ctx.Deadline()
			if has != want || has && time.Until(deadline) != offset {
				t.Errorf("%v from now: deadline %v, %v", offset, deadline, has)
			}
			cancel()
		}
		ctx, cancel := withDeadline(t.Context(), "soon")
		defer cancel()
		if _, has := ctx.Deadline(); has {
			t.Error("a deadline of nonsense")
		}
	})
	home := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		e := enginetest.New(enginetest.Plain, enginetest.Options{Behaviour: enginetest.Behaviour{Fault: enginetest.Hang}})
		_, l := falseTime(t, Config{Home: home}, e)
		began := time.Now()
		if resp, err := l.call(t.Context(), "/v1/chat/completions", chat(false), tunnel.HeaderDeadline, began.Add(time.Minute).UTC().Format(time.RFC3339)); err == nil {
			t.Errorf("status %d", resp.StatusCode)
		}
		if synctest.Wait(); e.Counts().Cancelled != 1 || time.Since(began) != time.Minute {
			t.Errorf("after %v the engine has %+v", time.Since(began), e.Counts())
		}
	})
}

// What is no call of ours never reaches an engine.
func TestRoutedNonsense(t *testing.T) {
	e := enginetest.New(enginetest.Plain, enginetest.Options{})
	_, _, l := joined(t, Config{}, e)
	for _, c := range []struct {
		path, body string
		status     int
	}{
		{"/v1/chat/completions", `{"model":"test-model","model":"other"}`, 400},
		{"/v1/chat/completions", `nonsense`, 400},
		{"/v1/models", `{}`, 404},
		{"/api/pull", `{"model":"x"}`, 404},
	} {
		if resp := l.served(c.path, c.body); resp.StatusCode != c.status || resp.Header.Get(tunnel.HeaderRefused) != "" {
			t.Errorf("%s %s: status %d", c.path, c.body, resp.StatusCode)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://machine/v1/chat/completions", nil)
	assert.OK(t, err)
	assert.Equal(t, assert.Value(l.RoundTrip(r))(t).StatusCode, 405, "GET")
	assert.Equal(t, e.Counts().Runs, 0, "the engine ran")
}

// crashes is a transport to an engine that panics: at once, or with "late" after the
// first bytes of its answer.
type crashes struct{ late bool }

func (c crashes) RoundTrip(*http.Request) (*http.Response, error) {
	if !c.late {
		panic("the secret inside")
	}
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, ContentLength: -1,
		Body: io.NopCloser(io.MultiReader(strings.NewReader("data: {\"choices\":[{\"delta\":{\"content\":\"one\"}}]}\n\n"), crashes{})),
	}, nil
}

func (crashes) Read([]byte) (int, error) { panic("the secret inside") }

// A panic in the daemon fails one call only: the hub gets an error, or sees the
// response break, the stack is in the log under the call's id, and the next call is served.
func TestRoutedPanic(t *testing.T) {
	for _, late := range []bool{false, true} {
		crashing := engine.Builtin("crashing", crashes{late}, engine.BuiltinState{Models: []engine.Model{{
			ID: "crashing", Families: []fleet.Family{fleet.Chat}, Endpoints: []fleet.Endpoint{fleet.ChatCompletions}, Slots: 1,
		}}})
		r, _, l := joined(t, Config{Own: []*engine.Engine{crashing}}, enginetest.New(enginetest.Plain, enginetest.Options{}))
		resp := l.served("/v1/chat/completions", strings.Replace(chat(late), "test-model", "crashing", 1), tunnel.HeaderCorrelation, "req_crash")
		text, err := io.ReadAll(resp.Body)
		if late != (err != nil) || !late && (resp.StatusCode != 500 || !strings.Contains(string(text), `"internal_error"`)) {
			t.Errorf("late %t: status %d, body %s, then %v", late, resp.StatusCode, text, err)
		}
		if said := r.log.String() + string(text); strings.Contains(said, "secret") || !strings.Contains(said, "panic (string)") || !strings.Contains(said, "id=req_crash") {
			t.Errorf("late %t: said %s", late, said)
		}
		if resp := l.served("/v1/chat/completions", chat(false)); resp.StatusCode != 200 {
			t.Errorf("late %t: the next call: status %d", late, resp.StatusCode)
		}
	}
}

// What other programs run at an engine is not free for calls of the hub.
func TestOthersAtTheEngine(t *testing.T) {
	e := enginetest.New(enginetest.LlamaCpp, enginetest.Options{Slots: 2, Behaviour: enginetest.Behaviour{Fault: enginetest.Hang}})
	r := run(t, Config{}, e)
	free := func(want int) {
		t.Helper()
		var ad tunnel.Advertisement
		for range 100 { // on a busy computer not every page comes in time
			r.finder.Probe(t.Context())
			if ad, _ = r.advertise(); ad.Free == want {
				break
			}
		}
		if ad.Free != want || ad.Models[0].Free != want || ad.Slots != 2 {
			t.Errorf("%d of %d slots free, %d of the model's; want %d", ad.Free, ad.Slots, ad.Models[0].Free, want)
		}
		_, release, refusal := r.reserve("test-model", fleet.ChatCompletions, false, time.Now())
		assert.Equal(t, (refusal == ""), (want > 0), "with", want, "free: refused", refusal)
		if release != nil {
			release()
		}
	}
	free(2)
	for n := 1; n <= 2; n++ {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, e.URL()+"/v1/chat/completions", strings.NewReader(chat(false)))
			if resp, err := http.DefaultClient.Do(req); err == nil {
				resp.Body.Close()
			}
		}()
		assert.OK(t, e.Wait(t.Context(), func(c enginetest.Counts) bool { return c.Running == n }))
		free(2 - n)
	}
}

// Two engines with the same model: their slots add up, and each call goes to the one with
// the most free.
func TestTwoEnginesOfOneModel(t *testing.T) {
	hang := enginetest.Options{Slots: 2, Behaviour: enginetest.Behaviour{Fault: enginetest.Hang, After: 1}}
	one, other := enginetest.New(enginetest.LlamaCpp, hang), enginetest.New(enginetest.LlamaCpp, hang)
	_, _, l := joined(t, Config{}, one, other)
	if ad := l.ad; len(ad.Models) != 1 || ad.Models[0].Slots != 4 || ad.Slots != 4 {
		t.Fatalf("offers %+v", ad)
	}
	for i := 1; i <= 4; i++ {
		firstFrame(t, l.served("/v1/chat/completions", chat(true)).Body)
		if a, b := one.Counts().Running, other.Counts().Running; a+b != i || a-b > 1 || b-a > 1 {
			t.Errorf("after %d calls they run %d and %d", i, a, b)
		}
	}
	if refused := l.served("/v1/chat/completions", chat(true)); tunnel.Refusal(refused.Header.Get(tunnel.HeaderRefused)) != tunnel.RefusedBusy {
		t.Errorf("a fifth call: %v", refused.Header)
	}
}

// Of two engines with one model, one of which cannot be reached, the other serves: calls of
// the hub, and local ones. A model for embeddings, too.
func TestOneOfTwoEnginesIsDown(t *testing.T) {
	models := []engine.Model{
		{ID: "test-model", Families: []fleet.Family{fleet.Chat}, Endpoints: []fleet.Endpoint{fleet.ChatCompletions}, Slots: 8},
		{ID: "vectors", Families: []fleet.Family{fleet.Embeddings}, Endpoints: []fleet.Endpoint{fleet.EmbeddingsEndpoint}, Slots: 8},
	}
	down := engine.Builtin("kith", noWay{}, engine.BuiltinState{Models: models})
	up := enginetest.New(enginetest.Ollama, enginetest.Options{Models: []enginetest.Model{{ID: "test-model"}, {ID: "vectors", Embeddings: true}}})
	r, _, l := joined(t, Config{Own: []*engine.Engine{down}}, up)
	for path, body := range map[string]string{"/v1/chat/completions": chat(false), "/v1/embeddings": `{"model":"vectors","input":"x"}`} {
		if resp := l.served(path, body); resp.StatusCode != 200 {
			t.Errorf("%s of the hub: %d %v", path, resp.StatusCode, resp.Header)
		}
		if resp := r.post(path, body); resp.StatusCode != 200 {
			text, _ := io.ReadAll(resp.Body)
			t.Errorf("%s: %d %s", path, resp.StatusCode, text)
		}
	}
}
