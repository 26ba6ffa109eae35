package store_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
)

// limit returns a pointer to a value, for a change.
func limit[T any](v T) *T { return &v }

// testPutShare checks that a change creates a share or changes the existing one, which
// keeps its id, its time and the limits that the change does not name. A zero value
// removes a limit.
func testPutShare(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob, eve := newMember(t, db, "ada"), newMember(t, db, "bob"), newMember(t, db, "eve")
	changes := watch(t, db)
	first := account.Share{ID: account.NewID("shr_"), OwnerID: ada.ID, MemberID: bob.ID, Created: start, Limits: account.Limits{PerDay: 3}}
	put := must[account.Share](t)
	same(t, put(db.PutShare(ctx, first, account.LimitChange{PerDay: limit(3)})), first)
	again := account.Share{ID: account.NewID("shr_"), OwnerID: ada.ID, MemberID: bob.ID, Created: later(60)}
	want := first
	same(t, put(db.PutShare(ctx, again, account.LimitChange{})), want)
	want.Limits = account.Limits{Models: []string{"tiny"}, Hours: "Sat 10:00-12:00", Concurrent: 2, PerDay: 3}
	same(t, put(db.PutShare(ctx, again, account.LimitChange{Models: limit([]string{"tiny"}), Hours: limit("Sat 10:00-12:00"), Concurrent: limit(2)})), want)
	want.Hours, want.PerDay = "", 0
	same(t, put(db.PutShare(ctx, again, account.LimitChange{Hours: limit(""), PerDay: limit(0)})), want)
	toBob := fleet.Change{Kind: fleet.SharesChanged, ID: bob.ID}
	expect(t, changes(), toBob, toBob, toBob, toBob)
	back := newShare(t, db, eve, ada)
	same(t, must[[]account.NamedShare](t)(db.NamedShares(ctx, ada.ID)), []account.NamedShare{
		{Share: want, Owner: "ada", Member: "bob"}, {Share: back, Owner: "eve", Member: "ada"},
	})
	same(t, must[[]account.NamedShare](t)(db.NamedShares(ctx, bob.ID)), []account.NamedShare{{Share: want, Owner: "ada", Member: "bob"}})

	changes()
	fails(t, assert.Err(db.PutShare(ctx, again, account.LimitChange{PerDay: limit(-1)})), store.ErrInvalid)
	again.MemberID = ada.ID
	fails(t, assert.Err(db.PutShare(ctx, again, account.LimitChange{})), store.ErrInvalid)
	again.MemberID = "mem_none"
	fails(t, assert.Err(db.PutShare(ctx, again, account.LimitChange{})), store.ErrNotFound)
	same(t, changes(), []fleet.Change{})
}

// testGroupLimits checks that a member can set limits for each of their groups,
// independently of other members and groups, and that someone outside the group cannot.
// Routing gets all limits, and only the member sees them.
func testGroupLimits(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob, eve := newMember(t, db, "ada"), newMember(t, db, "bob"), newMember(t, db, "eve")
	lab, den := newGroup(t, db, "lab", ada, bob), newGroup(t, db, "den", ada, bob)
	changes := watch(t, db)
	put, inLab := must[account.Limits](t), fleet.Change{Kind: fleet.GroupChanged, ID: lab.ID}
	want := account.Limits{Models: []string{"tiny", `a "b"`}, PerDay: 3}
	same(t, put(db.PutGroupLimits(ctx, ada.ID, lab.ID, account.LimitChange{Models: limit(want.Models), PerDay: limit(3)})), want)
	want.Hours, want.Concurrent, want.PerDay = "Sat 10:00-12:00", 2, 0
	same(t, put(db.PutGroupLimits(ctx, ada.ID, lab.ID, account.LimitChange{Hours: limit(want.Hours), Concurrent: limit(2), PerDay: limit(0)})), want)
	same(t, put(db.PutGroupLimits(ctx, ada.ID, lab.ID, account.LimitChange{})), want)
	same(t, put(db.PutGroupLimits(ctx, bob.ID, lab.ID, account.LimitChange{})), account.Limits{})
	expect(t, changes(), inLab, inLab, inLab, inLab)
	for member, groups := range map[string]string{eve.ID: lab.ID, ada.ID: "grp_none"} {
		_, err := db.PutGroupLimits(ctx, member, groups, account.LimitChange{PerDay: limit(1)})
		fails(t, err, store.ErrNotFound)
	}
	for _, wrong := range []account.LimitChange{{PerDay: limit(-1)}, {Models: limit([]string{"a\x00"})}} {
		fails(t, assert.Err(db.PutGroupLimits(ctx, ada.ID, lab.ID, wrong)), store.ErrInvalid)
	}
	same(t, changes(), []fleet.Change{})

	seen := must[[]account.SeenGroup](t)
	same(t, seen(db.SeenGroups(ctx, ada.ID, "lab", time.Now()))[0].Limits, want)
	same(t, seen(db.SeenGroups(ctx, ada.ID, "den", time.Now()))[0].Limits, account.Limits{})
	same(t, seen(db.SeenGroups(ctx, bob.ID, "lab", time.Now()))[0].Limits, account.Limits{})
	facts := db.Facts("eu")
	for what, g := range map[string]*fleet.Group{
		"alone": must[*fleet.Group](t)(facts.Group(ctx, fleet.GroupID(lab.ID))), "of all": must[[]*fleet.Group](t)(facts.Groups(ctx))[0],
	} {
		l := g.Limits[fleet.MemberID(ada.ID)]
		if len(g.Limits) != 1 || l == nil || len(l.Models) != 2 || l.Hours.String() != want.Hours || l.Concurrent != 2 || l.PerDay != 0 {
			t.Errorf("%s: %+v", what, l)
		}
	}
	ok(t, db.LeaveGroup(ctx, den.ID, bob.ID))
	ok(t, db.EndGroup(ctx, ada.ID, lab.ID))
}

// testCallsOfGroups checks that a restart counts today's calls of all members on an
// owner's machines by the group, and no others.
func testCallsOfGroups(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob, eve := newMember(t, db, "ada"), newMember(t, db, "bob"), newMember(t, db, "eve")
	lab, den := newGroup(t, db, "lab", ada, bob, eve), newGroup(t, db, "den", ada, bob)
	must[account.Limits](t)(db.PutGroupLimits(ctx, ada.ID, lab.ID, account.LimitChange{PerDay: limit(10)}))
	enginetest.OneDay()
	now := time.Now()
	var records []account.Usage
	call := func(n int, caller, owner account.Member, group string, when time.Time) {
		for range n {
			u := aCall(fmt.Sprint("call-", len(records)), 1)
			u.MemberID, u.OwnerID, u.GroupID, u.Started = caller.ID, owner.ID, group, when
			records = append(records, u)
		}
	}
	call(2, bob, ada, lab.ID, now)
	call(3, eve, ada, lab.ID, now)
	call(9, eve, ada, lab.ID, now.Add(-24*time.Hour))
	call(9, bob, ada, den.ID, now)
	call(9, bob, ada, "", now) // by a share, before
	call(9, ada, bob, lab.ID, now)
	ok(t, db.RecordUsage(ctx, records))
	ok(t, db.RecordUsage(ctx, records)) // records that are written twice count once
	facts := db.Facts("home")
	for what, g := range map[string]*fleet.Group{
		"alone": must[*fleet.Group](t)(facts.Group(ctx, fleet.GroupID(lab.ID))), "of all": must[[]*fleet.Group](t)(facts.Groups(ctx))[0],
	} {
		left := 0
		for g.Limits[fleet.MemberID(ada.ID)].Reserve(now) {
			left++
		}
		assert.Equal(t, left, 10-5, what, "calls left today")
	}
}

func newInvite(t *testing.T, db *store.DB, owner account.Member, code string, uses int) account.Invite {
	t.Helper()
	i := account.Invite{
		ID: account.NewID("inv_"), OwnerID: owner.ID, Hash: sha256.Sum256([]byte(code)), LastFour: "wxyz",
		Uses: uses, Created: start, Expires: later(3600),
	}
	ok(t, db.CreateInvite(t.Context(), i))
	return i
}

func accept(t *testing.T, db *store.DB, i account.Invite, m account.Member, now time.Time) (account.Share, account.Member, error) {
	t.Helper()
	return db.AcceptInvite(t.Context(), i.Hash, account.Share{ID: account.NewID("shr_"), MemberID: m.ID, Created: start}, now)
}

// testInvites checks that a code creates a share with the invite's owner and limits, as
// often as the invite allows, until it expires or is revoked. A call that fails takes no
// use.
func testInvites(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob, eve, dan := newMember(t, db, "ada"), newMember(t, db, "bob"), newMember(t, db, "eve"), newMember(t, db, "dan")
	changes := watch(t, db)
	code := newInvite(t, db, ada, "one", 2)
	same(t, changes(), []fleet.Change{}) // an invite by itself gives no reach
	fails(t, assert.Err(accept(t, db, code, ada, start)), account.ErrOwn)
	fails(t, assert.Err(accept(t, db, code, bob, later(3600))), store.ErrNotFound)
	fails(t, assert.Err(accept(t, db, account.Invite{}, bob, start)), store.ErrNotFound)
	ok(t, db.SetMemberDisabled(ctx, ada.ID, true))
	fails(t, assert.Err(accept(t, db, code, bob, start)), store.ErrNotFound)
	ok(t, db.SetMemberDisabled(ctx, ada.ID, false))

	changes()
	share, owner, err := accept(t, db, code, bob, start)
	ok(t, err)
	same(t, owner, ada)
	same(t, must[[]account.Share](t)(db.SharesTo(ctx, bob.ID)), []account.Share{share})
	expect(t, changes(), fleet.Change{Kind: fleet.SharesChanged, ID: bob.ID})
	_, owner, err = accept(t, db, code, bob, start)
	fails(t, err, store.ErrExists)
	same(t, owner.Name, "ada")
	code.Used = 1
	same(t, must[[]account.Invite](t)(db.Invites(ctx, ada.ID)), []account.Invite{code})

	// After its share has ended, only the owner can share again.
	ok(t, db.RemoveShare(ctx, ada.ID, bob.ID))
	_, owner, err = accept(t, db, code, bob, start)
	fails(t, err, account.ErrUsed)
	same(t, owner.Name, "ada")
	same(t, must[[]account.Share](t)(db.SharesTo(ctx, bob.ID)), []account.Share{})
	same(t, must[[]account.Invite](t)(db.Invites(ctx, ada.ID)), []account.Invite{code})
	ok(t, db.AddShare(ctx, account.Share{ID: account.NewID("shr_"), OwnerID: ada.ID, MemberID: bob.ID, Created: start}))

	ok(t, assert.Err(accept(t, db, code, eve, later(3599))))
	fails(t, assert.Err(accept(t, db, code, dan, start)), store.ErrNotFound)

	limited := account.Invite{
		ID: account.NewID("inv_"), OwnerID: ada.ID, Hash: sha256.Sum256([]byte("limited")), LastFour: "wxyz", Uses: 1,
		Limits:  account.Limits{Models: []string{`a "b"`, "tiny"}, Hours: "Sat 10:00-12:00", Concurrent: 2, PerDay: 9},
		Created: start, Expires: later(3600),
	}
	ok(t, db.CreateInvite(ctx, limited))
	share, _, err = accept(t, db, limited, dan, start)
	ok(t, err)
	same(t, share.Limits, limited.Limits)
	same(t, must[[]account.Share](t)(db.SharesTo(ctx, dan.ID)), []account.Share{share})
	limited.Used = 1

	other := newInvite(t, db, ada, "two", 1)
	fails(t, db.RevokeInvite(ctx, bob.ID, other.ID, later(5)), store.ErrNotFound)
	ok(t, db.RevokeInvite(ctx, ada.ID, other.ID, later(5)))
	fails(t, db.RevokeInvite(ctx, ada.ID, other.ID, later(6)), store.ErrNotFound)
	fails(t, assert.Err(accept(t, db, other, dan, start)), store.ErrNotFound)
	code.Used, other.Revoked = 2, later(5)
	same(t, must[[]account.Invite](t)(db.Invites(ctx, ada.ID)), byID(code, limited, other))
	same(t, must[[]account.Invite](t)(db.Invites(ctx, bob.ID)), []account.Invite{})

	other.ID, other.Uses = account.NewID("inv_"), 0
	negative := other
	negative.Uses, negative.PerDay = 1, -1
	fails(t, db.CreateInvite(ctx, negative), store.ErrInvalid)
	fails(t, db.CreateInvite(ctx, other), store.ErrInvalid)
	other.Uses = 1
	fails(t, db.CreateInvite(ctx, other), store.ErrExists)
}

// testInviteBounds checks the maximum number of a member's open invites, and of others
// that are kept.
func testInviteBounds(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	made := func(i int) account.Invite {
		code := fmt.Sprint(ada.ID, i)
		return account.Invite{
			ID: account.NewID("inv_"), OwnerID: ada.ID, Hash: sha256.Sum256([]byte(code)), LastFour: "wxyz",
			Uses: 1, Created: later(i), Expires: later(i + 3600),
		}
	}
	var first account.Invite
	for i := range account.MaxInvites {
		next := made(i)
		ok(t, db.CreateInvite(ctx, next))
		if i == 0 {
			first = next
		}
	}
	fails(t, db.CreateInvite(ctx, made(account.MaxInvites)), account.ErrTooMany)
	newInvite(t, db, bob, "bob's", 1)
	ok(t, assert.Err(accept(t, db, first, bob, later(1))))
	last := made(account.MaxInvites) // for the one that is used up
	ok(t, db.CreateInvite(ctx, last))
	fails(t, db.CreateInvite(ctx, made(account.MaxInvites+1)), account.ErrTooMany)

	for i := range account.MaxInvites + 1 { // the others have expired
		ok(t, db.CreateInvite(ctx, made(i+5000)))
		all := must[[]account.Invite](t)(db.Invites(ctx, ada.ID))
		ok(t, db.RevokeInvite(ctx, ada.ID, all[len(all)-1].ID, later(i+5000)))
	}
	all := must[[]account.Invite](t)(db.Invites(ctx, ada.ID))
	if len(all) != account.MaxInvites+1 || all[0].Created != later(5000) {
		t.Errorf("%d invites are kept, the oldest of %s", len(all), all[0].Created)
	}
	same(t, len(must[[]account.Invite](t)(db.Invites(ctx, bob.ID))), 1)
}

// byID returns invites created at the same time in the order of the list.
func byID(invites ...account.Invite) []account.Invite {
	slices.SortFunc(invites, func(a, b account.Invite) int { return strings.Compare(a.ID, b.ID) })
	return invites
}

// testInviteRace checks that of many concurrent calls, as many succeed as the invite has
// uses (spec/security.md#consent).
func testInviteRace(t *testing.T, db *store.DB) {
	const uses, rivals = 3, 12
	ada := newMember(t, db, "ada")
	code := newInvite(t, db, ada, "one", uses)
	members := make([]account.Member, rivals)
	for i := range members {
		members[i] = newMember(t, db, string(rune('a'+i)))
	}
	var accepted atomic.Int64
	together(rivals, func(i int) {
		switch _, _, err := accept(t, db, code, members[i], start); {
		case err == nil:
			accepted.Add(1)
		case !errors.Is(err, store.ErrNotFound):
			t.Error(err)
		}
	})
	same(t, int(accepted.Load()), uses)
	same(t, len(must[[]account.Share](t)(db.ShareList(t.Context()))), uses)
}

// testSeenGroups checks that a member sees open groups and their own, and the members of
// their own.
func testSeenGroups(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob, eve := newMember(t, db, "ada"), newMember(t, db, "bob"), newMember(t, db, "eve")
	box, den := newMachine(t, db, ada, "box"), newMachine(t, db, bob, "den")
	lab := newGroup(t, db, "lab", ada, bob)
	open := account.Group{
		ID: account.NewID("grp_"), Name: "all", Kind: account.GroupOpen, Created: later(1),
		Members: []account.GroupMember{{MemberID: bob.ID, Admin: true}},
	}
	ok(t, db.CreateGroup(ctx, open))
	ok(t, db.KeepOutOwn(ctx, ada.ID, lab.ID, box.ID, true))
	ok(t, db.KeepOutOwn(ctx, bob.ID, lab.ID, den.ID, true))
	fails(t, db.KeepOutOwn(ctx, ada.ID, lab.ID, den.ID, true), store.ErrNotFound)
	fails(t, db.KeepOutOwn(ctx, ada.ID, lab.ID, den.ID, false), store.ErrNotFound)

	seen := must[[]account.SeenGroup](t)
	labToAda := account.SeenGroup{
		ID: lab.ID, Name: "lab", Kind: account.GroupOrg, Created: start, In: true, Admin: true, Size: 2,
		Members: []account.Fellow{{Name: "ada", Admin: true}, {Name: "bob"}}, KeptOut: []account.Named{{ID: box.ID, Name: "box"}},
	}
	allToAda := account.SeenGroup{ID: open.ID, Name: "all", Kind: account.GroupOpen, Created: later(1), Size: 1}
	same(t, seen(db.SeenGroups(ctx, ada.ID, "", start)), []account.SeenGroup{labToAda, allToAda})
	same(t, seen(db.SeenGroups(ctx, ada.ID, "all", start)), []account.SeenGroup{allToAda})
	same(t, seen(db.SeenGroups(ctx, eve.ID, "", start)), []account.SeenGroup{allToAda})
	same(t, seen(db.SeenGroups(ctx, eve.ID, "lab", start)), []account.SeenGroup{})
	labToBob := labToAda
	labToBob.Admin, labToBob.KeptOut = false, []account.Named{{ID: den.ID, Name: "den"}}
	same(t, seen(db.SeenGroups(ctx, bob.ID, "lab", start)), []account.SeenGroup{labToBob})
	ok(t, db.SetMemberDisabled(ctx, bob.ID, true))
	labToAda.Size, labToAda.Members = 1, labToAda.Members[:1]
	same(t, seen(db.SeenGroups(ctx, ada.ID, "lab", start)), []account.SeenGroup{labToAda})
}

// testRunningGroups checks that anyone can join an open group but not an org, that only
// admins change an org, and that an org always has an admin.
func testRunningGroups(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob, eve := newMember(t, db, "ada"), newMember(t, db, "bob"), newMember(t, db, "eve")
	lab := newGroup(t, db, "lab", ada)
	open := account.Group{
		ID: account.NewID("grp_"), Name: "all", Kind: account.GroupOpen, Created: start,
		Members: []account.GroupMember{{MemberID: ada.ID, Admin: true}},
	}
	ok(t, db.CreateGroup(ctx, open))
	changes := watch(t, db)

	fails(t, db.JoinGroup(ctx, lab.ID, bob.ID, start), store.ErrNotFound)
	fails(t, inviteTo(t, db, lab, bob, bob), store.ErrNotFound)
	fails(t, db.LeaveGroup(ctx, lab.ID, bob.ID), store.ErrNotFound)
	fails(t, db.LeaveGroup(ctx, lab.ID, ada.ID), account.ErrLastAdmin)
	fails(t, db.ExpelFromGroup(ctx, ada.ID, lab.ID, ada.ID), account.ErrLastAdmin)
	fails(t, inviteTo(t, db, open, ada, bob), store.ErrNotFound)
	fails(t, db.MakeAdmin(ctx, ada.ID, lab.ID, bob.ID), store.ErrNotFound)
	same(t, changes(), []fleet.Change{})

	inLab, inOpen := fleet.Change{Kind: fleet.GroupChanged, ID: lab.ID}, fleet.Change{Kind: fleet.GroupChanged, ID: open.ID}
	ok(t, db.JoinGroup(ctx, open.ID, bob.ID, start))
	fails(t, db.JoinGroup(ctx, open.ID, bob.ID, start), store.ErrExists)
	for _, m := range []account.Member{bob, eve} {
		ok(t, inviteTo(t, db, lab, ada, m))
		ok(t, db.AcceptGroup(ctx, lab.ID, m.ID, start))
	}
	fails(t, db.ExpelFromGroup(ctx, bob.ID, lab.ID, eve.ID), store.ErrNotFound)
	fails(t, db.MakeAdmin(ctx, bob.ID, lab.ID, bob.ID), store.ErrNotFound)
	fails(t, db.DropAdmin(ctx, ada.ID, lab.ID, ada.ID), account.ErrLastAdmin)
	fails(t, db.DropAdmin(ctx, bob.ID, lab.ID, ada.ID), store.ErrNotFound)
	ok(t, db.MakeAdmin(ctx, ada.ID, lab.ID, bob.ID))
	fails(t, db.DropAdmin(ctx, ada.ID, lab.ID, "mem_none"), store.ErrNotFound)
	ok(t, db.ExpelFromGroup(ctx, bob.ID, lab.ID, eve.ID))
	ok(t, db.DropAdmin(ctx, bob.ID, lab.ID, ada.ID))
	fails(t, db.MakeAdmin(ctx, ada.ID, lab.ID, ada.ID), store.ErrNotFound)
	ok(t, db.MakeAdmin(ctx, bob.ID, lab.ID, ada.ID))
	expect(t, changes(), inLab, inLab, inLab, inLab, inLab, inLab, inOpen)

	// A disabled admin does not count, so the other one is the last.
	ok(t, db.SetMemberDisabled(ctx, bob.ID, true))
	fails(t, db.LeaveGroup(ctx, lab.ID, ada.ID), account.ErrLastAdmin)
	ok(t, db.SetMemberDisabled(ctx, bob.ID, false))
	ok(t, db.LeaveGroup(ctx, lab.ID, ada.ID))
	fails(t, db.LeaveGroup(ctx, lab.ID, bob.ID), account.ErrLastAdmin)
	fails(t, db.EndGroup(ctx, ada.ID, lab.ID), store.ErrNotFound)
	ok(t, db.KeepOutOwn(ctx, bob.ID, lab.ID, newMachine(t, db, bob, "den").ID, true))
	changes()
	ok(t, db.EndGroup(ctx, bob.ID, lab.ID))
	expect(t, changes(), inLab)
	fails(t, assert.Err(db.Group(ctx, lab.ID)), store.ErrNotFound)

	// An open group needs no admin, and ends with its last member.
	ok(t, db.LeaveGroup(ctx, open.ID, ada.ID))
	must[account.Group](t)(db.Group(ctx, open.ID))
	ok(t, db.LeaveGroup(ctx, open.ID, bob.ID))
	fails(t, assert.Err(db.Group(ctx, open.ID)), store.ErrNotFound)
	expect(t, changes(), inOpen, inOpen)
}

// testLastAdminRace checks that if two admins leave concurrently, one remains.
func testLastAdminRace(t *testing.T, db *store.DB) {
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	admins := []account.Member{ada, bob}
	for range 10 {
		lab := newGroup(t, db, account.NewID(""), ada, bob)
		ok(t, db.MakeAdmin(t.Context(), ada.ID, lab.ID, bob.ID))
		var left atomic.Int64
		together(len(admins), func(i int) {
			switch err := db.LeaveGroup(t.Context(), lab.ID, admins[i].ID); {
			case err == nil:
				left.Add(1)
			case !errors.Is(err, account.ErrLastAdmin):
				t.Error(err)
			}
		})
		same(t, int(left.Load()), 1)
	}
}

// testShownClass checks that only a machine's owner decides what others see of it, that it is
// off at first, and that hubs are notified.
func testShownClass(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	box := newMachine(t, db, ada, "box")
	shown := func() bool {
		t.Helper()
		kept, _, err := db.Facts("eu").ActiveMachine(ctx, fleet.MachineID(box.ID))
		ok(t, err)
		return kept.ShowsClass
	}
	same(t, shown(), false)
	changes := watch(t, db)
	fails(t, db.ShowClass(ctx, bob.ID, box.ID, true), store.ErrNotFound)
	same(t, changes(), []fleet.Change{})
	ok(t, db.ShowClass(ctx, ada.ID, box.ID, true))
	expect(t, changes(), fleet.Change{Kind: fleet.MachineChanged, ID: box.ID})
	same(t, shown(), true)
	ok(t, db.ShowClass(ctx, ada.ID, box.ID, false))
	same(t, shown(), false)
	ok(t, db.RevokeMachine(ctx, box.ID, start))
	fails(t, db.ShowClass(ctx, ada.ID, box.ID, true), store.ErrNotFound)
}

// testKeptOutOfAll checks that an owner can keep a machine out of every group, and that
// routing sees it.
func testKeptOutOfAll(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	box := newMachine(t, db, ada, "box")
	facts := db.Facts("eu")
	keptOut := func() bool {
		t.Helper()
		kept, there, err := facts.ActiveMachine(ctx, fleet.MachineID(box.ID))
		ok(t, err)
		all := must[[]account.Machine](t)(facts.ActiveMachines(ctx, time.Time{}))
		if !there || len(all) != 1 || all[0].KeptOut != kept.KeptOut {
			t.Fatalf("the machine is %+v alone and %+v among all", kept, all)
		}
		return kept.KeptOut
	}
	same(t, keptOut(), false)
	changes := watch(t, db)
	fails(t, db.KeepOutOfAll(ctx, bob.ID, box.ID, true), store.ErrNotFound)
	same(t, changes(), []fleet.Change{})
	ok(t, db.KeepOutOfAll(ctx, ada.ID, box.ID, true))
	expect(t, changes(), fleet.Change{Kind: fleet.MachineChanged, ID: box.ID})
	same(t, keptOut(), true)
	box.KeptOut = true
	same(t, must[account.Machine](t)(db.OwnMachine(ctx, ada.ID, box.ID)), box)
	fails(t, assert.Err(db.OwnMachine(ctx, bob.ID, box.ID)), store.ErrNotFound)
	ok(t, db.KeepOutOfAll(ctx, ada.ID, box.ID, false))
	same(t, keptOut(), false)
	ok(t, db.RevokeMachine(ctx, box.ID, start))
	fails(t, db.KeepOutOfAll(ctx, ada.ID, box.ID, true), store.ErrNotFound)
	fails(t, assert.Err(db.OwnMachine(ctx, ada.ID, box.ID)), store.ErrNotFound)
}
