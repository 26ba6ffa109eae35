package store_test

import (
	"testing"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

func aNode(name, incarnation string) fleet.Node {
	return fleet.Node{
		Name: name, Incarnation: incarnation, Region: "eu", Address: "10.0.0.1:8703", Pin: "af", Version: "v1", State: "ready",
		Started: start,
	}
}

// TestBeat: a poll of a node on PostgreSQL moves its beat and returns all nodes with
// what changed; a process whose name another one took is refused.
func TestBeat(t *testing.T) {
	t.Parallel()
	config := store.Config{URL: storetest.Postgres(t)}
	db, other := open(t, config), open(t, config)
	ok(t, db.StartNode(t.Context(), aNode("a", "first")))
	ok(t, other.StartNode(t.Context(), aNode("b", "second")))
	ada := newMember(t, other, "ada")

	update := must[fleet.Update](t)(db.Facts("eu").Poll(t.Context(), fleet.Position{}))
	same(t, update.Changes, []fleet.Change{{Epoch: 1, Kind: fleet.MemberChanged, ID: ada.ID}})
	same(t, update.Position, must[fleet.Position](t)(other.Position(t.Context())))
	a, b := aNode("a", "first"), aNode("b", "second")
	a.Beat = 1
	same(t, update.Nodes, []fleet.Node{a, b})
	_, err := db.Facts("eu").Poll(t.Context(), fleet.Position{Epoch: 1, Nonce: "another"})
	fails(t, err, store.ErrBehind)

	again := open(t, config)
	ok(t, again.StartNode(t.Context(), aNode("a", "third")))
	_, err = db.Facts("eu").Poll(t.Context(), update.Position)
	fails(t, err, fleet.ErrReplaced)
	update = must[fleet.Update](t)(again.Facts("eu").Poll(t.Context(), update.Position))
	a.Incarnation = "third"
	same(t, update.Nodes, []fleet.Node{a, b})
}

// TestNodeOnSQLite: the one process that has an SQLite file open needs no beat.
func TestNodeOnSQLite(t *testing.T) {
	db := openSQLite(t)
	ok(t, db.StartNode(t.Context(), aNode("a", "first")))
	ada := newMember(t, db, "ada")
	update := must[fleet.Update](t)(db.Facts("eu").Poll(t.Context(), fleet.Position{}))
	same(t, update.Changes, []fleet.Change{{Epoch: 1, Kind: fleet.MemberChanged, ID: ada.ID}})
	same(t, update.Nodes, []fleet.Node{})
}
