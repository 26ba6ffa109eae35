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
	// traceDelay is how long traces are collected for one transaction. Nothing is
	// accounted by them, so a crash may lose some.
	traceDelay = time.Second
	// maxTraces is the maximum number of traces that wait while the database cannot be
	// written. Beyond it the oldest are dropped.
	maxTraces = 10_000
)

// Traces records what happened to each call, for its caller and for the owners of the
// machines that were tried. Create it with NewTraces, then Run it.
type Traces struct {
	store Store
	log   *slog.Logger

	mu      sync.Mutex
	pending []account.Trace // oldest first
}

// NewTraces returns Traces that are written to the store.
func NewTraces(store Store, log *slog.Logger) *Traces {
	return &Traces{store: store, log: log}
}

// Add adds the traces of one call, one for each member concerned.
func (t *Traces) Add(of []account.Trace) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending = append(t.pending, of...)
	if over := len(t.pending) - maxTraces; over > 0 {
		t.pending = t.pending[over:]
	}
}

// Run writes traces to the database until ctx ends, and then those that are left.
func (t *Traces) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		sleep(ctx, traceDelay)
		retry(ctx, t.Flush, t.log, "call traces")
	}
	_ = last(ctx, t.Flush, t.log, "call traces") // it logs its error
	return nil
}

// Flush writes all pending traces. Until then Get finds them in pending.
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
	// Add may have dropped the oldest traces during the write, so find the end of the
	// batch by its last trace.
	t.pending = slices.Clone(t.pending[t.find(last.CallID, last.MemberID)+1:])
	return nil
}

// Get returns the member's trace of the call, or account.ErrNotFound.
func (t *Traces) Get(ctx context.Context, callID, memberID string) (account.Trace, error) {
	t.mu.Lock()
	if at := t.find(callID, memberID); at >= 0 {
		defer t.mu.Unlock()
		return t.pending[at], nil
	}
	t.mu.Unlock()
	return t.store.Trace(ctx, callID, memberID)
}

// find returns the index of a pending trace, or -1. mu must be held.
func (t *Traces) find(callID, memberID string) int {
	return slices.IndexFunc(t.pending, func(p account.Trace) bool { return p.CallID == callID && p.MemberID == memberID })
}
