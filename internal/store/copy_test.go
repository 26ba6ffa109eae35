package store_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

// fillToCopy stores records of most kinds, and returns two members: the owner and the
// member of a share.
func fillToCopy(t *testing.T, db *store.DB) (owner, member account.Member) {
	t.Helper()
	ctx := account.Acting(t.Context(), &account.Act{ID: "act_1", At: start, By: "mem_x", ByName: "operator", What: "add the member", Subject: "grüße \ufffd"})
	owner, member = newMember(t, db, "ada"), account.Member{ID: account.NewID("mem_"), Name: "bob", Operator: true, Created: start}
	ok(t, db.CreateMember(ctx, member))
	newKey(t, db, owner, "secret of ada")
	gone := newKey(t, db, member, "secret of bob")
	ok(t, db.RevokeKey(ctx, gone.ID, later(9)))
	machine := newMachine(t, db, owner, "box")
	ok(t, db.SaveOffers(ctx, machine.ID, []byte{0, 0xff, '"', 0}, later(3)))
	newMachine(t, db, member, "no offers")
	ok(t, assert.Err(db.NextGeneration(ctx, machine.ID)))
	ok(t, db.AddShare(ctx, account.Share{
		ID: account.NewID("shr_"), OwnerID: owner.ID, MemberID: member.ID, Created: start, Limits: account.Limits{Models: []string{"tiny"}, PerDay: 10},
	}))
	group := newGroup(t, db, "lab", owner, member)
	ok(t, assert.Err(db.PutGroupLimits(ctx, owner.ID, group.ID, account.LimitChange{})))
	ok(t, db.SetPassword(ctx, owner.ID, "$argon2id$", "", start))
	ok(t, db.KeepTurn(ctx, aTurn(owner, "resp_1", 0, 64), 100, 1<<20))
	ok(t, db.SaveTraces(ctx, []account.Trace{{CallID: "call-1", MemberID: owner.ID, Started: start}}, start))
	ok(t, db.PutMeta(ctx, "hub", "hub_1"))
	var records []account.Usage
	for i := range 1000 {
		u := aCall(fmt.Sprint("call-", i), 1)
		u.MemberID, u.OwnerID, u.GroupID = member.ID, owner.ID, group.ID
		u.Started, u.Stream = start.Add(-time.Duration(i)*time.Hour), i%2 == 0
		records = append(records, u)
	}
	ok(t, db.RecordUsage(ctx, records))
	return owner, member
}

// seen returns what the store's methods return for the records of fillToCopy.
func seen(t *testing.T, db *store.DB, owner, member account.Member) map[string]any {
	t.Helper()
	ctx := t.Context()
	out := map[string]any{
		"members": must[[]account.Member](t)(db.Members(ctx)), "groups": must[[]account.Group](t)(db.GroupList(ctx)),
		"shares": must[[]account.Share](t)(db.ShareList(ctx)), "machines": must[[]account.Machine](t)(db.Facts("eu").ActiveMachines(ctx, time.Time{})),
		"acts": must[[]account.Act](t)(db.Acts(ctx, account.Place{}, account.ActFilter{}, 10)), "password": must[string](t)(db.Password(ctx, owner.ID)),
		"turn":  must[account.Turn](t)(db.Turn(ctx, aTurn(owner, "resp_1", 0, 64).Hash, owner.ID, start)),
		"trace": must[account.Trace](t)(db.Trace(ctx, "call-1", owner.ID)), "hub": must[string](t)(db.Meta(ctx, "hub")),
		"usage": must[[]account.Usage](t)(db.Usage(ctx)), "days": must[[]account.UsageDay](t)(db.UsageDays(ctx)),
		"limits": must[[]*fleet.Share](t)(db.Facts("eu").Shares(ctx)) != nil,
	}
	for _, m := range []account.Member{owner, member} {
		out["keys of "+m.Name] = must[[]account.Key](t)(db.Keys(ctx, m.ID))
	}
	key, holder, err := db.KeyByHash(ctx, sha256.Sum256([]byte("secret of ada")))
	ok(t, err)
	out["key"], out["holder"] = key, holder
	return out
}

// TestCopy checks that everything in an SQLite database is copied to PostgreSQL, with
// equal numbers and contents of rows, that the copy can be used as before, and that the
// epoch jumps.
func TestCopy(t *testing.T) {
	t.Parallel()
	from, to := openSQLite(t), openPostgres(t)
	owner, member := fillToCopy(t, from)
	before := must[account.Position](t)(from.Position(t.Context()))
	var reported []string
	copied, err := store.Copy(t.Context(), from, to, func(c store.TableCopy) {
		if !slices.Contains(reported, c.Table) {
			reported = append(reported, c.Table)
		}
	})
	ok(t, err)
	rows := make(map[string]int64)
	for _, c := range copied {
		rows[c.Table] = c.Rows
		assert.That(t, c.Rows <= 0 || c.Sum != 0, c.Table, "has no sum")
	}
	if rows["usage"] != 1000 || rows["members"] != 2 || rows["acts"] != 1 || rows["turns"] != 1 || rows["meta"] < 2 || len(reported) != len(copied) {
		t.Errorf("copied: %v, reported: %v", rows, reported)
	}
	same(t, seen(t, to, owner, member), seen(t, from, owner, member))
	if now := must[account.Position](t)(to.Position(t.Context())); now.Epoch < before.Epoch+1_000_000_000 || now.Nonce == "" || now.Nonce == before.Nonce {
		t.Errorf("the position is %+v after %+v", now, before)
	}
	fails(t, assert.Err(to.Changes(t.Context(), before)), store.ErrBehind)

	// The copy can be used: changes arrive in order, and records count once.
	changes := watch(t, to)
	newKey(t, to, member, "new")
	same(t, len(changes()), 1)
	again := must[[]account.Usage](t)(to.Usage(t.Context()))
	ok(t, to.RecordUsage(t.Context(), again[:100]))
	same(t, len(must[[]account.Usage](t)(to.Usage(t.Context()))), 1000)

	_, err = store.Copy(t.Context(), from, to, func(store.TableCopy) {})
	assert.Fails(t, err, "in use", "a second copy to the same database")
	_, err = store.Copy(t.Context(), to, from, func(store.TableCopy) {})
	assert.Fails(t, err, "from SQLite to PostgreSQL only", "a copy the other way")
}

// TestCopyLaterTable checks that Copy also copies tables added in the future, and fails
// if only one side has a table.
func TestCopyLaterTable(t *testing.T) {
	t.Parallel()
	path, url := filepath.Join(t.TempDir(), "kith.db"), storetest.Postgres(t)
	from, to := open(t, store.Config{Path: path}), open(t, store.Config{URL: url})
	lite, err := sql.Open("sqlite", path)
	ok(t, err)
	defer lite.Close()
	raw := rawPostgres(t, url)
	const made = `CREATE TABLE aaa (id text PRIMARY KEY, member_id text REFERENCES members (id), yes boolean, data bytea, n bigint)`
	exec := func(on *sql.DB, text string) {
		t.Helper()
		ok(t, assert.Err(on.ExecContext(t.Context(), text)))
	}
	exec(lite, made)
	_, err = store.Copy(t.Context(), from, to, func(store.TableCopy) {})
	assert.Fails(t, err, "aaa", "a table that the target lacks")
	exec(raw, made)
	m := newMember(t, from, "ada")
	exec(lite, "INSERT INTO aaa VALUES ('a', '"+m.ID+"', true, x'00ff', 9007199254740993), ('b', NULL, NULL, NULL, NULL)")
	copied, err := store.Copy(t.Context(), from, to, func(store.TableCopy) {})
	ok(t, err)
	if i := slices.IndexFunc(copied, func(c store.TableCopy) bool { return c.Table == "aaa" }); i < 0 || copied[i].Rows != 2 {
		t.Errorf("copied: %+v", copied)
	}
	var n int64
	ok(t, raw.QueryRowContext(t.Context(), "SELECT n FROM aaa WHERE yes AND data = '\\x00ff'").Scan(&n))
	same(t, n, int64(9007199254740993))
}

// TestCopyFails checks that a copy that cannot be completed leaves the target empty, and
// that the next one succeeds.
func TestCopyFails(t *testing.T) {
	t.Parallel()
	from, to := openSQLite(t), openPostgres(t)
	owner, member := fillToCopy(t, from)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := store.Copy(ctx, from, to, func(c store.TableCopy) {
		if c.Table == "usage" {
			cancel()
		}
	})
	assert.Require(t, errors.Is(err, context.Canceled), "the error", err)
	same(t, len(must[[]account.Member](t)(to.Members(t.Context()))), 0)
	ok(t, assert.Err(store.Copy(t.Context(), from, to, func(store.TableCopy) {})))
	same(t, seen(t, to, owner, member), seen(t, from, owner, member))
}
