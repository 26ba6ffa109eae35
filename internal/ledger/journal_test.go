package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/ledger/journal"
)

// books is a Store that can be switched off.
type books struct {
	Store
	mu    sync.Mutex
	down  bool
	calls map[string]account.Usage
	days  int // number of calls, each counted once
	// room, if not nil, has one value for each call that is not stored yet. It limits how
	// far calls run ahead of a slow database.
	room chan struct{}
}

func (b *books) Now() time.Time { return time.Now() }

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

// life is a ledger from a start of the hub until it stops or is killed.
type life struct {
	*Ledger
	t    testing.TB
	stop func()
}

func begin(t testing.TB, path string, b *books) life {
	t.Helper()
	j := assert.Value(journal.Open(path))(t)
	l := New(b, j, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = l.Run(ctx) })
	return life{l, t, func() {
		cancel()
		all.Wait()
		j.Close()
	}}
}

// call is a running call, as far as the ledger knows it.
type call account.Usage

func aCall(id string) *call {
	return &call{CallID: id, Started: time.Now().UTC(), MemberID: "mem_1", KeyID: "key_1", Model: "m", Endpoint: "/v1/chat/completions"}
}

// aLong returns a call whose records take 4 KiB, so that a few of them fill a journal.
func aLong(id string) *call {
	c := aCall(id)
	c.KeyID = strings.Repeat("k", 4<<10)
	return c
}

// attempt returns the intent to send the call to a machine again.
func (c *call) attempt() account.Usage {
	c.Attempt++
	c.MachineID, c.OwnerID = "mch_1", "mem_2"
	return account.Usage(*c)
}

// ended returns the call's record after its end.
func (c *call) ended(code string) account.Usage {
	u := account.Usage(*c)
	u.Attempt = max(1, u.Attempt)
	u.Status, u.Code, u.Duration = 200, code, time.Second
	u.TokensIn, u.TokensOut, u.TokensHow = 3, 4, account.TokensReported
	return u
}

// send begins an attempt and waits until its intent is on disk.
func (l life) send(c *call) {
	l.t.Helper()
	receipt, err := l.Begin(c.attempt())
	if err == nil {
		err = l.Await(l.t.Context(), receipt)
	}
	assert.OK(l.t, err)
}

// TestLedgerTakesUp checks that a new hub records what a killed one left in its journal,
// and only once: calls that ended with their results, and others as interrupted on the
// machine that was tried last.
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
		first.End(over.ended(""))
		first.End(never.ended("model_not_found"))
		first.stop() // with the database down this leaves the same as a kill

		for range 2 { // the second one finds most of it again
			b.set(false)
			next := begin(t, path, b)
			synctest.Wait()
			next.stop()
		}
		all := b.all()
		want := over.ended("")
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

// TestLedgerSaysDamage checks that a call with a damaged result is recorded as
// interrupted, that all others keep their results, and that the damage is logged.
func TestLedgerSaysDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger-")
	j, err := journal.Open(path)
	assert.OK(t, err)
	hit, after := aCall("hit"), aCall("after")
	texts := [][]byte{
		entry{Usage: hit.attempt()}.encode(), entry{Usage: after.attempt()}.encode(),
		entry{true, hit.ended("")}.encode(), entry{true, after.ended("")}.encode(),
	}
	assert.OK(t, errors.Join(j.Restart(texts), j.Sync(), j.Close()))
	for _, slot := range []string{"a", "b"} {
		text := assert.Value(os.ReadFile(path + slot))(t)
		if at := bytes.Index(text, texts[2]); at >= 0 {
			text[at+len(texts[2])/2] ^= 1
		}
		assert.OK(t, os.WriteFile(path+slot, text, 0o600))
	}
	if j, err = journal.Open(path); err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	var log strings.Builder
	b := &books{calls: map[string]account.Usage{}}
	assert.OK(t, New(b, j, slog.New(slog.NewTextHandler(&log, nil))).Flush(t.Context()))
	all := b.all()
	if len(all) != 2 || all["hit"].Code != account.Interrupted || all["after"].Code != "" || all["after"].Status != 200 {
		t.Errorf("%+v", all)
	}
	if want := fmt.Sprintf("check this disk\" bytes=%d", len(texts[2])+8); !strings.Contains(log.String(), want) {
		t.Errorf("logged %s, want %s", log.String(), want)
	}
}

// TestLedgerSyncsWhenSent checks that an intent is synced after its call was sent and not
// before, and that Await causes a sync in any case.
func TestLedgerSyncsWhenSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := begin(t, filepath.Join(t.TempDir(), "ledger-"), &books{calls: map[string]account.Usage{}})
		defer l.stop()
		first := assert.Value(l.Begin(aCall("one").attempt()))(t)
		time.Sleep(time.Minute) // in the bubble
		select {
		case <-first.done:
			t.Error("it was synced before it was sent")
		default:
		}
		l.RequestSync()
		<-first.done
		second := assert.Value(l.Begin(aCall("two").attempt()))(t)
		if err := l.Await(t.Context(), second); err != nil {
			t.Error(err)
		}
	})
}

// TestLedgerAwaitsTheDisk checks that an answer waits until its call's intent is on disk,
// and is not sent if that fails.
func TestLedgerAwaitsTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := assert.Value(journal.Open(filepath.Join(t.TempDir(), "ledger-")))(t)
		l := New(forgetful{}, j, slog.New(slog.DiscardHandler)) // without Run
		wait := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			n, err := l.Begin(aCall("one").attempt())
			if err != nil {
				return err
			}
			return l.Await(ctx, n)
		}
		assert.Is(t, wait(), context.DeadlineExceeded, "before the sync")
		time.AfterFunc(time.Second, l.syncJournal)
		if err := wait(); err != nil {
			t.Errorf("after the sync: %v", err)
		}
		j.Close() // the disk is gone
		time.AfterFunc(time.Second, l.syncJournal)
		if f := fault.Of(wait()); f == nil || f.Code != fault.CascadeExhausted {
			t.Errorf("without a disk: %v", f)
		}
		if _, err := l.Begin(aCall("two").attempt()); fault.Of(err).Code != fault.CascadeExhausted {
			t.Errorf("without a disk: %v", err)
		}
	})
}

// TestLedgerDatabaseDown checks that calls continue while the journal has room for them
// and are then refused, and that running calls are still recorded. When the database is
// back, it gets all records, and calls are accepted again (docs/faults.md#17,
// docs/faults.md#27).
func TestLedgerDatabaseDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "ledger-")
		b := &books{calls: map[string]account.Usage{}, down: true}
		l := begin(t, path, b)
		l.send(aLong("runs"))
		n := 0 // the last one is refused
		var err error
		for ; err == nil; n++ {
			call := aLong(fmt.Sprint("call-", n))
			if _, err = l.Begin(call.attempt()); err == nil {
				l.End(call.ended(""))
			}
		}
		if f := fault.Of(err); f.Code != fault.CascadeExhausted || !errors.Is(err, journal.ErrFull) || n < 1_000 {
			t.Fatalf("after %d calls: %v", n, err)
		}
		l.End(aLong("runs").ended("")) // uses the reserved part
		l.End(aCall("refused").ended("CASCADE_EXHAUSTED"))

		// If the hub were killed now, the next one would have everything.
		l.stop()
		next := begin(t, path, b)
		b.set(false)
		time.Sleep(2 * retryDelay)
		synctest.Wait()
		if all := b.all(); len(all) != n+1 || all["runs"].Code != "" || all["runs"].Status != 200 || b.days != len(all) {
			t.Errorf("%d calls in the ledger (%d counted), want %d; %+v", len(all), b.days, n+1, all["runs"])
		}
		next.send(aCall("after")) // not through Run
		next.stop()
	})
}

// TestLedgerTurnsOver checks that a journal under constant load never fills, and that a
// call that runs all the time is not lost.
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
				b.room <- struct{}{}
				receipt, err := l.Begin(call.attempt())
				if err == nil && i%10 == 0 { // as if the engines were that fast
					err = l.Await(t.Context(), receipt)
				}
				if err != nil {
					t.Error(err)
					return
				}
				l.End(call.ended(""))
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

// forgetful is a Store that discards all records.
type forgetful struct{ Store }

func (forgetful) Now() time.Time { return time.Now() }

func (forgetful) RecordUsage(context.Context, []account.Usage) error    { return nil }
func (forgetful) TouchKeys(context.Context, map[string]time.Time) error { return nil }
