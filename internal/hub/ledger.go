package hub

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/gateway"
)

const (
	// ledgerBatch is how many records one transaction takes at most.
	ledgerBatch = 512
	// ledgerBacklog is how many records wait while the database cannot be
	// written; past it the oldest are dropped, and the log says how many.
	ledgerBacklog = 100_000
	// ledgerFarewell is how long the hub's end may wait for the last records.
	ledgerFarewell = 5 * time.Second
	// ledgerPause gathers records of busy times into one transaction.
	ledgerPause = 50 * time.Millisecond
)

// ledger writes usage records behind the calls, many to a transaction: calls
// only append to pending under mu, run writes. Once run has ended, the last
// calls of a hub that shuts down write their own.
type ledger struct {
	records Records
	log     *slog.Logger

	mu      sync.Mutex
	pending []account.Usage
	used    map[string]time.Time // key id: last use, not yet written
	dropped int
	ended   bool // run is over
	wake    chan struct{}
}

func newLedger(records Records, log *slog.Logger) *ledger {
	return &ledger{records: records, log: log, used: map[string]time.Time{}, wake: make(chan struct{}, 1)}
}

// add takes a record in; while run lives it never blocks on the database.
func (l *ledger) add(u account.Usage) {
	l.mu.Lock()
	if l.ended {
		defer func() { _ = l.writeRest(context.Background()) }() // it says itself what it could not write
	}
	if len(l.pending) >= ledgerBacklog {
		l.pending = l.pending[1:]
		l.dropped++
	}
	l.pending = append(l.pending, u)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// touch notes that a key was used now.
func (l *ledger) touch(keyID string) {
	l.mu.Lock()
	l.used[keyID] = time.Now().UTC()
	l.mu.Unlock()
}

// run writes what comes until ctx ends, then what is left.
func (l *ledger) run(ctx context.Context) error {
	for ctx.Err() == nil {
		select {
		case <-l.wake:
		case <-time.After(time.Minute): // last uses of keys wake nobody
		case <-ctx.Done():
		}
		for {
			err := l.flush(ctx)
			if err == nil || ctx.Err() != nil {
				break
			}
			l.log.Error("cannot write usage records; they are kept and tried again", "error", err)
			pause(ctx, time.Second)
		}
		pause(ctx, ledgerPause)
	}
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	return l.writeRest(context.WithoutCancel(ctx))
}

// writeRest writes what is pending at the hub's end.
func (l *ledger) writeRest(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerFarewell)
	defer cancel()
	err := l.flush(ctx)
	if err != nil {
		l.log.Error("cannot write the last usage records", "error", err)
	}
	return err
}

// flush writes everything pending, a batch a transaction. What a failed
// transaction held goes back to the front.
func (l *ledger) flush(ctx context.Context) error {
	for {
		l.mu.Lock()
		batch := l.pending[:min(ledgerBatch, len(l.pending))]
		l.pending = l.pending[len(batch):]
		used, dropped := l.used, l.dropped
		l.used, l.dropped = map[string]time.Time{}, 0
		l.mu.Unlock()
		if dropped > 0 {
			l.log.Error("usage records were dropped: the database could not be written for too long", "records", dropped)
		}
		if len(batch) == 0 && len(used) == 0 {
			return nil
		}
		err := l.records.RecordUsage(ctx, batch)
		if err == nil && len(used) > 0 {
			err = l.records.TouchKeys(ctx, used)
		}
		if err != nil {
			l.mu.Lock()
			l.pending = slices.Concat(batch, l.pending)
			l.mu.Unlock()
			return err
		}
	}
}

// pause waits d, or less when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// record turns a finished call into its usage record (decisions 7): who, what,
// how it ended; nothing of its content.
func record(call *gateway.Call, out gateway.Outcome) account.Usage {
	how := account.TokensNone
	switch {
	case out.Reported:
		how = account.TokensReported
	case out.TokensOut > 0:
		how = account.TokensCounted
	}
	return account.Usage{
		CallID: call.ID, Attempt: max(1, call.Trace.Attempts), Started: call.Arrived.UTC(),
		MemberID: string(call.Caller.Member), KeyID: call.Caller.KeyID,
		MachineID: string(call.Trace.Machine), OwnerID: string(call.Trace.Owner),
		Model: string(call.Model), Endpoint: call.Endpoint.Path(), Stream: call.Stream,
		Status: out.Status, Code: out.Code, Waited: within(call.Trace.Waited, maxDuration),
		FirstByte: within(out.FirstByte, maxDuration), Duration: within(out.Duration, maxDuration),
		TokensIn: within(out.TokensIn, maxTokens), TokensOut: within(out.TokensOut, maxTokens), TokensHow: how,
	}
}

// What a record may hold: an engine may claim any number of tokens, and a clock
// may jump. Within these the store takes every record.
const (
	maxTokens   = math.MaxInt32
	maxDuration = 24 * time.Hour
)

func within[N int64 | time.Duration](n, most N) N { return min(max(n, 0), most) }
