package store_test

import (
	"context"
	"database/sql"
	neturl "net/url"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

func aNode(name, incarnation string) account.Node {
	return account.Node{
		Name: name, Incarnation: incarnation, Region: "eu", Address: "10.0.0.1:8703", Pin: "af", Version: "v1", State: "ready",
		Started: start,
	}
}

// poll polls the store as a hub of the region eu does.
func poll(t *testing.T, db *store.DB, after account.Position) (account.StoreState, []fleet.Change) {
	t.Helper()
	state, changes, err := db.Facts("eu").Poll(t.Context(), after)
	ok(t, err)
	return state, changes
}

func nodes(state account.StoreState, _ []fleet.Change) int { return len(state.Nodes) }

// TestBeat checks that a poll of a node on PostgreSQL increments its beat and returns all
// nodes with what changed, and fails if another process has taken the name.
func TestBeat(t *testing.T) {
	t.Parallel()
	config := store.Config{URL: storetest.Postgres(t)}
	db, other := open(t, config), open(t, config)
	ok(t, db.StartNode(t.Context(), aNode("a", "first")))
	ok(t, other.StartNode(t.Context(), aNode("b", "second")))
	ada := newMember(t, other, "ada")

	update, changes := poll(t, db, account.Position{})
	same(t, changes, []fleet.Change{{Epoch: 1, Kind: fleet.MemberChanged, ID: ada.ID}})
	same(t, update.Position, must[account.Position](t)(other.Position(t.Context())))
	a, b := aNode("a", "first"), aNode("b", "second")
	a.Beat = 1
	same(t, update.Nodes, []account.Node{a, b})
	_, _, err := db.Facts("eu").Poll(t.Context(), account.Position{Epoch: 1, Nonce: "another"})
	fails(t, err, store.ErrBehind)

	again := open(t, config)
	ok(t, again.StartNode(t.Context(), aNode("a", "third")))
	_, _, err = db.Facts("eu").Poll(t.Context(), update.Position)
	fails(t, err, account.ErrReplaced)
	update, _ = poll(t, again, update.Position)
	a.Incarnation, a.Beat = "third", 1
	same(t, update.Nodes, []account.Node{a, b})
}

// TestNodeState checks that any node can set another's state, which all read with their
// next beat, and that a node that shuts down is removed. On SQLite there are no nodes.
func TestNodeState(t *testing.T) {
	t.Parallel()
	config := store.Config{URL: storetest.Postgres(t)}
	db, other := open(t, config), open(t, config)
	ok(t, db.StartNode(t.Context(), aNode("a", "first")))
	ok(t, other.StartNode(t.Context(), aNode("b", "second")))
	fails(t, db.SetNodeState(t.Context(), "c", account.NodeDraining), store.ErrNotFound)
	ok(t, db.SetNodeState(t.Context(), "b", account.NodeDraining))
	update, _ := poll(t, other, account.Position{})
	same(t, []string{update.Nodes[0].State, update.Nodes[1].State}, []string{"ready", account.NodeDraining})
	earlier := update.Nodes[1]
	update, _ = poll(t, other, account.Position{})
	ok(t, db.Facts("eu").RemoveNode(t.Context(), earlier)) // its row has changed since
	ok(t, db.Facts("eu").RemoveNode(t.Context(), update.Nodes[0]))
	same(t, nodes(poll(t, other, account.Position{})), 1)
	ok(t, db.StartNode(t.Context(), aNode("a", "again")))
	ok(t, other.EndNode(t.Context()))
	_, _, err := other.Facts("eu").Poll(t.Context(), update.Position)
	fails(t, err, account.ErrReplaced)
	same(t, nodes(poll(t, db, account.Position{})), 1)

	alone := open(t, store.Config{Path: storetest.SQLite(t)})
	fails(t, alone.SetNodeState(t.Context(), "a", account.NodeDraining), store.ErrNotFound)
	ok(t, alone.EndNode(t.Context()))
}

// confirms polls until the store confirms.
func confirms(t *testing.T, db *store.DB, after account.Position) account.StoreState {
	t.Helper()
	for {
		update, _, err := db.Facts("eu").Poll(t.Context(), after)
		if err == nil {
			return update
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}

// TestOldPrimaryDoesNotConfirm checks that a server without its synchronous standby, like
// one that was replaced as the primary, answers reads but confirms nothing.
func TestOldPrimaryDoesNotConfirm(t *testing.T) {
	t.Parallel()
	server := storetest.Start(t)
	config := store.Config{URL: server.Database(t)}
	db := open(t, config)
	ok(t, db.StartNode(t.Context(), aNode("a", "first")))
	newMember(t, db, "ada")
	at := confirms(t, db, account.Position{}).Position
	standby := func(name string) {
		t.Helper()
		execute(t, config.URL, "ALTER SYSTEM SET synchronous_standby_names = '"+name+"'", "SELECT pg_reload_conf()")
	}
	standby("gone")
	for { // until the server has read its configuration
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, _, err := db.Facts("eu").Poll(ctx, at)
		if cancel(); err != nil {
			break
		}
	}
	same(t, must[account.Position](t)(db.Position(t.Context())), at)
	standby("")
	same(t, confirms(t, db, at).Position, at)
}

// TestReplacedPrimary checks that a node that has followed a failover reads nothing from
// the old primary, even if that still runs and is the first in the URL.
func TestReplacedPrimary(t *testing.T) {
	t.Parallel()
	old := storetest.Start(t)
	url := old.Database(t)
	must[*store.DB](t)(store.Open(t.Context(), store.Config{URL: url})).Close() // creates the tables
	old.Stop(t)
	next := old.Promoted(t)
	old.Start(t)
	url = strings.Replace(url, neturl.QueryEscape(old.Host()), neturl.QueryEscape(old.Host()+","+next.Host()), 1)
	db := open(t, store.Config{URL: url + "&connect_timeout=60"}) // many connections at once are slow on a busy computer
	if warning := must[string](t)(db.Warning(t.Context())); !strings.Contains(warning, "synchronous_standby_names") {
		t.Errorf("several hosts and no standby: %q", warning)
	}
	ok(t, db.StartNode(t.Context(), aNode("a", "first")))
	at := confirms(t, db, account.Position{}).Position
	old.Stop(t)
	_, _, err := db.Facts("eu").Poll(t.Context(), at)
	assert.Require(t, err != nil, "it confirmed without a server")
	// The next primary was copied before the node existed. A closed connection is noticed
	// when it is used.
	for db.StartNode(t.Context(), aNode("a", "second")) != nil && t.Context().Err() == nil {
	}
	confirms(t, db, at)
	old.Start(t)
	ada := newMember(t, db, "ada")
	together(32, func(int) { // more than there are connections
		if _, err := db.Member(t.Context(), ada.ID); err != nil {
			t.Errorf("after the fail-over: %v", err)
		}
	})
}

// TestNodeOnSQLite checks that the only process with an SQLite file needs no beat.
func TestNodeOnSQLite(t *testing.T) {
	db := openSQLite(t)
	ok(t, db.StartNode(t.Context(), aNode("a", "first")))
	ada := newMember(t, db, "ada")
	update, changes := poll(t, db, account.Position{})
	same(t, changes, []fleet.Change{{Epoch: 1, Kind: fleet.MemberChanged, ID: ada.ID}})
	same(t, update.Nodes, []account.Node{})
}

// TestStoppedNode checks that a node that stopped in the middle of a transaction, or was cut
// off, does not prevent another from changing the same row. Without idleLimit the test
// would wait forever.
func TestStoppedNode(t *testing.T) {
	t.Parallel()
	url := storetest.Postgres(t)
	db := open(t, store.Config{URL: url})
	newMember(t, db, "ada")
	const change = "UPDATE members SET name = name"
	stopped := must[*sql.Tx](t)(db.Begin(t.Context()))
	defer func() { _ = stopped.Rollback() }()
	ok(t, assert.Err(stopped.ExecContext(t.Context(), change)))
	execute(t, url, change)
}

// execute runs statements on the database without the store.
func execute(t *testing.T, url string, statements ...string) {
	t.Helper()
	raw, err := sql.Open("pgx", url)
	ok(t, err)
	defer raw.Close()
	for _, s := range statements {
		ok(t, assert.Err(raw.ExecContext(t.Context(), s)))
	}
}
