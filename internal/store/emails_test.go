package store_test

import (
	"sync/atomic"
	"testing"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/store"
)

func testEmails(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada, bob := newMember(t, db, "ada"), newMember(t, db, "bob")
	ask := func(m account.Member, address, code string, expires int) account.Email {
		e := account.Email{MemberID: m.ID, Asked: address, Hash: hashOf(code), Expires: later(expires)}
		ok(t, db.AskEmail(ctx, e))
		return e
	}
	of := func(address string) (all []string) {
		for _, e := range must[[]account.Email](t)(db.EmailsOf(ctx, address, 5)) {
			all = append(all, e.MemberID)
		}
		return all
	}
	fails(t, assert.Err(db.Email(ctx, ada.ID)), store.ErrNotFound)
	fails(t, assert.Err(db.RemoveEmail(ctx, ada.ID)), store.ErrNotFound)
	fails(t, db.AskEmail(ctx, account.Email{MemberID: "mem_none", Asked: "x@y", Expires: later(1)}), store.ErrNotFound)
	fails(t, db.AskEmail(ctx, account.Email{MemberID: ada.ID, Asked: "x@y\x00"}), store.ErrInvalid)
	fails(t, assert.Err(db.EmailsOf(ctx, "\xff", 5)), store.ErrInvalid)

	// An address is verified when the link is used: by the member, before it expires, the
	// newest link, once.
	ask(ada, "old@example.org", "first", 100)
	asked := ask(ada, "Ada@Example.org", "second", 100)
	same(t, must[account.Email](t)(db.Email(ctx, ada.ID)), asked)
	same(t, of("ada@example.org"), []string{})
	for _, try := range []struct {
		member, code string
		at           int
	}{{ada.ID, "first", 1}, {bob.ID, "second", 1}, {ada.ID, "second", 100}, {ada.ID, "", 1}, {"mem_none", "second", 1}} {
		fails(t, assert.Err(db.VerifyEmail(ctx, try.member, hashOf(try.code), later(try.at))), store.ErrNotFound)
	}
	var won atomic.Int64
	together(8, func(int) {
		if before, err := db.VerifyEmail(ctx, ada.ID, asked.Hash, later(2)); err == nil && before.Address == "" {
			won.Add(1)
		}
	})
	same(t, won.Load(), int64(1))
	got := must[account.Email](t)(db.Email(ctx, ada.ID))
	same(t, got, account.Email{MemberID: ada.ID, Address: "Ada@Example.org", Verified: later(2), Hash: asked.Hash})
	same(t, of("ADA@example.ORG"), []string{ada.ID})
	for _, other := range []string{"old@example.org", "", "%", "ada@example.or_", "ada@example.org "} {
		same(t, of(other), []string{})
	}

	// Another member may have the same address. A new address replaces the old one when
	// it is verified.
	bobs := ask(bob, "ada@example.org", "bobs", 100)
	same(t, of("ada@example.org"), []string{ada.ID})
	ok(t, assert.Err(db.VerifyEmail(ctx, bob.ID, bobs.Hash, later(3))))
	same(t, of("ada@example.org"), []string{ada.ID, bob.ID})
	same(t, len(must[[]account.Email](t)(db.EmailsOf(ctx, "ada@example.org", 1))), 1)
	moved := ask(ada, "new@example.org", "moved", 200)
	same(t, of("ada@example.org"), []string{ada.ID, bob.ID})
	before, err := db.VerifyEmail(ctx, ada.ID, moved.Hash, later(150))
	ok(t, err)
	same(t, before.Address, "Ada@Example.org")
	same(t, of("ada@example.org"), []string{bob.ID})
	same(t, of("new@example.org"), []string{ada.ID})

	// All pending links are deleted, too.
	ask(ada, "later@example.org", "later", 300)
	before, err = db.RemoveEmail(ctx, ada.ID)
	ok(t, err)
	same(t, []string{before.Address, before.Asked}, []string{"new@example.org", "later@example.org"})
	fails(t, assert.Err(db.VerifyEmail(ctx, ada.ID, hashOf("later"), later(160))), store.ErrNotFound)
	same(t, of("new@example.org"), []string{})
	same(t, of("ada@example.org"), []string{bob.ID})
}

// testMailedLinks checks that a mailed link ends with the next one, with the address and
// with the password. A link by an operator does not end with it, and it does not end with
// that.
func testMailedLinks(t *testing.T, db *store.DB) {
	ctx := t.Context()
	ada := newMember(t, db, "ada")
	add := func(name string, mailed bool) account.Link {
		l := account.Link{Hash: hashOf(name), MemberID: ada.ID, Created: start, Expires: later(100), Mailed: mailed}
		ok(t, db.CreateLink(ctx, l))
		return l
	}
	there := func(l account.Link, want bool) {
		t.Helper()
		got, err := db.Link(ctx, l.Hash, later(1))
		if !want {
			fails(t, err, store.ErrNotFound)
			return
		}
		ok(t, err)
		same(t, got, l)
	}
	operators, first := add("operators", false), add("first", true)
	there(operators, true)
	second := add("second", true)
	there(operators, true)
	there(first, false)
	there(second, true)
	operators2 := add("operators 2", false)
	there(operators, false)
	there(second, true)
	ok(t, db.SetPassword(ctx, ada.ID, "$hash", "", later(1)))
	there(second, false)
	there(operators2, true)
	for i, end := range []func() error{
		func() error { _, err := db.VerifyEmail(ctx, ada.ID, hashOf("code"), later(2)); return err },
		func() error { _, err := db.RemoveEmail(ctx, ada.ID); return err },
	} {
		ok(t, db.AskEmail(ctx, account.Email{MemberID: ada.ID, Asked: "x@example.org", Hash: hashOf("code"), Expires: later(100)}))
		l := add(string(rune('a'+i)), true)
		ok(t, end())
		there(l, false)
	}
	used := add("used", true)
	ok(t, assert.Err(db.UseLink(ctx, used.Hash, later(2))))
	fails(t, assert.Err(db.UseLink(ctx, used.Hash, later(2))), store.ErrNotFound)
}
