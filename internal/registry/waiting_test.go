package registry

import (
	"testing"
	"testing/synctest"
	"time"

	"encoding/json/v2"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/peer"
)

// What waits at a node travels as ages, and as what changed since the reader read last.
func TestWaitingState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a waitingAnnouncer
		a.announce(Waiting{ID: 1, Member: "bob", Model: "m", Calls: []WaitingCall{{Number: 7, Arrived: time.Now().Add(-5 * time.Second)}}})
		a.announce(Waiting{ID: 2, Member: "cid", Model: "m", Calls: []WaitingCall{{Number: 8, Arrived: time.Now()}}})
		time.Sleep(time.Second)
		var got []Waiting
		var complete bool
		r := New(Config{Facts: newFacts()})
		r.Observe(Observer{Waiting: func(_ string, all bool, calls []Waiting) { complete, got = all, calls }})
		read := func(after int64) int64 {
			data, err := json.Marshal(a.state(after, time.Now()))
			if err != nil {
				t.Fatal(err)
			}
			var st waitingState
			if err := json.Unmarshal(data, &st); err != nil {
				t.Fatal(err)
			}
			r.applyWaiting(&peer.Peer{Node: fleet.Node{Name: "other"}}, &st)
			return st.Sequence
		}
		after := read(0)
		if !complete || len(got) != 2 || got[0].Member != "bob" || time.Since(got[0].Calls[0].Arrived) != 6*time.Second || time.Since(got[1].Calls[0].Arrived) != time.Second {
			t.Errorf("complete %v: %+v", complete, got)
		}
		a.announce(Waiting{ID: 2})
		after = read(after)
		if complete || len(got) != 1 || got[0].ID != 2 || len(got[0].Calls) != 0 {
			t.Errorf("complete %v: %+v", complete, got)
		}
		for i := range int64(maxRemovals) {
			a.announce(Waiting{ID: 10 + i})
		}
		if a.state(after, time.Now()).After != after || a.state(after-1, time.Now()).After != 0 {
			t.Error("a reader that is too far behind gets everything")
		}
	})
}
