package store

import (
	"context"
	"errors"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store/internal/query"
)

// flavor holds the differences between the two databases.
type flavor struct {
	dialect goose.Dialect
	// primary confirms beats. It is nil on SQLite, which only one process uses.
	primary *primary
	// within limits the duration of a transaction; 0 means no limit.
	within time.Duration
	// migrations are options that add migrations for this database only.
	migrations []goose.ProviderOption
	// kind maps an error of the driver to an error of this package, or nil.
	kind func(error) error
	// copy writes the database into an empty file, calls add to add records to it, and
	// returns the fault found in the copy. It is nil for a database that has its own
	// tools.
	copy func(ctx context.Context, to string, add func(*query.Queries) error) (fault string, err error)
	// batch returns the context for a transaction of many short statements.
	batch func(context.Context) context.Context
	// recordUsage writes usage records that are valid, all or none.
	recordUsage func(context.Context, []account.Usage) error
	// prepare returns a pool or transaction that prepares each statement once.
	prepare func(query.DBTX) query.DBTX
	// release releases resources of Open other than the connections.
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
