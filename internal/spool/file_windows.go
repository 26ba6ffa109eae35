package spool

import (
	"crypto/rand"
	"os"
	"path/filepath"
)

// deleteOnClose is FILE_FLAG_DELETE_ON_CLOSE: Windows takes the file away with
// its last handle, also when the process dies.
const deleteOnClose = 0x04000000

// create makes an empty file that is gone with the process or when it is closed.
func create(folder string) (*os.File, error) {
	name := filepath.Join(folder, prefix+rand.Text())
	return os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL|deleteOnClose, 0o600)
}
