package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
)

// shelf is a Store that only stores traces.
type shelf struct {
	Store
	down atomic.Bool
	mu   sync.Mutex
	kept []string
}

func (s *shelf) Now() time.Time { return time.Now() }

func (s *shelf) SaveTraces(_ context.Context, traces []account.Trace, _ time.Time) error {
	if s.down.Load() {
		return errDown
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, trace := range traces {
		s.kept = append(s.kept, trace.CallID)
	}
	return nil
}

func (s *shelf) Trace(_ context.Context, callID, _ string) (account.Trace, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.kept, callID) {
		return account.Trace{CallID: callID}, nil
	}
	return account.Trace{}, account.ErrNotFound
}

func TestTracesAreReadBeforeAndAfterTheyAreWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := new(shelf)
		records.down.Store(true)
		s := NewTraces(records, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		readable := func(when string, ids ...string) {
			t.Helper()
			for _, id := range ids {
				if _, err := s.Get(ctx, id, "mem_ann"); err != nil {
					t.Errorf("%s: call %s: %v", when, id, err)
				}
			}
			if _, err := s.Get(ctx, "1", "mem_eve"); when == "pending" && !errors.Is(err, account.ErrNotFound) {
				t.Errorf("eve reads ann's: %v", err)
			}
		}
		add := func(id string) { s.Add([]account.Trace{{CallID: id, MemberID: "mem_ann"}}) }
		add("1")
		add("2")
		readable("pending", "1", "2")
		time.Sleep(2 * traceDelay)
		readable("while it cannot be written", "1", "2")
		records.down.Store(false)
		time.Sleep(retryDelay + traceDelay)
		readable("written", "1", "2")
		add("3")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		assert.That(t, slices.Equal(records.kept, []string{"1", "2", "3"}), "kept", records.kept)
		assert.Equal(t, len(s.pending), 0, "still pending", s.pending)
	})
}

func TestTracesAreBounded(t *testing.T) {
	s := NewTraces(new(shelf), nil)
	for i := range maxTraces + 10 {
		s.Add([]account.Trace{{CallID: fmt.Sprint(i)}})
	}
	if n := len(s.pending); n != maxTraces || s.pending[0].CallID != "10" {
		t.Errorf("%d pending, the first %s", n, s.pending[0].CallID)
	}
}
