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
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/store"
)

// database returns the location of the hub's database: from the configuration or, with
// --data, in that folder.
func (o *operator) database() (store.Config, error) {
	config, err := loadHubFile(o.home, pathHere(o.file))
	if err != nil && (!onlySecrets(err) || hasProblem(err, "database.url")) {
		return store.Config{}, err
	}
	if o.data != "" {
		config.Hub.Data = pathHere(o.data)
	}
	return config.database(), nil
}

// database returns the location of a hub's database.
func (c *hubFile) database() store.Config {
	if c.Database.URL.text != "" {
		return store.Config{URL: c.Database.URL.text}
	}
	return store.Config{Path: filepath.Join(c.Hub.Data, "kith.db")}
}

func (o *operator) migrate() *cobra.Command {
	var status bool
	cmd := command("kith admin migrate", func(ctx context.Context, _ []string) error {
		at, err := o.database()
		if err == nil && !status {
			err = migrateNow(ctx, at)
		}
		if err != nil {
			return err
		}
		schema, err := store.ReadSchema(ctx, at)
		if err != nil {
			return err
		}
		return o.showSchema(schema)
	})
	cmd.Flags().BoolVar(&status, "status", false, "list the steps and change nothing")
	return cmd
}

// migrateNow runs the missing migrations.
func migrateNow(ctx context.Context, at store.Config) error {
	if at.Path != "" {
		if err := store.FileExists(at.Path); err != nil {
			return err
		}
	}
	db, err := store.Open(ctx, at)
	if err != nil {
		return err
	}
	return db.Close()
}

// migrationStep is a migration in the output.
type migrationStep struct {
	Version int64      `json:"version"`
	Name    string     `json:"name,omitempty"`    // empty: made by a newer kith
	Applied *time.Time `json:"applied,omitempty"` // nil: pending
}

func (o *operator) showSchema(s store.Schema) error {
	steps := make([]migrationStep, len(s.Migrations))
	rows := make([][]string, len(steps))
	pending := 0
	for i, m := range s.Migrations {
		steps[i] = migrationStep{Version: m.Version, Name: m.Name}
		applied, name := "pending", m.Name
		if m.Applied.IsZero() {
			pending++
		} else {
			steps[i].Applied, applied = &m.Applied, moment(m.Applied)
		}
		if name == "" {
			name = "(of a newer kith)"
		}
		rows[i] = []string{strconv.FormatInt(m.Version, 10), name, applied}
	}
	if o.json {
		return o.printJSON(struct {
			Version      int64           `json:"version"`
			Known        int64           `json:"known"`
			ReadableFrom int64           `json:"readable_from"`
			Pending      int             `json:"pending"`
			Migrations   []migrationStep `json:"migrations"`
		}{s.Version, s.Known, s.ReadableFrom, pending, steps})
	}
	o.table("VERSION STEP APPLIED", rows)
	switch {
	case s.Version == 0:
		o.say("the database has no tables yet; `kith hub` makes them at its start\n")
	case s.Version > s.Known && s.ReadableFrom > s.Known:
		o.say("the tables have version %d, this kith knows %d, and a kith has to know %d to run on them: update kith\n", s.Version, s.Known, s.ReadableFrom)
	default:
		o.say("the tables have version %d; a kith that knows version %d or a later one runs on them, and this one knows %d\n", s.Version, s.ReadableFrom, s.Known)
	}
	return nil
}

func (o *operator) copy() *cobra.Command {
	var from string
	var to databaseURL
	cmd := command("kith admin copy", func(ctx context.Context, _ []string) error {
		if err := to.resolve(""); err != nil {
			return wrongUse("cannot use --to: it %w", err)
		}
		source := store.Config{Path: from}
		if from == "" {
			var err error
			if source, err = o.database(); err != nil {
				return err
			}
		}
		return o.copyDatabase(ctx, source, store.Config{URL: to.text})
	})
	cmd.Flags().StringVar(&from, "from", "", "the SQLite file (default: kith.db in the hub's data folder)")
	cmd.Flags().StringVar(&to.text, "to", "", "the URL of the empty database, or env:NAME or file:PATH to read it from")
	return requiring(cmd, "to")
}

// copiedTable is a copied table in the output.
type copiedTable struct {
	Table string `json:"table"`
	Rows  int64  `json:"rows"`
	Sum   string `json:"sum"` // checksum of the contents, equal on both sides
}

func (o *operator) copyDatabase(ctx context.Context, source, target store.Config) error {
	if source.Path == "" {
		return errors.New("cannot copy the database: the configuration names PostgreSQL already; name the SQLite file with --from")
	}
	if err := store.FileExists(source.Path); err != nil {
		return err
	}
	began := time.Now()
	from, err := store.Open(ctx, source)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := store.Open(ctx, target)
	if err != nil {
		return err
	}
	defer to.Close()
	copied, err := store.Copy(ctx, from, to, func(t store.TableCopy) {
		o.progress(fmt.Sprintf("%s: %d rows", t.Table, t.Rows))
	})
	o.progress("")
	if err != nil {
		return err
	}
	took := time.Since(began).Round(time.Millisecond)
	tables := make([]copiedTable, len(copied))
	rows := make([][]string, len(copied))
	var all int64
	for i, t := range copied {
		tables[i] = copiedTable{t.Table, t.Rows, fmt.Sprintf("%016x", t.Sum)}
		rows[i] = []string{t.Table, strconv.FormatInt(t.Rows, 10), "same"}
		all += t.Rows
	}
	if o.json {
		return o.printJSON(struct {
			Tables  []copiedTable `json:"tables"`
			Rows    int64         `json:"rows"`
			Seconds float64       `json:"seconds"`
		}{tables, all, took.Seconds()})
	}
	o.table("TABLE ROWS CONTENTS", rows)
	o.say("%d rows of %d tables copied and compared in %s\n", all, len(tables), took)
	o.note("Next: set url under [database] in hub.toml, leave the data folder in place, and start the hub. Start no hub on " + source.Path + " again.")
	return nil
}

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
		return ask(ctx, o.socket("copy the database"), api.OperatorBackUp.With(api.BackupFile{File: file}), func(made api.Backup) {
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
	// StillRevoked is the number of keys, machines and members that are valid in the backup but
	// stay revoked.
	StillRevoked int64  `json:"kept_revoked"`
	Before       string `json:"before,omitempty"` // the replaced database
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
