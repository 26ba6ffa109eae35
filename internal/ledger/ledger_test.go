package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
)

func usage(i int) account.Usage { return account.Usage{CallID: fmt.Sprint(i)} }

// numbered returns the ids from first to last, without the last.
func numbered(from, to int) []string {
	var ids []string
	for i := from; i < to; i++ {
		ids = append(ids, fmt.Sprint(i))
	}
	return ids
}

// keepLedger runs a ledger in a bubble. test gets a function that stops the ledger.
func keepLedger(t *testing.T, test func(*Ledger, *recorder, func() error)) {
	synctest.Test(t, func(t *testing.T) {
		r := new(recorder)
		l := New(r, nil, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx) }()
		end := func() error { cancel(); return <-ended }
		test(l, r, end)
	})
}

func TestLedgerWritesInBatches(t *testing.T) {
	keepLedger(t, func(l *Ledger, r *recorder, end func() error) {
		const n = 2*batchSize + 10
		r.set(true) // so that all of them wait
		for i := range n {
			l.End(usage(i))
			if i == 0 {
				synctest.Wait() // until the first attempt
			}
		}
		r.set(false)
		if err := end(); err != nil {
			t.Error(err)
		}
		if got := r.ids(); !slices.Equal(got, numbered(0, n)) || len(r.batches) != 3 || len(r.batches[0]) != batchSize {
			t.Errorf("%d records in %d batches", len(got), len(r.batches))
		}
	})
}

// Requeue writes the records of the last minute again, once.
func TestLedgerWritesAgain(t *testing.T) {
	keepLedger(t, func(l *Ledger, r *recorder, end func() error) {
		records := func(from, to int) {
			for i := from; i < to; i++ {
				l.End(usage(i))
			}
			time.Sleep(time.Second)
		}
		records(0, 10)
		time.Sleep(time.Minute)
		records(10, 20)
		l.Requeue()
		records(20, 30)
		want := slices.Concat(numbered(0, 20), numbered(10, 30))
		if got := r.ids(); !slices.Equal(got, want) {
			t.Errorf("written: %v, want %v", got, want)
		}
		for range 2 {
			records(0, maxWritten)
		}
		before := len(r.ids())
		l.Requeue()
		time.Sleep(time.Minute)
		if again := len(r.ids()) - before; again > maxWritten || again < maxWritten-batchSize {
			t.Errorf("%d records were kept, want about %d", again, maxWritten)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

func TestLedgerTriesAgain(t *testing.T) {
	keepLedger(t, func(l *Ledger, r *recorder, end func() error) {
		r.set(true)
		for i := range 600 {
			l.End(usage(i))
			time.Sleep(10 * time.Millisecond)
		}
		if got := r.ids(); got != nil {
			t.Errorf("%d records", len(got))
		}
		r.set(false)
		time.Sleep(2 * time.Second)
		if got := r.ids(); !slices.Equal(got, numbered(0, 600)) {
			t.Errorf("%d records: %v", len(got), got)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

// A write that keeps failing is logged once a minute, not once a second.
func TestLedgerLogsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		r := new(recorder)
		r.set(true)
		l := New(r, nil, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx) }()
		l.End(usage(1))
		time.Sleep(150 * time.Second)
		r.set(false)
		time.Sleep(2 * time.Second)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if failed, again := strings.Count(log.String(), "level=ERROR"), strings.Count(log.String(), "usage records are written again"); failed != 3 || again != 1 {
			t.Errorf("%d failures and %d ends of them are logged:\n%s", failed, again, log.String())
		}
	})
}

// The last use of a key is written when the database can be written again. A later use
// replaces it.
func TestLedgerKeepsUsesOfKeys(t *testing.T) {
	keepLedger(t, func(l *Ledger, r *recorder, end func() error) {
		r.set(true)
		l.KeyUsed("key_1")
		l.KeyUsed("key_2")
		first := time.Now().UTC()
		for range 2 {
			assert.Is(t, l.Flush(t.Context()), errDown, "flushed")
		}
		time.Sleep(time.Second)
		l.KeyUsed("key_2")
		r.set(false)
		if err := end(); err != nil {
			t.Error(err)
		}
		if !r.touched["key_1"].Equal(first) || !r.touched["key_2"].Equal(first.Add(time.Second)) {
			t.Errorf("written: %v, used at %v", r.touched, first)
		}
	})
}

// Nothing is lost when the hub stops: neither pending results nor those of calls that end
// afterwards.
func TestLedgerAtTheEnd(t *testing.T) {
	keepLedger(t, func(l *Ledger, r *recorder, end func() error) {
		l.End(usage(0))
		l.KeyUsed("key_1")
		if err := end(); err != nil {
			t.Error(err)
		}
		if got := r.ids(); !slices.Equal(got, numbered(0, 1)) || r.touched["key_1"].IsZero() {
			t.Errorf("%v %v", got, r.touched)
		}
		l.End(usage(1))
		if got := r.ids(); !slices.Equal(got, numbered(0, 2)) {
			t.Errorf("%v", got)
		}
	})
	keepLedger(t, func(l *Ledger, r *recorder, end func() error) {
		r.set(true)
		l.End(usage(0))
		if err := end(); err == nil {
			t.Error("the records are lost without a word")
		}
	})
}

// TestLedgerOpen checks that Open returns the calls without a result as a crash would
// leave them.
func TestLedgerOpen(t *testing.T) {
	keepLedger(t, func(l *Ledger, _ *recorder, end func() error) {
		for i := range 2 {
			assert.Value(l.Begin(usage(i)))(t)
		}
		l.End(usage(0))
		open := l.Open()
		if len(open) != 1 || open[0].CallID != "1" || open[0].Code != account.Interrupted || open[0].TokensHow != account.TokensUnknown {
			t.Errorf("open: %+v", open)
		}
		l.End(usage(1))
		if open := l.Open(); len(open) != 0 {
			t.Errorf("open: %+v", open)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

// While the database is down for long, records of refusals are dropped. Calls are refused
// before any of their records could be lost.
func TestLedgerIsBounded(t *testing.T) {
	keepLedger(t, func(l *Ledger, r *recorder, end func() error) {
		r.set(true)
		const over = 10
		for i := range maxPending + over {
			l.End(usage(i))
		}
		if _, err := l.Begin(aCall("one more").attempt()); fault.Of(err).Code != fault.CascadeExhausted {
			t.Errorf("a call begins all the same: %v", err)
		}
		r.set(false)
		if err := end(); err != nil {
			t.Error(err)
		}
		if got := r.ids(); !slices.Equal(got, numbered(0, maxPending)) {
			t.Errorf("%d records, the first %v", len(got), got[:1])
		}
	})
}

var errDown = errors.New("the database is down")

// recorder is a Store that only stores usage records.
type recorder struct {
	Store
	mu      sync.Mutex
	down    bool
	batches [][]account.Usage
	touched map[string]time.Time
}

func (r *recorder) Now() time.Time { return time.Now() }

func (r *recorder) RecordUsage(_ context.Context, batch []account.Usage) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return errDown
	}
	if len(batch) > 0 {
		r.batches = append(r.batches, batch)
	}
	return nil
}

func (r *recorder) TouchKeys(_ context.Context, used map[string]time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return errDown
	}
	r.touched = used
	return nil
}

func (r *recorder) set(down bool) {
	r.mu.Lock()
	r.down = down
	r.mu.Unlock()
}

// ids returns the ids of the recorded calls, in order.
func (r *recorder) ids() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []string
	for _, batch := range r.batches {
		for _, u := range batch {
			ids = append(ids, u.CallID)
		}
	}
	return ids
}
