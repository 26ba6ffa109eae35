package store

import (
	"cmp"
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
	// readers is the number of read-only connections.
	readers = 4
	// busyTimeout is how long a statement waits for another connection's lock.
	busyTimeout = "busy_timeout(5000)"
)

func openSQLite(ctx context.Context, config Config) (*DB, error) {
	path, err := filepath.Abs(config.Path)
	if err != nil {
		return nil, fmt.Errorf("cannot open the database %s: %w", config.Path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the database's folder: %w", err)
	}
	release, err := lockSQLite(ctx, path)
	if err != nil {
		return nil, err
	}
	if err := createFile(path); err != nil {
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

// connectSQLite opens one connection for writes, because SQLite runs one write at a time,
// and others for reads, which do not wait for it.
func connectSQLite(path string, release func() error) (*DB, error) {
	// FULL: a committed write survives a power cut.
	write, err := sqlitePool(path, 1, "immediate", busyTimeout, "synchronous(FULL)", "journal_mode(WAL)")
	if err != nil {
		return nil, err
	}
	read, err := sqlitePool(path, readers, "deferred", busyTimeout, "query_only(1)")
	if err != nil {
		return nil, errors.Join(err, write.Close())
	}
	db := &DB{
		write: write, read: read,
		flavor: flavor{
			dialect: goose.DialectSQLite3, kind: sqliteKind, release: release,
			prepare: func(on query.DBTX) query.DBTX { return &prepared{DBTX: on} },
			// The driver starts a goroutine for each statement that can be interrupted.
			batch: context.WithoutCancel,
			copy: func(ctx context.Context, to string, add func(*query.Queries) error) (string, error) {
				return copySQLite(ctx, path, to, add)
			},
		},
	}
	db.flavor.recordUsage = db.addUsage
	return db, nil
}

// createFile creates a file that only this user can read. It does not open an existing
// file, because closing it would release this process's locks.
func createFile(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot make the database's file: %w; see that this user may write in its folder, and that the disk is neither full nor read-only", err)
	}
	return file.Close()
}

// sqlitePool opens a pool whose transactions begin with the given lock. A transaction
// that writes must take its lock at the start: later, after a read, it could be refused.
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

// checkSQLite returns an error if the file is damaged.
func (db *DB) checkSQLite(ctx context.Context, path string) error {
	var found string
	err := db.write.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&found)
	if err == nil && found != "ok" {
		err = errors.New(strings.Join(strings.Fields(found), " ")) // on one line
	}
	if err == nil {
		err = db.checkWrites(ctx)
	}
	if err != nil {
		return notUsable(path, err)
	}
	return nil
}

// checkWrites returns an error if the database's file is read-only for SQLite, which
// reports that only at the first change. The change is rolled back.
func (db *DB) checkWrites(ctx context.Context) error {
	tx, err := db.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "CREATE TABLE a_change (x)")
	return errors.Join(err, tx.Rollback())
}

// notUsable returns the error for a database that SQLite cannot open or read, with its
// cause and what to do.
func notUsable(path string, err error) error {
	cause := cmp.Or(WhatToDo(err), "it is damaged or not a database; bring back a backup with `kith admin restore FILE`")
	if lite, ok := errors.AsType[*sqlite.Error](err); ok && lite.Code()&0xff == sqlite3.SQLITE_BUSY {
		cause = "another kith process has it open; stop that one, or give this one its own data folder"
	}
	return fmt.Errorf("cannot use the database %s: %s: %w", path, cause, err)
}

// WhatToDo returns what is wrong with the disk of an SQLite database and what to do, if
// that caused err, else "".
func WhatToDo(err error) string {
	if lite, ok := errors.AsType[*sqlite.Error](err); ok {
		switch lite.Code() & 0xff {
		case sqlite3.SQLITE_FULL:
			return "the disk is full; free some space on it"
		case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
			return "it cannot be written; check that the disk is not read-only, and that the database's folder and files belong to this user"
		case sqlite3.SQLITE_IOERR:
			return "the disk cannot be read or written; look into the system's log, and see whether it is full"
		}
	}
	return ""
}

// lockSQLite locks the database for this process. It opens an exclusive transaction on an
// empty database next to it, and the kernel releases that lock when the process ends. Two
// hubs with the same file would each assume that they have all tunnels.
func lockSQLite(ctx context.Context, path string) (release func() error, err error) {
	if err := createFile(path + ".lock"); err != nil {
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
	return nil, errors.Join(notUsable(path, err), pool.Close())
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
