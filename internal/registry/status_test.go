package registry

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
)

// aPeer returns another node's row.
func aPeer(name string, beat int64) fleet.Node {
	return fleet.Node{Name: name, Incarnation: "one", Region: "home", Address: "127.0.0.1:1", Pin: "pin", Beat: beat}
}

// Each poll compares this computer's clock with the store's. It is logged when the clock
// becomes wrong or right.
func TestClockWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts()
		f.ahead = -time.Hour
		r := newNode(t, f)
		time.Sleep(2 * pollEvery)
		if got := r.Status(time.Now()).ClockAhead; got != -time.Hour || !r.ClockWrong() {
			t.Errorf("the clock is %v ahead, wrong %t", got, r.ClockWrong())
		}
	})
	var log bytes.Buffer
	r := New(Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	for _, ahead := range []time.Duration{0, 5 * time.Second, 5001 * time.Millisecond, time.Hour, -time.Hour, -5 * time.Second, 0} {
		r.seeClock(ahead)
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "level=WARN") || !strings.Contains(lines[0], "ahead=5.001s") || !strings.Contains(lines[1], "agrees") {
		t.Errorf("logged: %q", lines)
	}
}

// others stands for other nodes, whose state was last received at heard.
type others struct{ heard time.Time }

func (o *others) Connected(*Announced)         {}
func (o *others) Loaded(fleet.MachineID)       {}
func (o *others) Disconnected(fleet.MachineID) {}
func (o *others) Polled()                      {}
func (o *others) Heard(string) time.Time       { return o.heard }

// A node accepts calls when it knows the machines of the other nodes that are alive. It
// waits only some seconds for a dead node's row or an unreachable node.
func TestJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		at := func(seconds float64) time.Time { return began.Add(time.Duration(seconds * float64(time.Second))) }
		for _, c := range []struct {
			name          string
			beats         bool
			heard         bool
			before, after float64 // not joined at before, but joined at after
		}{
			{"alive and heard", true, true, 1, 2},
			{"alive and out of reach", true, false, joinWithin.Seconds() - 0.1, joinWithin.Seconds()},
			{"dead", false, false, aliveFor.Seconds() - 0.1, aliveFor.Seconds()},
		} {
			r := New(Config{Node: "a", Region: "home", Log: slog.New(slog.DiscardHandler)})
			r.loaded = began
			others := new(others)
			r.SetOthers(others)
			r.seeNodes([]fleet.Node{aPeer("a", 0), aPeer("b", 0)}, at(0))
			if c.beats {
				r.seeNodes([]fleet.Node{aPeer("a", 1), aPeer("b", 1)}, at(0.5))
				r.seeNodes([]fleet.Node{aPeer("a", 2), aPeer("b", 2)}, at(8))
			}
			assert.That(t, !r.Joined(at(0)) && !r.Joined(at(c.before)), c.name, "joined too early")
			if c.heard {
				others.heard = began
			}
			assert.That(t, r.Joined(at(c.after)), c.name, "joined after", c.after, "s")
			others.heard = time.Time{}
			r.seeNodes([]fleet.Node{aPeer("a", 9), aPeer("b", 9), aPeer("c", 9)}, at(20))
			assert.That(t, r.Joined(at(20)), c.name, "a node that starts later keeps this one from serving")
		}
		assert.That(t, New(Config{}).Joined(began), "a hub without other nodes has not joined")
	})
}

// A node's row that has not changed for a day is removed, but never the node's own row or
// one that changes.
func TestDeadNodesAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts()
		f.nodes = []fleet.Node{aPeer("hub-1", 1), aPeer("dead", 1), aPeer("moves", 1)}
		newNode(t, f)
		names := func() (names []string) {
			f.locked(func() {
				for _, n := range f.nodes {
					names = append(names, n.Name)
				}
			})
			return names
		}
		for range 24 { // less than a day in total
			if got := names(); len(got) != 3 {
				t.Fatalf("%v remain before a day is over", got)
			}
			time.Sleep(deadFor/24 - time.Minute)
			f.locked(func() { f.nodes[2].Beat++ })
		}
		time.Sleep(purgeEvery + time.Hour)
		if got := names(); !slices.Equal(got, []string{"hub-1", "moves"}) {
			t.Errorf("%v remain", got)
		}
	})
}
