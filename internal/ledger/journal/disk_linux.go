package journal

import (
	"errors"
	"os"
	"syscall"
)

// reserve allocates size bytes on the disk for the file. If the file system does not
// support that, reserve only sets the file's size.
func reserve(file *os.File, size int64) error {
	err := uninterrupted(func() error { return syscall.Fallocate(int(file.Fd()), 0, 0, size) })
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return file.Truncate(size)
	}
	return err
}

// flush writes the file's data to the disk. Its times may be written later.
func flush(file *os.File) error {
	return uninterrupted(func() error { return syscall.Fdatasync(int(file.Fd())) })
}

// uninterrupted repeats a system call that a signal interrupts.
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
