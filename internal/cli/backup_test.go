package cli

import (
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/ledger/journal"
	"github.com/kith/kith/internal/storetest"
)

// acknowledged is what callers and the operator were answered so far.
type acknowledged struct {
	mu    sync.Mutex
	calls []string          // ids of complete answers
	keys  map[string]string // secrets of keys, and their ids
	more  chan struct{}
}

func (a *acknowledged) add(call string, key api.OperatorKey) {
	a.mu.Lock()
	if call != "" {
		a.calls = append(a.calls, call)
	} else {
		a.keys[key.Secret] = key.ID
	}
	a.mu.Unlock()
	select {
	case a.more <- struct{}{}:
	default:
	}
}

// until waits until that many calls and keys were acknowledged.
func (a *acknowledged) until(t *testing.T, calls, keys int) (answered []string, made map[string]string) {
	t.Helper()
	late := time.After(soon)
	for {
		a.mu.Lock()
		if len(a.calls) >= calls && len(a.keys) >= keys {
			defer a.mu.Unlock()
			made = make(map[string]string)
			for secret, id := range a.keys {
				made[secret] = id
			}
			return slices.Clone(a.calls), made
		}
		a.mu.Unlock()
		select {
		case <-a.more:
		case <-late:
			t.Fatalf("%d calls and %d keys within %s", len(a.calls), len(a.keys), soon)
		}
	}
}

// TestRestoreDrill backs up a hub under load and restores it elsewhere: each call that
// was answered and each key that was made before the backup began is there, and the
// machine comes back to the new hub by itself. A key that was revoked after the backup
// is valid there, and stays revoked where the database that knew it is replaced
// (docs/faults.md#56).
func TestRestoreDrill(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	had := &acknowledged{keys: map[string]string{}, more: make(chan struct{}, 1)}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var load sync.WaitGroup
	for i := range 6 {
		load.Go(func() {
			for ctx.Err() == nil {
				if id, err := r.ask(i%2 == 0); err == nil {
					had.add(id, api.OperatorKey{})
				} else if ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	load.Go(func() {
		operator := r.operator()
		for i := 0; ctx.Err() == nil; i++ {
			key, _, err := fetch(t.Context(), operator, "make a key", api.OperatorCreateKey.With(api.NewKey{Member: "ada", Name: fmt.Sprint("load ", i)}))
			if err != nil {
				t.Error(err)
				return
			}
			had.add("", key)
		}
	})
	calls, keys := had.until(t, 60, 20)
	file := filepath.Join(t.TempDir(), "backup.db")
	assert.OK(t, r.admin(new(any), "backup", file))
	had.until(t, len(calls)+60, len(keys)+5)
	stop()
	load.Wait()
	var revoked string
	for secret := range keys {
		revoked = secret
		break
	}
	assert.OK(t, r.admin(new(any), "key", "revoke", keys[revoked]))
	var restored restoredHub
	if err := r.admin(&restored, "restore", file); err == nil || !strings.Contains(err.Error(), "another kith process has it open; stop that one") {
		t.Errorf("over a live hub: %v", err)
	}
	r.hub.kill()

	old := r.dir
	r.dir = filepath.Join(shortDir(t), "elsewhere")
	assert.OK(t, r.admin(&restored, "restore", file))
	if restored.Made == nil || restored.Members != 1 || restored.Keys < int64(len(keys)) || restored.Machines != 1 || restored.Before != "" {
		t.Errorf("restored: %+v", restored)
	}
	r.startHub()
	for secret := range keys {
		r.answered(secret, http.StatusOK, "")
	}
	r.hub.stop(t)
	checkLedger(t, filepath.Join(r.dir, "kith.db"), calls)

	r.dir = old
	assert.OK(t, r.admin(&restored, "restore", file))
	if _, err := os.Stat(restored.Before); err != nil || restored.StillRevoked != 1 {
		t.Errorf("restored over the old one: %+v, %v", restored, err)
	}
	r.startHub()
	r.answered(revoked, http.StatusUnauthorized, "invalid_api_key")
	r.answered(r.key, http.StatusOK, "")
	r.hub.stop(t)
	checkLedger(t, filepath.Join(r.dir, "kith.db"), calls)
}

// TestBackupToOutput: with - the copy is written to standard output, and nothing else is,
// nor is anything left in the hub's folder.
func TestBackupToOutput(t *testing.T) {
	t.Parallel()
	r := emptyRig(t)
	r.open()
	before := assert.Value(os.ReadDir(r.dir))(t)
	got := kith(t, "", "admin", "backup", "-", "--data", r.dir)
	if got.status != 0 || !strings.HasPrefix(got.out, "SQLite format 3\x00") || got.err != "" {
		t.Fatalf("%d, %d bytes, %s", got.status, len(got.out), got.err)
	}
	assert.Equal(t, len(assert.Value(os.ReadDir(r.dir))(t)), len(before), "in the folder")
	file := filepath.Join(t.TempDir(), "backup.db")
	write(t, file, got.out)
	elsewhere := t.TempDir()
	if got := kith(t, "", "admin", "restore", file, "--data", elsewhere); got.status != 0 || !strings.Contains(got.out, "0 members, 0 keys, 0 machines") {
		t.Errorf("%+v", got)
	}
	damaged := t.TempDir()
	write(t, filepath.Join(damaged, "kith.db"), strings.Repeat("damage", 10_000))
	var lost restoredHub
	if got := kith(t, "", "admin", "restore", file, "--json", "--data", damaged); json.Unmarshal([]byte(got.out), &lost) != nil || lost.Lost == "" || lost.Before == "" {
		t.Errorf("over a damaged database: %+v", got)
	}
	check(t, kith(t, "", "admin", "backup", "-", "--json", "--data", r.dir), said{2, "", "standard output is the backup"})
	check(t, kith(t, "", "admin", "restore", "--data", elsewhere), said{2, "", "name the backup"})
}

// TestRestorePostgres: there pg_restore brings the data back, and the command does the
// rest.
func TestRestorePostgres(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	config := filepath.Join(home, "hub.toml")
	write(t, config, "[database]\nurl = \"file:url\"\n")
	write(t, filepath.Join(home, "url"), storetest.Postgres(t))
	check(t, kith(t, "", "admin", "restore", "x.dump", "--config", config), said{2, "", "pg_restore"})
	if got := kith(t, "", "admin", "restore", "--config", config); got.status != 0 || !strings.HasPrefix(got.out, "0 sessions ended") {
		t.Errorf("%+v", got)
	}
}

// TestNoNewDatabaseBesideAJournal: a hub whose database is gone or empty, while its journal
// has calls, is not taken for a new one.
func TestNoNewDatabaseBesideAJournal(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	config := defaultHubFile(dir)
	config.Hub.Data, config.Hub.Listen.Text = dir, "127.0.0.1:0"
	start := func() error {
		p, err := openHub(t.Context(), config, slog.New(slog.DiscardHandler))
		p.close()
		return err
	}
	db := filepath.Join(dir, "kith.db")
	assert.OK(t, start())
	remove := func() {
		for _, file := range []string{db, db + "-wal", db + "-shm"} {
			_ = os.Remove(file)
		}
	}
	remove()
	assert.OK(t, start(), "beside an empty journal")
	j, err := journal.Open(filepath.Join(dir, "ledger-"))
	if err == nil {
		err = errors.Join(j.Restart([][]byte{[]byte("a call")}), j.Sync(), j.Close())
	}
	assert.OK(t, err)
	remove()
	if err := start(); err == nil || !strings.Contains(err.Error(), db+" is not there, and the journal beside it has 1 record of calls; restore a backup") {
		t.Errorf("without a database: %v", err)
	}
	assert.Is(t, assert.Err(os.Stat(db)), fs.ErrNotExist, "a database was made")
	write(t, db, "")
	assert.Fails(t, start(), db+" is empty, and the journal", "with an empty database")
}
