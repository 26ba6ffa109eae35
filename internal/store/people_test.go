package store_test

import (
	"crypto/sha256"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
)

func testMembers(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada := account.Member{ID: account.NewID("mem_"), Name: "Ada", Operator: true, Created: later(2)}
	bob := account.Member{ID: account.NewID("mem_"), Name: "bob", Disabled: true, Created: later(1).In(time.FixedZone("", 3600))}
	eve := account.Member{ID: account.NewID("mem_"), Name: "Ève ☃ '; --", Created: later(3)}
	for _, m := range []account.Member{ada, bob, eve} {
		ok(t, db.CreateMember(ctx, m))
	}
	bob.Created = bob.Created.UTC()

	same(t, must[account.Member](t)(db.Member(ctx, ada.ID)), ada)
	same(t, must[account.Member](t)(db.Member(ctx, bob.ID)), bob)
	same(t, must[account.Member](t)(db.MemberByName(ctx, "bob")), bob)
	same(t, must[account.Member](t)(db.MemberByName(ctx, eve.Name)), eve)
	same(t, must[[]account.Member](t)(db.Members(ctx)), []account.Member{bob, ada, eve})

	fails(t, assert.Err(db.Member(ctx, "mem_none")), store.ErrNotFound)
	fails(t, assert.Err(db.MemberByName(ctx, "ADA")), store.ErrNotFound)
	same(t, must[account.Member](t)(db.MemberWhoTypes(ctx, "ADA")), ada)
	same(t, must[account.Member](t)(db.MemberWhoTypes(ctx, "ada")), ada)
	for _, other := range []string{"аda", "adam", "", "nul\x00"} { // the first with a Cyrillic а
		assert.That(t, assert.Err(db.MemberWhoTypes(ctx, other)) != nil, other, "is ada")
	}
	fails(t, db.SetMemberDisabled(ctx, "mem_none", true), store.ErrNotFound)
	fails(t, db.CreateMember(ctx, account.Member{ID: account.NewID("mem_"), Name: "Ada", Created: start}), store.ErrExists)
	fails(t, db.CreateMember(ctx, account.Member{ID: ada.ID, Name: "another", Created: start}), store.ErrExists)
	for _, name := range []string{"", "nul\x00", "not UTF-8 \xff"} {
		fails(t, db.CreateMember(ctx, account.Member{ID: account.NewID("mem_"), Name: name, Created: start}), store.ErrInvalid)
	}
	same(t, len(must[[]account.Member](t)(db.Members(ctx))), 3)
	sam := account.Member{ID: account.NewID("mem_"), Name: "sam", Created: start}
	assert.OK(t, db.CreateMember(ctx, sam))
	fails(t, assert.Err(db.MemberWhoTypes(ctx, "\u017fam")), store.ErrNotFound) // a long s: strings.ToLower, by which guesses are limited, keeps it
}

func testKeys(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	var keys []account.Key
	for i, reach := range []account.Reach{account.ReachAll, account.ReachShared, account.ReachOwn} {
		k := account.Key{
			ID: account.NewID("key_"), MemberID: ada.ID, Name: "same name", Region: "eu", Reach: reach,
			Hash: sha256.Sum256([]byte{byte(i)}), LastFour: "Zz09", Created: later(i),
		}
		if i == 1 {
			k.Expires, k.PerDay = later(-1), 100 // the caller has to check both
		}
		ok(t, db.CreateKey(ctx, k))
		keys = append(keys, k)
	}
	newKey(t, db, bob, "bob's")

	for _, k := range keys {
		got, member, err := db.KeyByHash(ctx, k.Hash)
		ok(t, err)
		same(t, got, k)
		same(t, member, ada)
		same(t, must[account.Key](t)(db.Key(ctx, k.ID)), k)
	}
	same(t, must[[]account.Key](t)(db.Keys(ctx, ada.ID)), keys)
	same(t, must[[]account.Key](t)(db.Keys(ctx, "mem_none")), []account.Key{})

	ok(t, db.TouchKeys(ctx, map[string]time.Time{keys[0].ID: later(60), keys[1].ID: later(61), "key_gone": later(62)}))
	ok(t, db.TouchKeys(ctx, map[string]time.Time{keys[0].ID: later(50)}))
	ok(t, db.TouchKeys(ctx, nil))
	keys[0].LastUsed, keys[1].LastUsed = later(60), later(61)
	same(t, must[[]account.Key](t)(db.Keys(ctx, ada.ID)), keys)

	changes := watch(t, db)
	ok(t, db.LimitOwnKey(ctx, ada.ID, keys[0].ID, 7))
	expect(t, changes(), fleet.Change{Kind: fleet.KeyChanged, ID: keys[0].ID})
	ok(t, db.LimitOwnKey(ctx, ada.ID, keys[1].ID, 0))
	keys[0].PerDay, keys[1].PerDay = 7, 0
	fails(t, db.LimitOwnKey(ctx, bob.ID, keys[0].ID, 8), store.ErrNotFound)
	fails(t, db.LimitOwnKey(ctx, ada.ID, keys[0].ID, -1), store.ErrInvalid)
	same(t, must[[]account.Key](t)(db.Keys(ctx, ada.ID)), keys)

	ok(t, db.RevokeKey(ctx, keys[1].ID, later(70)))
	keys[1].Revoked = later(70)
	fails(t, assert.Err(db.KeyByHash(ctx, keys[1].Hash)), store.ErrNotFound)
	fails(t, assert.Err(db.Key(ctx, keys[1].ID)), store.ErrNotFound)
	fails(t, assert.Err(db.Key(ctx, "key_gone")), store.ErrNotFound)
	fails(t, db.RevokeKey(ctx, keys[1].ID, later(71)), store.ErrNotFound)
	fails(t, db.LimitOwnKey(ctx, ada.ID, keys[1].ID, 9), store.ErrNotFound)
	fails(t, db.RevokeKey(ctx, "key_gone", later(71)), store.ErrNotFound)
	same(t, must[[]account.Key](t)(db.Keys(ctx, ada.ID)), keys)

	fails(t, assert.Err(db.KeyByHash(ctx, [32]byte{})), store.ErrNotFound)
	twin := keys[0]
	twin.ID = account.NewID("key_")
	fails(t, db.CreateKey(ctx, twin), store.ErrExists)
	twin.Hash, twin.MemberID = [32]byte{1}, "mem_none"
	fails(t, db.CreateKey(ctx, twin), store.ErrNotFound)
	twin.MemberID, twin.Reach = ada.ID, "universe"
	fails(t, db.CreateKey(ctx, twin), store.ErrInvalid)
}

func testShares(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob, eve := newMember(t, db, "ada"), newMember(t, db, "bob"), newMember(t, db, "eve")
	limited := account.Share{
		ID: account.NewID("shr_"), OwnerID: ada.ID, MemberID: bob.ID,
		Limits:  account.Limits{Models: []string{`a "b"`, "llama3:8b"}, Hours: "Mon-Fri 18:00-23:00", Concurrent: 2, PerDay: 100},
		Created: later(1),
	}
	ok(t, db.AddShare(ctx, limited))
	back := account.Share{ID: account.NewID("shr_"), OwnerID: bob.ID, MemberID: ada.ID, Created: later(2)}
	ok(t, db.AddShare(ctx, back))
	other := account.Share{ID: account.NewID("shr_"), OwnerID: eve.ID, MemberID: bob.ID, Created: later(3)}
	ok(t, db.AddShare(ctx, other))

	list := must[[]account.Share](t)
	same(t, list(db.Shares(ctx, ada.ID)), []account.Share{limited, back})
	same(t, list(db.Shares(ctx, eve.ID)), []account.Share{other})
	same(t, list(db.SharesTo(ctx, bob.ID)), []account.Share{limited, other})
	same(t, list(db.SharesTo(ctx, eve.ID)), []account.Share{})
	same(t, list(db.ShareList(ctx)), []account.Share{limited, back, other})

	again := limited
	again.ID = account.NewID("shr_")
	fails(t, db.AddShare(ctx, again), store.ErrExists)
	for _, bad := range []struct {
		change func(*account.Share)
		kind   error
	}{
		{func(s *account.Share) { s.OwnerID = "mem_none" }, store.ErrNotFound},
		{func(s *account.Share) { s.MemberID = "mem_none" }, store.ErrNotFound},
		{func(s *account.Share) { s.MemberID = s.OwnerID }, store.ErrInvalid},
		{func(s *account.Share) { s.Concurrent = -1 }, store.ErrInvalid},
		{func(s *account.Share) { s.PerDay = -1 }, store.ErrInvalid},
		{func(s *account.Share) { s.Models = []string{"\x00"} }, store.ErrInvalid},
	} {
		s := account.Share{ID: account.NewID("shr_"), OwnerID: ada.ID, MemberID: eve.ID, Created: start}
		bad.change(&s)
		fails(t, db.AddShare(ctx, s), bad.kind)
	}

	changes := watch(t, db)
	ok(t, db.RemoveShare(ctx, ada.ID, bob.ID))
	expect(t, changes(), fleet.Change{Kind: fleet.SharesChanged, ID: bob.ID})
	fails(t, db.RemoveShare(ctx, ada.ID, bob.ID), store.ErrNotFound)
	same(t, list(db.ShareList(ctx)), []account.Share{back, other})
	ok(t, db.AddShare(ctx, again))
}

func testGroups(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob, eve := newMember(t, db, "ada"), newMember(t, db, "bob"), newMember(t, db, "eve")
	box, den := newMachine(t, db, ada, "box"), newMachine(t, db, bob, "den")
	org := account.Group{
		ID: account.NewID("grp_"), Name: "lab", Kind: account.GroupOrg, Created: later(1),
		Members: []account.GroupMember{{MemberID: ada.ID, Admin: true}, {MemberID: bob.ID}}, KeptOut: []string{box.ID},
	}
	open := account.Group{ID: account.NewID("grp_"), Name: "everyone", Kind: account.GroupOpen, Created: later(2)}
	ok(t, db.CreateGroup(ctx, org))
	ok(t, db.CreateGroup(ctx, open))

	read := must[account.Group](t)
	same(t, read(db.Group(ctx, org.ID)), org)
	same(t, read(db.GroupByID(ctx, org.ID)), org)
	same(t, read(db.GroupByName(ctx, "everyone")), open)
	same(t, must[[]account.Group](t)(db.GroupList(ctx)), []account.Group{org, open})

	changes := watch(t, db)
	ok(t, db.JoinGroup(ctx, open.ID, eve.ID, start))
	fails(t, db.NameAdmin(ctx, org.ID, bob.ID), store.ErrExists)
	ok(t, db.MakeAdmin(ctx, ada.ID, org.ID, bob.ID))
	ok(t, db.DropAdmin(ctx, bob.ID, org.ID, ada.ID))
	ok(t, db.KeepOutOwn(ctx, bob.ID, org.ID, den.ID, true))
	ok(t, db.KeepOutOwn(ctx, bob.ID, org.ID, den.ID, true))
	ok(t, db.KeepOutOwn(ctx, ada.ID, org.ID, box.ID, false))
	ok(t, db.KeepOutOwn(ctx, ada.ID, org.ID, box.ID, false))
	lab, all := fleet.Change{Kind: fleet.GroupChanged, ID: org.ID}, fleet.Change{Kind: fleet.GroupChanged, ID: open.ID}
	expect(t, changes(), all, lab, lab, lab, lab, lab, lab)
	org.Members, org.KeptOut = []account.GroupMember{{MemberID: ada.ID}, {MemberID: bob.ID, Admin: true}}, []string{den.ID}
	open.Members = []account.GroupMember{{MemberID: eve.ID}}
	same(t, must[[]account.Group](t)(db.GroupList(ctx)), []account.Group{org, open})

	// Bob, the only admin, is disabled, so the operator can name another of the members.
	ok(t, db.SetMemberDisabled(ctx, bob.ID, true))
	fails(t, db.NameAdmin(ctx, org.ID, eve.ID), store.ErrNotFound)
	fails(t, db.NameAdmin(ctx, open.ID, eve.ID), store.ErrNotFound)
	ok(t, db.NameAdmin(ctx, org.ID, ada.ID))
	same(t, read(db.Group(ctx, org.ID)).Members[0].Admin, true)
	ok(t, db.SetMemberDisabled(ctx, bob.ID, false))
	_ = changes()

	ok(t, db.RemoveGroupMember(ctx, org.ID, ada.ID))
	expect(t, changes(), lab)
	org.Members = org.Members[1:]
	same(t, read(db.Group(ctx, org.ID)), org)

	fails(t, db.RemoveGroupMember(ctx, org.ID, ada.ID), store.ErrNotFound)
	fails(t, db.MakeAdmin(ctx, bob.ID, org.ID, ada.ID), store.ErrNotFound)
	fails(t, db.KeepOutOwn(ctx, ada.ID, org.ID, "mch_none", true), store.ErrNotFound)
	fails(t, assert.Err(db.Group(ctx, "grp_none")), store.ErrNotFound)
	fails(t, assert.Err(db.GroupByName(ctx, "Lab")), store.ErrNotFound)
	taken := account.Group{ID: account.NewID("grp_"), Name: "lab", Kind: account.GroupOpen, Created: start}
	fails(t, db.CreateGroup(ctx, taken), store.ErrExists)
	taken.Name, taken.Kind = "den", "secret"
	fails(t, db.CreateGroup(ctx, taken), store.ErrInvalid)
	same(t, changes(), []fleet.Change{})
}

// testLastOperator checks that if two operators disable each other concurrently, one
// remains.
func testLastOperator(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	ok(t, db.SetMemberDisabled(ctx, ada.ID, true)) // there was none before
	for range 20 {
		for _, m := range []account.Member{ada, bob} {
			ok(t, db.SetMemberDisabled(ctx, m.ID, false))
			ok(t, db.SetMemberOperator(ctx, m.ID, true))
		}
		var both sync.WaitGroup
		var refused atomic.Int32
		for _, m := range []account.Member{ada, bob} {
			both.Go(func() {
				switch err := db.SetMemberDisabled(ctx, m.ID, true); {
				case errors.Is(err, store.ErrInvalid):
					refused.Add(1)
				case err != nil:
					t.Error(err)
				}
			})
		}
		both.Wait()
		same(t, int(refused.Load()), 1)
	}
}

// testDisabledMember checks that routing no longer gets anything of a disabled member,
// and gets it again after the member is enabled. Everything that disappears or comes back
// is a change.
func testDisabledMember(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	live, dead := newKey(t, db, ada, "live"), newKey(t, db, ada, "dead")
	box, old := newMachine(t, db, ada, "box"), newMachine(t, db, ada, "old")
	ok(t, db.RevokeKey(ctx, dead.ID, later(1)))
	ok(t, db.RevokeMachine(ctx, old.ID, later(1)))
	given, got := newShare(t, db, ada, bob), newShare(t, db, bob, ada)
	lab := newGroup(t, db, "lab", bob, ada)
	ok(t, db.SaveOffers(ctx, box.ID, []byte("{}"), later(1)))

	vanishing := []fleet.Change{
		{Kind: fleet.MemberChanged, ID: ada.ID},
		{Kind: fleet.KeyChanged, ID: live.ID},
		{Kind: fleet.MachineChanged, ID: box.ID},
		{Kind: fleet.SharesChanged, ID: ada.ID},
		{Kind: fleet.SharesChanged, ID: bob.ID},
		{Kind: fleet.GroupChanged, ID: lab.ID},
	}
	changes := watch(t, db)
	ok(t, db.SetMemberDisabled(ctx, ada.ID, true))
	expect(t, changes(), vanishing...)

	_, _, err := db.KeyByHash(ctx, live.Hash)
	fails(t, err, store.ErrNotFound)
	_, err = db.Key(ctx, live.ID)
	fails(t, err, store.ErrNotFound)
	_, _, err = db.MachineByHash(ctx, box.Hash)
	fails(t, err, store.ErrNotFound)
	_, err = db.ActiveMachine(ctx, box.ID)
	fails(t, err, store.ErrNotFound)
	_, err = db.NextGeneration(ctx, box.ID)
	fails(t, err, store.ErrNotFound)
	same(t, len(must[[]account.Machine](t)(db.Facts("eu").ActiveMachines(ctx, time.Time{}))), 0)
	same(t, len(must[[]account.Share](t)(db.ShareList(ctx))), 0)
	same(t, len(must[[]account.Share](t)(db.SharesTo(ctx, bob.ID))), 0)
	same(t, len(must[[]account.Share](t)(db.SharesTo(ctx, ada.ID))), 0)
	same(t, len(must[[]account.Share](t)(db.Shares(ctx, ada.ID))), 2)
	onlyBob := lab
	onlyBob.Members = lab.Members[:1]
	same(t, must[account.Group](t)(db.GroupByID(ctx, lab.ID)), onlyBob)
	same(t, must[[]account.Group](t)(db.GroupList(ctx)), []account.Group{onlyBob})

	ok(t, db.SetMemberDisabled(ctx, ada.ID, false))
	expect(t, changes(), vanishing...)
	_, member, err := db.KeyByHash(ctx, live.Hash)
	ok(t, err)
	same(t, member, ada)
	same(t, len(must[[]account.Machine](t)(db.Facts("eu").ActiveMachines(ctx, start))), 1)
	same(t, must[[]account.Share](t)(db.SharesTo(ctx, bob.ID)), []account.Share{given})
	same(t, must[[]account.Share](t)(db.SharesTo(ctx, ada.ID)), []account.Share{got})
	same(t, must[account.Group](t)(db.GroupByID(ctx, lab.ID)), must[account.Group](t)(db.Group(ctx, lab.ID)))
}
