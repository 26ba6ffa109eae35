package store_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
)

// invitation returns an invitation that by makes at start. The zero Member is the
// operator.
func invitation(g account.Group, by, m account.Member) account.GroupInvitation {
	return account.GroupInvitation{
		GroupID: g.ID, MemberID: m.ID, ByID: by.ID, Member: m.Name, By: by.Name, Created: start, Expires: start.Add(account.InvitationLife),
	}
}

func inviteTo(t *testing.T, db *store.DB, g account.Group, by, m account.Member) error {
	t.Helper()
	return db.InviteToGroup(t.Context(), invitation(g, by, m))
}

// members returns the ids of a group's members, as routing sees them.
func members(t *testing.T, db *store.DB, g account.Group) (ids []string) {
	t.Helper()
	for _, m := range must[account.Group](t)(db.GroupByID(t.Context(), g.ID)).Members {
		ids = append(ids, m.MemberID)
	}
	return ids
}

// testGroupInvitations checks that an invited member sees the invitation and is in the
// group only after accepting it, and never by an invitation that was declined, withdrawn
// or used.
func testGroupInvitations(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob, eve := newMember(t, db, "ada"), newMember(t, db, "bob"), newMember(t, db, "eve")
	lab, operator := newGroup(t, db, "lab", ada), account.Member{}
	seen := must[[]account.SeenGroup](t)
	inLab := fleet.Change{Kind: fleet.GroupChanged, ID: lab.ID}
	changes := watch(t, db)

	fails(t, inviteTo(t, db, lab, eve, bob), store.ErrNotFound)
	fails(t, inviteTo(t, db, lab, ada, account.Member{ID: "mem_none"}), store.ErrNotFound)
	fails(t, inviteTo(t, db, account.Group{ID: "grp_none"}, operator, bob), store.ErrNotFound)
	fails(t, inviteTo(t, db, lab, ada, ada), store.ErrExists)
	fails(t, db.AcceptGroup(ctx, lab.ID, bob.ID, start), store.ErrNotFound)
	fails(t, db.DeclineGroup(ctx, lab.ID, bob.ID, start), store.ErrNotFound)
	ok(t, inviteTo(t, db, lab, ada, bob))
	fails(t, inviteTo(t, db, lab, ada, bob), store.ErrExists)
	fails(t, inviteTo(t, db, lab, operator, bob), store.ErrExists)

	// The invitation gives no reach, and only the two sides see it.
	same(t, changes(), []fleet.Change{})
	same(t, members(t, db, lab), []string{ada.ID})
	invited := invitation(lab, ada, bob)
	toAda := account.SeenGroup{
		ID: lab.ID, Name: "lab", Kind: account.GroupOrg, Created: start, In: true, Admin: true, Size: 1,
		Members: []account.Fellow{{Name: "ada", Admin: true}}, Invitations: []account.GroupInvitation{invited},
	}
	toBob := account.SeenGroup{ID: lab.ID, Name: "lab", Kind: account.GroupOrg, Created: start, Size: 1, Invited: &invited}
	same(t, seen(db.SeenGroups(ctx, ada.ID, "", start)), []account.SeenGroup{toAda})
	same(t, seen(db.SeenGroups(ctx, bob.ID, "", start)), []account.SeenGroup{toBob})
	same(t, seen(db.SeenGroups(ctx, bob.ID, "lab", start)), []account.SeenGroup{toBob})
	same(t, seen(db.SeenGroups(ctx, eve.ID, "", start)), []account.SeenGroup{})
	same(t, must[int](t)(db.CountNotices(ctx, bob.ID, start)), 1)
	same(t, must[int](t)(db.CountNotices(ctx, ada.ID, start)), 0)

	// Only the invited member can answer it, and each answer ends it.
	fails(t, db.AcceptGroup(ctx, lab.ID, eve.ID, start), store.ErrNotFound)
	ok(t, db.DeclineGroup(ctx, lab.ID, bob.ID, start))
	fails(t, db.AcceptGroup(ctx, lab.ID, bob.ID, start), store.ErrNotFound)
	ok(t, inviteTo(t, db, lab, operator, bob))
	same(t, seen(db.SeenGroups(ctx, bob.ID, "lab", start))[0].Invited.By, "")
	ok(t, db.ExpelFromGroup(ctx, ada.ID, lab.ID, bob.ID))
	fails(t, db.AcceptGroup(ctx, lab.ID, bob.ID, start), store.ErrNotFound)
	ok(t, inviteTo(t, db, lab, ada, bob))
	ok(t, db.RemoveGroupMember(ctx, lab.ID, bob.ID))
	fails(t, db.RemoveGroupMember(ctx, lab.ID, bob.ID), store.ErrNotFound)
	fails(t, db.ExpelFromGroup(ctx, ada.ID, lab.ID, bob.ID), store.ErrNotFound)
	same(t, changes(), []fleet.Change{})

	// A member who left or was removed can only come back with a new invitation.
	for _, end := range []func() error{
		func() error { return db.LeaveGroup(ctx, lab.ID, bob.ID) },
		func() error { return db.ExpelFromGroup(ctx, ada.ID, lab.ID, bob.ID) },
		func() error { return db.RemoveGroupMember(ctx, lab.ID, bob.ID) },
	} {
		ok(t, inviteTo(t, db, lab, ada, bob))
		ok(t, db.AcceptGroup(ctx, lab.ID, bob.ID, start))
		same(t, members(t, db, lab), []string{ada.ID, bob.ID})
		fails(t, db.AcceptGroup(ctx, lab.ID, bob.ID, start), store.ErrNotFound)
		fails(t, inviteTo(t, db, lab, ada, bob), store.ErrExists)
		ok(t, end())
		fails(t, db.AcceptGroup(ctx, lab.ID, bob.ID, start), store.ErrNotFound)
		same(t, members(t, db, lab), []string{ada.ID})
		expect(t, changes(), inLab, inLab)
	}

	// It expires, and another invitation can take its place then.
	ok(t, inviteTo(t, db, lab, ada, bob))
	late := start.Add(account.InvitationLife)
	fails(t, db.AcceptGroup(ctx, lab.ID, bob.ID, late), store.ErrNotFound)
	fails(t, db.DeclineGroup(ctx, lab.ID, bob.ID, late), store.ErrNotFound)
	same(t, seen(db.SeenGroups(ctx, bob.ID, "", late)), []account.SeenGroup{})
	same(t, must[int](t)(db.CountNotices(ctx, bob.ID, late)), 0)
	again := invitation(lab, ada, bob)
	again.Created, again.Expires = late, late.Add(account.InvitationLife)
	ok(t, db.InviteToGroup(ctx, again))

	// A disabled member's invitation is hidden. All invitations end with the group.
	ok(t, db.SetMemberDisabled(ctx, bob.ID, true))
	same(t, seen(db.SeenGroups(ctx, ada.ID, "", late))[0].Invitations, []account.GroupInvitation{})
	ok(t, db.SetMemberDisabled(ctx, bob.ID, false))
	ok(t, db.EndGroup(ctx, ada.ID, lab.ID))
	fails(t, db.AcceptGroup(ctx, lab.ID, bob.ID, late), store.ErrNotFound)
	same(t, must[int](t)(db.CountNotices(ctx, bob.ID, late)), 0)
}

// testInvitationBounds checks the limits for pending invitations, of a group and of a
// member.
func testInvitationBounds(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	var admin account.Member
	sent := func(by account.Member, n int) {
		t.Helper()
		for i := range n {
			ok(t, inviteTo(t, db, newGroup(t, db, fmt.Sprintf("%d of %s", i, by.Name), by), by, bob))
		}
	}
	for i := range (account.MaxUnknown - 1) / account.MaxByOneUnknown {
		admin = newMember(t, db, fmt.Sprintf("admin %d", i))
		sent(admin, account.MaxByOneUnknown) // one admin leaves room for others
		fails(t, inviteTo(t, db, newGroup(t, db, fmt.Sprint("more ", i), admin), admin, bob), account.ErrInvitationsByOne)
	}
	other := newMember(t, db, "another")
	sent(other, account.MaxUnknown%account.MaxByOneUnknown)
	fails(t, inviteTo(t, db, newGroup(t, db, "more", other), other, bob), account.ErrUnknownInviters)
	friend, fellow, host := newMember(t, db, "friend"), newMember(t, db, "fellow"), newMember(t, db, "host")
	newShare(t, db, bob, friend)
	common := newGroup(t, db, "common", fellow)
	ok(t, inviteTo(t, db, common, fellow, friend)) // of another member
	ok(t, db.InviteToGroup(ctx, invitation(common, account.Member{}, bob)))
	ok(t, db.AcceptGroup(ctx, common.ID, bob.ID, start))
	ok(t, assert.Err(accept(t, db, newInvite(t, db, host, "of host", 1), bob, start)))
	for _, known := range []account.Member{friend, fellow} {
		sent(known, account.MaxInvitationsByOne)
		fails(t, inviteTo(t, db, newGroup(t, db, "more of "+known.Name, known), known, bob), account.ErrInvitationsByOne)
	}
	sent(host, account.MaxMemberInvitations-account.MaxUnknown-2*account.MaxInvitationsByOne)
	fails(t, inviteTo(t, db, newGroup(t, db, "more of host", host), host, bob), account.ErrMemberInvitations)
	lab := newGroup(t, db, "lab", ada)
	fails(t, inviteTo(t, db, lab, ada, bob), account.ErrTooMany)
	fails(t, db.AcceptGroup(ctx, lab.ID, bob.ID, start), store.ErrNotFound)
	late := invitation(lab, ada, bob) // the others have expired
	late.Created = start.Add(account.InvitationLife)
	late.Expires = late.Created.Add(account.InvitationLife)
	ok(t, db.InviteToGroup(ctx, late))
	ok(t, db.AcceptGroup(ctx, lab.ID, bob.ID, late.Created))

	for i := range account.MaxGroupInvitations {
		ok(t, inviteTo(t, db, lab, ada, newMember(t, db, fmt.Sprintf("member %d", i))))
	}
	eve := newMember(t, db, "eve")
	fails(t, inviteTo(t, db, lab, account.Member{}, eve), account.ErrGroupInvitations)
	first := must[account.Member](t)(db.MemberByName(ctx, "member 0"))
	ok(t, db.DeclineGroup(ctx, lab.ID, first.ID, start))
	ok(t, inviteTo(t, db, lab, ada, eve))
}

// testGroupsOfOneMember checks that a member is in a limited number of groups, by every
// way of joining.
func testGroupsOfOneMember(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	org := newGroup(t, db, "org", bob)
	open := account.Group{ID: account.NewID("grp_"), Name: "open", Kind: account.GroupOpen, Created: start}
	open.Members = []account.GroupMember{{MemberID: bob.ID, Admin: true}}
	ok(t, db.CreateGroup(ctx, open))
	ok(t, inviteTo(t, db, org, bob, ada))
	for i := range account.MaxGroups {
		newGroup(t, db, fmt.Sprint(i), ada)
	}
	more := account.Group{ID: account.NewID("grp_"), Name: "more", Kind: account.GroupOpen, Created: start, Members: []account.GroupMember{{MemberID: ada.ID}}}
	fails(t, db.CreateGroup(ctx, more), account.ErrTooMany)
	fails(t, db.JoinGroup(ctx, open.ID, ada.ID, start), account.ErrTooMany)
	fails(t, db.AcceptGroup(ctx, org.ID, ada.ID, start), account.ErrTooMany)
	one := must[account.Group](t)(db.GroupByName(ctx, "0"))
	ok(t, db.EndGroup(ctx, ada.ID, one.ID))
	ok(t, db.AcceptGroup(ctx, org.ID, ada.ID, start)) // the invitation is still pending
	fails(t, db.JoinGroup(ctx, open.ID, ada.ID, start), account.ErrTooMany)
}

// testInvitationRaces checks that of two concurrent acceptances one succeeds, and that a
// member who is removed while accepting is not in the group, in either order
// (spec/security.md#consent).
func testInvitationRaces(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	for i := range 10 {
		lab := newGroup(t, db, fmt.Sprint(i), ada)
		var invited, accepted atomic.Int64
		count := func(n *atomic.Int64, err, lost error) {
			switch {
			case err == nil:
				n.Add(1)
			case !errors.Is(err, lost):
				t.Error(err)
			}
		}
		together(3, func(int) { count(&invited, inviteTo(t, db, lab, ada, bob), store.ErrExists) })
		together(3, func(int) { count(&accepted, db.AcceptGroup(ctx, lab.ID, bob.ID, start), store.ErrNotFound) })
		same(t, []int64{invited.Load(), accepted.Load()}, []int64{1, 1})
		ok(t, db.LeaveGroup(ctx, lab.ID, bob.ID))

		ok(t, inviteTo(t, db, lab, ada, bob))
		together(2, func(i int) {
			if i == 0 {
				count(&accepted, db.AcceptGroup(ctx, lab.ID, bob.ID, start), store.ErrNotFound)
			} else if err := db.ExpelFromGroup(ctx, ada.ID, lab.ID, bob.ID); err != nil {
				t.Error(err)
			}
		})
		same(t, members(t, db, lab), []string{ada.ID})

		ok(t, inviteTo(t, db, lab, ada, bob))
		together(2, func(i int) {
			if i == 0 {
				count(&accepted, db.AcceptGroup(ctx, lab.ID, bob.ID, start), store.ErrNotFound)
			} else if err := db.EndGroup(ctx, ada.ID, lab.ID); err != nil {
				t.Error(err)
			}
		})
		fails(t, assert.Err(db.Group(ctx, lab.ID)), store.ErrNotFound)
	}
}

// testConsent performs random actions on groups and compares the result with a simple
// model: no one is in a group without accepting or joining.
func testConsent(t *testing.T, db *store.DB) {
	const seed = 31
	rng, ctx := rand.New(rand.NewPCG(seed, 0)), t.Context()
	people := []account.Member{newMember(t, db, "ada"), newMember(t, db, "bob"), newMember(t, db, "eve")}
	lab := newGroup(t, db, "lab", people[0])
	type state struct{ in, admin, invited bool }
	model := map[string]*state{people[0].ID: {in: true, admin: true}, people[1].ID: {}, people[2].ID: {}}
	admins := func() (n int) {
		for _, s := range model {
			if s.admin {
				n++
			}
		}
		return n
	}
	for step := range 400 {
		by, who := people[rng.IntN(3)], people[rng.IntN(3)]
		is, runs := model[who.ID], model[by.ID].admin
		last := is.admin && admins() == 1
		var err error
		var may bool
		act := rng.IntN(7)
		switch act {
		case 0:
			err, may = inviteTo(t, db, lab, by, who), runs && !is.in && !is.invited
		case 1:
			err, may = db.AcceptGroup(ctx, lab.ID, who.ID, start), is.invited
		case 2:
			err, may = db.DeclineGroup(ctx, lab.ID, who.ID, start), is.invited
		case 3:
			err, may = db.ExpelFromGroup(ctx, by.ID, lab.ID, who.ID), runs && (is.in || is.invited) && !last
		case 4:
			err, may = db.LeaveGroup(ctx, lab.ID, who.ID), is.in && !last
		case 5:
			err, may = db.MakeAdmin(ctx, by.ID, lab.ID, who.ID), runs && is.in
		case 6:
			err, may = db.JoinGroup(ctx, lab.ID, who.ID, start), false
		}
		if (err == nil) != may {
			t.Fatalf("step %d: act %d of %s on %s, who is %+v: %v", step, act, by.Name, who.Name, *is, err)
		}
		if may {
			*is = [...]state{{invited: true}, {in: true}, {}, {}, {}, {in: true, admin: true}}[act]
		}
		var want []string
		for _, m := range people {
			if model[m.ID].in {
				want = append(want, m.ID)
			}
		}
		same(t, members(t, db, lab), want)
	}
}

// testJoins checks that the other members of a group see who joined it, until they mark
// it as seen, and that a member sees no joins from before their own.
func testJoins(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob, eve := newMember(t, db, "ada"), newMember(t, db, "bob"), newMember(t, db, "eve")
	lab := newGroup(t, db, "lab", ada)
	everyone := account.Group{ID: account.NewID("grp_"), Name: "everyone", Kind: account.GroupOpen, Created: start, Members: []account.GroupMember{{MemberID: ada.ID, Admin: true}}}
	ok(t, db.CreateGroup(ctx, everyone))
	joins := func(m account.Member, now time.Time) (all []string) {
		t.Helper()
		for _, j := range must[[]account.GroupJoin](t)(db.Joins(ctx, m.ID, now, 10)) {
			if !j.New {
				continue
			}
			all = append(all, fmt.Sprintf("%s %s %d", j.Member, j.Group, j.At.Unix()-start.Unix()))
		}
		same(t, must[int](t)(db.CountNotices(ctx, m.ID, now)), len(all))
		return all
	}
	ok(t, inviteTo(t, db, lab, ada, bob))
	ok(t, db.AcceptGroup(ctx, lab.ID, bob.ID, later(1)))
	ok(t, db.JoinGroup(ctx, everyone.ID, bob.ID, later(2)))
	ok(t, db.JoinGroup(ctx, everyone.ID, eve.ID, later(3)))
	same(t, joins(ada, later(3)), []string{"eve everyone 3", "bob everyone 2", "bob lab 1"})
	same(t, joins(bob, later(3)), []string{"eve everyone 3"})
	same(t, joins(eve, later(3)), []string{})
	ok(t, db.SeeNotices(ctx, ada.ID, later(2)))
	same(t, joins(ada, later(3)), []string{"eve everyone 3"})
	ok(t, db.SeeNotices(ctx, ada.ID, later(3)))
	ok(t, db.SeeNotices(ctx, ada.ID, start)) // never back
	same(t, joins(ada, later(3)), []string{})
	same(t, len(must[[]account.GroupJoin](t)(db.Joins(ctx, ada.ID, later(3), 10))), 3)

	// If a member joins, leaves and joins again, the last time counts.
	ok(t, db.LeaveGroup(ctx, everyone.ID, eve.ID))
	same(t, joins(bob, later(3)), []string{"eve everyone 3"})
	ok(t, db.JoinGroup(ctx, everyone.ID, eve.ID, later(4)))
	same(t, joins(ada, later(4)), []string{"eve everyone 4"})
	same(t, must[[]account.GroupJoin](t)(db.Joins(ctx, bob.ID, later(4), 1)), []account.GroupJoin{{Group: "everyone", Member: "eve", At: later(4), New: true}})
	same(t, joins(bob, later(4).Add(account.JoinLife)), []string{})

	// By mail only members with a machine that the group reaches are notified.
	mailed := func(m account.Member) (all []string) {
		t.Helper()
		for _, j := range must[[]account.GroupJoin](t)(db.JoinsToMail(ctx, m.ID, later(3), later(4), 10)) {
			all = append(all, j.Member+" "+j.Group)
		}
		return all
	}
	same(t, mailed(ada), []string{})
	box := newMachine(t, db, ada, "box")
	newMachine(t, db, eve, "own")
	same(t, mailed(ada), []string{"eve everyone"})
	same(t, mailed(bob), []string{})
	same(t, mailed(eve), []string{})
	ok(t, db.KeepOutOwn(ctx, ada.ID, everyone.ID, box.ID, true))
	same(t, mailed(ada), []string{})
	ok(t, db.KeepOutOwn(ctx, ada.ID, everyone.ID, box.ID, false))
	ok(t, db.KeepOutOfAll(ctx, ada.ID, box.ID, true))
	same(t, mailed(ada), []string{})
	ok(t, db.KeepOutOfAll(ctx, ada.ID, box.ID, false))
	for i := range account.SmallGroup - 3 {
		same(t, mailed(ada), []string{"eve everyone"})
		ok(t, db.JoinGroup(ctx, everyone.ID, newMember(t, db, fmt.Sprint("m", i)).ID, later(5)))
	}
	same(t, mailed(ada), []string{"eve everyone"})
	ok(t, db.JoinGroup(ctx, everyone.ID, newMember(t, db, "one too many").ID, later(5)))
	same(t, mailed(ada), []string{})
}

// testGroupMadeFor checks that a group that the operator creates for a member has no
// members until that member accepts and becomes its admin. If the invitation is declined
// or withdrawn, the group is deleted.
func testGroupMadeFor(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	for _, kind := range []account.GroupKind{account.GroupOrg, account.GroupOpen} {
		made := func() account.Group {
			g := account.Group{ID: account.NewID("grp_"), Name: "for ada", Kind: kind, Created: start}
			g.Invited = []account.GroupInvitation{invitation(g, account.Member{}, ada)}
			ok(t, db.CreateGroup(ctx, g))
			if in := members(t, db, g); len(in) > 0 {
				t.Errorf("%s: %v are in it", kind, in)
			}
			return g
		}
		g := made()
		ok(t, db.DeclineGroup(ctx, g.ID, ada.ID, start))
		fails(t, assert.Err(db.GroupByID(ctx, g.ID)), store.ErrNotFound)
		g = made()
		ok(t, db.RemoveGroupMember(ctx, g.ID, ada.ID))
		fails(t, assert.Err(db.GroupByID(ctx, g.ID)), store.ErrNotFound)
		g = made()
		if kind == account.GroupOpen { // another member joins first, and is not an admin
			ok(t, db.JoinGroup(ctx, g.ID, bob.ID, start))
		}
		ok(t, db.AcceptGroup(ctx, g.ID, ada.ID, start))
		for _, m := range must[account.Group](t)(db.GroupByID(ctx, g.ID)).Members {
			assert.Equal(t, m.Admin, (m.MemberID == ada.ID), kind, m)
		}
		ok(t, db.EndGroup(ctx, ada.ID, g.ID))
	}
	g := account.Group{ID: account.NewID("grp_"), Name: "joined", Kind: account.GroupOpen, Created: start}
	g.Invited = []account.GroupInvitation{invitation(g, account.Member{}, ada)}
	ok(t, db.CreateGroup(ctx, g))
	ok(t, db.JoinGroup(ctx, g.ID, ada.ID, start))
	ok(t, db.AcceptGroup(ctx, g.ID, ada.ID, start))
	ok(t, db.EndGroup(ctx, ada.ID, g.ID)) // only its admin may
}
