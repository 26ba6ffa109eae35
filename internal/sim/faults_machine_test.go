package sim

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// The faults of docs/faults.md that take several parts to play: here those of
// tunnels, machines and engines. Others are among the scenarios.

// A laptop's lid falls in the middle of an answer. When it opens again the
// work of before is over, and the machine serves.
func TestFault37LaptopSleeps(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, box := w.addBox(1)
		w.set(enginetest.Behaviour{Chunks: 1000, Interval: time.Second})
		a := w.begin(ask{by: ann, model: "m", stream: true})
		time.Sleep(10 * time.Second)
		box.mu.Lock()
		box.away = true // it finds no network
		box.mu.Unlock()
		box.blackhole()
		<-a.over
		w.wantCode(a, "machine_offline", "")
		assert.Require(w.t, a.framed && a.text != "" && a.took() <= 25500*time.Millisecond, a)
		if u := w.wantRecord(a, "machine_offline", box); u.TokensOut < 9 {
			w.t.Fatalf("%+v", u)
		}
		time.Sleep(time.Hour)
		w.set(enginetest.Behaviour{})
		box.setAway(false)
		w.routable(box)
		w.wantServed(w.do(ask{by: ann, model: "m", stream: true}), 1)
		assert.Require(w.t, len(w.runs.of(a.tag)) == 1, "the work of before ran again")
		w.settled()
	})
}

// An engine that is down is no engine error: the call goes elsewhere, and else it is row 11.
func TestFault40EngineRefusesConnections(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, bob := w.addMember("ann"), w.addMember("bob")
		own := w.addMachine(ann, "own", 1, "m")
		other := w.addMachine(bob, "other", 1, "m")
		w.share(bob, ann)
		own.setDown(true)
		a := w.do(ask{by: ann, model: "m", stream: stream})
		w.wantServed(a, 1)
		if u := w.wantRecord(a, "", other); u.Attempt != 2 {
			w.t.Fatalf("%+v", u)
		}
		other.setDown(true)
		own.setDown(false)
		time.Sleep(time.Minute) // own is offered again, and has an engine
		own.setDown(true)
		a = w.do(ask{by: ann, model: "m", stream: stream})
		w.wantCode(a, "CAPACITY_FULL", "")
		assert.Require(w.t, a.status == 503, a)
		time.Sleep(time.Minute) // the daemons have seen that they are gone
		w.wantCode(w.do(ask{by: ann, model: "m", stream: stream}), "model_not_found", "")
		own.setDown(false)
		time.Sleep(time.Minute)
		w.wantServed(w.do(ask{by: ann, model: "m", stream: stream}), 1)
	})
}

func TestFault42EverySlotOfTheEngineTaken(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann := w.addMember("ann")
		w.addMachine(ann, "one", 1, "m")
		w.addMachine(ann, "two", 1, "m")
		for _, status := range []int{429, 503} {
			w.set(enginetest.Behaviour{Status: status})
			a := w.do(ask{by: ann, model: "m", stream: stream})
			w.wantCode(a, "CAPACITY_FULL", "")
			assert.Require(w.t, a.status == 503 && len(w.runs.of(a.tag)) == 2, a)
			w.wantRecord(a, "CAPACITY_FULL", nil)
		}
	})
}

// Pings distinguish a link that lives from one that does not; the engine's silence has
// its own limits.
func TestFault45EngineHangsBeforeFirstByte(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann := w.addMember("ann")
		w.addMachine(ann, "one", 1, "m")
		w.addMachine(ann, "two", 1, "m")
		w.set(enginetest.Behaviour{Fault: enginetest.Hang})
		a := w.begin(ask{by: ann, model: "m", stream: stream})
		box := w.on(a)
		<-a.over
		w.wantCode(a, "engine_timeout", "")
		if stream {
			w.within("given up", a.took(), 10*time.Minute)
		} else {
			w.within("given up", a.took(), 590*time.Second)
			assert.Require(w.t, a.status == 504 && a.header.Get("X-Should-Retry") == "false", a, a.header)
		}
		assert.Require(w.t, a.framed == stream && a.text == "" && len(w.runs.of(a.tag)) == 1, a)
		w.stopped(box)
		w.wantRecord(a, "engine_timeout", box)
		w.settled()
	})
}

func TestFault46EngineHangsUnderway(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, box := w.addBox(1)
		w.set(enginetest.Behaviour{Fault: enginetest.Hang, After: 2})
		a := w.do(ask{by: ann, model: "m", stream: true})
		w.wantCode(a, "engine_timeout", "")
		w.within("given up", a.took(), 2*time.Minute)
		assert.Require(w.t, a.framed && a.text != "", a)
		w.stopped(box)
		if u := w.wantRecord(a, "engine_timeout", box); u.TokensOut != 2 {
			w.t.Fatalf("%+v", u)
		}
		w.settled()
	})
}

func TestFault48EngineNeverEnds(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, box := w.addBox(1)
		w.set(enginetest.Behaviour{Fault: enginetest.Endless, Interval: 7 * time.Second})
		a := w.do(ask{by: ann, model: "m", stream: true})
		w.wantCode(a, "engine_timeout", "")
		w.within("given up", a.took(), 30*time.Minute)
		assert.Require(w.t, a.framed && len(w.runs.of(a.tag)) == 1, a)
		w.stopped(box)
		if u := w.wantRecord(a, "engine_timeout", box); u.TokensOut < 257 || u.TokensOut > 259 {
			w.t.Fatalf("%+v", u)
		}
		w.settled()
	})
}

// An answer in another wrapping is unwrapped; what cannot be read is the
// engine's failure on this very call.
func TestFault50AnswerInAnotherForm(t *testing.T) {
	for name, c := range map[string]struct {
		behaviour enginetest.Behaviour
		code      string
	}{
		"not streamed":           {enginetest.Behaviour{Fault: enginetest.Unstreamed}, ""},
		"zipped":                 {enginetest.Behaviour{Fault: enginetest.Zipped}, ""},
		"not streamed, nonsense": {enginetest.Behaviour{Fault: enginetest.Unstreamed, Answer: "<html>"}, "engine_error"},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(w *world, stream bool) {
				ann := w.addMember("ann")
				w.addMachine(ann, "one", 1, "m")
				w.addMachine(ann, "two", 1, "m")
				w.set(c.behaviour)
				a := w.do(ask{by: ann, model: "m", stream: stream})
				if c.code == "" {
					w.wantServed(a, 1)
					return
				}
				w.wantCode(a, c.code, "")
				assert.Require(w.t, a.status == 502 && len(w.runs.of(a.tag)) == 1, a)
			})
		})
	}
}

// An engine that denies having a model, of one call, and lists it: the other
// machines are tried, three in all, and the next call finds all of them offered.
func TestFault51EngineDeniesTheModelOnce(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann := w.addMember("ann")
		var machines []*machine
		for _, name := range []string{"one", "two", "three", "four"} {
			machines = append(machines, w.addMachine(ann, name, 1, "m"))
		}
		w.set(enginetest.Behaviour{Status: http.StatusNotFound})
		a := w.do(ask{by: ann, model: "m", stream: stream})
		w.wantCode(a, "CAPACITY_FULL", "")
		assert.That(w.t, a.status == 503 && len(w.runs.of(a.tag)) == 3, len(w.runs.of(a.tag)), "runs", a)
		for _, m := range machines { // the one that was not tried serves none of the next
			if !slices.ContainsFunc(w.runs.of(a.tag), func(r run) bool { return r.machine == m }) {
				w.pause(m, true)
			}
		}
		w.set(enginetest.Behaviour{})
		for range 2 {
			a := w.do(ask{by: ann, model: "m", stream: stream})
			w.wantServed(a, 1)
			assert.That(w.t, a.took() <= time.Second, a)
		}
	})
}
