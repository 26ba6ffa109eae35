package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store/internal/query"
)

// Backup copies an SQLite database, consistently and while it is in use, to a new
// file that only this user can read, and checks the copy. It records the result,
// and removes a copy that is damaged. Open opens a copy like any other database.
//
// On PostgreSQL it returns ErrInvalid with the names of PostgreSQL's own tools.
func (db *DB) Backup(ctx context.Context, b account.Backup) (account.Backup, error) {
	if db.flavor.copy == nil {
		return b, fmt.Errorf("%w: this hub's data is in PostgreSQL: copy it with pg_dump --format=custom, and bring it back with pg_restore", ErrInvalid)
	}
	if !filepath.IsAbs(b.File) || checkText(b.File) != nil {
		return b, fmt.Errorf("%w: a backup's file is an absolute path", ErrInvalid)
	}
	file, err := os.OpenFile(b.File, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return b, createError(err, b.File)
	}
	if err = file.Close(); err == nil {
		b.Fault, err = db.flavor.copy(ctx, b.File)
	}
	if err == nil {
		b.Bytes, err = syncFile(b.File)
	}
	if err != nil || b.Fault != "" {
		_ = os.Remove(b.File) // the errors below matter more
	}
	if err != nil {
		return b, fmt.Errorf("cannot copy the database to %s: %w", b.File, err)
	}
	err = db.transact(ctx, func(q *query.Queries) error {
		return q.InsertBackup(ctx, query.InsertBackupParams{ID: b.ID, At: millis(b.At), File: b.File, Bytes: b.Bytes, Fault: b.Fault})
	})
	return b, db.wrap(err, "record the backup")
}

func createError(err error, file string) error {
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%w: %s is there already, and nothing is written over: name another file", ErrExists, file)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: the hub cannot make %s: its folder has to be there, and the hub's user may write in it", ErrInvalid, file)
	}
	return fmt.Errorf("cannot make the backup's file: %w", err)
}

// syncFile flushes the file to the disk and returns its size.
func syncFile(name string) (int64, error) {
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	about, err := file.Stat()
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return 0, err
	}
	return about.Size(), nil
}

// copySQLite copies the database at path into the empty file to, and returns the
// fault that SQLite finds in the copy; empty if there is none.
func copySQLite(ctx context.Context, path, to string) (fault string, err error) {
	from, err := sqlitePool(path, 1, "deferred", busyTimeout)
	if err != nil {
		return "", err
	}
	_, err = from.ExecContext(ctx, "VACUUM INTO $1", to)
	if err = errors.Join(err, from.Close()); err != nil {
		return "", err
	}
	made, err := sqlitePool(to, 1, "deferred", busyTimeout, "query_only(1)")
	if err != nil {
		return "", err
	}
	var found string
	err = made.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&found)
	if err = errors.Join(err, made.Close()); err != nil || found == "ok" {
		return "", err
	}
	return found, nil
}

// LastBackup returns the latest attempt to make a backup; ErrNotFound if there was
// none.
func (db *DB) LastBackup(ctx context.Context) (account.Backup, error) {
	row, err := db.query.LastBackup(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return account.Backup{}, ErrNotFound
	}
	return account.Backup{ID: row.ID, At: timeOf(row.At), File: row.File, Bytes: row.Bytes, Fault: row.Fault}, db.wrap(err, "read the last backup")
}
