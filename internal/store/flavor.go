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
	// primary confirms beats, where several processes may use the database; else nil.
	primary *primary
	// within bounds a transaction; 0 does not.
	within time.Duration
	// migrations are options for migrations that only this database has.
	migrations []goose.ProviderOption
	// kind returns the error of this package for a driver's error, or nil.
	kind func(error) error
	// copy writes the database, and what add adds, into an empty file, and returns the
	// fault found in the copy; nil for a database that has its own tools.
	copy func(ctx context.Context, to string, add func(*query.Queries) error) (fault string, err error)
	// batch returns the context for a transaction of many short statements.
	batch func(context.Context) context.Context
	// recordUsage writes usage records that are valid, all or none.
	recordUsage func(context.Context, []account.Usage) error
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
