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

	"github.com/kith/kith/internal/api"
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
