package registry

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
)

// aPeer returns another node's row.
func aPeer(name string, beat int64) account.Node {
	return account.Node{Name: name, Incarnation: "one", Region: "home", Address: "127.0.0.1:1", Pin: "pin", Beat: beat}
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

// A node's row that has not changed for a day is removed, but never the node's own row or
// one that changes.
func TestDeadNodesAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts()
		f.nodes = []account.Node{aPeer("hub-1", 1), aPeer("dead", 1), aPeer("moves", 1)}
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
