//go:build unix

package store

import (
	"os"
	"syscall"
)

// giveToOwner makes the owner of a folder the owner of a file in it, where the
// superuser runs this: the hub runs as that owner.
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
