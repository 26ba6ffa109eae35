package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store/internal/query"
)

// metaBackup is the name of a row in the table meta that only backups have: the time of
// the backup.
const metaBackup = "backup"

// Backup copies an SQLite database to a new file that only this user can read, and checks
// the copy. The copy is consistent, even if the database is in use. The file gets its
// name when the copy is complete. Backup records the result, and removes a damaged copy.
// Restore restores a copy, and Open opens one like any other database. The copy also has
// records of the calls that are running, if the database does not have their results yet.
//
// On PostgreSQL it returns ErrInvalid with the names of PostgreSQL's own tools.
func (db *DB) Backup(ctx context.Context, b account.Backup, running []account.Usage) (account.Backup, error) {
	if db.flavor.copy == nil {
		return b, fmt.Errorf("%w: this hub's data is in PostgreSQL: copy it with pg_dump --format=custom, and bring it back with pg_restore", ErrInvalid)
	}
	if !filepath.IsAbs(b.File) || checkText(b.File) != nil {
		return b, fmt.Errorf("%w: a backup's file is an absolute path", ErrInvalid)
	}
	part := b.File + ".part"
	for _, name := range []string{b.File, part} {
		file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err == nil {
			err = file.Close()
		}
		if err != nil {
			if name == part {
				_ = os.Remove(b.File) // empty
			}
			return b, createError(err, name)
		}
	}
	err := db.backUp(ctx, part, &b, running)
	if err != nil || b.Fault != "" {
		_, _ = os.Remove(b.File), os.Remove(part) // the errors below matter more
	}
	if err != nil && ctx.Err() == nil {
		b.Fault = err.Error()
	}
	if err != nil {
		err = fmt.Errorf("cannot copy the database to %s: %w", b.File, err)
	}
	if err == nil || b.Fault != "" {
		err = errors.Join(err, db.RecordBackup(ctx, b))
	}
	return b, err
}

// MakesBackups reports whether Backup is supported: only on SQLite.
func (db *DB) MakesBackups() bool { return db.flavor.copy != nil }

// backUp copies the database to part and renames that to the backup's file. It sets the
// backup's size, or its fault if the copy is damaged.
func (db *DB) backUp(ctx context.Context, part string, b *account.Backup, running []account.Usage) (err error) {
	add := func(q *query.Queries) error {
		if err := q.DropMeta(ctx, metaBackup); err != nil { // left by a backup that became this database
			return err
		}
		if err := q.InsertMeta(ctx, metaBackup, strconv.FormatInt(millis(b.At), 10)); err != nil {
			return err
		}
		for _, u := range running { // its trace may have been saved after running was read
			if err := q.DropStoryOfOpenCall(ctx, u.CallID); err != nil {
				return err
			}
		}
		return addUsage(db.flavor.batch(ctx), q, running)
	}
	if b.Fault, err = db.flavor.copy(ctx, part, add); err != nil || b.Fault != "" {
		return err
	}
	if b.Bytes, err = syncFile(part); err != nil {
		return err
	}
	return os.Rename(part, b.File)
}

// RecordBackup records an attempt to make a backup. Backup does that itself, except
// when it returns ErrInvalid or ErrExists.
func (db *DB) RecordBackup(ctx context.Context, b account.Backup) error {
	return db.transact(ctx, func(q *query.Queries) error {
		return q.InsertBackup(ctx, query.InsertBackupParams{ID: b.ID, At: millis(b.At), File: cmp.Or(b.As, b.File), Bytes: b.Bytes, Fault: validText(b.Fault)})
	}, "record the backup")
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

// copySQLite copies the database at path into the empty file to, calls add to add records
// to it, and returns the first fault that SQLite finds in the copy, or "".
func copySQLite(ctx context.Context, path, to string, add func(*query.Queries) error) (fault string, err error) {
	from, err := sqlitePool(path, 1, "deferred", busyTimeout)
	if err != nil {
		return "", err
	}
	_, err = from.ExecContext(ctx, "VACUUM INTO $1", to)
	if err = errors.Join(err, from.Close()); err != nil {
		return "", err
	}
	made, err := sqlitePool(to, 1, "deferred", busyTimeout)
	if err != nil {
		return "", err
	}
	tx, err := made.BeginTx(ctx, nil)
	if err == nil {
		if err = add(query.New(tx)); err == nil {
			err = tx.Commit()
		} else {
			err = errors.Join(err, tx.Rollback())
		}
	}
	if err == nil {
		fault, err = integrity(ctx, made)
	}
	return fault, errors.Join(err, made.Close())
}

// integrity reads all of an SQLite database and returns the first fault in it, or "".
func integrity(ctx context.Context, db *sql.DB) (fault string, err error) {
	err = db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&fault)
	if fault == "ok" {
		fault = ""
	}
	return fault, err
}

// LastBackup returns the latest attempt to make a backup; ErrNotFound if there was
// none.
func (db *DB) LastBackup(ctx context.Context) (account.Backup, error) {
	return db.backup(db.query.LastBackup(ctx))
}

// LastGoodBackup returns the latest backup that is valid; ErrNotFound if there is none.
func (db *DB) LastGoodBackup(ctx context.Context) (account.Backup, error) {
	return db.backup(db.query.LastGoodBackup(ctx))
}

func (db *DB) backup(row query.Backup, err error) (account.Backup, error) {
	if errors.Is(err, sql.ErrNoRows) {
		return account.Backup{}, ErrNotFound
	}
	return account.Backup{ID: row.ID, At: timeOf(row.At), File: row.File, Bytes: row.Bytes, Fault: row.Fault}, db.wrap(err, "read the last backup")
}
