package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/store"
)

// restoredHub is the output of `kith admin restore --json`.
type restoredHub struct {
	File     string     `json:"file,omitempty"`
	Made     *time.Time `json:"made,omitempty"` // nil: unknown
	Members  int64      `json:"members"`
	Keys     int64      `json:"keys"`
	Machines int64      `json:"machines"`
	// StillRevoked is the number of keys, machines and members that are valid in the backup but
	// stay revoked.
	StillRevoked int64  `json:"kept_revoked"`
	Before       string `json:"before,omitempty"` // the replaced database
	// Lost is why the replaced database could not be read. In that case everything revoked
	// since the backup is valid again.
	Lost string `json:"lost,omitempty"`
}

func (o *operator) restore() *cobra.Command {
	return &cobra.Command{
		Use: "restore [FILE]", Short: "Replace a stopped hub's database with a backup", Args: cobra.MaximumNArgs(1),
		Long: "Check a backup of `kith admin backup` and put it in the place of a stopped hub's database, which is kept\n" +
			"beside it. What was made or changed since the backup is not in it; what the replaced database knew as revoked\n" +
			"stays revoked. Every session ends, and sign-in links and machine tokens that were not used yet.\n\n" +
			"On PostgreSQL run pg_restore, then this command without FILE, which does the rest.",
		Example: "  systemctl stop kith-hub\n  kith admin restore --data /var/lib/kith /backups/kith-2026-11-22.db\n  systemctl start kith-hub",
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := o.database()
			switch {
			case err != nil:
				return err
			case at.URL != "" && len(args) > 0:
				return wrongUse("cannot restore %s: this hub's data is in PostgreSQL; stop all hubs, bring it back with pg_restore, then run `kith admin restore` without a file", args[0])
			case at.URL != "":
				return o.finishRestore(cmd.Context(), at)
			case len(args) == 0:
				return wrongUse("cannot restore without a file; name the backup: `kith admin restore FILE`")
			}
			return o.restoreFile(cmd.Context(), args[0], at.Path)
		},
	}
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
	out := restoredHub{File: file, Members: done.Members, Keys: done.Keys, Machines: done.Machines, StillRevoked: done.StillRevoked, Before: done.Before}
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
		if done.StillRevoked > 0 {
			o.say("%d of the keys, machines and members that it had as revoked or disabled were valid in the backup, and stay revoked\n", done.StillRevoked)
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
