package hub

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/site"
)

// Backups is the schedule for backing up the hub's database.
type Backups struct {
	Every  time.Duration // 0: never
	Keep   int           // number of files to keep in Folder
	Folder string
}

const (
	// backupName is the format of the scheduled backups' file names, with the time in UTC.
	backupName = "kith-20060102-150405.db"
	// backupAtStart is how long after its start a hub makes a backup that is due.
	backupAtStart = time.Minute
	// backupRetry is the maximum delay before retrying a failed backup.
	backupRetry = time.Hour
)

// backups is the state of the schedule.
type backups struct {
	Backups
	next   atomic.Pointer[time.Time]      // nil: Run has not started
	failed atomic.Pointer[account.Backup] // the last attempt, if it failed; nil: it succeeded
}

// runBackups makes the scheduled backups until ctx ends.
func (h *Hub) runBackups(ctx context.Context) error {
	if h.backups.Every == 0 {
		return nil
	}
	next := time.Now().Add(backupAtStart)
	if made := h.backups.made(); len(made) > 0 && made[0].Add(h.backups.Every).After(next) {
		next = made[0].Add(h.backups.Every)
	}
	for {
		due := next
		h.backups.next.Store(&due) // health reads it while next changes
		select {
		case <-time.After(time.Until(next)):
		case <-ctx.Done():
			return ctx.Err()
		}
		began := time.Now()
		if next = began.Add(h.backups.Every); h.backUp(ctx, began) != nil {
			next = began.Add(min(h.backups.Every, backupRetry))
		}
	}
}

// backUp makes one scheduled backup and removes those in excess of Keep. It records and
// logs an error.
func (h *Hub) backUp(ctx context.Context, now time.Time) error {
	file := filepath.Join(h.backups.Folder, now.UTC().Format(backupName))
	err := os.MkdirAll(h.backups.Folder, 0o700)
	unrecorded := err != nil
	if err == nil {
		h.backups.removeIncomplete()
		_, err = api.OperatorBackUp.Do(ctx, h.api, fleet.Caller{Name: "the schedule"}, api.BackupFile{File: file})
		f, refused := errors.AsType[*fault.Fault](err)
		unrecorded = refused && f.Code == fault.InvalidRequest
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		h.backups.failed.Store(nil)
		h.backups.prune(func(old string, err error) {
			h.log.Warn("cannot remove an old backup", "file", old, "error", err)
		})
		return nil
	}
	failed := account.Backup{ID: account.NewID("bak_"), At: now.UTC(), File: file, Fault: err.Error()}
	h.backups.failed.Store(&failed)
	if unrecorded {
		if err := h.cfg.DB.RecordBackup(ctx, failed); err != nil {
			h.log.Error("cannot record that a backup failed", "error", err)
		}
	}
	h.log.Error("the schedule's backup failed; it is tried again within an hour", "file", file, "error", err)
	return err
}

// made returns the times of the scheduled backups in the folder, newest first.
func (b *backups) made() (times []time.Time) {
	entries, _ := os.ReadDir(b.Folder) // no folder: the first backup creates it or reports the error
	for _, e := range entries {
		about, err := e.Info()
		if at, notNamed := time.Parse(backupName, e.Name()); notNamed == nil && err == nil && about.Size() > 0 {
			times = append(times, at)
		}
	}
	slices.SortFunc(times, func(x, y time.Time) int { return y.Compare(x) })
	return times
}

// removeIncomplete removes partial files of backups that were interrupted by the hub's
// death.
func (b *backups) removeIncomplete() {
	parts, _ := filepath.Glob(filepath.Join(b.Folder, "kith-*.db.part")) // the pattern is valid
	for _, part := range parts {
		file := part[:len(part)-len(".part")]
		if _, err := time.Parse(backupName, filepath.Base(file)); err != nil {
			continue
		}
		_ = os.Remove(part) // the next backup has a different name
		if about, err := os.Stat(file); err == nil && about.Size() == 0 {
			_ = os.Remove(file)
		}
	}
}

// prune removes the oldest backups in excess of Keep, and reports each failure.
func (b *backups) prune(report func(file string, err error)) {
	made := b.made()
	for _, at := range made[min(b.Keep, len(made)):] {
		file := filepath.Join(b.Folder, at.Format(backupName))
		if err := os.Remove(file); err != nil {
			report(file, err)
		}
	}
}

// health returns the state of the schedule for the operator. scheduled is false if there
// is no schedule.
func (b *backups) health() (_ site.Part, scheduled bool) {
	next := b.next.Load()
	if b.Every == 0 || next == nil {
		return site.Part{}, false
	}
	now := time.Now().UTC()
	if failed := b.failed.Load(); failed != nil {
		return site.Part{Name: "Backups", Text: fmt.Sprintf("the last one failed, %s: %s; the next attempt: %s",
			api.Moment(failed.At, now), failed.Fault, api.Moment(*next, now))}, true
	}
	return site.Part{Name: "Backups", Good: true, Text: fmt.Sprintf("every %s to %s, the newest %d stay there; the next one: %s",
		length(b.Every), b.Folder, b.Keep, api.Moment(*next, now))}, true
}
