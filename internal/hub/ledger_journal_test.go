package hub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/hub/journal"
)

// books is the database as the ledger sees it, with a switch.
type books struct {
	Records
	mu    sync.Mutex
	down  bool
	calls map[string]account.Usage
	days  int // calls counted, each once
	// room, if not nil, holds one for each call that is not here yet: it bounds
	// how far calls run ahead of a database that gets no time.
	room chan struct{}
}

func (b *books) RecordUsage(_ context.Context, records []account.Usage) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return errors.New("database is down")
	}
	for _, u := range records {
		if _, there := b.calls[u.CallID]; !there {
			b.calls[u.CallID] = u
			b.days++
			select {
			case <-b.room:
			default:
			}
		}
	}
	return nil
}

func (b *books) TouchKeys(context.Context, map[string]time.Time) error { return nil }

func (b *books) set(down bool) {
	b.mu.Lock()
	b.down = down
	b.mu.Unlock()
}

func (b *books) all() map[string]account.Usage {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make(map[string]account.Usage)
	for id, u := range b.calls {
		all[id] = u
	}
	return all
}

// life is a ledger between a start of the hub and its end, kill or not.
type life struct {
	*ledger
	t    testing.TB
	stop func()
}

func begin(t testing.TB, path string, b *books) life {
	t.Helper()
	j, err := journal.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	l := newLedger(b, j, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = l.run(ctx) })
	all.Go(func() { _ = l.keepFirm(ctx) })
	return life{l, t, func() {
		cancel()
		all.Wait()
		j.Close()
	}}
}

// aLong makes a call whose records take 4 KiB, so that few of them fill a journal.
func aLong(id string) *gateway.Call {
	call := aCall(id)
	call.Caller.KeyID = strings.Repeat("k", 4<<10)
	return call
}

func aCall(id string) *gateway.Call {
	return &gateway.Call{ID: id, Model: "m", Endpoint: fleet.ChatCompletions, Arrived: time.Now(), Caller: gateway.Caller{Member: "mem_1", KeyID: "key_1"}}
}

var aMachine = &fleet.Machine{ID: "mch_1", Owner: "mem_2"}

// send begins an attempt and waits until that is on the disk.
func (l life) send(call *gateway.Call) {
	l.t.Helper()
	call.Trace.Attempts++
	n, err := l.begin(call, fleet.Candidate{Machine: aMachine})
	if err == nil {
		err = l.await(l.t.Context(), n)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	call.Trace.Machine, call.Trace.Owner = aMachine.ID, aMachine.Owner
}

func (l life) finish(call *gateway.Call, code string) {
	l.end(record(call, gateway.Outcome{Status: 200, Code: code, TokensIn: 3, TokensOut: 4, Reported: true, Duration: time.Second}))
}

// TestLedgerTakesUp: what a dead hub left in its journal is recorded by the next
// one, once: calls that were over as they ended, the others as interrupted, each
// as the machine had it that was tried last.
func TestLedgerTakesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "ledger-")
		b := &books{calls: map[string]account.Usage{}, down: true}
		first := begin(t, path, b)
		over, runs, moved, never := aCall("over"), aCall("runs"), aCall("moved"), aCall("never")
		first.send(over)
		first.send(runs)
		first.send(moved)
		first.send(moved)
		first.finish(over, "")
		first.finish(never, "model_not_found")
		first.stop() // with the database down it leaves what a kill would

		for range 2 { // the second finds most of it twice
			b.set(false)
			next := begin(t, path, b)
			synctest.Wait()
			next.stop()
		}
		all := b.all()
		want := record(over, gateway.Outcome{Status: 200, TokensIn: 3, TokensOut: 4, Reported: true, Duration: time.Second})
		want.Started = want.Started.Truncate(time.Millisecond)
		if got := all["over"]; !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		for id, attempt := range map[string]int{"runs": 1, "moved": 2} {
			u := all[id]
			if u.Code != account.Interrupted || u.TokensHow != account.TokensUnknown || u.Attempt != attempt || u.MachineID != "mch_1" || u.OwnerID != "mem_2" || u.Status != 0 {
				t.Errorf("%s: %+v", id, u)
			}
		}
		if len(all) != 4 || b.days != 4 || all["never"].Code != "model_not_found" || all["never"].MachineID != "" {
			t.Errorf("%d calls, %d counted: %+v", len(all), b.days, all)
		}
	})
}

// TestLedgerSyncsWhenSent: an intent is brought to the disk when its call is on the
// way, not before, and for an answer that waits whatever became of that.
func TestLedgerSyncsWhenSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := begin(t, filepath.Join(t.TempDir(), "ledger-"), &books{calls: map[string]account.Usage{}})
		defer l.stop()
		first, err := l.begin(aCall("one"), fleet.Candidate{Machine: aMachine})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // in the bubble
		select {
		case <-first.done:
			t.Error("it was synced before it was sent")
		default:
		}
		l.sent()
		<-first.done
		second, err := l.begin(aCall("two"), fleet.Candidate{Machine: aMachine})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.await(t.Context(), second); err != nil {
			t.Error(err)
		}
	})
}

// TestLedgerAwaitsTheDisk: an answer waits for its call's intent to be on the
// disk, and is not told where that fails.
func TestLedgerAwaitsTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, err := journal.Open(filepath.Join(t.TempDir(), "ledger-"))
		if err != nil {
			t.Fatal(err)
		}
		l := newLedger(forgetful{}, j, slog.New(slog.DiscardHandler)) // nobody syncs
		wait := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			n, err := l.begin(aCall("one"), fleet.Candidate{Machine: aMachine})
			if err != nil {
				return err
			}
			return l.await(ctx, n)
		}
		if err := wait(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("before the sync: %v", err)
		}
		time.AfterFunc(time.Second, l.firm)
		if err := wait(); err != nil {
			t.Errorf("after the sync: %v", err)
		}
		j.Close() // the disk is gone
		time.AfterFunc(time.Second, l.firm)
		if f := fault.Of(wait()); f == nil || f.Code != fault.CascadeExhausted {
			t.Errorf("without a disk: %v", f)
		}
		if _, err := l.begin(aCall("two"), fleet.Candidate{Machine: aMachine}); fault.Of(err).Code != fault.CascadeExhausted {
			t.Errorf("without a disk: %v", err)
		}
	})
}

// TestLedgerDatabaseDown: calls go on while the journal has room for them, then
// are refused, and those that run are recorded all the same; once the database
// is back all of it is there and calls go on (faults 16 to 18, 27).
func TestLedgerDatabaseDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "ledger-")
		b := &books{calls: map[string]account.Usage{}, down: true}
		l := begin(t, path, b)
		l.send(aLong("runs"))
		n := 0 // the last of them is refused
		var err error
		for ; err == nil; n++ {
			call := aLong(fmt.Sprint("call-", n))
			call.Trace.Attempts = 1
			if _, err = l.begin(call, fleet.Candidate{Machine: aMachine}); err == nil {
				l.finish(call, "")
			}
		}
		if f := fault.Of(err); f.Code != fault.CascadeExhausted || !errors.Is(err, journal.ErrFull) || n < 1_000 {
			t.Fatalf("after %d calls: %v", n, err)
		}
		l.finish(aLong("runs"), "") // into what is reserved
		l.finish(aCall("refused"), "CASCADE_EXHAUSTED")

		// Should the hub die now, the next one has it all.
		l.stop()
		next := begin(t, path, b)
		b.set(false)
		time.Sleep(2 * ledgerAgain)
		synctest.Wait()
		if all := b.all(); len(all) != n+1 || all["runs"].Code != "" || all["runs"].Status != 200 || b.days != len(all) {
			t.Errorf("%d calls in the ledger (%d counted), want %d; %+v", len(all), b.days, n+1, all["runs"])
		}
		next.send(aCall("after")) // without hands
		next.stop()
	})
}

// TestLedgerTurnsOver: a journal under load for long never fills, and a call
// that runs all the while is not lost.
func TestLedgerTurnsOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger-")
	b := &books{calls: map[string]account.Usage{}, room: make(chan struct{}, 1000)}
	l := begin(t, path, b)
	l.send(aCall("long"))
	const workers, each = 8, 1_500
	var load sync.WaitGroup
	for w := range workers {
		load.Go(func() {
			for i := range each {
				call := aLong(fmt.Sprint("call-", w, "-", i))
				call.Trace.Attempts = 1
				b.room <- struct{}{}
				noted, err := l.begin(call, fleet.Candidate{Machine: aMachine})
				if err == nil && i%10 == 0 { // as if the engines were that quick
					err = l.await(t.Context(), noted)
				}
				if err != nil {
					t.Error(err)
					return
				}
				l.finish(call, "")
			}
		})
	}
	load.Wait()
	l.stop()
	again := begin(t, path, b)
	again.stop()
	all := b.all()
	if len(all) != workers*each+1 || all["long"].Code != account.Interrupted {
		t.Errorf("%d calls, want %d; %+v", len(all), workers*each+1, all["long"])
	}
}

// TestEntry: an entry is read as it was written, and nothing else is read.
func TestEntry(t *testing.T) {
	e := entry{ended: true, usage: account.Usage{
		CallID: "req_1", Attempt: 3, Started: time.UnixMilli(1_700_000_000_123).UTC(), MemberID: "mem_1", KeyID: "key_1",
		MachineID: "mch_1", OwnerID: "mem_2", GroupID: "grp_1", Model: "llama3:8b", Endpoint: "/v1/chat/completions", Stream: true,
		Status: 200, Code: "engine_error", Waited: 1, FirstByte: 2, Duration: 3, TokensIn: 4, TokensOut: 5, TokensHow: account.TokensCounted,
	}}
	// Every field is there: none is left zero.
	if v := reflect.ValueOf(e.usage); v.IsValid() {
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Fatalf("the test leaves out %s", v.Type().Field(i).Name)
			}
		}
	}
	text := e.encode()
	got, err := decodeEntry(text)
	if err != nil || !reflect.DeepEqual(got, e) {
		t.Fatalf("%v\n got %+v\nwant %+v", err, got, e)
	}
	// Form 1 ended before the group: an upgrade loses no call that it wrote.
	before := append([]byte{2}, text[1:len(text)-1-len("grp_1")]...)
	want := e
	want.usage.GroupID = ""
	if got, err := decodeEntry(before); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("form 1: %v\n got %+v\nwant %+v", err, got, want)
	}
	for cut := range len(text) {
		if _, err := decodeEntry(text[:cut]); err == nil {
			t.Fatalf("half an entry is read: %d of %d bytes", cut, len(text))
		}
	}
	if _, err := decodeEntry(append(text, 0)); err == nil {
		t.Fatal("more than an entry is read")
	}
}

// BenchmarkLedger is a call's cost, with 16 at once, without and with a journal,
// and without and with waiting for the disk as an engine that answers at once
// would make it. cpu-µs/call is all of the process, the syncing included.
func BenchmarkLedger(b *testing.B) {
	for _, mode := range []string{"memory", "journal", "journal, awaited"} {
		b.Run(mode, func(b *testing.B) {
			var j *journal.Journal
			if mode != "memory" {
				var err error
				if j, err = journal.Open(filepath.Join(b.TempDir(), "ledger-")); err != nil {
					b.Fatal(err)
				}
				defer j.Close()
			}
			l := newLedger(forgetful{}, j, slog.New(slog.DiscardHandler))
			ctx, cancel := context.WithCancel(b.Context())
			var all sync.WaitGroup
			all.Go(func() { _ = l.run(ctx) })
			all.Go(func() { _ = l.keepFirm(ctx) })
			var next sync.Mutex
			n := 0
			before := cpu()
			b.ReportAllocs()
			b.SetParallelism(8)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					next.Lock()
					n++
					call := aCall(fmt.Sprint("req_0190e9f2-0000-7000-8000-", n))
					next.Unlock()
					call.Trace.Attempts = 1
					noted, err := l.begin(call, fleet.Candidate{Machine: aMachine})
					if err == nil && mode == "journal, awaited" {
						err = l.await(b.Context(), noted)
					}
					if err != nil {
						b.Error(err)
						return
					}
					l.end(record(call, gateway.Outcome{Status: 200, TokensIn: 10, TokensOut: 10, Reported: true}))
				}
			})
			b.StopTimer()
			cancel()
			all.Wait()
			b.ReportMetric(float64((cpu()-before).Nanoseconds())/1e3/float64(b.N), "cpu-µs/call")
		})
	}
}

// forgetful takes every record at no cost.
type forgetful struct{ Records }

func (forgetful) RecordUsage(context.Context, []account.Usage) error    { return nil }
func (forgetful) TouchKeys(context.Context, map[string]time.Time) error { return nil }

func cpu() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
