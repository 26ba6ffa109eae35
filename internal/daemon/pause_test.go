package daemon

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// refusedAs returns how the daemon refuses that caller's call; empty if it does not.
func (l *link) refusedAs(caller string) tunnel.Refusal {
	l.t.Helper()
	resp := l.served("/v1/chat/completions", chat(false), tunnel.HeaderCaller, caller)
	read(l.t, resp.Body)
	return tunnel.Refusal(resp.Header.Get(tunnel.HeaderRefused))
}

// A timed pause is reported to the hub at once, binds the owner too, is kept after the
// daemon ends, and ends by itself at its time, which is reported at once too.
func TestTimedPause(t *testing.T) {
	home := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		double := enginetest.New(enginetest.Plain, enginetest.Options{})
		_, l := falseTime(t, Config{Home: home}, double)
		began, yes := time.Now(), true
		until := began.Add(2 * time.Hour)
		assert.OK(t, tunnel.SendControl(t.Context(), l, fleet.Control{Paused: &yes, Until: &until}))
		l.until("paused", func(ad tunnel.Advertisement) bool { return ad.Paused })
		if took := time.Since(began); took > time.Second {
			t.Errorf("notified of the pause after %v", took)
		}
		for _, caller := range []string{"own ada", "shared bob"} {
			assert.Equal(t, l.refusedAs(caller), tunnel.RefusedPaused, caller, "in the pause: refused")
		}
		time.Sleep(time.Hour)
		l.leave()

		time.Sleep(30 * time.Minute)
		d, l := falseTime(t, Config{Home: home}, double)
		if now := d.Status().Sharing; !now.Paused || !now.Until.Equal(until) || l.refusedAs("shared bob") != tunnel.RefusedPaused {
			t.Errorf("the restarted daemon shares %+v", now)
		}
		l.until("resumed", func(ad tunnel.Advertisement) bool { return !ad.Paused })
		if late := time.Since(until); late < 0 || late > time.Second {
			t.Errorf("notified of the end %v after it", late)
		}
		if now := d.Status().Sharing; now.Paused || !now.Until.IsZero() || l.refusedAs("shared bob") != "" {
			t.Errorf("after its end the daemon shares %+v", now)
		}

		// One that ended while the daemon did not run is over when it starts.
		until = time.Now().Add(time.Minute)
		assert.OK(t, tunnel.SendControl(t.Context(), l, fleet.Control{Paused: &yes, Until: &until}))
		l.leave()
		time.Sleep(time.Hour)
		_, l = falseTime(t, Config{Home: home}, double)
		assert.Equal(t, l.refusedAs("shared bob"), "", "refused", "long after the pause")
		l.leave()
		if s, err := openSettings(filepath.Join(home, stateFile), Sharing{}); err != nil || *s.saved.Paused {
			t.Errorf("saved %+v, %v", s.saved, err)
		}
	})
}

// A pause without an end takes the place of one with an end.
func TestPauseForGood(t *testing.T) {
	yes, soon := true, time.Now().Add(time.Hour)
	home := t.TempDir()
	for _, change := range []fleet.Control{{Paused: &yes, Until: &soon}, {Paused: &yes}} {
		assert.Value(ChangeSaved(home, Sharing{}, change))(t)
	}
	slots := 3
	if now, err := ChangeSaved(home, Sharing{Hours: "Sat 10:00-12:00", Timezone: "UTC"}, fleet.Control{Slots: &slots}); err != nil ||
		now != (Sharing{Paused: true, Slots: 3, Hours: "Sat 10:00-12:00", Timezone: "UTC"}) {
		t.Errorf("saved %+v, %v", now, err)
	}
}

// The site, and so a hub, sets a machine's slots to fewer than its owner's
// configuration says, or than its engines do, and never to more.
func TestSlotsAreOnlyLowered(t *testing.T) {
	home := t.TempDir()
	few, many, none := 2, 5, 0
	first := Sharing{Slots: 4}
	assert.Equal(t, assert.Value(ChangeSaved(home, first, fleet.Control{Slots: &few}))(t).Slots, 2, "fewer")
	if now, err := ChangeSaved(home, first, fleet.Control{Slots: &many}); err == nil || !strings.Contains(err.Error(), "[share] slots") {
		t.Errorf("more: %+v, %v", now, err)
	}
	if now, err := ChangeSaved(home, Sharing{Slots: 1}, fleet.Control{}); err != nil || now.Slots != 1 {
		t.Errorf("the owner's went below it: %+v, %v", now, err)
	}
	if now, err := ChangeSaved(home, first, fleet.Control{Slots: &none}); err != nil || now.Slots != 4 {
		t.Errorf("the owner's again: %+v, %v", now, err)
	}

	e := enginetest.New(enginetest.LlamaCpp, enginetest.Options{Slots: 3})
	r, _, l := joined(t, Config{}, e)
	assert.OK(t, r.change(fleet.Control{Slots: &many}))
	assert.Equal(t, r.Status().Slots, 3, "slots of an engine's 3")
	assert.OK(t, r.change(fleet.Control{Slots: &few}))
	l.until("fewer", func(ad tunnel.Advertisement) bool { return ad.Slots == 2 && ad.Free == 2 })
}

// Drain responds when the last call of the hub has ended. Without a pause, or when the
// pause ends meanwhile, it fails.
func TestDrain(t *testing.T) {
	home := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		double := enginetest.New(enginetest.Plain, enginetest.Options{Behaviour: enginetest.Behaviour{Chunks: 12, Interval: time.Minute}})
		d, l := falseTime(t, Config{Home: home}, double)
		socket := d.socketSurface(d.Handler())
		ask := func(path string) <-chan *httptest.ResponseRecorder {
			answered := make(chan *httptest.ResponseRecorder, 1)
			go func() {
				w := httptest.NewRecorder()
				socket.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil))
				answered <- w
			}()
			return answered
		}
		if w := <-ask("/drain"); w.Code != 400 || !strings.Contains(w.Body.String(), "not paused") {
			t.Errorf("drain without a pause: %d %s", w.Code, w.Body)
		}
		running := l.served("/v1/chat/completions", chat(true))
		<-ask("/pause")
		draining := ask("/drain")
		resumed := ask("/drain")
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(draining) > 0 {
			t.Fatalf("drained while a call runs: %s", (<-draining).Body)
		}
		assert.Equal(t, l.refusedAs("own ada"), tunnel.RefusedPaused, "a new call while draining: refused")
		<-ask("/resume")
		for _, answer := range []<-chan *httptest.ResponseRecorder{draining, resumed} {
			if w := <-answer; w.Code != 400 {
				t.Errorf("drain of a machine that was resumed: %d %s", w.Code, w.Body)
			}
		}
		<-ask("/pause")
		draining = ask("/drain")
		if text := read(t, running.Body); !strings.HasSuffix(text, done) {
			t.Errorf("what ran when the pause began: %s", text)
		}
		if w := <-draining; w.Code != 200 || d.Status().Routed != 0 {
			t.Errorf("drain: %d %s, %d calls run", w.Code, w.Body, d.Status().Routed)
		}
		if w := <-ask("/drain"); w.Code != 200 {
			t.Errorf("drain with nothing to wait for: %d %s", w.Code, w.Body)
		}
	})
}

// The daemon holds sharing hours itself, on the wall clock of its zone: minutes
// that spring leaves out never come, those that autumn repeats count twice.
func TestHoursAcrossClockChanges(t *testing.T) {
	e := enginetest.New(enginetest.Plain, enginetest.Options{})
	r := run(t, Config{Sharing: Sharing{Hours: "Sat 23:00-00:30; Sun 01:30-02:30", Timezone: "Europe/Lisbon"}}, e)
	for at, open := range map[string]bool{
		"2027-03-27T22:59:00Z": false, // Saturday, winter time
		"2027-03-27T23:00:00Z": true,
		"2027-03-28T00:29:00Z": true, // over midnight
		"2027-03-28T00:30:00Z": false,
		"2027-03-28T00:59:00Z": false, // 00:59; the next minute is 02:00
		"2027-03-28T01:00:00Z": true,
		"2027-03-28T01:29:00Z": true,
		"2027-03-28T01:30:00Z": false,
		"2027-10-31T00:29:00Z": false, // Sunday, 01:29 in summer time
		"2027-10-31T00:30:00Z": true,  // 01:30 for the first time
		"2027-10-31T01:00:00Z": false, // 01:00 again
		"2027-10-31T01:30:00Z": true,  // 01:30 again
		"2027-10-31T02:29:00Z": true,
		"2027-10-31T02:30:00Z": false,
	} {
		now := assert.Value(time.Parse(time.RFC3339, at))(t)
		for _, own := range []bool{false, true} {
			want := tunnel.RefusedHours
			if open || own {
				want = ""
			}
			_, release, got := r.reserve("test-model", fleet.ChatCompletions, own, now)
			assert.Equal(t, got, want, at, "own", own, "refused")
			if got == "" {
				release()
			}
		}
	}
}

// [share] models: the hub is offered those alone, and gets no others; programs
// here are served all. [share] groups: they are reported to the hub.
func TestModelsForTheHub(t *testing.T) {
	e := enginetest.New(enginetest.Ollama, enginetest.Options{Models: []enginetest.Model{{ID: "test-model"}, {ID: "private"}}})
	r, _, l := joined(t, Config{Models: []fleet.ModelID{"test-model", "absent"}, Groups: []string{"lab"}}, e)
	if !slices.Equal(l.ad.Groups, []string{"lab"}) || !slices.Equal(r.Status().Groups, []string{"lab"}) {
		t.Errorf("limited to %q, in the status %q", l.ad.Groups, r.Status().Groups)
	}
	assert.That(t, len(l.ad.Models) == 1 && l.ad.Models[0].ID == "test-model", "offered", l.ad.Models)
	private := strings.Replace(chat(false), "test-model", "private", 1)
	if got := l.served("/v1/chat/completions", private, tunnel.HeaderCaller, "own ada").Header.Get(tunnel.HeaderRefused); got != string(tunnel.RefusedUnknownModel) {
		t.Errorf("a model that is not shared: refused %q", got)
	}
	if resp := r.post("/v1/chat/completions", private); resp.StatusCode != http.StatusOK {
		t.Errorf("the same for a program here: status %d", resp.StatusCode)
	}
}
