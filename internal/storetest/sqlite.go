package storetest

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/kith/kith/internal/store"
)

// SQLite returns the path of a new SQLite database in its own folder. The database has
// its tables and no records; it is a copy, because creating the tables takes longer than
// most tests. If possible the folder is in memory, so that tests do not wait for the
// disk.
func SQLite(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "kith-test-")
	if err != nil {
		dir = t.TempDir()
	} else {
		t.Cleanup(func() { os.RemoveAll(dir) })
	}
	path := filepath.Join(dir, "kith.db")
	empty, err := emptySQLite()
	if err == nil {
		err = os.WriteFile(path, empty, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// emptySQLite returns the file of a database without records.
var emptySQLite = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "kith-test-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "kith.db")
	db, err := store.Open(context.Background(), store.Config{Path: path})
	if err == nil {
		err = db.Close()
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})
