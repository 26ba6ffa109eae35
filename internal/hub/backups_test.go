package hub

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/site"
)

// files returns the names in a folder.
func files(t *testing.T, folder string) (names []string) {
	t.Helper()
	entries := assert.Value(os.ReadDir(folder))(t)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func backupsPart(r *rig) (part site.Part) {
	for _, p := range r.health(r.t.Context()) {
		if p.Name == "Backups" {
			part = p
		}
	}
	return part
}

// TestBackupSchedule: the first backup comes a minute after the start, each other one a
// day later, and only the newest stay, with what the schedule did not make. What a hub
// that died left is removed.
func TestBackupSchedule(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "backups")
	synctest.Test(t, func(t *testing.T) {
		start := time.Now().UTC() // midnight of 1 January 2000
		r := newRig(t, Config{Backups: Backups{Every: 24 * time.Hour, Keep: 2, Folder: folder}})
		ctx, stop := context.WithCancel(t.Context())
		go r.runBackups(ctx)
		time.Sleep(59 * time.Second)
		if _, err := os.Stat(folder); !os.IsNotExist(err) {
			t.Errorf("a backup before its time: %v", err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := files(t, folder); !slices.Equal(got, []string{"kith-20000101-000100.db"}) {
			t.Errorf("after a minute: %v", got)
		}
		for _, name := range []string{"kith-19990101-000000.db", "kith-19990101-000000.db.part", "kith.db", "kith-mine.db"} {
			content := "mine"
			if name == "kith-19990101-000000.db" {
				content = ""
			}
			assert.OK(t, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600))
		}
		time.Sleep(48 * time.Hour)
		synctest.Wait()
		want := []string{"kith-20000102-000100.db", "kith-20000103-000100.db", "kith-mine.db", "kith.db"}
		if got := files(t, folder); !slices.Equal(got, want) {
			t.Errorf("after two days: %v", got)
		}
		if part := backupsPart(r); !part.Good || !strings.Contains(part.Text, "every 24 h to "+folder+", the newest 2 stay there; the next one: 4 Jan 00:01 UTC") {
			t.Errorf("health: %+v", part)
		}
		acts, err := r.kept.Acts(t.Context(), account.Place{}, account.ActFilter{}, 9)
		if err != nil || len(acts) != 3 || acts[0].ByName != "the schedule" {
			t.Errorf("the audit log: %+v, %v", acts, err)
		}
		stop()
		synctest.Wait()

		// A start soon after continues the schedule, and one long after makes one at once.
		for _, c := range []struct {
			away time.Duration
			next time.Time
		}{{time.Hour, start.Add(72*time.Hour + time.Minute)}, {100 * time.Hour, start.Add(48*time.Hour + time.Minute + time.Second + 101*time.Hour + time.Minute)}} {
			time.Sleep(c.away)
			ctx, stop := context.WithCancel(t.Context())
			go r.runBackups(ctx)
			synctest.Wait()
			if got := r.backups.next.Load().UTC(); !got.Equal(c.next) {
				t.Errorf("started %s after the last: next at %s, want %s", c.away, got, c.next)
			}
			stop()
			synctest.Wait()
		}
	})
}

// TestBackupScheduleFails: an attempt that fails is said, recorded and repeated within
// the hour, and removes nothing.
func TestBackupScheduleFails(t *testing.T) {
	place := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		folder := filepath.Join(place, "backups")
		assert.OK(t, os.WriteFile(folder, []byte("in the way"), 0o600))
		r := newRig(t, Config{Backups: Backups{Every: 24 * time.Hour, Keep: 1, Folder: folder}})
		ctx, stop := context.WithCancel(t.Context())
		go r.runBackups(ctx)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if part := backupsPart(r); part.Good || !strings.Contains(part.Text, "not a directory") || !strings.Contains(part.Text, "the next attempt: 01:01 UTC") {
			t.Errorf("health: %+v", part)
		}
		last, err := r.kept.LastBackup(t.Context())
		assert.That(t, err == nil && strings.Contains(last.Fault, "not a directory"), "the last one", last, err)
		reading := stateMetrics{r.Hub}.read()
		assert.That(t, reading.failed && reading.backup.At.IsZero(), "measured", reading.failed, reading.backup)
		assert.OK(t, os.Remove(folder))
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := files(t, folder); len(got) != 1 {
			t.Errorf("after an hour: %v", got)
		}
		if part := backupsPart(r); !part.Good {
			t.Errorf("health: %+v", part)
		}
		if reading := (stateMetrics{r.Hub}).read(); reading.failed || reading.backup.At.IsZero() {
			t.Errorf("measured: %v, %+v", reading.failed, reading.backup)
		}
		stop()
		synctest.Wait()
	})
}
