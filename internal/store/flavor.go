package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/kith/kith/internal/store/internal/query"
)

// flavor holds the differences between the two databases.
type flavor struct {
	dialect goose.Dialect
	// primary confirms beats, where several processes may use the database; else nil.
	primary *primary
	// within bounds a transaction; 0 does not.
	within time.Duration
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
	var pg *pgconn.PgError
	if _, err := provider.Up(ctx); errors.As(err, &pg) && pg.Code == "42501" { // insufficient_privilege
		return fmt.Errorf("cannot bring the database's tables up to date: %s; make the hub's user the owner of the database: ALTER DATABASE … OWNER TO …", pg.Message)
	} else if err != nil {
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
