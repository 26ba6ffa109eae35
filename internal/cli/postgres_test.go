package cli

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

// answered waits until a call with the key is answered with that status and code.
func (r *rig) answered(key string, status int, code string) {
	r.t.Helper()
	r.until(fmt.Sprintf("%d %s", status, code), func() error {
		was, wasHasty := r.key, r.hasty
		r.key, r.hasty = key, true
		defer func() { r.key, r.hasty = was, wasHasty }()
		res, err := r.begin(false)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if refusal := readRefusal(res); refusal.status != status || refusal.code != code {
			return fmt.Errorf("%+v", refusal)
		}
		return nil
	})
}

// TestHubOnPostgres runs a hub on PostgreSQL: it serves what is shared, sees what another
// process changes, refuses without the database and serves when it is back
// (docs/faults.md#17), reads everything again after lost commits (docs/faults.md#19), and
// ends when another hub takes its name.
func TestHubOnPostgres(t *testing.T) {
	t.Parallel()
	server := storetest.Start(t)
	url := server.Database(t)
	source := filepath.Join(t.TempDir(), "url")
	assert.OK(t, os.WriteFile(source, []byte(url+"\n"), 0o600))
	r := newRig(t, "[hub]\nnode = \"one\"\n[database]\nurl = \"file:"+source+"\"\n")
	if _, err := os.Stat(filepath.Join(r.dir, "kith.db")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an SQLite file beside PostgreSQL: %v", err)
	}
	operator := overSocket(filepath.Join(r.dir, "admin.sock"), "", "")
	_, _, err1 := fetch(t.Context(), operator, "make a member", api.OperatorCreateMember.With(api.NewMember{Name: "ben"}))
	key, _, err2 := fetch(t.Context(), operator, "make a key", api.OperatorCreateKey.With(api.NewKey{Member: "ben", Name: "k"}))
	assert.OK(t, errors.Join(err1, err2))
	_, _, err := fetch(t.Context(), operator, "back up", api.OperatorBackUp.With(api.BackupFile{File: filepath.Join(r.dir, "copy.db")}))
	assert.Fails(t, err, "pg_dump", "a backup of PostgreSQL")

	r.answered(key.Secret, http.StatusForbidden, "NOT_IN_CIRCLE")
	if _, _, err := fetch(t.Context(), operator, "share", api.OperatorAddShare.With(api.BetweenMembers{Owner: "ada", With: "ben"})); err != nil {
		t.Fatal(err)
	}
	r.answered(key.Secret, http.StatusOK, "")

	// As after a fail-over to a server that lacks the share and has another change under
	// the same number.
	r.execute(url, "DELETE FROM shares", "UPDATE changes SET nonce = 'another' WHERE epoch = (SELECT max(epoch) FROM changes)")
	r.answered(key.Secret, http.StatusForbidden, "NOT_IN_CIRCLE")

	server.Stop(t)
	r.answered(r.key, http.StatusServiceUnavailable, "CASCADE_EXHAUSTED")
	server.Start(t)
	r.answered(r.key, http.StatusOK, "")

	other, err := store.Open(t.Context(), store.Config{URL: url})
	assert.OK(t, err)
	defer other.Close()
	assert.OK(t, other.RevokeKey(t.Context(), key.ID, time.Now()))
	r.answered(key.Secret, http.StatusUnauthorized, "invalid_api_key")

	// Another process of this name, with a data folder of its own.
	second := r.start("hub", "--listen", "127.0.0.1:0", "--data", shortDir(t), "--admin", "", "--config", filepath.Join(r.home, "hub.toml"))
	if err := r.hub.cmd.Wait(); err == nil || !strings.Contains(r.hub.errs.String(), "another hub process took this node's name") {
		t.Errorf("the hub whose name was taken ended with %v: %s", err, r.hub.errs.String())
	}
	second.kill()
	for _, said := range []string{r.hub.errs.String(), second.errs.String()} {
		assert.Lacks(t, said, url, "a log holds the URL of the database")
	}
}

// execute runs statements on the hub's database.
func (r *rig) execute(url string, statements ...string) {
	r.t.Helper()
	raw, err := sql.Open("pgx", url)
	assert.OK(r.t, err)
	defer raw.Close()
	tx, err := raw.BeginTx(r.t.Context(), nil)
	for _, s := range statements {
		if err == nil {
			_, err = tx.ExecContext(context.Background(), s)
		}
	}
	if err == nil {
		err = tx.Commit()
	}
	assert.OK(r.t, err)
}
