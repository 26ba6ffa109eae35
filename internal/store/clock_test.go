package store_test

import (
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

// TestClockOffset checks that an offset is kept if it can be right within 0.25 s, and is
// otherwise that of the middle of the round trip, which takes 0.1 s here.
func TestClockOffset(t *testing.T) {
	t.Parallel()
	before := start
	after := before.Add(100 * time.Millisecond)
	for _, test := range []struct{ known, server, want time.Duration }{
		{0, 0, 0},
		{0, 350 * time.Millisecond, 0},
		{0, 351 * time.Millisecond, 301 * time.Millisecond},
		{0, -250 * time.Millisecond, 0},
		{0, -251 * time.Millisecond, -301 * time.Millisecond},
		{-time.Hour, -time.Hour + 50*time.Millisecond, -time.Hour},
		{-time.Hour, time.Hour + 50*time.Millisecond, time.Hour},
		{time.Hour, 50 * time.Millisecond, 0},
	} {
		if got := store.Offset(test.known, before, before.Add(test.server), after); got != test.want {
			t.Errorf("known %v, the server's clock %v after: %v, want %v", test.known, test.server, got, test.want)
		}
	}
}

// TestClock checks that on PostgreSQL each beat reads the server's clock, which is this
// computer's here, and that times use it. On SQLite they use this computer's clock.
func TestClock(t *testing.T) {
	t.Parallel()
	near := func(db *store.DB, want time.Duration) {
		t.Helper()
		if got := time.Until(db.Now()); (got - want).Abs() > 10*time.Second {
			t.Errorf("now is %v from now, want %v", got, want)
		}
	}
	db := open(t, store.Config{URL: storetest.Postgres(t)})
	near(db, 0)
	ok(t, db.StartNode(t.Context(), aNode("a", "first")))
	ada := newMember(t, db, "ada")
	box := newMachine(t, db, ada, "box")
	db.SetClock(-time.Hour)
	near(db, -time.Hour)
	near(db, time.Until(db.Facts("eu").Now()))
	generation := must[int64](t)(db.NextGeneration(t.Context(), box.ID))
	near(db, time.Until(time.UnixMilli(generation)))
	assert.Equal(t, store.ClockAhead(db), time.Hour, "this computer's clock")
	update, _ := poll(t, db, account.Position{})
	assert.That(t, update.ClockAhead.Abs() <= 10*time.Second, "after a beat it", update.ClockAhead, "ahead")
	near(db, 0)
	near(open(t, store.Config{Path: storetest.SQLite(t)}), 0)
}
