package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // registers "pgx"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/kith/kith/internal/store/internal/query"
)

// flavor holds the differences between the two databases.
type flavor struct {
	dialect goose.Dialect
	// shared is whether several processes may use the database.
	shared bool
	// migrations are options for migrations that only this database has.
	migrations []goose.ProviderOption
	// kind returns the error of this package for a driver's error, or nil.
	kind func(error) error
	// copy writes the database into an empty file and returns the fault found in
	// the copy; nil for a database that has its own tools.
	copy func(ctx context.Context, to string) (fault string, err error)
	// batch returns the context for a transaction of many short statements.
	batch func(context.Context) context.Context
	// prepare makes a pool or a transaction prepare each statement once.
	prepare func(query.DBTX) query.DBTX
	// release releases what Open acquired beside the connections.
	release func() error
}

// Sizes of PostgreSQL's pool, which reads and writes share.
const (
	postgresConns    = 16
	postgresIdle     = 5 * time.Minute
	postgresLifetime = time.Hour
)

func openPostgres(ctx context.Context, config Config) (*DB, error) {
	pool, err := sql.Open("pgx", config.URL)
	if err != nil {
		return nil, fmt.Errorf("cannot read the database's URL: %w", err)
	}
	pool.SetMaxOpenConns(postgresConns)
	pool.SetMaxIdleConns(postgresConns)
	pool.SetConnMaxIdleTime(postgresIdle)
	pool.SetConnMaxLifetime(postgresLifetime)
	if err := pool.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot reach PostgreSQL; check that it runs and that the URL is right: %w", err), pool.Close())
	}
	// Hubs that start together run the migrations one after another.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return &DB{
		write: pool, read: pool,
		flavor: flavor{
			dialect:    goose.DialectPostgres,
			shared:     true,
			migrations: []goose.ProviderOption{goose.WithSessionLocker(locker)},
			kind:       postgresKind,
			prepare:    func(on query.DBTX) query.DBTX { return on }, // pgx does
			batch:      func(ctx context.Context) context.Context { return ctx },
			release:    func() error { return nil },
		},
	}, nil
}

func postgresKind(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return nil
	}
	switch pg.Code {
	case "23505": // unique_violation
		return ErrExists
	case "23503": // foreign_key_violation
		return ErrNotFound
	case "23514", "22021": // check_violation, character_not_in_repertoire
		return ErrInvalid
	}
	return nil
}

func sqliteKind(err error) error {
	var lite *sqlite.Error
	if !errors.As(err, &lite) {
		return nil
	}
	switch lite.Code() {
	case sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
		return ErrExists
	case sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
		return ErrNotFound
	case sqlite3.SQLITE_CONSTRAINT_CHECK:
		return ErrInvalid
	}
	return nil
}

//go:embed migrations/*.sql
var migrations embed.FS

// migrate runs the migrations that the database lacks. It refuses a database with
// migrations that this kith does not know.
func (db *DB) migrate(ctx context.Context) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	options := append([]goose.ProviderOption{goose.WithDisableGlobalRegistry(true)}, db.flavor.migrations...)
	provider, err := goose.NewProvider(db.flavor.dialect, db.write, files, options...)
	if err != nil {
		return fmt.Errorf("cannot read the migrations: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("cannot bring the database's tables up to date: %w", err)
	}
	is, known, err := provider.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("cannot read the version of the database's tables: %w", err)
	}
	if is > known {
		return fmt.Errorf("cannot use the database: its tables have version %d and this kith knows %d; update kith", is, known)
	}
	return nil
}
