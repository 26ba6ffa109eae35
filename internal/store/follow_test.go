package store_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

// Follow calls changed for each commit that moves the epoch: of this process on both
// databases, and of another process on PostgreSQL.
func TestFollow(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]store.Config{
		"SQLite": {Path: filepath.Join(t.TempDir(), "kith.db")}, "PostgreSQL": {URL: storetest.Postgres(t)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t, config)
			writers := []*store.DB{db}
			if config.URL != "" {
				writers = append(writers, open(t, config))
			}
			changed := follow(t, db)
			await(t, changed) // it has begun to listen
			for i, writer := range writers {
				newMember(t, writer, []string{"ada", "bob"}[i])
				await(t, changed)
				if writer == db && config.URL != "" {
					await(t, changed) // from the server
				}
			}
		})
	}
}

// follow follows a store until the end of the test.
func follow(t *testing.T, db *store.DB) <-chan struct{} {
	ctx, cancel := context.WithCancel(context.Background())
	changed, done := make(chan struct{}, 64), make(chan struct{})
	go func() {
		defer close(done)
		db.Facts("eu").Follow(ctx, func() { changed <- struct{}{} })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return changed
}

func await(t *testing.T, changed <-chan struct{}) {
	t.Helper()
	select {
	case <-changed:
	case <-time.After(30 * time.Second):
		t.Fatal("no notification of a commit")
	}
}
