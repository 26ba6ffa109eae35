package journal

import (
	"errors"
	"os"
	"syscall"
)

// reserve takes room for size bytes on the disk. On a file system that cannot,
// the file only gets its size.
func reserve(file *os.File, size int64) error {
	err := syscall.Fallocate(int(file.Fd()), 0, 0, size)
	for errors.Is(err, syscall.EINTR) {
		err = syscall.Fallocate(int(file.Fd()), 0, 0, size)
	}
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return file.Truncate(size)
	}
	return err
}

// flush brings a file's bytes to the disk; its times may come later.
func flush(file *os.File) error {
	err := syscall.Fdatasync(int(file.Fd()))
	for errors.Is(err, syscall.EINTR) {
		err = syscall.Fdatasync(int(file.Fd()))
	}
	return err
}
