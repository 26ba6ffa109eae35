package ledger

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kith/kith/internal/account"
)

const (
	// traceDelay is how long traces gather for one transaction. They account for
	// nothing: what a crash loses of them is lost.
	traceDelay = time.Second
	// maxTraces is the maximum number of traces that wait while the database cannot
	// be written; beyond it the oldest are dropped.
	maxTraces = 10_000
)

// Traces keeps what happened to each call, for its caller and for the owners of the
// machines that it was tried on. Make it with NewTraces, then Run it.
type Traces struct {
	store Store
	log   *slog.Logger

	mu      sync.Mutex
	pending []account.Trace // oldest first
}

// NewTraces returns Traces that keep to the store.
func NewTraces(store Store, log *slog.Logger) *Traces {
	return &Traces{store: store, log: log}
}

// Add takes the traces of one call, one for each of these members.
func (t *Traces) Add(of []account.Trace) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending = append(t.pending, of...)
	if over := len(t.pending) - maxTraces; over > 0 {
		t.pending = t.pending[over:]
	}
}

// Run writes traces to the database until ctx ends, then what is left.
func (t *Traces) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		sleep(ctx, traceDelay)
		retry(ctx, t.Flush, t.log, "call traces")
	}
	_ = last(ctx, t.Flush, t.log, "call traces") // it logs its error
	return nil
}

// Flush writes all pending traces. Get finds them in pending until then.
func (t *Traces) Flush(ctx context.Context) error {
	t.mu.Lock()
	batch := slices.Clone(t.pending)
	t.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	if err := t.store.SaveTraces(ctx, batch, t.store.Now()); err != nil {
		return err
	}
	last := batch[len(batch)-1]
	t.mu.Lock()
	defer t.mu.Unlock()
	// Add may have dropped the oldest meanwhile; the batch's last marks its end.
	t.pending = slices.Clone(t.pending[t.find(last.CallID, last.MemberID)+1:])
	return nil
}

// Get returns the member's trace of the call; account.ErrNotFound if there is none.
func (t *Traces) Get(ctx context.Context, callID, memberID string) (account.Trace, error) {
	t.mu.Lock()
	if at := t.find(callID, memberID); at >= 0 {
		defer t.mu.Unlock()
		return t.pending[at], nil
	}
	t.mu.Unlock()
	return t.store.Trace(ctx, callID, memberID)
}

// find returns the index of a pending trace, or -1. Needs mu.
func (t *Traces) find(callID, memberID string) int {
	return slices.IndexFunc(t.pending, func(p account.Trace) bool { return p.CallID == callID && p.MemberID == memberID })
}
