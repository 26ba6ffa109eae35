package cli

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/api"
)

func (o *operator) backup() *cobra.Command {
	return &cobra.Command{
		Use: "backup FILE", Short: "Copy the hub's database to a new file, while the hub runs", Args: cobra.ExactArgs(1),
		Long: "Copy the hub's database, as it is at one moment, to a new file on the hub's computer, and read all of\n" +
			"copy to see that it is sound. To bring it back: stop the hub, put the file into an empty data folder as\n" +
			"kith.db, and start the hub on that folder.",
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := filepath.Abs(args[0])
			if err != nil {
				return fmt.Errorf("cannot name the backup's file: %w", err)
			}
			return ask(cmd.Context(), o.command(), "copy the database", api.OperatorBackUp.With(api.BackupFile{File: file}), func(made api.Backup) {
				o.say("%s: %d bytes, all read and sound\n", strong(made.File), made.Bytes)
			})
		},
	}
}
