//go:build unix

package store

import (
	"os"
	"syscall"
)

// giveToOwner gives a file the owner of its folder if the superuser runs this, because
// the hub runs as that owner.
func giveToOwner(file, folder string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	about, err := os.Stat(folder)
	if err != nil {
		return err
	}
	owner := about.Sys().(*syscall.Stat_t)
	return os.Chown(file, int(owner.Uid), int(owner.Gid))
}
