package spool

import (
	"crypto/rand"
	"os"
	"path/filepath"
)

// deleteOnClose is FILE_FLAG_DELETE_ON_CLOSE: Windows deletes the file with its last
// handle, even if the process dies.
const deleteOnClose = 0x04000000

// create creates an empty file that is deleted when it is closed or the process ends.
func create(folder string) (*os.File, error) {
	name := filepath.Join(folder, prefix+rand.Text())
	return os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL|deleteOnClose, 0o600)
}
