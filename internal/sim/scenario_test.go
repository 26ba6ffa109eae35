package sim

import (
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/enginetest"
)

// slow makes every call take that long before its first byte.
func slow(d time.Duration) enginetest.Behaviour { return enginetest.Behaviour{First: d} }

// paced makes every call say a word each d.
func paced(d time.Duration) enginetest.Behaviour { return enginetest.Behaviour{Interval: d} }

// set makes all machines' engines behave so.
func (w *world) set(b enginetest.Behaviour) {
	for _, m := range w.machines {
		m.engine.Set(b)
	}
}

// on is the machine on which a call ran last.
func (w *world) on(a *answer) *machine {
	w.t.Helper()
	w.begun(a)
	runs := w.runs.of(a.tag)
	return runs[len(runs)-1].machine
}

// wantServed fails the test unless the call was served completely, by so many runs.
func (w *world) wantServed(a *answer, runs int) {
	w.t.Helper()
	assert.Require(w.t, a.err == nil && a.served() && a.text == a.said, a)
	if n := len(w.runs.of(a.tag)); n != runs {
		w.t.Fatalf("%d runs, not %d: %s", n, runs, a)
	}
}

// wantCode fails the test unless the call ended with that code and reason.
func (w *world) wantCode(a *answer, code, reason string) {
	w.t.Helper()
	assert.Require(w.t, a.err == nil && a.code == code && a.reason == reason && !a.done, code, reason, a)
	if retry := a.header.Get("Retry-After"); a.status == 503 && retry == "" {
		w.t.Fatalf("no Retry-After: %s", a)
	}
}

// within fails the test unless d is what is wanted, give or take half a second.
func (w *world) within(what string, d, want time.Duration) {
	w.t.Helper()
	if d < want-500*time.Millisecond || d > want+500*time.Millisecond {
		w.t.Fatalf("%s after %s, not %s", what, d, want)
	}
}

func (a *answer) took() time.Duration { return a.ended.Sub(a.began) }

// both runs a test for unary and streamed calls.
func both(t *testing.T, test func(w *world, stream bool)) {
	for name, stream := range map[string]bool{"unary": false, "stream": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) { test(w, stream) })
		})
	}
}

// deaths are the ways in which a machine goes away.
var deaths = map[string]func(*machine){
	"reset": (*machine).cut, "stopped": (*machine).stop, "black-holed": (*machine).blackhole,
}

// A call whose machine goes away before the first byte is served by another machine. If
// there is none, a streamed call ends as full, and a unary one, which may have started, as
// offline.
func TestMachineDiesBeforeFirstByte(t *testing.T) {
	for name, die := range deaths {
		for _, other := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, other %v", name, other), func(t *testing.T) {
				both(t, func(w *world, stream bool) {
					ann, box := w.addBox(1)
					w.set(slow(time.Minute))
					a := w.begin(ask{by: ann, model: "m", stream: stream})
					w.begun(a)
					if other {
						w.addMachine(ann, "other", 1, "m")
					}
					time.Sleep(time.Second)
					die(box)
					<-a.over
					found, code, hidden := time.Second, "", name == "black-holed"
					if hidden {
						found = 16 * time.Second
					}
					assert.That(w.t, a.took() <= found+500*time.Millisecond, "found late", a)
					if other {
						w.wantServed(a, 2)
					} else {
						code = map[bool]string{true: "CAPACITY_FULL", false: "machine_offline"}[stream]
						w.wantCode(a, code, "")
						assert.Equal(w.t, a.framed, stream && hidden, a)
					}
					time.Sleep(15 * time.Second) // the daemon finds out by itself
					w.stopped(box)
					if u := w.wantRecord(a, code, nil); other && (u.Attempt != 2 || u.MachineID == box.id) {
						w.t.Errorf("%+v", u)
					}
					w.settled()
				})
			})
		}
	}
}

func TestMachineDiesAfterFirstByte(t *testing.T) {
	for name, die := range deaths {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				ann := w.addMember("ann")
				w.addMachine(ann, "one", 1, "m")
				w.addMachine(ann, "two", 1, "m")
				w.set(paced(20 * time.Second))
				a := w.begin(ask{by: ann, model: "m", stream: true})
				time.Sleep(21 * time.Second)
				die(w.on(a))
				<-a.over
				w.wantCode(a, "machine_offline", "")
				if !a.framed || a.text == "" || !strings.HasPrefix(a.said, a.text) || len(w.runs.of(a.tag)) != 1 {
					w.t.Fatal(a)
				}
				limit := 22 * time.Second
				if name == "black-holed" {
					limit = 36*time.Second + 100*time.Millisecond
				}
				assert.Require(w.t, a.took() <= limit, "found after", a.took())
				if u := w.wantRecord(a, "machine_offline", w.on(a)); u.TokensOut != 2 {
					w.t.Fatalf("%+v", u)
				}
			})
		})
	}
}

func TestUnaryVanishes(t *testing.T) {
	inBubble(t, func(w *world) {
		ann := w.addMember("ann")
		for _, name := range []string{"one", "two", "three"} {
			w.addMachine(ann, name, 1, "m")
		}
		w.set(paced(10 * time.Second)) // 30 s in all
		a := w.begin(ask{by: ann, model: "m", words: 3})
		time.Sleep(5 * time.Second)
		w.on(a).blackhole()
		<-a.over
		w.wantServed(a, 2)

		time.Sleep(time.Minute)
		a = w.begin(ask{by: ann, model: "m"})
		w.on(a).cut()
		time.Sleep(time.Second)
		w.on(a).cut()
		<-a.over
		w.wantCode(a, "machine_offline", "")
		assert.Require(w.t, a.status == 503 && len(w.runs.of(a.tag)) == 2, a)
	})
}

// A unary call that lost its machine ends as machine_offline, also after a wait for
// another machine and after attempts that did not start (spec/routing.md#vanished).
func TestUnaryVanishesLast(t *testing.T) {
	for name, c := range map[string]struct {
		reason string
		others int
		then   func(w *world, others []*machine)
	}{
		"waits to its deadline": {"wait_elapsed", 1, func(*world, []*machine) {}},
		"waits for a machine that pauses": {"", 1, func(w *world, others []*machine) {
			time.Sleep(3 * time.Second)
			w.pause(others[0], true)
		}},
		"no other engine runs": {"", 3, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				ann := w.addMember("ann")
				for i := range 1 + c.others {
					w.addMachine(ann, fmt.Sprint("box", i), 1, "m")
				}
				w.set(slow(5 * time.Minute))
				a := w.begin(ask{by: ann, model: "m"})
				w.begun(a)
				its := w.on(a)
				others := slices.DeleteFunc(slices.Clone(w.machines), func(m *machine) bool { return m == its })
				if c.then != nil {
					w.begun(w.begin(ask{by: ann, model: "m", stream: true})) // the other machine is busy
				} else {
					for _, m := range others {
						m.setDown(true)
					}
				}
				its.setAway(true)
				if c.then != nil {
					c.then(w, others)
				}
				<-a.over
				w.wantCode(a, "machine_offline", c.reason)
			})
		})
	}
}

// inOrder lets calls of two members wait for a machine of one slot, the i-th at the node
// via(i), and newcomers come each 100 ms, also at the instants at which the slot comes
// free. The newcomers pass none. It returns the last call that waited.
func (w *world) inOrder(n int, via func(i int) *seat, bob, cid *member) *answer {
	w.t.Helper()
	time.Sleep(5 * time.Second)
	w.set(slow(10 * time.Second))
	var all []*answer
	for i := range n {
		by := []*member{cid, bob}[i%2]
		all = append(all, w.begin(ask{by: by, model: "m", stream: true, via: via(i)}))
		time.Sleep(time.Second)
	}
	for i := range 70 {
		all = append(all, w.begin(ask{by: bob, model: "m", prefer: "wait=2", via: via(i)}))
		time.Sleep(100 * time.Millisecond)
	}
	var order, ran []string
	for i, a := range all {
		<-a.over
		if i < n {
			w.wantServed(a, 1)
			order = append(order, a.tag)
		} else {
			w.wantCode(a, "CAPACITY_FULL", "wait_elapsed")
		}
	}
	for _, r := range w.runs.all {
		ran = append(ran, r.call)
	}
	assert.Same(w.t, ran, order)
	return all[n-1]
}

func TestQueueIsFirstInFirstOut(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, bob, _ := w.addShared(1)
		cid := w.addMember("cid")
		w.share(ann, cid)
		last := w.inOrder(5, func(int) *seat { return nil }, bob, cid)
		assert.Same(w.t, last.comments[:4], []string{
			"waiting 3 ahead, 175 s left", "waiting 2 ahead, 165 s left", "waiting 1 ahead, 155 s left", "waiting 0 ahead, 145 s left",
		})
	})
}

// A machine's owner goes ahead of others on that machine, and nowhere else.
func TestOwnerGoesAheadInTheQueue(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, bob, _ := w.addShared(1)
		w.addMachine(bob, "tower", 1, "n")
		w.share(bob, ann)
		time.Sleep(5 * time.Second)
		w.set(slow(10 * time.Second))
		w.begun(w.begin(ask{by: bob, model: "m"}))
		w.begun(w.begin(ask{by: bob, model: "n"}))
		begin := func(by *member, model string) *answer {
			time.Sleep(time.Second)
			return w.begin(ask{by: by, model: model, stream: stream})
		}
		theirs, owners := begin(bob, "m"), begin(ann, "m")
		earlier, later := begin(bob, "n"), begin(ann, "n")
		for _, a := range []*answer{theirs, owners, earlier, later} {
			<-a.over
			w.wantServed(a, 1)
		}
		if !owners.ended.Before(theirs.ended) || !earlier.ended.Before(later.ended) {
			w.t.Fatal(theirs, owners, earlier, later)
		}
	})
}

func TestWaitElapses(t *testing.T) {
	for name, c := range map[string]struct {
		ask
		want time.Duration
		code string
	}{
		"unary":      {ask{model: "m"}, 60 * time.Second, "CAPACITY_FULL"},
		"stream":     {ask{model: "m", stream: true}, 180 * time.Second, "CAPACITY_FULL"},
		"embeddings": {ask{model: "emb"}, 60 * time.Second, "CASCADE_EXHAUSTED"},
		"prefer":     {ask{model: "m", prefer: "wait=3"}, 3 * time.Second, "CAPACITY_FULL"},
		"not at all": {ask{model: "m", stream: true, prefer: "wait=0"}, 0, "CAPACITY_FULL"},
		"no longer":  {ask{model: "m", prefer: "wait=1000"}, 60 * time.Second, "CAPACITY_FULL"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				ann := w.addMember("ann")
				w.addMachine(ann, "box", 1, "m", "emb")
				w.set(slow(5 * time.Minute))
				first := w.begin(ask{by: ann, model: "m", stream: true})
				w.begun(first)
				c.by = ann
				a := w.do(c.ask)
				w.wantCode(a, c.code, "wait_elapsed")
				w.within("refused", a.took(), c.want)
				assert.Require(w.t, a.framed == (a.stream && c.want > 5*time.Second), a)
				if name == "stream" {
					for i, at := range a.beats {
						w.within("heartbeat", at, 5*time.Second+time.Duration(i)*10*time.Second)
					}
					if len(a.beats) != 18 || a.comments[1] != "waiting 0 ahead, 165 s left" {
						w.t.Fatalf("%v %q", a.beats, a.comments)
					}
				}
				first.quit()
				<-first.over
				w.settled()
			})
		})
	}
}

func TestHubRestarts(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, box := w.addBox(1)
		w.set(paced(time.Second))
		cut := w.begin(ask{by: ann, model: "m", stream: true, words: 60})
		w.begun(cut)
		box.setAway(true)
		w.stopHub()
		<-cut.over
		assert.Require(w.t, !cut.done, cut)
		w.startHub()
		// Until 30 s after its start the hub expects the machine back.
		a := w.begin(ask{by: ann, model: "m"})
		time.Sleep(20 * time.Second)
		late := w.begin(ask{by: ann, model: "m"})
		<-a.over
		w.wantCode(a, "machine_offline", "")
		w.within("refused", a.took(), 30*time.Second)
		<-late.over
		w.wantCode(late, "machine_offline", "")
		w.within("refused", late.took(), 10*time.Second)
		a = w.do(ask{by: ann, model: "m", stream: true})
		w.wantCode(a, "machine_offline", "")
		w.within("refused", a.took(), 0)
		w.wantCode(w.do(ask{by: ann, model: "nobody's"}), "model_not_found", "")

		box.setAway(false)
		w.routable(box)
		w.wantServed(w.do(ask{by: ann, model: "m"}), 1)

		w.stopHub()
		w.startHub()
		a = w.do(ask{by: ann, model: "m", stream: true})
		w.wantServed(a, 1)
		w.settled()
	})
}

func TestClientLeaves(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, box := w.addBox(1)
		w.set(paced(time.Second))
		a := w.begin(ask{by: ann, model: "m", stream: stream, words: 100})
		w.begun(a)
		waits := w.begin(ask{by: ann, model: "m", words: 1})
		time.Sleep(5 * time.Second)
		a.quit()
		<-a.over
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if c := box.engine.Counts(); c.Cancelled != 1 {
			w.t.Fatalf("%+v", c)
		}
		<-waits.over
		w.wantServed(waits, 1)
		w.within("served", waits.took(), 6*time.Second) // two words
		w.settled()
	})
}

func TestEngineFails(t *testing.T) {
	for name, c := range map[string]struct {
		behaviour enginetest.Behaviour
		status    int    // before the first byte
		code      string // empty: served by the other machine
		streamed  bool   // there is no such thing of unary answers
	}{
		"500":             {enginetest.Behaviour{Status: 500}, 502, "engine_error", false},
		"400":             {enginetest.Behaviour{Status: 400}, 400, "invalid_request", false},
		"422":             {enginetest.Behaviour{Status: 422}, 400, "invalid_request", false},
		"401":             {enginetest.Behaviour{Status: 401}, 502, "engine_error", false},
		"403":             {enginetest.Behaviour{Status: 403}, 502, "engine_error", false},
		"503":             {enginetest.Behaviour{Status: 503}, 0, "", false},
		"429":             {enginetest.Behaviour{Status: 429}, 0, "", false},
		"404":             {enginetest.Behaviour{Status: 404}, 0, "", false},
		"dies at once":    {enginetest.Behaviour{Fault: enginetest.Die}, 502, "engine_error", false},
		"dies in between": {enginetest.Behaviour{Fault: enginetest.Die, After: 2, Interval: 600 * time.Millisecond}, 502, "engine_error", false},
		"no end mark":     {enginetest.Behaviour{Fault: enginetest.Unmarked}, 502, "engine_error", true},
		"no end":          {enginetest.Behaviour{Fault: enginetest.Cut, After: 2}, 502, "engine_error", false},
		"nonsense":        {enginetest.Behaviour{Fault: enginetest.Garbage, After: 2}, 502, "engine_error", false},
		"HTML":            {enginetest.Behaviour{Raw: []string{"<html>busy</html>\n\n"}, Answer: "<html>busy</html>"}, 502, "engine_error", false},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(w *world, stream bool) {
				if c.streamed && !stream {
					return
				}
				ann, bob := w.addMember("ann"), w.addMember("bob")
				own := w.addMachine(ann, "own", 1, "m")
				w.addMachine(bob, "other", 1, "m")
				w.share(bob, ann)
				own.engine.Set(c.behaviour)
				a := w.do(ask{by: ann, model: "m", stream: stream})
				if c.code == "" {
					w.wantServed(a, 2)
					if route := a.header.Get("X-Kith-Route"); route != "own; machine=own; owner=ann, shared; machine=other; owner=bob" {
						w.t.Errorf("route %q", route)
					}
					if u := w.wantRecord(a, "", w.on(a)); u.Attempt != 2 {
						w.t.Errorf("%+v", u)
					}
					return
				}
				w.wantCode(a, c.code, "")
				if !a.framed && a.status != c.status || a.framed != (stream && a.text != "") || len(w.runs.of(a.tag)) != 1 || a.took() > 2*time.Second {
					w.t.Error(a)
				}
				if c.code == "invalid_request" && !strings.Contains(a.message, "an error that was asked for") {
					w.t.Errorf("the engine's words are lost: %q", a.message)
				}
				w.wantRecord(a, c.code, own)
				w.settled()
			})
		})
	}
}

// A machine that its owner's own call fills before the hub knows it refuses;
// the call waits and is served soon after the slot is free, and those who wait
// with it are not sent there in circles.
func TestBusyWithoutTheHubKnowing(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, box := w.addBox(1)
		w.set(slow(10 * time.Second))
		local := make(chan int)
		go func() {
			r := httptest.NewRequest("POST", "http://127.0.0.1:80/v1/chat/completions",
				strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"tag-local one"}]}`))
			r.Header.Set("Content-Type", "application/json")
			recorder := httptest.NewRecorder()
			box.Handler().ServeHTTP(recorder, r)
			local <- recorder.Code
		}()
		synctest.Wait()
		var all []*answer
		for range 3 {
			all = append(all, w.begin(ask{by: ann, model: "m", stream: true}))
		}
		if code := <-local; code != 200 {
			w.t.Fatalf("the owner's own call: %d", code)
		}
		w.set(enginetest.Behaviour{})
		for _, a := range all {
			<-a.over
			w.wantServed(a, 1)
			w.within("served", a.took(), 10*time.Second)
		}
		records, err := w.db.Usage(w.t.Context())
		w.must(err)
		for _, u := range records {
			assert.That(w.t, u.Attempt <= 5, u.Attempt, "attempts")
		}
		w.settled()
	})
}

// The end of a key ends what runs by it and what waits with it.
func TestKeyRevokedUnderway(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, _ := w.addBox(1)
		w.set(paced(2 * time.Second))
		runs := w.begin(ask{by: ann, model: "m", stream: stream, words: 100})
		w.begun(runs)
		waits := w.begin(ask{by: ann, model: "m", stream: stream})
		time.Sleep(10 * time.Second)
		old := ann.key.ID
		w.addKey(ann, "all") // another key of the same member goes on
		other := w.begin(ask{by: ann, model: "m", stream: stream, words: 2})
		time.Sleep(10 * time.Second)
		w.must(w.db.RevokeKey(w.t.Context(), old, time.Now()))
		<-runs.over
		<-waits.over
		for _, a := range []*answer{runs, waits} {
			w.wantCode(a, "invalid_api_key", "")
			assert.That(w.t, a.took() <= 25*time.Second, a)
		}
		assert.That(w.t, runs.framed == stream && (stream || runs.status == 401), runs)
		u := w.wantRecord(runs, "invalid_api_key", w.on(runs))
		if w.wantRecord(waits, "invalid_api_key", nil); stream && u.TokensOut < 9 {
			w.t.Errorf("%+v", u)
		}
		<-other.over
		w.wantServed(other, 1)
		w.settled()
	})
}

// A look-up of a key that fails after a change is repeated: the call ends when it
// shows that the key is revoked, or when it has failed for 30 s.
func TestKeyRevokedUnseen(t *testing.T) {
	for code, fails := range map[string]time.Duration{"invalid_api_key": 10 * time.Second, "CASCADE_EXHAUSTED": time.Minute} {
		inBubble(t, func(w *world) {
			ann, _ := w.addBox(1)
			w.set(paced(time.Second))
			a := w.begin(ask{by: ann, model: "m", stream: true, words: 100})
			w.begun(a)
			w.keys.Store(true)
			began := time.Now()
			time.AfterFunc(fails, func() { w.keys.Store(false) })
			w.must(w.db.RevokeKey(w.t.Context(), ann.key.ID, began))
			<-a.over
			w.wantCode(a, code, "")
			if took := a.ended.Sub(began); !a.framed || took > min(fails+2*time.Second, 30*time.Second) {
				w.t.Errorf("after %s: %s", took, a)
			}
			time.Sleep(time.Until(began.Add(fails)))
			w.settled()
		})
	}
}

// The end of a share, or of a membership, ends what runs by it, and not the owner's calls.
func TestShareEndedUnderway(t *testing.T) {
	for name, c := range map[string]struct {
		kind, code string
		elsewhere  bool
	}{
		"share":                  {"share ended", "NOT_IN_CIRCLE", false},
		"share, another machine": {"share ended", "CASCADE_EXHAUSTED", true},
		"group":                  {"group left", "NOT_IN_CIRCLE", false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				ann, box := w.addBox(2)
				bob := w.addMember("bob")
				w.give(c.kind, ann, bob)
				time.Sleep(2 * time.Second)
				w.wantServed(w.do(ask{by: bob, model: "m"}), 1) // until then a machine of a group runs one at once
				w.set(paced(2 * time.Second))
				a := w.begin(ask{by: bob, model: "m", stream: true, words: 100})
				own := w.begin(ask{by: ann, model: "m", stream: true, words: 10})
				time.Sleep(11 * time.Second)
				if c.elsewhere {
					w.addMachine(bob, "bobs", 1, "m")
				}
				w.must(revocations[c.kind](w, ann, bob))
				<-a.over
				w.wantCode(a, c.code, "")
				assert.That(w.t, a.framed && a.text != "" && a.took() <= 16*time.Second, a)
				if u := w.wantRecord(a, c.code, box); u.TokensOut < 5 {
					w.t.Errorf("%+v", u)
				}
				<-own.over
				w.wantServed(own, 1)
				w.settled()
			})
		})
	}
}

// A call that is cancelled on one machine, because a share ended, begins on another
// one only when the first has stopped, also when the first is connected to another node,
// whichever node is the first to know that the share ended.
func TestMovesOnOnceStopped(t *testing.T) {
	for lingers, runs := range map[time.Duration]int{0: 2, time.Second: 2, 5 * time.Second: 1} {
		both(t, func(w *world, stream bool) { w.movesOnOnceStopped(stream, lingers, runs, nil, nil) })
		for _, stream := range []bool{false, true} {
			for _, first := range []int{0, 1} {
				inCluster(t, 2, func(w *world, seats []*seat) {
					w.movesOnOnceStopped(stream, lingers, runs, seats[1], seats[first])
				})
			}
		}
	}
}

// movesOnOnceStopped ends the share of a call whose engine runs on for lingers. runs is on
// how many machines the call is to run. If there are two nodes, the machine is connected
// to home, and first knows half a second before the other that the share ended.
func (w *world) movesOnOnceStopped(stream bool, lingers time.Duration, runs int, home, first *seat) {
	ann, bob := w.addMember("ann"), w.addMember("bob")
	box := w.addMachine(ann, "box", 1, "m")
	if home != nil {
		box.moveTo(home)
	}
	box.lingers = lingers
	w.share(ann, bob)
	time.Sleep(2 * time.Second) // all nodes know
	box.engine.Set(slow(time.Minute))
	a := w.begin(ask{by: bob, model: "m", stream: stream})
	w.begun(a)
	w.addMachine(bob, "bobs", 1, "m")
	for _, n := range w.nodes() {
		n.down.Store(first != nil && n != first.Load())
	}
	w.must(w.db.RemoveShare(w.t.Context(), ann.ID, bob.ID))
	for _, n := range w.nodes() {
		n.live.Settle(w.t.Context())
	}
	time.Sleep(500 * time.Millisecond)
	for _, n := range w.nodes() {
		n.down.Store(false)
	}
	<-a.over
	time.Sleep(10 * time.Second)
	got := w.runs.of(a.tag)
	assert.That(w.t, len(got) == runs && (runs != 2 || !got[1].at.Before(got[0].left)), a, got)
	if runs == 2 {
		w.wantServed(a, 2)
		if why, _ := w.why(bob, a); why.Tries[0].Outcome != "was no longer available to the caller" {
			w.t.Errorf("%+v", why.Tries)
		}
		return
	}
	w.wantCode(a, "CASCADE_EXHAUSTED", "")
}

func TestShareEnded(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, bob := w.addMember("ann"), w.addMember("bob")
		w.addMachine(ann, "box", 1, "m")
		w.wantCode(w.do(ask{by: bob, model: "m"}), "NOT_IN_CIRCLE", "")
		w.wantCode(w.do(ask{by: bob, model: "n"}), "model_not_found", "")
		w.share(ann, bob)
		w.set(slow(10 * time.Second))
		a := w.begin(ask{by: ann, model: "m"})
		w.begun(a)
		waits := w.begin(ask{by: bob, model: "m"})
		time.Sleep(time.Second)
		w.must(w.db.RemoveShare(w.t.Context(), ann.ID, bob.ID))
		<-waits.over
		w.wantCode(waits, "NOT_IN_CIRCLE", "")
		assert.That(w.t, waits.took() <= 6*time.Second, waits)
		w.wantCode(w.do(ask{by: bob, model: "m", stream: true}), "NOT_IN_CIRCLE", "")
		<-a.over
		w.wantServed(a, 1)
	})
}

func TestMemberDisabled(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, bob, box := w.addShared(1)
		w.addMachine(bob, "bobs", 1, "n")
		w.must(w.db.SetMemberDisabled(w.t.Context(), ann.ID, true))
		time.Sleep(5 * time.Second)
		w.wantCode(w.do(ask{by: ann, model: "m"}), "invalid_api_key", "")
		w.wantCode(w.do(ask{by: bob, model: "m"}), "model_not_found", "")
		if s := box.Status().Tunnel; s.State != daemon.TunnelRefused || !strings.Contains(s.Error, "sign in again") {
			w.t.Errorf("%+v", s)
		}
		w.must(w.db.SetMemberDisabled(w.t.Context(), ann.ID, false))
		box.stop()
		box.start()
		time.Sleep(2 * time.Second)
		w.wantServed(w.do(ask{by: bob, model: "m"}), 1)
	})
}

func TestMachineRevoked(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, box := w.addBox(1)
		w.set(paced(time.Second))
		a := w.begin(ask{by: ann, model: "m", stream: true, words: 60})
		time.Sleep(3 * time.Second)
		w.must(w.db.RevokeMachine(w.t.Context(), box.id, time.Now()))
		<-a.over
		w.wantCode(a, "machine_offline", "")
		assert.That(w.t, a.took() <= 8*time.Second, a)
		time.Sleep(time.Second)
		if s := box.Status().Tunnel; s.State != daemon.TunnelRefused || !strings.Contains(s.Error, "sign in again") {
			w.t.Errorf("%+v", s)
		}
		assert.That(w.t, box.newest().dead(), "the tunnel lives")
		w.wantCode(w.do(ask{by: ann, model: "m"}), "model_not_found", "")
	})
}

// While the database cannot be read the hub serves for 5 s from what it knows
// and then refuses; who waits, waits on.
func TestDatabaseDown(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, _ := w.addBox(1)
		w.set(slow(20 * time.Second))
		a := w.begin(ask{by: ann, model: "m"})
		w.begun(a)
		waits := w.begin(ask{by: ann, model: "m", stream: true})
		synctest.Wait()
		w.down.Store(true)
		w.set(enginetest.Behaviour{})
		time.Sleep(10 * time.Second)
		for _, stream := range []bool{false, true} {
			w.wantCode(w.do(ask{by: ann, model: "m", stream: stream}), "CASCADE_EXHAUSTED", "")
		}
		<-a.over
		w.wantServed(a, 1)
		<-waits.over
		w.wantCode(waits, "CASCADE_EXHAUSTED", "")
		w.within("refused", waits.took(), 180*time.Second)
		w.down.Store(false)
		time.Sleep(2 * time.Second)
		w.wantServed(w.do(ask{by: ann, model: "m"}), 1)
		time.Sleep(2 * time.Second)
		records, err := w.db.Usage(w.t.Context())
		w.must(err)
		if len(records) != 3 { // where the key could not be checked there was no call
			w.t.Errorf("%d records", len(records))
		}
	})
}

// settled fails the test unless, soon after everything ended, nothing is held.
func (w *world) settled() {
	w.t.Helper()
	time.Sleep(3 * time.Second)
	synctest.Wait()
	for _, n := range w.nodes() {
		for m := range n.live.Snapshot().Machines() {
			assert.Equal(w.t, m.Load.InFlight(), 0, n.name, "holds", "slots of", m.Name)
		}
	}
	for _, m := range w.machines {
		assert.Equal(w.t, m.engine.Counts().Running, 0, "the engine of", m.name, "still runs")
		if m.end != nil && m.Status().Routed != 0 {
			w.t.Errorf("the daemon of %s holds %d slots", m.name, m.Status().Routed)
		}
	}
}

// routable waits until the machine is in the fleet.
func (w *world) routable(m *machine) {
	w.t.Helper()
	for range 120 {
		if found := w.machineNow(m); found {
			return
		}
		time.Sleep(time.Second)
	}
	w.t.Fatalf("%s is not back: %+v", m.name, m.Status().Tunnel)
}
