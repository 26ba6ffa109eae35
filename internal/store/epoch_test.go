package store_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
)

// testEpoch: what may change who reaches what moves the epoch, one step a
// change; nothing else does, and neither does a write that failed.
func testEpoch(t *testing.T, db *store.DB) {
	ctx := t.Context()
	same(t, must[int64](t)(db.Epoch(ctx)), int64(0))
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
	same(t, must[int64](t)(db.Epoch(ctx)), int64(4))

	must[int64](t)(db.NextGeneration(ctx, box.ID))
	ok(t, db.SaveOffers(ctx, box.ID, []byte("{}"), start))
	ok(t, db.TouchKeys(ctx, map[string]time.Time{key.ID: start}))
	newToken(t, db, ada, "token", "")
	ok(t, db.RecordUsage(ctx, []account.Usage{aCall("call", 1)}))
	fails(t, db.CreateMember(ctx, ada), store.ErrExists)
	fails(t, db.RevokeKey(ctx, key.ID, start), store.ErrNotFound)
	same(t, changes(), []fleet.Change{})
	same(t, must[int64](t)(db.Epoch(ctx)), int64(4))
}

// testEpochConcurrency: while many write, readers that poll see each change
// once, in one order, and find the changed record in the store.
func testEpochConcurrency(t *testing.T, db *store.DB) {
	const writers, each, readers = 8, 25, 3
	seen := make([][]string, readers)
	var reading sync.WaitGroup
	for r := range readers {
		reading.Go(func() {
			for epoch := int64(0); epoch < writers*each; {
				now, changes, err := db.Changes(t.Context(), epoch)
				if err != nil {
					t.Error(err)
					return
				}
				for _, c := range changes {
					if epoch++; c.Epoch != epoch {
						t.Errorf("after %d came change %d", epoch-1, c.Epoch)
					}
					if _, err := db.Member(t.Context(), c.ID); err != nil {
						t.Errorf("change %d: %v", c.Epoch, err)
					}
					seen[r] = append(seen[r], c.ID)
				}
				if epoch != now {
					t.Errorf("read up to change %d, yet the epoch is %d", epoch, now)
				}
				if t.Failed() { // there is no more to come
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

// testBehind: a reader ahead of the store, as after a backup was restored, gets
// ErrBehind.
func testBehind(t *testing.T, db *store.DB) {
	ctx := t.Context()
	epoch, changes, err := db.Changes(ctx, 0)
	ok(t, err)
	same(t, epoch, int64(0))
	same(t, changes, []fleet.Change{})
	newMember(t, db, "ada")
	epoch, _, err = db.Changes(ctx, 7)
	fails(t, err, store.ErrBehind)
	same(t, epoch, int64(1))
}

// testPruning: changes are kept for a day; a later reader gets ErrBehind
// with the current epoch; one that is up to date never does.
func testPruning(t *testing.T, open func(t *testing.T) *store.DB) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t)
		newMember(t, db, "one")
		newMember(t, db, "two")
		time.Sleep(23 * time.Hour)
		newMember(t, db, "three")
		epoch, changes, err := db.Changes(t.Context(), 0)
		ok(t, err)
		same(t, epoch, int64(3))
		same(t, len(changes), 3)

		time.Sleep(2 * time.Hour)
		newMember(t, db, "four")
		epoch, _, err = db.Changes(t.Context(), 1)
		fails(t, err, store.ErrBehind)
		same(t, epoch, int64(4))
		for after, want := range map[int64]int{2: 2, 3: 1, 4: 0} {
			_, changes, err = db.Changes(t.Context(), after)
			ok(t, err)
			same(t, len(changes), want)
		}
	})
}
