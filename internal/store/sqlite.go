package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/kith/kith/internal/store/internal/query"
)

const (
	// readers is how many connections read beside the one that writes.
	readers = 4
	// patience is how long a statement waits for another connection's lock.
	patience = "busy_timeout(5000)"
)

func openSQLite(ctx context.Context, config Config) (*DB, error) {
	path, err := filepath.Abs(config.Path)
	if err != nil {
		return nil, fmt.Errorf("cannot open the database %s: %w", config.Path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the database's folder: %w", err)
	}
	release, err := holdSQLite(ctx, path)
	if err != nil {
		return nil, err
	}
	if err := create(path); err != nil {
		return nil, errors.Join(err, release())
	}
	db, err := connectSQLite(path, release)
	if err != nil {
		return nil, errors.Join(err, release())
	}
	if err := db.checkSQLite(ctx, path); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// connectSQLite has one connection that writes, since SQLite lets one write at a
// time anyway, and readers that never wait for it.
func connectSQLite(path string, release func() error) (*DB, error) {
	// FULL: what was answered is on the disk, a power cut included.
	write, err := sqlitePool(path, 1, "immediate", patience, "synchronous(FULL)", "journal_mode(WAL)")
	if err != nil {
		return nil, err
	}
	read, err := sqlitePool(path, readers, "deferred", patience, "query_only(1)")
	if err != nil {
		return nil, errors.Join(err, write.Close())
	}
	return &DB{
		write: write, read: read,
		flavor: flavor{
			dialect: goose.DialectSQLite3, kind: sqliteKind, release: release,
			prepare: func(on query.DBTX) query.DBTX { return &prepared{DBTX: on} },
			// The driver starts a goroutine for each statement that can be interrupted.
			batch: context.WithoutCancel,
			copy:  func(ctx context.Context, to string) (string, error) { return copySQLite(ctx, path, to) },
		},
	}, nil
}

// create makes a file that only this user reads. One that is there is left
// alone, not even opened: closing it again would drop this process's locks.
func create(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot make the database's file: %w", err)
	}
	return file.Close()
}

// sqlitePool is a pool of so many connections whose transactions begin with the
// lock named. The writer's take theirs at once: one that began by reading could
// find later that it may not write after all.
func sqlitePool(path string, conns int, lock string, pragmas ...string) (*sql.DB, error) {
	name := filepath.ToSlash(path)
	if !strings.HasPrefix(name, "/") {
		name = "/" + name // C:/… on Windows
	}
	options := url.Values{
		"_txlock": {lock},
		"_pragma": append(pragmas, "foreign_keys(1)"),
	}
	dsn := url.URL{Scheme: "file", Path: name, RawQuery: options.Encode()}
	pool, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, fmt.Errorf("cannot open the database %s: %w", path, err)
	}
	pool.SetMaxOpenConns(conns)
	pool.SetMaxIdleConns(conns)
	return pool, nil
}

// checkSQLite refuses a damaged file before a table of it is touched.
func (db *DB) checkSQLite(ctx context.Context, path string) error {
	var found string
	err := db.write.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&found)
	if err == nil && found != "ok" {
		err = errors.New(found)
	}
	if err != nil {
		return fmt.Errorf("cannot use the database %s: it is damaged or not a database; put a backup in its place: %w", path, err)
	}
	return nil
}

// holdSQLite says that this process has the database: an exclusive transaction,
// which ends with the process however that ends, on an empty database beside it.
// Two hubs on one file would each believe that no other one accepts tunnels.
func holdSQLite(ctx context.Context, path string) (release func() error, err error) {
	if err := create(path + ".lock"); err != nil {
		return nil, err
	}
	pool, err := sqlitePool(path+".lock", 1, "exclusive", "busy_timeout(0)")
	if err != nil {
		return nil, err
	}
	tx, err := pool.BeginTx(context.WithoutCancel(ctx), nil)
	if err == nil {
		return func() error { return errors.Join(tx.Rollback(), pool.Close()) }, nil
	}
	var lite *sqlite.Error
	if errors.As(err, &lite) && lite.Code()&0xff == sqlite3.SQLITE_BUSY {
		err = errors.New("another kith process has it open; stop that one, or give this one its own data folder")
	}
	return nil, errors.Join(fmt.Errorf("cannot open the database %s: %w", path, err), pool.Close())
}
