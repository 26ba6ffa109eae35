package store_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

// TestBackup checks that a copy made during writes is valid, has the data of that moment,
// opens as a database, and is recorded with its act, and that no file is overwritten.
func TestBackup(t *testing.T) {
	dir := t.TempDir()
	db, err := store.Open(t.Context(), store.Config{Path: filepath.Join(dir, "kith.db")})
	ok(t, err)
	defer db.Close()
	assert.Is(t, assert.Err(db.LastBackup(t.Context())), store.ErrNotFound, "a backup before any")
	add := func(name string) {
		t.Helper()
		ok(t, db.CreateMember(t.Context(), account.Member{ID: "mem_" + name, Name: name, Created: time.Now()}))
	}
	add("before")
	ended, over := make(chan struct{}), make(chan error)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-ended:
				over <- nil
				return
			default:
				u := account.Usage{CallID: account.NewID("req_"), Attempt: 1, Started: time.Now(), Model: "m"}
				if err := db.RecordUsage(t.Context(), []account.Usage{u}); err != nil {
					over <- err
					return
				}
			}
		}
	}()
	file := filepath.Join(dir, "copy.db")
	ctx := account.Acting(t.Context(), &account.Act{ID: "act_1", At: time.Now(), What: "back up the database", Subject: file})
	made, err := db.Backup(ctx, account.Backup{ID: "bak_1", At: time.Now(), File: file}, nil)
	close(ended)
	if err := errors.Join(err, <-over); err != nil || made.Fault != "" {
		t.Fatal(err, made)
	}
	add("after")
	about, err := os.Stat(file)
	if err != nil || about.Size() != made.Bytes || made.Bytes == 0 || runtime.GOOS != "windows" && about.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v (%v), of %+v", about, err, made)
	}
	last, err := db.LastBackup(t.Context())
	if err != nil || last.File != file || last.Bytes != made.Bytes || last.Fault != "" || time.Since(last.At) > time.Minute {
		t.Errorf("the last backup is %+v, %v", last, err)
	}
	if acts, err := db.Acts(t.Context(), account.Place{}, account.ActFilter{}, 9); err != nil || len(acts) != 1 || acts[0].Subject != file {
		t.Errorf("the audit log says %+v, %v", acts, err)
	}

	copied, err := store.Open(t.Context(), store.Config{Path: file})
	ok(t, err)
	defer copied.Close()
	if all, _, err := copied.CountMembers(t.Context()); err != nil || all != 1 {
		t.Errorf("the copy has %d members, %v; want the one from before", all, err)
	}
	for path, want := range map[string]error{
		file: store.ErrExists, filepath.Join(dir, "kith.db"): store.ErrExists, "copy.db": store.ErrInvalid,
		filepath.Join(dir, "none", "x.db"): store.ErrInvalid, "/\x00": store.ErrInvalid,
	} {
		if _, err := db.Backup(t.Context(), account.Backup{ID: "bak_2", At: time.Now(), File: path}, nil); !errors.Is(err, want) {
			t.Errorf("a backup to %q: %v", path, err)
		}
	}
}

// TestDumpPostgres checks that pg_dump and pg_restore, used as in
// docs/operate/database.md, restore everything in a database, including its partitions,
// and that a hub can continue with it.
func TestDumpPostgres(t *testing.T) {
	t.Parallel()
	from, to, file := storetest.Postgres(t), storetest.Postgres(t), filepath.Join(t.TempDir(), "kith.dump")
	db := open(t, store.Config{URL: from})
	owner, member := fillToCopy(t, db)
	for _, command := range [][]string{
		{"pg_dump", "--format=custom", "--file", file, "--dbname", from},
		{"pg_restore", "--exit-on-error", "--no-owner", "--dbname", to, file},
	} {
		if out, err := exec.Command(storetest.Program(t, command[0]), command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command[0], err, out)
		}
	}
	restored := open(t, store.Config{URL: to})
	same(t, seen(t, restored, owner, member), seen(t, db, owner, member))
	ok(t, restored.RecordUsage(t.Context(), []account.Usage{callAt("new", start), callAt("call-0", start)}))
	same(t, len(must[[]account.Usage](t)(restored.Usage(t.Context()))), 1001)
}

// TestBackupPostgres checks that on PostgreSQL the refusal names the tool to use.
func TestBackupPostgres(t *testing.T) {
	db, err := store.Open(t.Context(), store.Config{URL: storetest.Postgres(t)})
	ok(t, err)
	defer db.Close()
	_, err = db.Backup(t.Context(), account.Backup{ID: "bak_1", File: filepath.Join(t.TempDir(), "x")}, nil)
	assert.That(t, errors.Is(err, store.ErrInvalid) && strings.Contains(err.Error(), "pg_dump"), err)
}

// A call that ends while a backup is made has a trace in the database before the copy,
// and its record only after it. Its trace in the copy agrees with its record there.
func TestBackupOfACallThatEnds(t *testing.T) {
	db, file := open(t, store.Config{Path: filepath.Join(t.TempDir(), "kith.db")}), filepath.Join(t.TempDir(), "copy.db")
	ada := newMember(t, db, "ada")
	ended, recorded := aCall("ended", 1), aCall("recorded", 1)
	ended.MemberID, recorded.MemberID = ada.ID, ada.ID
	now := time.Now() // a call without a trace is explained by its record for a week
	ended.Started, recorded.Started = now, now
	ok(t, db.RecordUsage(t.Context(), []account.Usage{recorded}))
	for _, u := range []account.Usage{ended, recorded} {
		ok(t, db.SaveTraces(t.Context(), []account.Trace{{CallID: u.CallID, MemberID: ada.ID, Started: now, Status: 200, Mine: true}}, now))
	}
	ended.Code, recorded.Code = account.Interrupted, account.Interrupted // as they were open before the copy
	_, err := db.Backup(t.Context(), account.Backup{ID: "bak_1", At: now, File: file}, []account.Usage{ended, recorded})
	ok(t, err)
	copied := open(t, store.Config{Path: file})
	for _, c := range []struct {
		call, code string
	}{{ended.CallID, account.Interrupted}, {recorded.CallID, ""}} {
		trace, err := copied.Trace(t.Context(), c.call, ada.ID)
		if ok(t, err); trace.Code != c.code {
			t.Errorf("the trace of %s ends with %q, its record with %q", c.call, trace.Code, c.code)
		}
	}
}
