package ledger

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
)

// A turn can be read by its member, with its response's id, until it expires. The disk
// has no readable part of it.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, dir := t.Context(), t.TempDir()
		db, err := store.Open(ctx, store.Config{Path: filepath.Join(dir, "kith.db")})
		assert.OK(t, err)
		defer db.Close()
		const ann, eve, id = "mem_ann", "mem_eve", "resp_SECRETSECRETSECRET"
		for _, m := range []string{ann, eve} {
			assert.OK(t, db.CreateMember(ctx, account.Member{ID: m, Name: m, Created: time.Now()}))
		}
		kept := NewTurns(db, time.Hour, slog.New(slog.DiscardHandler))
		turn := bytes.Repeat([]byte("the canary sings. "), 1000)
		assert.OK(t, kept.Keep(ctx, ann, id, turn))
		reads := func(when string, member fleet.MemberID, id string, want []byte) {
			t.Helper()
			if got, err := kept.Load(ctx, member, id, enough); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes, %v", when, len(got), err)
			}
		}
		reads("at once", ann, id, turn)
		full, asked := errors.New("full"), int64(0)
		got, err := kept.Load(ctx, ann, id, func(size int64) error { asked = size; return full })
		if got != nil || err != full || asked < int64(len(turn)) {
			t.Errorf("without room for it: %d bytes, %v; asked for %d", len(got), err, asked)
		}
		reads("another member", eve, id, nil)
		reads("another id", ann, "resp_", nil)
		if there, err := kept.Forget(ctx, eve, id); there || err != nil {
			t.Errorf("another member dropped it: %v", err)
		}
		err = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			file, err := os.ReadFile(name)
			for _, secret := range []string{"canary", "SECRET"} {
				if bytes.Contains(file, []byte(secret)) {
					t.Errorf("%s is in %s", secret, filepath.Base(name))
				}
			}
			return err
		})
		assert.OK(t, err)
		time.Sleep(time.Hour - time.Millisecond)
		reads("just before its end", ann, id, turn)
		time.Sleep(time.Millisecond)
		reads("at its end", ann, id, nil)
		if there, err := kept.Forget(ctx, ann, id); there || err != nil {
			t.Errorf("it was there after its end: %v", err)
		}
		assert.OK(t, kept.Keep(ctx, ann, "resp_2", turn))
		if there, err := kept.Forget(ctx, ann, "resp_2"); !there || err != nil {
			t.Errorf("%v, %v", there, err)
		}
		reads("dropped", ann, "resp_2", nil)
	})
}

// sweeper is a Store that counts deletions of expired turns. The database behind it is
// down.
type sweeper struct {
	Store
	sweeps atomic.Int64
}

func (s *sweeper) Now() time.Time { return time.Now() }

func (s *sweeper) PruneTurns(context.Context, time.Time) error {
	s.sweeps.Add(1)
	return errDown
}

func (s *sweeper) TurnSize(context.Context, [32]byte, string, time.Time) (int64, error) {
	return 0, errDown
}

func (s *sweeper) Turn(context.Context, [32]byte, string, time.Time) (account.Turn, error) {
	return account.Turn{}, errDown
}

func (s *sweeper) ForgetTurn(context.Context, [32]byte, string, time.Time) error { return errDown }

func TestTurnsWithoutADatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := new(sweeper)
		all := NewTurns(records, time.Hour, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- all.Run(ctx) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Equal(t, records.sweeps.Load(), 7, "sweeps in an hour")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if _, err := all.Load(t.Context(), "mem_ann", "resp_1", enough); fault.Of(err).Code != fault.CascadeExhausted {
			t.Error(err)
		}
		if _, err := all.Forget(t.Context(), "mem_ann", "resp_1"); fault.Of(err).Code != fault.CascadeExhausted {
			t.Error(err)
		}
	})
}

// enough is room for a turn of any size.
func enough(int64) error { return nil }
