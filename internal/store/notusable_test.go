package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// TestNotUsable checks that a database that cannot be opened is not reported as damaged
// if its disk is full or read-only.
func TestNotUsable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kith.db")
	if err := os.Mkdir(path+"-wal", 0o700); err != nil { // SQLite cannot write its log
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Config{Path: path})
	if err == nil || !strings.Contains(err.Error(), "the disk cannot be read or written; look into") || strings.Contains(err.Error(), "damaged") {
		t.Errorf("a log that cannot be written: %v", err)
	}

	pool, err := sqlitePool(filepath.Join(t.TempDir(), "full.db"), 1, "immediate", "max_page_count(1)")
	assert.OK(t, err)
	defer pool.Close()
	if _, err = pool.ExecContext(t.Context(), "CREATE TABLE t (x)"); err == nil {
		t.Fatal("there is no limit of pages")
	}
	if err = notUsable(path, err); !strings.Contains(err.Error(), "the disk is full; free some space on it") {
		t.Errorf("a full disk: %v", err)
	}

	if what := WhatToDo(fmt.Errorf("cannot create a link: %w", err)); what != "the disk is full; free some space on it" {
		t.Errorf("what to do on a full disk: %q", what)
	}
	assert.Equal(t, WhatToDo(errors.New("another")), "", "what to do about another error")
	if err = createFile("/proc/none/kith.db"); err == nil || !strings.Contains(err.Error(), "; see that this user may write in its folder") {
		t.Errorf("a folder that cannot be written: %v", err)
	}

	damaged := filepath.Join(t.TempDir(), "kith.db")
	assert.OK(t, os.WriteFile(damaged, []byte(strings.Repeat("not a database ", 1000)), 0o600))
	assert.Fails(t, assert.Err(Open(t.Context(), Config{Path: damaged})), "damaged or not a database", "no database")
}
