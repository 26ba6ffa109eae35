package cluster

import (
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/dispatch"
	"github.com/kith/kith/internal/fleet"
)

// keysOf returns the keys and values of records, as text.
func keysOf(records []*record) (out string) {
	for _, r := range records {
		if _, message := r.key.(*messageKey); message {
			out += fmt.Sprintf("[%v]", r.value)
		} else {
			out += fmt.Sprintf("%v=%v ", r.key, r.value)
		}
	}
	return out
}

// A reader gets each record once in its present form, however often it changed; removals
// only if it may have known the record, and messages only from when it began to read.
func TestFeed(t *testing.T) {
	var f feed
	f.set("a", 1, false)
	f.set("b", 1, false)
	f.send("early")
	f.remove("b", false)
	f.remove("never", false)
	records, reached, complete := f.after(0)
	if got := keysOf(records); got != "a=1 " || !complete {
		t.Errorf("a new reader gets %q, complete %t", got, complete)
	}
	assert.That(t, !f.changedAfter(reached), "a reader that has everything is behind")
	f.set("c", 1, false)
	f.set("a", 2, false)
	f.send("late")
	f.set("c", 2, false)
	f.changed("a")
	f.changed("never")
	f.set("d", 1, false)
	f.remove("d", false)
	records, next, complete := f.after(reached)
	if got := keysOf(records); got != "[late]c=2 a=2 d=<nil> " || complete {
		t.Errorf("a reader gets %q, complete %t", got, complete)
	}
	f.removeSilently("a")
	if records, _, _ := f.after(next); len(records) > 0 {
		t.Errorf("and then %q", keysOf(records))
	}
}

// What a feed remembers of removals and messages is bounded. A reader that is further
// behind gets everything, and misses messages.
func TestFeedIsBounded(t *testing.T) {
	var f feed
	f.set("stays", 1, false)
	f.set("back", 1, false)
	_, reached, _ := f.after(0)
	f.remove("back", false)
	f.set("back", 2, false) // its removal is forgotten, and it is not
	for i := range maxRemovals {
		f.set(i, 1, false)
		f.remove(i, false)
	}
	records, next, complete := f.after(reached)
	if got := keysOf(records); got != "stays=1 back=2 " || !complete {
		t.Errorf("a reader that is too far behind gets %q, complete %t", got, complete)
	}
	for i := range 2 * maxMessages {
		f.send(i)
	}
	records, _, complete = f.after(next)
	if len(records) != maxMessages || records[0].value != maxMessages || complete {
		t.Errorf("%d messages from %v on, complete %t", len(records), records[0].value, complete)
	}
	if n := len(f.records); n != 2+maxRemovals+maxMessages || f.order.Len() != n {
		t.Errorf("%d records are kept, %d in order", n, f.order.Len())
	}
}

// A reader is woken for what is urgent, and others are not.
func TestFeedWakes(t *testing.T) {
	var f feed
	woken, done := f.open()
	f.set("a", 1, false)
	assert.That(t, len(woken) == 0, "woken for a change that is not urgent")
	f.set("a", 2, true)
	f.remove("a", true)
	assert.Equal(t, len(woken), 1, "not woken once")
	<-woken
	done()
	f.set("a", 3, true)
	assert.That(t, len(woken) == 0 && len(f.readers) == 0, "a reader that is gone is woken")
}

// What waits at a node travels as ages: the clocks of two nodes are not compared.
func TestWaitingTravelsAsAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := dispatch.Waiting{ID: 1, Query: fleet.Query{Caller: "bob", Avoid: []fleet.MachineID{"box"}}, Calls: []dispatch.WaitingCall{{Number: 7, Arrived: time.Now().Add(-5 * time.Second)}}}
		time.Sleep(time.Second)
		sent := waitingOf(w)
		time.Sleep(time.Second) // on the way; the receiver's clock may be any
		got := sent.calls(time.Now())
		if sent.Calls[0].Age != 6_000_000 || got[0].Number != 7 || time.Since(got[0].Arrived) != 6*time.Second || !reflect.DeepEqual(sent.query(), w.Query) {
			t.Errorf("%+v became %+v of %+v", sent, got, sent.query())
		}
	})
}
