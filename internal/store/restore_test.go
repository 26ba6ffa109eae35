package store_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

func noProgress(int64, int64) {}

// aBackup creates a database with a backup of it, and returns its owner and member.
func aBackup(t *testing.T, dir string) (db *store.DB, file string, owner, member account.Member) {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{Path: filepath.Join(dir, "kith.db")})
	ok(t, err)
	owner, member = fillToCopy(t, db)
	file = filepath.Join(t.TempDir(), "backup.db")
	made, err := db.Backup(t.Context(), account.Backup{ID: "bak_1", At: later(20), File: file}, nil)
	ok(t, err)
	same(t, made.Fault, "")
	return db, file, owner, member
}

// TestRestore checks that a backup that is restored on another computer has the data of
// its time and a later epoch, but no sessions and nothing that can be used once.
func TestRestore(t *testing.T) {
	from, file, owner, member := aBackup(t, t.TempDir())
	defer from.Close()
	ok(t, from.CreateSession(t.Context(), account.Session{ID: "ses_1", MemberID: owner.ID, Data: []byte("x"), Created: start, Seen: start, Expires: later(1000)}))
	ok(t, from.CreateLink(t.Context(), account.Link{Hash: hashOf("link"), MemberID: owner.ID, Created: start, Expires: later(1000)}))
	ok(t, from.CreateLoginToken(t.Context(), account.LoginToken{ID: "tok_1", MemberID: owner.ID, Hash: hashOf("token"), Created: start, Expires: later(1000)}))
	ok(t, os.Remove(file))
	running := aCall("running", 1)
	running.Code = account.Interrupted
	made, err := from.Backup(t.Context(), account.Backup{ID: "bak_2", At: later(20), File: file}, []account.Usage{running})
	ok(t, err)
	files, err := os.ReadDir(filepath.Dir(file))
	ok(t, err)
	assert.Equal(t, len(files), 1, "the backup left", files)

	path := filepath.Join(t.TempDir(), "new", "kith.db")
	var copied, all int64
	done, err := store.Restore(t.Context(), file, path, later(30), func(d, a int64) { copied, all = d, a })
	ok(t, err)
	if copied != made.Bytes || all != made.Bytes {
		t.Errorf("progress ended at %d of %d, of %d", copied, all, made.Bytes)
	}
	same(t, done, store.Restored{Made: later(20), Members: 2, Keys: 1, Machines: 2})
	restored := open(t, store.Config{Path: path})
	ok(t, from.RecordUsage(t.Context(), []account.Usage{running})) // the running call has ended
	same(t, seen(t, restored, owner, member), seen(t, from, owner, member))
	before, err := from.Position(t.Context())
	ok(t, err)
	after, err := restored.Position(t.Context())
	ok(t, err)
	assert.That(t, after.Epoch >= before.Epoch+1_000_000 && after.Nonce != "", "the epoch", before, after)
	fails(t, assert.Err(restored.Session(t.Context(), "ses_1", start)), store.ErrNotFound)
	fails(t, assert.Err(restored.Link(t.Context(), hashOf("link"), start)), store.ErrNotFound)
	_, _, err = restored.RedeemLoginToken(t.Context(), hashOf("token"), aMachine(owner, "x"), start)
	fails(t, err, store.ErrNotFound)
	ok(t, assert.Err(from.Session(t.Context(), "ses_1", start)))

	left, err := os.ReadDir(filepath.Dir(path))
	ok(t, err)
	for _, f := range left {
		if name := f.Name(); strings.HasSuffix(name, ".part") || strings.Contains(name, ".before") {
			t.Errorf("the restore left %s", name)
		}
	}
}

// TestRestoreOver checks that a restore over a database keeps that database, and that
// what was revoked or disabled there stays so.
func TestRestoreOver(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "kith.db")
	db, file, owner, member := aBackup(t, dir)
	keys := must[[]account.Key](t)(db.Keys(t.Context(), owner.ID))
	machines := must[[]account.Machine](t)(db.Machines(t.Context(), owner.ID))
	ok(t, db.RevokeKey(t.Context(), keys[0].ID, later(40)))
	ok(t, db.RevokeMachine(t.Context(), machines[0].ID, later(41)))
	ok(t, db.SetMemberOperator(t.Context(), newMember(t, db, "since").ID, true))
	ok(t, db.SetMemberDisabled(t.Context(), member.ID, true))

	if _, err := store.Restore(t.Context(), file, path, later(50), noProgress); err == nil || !strings.Contains(err.Error(), "another kith process has it open; stop that one") {
		t.Fatalf("over a live hub: %v", err)
	}
	ok(t, db.Close())
	done, err := store.Restore(t.Context(), file, path, later(50), noProgress)
	ok(t, err)
	same(t, done, store.Restored{Made: later(20), Members: 2, Machines: 1, StillRevoked: 3, Before: path + ".before-" + later(50).UTC().Format("20060102-150405")})
	restored := open(t, store.Config{Path: path})
	same(t, must[[]account.Key](t)(restored.Keys(t.Context(), owner.ID))[0].Revoked, later(40))
	same(t, must[[]account.Machine](t)(restored.Machines(t.Context(), owner.ID))[0].Revoked, later(41))
	same(t, must[account.Member](t)(restored.Member(t.Context(), member.ID)).Disabled, true)
	old := open(t, store.Config{Path: done.Before})
	same(t, len(must[[]account.Member](t)(old.Members(t.Context()))), 3)
}

// TestRestoreTwice checks that a second restore in the same second does not overwrite the
// database that the first one kept.
func TestRestoreTwice(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "kith.db")
	db, file, _, _ := aBackup(t, dir)
	newMember(t, db, "since")
	ok(t, db.Close())
	first, err := store.Restore(t.Context(), file, path, later(50), noProgress)
	ok(t, err)
	second, err := store.Restore(t.Context(), file, path, later(50), noProgress)
	ok(t, err)
	same(t, second.Before, first.Before+"-2")
	for name, members := range map[string]int{first.Before: 3, second.Before: 2, path: 2} {
		if n := len(must[[]account.Member](t)(open(t, store.Config{Path: name}).Members(t.Context()))); n != members {
			t.Errorf("%s has %d members, not %d", name, n, members)
		}
	}
}

// TestRestoreOverDamage checks that an unreadable database is kept and replaced.
func TestRestoreOverDamage(t *testing.T) {
	db, file, _, _ := aBackup(t, t.TempDir())
	ok(t, db.Close())
	path := filepath.Join(t.TempDir(), "kith.db")
	ok(t, os.WriteFile(path, []byte(strings.Repeat("damage", 10_000)), 0o600))
	ok(t, os.WriteFile(path+"-wal", []byte("damage"), 0o600))
	done, err := store.Restore(t.Context(), file, path, later(50), noProgress)
	ok(t, err)
	assert.That(t, done.Lost != nil && done.StillRevoked == 0 && done.Members == 2, done)
	if text, err := os.ReadFile(done.Before); err != nil || !strings.HasPrefix(string(text), "damage") {
		t.Errorf("the database of before: %.20q, %v", text, err)
	}
	if _, err := os.Stat(path + "-wal"); !os.IsNotExist(err) {
		t.Errorf("the changes of the database of before lie beside the new one: %v", err)
	}
	same(t, len(must[[]account.Member](t)(open(t, store.Config{Path: path}).Members(t.Context()))), 2)
}

// TestRestoreRefuses checks that a file that is not a valid backup is refused with the
// reason, and that the database does not change.
func TestRestoreRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "kith.db")
	db, file, _, _ := aBackup(t, dir)
	defer db.Close()
	good, err := os.ReadFile(file)
	ok(t, err)
	damaged := append([]byte{}, good...)
	for i := 6000; i < len(damaged)-6000; i++ {
		damaged[i] ^= 0x5a
	}
	ok(t, db.Close())
	was, err := os.ReadFile(path)
	ok(t, err)
	other := filepath.Join(t.TempDir(), "other.db")
	makeTable(t, other)
	theirs, err := os.ReadFile(other)
	ok(t, err)
	for want, content := range map[string][]byte{
		"it is empty": {}, "not a backup of a hub": []byte("a text of more than 16 bytes"), "pg_restore": []byte("PGDMP-and-more-of-it"),
		"the file is damaged": damaged, "of another program": theirs,
	} {
		bad := filepath.Join(t.TempDir(), "bad")
		ok(t, os.WriteFile(bad, content, 0o600))
		assert.Fails(t, assert.Err(store.Restore(t.Context(), bad, path, later(50), noProgress)), want)
	}
	ok(t, os.WriteFile(file+"-wal", []byte("changes"), 0o600))
	for _, name := range []string{file, filepath.Join(dir, "none")} {
		if _, err := store.Restore(t.Context(), name, path, later(50), noProgress); err == nil {
			t.Errorf("%s was restored", name)
		}
	}
	now, err := os.ReadFile(path)
	ok(t, err)
	assert.Equal(t, string(now), string(was), "a restore that was refused changed the database")
	left, err := os.ReadDir(dir)
	ok(t, err)
	for _, f := range left {
		if strings.Contains(f.Name(), ".part") || strings.Contains(f.Name(), ".before") {
			t.Errorf("a restore that was refused left %s", f.Name())
		}
	}
}

// makeTable creates a database of another program.
func makeTable(t *testing.T, path string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	ok(t, err)
	ok(t, assert.Err(db.ExecContext(t.Context(), "CREATE TABLE other (a text)")))
	ok(t, db.Close())
}

// TestBackupFails checks that a failed copy is recorded and its file removed.
func TestBackupFails(t *testing.T) {
	dir := t.TempDir()
	db := open(t, store.Config{Path: filepath.Join(dir, "kith.db")})
	file := filepath.Join(dir, "copy.db")
	good, err := db.Backup(t.Context(), account.Backup{ID: "bak_1", At: later(1), File: file}, nil)
	ok(t, err)
	store.FailCopies(db, "database or disk is full")
	_, err = db.Backup(t.Context(), account.Backup{ID: "bak_2", At: later(2), File: file + "2"}, nil)
	assert.Fails(t, err, "disk is full")
	if files, err := filepath.Glob(file + "2*"); err != nil || files != nil {
		t.Errorf("left: %v, %v", files, err)
	}
	last, err := db.LastBackup(t.Context())
	ok(t, err)
	assert.That(t, last.ID == "bak_2" && strings.Contains(last.Fault, "disk is full"), "the last one", last)
	kept, err := db.LastGoodBackup(t.Context())
	ok(t, err)
	same(t, kept.ID, good.ID)
}

// TestAfterRestore checks that after a restore with PostgreSQL's own tools, AfterRestore
// ends the sessions and moves the epoch.
func TestAfterRestore(t *testing.T) {
	db := open(t, store.Config{URL: storetest.Postgres(t)})
	owner := newMember(t, db, "ada")
	for _, id := range []string{"one", "two"} {
		ok(t, db.CreateSession(t.Context(), account.Session{ID: id, MemberID: owner.ID, Data: []byte("x"), Created: start, Seen: start, Expires: start.Add(time.Hour)}))
	}
	before, err := db.Position(t.Context())
	ok(t, err)
	ended, err := db.AfterRestore(t.Context())
	ok(t, err)
	same(t, ended, int64(2))
	after, err := db.Position(t.Context())
	ok(t, err)
	assert.That(t, after.Epoch >= before.Epoch+1_000_000, "the epoch", before, after)
}
