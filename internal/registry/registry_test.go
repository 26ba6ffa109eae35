package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// Offers come first, then the acknowledgement, and only then calls.
func TestRoutableAfterAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newFacts("m"))
		var atAck bool
		n.rawDaemon(t, "m", func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/offers":
				io.WriteString(w, `{"slots":1,"models":[{"id":"llama","families":["chat"]}]}`+"\n")
				http.NewResponseController(w).Flush()
				<-r.Context().Done()
			case "/ack":
				_, atAck = n.Line("m")
				atAck = atAck || n.machine("m").Online
			}
		})
		synctest.Wait()
		if atAck {
			t.Error("routable before the acknowledgement was answered")
		}
		line, ok := n.Line("m")
		if m := n.machine("m"); !ok || !m.Online || m.Owner != "owner-m" || m.Name != "box-m" || m.OwnerName != "ann" || m.Generation != 1 {
			t.Fatalf("not routable after it: %v, %+v", ok, m)
		}
		r, _ := http.NewRequest(http.MethodPost, "http://machine/v1/chat/completions", nil)
		assert.Equal(t, assert.Value(line.RoundTrip(r))(t).StatusCode, 200, "call")
		n.cut("m")
		if <-line.Gone; n.machine("m").Online {
			t.Error("it is online in the snapshot when its line is lost")
		}
		synctest.Wait()
		if _, ok := n.Line("m"); ok {
			t.Error("the line is still there after its end")
		}
	})
}

// A machine whose tunnel was lost is returning for 10 s and then offline
// (spec/routing.md#returning). The observer is notified of both.
func TestLostIsReturningThenOffline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newFacts("m"))
		d := n.connect(t, "m", offering("llama"))
		synctest.Wait()
		drain(n.machines)
		d.stop()
		synctest.Wait()
		lost := time.Now()
		if m := n.machine("m"); m.Online || !m.ReturningUntil.Equal(lost.Add(10*time.Second)) || m.Offer("llama") == nil {
			t.Errorf("after the loss: %+v", m)
		}
		assert.Equal(t, <-n.machines, "m", "notified of")
		if id := <-n.machines; id != "m" || time.Since(lost) != 10*time.Second {
			t.Errorf("notified of %q %v after the loss", id, time.Since(lost))
		}
	})
}

// A machine's load survives its tunnels: calls in flight keep their slots.
func TestLoadSurvives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newFacts("m"))
		d := n.connect(t, "m", offering("llama"))
		synctest.Wait()
		m := n.Snapshot().Machine("m")
		assert.Require(t, m.Reserve("llama", false), "no slot")
		n.cut("m")
		time.Sleep(5 * time.Second) // in the bubble: it reconnects
		again := n.Snapshot().Machine("m")
		if !again.Online || again == m || again.Reserve("llama", false) {
			t.Error("the slot of a running call was given twice")
		}
		m.Release("llama")
		drain(n.machines)
		d.change(func(ad *tunnel.Advertisement) { ad.Local = 1 })
		if <-n.machines; again.Reserve("llama", false) {
			t.Error("a slot that others hold was given")
		}
		assert.Equal(t, n.Snapshot().Machine("m"), again, "held slots alone made a new version of the machine")
		d.change(func(ad *tunnel.Advertisement) { ad.Local = 0 })
		if <-n.machines; !again.Reserve("llama", false) {
			t.Error("a slot that came free is not given")
		}
	})
}

// Row 13: a machine has one live generation. A daemon with a copy of its credential is
// fenced.
func TestNewerTunnelFencesOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newFacts("m"))
		first := n.connect(t, "m", offering("llama"))
		synctest.Wait()
		second := n.connect(t, "m", offering("qwen"))
		assert.Is(t, <-first.lost, tunnel.ErrFenced, "the older daemon ended with")
		synctest.Wait()
		if m := n.machine("m"); !m.Online || m.Generation != 2 || m.Offer("qwen") == nil {
			t.Errorf("after fencing: %+v", m)
		}
		// A tunnel that was numbered before the live one but connected after it.
		n.facts.locked(func() { n.facts.generations["m"] = 0 })
		late := n.connect(t, "m", offering("phi"))
		assert.Is(t, <-late.lost, tunnel.ErrFenced, "the late tunnel ended with")
		assert.That(t, len(second.lost) == 0 && n.machine("m").Online, "a late tunnel disturbed the live one")
	})
}

// A revoked machine loses its tunnel: immediately with a notification, within a poll
// without one, and also if the revocation came between the check of its key and Serve.
func TestRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newFacts("a", "b", "c"))
		for _, id := range []fleet.MachineID{"a", "b"} {
			n.connect(t, id, offering("llama"))
		}
		synctest.Wait()
		start := time.Now()
		n.facts.revoke("a")
		n.pollNow()
		synctest.Wait()
		assert.That(t, n.Snapshot().Machine("a") == nil && time.Since(start) <= 0, "still there after a nudge")
		if _, ok := n.Line("a"); ok {
			t.Error("its line is still there")
		}
		b, _ := n.Line("b")
		n.facts.revoke("b")
		<-b.Gone
		if took := time.Since(start); took > 1100*time.Millisecond {
			t.Errorf("without a hint it took %v", took)
		}
		kept, _, _ := n.facts.ActiveMachine(t.Context(), "c")
		n.facts.mu.Lock()
		delete(n.facts.kept, "c") // its change was polled long ago
		n.facts.mu.Unlock()
		d := n.connectUnchecked(t, kept)
		assert.Is(t, <-d, ErrRevoked, "Serve of a machine revoked before")
	})
}

// connectUnchecked opens a tunnel whose key check saw kept, and returns the result of
// Serve.
func (n *node) connectUnchecked(t *testing.T, kept account.Machine) <-chan error {
	end := make(chan error, 1)
	gate := &node{Registry: n.Registry, conns: make(chan net.Conn)}
	ctx, cancel := context.WithCancel(context.Background())
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		line, err := tunnel.Upgrade(w, r, tunnel.UpgradeConfig{Generation: 1})
		if err == nil {
			kept.Generation = 1
			err = n.Serve(r.Context(), kept, line)
		}
		end <- err
	})}
	done := make(chan struct{})
	go func() { defer close(done); server.Serve(listener{gate.conns, ctx}) }()
	t.Cleanup(func() { cancel(); server.Close(); <-done })
	d := gate.connect(t, fleet.MachineID(kept.ID), offering("llama"))
	t.Cleanup(d.stop)
	return end
}

// A hub that starts expects its machines back for 30 s.
func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts("m", "never", "bad")
		ctx := t.Context()
		f.SaveOffers(ctx, "m", []byte(`{"slots":2,"hours":"Mon-Fri 18:00-23:00","models":[{"id":"llama","families":["chat"]}]}`), time.Now().Add(-29*24*time.Hour))
		f.SaveOffers(ctx, "bad", []byte(`{"slots":`), time.Now())
		f.shares = []*fleet.Share{{ID: "s", Owner: "owner-m", Member: "bob"}}
		f.groups["g"] = &fleet.Group{ID: "g", Members: []fleet.MemberID{"owner-m", "cleo"}}
		start := time.Now()
		n := newNode(t, f)
		m := n.machine("m")
		if m.Online || !m.ReturningUntil.Equal(start.Add(30*time.Second)) || m.Slots != 2 || m.Hours.Always() || m.Offer("llama") == nil {
			t.Errorf("kept machine = %+v", m)
		}
		if n.Snapshot().Machine("never") != nil || n.Snapshot().Machine("bad") != nil {
			t.Error("a machine without readable offers is in the snapshot")
		}
		for _, member := range []fleet.MemberID{"bob", "cleo", "owner-m"} {
			assert.Equal(t, reached(n, member), 1, member, "reaches")
		}
		drain(n.machines)
		if id := <-n.machines; id != "m" || time.Since(start) != 30*time.Second {
			t.Errorf("notified of %q after %v", id, time.Since(start))
		}
		n.connect(t, "m", offering("qwen"))
		synctest.Wait()
		if m := n.machine("m"); !m.Online || m.Offer("qwen") == nil || m.Offer("llama") != nil {
			t.Errorf("after it came back: %+v", m)
		}
	})
}

func reached(n *node, member fleet.MemberID) int {
	count := 0
	for range n.Snapshot().Reach(member, fleet.Everything) {
		count++
	}
	return count
}

func drain[T any](c chan T) {
	synctest.Wait()
	for len(c) > 0 {
		<-c
	}
}

// Changes of the store are in the snapshot within a poll. Repeated changes, and those of
// unknown records, do no harm.
func TestFollowsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts("m")
		n := newNode(t, f)
		n.connect(t, "m", offering("llama"))
		synctest.Wait()
		step := func(want int, what string) {
			t.Helper()
			f.change(fleet.MemberChanged, "bob", func() {})
			f.change("of a later version", "x", func() {})
			time.Sleep(1100 * time.Millisecond)
			assert.Equal(t, reached(n, "bob"), want, what, "bob reaches")
		}
		f.change(fleet.SharesChanged, "bob", func() { f.shares = []*fleet.Share{{ID: "s", Owner: "owner-m", Member: "bob"}} })
		f.change(fleet.SharesChanged, "bob", func() {})
		step(1, "shared")
		f.change(fleet.SharesChanged, "bob", func() { f.shares = nil })
		step(0, "share ended")
		f.change(fleet.GroupChanged, "g", func() {
			f.groups["g"] = &fleet.Group{ID: "g", Members: []fleet.MemberID{"bob", "owner-m"}}
		})
		step(1, "grouped")
		f.change(fleet.GroupChanged, "g", func() { delete(f.groups, "g") })
		step(0, "group ended")
		f.change(fleet.MachineChanged, "m", func() { k := f.kept["m"]; k.Name = "renamed"; f.kept["m"] = k })
		f.change(fleet.MachineChanged, "unknown", func() {})
		step(0, "renamed")
		if m := n.machine("m"); m.Name != "renamed" || !m.Online {
			t.Errorf("after the renaming: %+v", m)
		}
		notified := 0
		for len(n.changes) > 0 {
			notified += len(<-n.changes)
		}
		assert.Equal(t, notified, len(f.changes), "notified of")
		f.revoke("m")
		time.Sleep(1100 * time.Millisecond)
		f.change(fleet.MachineChanged, "m", func() { // its owner was disabled and enabled
			f.kept["m"] = account.Machine{ID: "m", OwnerID: "owner-m", Offers: []byte(`{"models":[{"id":"llama","families":["chat"]}]}`)}
		})
		time.Sleep(1100 * time.Millisecond)
		if m := n.machine("m"); m.ID != "m" || m.Online || m.ReturningUntil.After(time.Now()) {
			t.Errorf("after it was enabled again: %+v", m)
		}
	})
}

// After a gap in the changes everything is read again, and what was deleted is gone.
func TestBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts("m", "gone", "new")
		f.SaveOffers(t.Context(), "gone", []byte(`{"models":[{"id":"llama","families":["chat"]}]}`), time.Now())
		f.shares = []*fleet.Share{{ID: "s", Owner: "owner-m", Member: "bob"}}
		f.groups["g"] = &fleet.Group{ID: "g", Members: []fleet.MemberID{"owner-m", "cleo"}}
		n := newNode(t, f)
		n.connect(t, "m", offering("llama"))
		synctest.Wait()
		drain(n.changes)
		f.mu.Lock()
		delete(f.kept, "gone")
		f.shares = []*fleet.Share{{ID: "s2", Owner: "owner-m", Member: "dora"}}
		f.groups = map[fleet.GroupID]*fleet.Group{"g2": {ID: "g2", Members: []fleet.MemberID{"owner-m", "emil"}}}
		f.behind = true
		f.mu.Unlock()
		if got := <-n.changes; got != nil {
			t.Errorf("notified of %v after a gap", got)
		}
		if n.Snapshot().Machine("gone") != nil || !n.machine("m").Online {
			t.Error("the machines are not what the store has")
		}
		for member, want := range map[fleet.MemberID]int{"bob": 0, "cleo": 0, "dora": 1, "emil": 1} {
			assert.Equal(t, reached(n, member), want, member, "reaches")
		}
		assert.That(t, n.Confirmed(time.Now()), "not confirmed after reading everything")
	})
}

// The Snapshot has a change only after Committed has returned, also after a gap.
func TestCommitted(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*facts)
		want   []fleet.Change
	}{
		"a change": {func(f *facts) {
			f.change(fleet.GroupChanged, "g", func() { f.groups["g"] = &fleet.Group{ID: "g", Members: []fleet.MemberID{"owner-m", "bob"}} })
		}, []fleet.Change{{Epoch: 1, Kind: fleet.GroupChanged, ID: "g"}}},
		"a gap": {func(f *facts) {
			f.locked(func() {
				f.groups["g"], f.behind = &fleet.Group{ID: "g", Members: []fleet.MemberID{"owner-m", "bob"}}, true
			})
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFacts("m")
				n := newNode(t, f)
				before := n.Snapshot()
				got := make(chan []fleet.Change)
				n.committed = func(changes []fleet.Change) {
					got <- changes
					<-got
				}
				test.change(f)
				select {
				case changes := <-got:
					assert.That(t, slices.Equal(changes, test.want), changes, test.want)
				case <-time.After(2 * time.Second):
					t.Fatal("Committed is not called")
				}
				synctest.Wait()
				assert.Equal(t, n.Snapshot(), before, "the snapshot holds the change before its end")
				got <- nil
				synctest.Wait()
				assert.That(t, n.Snapshot() != before, "the snapshot does not hold the change")
			})
		})
	}
}

// If a change could not be read, Committed gets it again until it is read.
func TestCommittedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts("m")
		n := newNode(t, f)
		before := n.Snapshot()
		var committed atomic.Int64
		n.committed = func(changes []fleet.Change) {
			assert.That(t, len(changes) == 1 && changes[0].ID == "g", changes)
			committed.Add(1)
		}
		f.change(fleet.GroupChanged, "g", func() {
			f.groups["g"] = &fleet.Group{ID: "g", Members: []fleet.MemberID{"owner-m", "bob"}}
			f.groupsDown = true
		})
		time.Sleep(3 * time.Second)
		synctest.Wait()
		failed := committed.Load()
		assert.That(t, failed >= 2, "committed", failed, "times while the group could not be read")
		assert.Equal(t, n.Snapshot(), before, "the snapshot holds what could not be read")
		f.locked(func() { f.groupsDown = false })
		n.Settle(t.Context())
		assert.That(t, n.Snapshot().Group("g") != nil, "the snapshot does not hold the change")
		read := committed.Load()
		assert.That(t, read > failed, "committed", read, "times, the last before it was read")
		time.Sleep(time.Minute)
		if again := committed.Load(); again != read {
			t.Errorf("committed %d times more after it was read", again-read)
		}
	})
}

// After Settle the Snapshot has what was committed before. A store that is down delays it
// by a second.
func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts("m")
		n := newNode(t, f)
		for i := range 100 {
			group := fleet.GroupID(fmt.Sprint("g", i))
			f.change(fleet.GroupChanged, string(group), func() {
				f.groups[group] = &fleet.Group{ID: group, Members: []fleet.MemberID{"owner-m", "bob"}}
			})
			n.Settle(t.Context())
			assert.Require(t, n.Snapshot().Group(group) != nil, "group", i, "is not there")
			time.Sleep(time.Duration(i) * time.Millisecond)
		}
		f.mu.Lock()
		f.down = true
		f.mu.Unlock()
		began := time.Now()
		n.Settle(t.Context())
		assert.Equal(t, time.Since(began), settleWithin, "without the store")
		ctx, leave := context.WithTimeout(t.Context(), time.Millisecond)
		defer leave()
		began = time.Now()
		n.Settle(ctx)
		assert.Equal(t, time.Since(began), time.Millisecond, "for a caller who left after 1 ms")
	})
}

// Row 2: nothing is granted that could not be confirmed for 5 s.
func TestConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts()
		n := newNode(t, f)
		time.Sleep(time.Hour)
		assert.That(t, n.Confirmed(time.Now()), "not confirmed with a good store")
		set := func(down bool) { f.mu.Lock(); f.down = down; f.mu.Unlock() }
		set(true)
		time.Sleep(3900 * time.Millisecond)
		assert.That(t, n.Confirmed(time.Now()), "not confirmed after 3.9 s")
		time.Sleep(1200 * time.Millisecond)
		assert.That(t, !n.Confirmed(time.Now()), "confirmed after 5.1 s without the store")
		set(false)
		time.Sleep(1100 * time.Millisecond)
		assert.That(t, n.Confirmed(time.Now()), "not confirmed when the store is back")
	})
	assert.That(t, !New(Config{}).Confirmed(time.Now()), "confirmed before anything was read")
}

// If a machine advertises constantly, five advertisements are read at once and then one a
// second, and saved every 5 s. The newest state is lost neither in the snapshot nor in
// the store, even if the tunnel ends right after it.
func TestAdvertisesWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts("m")
		n := newNode(t, f)
		n.pace = rate.NewLimiter(1, 5)
		d := n.connect(t, "m", offering("llama"))
		time.Sleep(time.Minute)
		synctest.Wait()
		before := f.saved("m")
		taken, seen := 0, 0
		for i := range 1000 { // 50 s
			d.change(func(ad *tunnel.Advertisement) { ad.Slots = i + 2 })
			time.Sleep(50 * time.Millisecond)
			if slots := n.Snapshot().Machine("m").Slots; slots != seen {
				taken, seen = taken+1, slots
			}
		}
		assert.That(t, taken >= 50 && taken <= 56, "1,000 states in 50 s", taken, "were taken in")
		if saves := f.saved("m") - before; saves < 9 || saves > 11 {
			t.Errorf("1,000 states in 50 s: saved %d times", saves)
		}
		time.Sleep(1100 * time.Millisecond)
		assert.Equal(t, n.Snapshot().Machine("m").Slots, 1001, "the fleet")
		time.Sleep(saveEvery)
		d.change(func(ad *tunnel.Advertisement) { ad.Slots = 7 })
		time.Sleep(100 * time.Millisecond)
		d.change(func(ad *tunnel.Advertisement) { ad.Slots = 8 })
		time.Sleep(100 * time.Millisecond)
		d.stop()
		time.Sleep(saveEvery)
		synctest.Wait()
		k, _, _ := f.ActiveMachine(t.Context(), "m")
		assert.Equal(t, assert.Value(restore(k))(t).Slots, 8, "kept", k.Offers)
	})
}

// What is saved: the offers when they change, but not the slots, and when the machine was
// last seen, at intervals and at the end.
func TestKeepsOffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts("m")
		n := newNode(t, f)
		first := offering("llama")
		first.Groups = []string{} // an empty list differs from none
		d := n.connect(t, "m", first)
		want := func(saves int, what string) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			assert.Equal(t, f.saved("m"), saves, what, "saved")
		}
		want(1, "first offers")
		d.change(func(ad *tunnel.Advertisement) { ad.Local = 1; ad.Models[0].Local = 1 })
		want(1, "slots held")
		d.change(func(ad *tunnel.Advertisement) { ad.Hours = "Mon-Fri 18:00-23:00" })
		want(1, "hours, soon after the first")
		time.Sleep(saveEvery)
		want(2, "hours")
		n.cut("m")
		want(2, "a new tunnel with the same offers")
		time.Sleep(2 * time.Hour)
		want(2+4, "two quiet hours")
		time.Sleep(5 * time.Minute)
		d.stop()
		want(2+5, "the end")
		k, _, _ := f.ActiveMachine(t.Context(), "m")
		if m, err := restore(k); err != nil || m.Offer("llama") == nil || m.Groups == nil || time.Since(k.LastSeen) > 2*time.Second {
			t.Errorf("kept %s, %v", k.Offers, err)
		}
		n.purge(time.Now().Add(29 * 24 * time.Hour))
		assert.That(t, n.Snapshot().Machine("m") != nil, "forgotten after 29 days")
		n.purge(time.Now().Add(30 * 24 * time.Hour))
		if n.Snapshot().Machine("m") != nil {
			t.Error("still known after 30 days")
		}
	})
}

// A machine that connects and disconnects all the time gets no calls for a minute
// (docs/faults.md#34).
func TestFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newFacts("m"))
		n.connect(t, "m", offering("llama"))
		verdict := func() fleet.Verdict {
			return fleet.Route(n.Snapshot(), fleet.Query{Caller: "owner-m", Model: "llama", Now: time.Now()}).Verdict
		}
		for i := range 4 {
			time.Sleep(10 * time.Second)
			if got := verdict(); got != fleet.Try {
				t.Fatalf("after %d losses: %v", i, got)
			}
			if i < 3 {
				n.cut("m")
			}
		}
		n.cut("m")
		time.Sleep(10 * time.Second)
		if got := verdict(); got == fleet.Try {
			t.Error("tried a machine that flaps")
		}
		drain(n.machines)
		for range n.machines {
			if verdict() == fleet.Try {
				break // notified when it may be tried again
			}
		}
	})
}

// 1,000 machines connect, lose their tunnels at the same time, and reconnect.
func TestChurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machines := 1000
		if testing.Short() {
			machines = 200 // under the race detector
		}
		ids := make([]fleet.MachineID, machines)
		for i := range ids {
			ids[i] = fleet.MachineID(fmt.Sprintf("m%d", i))
		}
		n := newNode(t, newFacts(ids...))
		for _, id := range ids {
			n.connect(t, id, offering("llama"))
		}
		online := func() (count int) {
			for m := range n.Snapshot().Machines() {
				if _, ok := n.Line(m.ID); ok && m.Online {
					count++
				}
			}
			return count
		}
		synctest.Wait()
		if got := online(); got != machines {
			t.Fatalf("%d of %d machines came", got, machines)
		}
		for _, id := range ids {
			n.cut(id)
		}
		time.Sleep(60 * time.Second)
		synctest.Wait()
		assert.Equal(t, online(), machines, "of", "machines came back in 60 s")
	})
}

// Control reaches a machine that is connected here.
func TestControl(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newFacts("m"))
		yes := true
		if err := n.Control(t.Context(), "m", fleet.Control{Paused: &yes}); !errors.Is(err, fleet.ErrNotConnected) {
			t.Errorf("Control of an absent machine = %v", err)
		}
		n.connect(t, "m", offering("llama"))
		synctest.Wait()
		if err := n.Control(t.Context(), "m", fleet.Control{Paused: &yes}); err == nil || errors.Is(err, fleet.ErrNotConnected) {
			t.Errorf("Control = %v, want the daemon's refusal", err)
		}
		_, err := n.FileAct(t.Context(), "m", fleet.FileAct{Act: fleet.ActList})
		assert.Is(t, err, fleet.ErrFilesOff)
		_, err = n.FileAct(t.Context(), "absent", fleet.FileAct{Act: fleet.ActList})
		assert.Is(t, err, fleet.ErrNotConnected)
	})
}

// What a machine advertises is limited. It is only refused if its hours cannot be parsed.
func TestRead(t *testing.T) {
	ad := offering(" bad ", "", "same", "same", "none")
	ad.Models[4].Families = []string{"telepathy"}
	ad.Slots = 1 << 30
	for i := range 300 {
		ad.Models = append(ad.Models, tunnel.Model{ID: fmt.Sprint(i), Families: []string{"chat", "telepathy"}, Slots: -1, ContextLength: -5})
	}
	m, _, err := accept(ad)
	assert.OK(t, err)
	if len(m.Offers) != maxModels || m.Offers[0].ID != "same" || m.Offers[1].ID != "0" || m.Slots != maxSlots {
		t.Errorf("%d offers, the first %q and %q, %d slots", len(m.Offers), m.Offers[0].ID, m.Offers[1].ID, m.Slots)
	}
	if o := m.Offers[1]; o.Slots != 0 || o.ContextLength != 0 || o.Families != fleet.Families(fleet.Chat) {
		t.Errorf("offer = %+v", o)
	}
	for _, bad := range []string{"\x1b]52;c;aGk=\a", "\u009b31m", "\u202edcba", "\x9b31m", "a\nb"} {
		model := tunnel.Model{ID: "m", Families: []string{"chat", bad}, Endpoints: []string{bad}, Capabilities: []string{bad, "tools"}, Engine: bad}
		named := model
		named.ID = bad
		m, kept, err := accept(tunnel.Advertisement{Name: bad, Timezone: bad, Groups: []string{bad, "lab"}, Models: []tunnel.Model{named, model}})
		if err != nil || len(m.Offers) != 1 || strings.Contains(fmt.Sprintf("%+v %+v %s", m, kept, m.Hours.Zone()), bad) {
			t.Errorf("%q: %v, %+v, %+v", bad, err, m, kept)
		} else if o := m.Offers[0]; len(o.Capabilities) != 1 || len(m.Groups) != 1 {
			t.Errorf("%q: left out too much: %+v of %+v", bad, o, m)
		}
	}
	for _, groups := range [][]string{nil, {}, {"lab"}, make([]string, 1000)} {
		m, _, err := accept(tunnel.Advertisement{Groups: groups})
		if err != nil || (m.Groups == nil) != (groups == nil) || len(m.Groups) != min(len(groups), maxGroups) {
			t.Errorf("of %d groups (%v) read %d: %v", len(groups), groups == nil, len(m.Groups), err)
		}
	}
	if _, _, err := accept(tunnel.Advertisement{Hours: "whenever"}); err == nil {
		t.Error("hours that cannot be read were taken")
	}
}

// However much a machine advertises, memory and store contain only what was accepted.
func TestKeepsWhatWasAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts("m")
		n := newNode(t, f)
		ad := offering("llama")
		long := strings.Repeat("x", 10_000)
		many := slices.Repeat([]string{"vision", long}, 20)
		ad.Name, ad.Groups = long, append(many, "lab")
		ad.Models[0].Engine, ad.Models[0].Capabilities = long, many
		ad.Models[0].Families = append(ad.Models[0].Families, many...)
		for range 5 {
			ad.Models = append(ad.Models, tunnel.Model{ID: long}, tunnel.Model{ID: "llama"}, tunnel.Model{ID: "no families"})
		}
		n.connect(t, "m", ad)
		time.Sleep(time.Second)
		synctest.Wait()
		k, _, _ := f.ActiveMachine(t.Context(), "m")
		if len(k.Offers) > 2000 || !strings.Contains(string(k.Offers), `"lab"`) {
			t.Errorf("%d bytes are kept: %.300s", len(k.Offers), k.Offers)
		}
		if m, err := restore(k); err != nil || len(m.Offers) != 1 || len(m.Groups) != 21 {
			t.Errorf("read again: %+v, %v", m, err)
		}
	})
}

// A machine whose hours cannot be parsed is refused, and its tunnel ends.
func TestUnreadableHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newFacts("m"))
		d := n.connect(t, "m", tunnel.Advertisement{Hours: "whenever"})
		if err := <-n.ends; err == nil {
			t.Error("Serve ended well")
		}
		d.stop()
		if n.Snapshot().Machine("m") != nil {
			t.Error("the machine is in the snapshot")
		}
	})
}

// A machine whose time zone the hub does not know connects and serves its owner. It is
// outside its hours for others, and the machine is notified, until it has another time
// zone.
func TestUnknownZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts("m")
		n := newNode(t, f)
		ad := offering("llama")
		ad.Hours, ad.Timezone = "Mon-Sun 00:00-24:00", "Mars/Olympus"
		d := n.connect(t, "m", ad)
		is := func(when string, open bool) {
			t.Helper()
			synctest.Wait()
			m := n.machine("m")
			assert.Require(t, m.Online && m.Hours.Open(n.Now()) == open, when, m)
			select {
			case got := <-d.notices:
				assert.That(t, got.ZoneUnknown != open, when, "the machine was notified", got)
			default:
				t.Errorf("%s: the machine was not notified", when)
			}
		}
		is("unknown", false)
		d.change(func(ad *tunnel.Advertisement) { ad.Timezone = "Europe/Lisbon" })
		time.Sleep(time.Second)
		is("known", true)
		d.change(func(ad *tunnel.Advertisement) { ad.Timezone = "" })
		time.Sleep(time.Second)
		is("without a name", false)
		d.change(func(ad *tunnel.Advertisement) { ad.Hours = "" })
		time.Sleep(time.Second)
		is("without hours", true)
	})
}

// TestNodes checks that a node is alive as long as this one sees its beat change.
func TestNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts()
		set := func(nodes ...account.Node) { f.mu.Lock(); f.nodes = nodes; f.mu.Unlock() }
		set(account.Node{Name: "a", Incarnation: "1", Beat: 7}, account.Node{Name: "b", Incarnation: "1", Beat: 3})
		n := newNode(t, f)
		expect := func(when string, alive ...bool) {
			t.Helper()
			for i, node := range n.Nodes(time.Now()) {
				assert.Equal(t, node.Alive, alive[i], when, node.Name, "is alive")
			}
		}
		expect("seen once", false, false)
		set(account.Node{Name: "a", Incarnation: "1", Beat: 8}, account.Node{Name: "b", Incarnation: "1", Beat: 3})
		time.Sleep(1100 * time.Millisecond)
		expect("a beats", true, false)
		time.Sleep(5500 * time.Millisecond)
		expect("a stopped 5 s ago", false, false)
		set(account.Node{Name: "a", Incarnation: "1", Beat: 8}, account.Node{Name: "b", Incarnation: "2", Beat: 3})
		time.Sleep(1100 * time.Millisecond)
		expect("b started again", false, true)
	})
}

// TestReplaced checks that Run ends when another process takes the node's name.
func TestReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts()
		n := New(Config{Node: "hub-1", Region: "home", Facts: f, Log: slog.New(slog.DiscardHandler)})
		ended := make(chan error)
		go func() { ended <- n.Run(t.Context()) }()
		<-n.Ready()
		f.mu.Lock()
		f.replaced = true
		f.mu.Unlock()
		assert.Is(t, <-ended, account.ErrReplaced, "Run returned")
	})
}
