package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/store"
)

func (o *operator) backup() *cobra.Command {
	return command("kith admin backup", func(ctx context.Context, args []string) error {
		if args[0] == "-" {
			return o.backUpToOutput(ctx)
		}
		file, err := filepath.Abs(args[0])
		if err != nil {
			return fmt.Errorf("cannot name the backup's file: %w", err)
		}
		defer o.progress("")
		o.progress("copying the database")
		return ask(ctx, o.socket(), "copy the database", api.OperatorBackUp.With(api.BackupFile{File: file}), func(made api.Backup) {
			o.progress("")
			o.say("%s: %sB, all read and sound\n", strong(made.File), short(made.Bytes))
		})
	})
}

// backUpToOutput makes the hub copy its database to a file in its data folder, writes
// that file to standard output and removes it.
func (o *operator) backUpToOutput(ctx context.Context) error {
	switch {
	case o.json:
		return wrongUse("cannot print JSON: standard output is the backup; name a file, or omit --json")
	case terminal(o.out):
		return wrongUse("cannot write a backup to a terminal; name a file, or lead the output into one: `kith admin backup - > FILE`")
	}
	folder, err := o.folder()
	if err != nil {
		return err
	}
	hub, err := o.hub()
	if err != nil {
		return err
	}
	file := filepath.Join(folder, "backup-"+rand.Text()+".db")
	defer func() { _ = os.Remove(file) }()
	o.progress("copying the database")
	defer o.progress("")
	in := api.BackupFile{File: file, As: "standard output of kith admin backup"}
	if _, _, err := fetch(ctx, hub, "copy the database", api.OperatorBackUp.With(in)); err != nil {
		return err
	}
	made, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot read the copy that the hub made at %s: the hub has another file system; name a file there", file)
	}
	if err != nil {
		return fmt.Errorf("cannot read the copy that the hub made: %w; run this as the hub's user", err)
	}
	defer made.Close()
	o.progress("writing the copy")
	if _, err := io.Copy(o.out.raw, made); err != nil {
		return fmt.Errorf("cannot write the backup: %w; what was written is not complete", err)
	}
	return nil
}

// restoredHub is the output of `kith admin restore --json`.
type restoredHub struct {
	File     string     `json:"file,omitempty"`
	Made     *time.Time `json:"made,omitempty"` // nil: unknown
	Members  int64      `json:"members"`
	Keys     int64      `json:"keys"`
	Machines int64      `json:"machines"`
	// Kept is the number of keys, machines and members that are valid in the backup but
	// stay revoked.
	Kept   int64  `json:"kept_revoked"`
	Before string `json:"before,omitempty"` // the replaced database
	// Lost is why the replaced database could not be read. In that case everything revoked
	// since the backup is valid again.
	Lost string `json:"lost,omitempty"`
}

func (o *operator) restore() *cobra.Command {
	return command("kith admin restore", func(ctx context.Context, args []string) error {
		at, err := o.database()
		switch {
		case err != nil:
			return err
		case at.URL != "" && len(args) > 0:
			return wrongUse("cannot restore %s: this hub's data is in PostgreSQL; stop all hubs, bring it back with pg_restore, then run `kith admin restore` without a file", args[0])
		case at.URL != "":
			return o.finishRestore(ctx, at)
		case len(args) == 0:
			return wrongUse("cannot restore without a file; name the backup: `kith admin restore FILE`")
		}
		return o.restoreFile(ctx, args[0], at.Path)
	})
}

func (o *operator) restoreFile(ctx context.Context, file, path string) error {
	defer o.progress("")
	shown := int64(-1)
	done, err := store.Restore(ctx, file, path, time.Now(), func(copied, all int64) {
		if percent := 100 * copied / max(all, 1); percent != shown {
			shown = percent
			o.progress(fmt.Sprintf("copying the backup: %d %%", percent))
		}
	})
	if err != nil {
		return err
	}
	o.progress("")
	out := restoredHub{File: file, Members: done.Members, Keys: done.Keys, Machines: done.Machines, Kept: done.Kept, Before: done.Before}
	if done.Lost != nil {
		out.Lost = oneLine(done.Lost.Error())
	}
	when := "that does not say when it was made"
	if !done.Made.IsZero() {
		out.Made, when = &done.Made, "made at "+moment(done.Made)
	}
	return o.print(out, func() {
		o.say("restored %s from a backup %s: %s, %s, %s\n", strong(path), when, count(int(done.Members), "member"), count(int(done.Keys), "key"), count(int(done.Machines), "machine"))
		if done.Before != "" {
			o.say("the database of before is %s; remove it once all is well\n", done.Before)
		}
		if done.Kept > 0 {
			o.say("%d of the keys, machines and members that it had as revoked or disabled were valid in the backup, and stay revoked\n", done.Kept)
		}
		if out.Lost != "" {
			o.say("it cannot be read (%s): what was revoked since the backup is valid again\n", out.Lost)
		}
		o.say("revoke once more what was revoked since the backup and is listed as valid; end shares that ended since\n")
		o.say("everyone signs in again. Start the hub: `kith hub`\n")
	})
}

// finishRestore completes a restore on PostgreSQL after pg_restore.
func (o *operator) finishRestore(ctx context.Context, at store.Config) error {
	db, err := store.Open(ctx, at)
	if err != nil {
		return err
	}
	ended, err := db.AfterRestore(ctx)
	if err = errors.Join(err, db.Close()); err != nil {
		return err
	}
	return o.print(struct {
		Sessions int64 `json:"sessions_ended"`
	}{ended}, func() {
		o.say("%s ended; sign-in links and machine tokens too. Repeat revocations made since the backup, then start the hubs\n", count(int(ended), "session"))
	})
}
