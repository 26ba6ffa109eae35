package hub

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

func callerOf(name string) gateway.Caller {
	return gateway.Caller{Member: fleet.MemberID("mem_" + name), Name: name}
}

func usage(i int) account.Usage { return account.Usage{CallID: fmt.Sprint(i)} }

// numbered is the ids from one to another, the last left out.
func numbered(from, to int) []string {
	var ids []string
	for i := from; i < to; i++ {
		ids = append(ids, fmt.Sprint(i))
	}
	return ids
}

// keepLedger runs a ledger in a bubble; test gets a function that ends it.
func keepLedger(t *testing.T, test func(*ledger, *recorder, func() error)) {
	synctest.Test(t, func(t *testing.T) {
		r := new(recorder)
		l := newLedger(r, nil, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.run(ctx) }()
		end := func() error { cancel(); return <-ended }
		test(l, r, end)
	})
}

func TestLedgerWritesInBatches(t *testing.T) {
	keepLedger(t, func(l *ledger, r *recorder, end func() error) {
		const n = 2*ledgerBatch + 10
		r.set(true) // so that all of them wait
		for i := range n {
			l.end(usage(i))
		}
		r.set(false)
		if err := end(); err != nil {
			t.Error(err)
		}
		if got := r.ids(); !slices.Equal(got, numbered(0, n)) || len(r.batches) != 3 || len(r.batches[0]) != ledgerBatch {
			t.Errorf("%d records in %d batches", len(got), len(r.batches))
		}
	})
}

func TestLedgerTriesAgain(t *testing.T) {
	keepLedger(t, func(l *ledger, r *recorder, end func() error) {
		r.set(true)
		for i := range 600 {
			l.end(usage(i))
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

// The end of the hub loses nothing: neither what was pending nor what comes
// from calls that end after it.
func TestLedgerAtTheEnd(t *testing.T) {
	keepLedger(t, func(l *ledger, r *recorder, end func() error) {
		l.end(usage(0))
		l.touch("key_1")
		if err := end(); err != nil {
			t.Error(err)
		}
		if got := r.ids(); !slices.Equal(got, numbered(0, 1)) || r.touched["key_1"].IsZero() {
			t.Errorf("%v %v", got, r.touched)
		}
		l.end(usage(1))
		if got := r.ids(); !slices.Equal(got, numbered(0, 2)) {
			t.Errorf("%v", got)
		}
	})
	keepLedger(t, func(l *ledger, r *recorder, end func() error) {
		r.set(true)
		l.end(usage(0))
		if err := end(); err == nil {
			t.Error("the records are lost without a word")
		}
	})
}

// A database that is away for long costs the records of refusals; calls that
// would run are refused before any of theirs could be lost.
func TestLedgerIsBounded(t *testing.T) {
	keepLedger(t, func(l *ledger, r *recorder, end func() error) {
		r.set(true)
		const over = 10
		for i := range ledgerBacklog + over {
			l.end(usage(i))
		}
		if _, err := l.begin(aCall("one more"), fleet.Candidate{Machine: aMachine}); fault.Of(err).Code != fault.CascadeExhausted {
			t.Errorf("a call begins all the same: %v", err)
		}
		r.set(false)
		if err := end(); err != nil {
			t.Error(err)
		}
		if got := r.ids(); !slices.Equal(got, numbered(0, ledgerBacklog)) {
			t.Errorf("%d records, the first %v", len(got), got[:1])
		}
	})
}

// Whatever an engine claims and a clock does, the store takes the record.
func TestRecordIsAlwaysTaken(t *testing.T) {
	r := newRig(t, Config{})
	call := &gateway.Call{
		ID: "req_1", Model: fleet.ModelID(strings.Repeat("m", fleet.MaxModelID)), Caller: callerOf("ann"), Arrived: time.Now(),
		Trace: gateway.Trace{Waited: -time.Second},
	}
	u := record(call, gateway.Outcome{
		Status: 200, FirstByte: math.MaxInt64, Duration: math.MinInt64, TokensIn: math.MaxInt64, TokensOut: -5, Reported: true,
	})
	if err := r.kept.RecordUsage(t.Context(), []account.Usage{u}); err != nil {
		t.Fatal(err)
	}
	got, err := r.kept.Usage(t.Context())
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	if g := got[0]; g.TokensIn != math.MaxInt32 || g.TokensOut != 0 || g.FirstByte != 24*time.Hour || g.Duration != 0 || g.Waited != 0 || g.Attempt != 1 {
		t.Errorf("%+v", g)
	}
}
