//go:build linux || darwin

package cli

import "syscall"

// freeSpace is how many bytes this user may still write under the folder.
func freeSpace(folder string) (uint64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(folder, &s); err != nil {
		return 0, err
	}
	return s.Bavail * uint64(s.Bsize), nil
}
