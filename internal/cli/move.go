package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

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
	o.say("%s\n", faint("Next: set url under [database] in hub.toml, leave the data folder in place, and start the hub. Start no hub on "+source.Path+" again."))
	return nil
}
