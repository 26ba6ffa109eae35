//go:build !linux

package journal

import "os"

// reserve sets the file's size. The disk space is allocated as it is written, so on these
// systems a full disk stops the journal.
func reserve(file *os.File, size int64) error { return file.Truncate(size) }

// flush writes the file to the disk.
func flush(file *os.File) error { return file.Sync() }
