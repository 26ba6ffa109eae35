package store_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

// onEachConfig runs a test on an empty database of each kind. raw opens it without the
// store.
func onEachConfig(t *testing.T, test func(t *testing.T, config store.Config, raw func() *sql.DB)) {
	for _, driver := range []string{"sqlite", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			config := store.Config{Path: filepath.Join(t.TempDir(), "kith.db")}
			name := config.Path
			if driver == "pgx" {
				config = store.Config{URL: storetest.Postgres(t)}
				name = config.URL
			}
			test(t, config, func() *sql.DB {
				raw, err := sql.Open(driver, name)
				ok(t, err)
				t.Cleanup(func() { ok(t, raw.Close()) })
				return raw
			})
		})
	}
}

// TestNewer checks that a kith runs on the tables of a newer one if they allow it.
// Otherwise it refuses them, with both versions and the next step.
func TestNewer(t *testing.T) {
	t.Parallel()
	onEachConfig(t, func(t *testing.T, config store.Config, rawDB func() *sql.DB) {
		db, err := store.Open(t.Context(), config)
		ok(t, err)
		ok(t, db.Close())
		known := must[store.Schema](t)(store.ReadSchema(t.Context(), config)).Known
		raw := rawDB()
		_, err = raw.ExecContext(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)")
		ok(t, err)

		db, err = store.Open(t.Context(), config)
		ok(t, err)
		newMember(t, db, "ada")
		ok(t, db.Close())
		schema := must[store.Schema](t)(store.ReadSchema(t.Context(), config))
		if schema.Version != 9999 || schema.Known != known || schema.ReadableFrom > known || schema.Migrations[len(schema.Migrations)-1].Name != "" {
			t.Errorf("the schema is %+v", schema)
		}

		ok(t, assert.Err(raw.ExecContext(t.Context(), "UPDATE meta SET value = '9998' WHERE name = 'readable_from'")))
		cannotOpen(t, config, "version 9999")
		cannotOpen(t, config, "version 9998")
		cannotOpen(t, config, "update kith")
	})
}

// TestReadSchema checks that a database's migrations can be read without changing it,
// even if there are none, and while a hub is running.
func TestReadSchema(t *testing.T) {
	t.Parallel()
	_, err := store.ReadSchema(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "kith.db")})
	fails(t, err, store.ErrNotFound)
	onEachConfig(t, func(t *testing.T, config store.Config, rawDB func() *sql.DB) {
		if config.Path != "" {
			ok(t, os.WriteFile(config.Path, nil, 0o600))
		}
		schema := must[store.Schema](t)(store.ReadSchema(t.Context(), config))
		if schema.Version != 0 || schema.ReadableFrom != 0 || !schema.Migrations[0].Applied.IsZero() {
			t.Errorf("the schema of an empty database is %+v", schema)
		}
		open(t, config)
		schema = must[store.Schema](t)(store.ReadSchema(t.Context(), config))
		assert.That(t, schema.Version == schema.Known && schema.ReadableFrom == 1, "the schema", schema)
		for _, m := range schema.Migrations {
			if m.Name == "" || strings.ContainsAny(m.Name, "_.") || time.Since(m.Applied).Abs() > time.Minute {
				t.Errorf("a migration is %+v", m)
			}
		}
	})
}

// TestMigrationsExpand checks that a migration that an older kith cannot use declares
// that.
func TestMigrationsExpand(t *testing.T) {
	t.Parallel()
	breaking := regexp.MustCompile(`(?i)\bDROP (TABLE|COLUMN)\b|\bRENAME\b|\bALTER COLUMN\b|\bADD CONSTRAINT\b|\bADD COLUMN [^,;]* NOT NULL(?: CHECK|,|;|$)`)
	files, err := filepath.Glob("migrations/*.sql")
	ok(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		ok(t, err)
		if breaking.Match(text) && !strings.Contains(string(text), "'readable_from'") {
			t.Errorf("%s takes away or changes what an older kith uses: UPDATE meta SET value = its version WHERE name = 'readable_from', "+
				"a version after the one that no longer needs it", file)
		}
	}
}
