package store_test

import (
	"sync/atomic"
	"testing"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
)

func newPasskey(t *testing.T, db *store.DB, memberID, credential string) account.Passkey {
	t.Helper()
	p := account.Passkey{
		ID: account.NewID("pky_"), MemberID: memberID, Name: "key " + credential, Credential: []byte(credential), PublicKey: []byte{1, 2}, Synced: true, Created: start,
	}
	ok(t, db.AddPasskey(t.Context(), p))
	return p
}

func testPasskeys(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	one, two, bobs := newPasskey(t, db, ada.ID, "one"), newPasskey(t, db, ada.ID, "two"), newPasskey(t, db, bob.ID, "bobs")
	same(t, must[[]account.Passkey](t)(db.Passkeys(ctx, ada.ID)), []account.Passkey{one, two})
	taken := one
	taken.ID, taken.MemberID = account.NewID("pky_"), bob.ID
	fails(t, db.AddPasskey(ctx, taken), store.ErrExists)
	taken.Credential, taken.Name = []byte("other"), "\x00"
	fails(t, db.AddPasskey(ctx, taken), store.ErrInvalid)
	taken.MemberID, taken.Name = "mem_none", "x"
	fails(t, db.AddPasskey(ctx, taken), store.ErrNotFound)
	fails(t, assert.Err(db.Passkeys(ctx, "\x00")), store.ErrInvalid)

	// If the authenticator has a counter, it only increases.
	ok(t, db.UsePasskey(ctx, one.ID, 0, later(1)))
	ok(t, db.UsePasskey(ctx, one.ID, 0, later(2)))
	var won atomic.Int64
	together(8, func(int) {
		if db.UsePasskey(ctx, one.ID, 5, later(3)) == nil {
			won.Add(1)
		}
	})
	same(t, won.Load(), int64(1))
	fails(t, db.UsePasskey(ctx, one.ID, 4, later(4)), store.ErrNotFound)
	fails(t, db.UsePasskey(ctx, one.ID, 0, later(4)), store.ErrNotFound)
	ok(t, db.UsePasskey(ctx, one.ID, 6, later(5)))
	one.Signs, one.Used = 6, later(5)
	same(t, must[[]account.Passkey](t)(db.Passkeys(ctx, ada.ID)), []account.Passkey{one, two})

	// A member can remove only their own methods, and not the last one. It ends the other
	// sessions.
	for _, id := range []string{"here", "elsewhere"} {
		ok(t, db.CreateSession(ctx, account.Session{ID: id, MemberID: ada.ID, Data: []byte{1}, Created: start, Seen: start, Expires: later(100)}))
	}
	changes, ended := watch(t, db), fleet.Change{Kind: fleet.SessionsChanged, ID: ada.ID}
	fails(t, db.RemovePasskey(ctx, ada.ID, bobs.ID, "here"), store.ErrNotFound)
	fails(t, db.RemovePasskey(ctx, bob.ID, bobs.ID, ""), account.ErrLastWay)
	same(t, len(must[[]account.Session](t)(db.SessionsOf(ctx, ada.ID, start))), 2)
	expect(t, changes())
	ok(t, db.RemovePasskey(ctx, ada.ID, one.ID, "here"))
	expect(t, changes(), ended) // so that what depends on them ends
	sessions := must[[]account.Session](t)(db.SessionsOf(ctx, ada.ID, start))
	assert.Require(t, len(sessions) == 1 && sessions[0].ID == "here", "left", sessions)
	same(t, must[[]account.Passkey](t)(db.Passkeys(ctx, ada.ID)), []account.Passkey{two})
	same(t, must[[]account.Passkey](t)(db.Passkeys(ctx, bob.ID)), []account.Passkey{bobs})

	// If all are removed concurrently, one remains.
	keys := []account.Passkey{two}
	for _, credential := range []string{"3", "4", "5"} {
		keys = append(keys, newPasskey(t, db, ada.ID, credential))
	}
	together(len(keys), func(i int) { _ = db.RemovePasskey(ctx, ada.ID, keys[i].ID, "") }) // one of them is refused
	same(t, len(must[[]account.Passkey](t)(db.Passkeys(ctx, ada.ID))), 1)
	ok(t, db.SetPassword(ctx, ada.ID, "$hash", "", start))
	last := must[[]account.Passkey](t)(db.Passkeys(ctx, ada.ID))[0]
	ok(t, db.RemovePasskey(ctx, ada.ID, last.ID, ""))
}

func testIdentities(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	adas := account.Identity{ID: account.NewID("idn_"), MemberID: ada.ID, Issuer: "https://id.example", Subject: "1", Shown: "ada@example.org", Created: start}
	ok(t, db.AddIdentity(ctx, adas))
	same(t, must[account.Identity](t)(db.Identity(ctx, adas.Issuer, "1")), adas)
	for _, other := range [][2]string{{adas.Issuer, "2"}, {"https://id.other", "1"}, {adas.Shown, "1"}} {
		fails(t, assert.Err(db.Identity(ctx, other[0], other[1])), store.ErrNotFound)
	}
	fails(t, assert.Err(db.Identity(ctx, adas.Issuer, "\xff")), store.ErrInvalid)
	bobs := adas
	bobs.ID, bobs.MemberID = account.NewID("idn_"), bob.ID
	fails(t, db.AddIdentity(ctx, bobs), store.ErrExists)
	same(t, must[[]account.Identity](t)(db.Identities(ctx, ada.ID)), []account.Identity{adas})
	same(t, must[[]account.Identity](t)(db.Identities(ctx, bob.ID)), []account.Identity{})
	fails(t, db.RemoveIdentity(ctx, bob.ID, adas.ID, ""), store.ErrNotFound)
	fails(t, db.RemoveIdentity(ctx, ada.ID, adas.ID, ""), account.ErrLastWay)
	newPasskey(t, db, ada.ID, "one")
	changes := watch(t, db)
	ok(t, db.RemoveIdentity(ctx, ada.ID, adas.ID, ""))
	expect(t, changes(), fleet.Change{Kind: fleet.SessionsChanged, ID: ada.ID})

	// A sign-up with an identity adds both the member and the identity, or nothing.
	same(t, must[bool](t)(db.OperatorCanSignIn(ctx)), false)
	eve := account.SignUp{Member: account.Member{ID: account.NewID("mem_"), Name: "eve", Operator: true, Created: start}}
	eve.Identity = &account.Identity{ID: account.NewID("idn_"), MemberID: eve.Member.ID, Issuer: adas.Issuer, Subject: "3", Created: start}
	ok(t, db.SignUp(ctx, eve, later(1)))
	same(t, must[account.Identity](t)(db.Identity(ctx, adas.Issuer, "3")), *eve.Identity)
	fails(t, assert.Err(db.Password(ctx, eve.Member.ID)), store.ErrNotFound)
	same(t, must[bool](t)(db.OperatorCanSignIn(ctx)), true)
	zoe := eve
	zoe.Member.ID, zoe.Member.Name = account.NewID("mem_"), "zoe"
	zoe.Identity = &account.Identity{ID: account.NewID("idn_"), MemberID: zoe.Member.ID, Issuer: adas.Issuer, Subject: "3", Created: start}
	fails(t, db.SignUp(ctx, zoe, later(1)), store.ErrExists)
	fails(t, assert.Err(db.MemberByName(ctx, "zoe")), store.ErrNotFound)
}

func testCeremonies(t *testing.T, db *store.DB) {
	ctx := t.Context()
	begin := func(name string, expires int) account.Ceremony {
		c := account.Ceremony{Hash: hashOf(name), Kind: account.UsePasskey, MemberID: "mem_1", Data: []byte(name), Expires: later(expires)}
		ok(t, db.BeginCeremony(ctx, c, start))
		return c
	}
	one := begin("one", 10)
	fails(t, assert.Err(db.TakeCeremony(ctx, one.Hash, account.AddPasskey, later(1))), store.ErrNotFound)
	fails(t, assert.Err(db.TakeCeremony(ctx, one.Hash, one.Kind, later(10))), store.ErrNotFound)
	var won atomic.Int64
	together(8, func(int) {
		if got, err := db.TakeCeremony(ctx, one.Hash, one.Kind, later(9)); err == nil && string(got.Data) == "one" && got.MemberID == "mem_1" {
			won.Add(1)
		}
	})
	same(t, won.Load(), int64(1))
	two := begin("two", 10)
	ok(t, db.BeginCeremony(ctx, account.Ceremony{Hash: hashOf("three"), Kind: account.UsePasskey, Data: []byte{}, Expires: later(40)}, later(20))) // deletes expired ones
	fails(t, assert.Err(db.TakeCeremony(ctx, two.Hash, two.Kind, start)), store.ErrNotFound)
}
