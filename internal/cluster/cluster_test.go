package cluster

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/registry"
	"github.com/kith/kith/internal/store"
)

// tableFacts is a store with a table of nodes, of which those in beats are alive.
type tableFacts struct {
	*store.Facts
	mu    sync.Mutex
	nodes []account.Node
	beats []string
}

func (f *tableFacts) Poll(ctx context.Context, after account.Position) (account.StoreState, []fleet.Change, error) {
	state, changes, err := f.Facts.Poll(ctx, after)
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.nodes {
		if slices.Contains(f.beats, f.nodes[i].Name) {
			f.nodes[i].Beat++
		}
	}
	state.Nodes = slices.Clone(f.nodes)
	return state, changes, err
}

// start adds a node that beats.
func (f *tableFacts) start(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes = append(f.nodes, aNode(name))
	f.beats = append(f.beats, name)
}

func aNode(name string) account.Node {
	return account.Node{Name: name, Incarnation: "one", Region: "home", Address: "127.0.0.1:1", Pin: "pin"}
}

// besideB runs a test of a node beside the node b, from the moment before it reads the
// store.
func besideB(t *testing.T, beats bool, test func(c *Cluster, facts *tableFacts, run func())) {
	file := filepath.Join(t.TempDir(), "kith.db")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		db, err := store.Open(ctx, store.Config{Path: file})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		facts := &tableFacts{Facts: db.Facts("home"), nodes: []account.Node{aNode("a"), aNode("b")}}
		if beats {
			facts.beats = []string{"a", "b"}
		}
		c, err := New(Config{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		c.parts.Registry = registry.New(registry.Config{Node: "a", Region: "home", Facts: facts, Log: slog.New(slog.DiscardHandler)})
		c.parts.Registry.SetOthers(c)
		done := make(chan error, 1)
		test(c, facts, func() {
			go func() { done <- c.parts.Registry.Run(ctx) }()
			<-c.parts.Registry.Ready()
		})
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// hear makes b's state count as received now.
func (c *Cluster) hear() {
	now, b := time.Now(), new(followed)
	b.heard.Store(&now)
	c.followed.Store("b", b)
}

// A node accepts calls when it knows the machines of the other nodes that are alive. It
// waits only some seconds for a dead node's row or an unreachable node.
func TestJoined(t *testing.T) {
	for name, is := range map[string]struct {
		beats, heard  bool
		before, after time.Duration // not joined at before, but joined at after
	}{
		"alive and heard":        {true, true, time.Second, 2 * time.Second},
		"alive and out of reach": {true, false, joinWithin - time.Millisecond, joinWithin},
		"dead":                   {false, false, registry.AliveFor - time.Millisecond, registry.AliveFor},
	} {
		t.Run(name, func(t *testing.T) {
			besideB(t, is.beats, func(c *Cluster, facts *tableFacts, run func()) {
				if c.Joined(time.Now()) {
					t.Error("it has joined before it has read the store")
				}
				run()
				if c.Joined(time.Now()) {
					t.Error("it has joined at once")
				}
				time.Sleep(is.before)
				if c.Joined(time.Now()) {
					t.Error("it has joined too early")
				}
				if is.heard {
					c.hear()
				}
				time.Sleep(is.after - is.before)
				if !c.Joined(time.Now()) {
					t.Errorf("it has not joined after %v", is.after)
				}
				facts.start("c")
				time.Sleep(3 * time.Second)
				if !c.Joined(time.Now()) {
					t.Error("a node that starts later keeps this one from serving")
				}
			})
		})
	}
}

// A node that is alive and has sent nothing for a second is silent; a dead one is not.
func TestSilent(t *testing.T) {
	for _, beats := range []bool{true, false} {
		besideB(t, beats, func(c *Cluster, _ *tableFacts, run func()) {
			run()
			for when, after := range map[string]time.Duration{"was heard": 0, "was heard a second ago": cutOffAfter} {
				time.Sleep(3 * time.Second)
				if got := c.Silent(time.Now()); got != beats {
					t.Errorf("a node (alive: %t) that was not heard: silent %t", beats, got)
				}
				c.hear()
				time.Sleep(after)
				if c.Silent(time.Now()) {
					t.Errorf("a node that %s is silent", when)
				}
			}
		})
	}
}
