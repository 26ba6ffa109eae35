package store_test

import (
	"errors"
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

func TestMain(m *testing.M) {
	if path := os.Getenv(writerPath); path != "" {
		os.Exit(writeUsage(path))
	}
	os.Exit(m.Run())
}

func open(t testing.TB, config store.Config) *store.DB {
	t.Helper()
	db := assert.Value(store.Open(t.Context(), config))(t)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func openSQLite(t testing.TB) *store.DB {
	t.Helper()
	return open(t, store.Config{Path: storetest.SQLite(t)})
}

func openPostgres(t testing.TB) *store.DB {
	t.Helper()
	return open(t, store.Config{URL: storetest.PostgresWithTables(t)})
}

func TestSQLite(t *testing.T) {
	t.Parallel()
	onDatabase(t, func(t *testing.T) *store.DB { return openSQLite(t) })
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	onDatabase(t, func(t *testing.T) *store.DB { return openPostgres(t) })
}

// cannotOpen checks that Open fails and that the error has the reason.
func cannotOpen(t *testing.T, config store.Config, why string) {
	t.Helper()
	db, err := store.Open(t.Context(), config)
	if err == nil {
		db.Close()
		t.Fatalf("it opened, want an error that says %q", why)
	}
	if !strings.Contains(err.Error(), why) || !strings.HasPrefix(err.Error(), "cannot ") ||
		strings.ContainsAny(err.Error(), "\n\t") || strings.Contains(err.Error(), "hunter2") {
		t.Fatalf("the error is %q, want it to say %q", err, why)
	}
}

func TestConfig(t *testing.T) {
	cannotOpen(t, store.Config{}, "either")
	cannotOpen(t, store.Config{Path: "kith.db", URL: "postgres://localhost/kith"}, "either")
	cannotOpen(t, store.Config{URL: "postgres://kith:hunter2@127.0.0.1:1/kith"}, "check that it runs")
	cannotOpen(t, store.Config{URL: "postgres://kith:hunter2@127.0.0.1:port/kith"}, "takes a URL")
	cannotOpen(t, store.Config{URL: "postgres://kith:hunter2@127.0.0.1/kith?sslmode=never"}, "sslmode")
	cannotOpen(t, store.Config{URL: "mysql://kith:hunter2@127.0.0.1/kith"}, "takes a URL")
}

// TestCannotUsePostgres checks that for each reason why a server cannot be used, there is
// one line with what to do.
func TestCannotUsePostgres(t *testing.T) {
	t.Parallel()
	url := storetest.Postgres(t)
	_, name, _ := strings.Cut(url, "@/")
	name, _, _ = strings.Cut(name, "?")
	execute(t, url, "CREATE ROLE "+name+"_user LOGIN", "CREATE DATABASE "+name+"_read", "ALTER DATABASE "+name+"_read SET default_transaction_read_only = on",
		"REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	for _, test := range []struct{ from, to, why string }{
		{name, "none", `make the database: CREATE DATABASE "none" OWNER "kith"`},
		{"kith@", "eve@", "check the user and the password"},
		{"kith@", name + "_user@", "make the hub's user the owner of the database"},
		{name, name + "_read", "it only reads"},
	} {
		cannotOpen(t, store.Config{URL: strings.Replace(url, test.from, test.to, 1)}, test.why)
	}
}

// TestFiles checks that SQLite's files are readable by this user only, whatever the
// folder's name, and are found again after a restart.
func TestFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "some hub? 100%#&", "data")
	config := store.Config{Path: filepath.Join(dir, "kith.db")}
	ada := account.Member{ID: account.NewID("mem_"), Name: "ada", Created: time.UnixMilli(1).UTC()}
	for restart := range 3 {
		db, err := store.Open(t.Context(), config)
		ok(t, err)
		if restart == 0 {
			err = db.CreateMember(t.Context(), ada)
		}
		if got, readErr := db.Member(t.Context(), ada.ID); err != nil || readErr != nil || got != ada {
			t.Fatal(got, err, readErr)
		}
		modes(t, dir)
		ok(t, db.Close())
	}
}

func modes(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		assert.Equal(t, info.Mode().Perm()&0o077, 0, "others may use", path, info.Mode())
		return nil
	})
	ok(t, err)
}

// TestOneProcess checks that opening an SQLite store a second time reports what prevents
// it, and works after that is gone. TestKilled checks the same for another process and
// its death.
func TestOneProcess(t *testing.T) {
	config := store.Config{Path: filepath.Join(t.TempDir(), "kith.db")}
	first := assert.Value(store.Open(t.Context(), config))(t)
	cannotOpen(t, config, "another kith process has it open")
	cannotOpen(t, config, "another kith process has it open")
	ok(t, first.Close())
	open(t, config)
}

func TestDamaged(t *testing.T) {
	fill := func(t *testing.T) string {
		path := filepath.Join(t.TempDir(), "kith.db")
		db, err := store.Open(t.Context(), store.Config{Path: path})
		ok(t, err)
		for range 200 {
			m := account.Member{ID: account.NewID("mem_"), Name: account.NewID("a member "), Created: time.UnixMilli(1)}
			err = errors.Join(err, db.CreateMember(t.Context(), m))
		}
		ok(t, errors.Join(err, db.Close()))
		return path
	}
	t.Run("page", func(t *testing.T) {
		path := fill(t)
		data := assert.Value(os.ReadFile(path))(t)
		clear(data[3*len(data)/4:])
		ok(t, os.WriteFile(path, data, 0o600))
		cannotOpen(t, store.Config{Path: path}, "bring back a backup with `kith admin restore FILE`")
	})
	t.Run("no database", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "kith.db")
		ok(t, os.WriteFile(path, []byte(strings.Repeat("# a hub.toml, say\n", 100)), 0o600))
		cannotOpen(t, store.Config{Path: path}, "bring back a backup with `kith admin restore FILE`")
	})
}

// TestTogether checks that hubs that open an empty PostgreSQL database at the same time
// all find its tables.
func TestTogether(t *testing.T) {
	config := store.Config{URL: storetest.Postgres(t)}
	errs := make(chan error)
	const hubs = 4
	for range hubs {
		go func() {
			db, err := store.Open(t.Context(), config)
			if err == nil {
				_, err = db.Position(t.Context())
				err = errors.Join(err, db.Close())
			}
			errs <- err
		}()
	}
	for range hubs {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}
