package cli

import (
	"encoding/json/v2"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

// admin runs a command of the operator of the rig's hub and reads what it prints into
// out.
func (r *rig) admin(out any, args ...string) error {
	r.t.Helper()
	got := kith(r.t, "", append([]string{"admin", "--json", "--data", r.dir, "--config", filepath.Join(r.home, "hub.toml")}, args...)...)
	if got.status != 0 {
		return errors.New(got.err)
	}
	return json.Unmarshal([]byte(got.out), out)
}

// TestMigrate: the steps of a database are listed beside a running hub, and run with
// the hub stopped; where that cannot be, the refusal says what to do.
func TestMigrate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var listed struct {
		Version      int64 `json:"version"`
		Known        int64 `json:"known"`
		ReadableFrom int64 `json:"readable_from"`
		Pending      int   `json:"pending"`
		Migrations   []struct {
			Version int64  `json:"version"`
			Name    string `json:"name"`
			Applied string `json:"applied"`
		} `json:"migrations"`
	}
	assert.OK(t, r.admin(&listed, "migrate", "--status"))
	last := listed.Migrations[len(listed.Migrations)-1]
	if listed.Version != listed.Known || last.Version != listed.Known || last.Applied == "" || listed.Pending != 0 || listed.ReadableFrom != 1 {
		t.Errorf("the steps are %+v", listed)
	}
	if err := r.admin(&listed, "migrate"); err == nil || !strings.Contains(err.Error(), "another kith process has it open; stop that one") {
		t.Errorf("beside a running hub: %v", err)
	}
	r.hub.stop(t)
	if err := r.admin(&listed, "migrate"); err != nil {
		t.Error(err)
	}
	got := kith(t, "", "admin", "migrate", "--status", "--data", r.dir)
	if got.status != 0 || !strings.Contains(got.out, "start") || !strings.Contains(got.out, fmt.Sprintf("the tables have version %d", listed.Version)) {
		t.Errorf("%+v", got)
	}
	for _, args := range [][]string{{"migrate"}, {"migrate", "--status"}, {"copy", "--to", "postgres://127.0.0.1:1/kith"}} {
		empty := t.TempDir()
		got := kith(t, "", append([]string{"admin", "--data", empty}, args...)...)
		if got.status != 1 || !strings.Contains(got.err, "there is no such") && !strings.Contains(got.err, "a hub makes it at its first start") {
			t.Errorf("%v without a database: %+v", args, got)
		}
		if files, err := os.ReadDir(empty); err != nil || len(files) > 0 {
			t.Errorf("%v made %v, %v", args, files, err)
		}
	}
}

// TestMove: a hub moves from SQLite to PostgreSQL. The key of before is served
// there by the machine of before, and the usage is that of before.
func TestMove(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	url := filepath.Join(r.home, "database")
	assert.OK(t, os.WriteFile(url, []byte(storetest.Postgres(t)+"\n"), 0o600))
	for range 20 {
		assert.Value(r.ask(true))(t)
	}
	type copied struct {
		Tables []struct {
			Table string `json:"table"`
			Rows  int64  `json:"rows"`
			Sum   string `json:"sum"`
		} `json:"tables"`
		Rows int64 `json:"rows"`
	}
	var done copied
	if err := r.admin(&done, "copy", "--to", "file:"+url); err == nil || !strings.Contains(err.Error(), "another kith process has it open") {
		t.Errorf("a copy of a database in use: %v", err)
	}
	snapshot := filepath.Join(r.dir, "snapshot.db")
	assert.OK(t, r.admin(new(any), "backup", snapshot))
	if err := r.admin(&done, "copy", "--from", snapshot, "--to", storetest.Postgres(t)); err != nil || done.Rows == 0 {
		t.Errorf("a copy of a backup: %+v, %v", done, err)
	}

	r.hub.stop(t)
	done = copied{}
	assert.OK(t, r.admin(&done, "copy", "--to", "file:"+url))
	rows := map[string]int64{}
	for _, table := range done.Tables {
		rows[table.Table] = table.Rows
	}
	if rows["members"] != 1 || rows["keys"] != 1 || rows["machines"] != 1 || rows["usage"] < 21 {
		t.Errorf("copied: %v", rows)
	}
	assert.Fails(t, r.admin(&done, "copy", "--to", "file:"+url), "in use", "a copy over data")

	before := usageOf(t, store.Config{Path: filepath.Join(r.dir, "kith.db")})
	hubToml := "[ratelimit]\nrps = 0\nconnections = 0\n[database]\nurl = \"file:" + url + "\"\n"
	assert.OK(t, os.WriteFile(filepath.Join(r.home, "hub.toml"), []byte(hubToml), 0o600))
	r.startHub()
	r.until("a call is served", func() error { _, err := r.ask(true); return err })
	r.hub.stop(t)
	address := assert.Value(os.ReadFile(url))(t)
	after := usageOf(t, store.Config{URL: strings.TrimSpace(string(address))})
	for id, u := range before {
		assert.Equal(t, after[id], u, "the usage of call", id)
	}
	assert.That(t, len(after) > len(before), len(after), "calls after the move", len(before), "before")
	var status struct {
		Version int64 `json:"version"`
		Known   int64 `json:"known"`
	}
	if err := r.admin(&status, "migrate", "--status"); err != nil || status.Version != status.Known {
		t.Errorf("the steps on PostgreSQL: %+v, %v", status, err)
	}
}

// usageOf returns the usage records of a database, by call.
func usageOf(t *testing.T, config store.Config) map[string]account.Usage {
	t.Helper()
	db := assert.Value(store.Open(t.Context(), config))(t)
	defer db.Close()
	records := assert.Value(db.Usage(t.Context()))(t)
	calls := make(map[string]account.Usage)
	for _, u := range records {
		calls[u.CallID] = u
	}
	return calls
}
