package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/kith/kith/internal/store/internal/query"
)

// Restored is the result of Restore.
type Restored struct {
	// Made is when the backup was made; zero if the file has no such record.
	Made time.Time
	// Members, Keys and Machines are their numbers in the restored database, without
	// revoked keys and machines.
	Members, Keys, Machines int64
	// StillRevoked is the number of keys, machines and members that stay revoked or
	// disabled because the replaced database had them so, and the backup did not.
	StillRevoked int64
	// Before is the file with the replaced database; empty if there was none.
	Before string
	// Lost is the error if the replaced database could not be read.
	Lost error
}

// Restore replaces the SQLite database at path with the backup in file. The database may
// be missing, and no process may have it open. Restore checks the backup, migrates it,
// moves the epoch forward, and ends all sessions and everything that can be used only
// once, because a link or a token that was used after the backup would be valid again. It
// keeps the replaced database next to the new one, and revokes what is revoked there.
// After an error the database is unchanged. Restore calls progress with the number of
// bytes copied so far, and the total.
func Restore(ctx context.Context, file, path string, now time.Time, progress func(done, all int64)) (done Restored, err error) {
	if path, err = filepath.Abs(path); err != nil {
		return done, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return done, fmt.Errorf("cannot make the database's folder: %w", err)
	}
	release, err := lockSQLite(ctx, path)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, release()) }()
	part := path + ".part"
	defer func() { _ = removeSQLite(part) }() // on success it was renamed
	if err := copyBackup(ctx, file, part, progress); err != nil {
		return done, err
	}
	revoked, lost := readRevoked(ctx, path)
	done.Lost = lost
	if err := done.finish(ctx, part, revoked); err != nil {
		return done, fmt.Errorf("cannot restore %s: %w", file, err)
	}
	for _, name := range []string{part, path + ".lock"} {
		if err := giveToOwner(name, filepath.Dir(path)); err != nil {
			return done, fmt.Errorf("cannot give the database to the owner of its folder: %w", err)
		}
	}
	before, err := unusedName(path + ".before-" + now.UTC().Format("20060102-150405"))
	if err != nil {
		return done, fmt.Errorf("cannot keep the database of before: %w", err)
	}
	done.Before, err = replaceSQLite(part, path, before)
	return done, err
}

// unusedName returns name, or name-2 and so on if a database has that name already. Two
// restores within a second would otherwise keep their databases under the same name.
func unusedName(name string) (string, error) {
	free := name
	for i := 2; ; i++ {
		taken := false
		for _, suffix := range []string{"", "-wal", "-shm"} {
			_, err := os.Lstat(free + suffix)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return "", err
			}
			taken = taken || err == nil
		}
		if !taken {
			return free, nil
		}
		free = name + "-" + strconv.Itoa(i)
	}
}

// copyBackup copies a backup to a new file and checks that it is an SQLite database
// with all of its changes.
func copyBackup(ctx context.Context, from, to string, progress func(done, all int64)) error {
	source, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("cannot read the backup: %w", err)
	}
	defer source.Close()
	about, err := source.Stat()
	if err != nil {
		return fmt.Errorf("cannot read the backup: %w", err)
	}
	head := make([]byte, 16)
	switch _, err := io.ReadFull(source, head); {
	case about.Size() == 0:
		return fmt.Errorf("cannot restore %s: it is empty, as of a backup that did not end; take another one", from)
	case bytes.HasPrefix(head, []byte("PGDMP")):
		return fmt.Errorf("cannot restore %s: it is a dump of PostgreSQL, which pg_restore brings back", from)
	case err != nil || string(head) != "SQLite format 3\x00":
		return fmt.Errorf("cannot restore %s: it is not a backup of a hub; take a file that `kith admin backup` made", from)
	}
	if log, err := os.Stat(from + "-wal"); err == nil && log.Size() > 0 {
		return fmt.Errorf("cannot restore %s: its newest changes are in %s-wal, as of a hub that runs or was killed; make a backup with `kith admin backup`", from, from)
	}
	if err := removeSQLite(to); err != nil {
		return fmt.Errorf("cannot remove what an earlier restore left: %w", err)
	}
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("cannot make the database's file: %w", err)
	}
	counted := &counter{ctx: ctx, all: about.Size(), report: progress}
	_, err = io.Copy(io.MultiWriter(target, counted), io.MultiReader(bytes.NewReader(head), source))
	if err = errors.Join(err, target.Close()); err != nil {
		return fmt.Errorf("cannot copy the backup: %w", err)
	}
	return nil
}

// counter is a writer that reports the number of bytes written, and fails after ctx ends.
type counter struct {
	ctx       context.Context
	done, all int64
	report    func(done, all int64)
}

func (c *counter) Write(b []byte) (int, error) {
	c.done += int64(len(b))
	c.report(c.done, c.all)
	return len(b), c.ctx.Err()
}

// revocations holds what is revoked or disabled in a database, and its epoch.
type revocations struct {
	epoch    int64
	keys     []query.RevokedKeysRow
	machines []query.RevokedMachinesRow
	members  []string
}

// readRevoked reads the revocations of the database that is to be replaced. There are
// none if the file does not exist.
func readRevoked(ctx context.Context, path string) (r revocations, err error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	db, err := connectSQLite(path, func() error { return nil })
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var fault string
	if fault, err = integrity(ctx, db.write); err == nil && fault != "" {
		err = errors.New(fault)
	}
	if err != nil {
		return r, err
	}
	q := query.New(db.read)
	var errs [4]error
	var position query.PositionRow
	position, errs[0] = q.Position(ctx)
	r.epoch = position.N
	r.keys, errs[1] = q.RevokedKeys(ctx)
	r.machines, errs[2] = q.RevokedMachines(ctx)
	r.members, errs[3] = q.DisabledMembers(ctx)
	return r, errors.Join(errs[:]...)
}

// finish checks the copy of a backup and prepares it for a hub.
func (done *Restored) finish(ctx context.Context, path string, old revocations) (err error) {
	db, err := connectSQLite(path, func() error { return nil })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }() // merges the -wal file, which leaves one file
	fault, err := integrity(ctx, db.write)
	if err == nil && fault != "" {
		err = errors.New(fault)
	}
	if err != nil {
		return fmt.Errorf("the file is damaged: %w; take another backup", err)
	}
	versions, err := db.applied(ctx)
	if err != nil {
		return err
	}
	if len(versions) == 0 {
		return errors.New("it is a database of another program; take a file that `kith admin backup` made")
	}
	if err := db.migrate(ctx); err != nil {
		return err
	}
	return db.inTransaction(ctx, func(q *query.Queries) error {
		if text, err := q.Meta(ctx, metaBackup); err == nil {
			if ms, err := strconv.ParseInt(text, 10, 64); err == nil {
				done.Made = timeOf(ms)
			}
		}
		if err := q.DropMeta(ctx, metaBackup); err != nil {
			return err
		}
		if _, err := endOnce(ctx, q, old.epoch); err != nil {
			return err
		}
		if done.StillRevoked, err = keepRevoked(ctx, q, old); err != nil {
			return err
		}
		n, err := q.CountRestored(ctx)
		done.Members, done.Keys, done.Machines = n.Members, n.Keys, n.Machines
		return err
	})
}

// AfterRestore does what Restore does for a database that was restored with PostgreSQL's
// own tools: it moves the epoch forward, and ends the sessions and everything that can be
// used only once. It returns the number of sessions. Hubs may be running.
func (db *DB) AfterRestore(ctx context.Context) (sessions int64, err error) {
	err = db.transact(ctx, func(q *query.Queries) (err error) {
		sessions, err = endOnce(ctx, q, 0)
		return err
	}, "end the sessions")
	return sessions, err
}

// endOnce moves the epoch beyond its current value and epoch, and ends sessions, sign-in
// links, login tokens and requests for approval.
func endOnce(ctx context.Context, q *query.Queries, epoch int64) (sessions int64, err error) {
	mine, err := q.MoveEpoch(ctx, 0)
	if err == nil && mine < epoch {
		_, err = q.MoveEpoch(ctx, epoch-mine)
	}
	if err == nil {
		err = jumpEpoch(ctx, q)
	}
	for _, drop := range []func(context.Context) error{q.DropAllLinks, q.DropLoginTokens, q.DropDeviceGrants, q.DropCeremonies} {
		if err == nil {
			err = drop(ctx)
		}
	}
	if err != nil {
		return 0, err
	}
	return q.EndSessions(ctx)
}

// keepRevoked revokes and disables what is revoked or disabled in another database, and
// returns how many records that changed.
func keepRevoked(ctx context.Context, q *query.Queries, old revocations) (changed int64, err error) {
	add := func(n int64, failed error) {
		changed, err = changed+n, errors.Join(err, failed)
	}
	for _, k := range old.keys {
		add(q.KeepKeyRevoked(ctx, k.ID, k.Revoked))
	}
	for _, m := range old.machines {
		add(q.KeepMachineRevoked(ctx, m.ID, m.Revoked))
	}
	for _, id := range old.members {
		add(q.KeepMemberDisabled(ctx, id))
	}
	return changed, err
}

// replaceSQLite renames the database at path to before, if there is one, and part to
// path. It returns the name of the replaced database.
func replaceSQLite(part, path, before string) (kept string, err error) {
	// For a valid database readRevoked has removed the -wal file; for a damaged one it is
	// kept. No -wal file may stay at path: SQLite would apply it to the new database.
	for _, suffix := range []string{"-wal", "-shm", ""} {
		err := errors.ErrUnsupported
		if suffix == "" { // so that there always is a database at path
			err = os.Link(path, before)
		}
		if err != nil {
			err = os.Rename(path+suffix, before+suffix)
		}
		switch {
		case err == nil:
			kept = before
		case !errors.Is(err, os.ErrNotExist):
			return "", fmt.Errorf("cannot keep the database of before: %w", err)
		}
	}
	if err := os.Rename(part, path); err != nil {
		return kept, fmt.Errorf("cannot put the restored database in its place: %w; run the restore again", err)
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return kept, err
	}
	_ = folder.Sync() // not all systems support it
	return kept, folder.Close()
}

// removeSQLite removes a database and the files that SQLite keeps next to it.
func removeSQLite(path string) error {
	var errs error
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = errors.Join(errs, err)
		}
	}
	return errs
}
