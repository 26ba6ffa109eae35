package store_test

import (
	"bytes"
	"crypto/sha256"
	"strconv"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/store"
)

// aTurn returns a turn of the member, created that many seconds after start.
func aTurn(m account.Member, id string, seconds, size int) account.Turn {
	return account.Turn{
		Hash: sha256.Sum256([]byte(id)), MemberID: m.ID, Created: later(seconds), Expires: later(seconds).Add(time.Hour),
		Sealed: bytes.Repeat([]byte{0xff, 0}, size/2),
	}
}

func testTurns(t *testing.T, db *store.DB) {
	ctx, get := t.Context(), must[account.Turn](t)
	ann, bob := newMember(t, db, "ann"), newMember(t, db, "bob")
	first, second := aTurn(ann, "resp_1", 0, 10), aTurn(ann, "resp_2", 1, 20)
	ok(t, db.KeepTurn(ctx, first, 100, 1<<20))
	ok(t, db.KeepTurn(ctx, second, 100, 1<<20))
	same(t, get(db.Turn(ctx, first.Hash, ann.ID, later(1))), first)
	same(t, must[int64](t)(db.TurnSize(ctx, first.Hash, ann.ID, later(1))), int64(len(first.Sealed)))
	fails(t, db.KeepTurn(ctx, first, 100, 1<<20), store.ErrExists)
	other := aTurn(account.Member{ID: "mem_none"}, "resp_3", 0, 10)
	fails(t, db.KeepTurn(ctx, other, 100, 1<<20), store.ErrNotFound)

	// Another member's turn looks like one that does not exist.
	for _, hash := range [][32]byte{first.Hash, sha256.Sum256([]byte("resp_9"))} {
		fails(t, assert.Err(db.Turn(ctx, hash, bob.ID, later(1))), store.ErrNotFound)
		fails(t, assert.Err(db.TurnSize(ctx, hash, bob.ID, later(1))), store.ErrNotFound)
		fails(t, db.ForgetTurn(ctx, hash, bob.ID, later(1)), store.ErrNotFound)
	}
	get(db.Turn(ctx, first.Hash, ann.ID, later(1)))

	// An expired turn cannot be read, whether it was deleted or not.
	fails(t, assert.Err(db.Turn(ctx, first.Hash, ann.ID, first.Expires)), store.ErrNotFound)
	fails(t, db.ForgetTurn(ctx, first.Hash, ann.ID, first.Expires), store.ErrNotFound)
	get(db.Turn(ctx, first.Hash, ann.ID, first.Expires.Add(-time.Millisecond)))
	ok(t, db.PruneTurns(ctx, first.Expires))
	fails(t, assert.Err(db.Turn(ctx, first.Hash, ann.ID, start)), store.ErrNotFound)
	get(db.Turn(ctx, second.Hash, ann.ID, first.Expires))

	ok(t, db.ForgetTurn(ctx, second.Hash, ann.ID, later(2)))
	fails(t, db.ForgetTurn(ctx, second.Hash, ann.ID, later(2)), store.ErrNotFound)
}

// A member's turns beyond the limits are deleted, oldest first. Other members' turns
// stay.
func testTurnBounds(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ann, bob := newMember(t, db, "ann"), newMember(t, db, "bob")
	there := func(of account.Turn) bool {
		_, err := db.Turn(ctx, of.Hash, of.MemberID, start)
		return err == nil
	}
	bobs := aTurn(bob, "bobs", -100, 10)
	ok(t, db.KeepTurn(ctx, bobs, 100, 1<<20))
	for _, c := range []struct {
		name      string
		most      int
		mostBytes int64
		kept      int
	}{
		{"of ten, four", 4, 1 << 20, 4},
		{"of ten, 350 bytes", 100, 350, 3},
		{"of ten, all but none fit", 100, 99, 0},
	} {
		var turns []account.Turn
		for i := range 10 {
			turns = append(turns, aTurn(ann, c.name+strconv.Itoa(i), i, 100))
			ok(t, db.KeepTurn(ctx, turns[i], c.most, c.mostBytes))
		}
		for i, turn := range turns {
			assert.Equal(t, there(turn), (i >= len(turns)-c.kept), c.name, "of turn", i, "kept")
		}
		for _, turn := range turns[len(turns)-c.kept:] {
			ok(t, db.ForgetTurn(ctx, turn.Hash, ann.ID, start))
		}
	}
	assert.That(t, there(bobs), "another member's turn went")
}
