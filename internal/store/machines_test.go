package store_test

import (
	"crypto/sha256"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
)

func testMachines(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	box := newMachine(t, db, ada, "box")
	den := newMachine(t, db, bob, "box")

	got, owner, err := db.MachineByHash(ctx, box.Hash)
	ok(t, err)
	same(t, got, box)
	same(t, owner, ada)
	if got.Offers != nil {
		t.Fatalf("a machine that never connected has offers %q", got.Offers)
	}
	fails(t, assert.Err(db.MachineByHash(ctx, [32]byte{})), store.ErrNotFound)

	box.Offers = make([]byte, 256)
	for i := range box.Offers {
		box.Offers[i] = byte(i)
	}
	box.LastSeen = later(5)
	ok(t, db.SaveOffers(ctx, box.ID, box.Offers, box.LastSeen))
	same(t, must[[]account.Machine](t)(db.Machines(ctx, ada.ID)), []account.Machine{box})
	same(t, must[[]account.Machine](t)(db.Machines(ctx, "")), []account.Machine{box, den})
	fails(t, db.SaveOffers(ctx, "mch_none", nil, later(5)), store.ErrNotFound)

	fails(t, db.CreateMachine(ctx, aMachine(ada, "box")), store.ErrExists)
	fails(t, db.CreateMachine(ctx, aMachine(ada, "")), store.ErrInvalid)
	fails(t, db.CreateMachine(ctx, aMachine(account.Member{ID: "mem_none"}, "attic")), store.ErrNotFound)

	changes := watch(t, db)
	ok(t, db.RevokeMachine(ctx, box.ID, later(6)))
	expect(t, changes(), fleet.Change{Kind: fleet.MachineChanged, ID: box.ID})
	fails(t, db.RevokeMachine(ctx, box.ID, later(7)), store.ErrNotFound)
	fails(t, assert.Err(db.MachineByHash(ctx, box.Hash)), store.ErrNotFound)
	box.Revoked = later(6)
	same(t, must[[]account.Machine](t)(db.Machines(ctx, ada.ID)), []account.Machine{box})

	again := aMachine(ada, "box")
	fails(t, db.CreateMachine(ctx, again), store.ErrExists) // the same credential
	again.Hash = sha256.Sum256([]byte("another"))
	ok(t, db.CreateMachine(ctx, again))
	expect(t, changes(), fleet.Change{Kind: fleet.MachineChanged, ID: again.ID})
}

func testActiveMachines(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada := newMember(t, db, "ada")
	never, old, fresh := newMachine(t, db, ada, "never"), newMachine(t, db, ada, "old"), newMachine(t, db, ada, "fresh")
	gone := newMachine(t, db, ada, "gone")
	abroad := aMachine(ada, "abroad")
	abroad.Region = "us"
	ok(t, db.CreateMachine(ctx, abroad))
	for i, m := range []*account.Machine{&old, &fresh, &gone, &abroad} {
		m.Offers, m.LastSeen = []byte(`{"models":[]}`), later(100*i)
		ok(t, db.SaveOffers(ctx, m.ID, m.Offers, m.LastSeen))
	}
	ok(t, db.RevokeMachine(ctx, gone.ID, later(300)))

	list := func(region string, since time.Time) []account.Machine {
		t.Helper()
		return must[[]account.Machine](t)(db.Facts(region).ActiveMachines(ctx, since))
	}
	same(t, list("eu", time.Time{}), []account.Machine{never, old, fresh})
	same(t, list("eu", old.LastSeen), []account.Machine{old, fresh})
	same(t, list("eu", old.LastSeen.Add(time.Millisecond)), []account.Machine{fresh})
	same(t, list("us", time.Time{}), []account.Machine{abroad})
	same(t, must[account.Machine](t)(db.ActiveMachine(ctx, never.ID)), never)
	_, err := db.ActiveMachine(ctx, gone.ID)
	fails(t, err, store.ErrNotFound)
	_, err = db.ActiveMachine(ctx, "mch_none")
	fails(t, err, store.ErrNotFound)
}

func testGenerations(t *testing.T, db *store.DB) {
	box := newMachine(t, db, newMember(t, db, "ada"), "box")
	began := time.Now().UnixMilli()
	generations := make([]int64, 16)
	together(len(generations), func(i int) {
		var err error
		if generations[i], err = db.NextGeneration(t.Context(), box.ID); err != nil {
			t.Error(err)
		}
	})
	slices.Sort(generations)
	for i, g := range generations {
		if g < began || i > 0 && g == generations[i-1] {
			t.Fatalf("sixteen tunnels from %d on were numbered %v", began, generations)
		}
	}
	same(t, must[account.Machine](t)(db.ActiveMachine(t.Context(), box.ID)).Generation, generations[15])
	ok(t, db.RevokeMachine(t.Context(), box.ID, start))
	fails(t, assert.Err(db.NextGeneration(t.Context(), box.ID)), store.ErrNotFound)
}

func newToken(t *testing.T, db *store.DB, m account.Member, secret, name string) [32]byte {
	t.Helper()
	token := account.LoginToken{
		ID: account.NewID("tok_"), MemberID: m.ID, Name: name, Hash: sha256.Sum256([]byte(secret)),
		Created: start, Expires: later(600),
	}
	ok(t, db.CreateLoginToken(t.Context(), token))
	return token.Hash
}

func testLoginTokens(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, eve := newMember(t, db, "ada"), newMember(t, db, "eve")
	ok(t, db.SetMemberDisabled(ctx, eve.ID, true))
	box := newMachine(t, db, ada, "box")
	named, unnamed := newToken(t, db, ada, "named", "den"), newToken(t, db, ada, "unnamed", "")
	clash, disabled := newToken(t, db, ada, "clash", "box"), newToken(t, db, eve, "disabled", "cave")
	redeem := func(hash [32]byte, m account.Machine, now time.Time) (account.Machine, error) {
		m.OwnerID = eve.ID // the token's member is always the owner
		made, owner, err := db.RedeemLoginToken(ctx, hash, m, now)
		if err == nil {
			same(t, owner, ada)
		}
		return made, err
	}
	changes := watch(t, db)

	want := aMachine(ada, "my laptop")
	got, err := redeem(named, want, later(1))
	ok(t, err)
	want.Name = "den"
	same(t, got, want)
	same(t, must[account.Machine](t)(db.ActiveMachine(ctx, got.ID)), want)
	expect(t, changes(), fleet.Change{Kind: fleet.MachineChanged, ID: got.ID})
	fails(t, assert.Err(redeem(named, aMachine(ada, "another"), later(2))), store.ErrNotFound)

	fails(t, assert.Err(redeem(unnamed, aMachine(ada, ""), later(3))), store.ErrInvalid)
	fails(t, assert.Err(redeem(unnamed, aMachine(ada, "attic"), later(600))), store.ErrNotFound)
	got, err = redeem(unnamed, aMachine(ada, "attic"), later(599))
	ok(t, err)
	same(t, got.Name, "attic")
	expect(t, changes(), fleet.Change{Kind: fleet.MachineChanged, ID: got.ID})

	fails(t, assert.Err(redeem(clash, aMachine(ada, "third"), later(4))), store.ErrExists)
	same(t, changes(), []fleet.Change{})
	ok(t, db.RevokeMachine(ctx, box.ID, later(5)))
	ok(t, assert.Err(redeem(clash, aMachine(ada, "third"), later(6)))) // the failed call did not use it

	fails(t, assert.Err(redeem(disabled, aMachine(eve, "cave"), later(7))), store.ErrNotFound)
	fails(t, assert.Err(redeem([32]byte{}, aMachine(ada, "none"), later(8))), store.ErrNotFound)
	fails(t, db.CreateLoginToken(ctx, account.LoginToken{ID: account.NewID("tok_"), MemberID: "mem_none", Hash: [32]byte{1}}), store.ErrNotFound)
	fails(t, db.CreateLoginToken(ctx, account.LoginToken{ID: account.NewID("tok_"), MemberID: ada.ID, Hash: named}), store.ErrExists)
}

// testLoginTokenRace checks that one of many concurrent calls redeems a token.
func testLoginTokenRace(t *testing.T, db *store.DB) {
	ada := newMember(t, db, "ada")
	token := newToken(t, db, ada, "once", "")
	var won atomic.Int32
	together(16, func(i int) {
		m := aMachine(ada, string(rune('a'+i)))
		_, _, err := db.RedeemLoginToken(t.Context(), token, m, later(1))
		switch {
		case err == nil:
			won.Add(1)
		case !errors.Is(err, store.ErrNotFound):
			t.Error(err)
		}
	})
	if n := won.Load(); n != 1 {
		t.Fatalf("%d of 16 redeemed the token, want 1", n)
	}
	same(t, len(must[[]account.Machine](t)(db.Machines(t.Context(), ada.ID))), 1)
}
