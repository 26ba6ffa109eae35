package store_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store"
)

func testSpeeds(t *testing.T, db *store.DB) {
	ctx, get := t.Context(), must[[]account.Speed](t)
	ann := newMember(t, db, "ann")
	m := newMachine(t, db, ann, "box")
	speed := func(model string, seconds int, samples string) account.Speed {
		return account.Speed{MachineID: m.ID, Model: model, Measured: later(seconds), Samples: samples}
	}
	ok(t, db.SaveSpeeds(ctx, []account.Speed{speed("b", 10, "b1"), speed("a", 5, "a1")}, later(10)))
	same(t, get(db.Speeds(ctx, start)), []account.Speed{speed("a", 5, "a1"), speed("b", 10, "b1")})
	// If two nodes measured a machine, the newer measurement is kept.
	ok(t, db.SaveSpeeds(ctx, []account.Speed{speed("a", 6, "a2"), speed("b", 9, "b0")}, later(10)))
	same(t, get(db.Speeds(ctx, start)), []account.Speed{speed("a", 6, "a2"), speed("b", 10, "b1")})
	same(t, get(db.Speeds(ctx, later(7))), []account.Speed{speed("b", 10, "b1")})
	fails(t, db.SaveSpeeds(ctx, []account.Speed{{MachineID: "mch_none", Model: "a"}}, later(10)), store.ErrNotFound)
	ok(t, db.SaveSpeeds(ctx, nil, later(8).Add(30*24*time.Hour)))
	same(t, get(db.Speeds(ctx, start)), []account.Speed{speed("b", 10, "b1")})

	key := must[[]byte](t)
	today, again := key(db.PrefixKey(ctx, start)), key(db.PrefixKey(ctx, start.Add(time.Minute)))
	tomorrow := key(db.PrefixKey(ctx, start.Add(24*time.Hour)))
	if len(today) != 32 || !bytes.Equal(today, again) || bytes.Equal(today, tomorrow) {
		t.Errorf("the secrets are %x, %x and %x", today, again, tomorrow)
	}
	if kept := key(db.PrefixKey(ctx, start)); !bytes.Equal(kept, today) {
		t.Error("the last day's secret is dropped")
	}
	key(db.PrefixKey(ctx, start.Add(48*time.Hour)))
	if dropped := key(db.PrefixKey(ctx, start)); bytes.Equal(dropped, today) {
		t.Error("the secret of two days ago is kept")
	}
}
