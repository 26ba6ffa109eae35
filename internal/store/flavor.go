package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // registers "pgx"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/kith/kith/internal/account"
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
	// recordUsage writes usage records that are valid, all or none.
	recordUsage func(context.Context, []account.Usage) error
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
			dialect: goose.DialectPostgres,
			shared:  true,
			migrations: []goose.ProviderOption{
				goose.WithSessionLocker(locker),
				goose.WithGoMigrations(partitionMigration()),
			},
			recordUsage: (&usagePartitions{pool: pool}).record,
			kind:        postgresKind,
			prepare:     func(on query.DBTX) query.DBTX { return on }, // pgx does
			batch:       func(ctx context.Context) context.Context { return ctx },
			release:     func() error { return nil },
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
		if pg.Code == "23514" && pg.ConstraintName == "" {
			return nil // no constraint refused the row: its partition is missing
		}
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
