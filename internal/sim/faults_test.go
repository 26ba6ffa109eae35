package sim

import (
	"bufio"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/spool"
)

// The faults of docs/faults.md that take several parts to play, by their
// numbers there: here those of callers, of people and of the hub itself.

// record is the one usage record of a call that is over.
func (w *world) record(a *answer) account.Usage {
	w.t.Helper()
	time.Sleep(2 * time.Second)
	all, err := w.db.Usage(w.t.Context())
	w.must(err)
	var found []account.Usage
	for _, u := range all {
		if id := a.header.Get("X-Correlation-ID"); id == u.CallID || id == "" && u.Started.Equal(a.began) {
			found = append(found, u)
		}
	}
	assert.Require(w.t, len(found) == 1 && found[0].MemberID == a.by.ID, len(found), "records", a)
	return found[0]
}

// wantRecord fails the test unless the call's record has that code and, if
// ran is not nil, names that machine.
func (w *world) wantRecord(a *answer, code string, ran *machine) account.Usage {
	w.t.Helper()
	u := w.record(a)
	assert.Require(w.t, u.Code == code && (ran == nil || u.MachineID == ran.id), "record", u, a)
	return u
}

// stopped fails the test unless 2 s from now the machine's engine is idle.
func (w *world) stopped(m *machine) {
	w.t.Helper()
	time.Sleep(2 * time.Second)
	synctest.Wait()
	if c := m.engine.Counts(); c.Running != 0 || c.Cancelled == 0 {
		w.t.Fatalf("the engine of %s computes on: %+v", m.name, c)
	}
}

// refused fails the test unless the call is refused so, at once.
func (w *world) refused(q ask, status int, code string) {
	w.t.Helper()
	a := w.do(q)
	w.wantCode(a, code, "")
	assert.Require(w.t, a.status == status && a.took() <= 50*time.Millisecond && len(w.runs.of(a.tag)) == 0, a)
	w.wantRecord(a, code, nil)
}

func TestFault02ClientLeavesTheQueue(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, _ := w.addBox(1)
		w.set(slow(10 * time.Second))
		first := w.begin(ask{by: ann, model: "m"})
		w.begun(first)
		time.Sleep(time.Second)
		a := w.begin(ask{by: ann, model: "m", stream: stream})
		time.Sleep(time.Second)
		behind := w.begin(ask{by: ann, model: "m", stream: stream})
		time.Sleep(time.Second)
		a.quit()
		<-a.over
		<-first.over
		<-behind.over
		w.wantServed(behind, 1)
		w.within("the slot passed on", behind.took(), 18*time.Second)
		assert.Require(w.t, len(w.runs.of(a.tag)) == 0, "a call ran for nobody")
		if u := w.wantRecord(a, "cancelled", nil); u.MachineID != "" {
			w.t.Fatalf("%+v", u)
		}
	})
}

func TestFault03ClientLeavesBeforeFirstByte(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann := w.addMember("ann")
		w.addMachine(ann, "one", 1, "m")
		w.addMachine(ann, "two", 1, "m")
		w.set(slow(time.Minute))
		a := w.begin(ask{by: ann, model: "m", stream: stream})
		box := w.on(a)
		time.Sleep(3 * time.Second)
		a.quit()
		<-a.over
		w.stopped(box)
		assert.Require(w.t, len(w.runs.of(a.tag)) == 1, "it was tried again")
		w.wantRecord(a, "cancelled", box)
		w.settled()
	})
}

// A client that stays connected and reads no more is cut 20 s after the first
// frame it did not take.
func TestFault04ClientStopsReading(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, box := w.addBox(1)
		w.set(enginetest.Behaviour{Chunks: 1000, Interval: time.Second})
		client, err := w.at.Load().dial(w.t.Context())
		w.must(err)
		defer client.Close()
		began := time.Now()
		body := `{"model":"m","stream":true,"messages":[{"role":"user","content":"tag-1 word"}]}`
		fmt.Fprintf(client, "POST /v1/chat/completions HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", ann.secret, len(body), body)
		for lines := bufio.NewScanner(client); lines.Scan() && !strings.Contains(lines.Text(), "word"); {
		}
		time.Sleep(19 * time.Second)
		if c := box.engine.Counts(); c.Running != 1 {
			w.t.Fatalf("cut too soon: %+v", c)
		}
		time.Sleep(2 * time.Second)
		w.stopped(box)
		u := w.wantRecord(&answer{ask: ask{by: ann}, began: began}, "cancelled", box)
		assert.Require(w.t, u.TokensOut >= 2 && u.TokensOut <= 25, u)
		w.settled()
	})
}

// Before the first byte a call whose share ends goes on elsewhere, if anywhere.
func TestFault08ShareEndsBeforeFirstByte(t *testing.T) {
	for name, c := range map[string]struct {
		others bool // another machine is in reach
		sharer bool // another member still shares another model
		code   string
	}{
		"another machine": {true, true, ""},
		"no other":        {false, true, "CASCADE_EXHAUSTED"},
		"nobody shares":   {false, false, "NOT_IN_CIRCLE"},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(w *world, stream bool) {
				ann, bob, cid := w.addMember("ann"), w.addMember("bob"), w.addMember("cid")
				box := w.addMachine(ann, "box", 2, "m") // goes first: more is free
				w.share(ann, bob)
				if c.sharer {
					w.addMachine(cid, "cids", 1, "n")
					w.share(cid, bob)
				}
				box.engine.Set(slow(time.Minute))
				a := w.begin(ask{by: bob, model: "m", stream: stream})
				w.begun(a)
				if c.others {
					w.addMachine(cid, "other", 1, "m")
				}
				time.Sleep(8 * time.Second)
				w.must(w.db.RemoveShare(w.t.Context(), ann.ID, bob.ID))
				<-a.over
				assert.Require(w.t, a.took() <= 13*time.Second, a)
				if c.code == "" {
					w.wantServed(a, 2)
				} else if w.wantCode(a, c.code, ""); a.framed != stream {
					w.t.Fatal(a)
				}
				w.stopped(box)
				w.wantRecord(a, c.code, nil)
				w.settled()
			})
		})
	}
}

// A share decides alone between its owner and its member: one that does not cover
// the model ends, within 5 s, the call that runs by a group of both; while one
// that covers it ends, the call goes on by the group (spec/routing.md#share).
func TestFault09ShareBesideAGroup(t *testing.T) {
	for name, models := range map[string][]string{"another model": {"n"}, "this model": {"m"}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				ann, bob := w.addMember("ann"), w.addMember("bob")
				box := w.addMachine(ann, "box", 1, "m")
				w.together(ann, bob)
				time.Sleep(2 * time.Second)
				w.set(paced(time.Second))
				a := w.begin(ask{by: bob, model: "m", stream: true, words: 30})
				time.Sleep(10 * time.Second)
				_, err := w.db.PutShare(w.t.Context(), account.Share{
					ID: w.newID("shr_"), OwnerID: ann.ID, MemberID: bob.ID, Created: time.Now().UTC(),
				}, account.LimitChange{Models: &models})
				w.must(err)
				if name == "this model" {
					time.Sleep(10 * time.Second)
					w.must(w.db.RemoveShare(w.t.Context(), ann.ID, bob.ID))
					<-a.over
					w.wantServed(a, 1)
					return
				}
				<-a.over
				w.wantCode(a, "CASCADE_EXHAUSTED", "")
				assert.Require(w.t, a.framed && a.text != "" && a.took() <= 15*time.Second, a)
				w.stopped(box)
			})
		})
	}
}

// Bubbles begin on a Saturday at midnight, UTC.
const twoMinutes = `{"hours":"Sat 00:00-00:02","timezone":"UTC"}`

// A call that waits when the hours end is served elsewhere, or refused then.
func TestFault10HoursEndBeforeFirstByte(t *testing.T) {
	for name, elsewhere := range map[string]bool{"no other": false, "another machine": true} {
		t.Run(name, func(t *testing.T) {
			both(t, func(w *world, stream bool) {
				ann, bob, cid := w.addMember("ann"), w.addMember("bob"), w.addMember("cid")
				box := w.addMachine(ann, "box", 1, "m")
				box.post("/hours", twoMinutes)
				w.share(ann, bob)
				w.set(slow(5 * time.Minute))
				w.begun(w.begin(ask{by: ann, model: "m", stream: true}))
				if elsewhere {
					other := w.addMachine(cid, "other", 1, "m")
					w.share(cid, bob)
					other.engine.Set(slow(30 * time.Second))
					time.Sleep(100 * time.Second)
					w.begun(w.begin(ask{by: cid, model: "m"}))
					other.engine.Set(enginetest.Behaviour{})
				} else {
					time.Sleep(100 * time.Second)
				}
				a := w.do(ask{by: bob, model: "m", stream: stream})
				if elsewhere {
					w.wantServed(a, 1)
					w.within("served", a.took(), 30*time.Second)
					return
				}
				w.wantCode(a, "outside_sharing_hours", "")
				if a.took() < 19*time.Second || a.took() > 21*time.Second || a.framed != stream {
					w.t.Fatal(a)
				}
				w.wantRecord(a, "outside_sharing_hours", nil)
			})
		})
	}
}

func TestFault11HoursEndUnderway(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, bob := w.addMember("ann"), w.addMember("bob")
		box := w.addMachine(ann, "box", 1, "m")
		box.post("/hours", twoMinutes)
		w.share(ann, bob)
		time.Sleep(100 * time.Second)
		w.set(paced(20 * time.Second))
		a := w.do(ask{by: bob, model: "m", stream: stream, words: 3}) // 60 s in all
		w.wantServed(a, 1)
		w.wantRecord(a, "", box)
		w.refused(ask{by: bob, model: "m", stream: stream}, 503, "outside_sharing_hours")
	})
}

func TestFault12NobodyServesTheModel(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, _ := w.addBox(1)
		w.refused(ask{by: ann, model: "nobody's", stream: stream}, 404, "model_not_found")
	})
}

func TestFault13ServedButNotForTheCaller(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, bob := w.addMember("ann"), w.addMember("bob")
		w.addMachine(ann, "box", 1, "m", "emb")
		w.refused(ask{by: bob, model: "m", stream: stream}, 403, "NOT_IN_CIRCLE")
		w.refused(ask{by: bob, model: "emb"}, 404, "model_not_found")
	})
}

func TestFault14AllOffline(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann := w.addMember("ann")
		w.addMachine(ann, "box", 1, "m", "emb").setAway(true)
		time.Sleep(11 * time.Second) // no longer expected back
		w.refused(ask{by: ann, model: "m", stream: stream}, 503, "machine_offline")
		w.refused(ask{by: ann, model: "emb"}, 503, "machine_offline")
	})
}

// A slow database costs time and not more than 5 s of it.
func TestFault16DatabaseSlow(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, _ := w.addBox(1)
		w.slow.Store(int64(700 * time.Millisecond))
		time.Sleep(10 * time.Second)
		a := w.do(ask{by: ann, model: "m", stream: stream})
		w.wantServed(a, 1)
		w.within("served", a.took(), 700*time.Millisecond)
		w.slow.Store(int64(time.Hour))
		time.Sleep(10 * time.Second)
		a = w.do(ask{by: ann, model: "m", stream: stream})
		w.wantCode(a, "CASCADE_EXHAUSTED", "")
		assert.Require(w.t, a.status == 503 && a.took() <= 5*time.Second, a)
		w.slow.Store(0)
		time.Sleep(5 * time.Second)
		w.wantServed(w.do(ask{by: ann, model: "m", stream: stream}), 1)
	})
}

// Without the database what is known holds for 5 s.
func TestFault17DatabaseDown(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, _ := w.addBox(1)
		w.wantServed(w.do(ask{by: ann, model: "m"}), 1) // the key is known
		w.down.Store(true)
		time.Sleep(3900 * time.Millisecond)
		w.wantServed(w.do(ask{by: ann, model: "m", stream: stream}), 1)
		time.Sleep(1200 * time.Millisecond)
		a := w.do(ask{by: ann, model: "m", stream: stream})
		w.wantCode(a, "CASCADE_EXHAUSTED", "")
		assert.That(w.t, a.status == 503 && a.took() == 0 && len(w.runs.of(a.tag)) == 0, a)
		w.down.Store(false)
	})
}

// A running call continues for 30 s in which no revocation could be seen.
func TestFault18DatabaseDownUnderway(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, box := w.addBox(1)
		w.set(paced(2 * time.Second))
		a := w.begin(ask{by: ann, model: "m", stream: stream, words: 30}) // 60 s in all
		w.begun(a)
		w.down.Store(true)
		time.Sleep(25 * time.Second)
		w.down.Store(false) // in time
		<-a.over
		w.wantServed(a, 1)

		a = w.begin(ask{by: ann, model: "m", stream: stream, words: 100})
		w.begun(a)
		w.down.Store(true)
		<-a.over
		w.wantCode(a, "CASCADE_EXHAUSTED", "")
		if a.took() < 28*time.Second || a.took() > 31*time.Second || a.framed != stream || len(w.runs.of(a.tag)) != 1 {
			w.t.Fatal(a)
		}
		w.stopped(box)
		w.down.Store(false)
		if u := w.wantRecord(a, "CASCADE_EXHAUSTED", box); stream && u.TokensOut < 10 {
			w.t.Fatalf("%+v", u)
		}
		w.settled()
	})
}

// A change is seen when the database notifies of its commit, and without that within a
// second.
func TestFault20WithoutNotifications(t *testing.T) {
	both(t, func(w *world, stream bool) {
		w.notifies.Store(stream)
		ann, bob := w.addMember("ann"), w.addMember("bob")
		w.addMachine(ann, "box", 1, "m")
		w.refused(ask{by: bob, model: "m", stream: stream}, 403, "NOT_IN_CIRCLE")
		w.must(w.db.AddShare(w.t.Context(), account.Share{ID: w.newID("shr_"), OwnerID: ann.ID, MemberID: bob.ID, Created: time.Now().UTC()}))
		if stream {
			time.Sleep(50 * time.Millisecond) // polls have a gap of 20 ms
		} else {
			time.Sleep(1100 * time.Millisecond)
		}
		w.wantServed(w.do(ask{by: bob, model: "m", stream: stream}), 1)
	})
}

// A hub that dies breaks the connection: what had come ends without [DONE],
// the engine stops, and the same call made again is served by the next hub.
func TestFault24HubDies(t *testing.T) {
	for name, b := range map[string]enginetest.Behaviour{"before the first byte": slow(time.Minute), "after it": paced(time.Second)} {
		t.Run(name, func(t *testing.T) {
			both(t, func(w *world, stream bool) {
				ann, box := w.addBox(1)
				w.set(b)
				q := ask{by: ann, model: "m", stream: stream, words: 60}
				a := w.begin(q)
				time.Sleep(4 * time.Second)
				w.stopHub()
				<-a.over
				assert.Require(w.t, !a.served() && !a.done && (a.err != nil || a.framed), a)
				w.stopped(box)
				w.startHub()
				w.set(enginetest.Behaviour{})
				w.wantServed(w.do(q), 1)
				w.settled()
			})
		})
	}
}

// Other members' calls fill the memory except for the last eighth, which is for
// answers: a new call is turned away unread, those that the hub has go on to their
// end, and when there is room again a new one is taken. The member who fills their
// own half is turned away with the other half free.
func TestFault28MemoryHigh(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, _ := w.addBox(1)
		w.set(paced(5 * time.Second))
		runs := w.begin(ask{by: ann, model: "m", stream: stream, words: 10})
		w.begun(runs)
		first := w.begin(ask{by: ann, model: "m", stream: stream})
		synctest.Wait()
		room := w.spool
		refused := func(why string) {
			a := w.begin(ask{by: ann, model: "m", stream: stream})
			<-a.over
			w.wantCode(a, "CAPACITY_FULL", "")
			assert.That(w.t, a.status == 503 && a.took() == 0, why, a)
		}
		keep := func(member string, n int64) *spool.Bytes {
			held := assert.Value(room.Keep(spool.Holder{Member: member}, make([]byte, n)))(w.t)
			return held
		}
		half := keep(ann.ID, memory/16*7-room.Use().Memory)
		refused("ann's half is full")
		half.Close()
		synctest.Wait()
		waits := room.Use().Memory
		others := []*spool.Bytes{keep("eve", memory/16*7), keep("bob", memory/16*7-waits)}
		refused("all is full")
		for _, a := range []*answer{runs, first} {
			<-a.over
			w.wantServed(a, 1)
		}
		for _, held := range others {
			held.Close()
		}
		w.wantServed(w.do(ask{by: ann, model: "m", stream: stream}), 1)
		if held := room.Use(); held.Memory != 0 || held.Refused != 2 {
			w.t.Errorf("in the end %+v is held", held)
		}
	})
}
