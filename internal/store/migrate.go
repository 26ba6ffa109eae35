package store

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Schema is the version of a database's tables: the number of the newest migration
// applied to it.
type Schema struct {
	Version int64
	// Known is the newest version that this kith knows.
	Known int64
	// ReadableFrom is the oldest version that a kith must know to use the tables; 0 if
	// there are no tables yet.
	ReadableFrom int64
	Migrations   []Migration // in order of version
}

// Migration is one step in creating the tables.
type Migration struct {
	Version int64
	Name    string    // empty: from a newer kith
	Applied time.Time // zero: pending
}

// metaReadableFrom is the name of Schema.ReadableFrom in the table meta.
const metaReadableFrom = "readable_from"

// ReadSchema reads the version of a database's tables without changing anything. On
// SQLite it also works while a hub is running. It returns ErrNotFound if the file does
// not exist.
func ReadSchema(ctx context.Context, config Config) (_ Schema, err error) {
	var db *DB
	if config.URL != "" {
		db, err = openPostgres(ctx, config)
	} else {
		db, err = readSQLite(config.Path)
	}
	if err != nil {
		return Schema{}, err
	}
	schema, err := db.schema(ctx)
	return schema, errors.Join(db.wrap(err, "read the version of the database's tables"), db.Close())
}

// readSQLite opens an SQLite file for reading, even while a hub is running.
func readSQLite(path string) (*DB, error) {
	if err := FileExists(path); err != nil {
		return nil, err
	}
	pool, err := sqlitePool(path, 1, "deferred", busyTimeout, "query_only(1)")
	if err != nil {
		return nil, err
	}
	return &DB{write: pool, read: pool, flavor: flavor{
		dialect: goose.DialectSQLite3, kind: sqliteKind, release: func() error { return nil },
	}}, nil
}

// FileExists returns an error, ErrNotFound, if there is no SQLite file at path.
func FileExists(path string) error {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot open the database %s: %w: a hub makes it at its first start; check the path", path, ErrNotFound)
	}
	return err
}

// migrate runs the missing migrations. It refuses tables that are newer than this kith,
// unless this kith can use them.
func (db *DB) migrate(ctx context.Context) error {
	provider, err := db.migrations()
	if err != nil {
		return err
	}
	var pg *pgconn.PgError
	if _, err := provider.Up(ctx); errors.As(err, &pg) && pg.Code == "42501" { // insufficient_privilege
		return fmt.Errorf("cannot bring the database's tables up to date: %s; make the hub's user the owner of the database: ALTER DATABASE … OWNER TO …", pg.Message)
	} else if err != nil {
		return fmt.Errorf("cannot bring the database's tables up to date: %w", err)
	}
	schema, err := db.schema(ctx)
	if err != nil {
		return fmt.Errorf("cannot read the version of the database's tables: %w", err)
	}
	if schema.Version > schema.Known && schema.ReadableFrom > schema.Known {
		return fmt.Errorf("cannot use the database: its tables have version %d, and a kith that runs on them has to know version %d; this one knows %d: update kith",
			schema.Version, schema.ReadableFrom, schema.Known)
	}
	return nil
}

func (db *DB) migrations() (*goose.Provider, error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	options := append([]goose.ProviderOption{goose.WithDisableGlobalRegistry(true)}, db.flavor.migrations...)
	provider, err := goose.NewProvider(db.flavor.dialect, db.write, files, options...)
	if err != nil {
		return nil, fmt.Errorf("cannot read the migrations: %w", err)
	}
	return provider, nil
}

// schema returns the version of the tables, and the migrations.
func (db *DB) schema(ctx context.Context) (Schema, error) {
	provider, err := db.migrations()
	if err != nil {
		return Schema{}, err
	}
	var s Schema
	for _, source := range provider.ListSources() {
		_, name, _ := strings.Cut(strings.TrimSuffix(path.Base(source.Path), path.Ext(source.Path)), "_")
		s.Migrations = append(s.Migrations, Migration{Version: source.Version, Name: strings.ReplaceAll(name, "_", " ")})
		s.Known = source.Version
	}
	applied, err := db.applied(ctx)
	if err != nil || len(applied) == 0 {
		return s, err
	}
	for version, at := range applied {
		i, known := slices.BinarySearchFunc(s.Migrations, version, func(m Migration, v int64) int { return cmp.Compare(m.Version, v) })
		if !known {
			s.Migrations = slices.Insert(s.Migrations, i, Migration{Version: version})
		}
		s.Migrations[i].Applied = at
		s.Version = max(s.Version, version)
	}
	var text string
	err = db.read.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = $1", metaReadableFrom).Scan(&text)
	if err == nil {
		s.ReadableFrom, err = strconv.ParseInt(text, 10, 64)
	}
	return s, err
}

// applied returns the versions of the applied migrations, and when each was applied.
func (db *DB) applied(ctx context.Context) (map[int64]time.Time, error) {
	exists, at := "SELECT count(*) > 0 FROM sqlite_master WHERE name = 'goose_db_version'", "tstamp"
	if db.flavor.dialect == goose.DialectPostgres {
		exists, at = "SELECT to_regclass('goose_db_version') IS NOT NULL", "cast(tstamp AS timestamptz)" // in its time zone
	}
	var made bool
	if err := db.read.QueryRowContext(ctx, exists).Scan(&made); err != nil || !made {
		return nil, err
	}
	rows, err := db.read.QueryContext(ctx, "SELECT version_id, "+at+" FROM goose_db_version WHERE is_applied AND version_id > 0")
	applied := make(map[int64]time.Time)
	var version int64
	var when time.Time
	err = scan(rows, err, func() { applied[version] = when.UTC() }, &version, &when)
	return applied, err
}
