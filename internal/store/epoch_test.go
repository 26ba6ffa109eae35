package store_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
)

// testEpoch checks that each write that may change who reaches which machine moves the
// epoch by one, and that other writes and failed ones do not.
func testEpoch(t *testing.T, db *store.DB) {
	ctx := t.Context()
	same(t, must[account.Position](t)(db.Position(ctx)), account.Position{})
	changes := watch(t, db)
	ada := newMember(t, db, "ada")
	key := newKey(t, db, ada, "one")
	box := newMachine(t, db, ada, "box")
	ok(t, db.RevokeKey(ctx, key.ID, start))
	same(t, changes(), []fleet.Change{
		{Kind: fleet.MemberChanged, ID: ada.ID},
		{Kind: fleet.KeyChanged, ID: key.ID},
		{Kind: fleet.MachineChanged, ID: box.ID},
		{Kind: fleet.KeyChanged, ID: key.ID},
	})
	same(t, must[account.Position](t)(db.Position(ctx)).Epoch, int64(4))

	must[int64](t)(db.NextGeneration(ctx, box.ID))
	ok(t, db.SaveOffers(ctx, box.ID, []byte("{}"), start))
	ok(t, db.TouchKeys(ctx, map[string]time.Time{key.ID: start}))
	newToken(t, db, ada, "token", "")
	ok(t, db.RecordUsage(ctx, []account.Usage{aCall("call", 1)}))
	fails(t, db.CreateMember(ctx, ada), store.ErrExists)
	fails(t, db.RevokeKey(ctx, key.ID, start), store.ErrNotFound)
	same(t, changes(), []fleet.Change{})
	same(t, must[account.Position](t)(db.Position(ctx)).Epoch, int64(4))
}

// testEpochConcurrency checks that during concurrent writes, readers that poll see each
// change once, in the same order, and find the changed record in the store.
func testEpochConcurrency(t *testing.T, db *store.DB) {
	const writers, each, readers = 8, 25, 3
	seen := make([][]string, readers)
	var reading sync.WaitGroup
	for r := range readers {
		reading.Go(func() {
			var at account.Position
			for epoch := int64(0); epoch < writers*each; {
				now, changes, err := db.Changes(t.Context(), at)
				if err != nil {
					t.Error(err)
					return
				}
				at = now
				for _, c := range changes {
					if epoch++; c.Epoch != epoch {
						t.Errorf("after %d came change %d", epoch-1, c.Epoch)
					}
					if _, err := db.Member(t.Context(), c.ID); err != nil {
						t.Errorf("change %d: %v", c.Epoch, err)
					}
					seen[r] = append(seen[r], c.ID)
				}
				assert.Equal(t, epoch, now.Epoch, "read up to change", "yet the epoch")
				if t.Failed() { // there are no further changes
					return
				}
			}
		})
	}
	together(writers, func(w int) {
		for i := range each {
			m := account.Member{ID: account.NewID("mem_"), Name: fmt.Sprint("m", w, "-", i), Created: start}
			if err := db.CreateMember(t.Context(), m); err != nil {
				t.Error(err)
			}
		}
	})
	reading.Wait()
	for r := range readers {
		same(t, len(seen[r]), writers*each)
		same(t, seen[r], seen[0])
	}
}

// testBehind checks that a reader that is ahead of the store, as after a restored backup,
// gets ErrBehind.
func testBehind(t *testing.T, db *store.DB) {
	ctx := t.Context()
	at, changes, err := db.Changes(ctx, account.Position{})
	ok(t, err)
	same(t, at, account.Position{})
	same(t, changes, []fleet.Change{})
	newMember(t, db, "ada")
	_, _, err = db.Changes(ctx, account.Position{Epoch: 7, Nonce: "of change 7"})
	fails(t, err, store.ErrBehind)
}

// testLostChanges checks that a reader gets ErrBehind if the database lost a change that
// the reader knows, and another change has its number.
func testLostChanges(t *testing.T, db *store.DB) {
	ctx := t.Context()
	newMember(t, db, "ada")
	at := must[account.Position](t)(db.Position(ctx))
	newMember(t, db, "bob")
	now, changes, err := db.Changes(ctx, at)
	ok(t, err)
	same(t, len(changes), 1)
	same(t, must[account.Position](t)(db.Position(ctx)), now)
	if at.Nonce == "" || at.Nonce == now.Nonce {
		t.Fatalf("changes 1 and 2 have the nonces %q and %q", at.Nonce, now.Nonce)
	}
	for _, lost := range []account.Position{{Epoch: 1, Nonce: now.Nonce}, {Epoch: 2, Nonce: at.Nonce}, {Epoch: 2}} {
		_, _, err = db.Changes(ctx, lost)
		fails(t, err, store.ErrBehind)
	}
}

// testPruning checks that changes are kept for a day. After that a reader gets ErrBehind
// with the current epoch, unless it is up to date.
func testPruning(t *testing.T, open func(t *testing.T) *store.DB) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t)
		nonces := []string{""}
		add := func(name string) {
			newMember(t, db, name)
			nonces = append(nonces, must[account.Position](t)(db.Position(t.Context())).Nonce)
		}
		add("one")
		add("two")
		time.Sleep(23 * time.Hour)
		add("three")
		at := func(epoch int64) account.Position { return account.Position{Epoch: epoch, Nonce: nonces[epoch]} }
		_, changes, err := db.Changes(t.Context(), at(0))
		ok(t, err)
		same(t, len(changes), 3)

		time.Sleep(2 * time.Hour)
		add("four")
		fails(t, assert.Err(db.Changes(t.Context(), at(1))), store.ErrBehind)
		for after, want := range map[int64]int{2: 2, 3: 1, 4: 0} {
			_, changes, err = db.Changes(t.Context(), at(after))
			ok(t, err)
			same(t, len(changes), want)
		}
	})
}
