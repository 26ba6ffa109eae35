//go:build !linux

package journal

import "os"

// reserve gives the file its size. Room for it is taken as it is written: here
// a disk that others filled does stop the journal.
func reserve(file *os.File, size int64) error { return file.Truncate(size) }

// flush brings a file's bytes to the disk.
func flush(file *os.File) error { return file.Sync() }
