//go:build unix

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// WhoseFolder explains a permission error for path: which user owns the nearest folder
// that this user cannot access, and what to do. It returns "" if there is no such folder.
func WhoseFolder(path string) string {
	for folder := filepath.Dir(path); ; folder = filepath.Dir(folder) {
		info, err := os.Stat(folder)
		if err == nil {
			owner, ok := info.Sys().(*syscall.Stat_t)
			if me := os.Geteuid(); ok && int(owner.Uid) != me {
				return fmt.Sprintf(": %s belongs to user %d, and kith runs as user %d; run it as that user, or `chown -R %d %s`", folder, owner.Uid, me, me, folder)
			}
			return ""
		}
		if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist) || folder == filepath.Dir(folder) {
			return ""
		}
	}
}
