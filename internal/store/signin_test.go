package store_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
)

func hashOf(name string) (hash [32]byte) {
	copy(hash[:], name)
	return hash
}

func testSignUp(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada := newMember(t, db, "ada")
	invite := account.Invite{ID: account.NewID("inv_"), OwnerID: ada.ID, Hash: hashOf("invite"), Uses: 1, Created: start, Expires: later(100)}
	ok(t, db.CreateInvite(ctx, invite))
	up := func(name string) account.SignUp {
		return account.SignUp{Member: account.Member{ID: account.NewID("mem_"), Name: name, Created: start}, Password: "$hash of " + name}
	}
	changes := watch(t, db)

	bob := up("bob")
	ok(t, db.SignUp(ctx, bob, later(1)))
	expect(t, changes(), fleet.Change{Kind: fleet.MemberChanged, ID: bob.Member.ID})
	same(t, must[account.Member](t)(db.MemberByName(ctx, "bob")), bob.Member)
	same(t, must[string](t)(db.Password(ctx, bob.Member.ID)), "$hash of bob")
	fails(t, assert.Err(db.Password(ctx, ada.ID)), store.ErrNotFound)

	// A failed sign-up changes nothing: the invite is not used, and there is no member.
	eve := up("ada")
	eve.Invite = &invite.Hash
	fails(t, db.SignUp(ctx, eve, later(1)), store.ErrExists)
	eve.Member.Name = "eve"
	fails(t, db.SignUp(ctx, eve, later(200)), store.ErrNotFound)
	fails(t, assert.Err(db.MemberByName(ctx, "eve")), store.ErrNotFound)
	same(t, changes(), []fleet.Change{})
	ok(t, db.SignUp(ctx, eve, later(2)))
	expect(t, changes(), fleet.Change{Kind: fleet.MemberChanged, ID: eve.Member.ID}, fleet.Change{Kind: fleet.SharesChanged, ID: eve.Member.ID})
	shares := must[[]account.Share](t)(db.SharesTo(ctx, eve.Member.ID))
	assert.Require(t, len(shares) == 1 && shares[0].OwnerID == ada.ID, "shared", shares)
	spent := up("zoe")
	spent.Invite = &invite.Hash
	fails(t, db.SignUp(ctx, spent, later(3)), store.ErrNotFound)

	// A link creates the first operator, once.
	same(t, must[bool](t)(db.OperatorCanSignIn(ctx)), false)
	link := account.Link{Hash: hashOf("link"), Created: later(1), Expires: later(100)}
	ok(t, db.CreateLink(ctx, link))
	var won atomic.Int64
	together(8, func(i int) {
		op := up(fmt.Sprint("op", i))
		op.Link, op.Member.Operator = &link.Hash, true
		if db.SignUp(ctx, op, later(2)) == nil {
			won.Add(1)
		}
	})
	same(t, won.Load(), int64(1))
	same(t, must[bool](t)(db.OperatorCanSignIn(ctx)), true)
	personal := account.Link{Hash: hashOf("adas"), MemberID: ada.ID, Created: later(1), Expires: later(100)}
	ok(t, db.CreateLink(ctx, personal))
	op := up("opx")
	op.Link = &personal.Hash
	fails(t, db.SignUp(ctx, op, later(2)), store.ErrNotFound)
}

func testLinks(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada := newMember(t, db, "ada")
	first := account.Link{Hash: hashOf("first"), MemberID: ada.ID, Created: start, Expires: later(100)}
	ok(t, db.CreateLink(ctx, first))
	same(t, must[account.Link](t)(db.Link(ctx, first.Hash, later(1))), first)
	fails(t, assert.Err(db.Link(ctx, first.Hash, later(100))), store.ErrNotFound)
	fails(t, assert.Err(db.UseLink(ctx, first.Hash, later(100))), store.ErrNotFound)
	second := account.Link{Hash: hashOf("second"), MemberID: ada.ID, Created: later(1), Expires: later(100)}
	ok(t, db.CreateLink(ctx, second))
	fails(t, assert.Err(db.Link(ctx, first.Hash, later(2))), store.ErrNotFound)
	var won atomic.Int64
	together(8, func(int) {
		if m, err := db.UseLink(ctx, second.Hash, later(2)); err == nil && m.ID == ada.ID {
			won.Add(1)
		}
	})
	same(t, won.Load(), int64(1))
	third := account.Link{Hash: hashOf("third"), MemberID: ada.ID, Created: later(3), Expires: later(100)}
	ok(t, db.CreateLink(ctx, third))
	ok(t, db.SetMemberDisabled(ctx, ada.ID, true))
	fails(t, assert.Err(db.UseLink(ctx, third.Hash, later(4))), store.ErrNotFound)
}

func testSessions(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	make := func(id, member string, at int) account.Session {
		s := account.Session{ID: id, MemberID: member, Data: []byte("data of " + id), Created: later(at), Seen: later(at), Expires: later(at + 1000)}
		ok(t, db.CreateSession(ctx, s))
		return s
	}
	one, two, three, bobs := make("one", ada.ID, 1), make("two", ada.ID, 2), make("three", ada.ID, 3), make("bobs", bob.ID, 4)
	same(t, must[account.Session](t)(db.Session(ctx, "one", later(5))), one)
	same(t, must[[]account.Session](t)(db.SessionsOf(ctx, ada.ID, later(5))), []account.Session{one, two, three})
	fails(t, assert.Err(db.Session(ctx, "one", later(1001))), store.ErrNotFound)
	fails(t, assert.Err(db.Session(ctx, "\x00", later(1))), store.ErrNotFound)

	// If a session is seen again soon, nothing is written; after a minute, or with new
	// data, it is.
	seen := one
	seen.Seen, seen.Expires = later(31), later(1031)
	ok(t, db.TouchSession(ctx, seen))
	same(t, must[account.Session](t)(db.Session(ctx, "one", later(5))), one)
	seen.Seen, seen.Expires = later(91), later(1091)
	ok(t, db.TouchSession(ctx, seen))
	same(t, must[account.Session](t)(db.Session(ctx, "one", later(5))), seen)
	seen.Data, seen.Seen = []byte("new"), later(92)
	ok(t, db.TouchSession(ctx, seen))
	same(t, must[account.Session](t)(db.Session(ctx, "one", later(5))), seen)

	// TouchSession does not restore a session that ended. Every end is a change.
	changes, adas := watch(t, db), fleet.Change{Kind: fleet.SessionsChanged, ID: ada.ID}
	fails(t, db.EndSessionOf(ctx, bob.ID, "one"), store.ErrNotFound)
	ok(t, db.EndSessionOf(ctx, ada.ID, "one"))
	ok(t, db.TouchSession(ctx, seen))
	same(t, must[[]account.Session](t)(db.SessionsOf(ctx, ada.ID, later(5))), []account.Session{two, three})
	ok(t, db.SetPassword(ctx, ada.ID, "$hash", "two", later(5)))
	same(t, must[[]account.Session](t)(db.SessionsOf(ctx, ada.ID, later(5))), []account.Session{two})
	make("four", ada.ID, 6)
	ok(t, db.EndSessionsOf(ctx, ada.ID, "two"))
	ok(t, db.EndSession(ctx, "none"))
	same(t, must[[]account.Session](t)(db.SessionsOf(ctx, ada.ID, later(5))), []account.Session{two})
	same(t, must[[]account.Session](t)(db.SessionsOf(ctx, bob.ID, later(5))), []account.Session{bobs})
	expect(t, changes(), adas, adas, adas)
	ok(t, db.EndSession(ctx, "two"))
	expect(t, changes(), adas)
	make("late", bob.ID, 5000) // deletes expired ones
	fails(t, assert.Err(db.Session(ctx, "bobs", later(5))), store.ErrNotFound)
}

func testRecovery(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	fails(t, db.SetPassword(ctx, "mem_none", "$x", "", start), store.ErrNotFound)
	ok(t, db.PutRecoveryCodes(ctx, ada.ID, [][32]byte{hashOf("a"), hashOf("b")}))
	ok(t, db.PutRecoveryCodes(ctx, bob.ID, [][32]byte{hashOf("a")}))
	ok(t, db.CreateSession(ctx, account.Session{ID: "one", MemberID: ada.ID, Data: []byte{1}, Created: start, Seen: start, Expires: later(100)}))
	fails(t, db.Recover(ctx, ada.ID, hashOf("c"), "$x", start), store.ErrNotFound)
	same(t, len(must[[]account.Session](t)(db.SessionsOf(ctx, ada.ID, start))), 1)
	changes := watch(t, db)
	var won atomic.Int64
	together(8, func(int) {
		if db.Recover(ctx, ada.ID, hashOf("a"), "$new", start) == nil {
			won.Add(1)
		}
	})
	same(t, won.Load(), int64(1))
	expect(t, changes(), fleet.Change{Kind: fleet.SessionsChanged, ID: ada.ID})
	same(t, must[string](t)(db.Password(ctx, ada.ID)), "$new")
	same(t, len(must[[]account.Session](t)(db.SessionsOf(ctx, ada.ID, start))), 0)
	same(t, must[int](t)(db.RecoveryCodes(ctx, ada.ID)), 1)
	same(t, must[int](t)(db.RecoveryCodes(ctx, bob.ID)), 1)
	ok(t, db.PutRecoveryCodes(ctx, ada.ID, nil))
	same(t, must[int](t)(db.RecoveryCodes(ctx, ada.ID)), 0)
}

func testGrants(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	make := func(name, user string, kind account.GrantKind) account.Grant {
		g := account.Grant{
			ID: account.NewID("grt_"), Hash: hashOf(name), UserCode: user, Kind: kind, Name: name, Reach: account.ReachOwn, Region: "eu",
			Client: "kith", Address: "192.0.2.1", State: account.GrantWaiting, Created: start, Expires: later(600),
		}
		if kind == account.GrantKey {
			g.KeyExpires, g.PerDay = later(9000), 50
		}
		ok(t, db.CreateGrant(ctx, g))
		return g
	}
	box, key := make("box", "BBBB-BBBB", account.GrantMachine), make("key", "CCCC-CCCC", account.GrantKey)
	twin := box
	twin.ID, twin.Hash = account.NewID("grt_"), hashOf("twin")
	fails(t, db.CreateGrant(ctx, twin), store.ErrExists)
	same(t, must[account.Grant](t)(db.WaitingGrant(ctx, box.UserCode, later(1))), box)
	same(t, must[[]account.Grant](t)(db.WaitingGrants(ctx, later(1))), []account.Grant{box, key})
	same(t, len(must[[]account.Grant](t)(db.WaitingGrants(ctx, later(600)))), 0)
	for _, code := range []string{"", "XXXX-XXXX", "\x00"} {
		fails(t, assert.Err(db.WaitingGrant(ctx, code, later(1))), store.ErrNotFound)
		fails(t, assert.Err(db.DecideGrant(ctx, code, account.GrantApproved, ada.ID, later(1))), store.ErrNotFound)
	}
	fails(t, assert.Err(db.WaitingGrant(ctx, box.UserCode, later(600))), store.ErrNotFound)

	newBox := aMachine(ada, "box")
	_, err := db.RedeemGrant(ctx, box.Hash, newBox, account.Key{}, later(1))
	fails(t, err, store.ErrNotFound) // not approved yet

	// It can be decided only once.
	var decided atomic.Int64
	together(8, func(i int) {
		whose, state := ada.ID, account.GrantApproved
		if i%2 == 1 {
			whose, state = bob.ID, account.GrantDenied
		}
		if _, err := db.DecideGrant(ctx, box.UserCode, state, whose, later(2)); err == nil {
			decided.Add(1)
		}
	})
	same(t, decided.Load(), int64(1))
	fails(t, assert.Err(db.WaitingGrant(ctx, box.UserCode, later(2))), store.ErrNotFound)

	// It can be redeemed once, for the member who approved. If redeeming fails, it stays
	// approved.
	den := make("den", "DDDD-DDDD", account.GrantMachine)
	ok(t, assert.Err(db.DecideGrant(ctx, den.UserCode, account.GrantApproved, bob.ID, later(2))))
	newMachine(t, db, bob, "den")
	newDen := aMachine(ada, "den")
	newDen.Hash = hashOf("credential")
	fails(t, assert.Err(db.RedeemGrant(ctx, den.Hash, newDen, account.Key{}, later(3))), store.ErrExists)
	same(t, must[account.Grant](t)(db.Grant(ctx, den.Hash)).State, account.GrantApproved)
	fails(t, assert.Err(db.RedeemGrant(ctx, den.Hash, newDen, account.Key{}, later(600))), store.ErrNotFound)
	newDen.Name = "den-2"
	changes := watch(t, db)
	var won atomic.Int64
	together(8, func(int) {
		if m, err := db.RedeemGrant(ctx, den.Hash, newDen, account.Key{}, later(4)); err == nil && m.ID == bob.ID {
			won.Add(1)
		}
	})
	same(t, won.Load(), int64(1))
	expect(t, changes(), fleet.Change{Kind: fleet.MachineChanged, ID: newDen.ID})
	same(t, must[account.Machine](t)(db.OwnMachine(ctx, bob.ID, newDen.ID)).Name, "den-2")
	same(t, must[account.Grant](t)(db.Grant(ctx, den.Hash)).State, account.GrantUsed)

	// A key gets the request's name, reach, expiry and limit.
	ok(t, assert.Err(db.DecideGrant(ctx, key.UserCode, account.GrantApproved, ada.ID, later(2))))
	made := account.Key{ID: account.NewID("key_"), Region: "eu", Name: "other", Reach: account.ReachAll, Hash: hashOf("secret"), Created: start}
	ok(t, assert.Err(db.RedeemGrant(ctx, key.Hash, account.Machine{}, made, later(3))))
	made.MemberID, made.Name, made.Reach, made.Expires, made.PerDay = ada.ID, "key", account.ReachOwn, key.KeyExpires, 50
	same(t, must[[]account.Key](t)(db.Keys(ctx, ada.ID)), []account.Key{made})

	// If the member was disabled in between, nothing is created.
	off := make("off", "FFFF-FFFF", account.GrantKey)
	ok(t, assert.Err(db.DecideGrant(ctx, off.UserCode, account.GrantApproved, bob.ID, later(2))))
	ok(t, db.SetMemberDisabled(ctx, bob.ID, true))
	fails(t, assert.Err(db.RedeemGrant(ctx, off.Hash, account.Machine{}, made, later(3))), store.ErrNotFound)

	// A request is deleted an hour after it expired.
	g := account.Grant{ID: account.NewID("grt_"), Hash: hashOf("new"), UserCode: "GGGG-GGGG", Kind: account.GrantKey, Reach: account.ReachAll, Created: later(600 + 3600), Expires: later(9000)}
	ok(t, db.CreateGrant(ctx, g))
	fails(t, assert.Err(db.Grant(ctx, key.Hash)), store.ErrNotFound)
}

func testOwnThings(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	key, box := newKey(t, db, ada, "s"), newMachine(t, db, ada, "box")
	newMachine(t, db, ada, "den")
	changes := watch(t, db)
	fails(t, db.RevokeOwnKey(ctx, bob.ID, key.ID, later(1)), store.ErrNotFound)
	fails(t, db.RenameMachine(ctx, bob.ID, box.ID, "mine"), store.ErrNotFound)
	fails(t, db.RenameMachine(ctx, ada.ID, box.ID, "den"), store.ErrExists)
	fails(t, db.RenameMachine(ctx, ada.ID, box.ID, "\x00"), store.ErrInvalid)
	fails(t, db.RenameMachine(ctx, ada.ID, box.ID, ""), store.ErrInvalid)
	same(t, changes(), []fleet.Change{})
	ok(t, db.RenameMachine(ctx, ada.ID, box.ID, "new"))
	ok(t, db.RevokeOwnKey(ctx, ada.ID, key.ID, later(1)))
	expect(t, changes(), fleet.Change{Kind: fleet.MachineChanged, ID: box.ID}, fleet.Change{Kind: fleet.KeyChanged, ID: key.ID})
	fails(t, db.RevokeOwnKey(ctx, ada.ID, key.ID, later(1)), store.ErrNotFound)
	same(t, must[account.Machine](t)(db.OwnMachine(ctx, ada.ID, box.ID)).Name, "new")

	// The newest calls come first, each as its member sees it.
	var stories []account.Trace
	for i := range 5 {
		s := account.Trace{CallID: fmt.Sprint("req_", i), MemberID: ada.ID, Started: later(i), Mine: true, Caller: "ada"}
		stories = append(stories, s, account.Trace{CallID: s.CallID, MemberID: bob.ID, Started: later(i), Caller: "ada"})
	}
	ok(t, db.SaveTraces(ctx, stories, later(10)))
	ids := func(before time.Time, most int) (ids []string) {
		for _, s := range must[[]account.Trace](t)(db.TracesOf(ctx, ada.ID, account.Place{At: before}, most)) {
			assert.That(t, s.Mine && s.MemberID == ada.ID, "ada gets", s)
			ids = append(ids, s.CallID)
		}
		return ids
	}
	same(t, ids(later(100), 3), []string{"req_4", "req_3", "req_2"})
	same(t, ids(later(2), 3), []string{"req_1", "req_0"})
	same(t, ids(later(0), 3), []string(nil))
}
