package cluster

import (
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
)

// What another node announces of a share that is not known here yet counts once it is. If
// the node is lost before that, its calls do not count as running.
func TestLimitsOfALaterShare(t *testing.T) {
	for _, lost := range []bool{false, true} {
		atHome(t, func(h *homeNode) {
			r, other := h.parts.Registry, &account.Node{Name: "other", Incarnation: "one"}
			time.Sleep(2 * startFor) // what is announced is not in the ledger's counts
			h.must(h.db.RemoveShare(h.t.Context(), "ann", "bob"))
			r.Settle(h.t.Context())
			use := limitUse{limitKey{Member: "bob", Share: "later"}, 1, 3}
			h.uses.apply(h.Cluster, other, []limitUse{use})
			if lost {
				h.uses.lose(h.Cluster, "other")
			}
			h.must(h.db.AddShare(h.t.Context(), account.Share{
				ID: "later", OwnerID: "ann", MemberID: "bob", Created: time.Now().UTC(), Limits: account.Limits{Concurrent: 1, PerDay: 9},
			}))
			r.Settle(h.t.Context())
			h.uses.apply(h.Cluster, other, nil)
			limits := &r.Snapshot().ShareOf("bob", "later").Limits
			assert.Equal(t, limits.Load.Started(r.Now()), 3, "lost", lost, "calls count for the day")
			assert.Equal(t, limits.Reserve(r.Now()), lost, "lost", lost, "room for another call")
		})
	}
}

// A key that makes its first call here has the calls that run at other nodes beside those
// that the database has, also if what the nodes announce was pruned in between; later ones
// are added.
func TestKeyOfALaterCall(t *testing.T) {
	atHome(t, func(h *homeNode) {
		r, other, key := h.parts.Registry, &account.Node{Name: "other", Incarnation: "one"}, limitKey{Key: "key"}
		time.Sleep(2 * startFor)
		h.uses.apply(h.Cluster, other, []limitUse{{key, 2, 7}})
		h.pruneLimits(func(string) bool { return false })
		load := h.parts.Dispatch.CountKey("key", r.Now(), 5)
		assert.Equal(t, load.Started(r.Now()), 7, "5 in the database and 2 that run")
		h.uses.apply(h.Cluster, other, []limitUse{{key, 1, 9}})
		assert.Equal(t, load.Started(r.Now()), 9, "two more have begun")
		h.uses.lose(h.Cluster, "other")
		h.parts.Dispatch.CountKey("key", r.Now(), 8)
		assert.Equal(t, load.Started(r.Now()), 9, "the node is lost, and a call not in the database yet")
		h.parts.Dispatch.CountKey("key", r.Now(), 10)
		assert.Equal(t, load.Started(r.Now()), 10, "the database has one that was not announced")
		h.KeyUsed("key", load)
		h.pruneLimits(func(string) bool { return false })
		line, _ := h.lineAfter(0)
		assert.Equal(t, len(line.Limits), 1, "announced")
	})
}

// Nothing is kept of nodes that no longer exist.
func TestPrune(t *testing.T) {
	atHome(t, func(h *homeNode) {
		ended, runs := make(chan struct{}), make(chan struct{})
		close(ended)
		h.before["ended"], h.before["runs"] = ended, runs
		h.applyWaiting("ended", true, nil)
		h.uses.apply(h.Cluster, &account.Node{Name: "ended"}, nil)
		h.prune()
		if len(h.before) != 1 || h.before["runs"] == nil || len(h.grants.entries) != 0 || len(h.uses.nodes) != 0 {
			t.Errorf("kept: %v, %v, %v", h.before, h.grants.entries, h.uses.nodes)
		}
	})
}
