package hub

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/hub/journal"
)

const (
	// ledgerBatch is how many records one transaction takes at most.
	ledgerBatch = 512
	// ledgerBacklog is how many records wait at most while the database cannot
	// be written. Then calls are refused, and refusals are not recorded.
	ledgerBacklog = 100_000
	// ledgerFarewell is how long the hub's end may wait for the last records.
	ledgerFarewell = 5 * time.Second
	// ledgerPause gathers records of busy times, up to a batch, into one
	// transaction: its sync costs as much as some fifty records.
	ledgerPause = 250 * time.Millisecond
	// ledgerAgain is how soon what failed is tried again.
	ledgerAgain = time.Second
	// syncPause is the shortest time between two syncs of the journal: at many
	// calls a second they share one, and most engines take far longer to their
	// first byte than all of it.
	syncPause = 2 * time.Millisecond
	// journalShare is how much of the journal's slot calls may fill. The rest is
	// for their ends: those that run when a disk is full end well.
	journalShare = 0.5
	// journalStale is from when on a slot is worth beginning anew.
	journalStale = 0.25
)

// ledger is the hub's account of its calls (decisions 7, docs/decisions/0003).
// An intent is in the journal before a call goes to a machine, on the disk before
// the first byte of its answer goes to its caller; how the call ended is in the
// journal when it is over, and behind it, many to a transaction, in the database.
// What a hub that died left open, the next start closes as Interrupted.
type ledger struct {
	records Records
	journal *journal.Journal // nil: nothing outlives the process but by the database
	log     *slog.Logger

	syncing sync.Mutex // keeps the journal's Sync and Restart apart
	storing sync.Mutex // held by the one who takes from pending

	mu      sync.Mutex
	open    map[string][]byte    // call id: its newest intent, as the journal has it
	pending []account.Usage      // calls that are over and not in the database yet
	used    map[string]time.Time // key id: last use, not yet written
	note    *note                // of the intents that are not on the disk
	written int                  // entries in the journal's slot
	broken  error                // the journal takes nothing until it was begun anew
	dropped int                  // refusals that were not recorded
	ended   bool                 // run is over: calls write for themselves

	wake chan struct{} // there are records for the database
	full chan struct{} // there are as many as a transaction takes
	sync chan struct{} // there are intents for the disk
}

// errNotBegun is why a new ledger takes nothing.
var errNotBegun = errors.New("the journal was not begun yet")

// note is the receipt for intents that one sync brings to the disk.
type note struct {
	done chan struct{} // closed when it is over
	err  error         // after done
}

// newLedger takes up what the journal of an earlier start holds. j may be nil:
// then a crash loses what the database was not given yet.
func newLedger(records Records, j *journal.Journal, log *slog.Logger) *ledger {
	l := &ledger{
		records: records, journal: j, log: log,
		open: map[string][]byte{}, used: map[string]time.Time{},
		note: &note{done: make(chan struct{})},
		wake: make(chan struct{}, 1), full: make(chan struct{}, 1), sync: make(chan struct{}, 1),
	}
	if j != nil {
		l.takeUp(j.Found())
		l.broken = errNotBegun
		l.firm()
	}
	return l
}

// takeUp makes records of what an earlier start left in the journal: calls that
// were over, some of which the database knows already, and calls whose end
// nobody recorded.
func (l *ledger) takeUp(left [][]byte) {
	intents := map[string]account.Usage{}
	over := map[string]bool{}
	for _, text := range left {
		e, err := decodeEntry(text)
		switch {
		case err != nil:
			l.log.Error("cannot take up a record of the ledger", "error", err)
		case !e.ended:
			if intents[e.usage.CallID].Attempt <= e.usage.Attempt {
				intents[e.usage.CallID] = e.usage
			}
		case !over[e.usage.CallID]:
			over[e.usage.CallID] = true
			l.pending = append(l.pending, e.usage)
		}
	}
	interrupted := 0
	for id, u := range intents {
		if !over[id] {
			u.Code, u.TokensHow = account.Interrupted, account.TokensUnknown
			l.pending = append(l.pending, u)
			interrupted++
		}
	}
	if len(l.pending) > 0 {
		nudge(l.wake)
	}
	if interrupted > 0 {
		l.log.Warn("the hub died while calls ran; they are in the ledger as interrupted, their tokens unknown", "calls", interrupted)
	}
}

// begin notes the intent to send the call to the candidate, as the attempt of its
// Trace. When it returns, the death of this process does not lose the call; the
// note says when a power cut does not, which begins with sent. While the ledger cannot be written the
// error is CASCADE_EXHAUSTED (fault 27 of the trust page).
func (l *ledger) begin(call *gateway.Call, to fleet.Candidate) (*note, error) {
	u := usageOf(call)
	u.MachineID, u.OwnerID, u.GroupID = string(to.Machine.ID), string(to.Machine.Owner), string(to.GroupID())
	text := entry{usage: u}.encode()
	l.mu.Lock()
	if err := l.admit(text); err != nil {
		l.mu.Unlock()
		nudge(l.sync) // which tidies the journal
		return nil, fault.New(fault.CascadeExhausted, "the service could not write its ledger just now; try again shortly").Because(err)
	}
	l.open[call.ID] = text
	n, ended := l.note, l.ended
	l.mu.Unlock()
	if ended {
		l.firm()
	}
	return n, nil
}

// sent begins to bring intents to the disk. It is called when a call is on its
// way to its machine: a sync before that would take the processor from it.
func (l *ledger) sent() { nudge(l.sync) }

// admit writes an intent, unless there is no room for its end.
func (l *ledger) admit(text []byte) error {
	switch {
	case len(l.pending) >= ledgerBacklog:
		return errors.New("the database could not be written for too long")
	case l.journal == nil:
		return nil
	case l.broken != nil:
		return l.broken
	case l.journal.Used() > journalShare:
		return journal.ErrFull
	}
	if err := l.journal.Append(text); err != nil {
		return err
	}
	l.written++
	return nil
}

// await returns when the intent of the note is on the disk, or with the fault
// that says it could not be brought there. It ends with ctx.
func (l *ledger) await(ctx context.Context, n *note) error {
	if l.journal == nil {
		return nil
	}
	l.mu.Lock()
	forgotten := l.note == n
	l.mu.Unlock()
	if forgotten { // whatever became of the first time
		l.sent()
	}
	select {
	case <-n.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if n.err != nil {
		return fault.New(fault.CascadeExhausted, "the service could not write its ledger just now; try again shortly").Because(n.err)
	}
	return nil
}

// end records how a call ended, whether or not it began. It does not wait.
func (l *ledger) end(u account.Usage) {
	l.mu.Lock()
	_, began := l.open[u.CallID]
	if !began && len(l.pending) >= ledgerBacklog {
		l.dropped++
		l.mu.Unlock()
		return
	}
	delete(l.open, u.CallID)
	l.pending = append(l.pending, u)
	if l.journal != nil && l.broken == nil {
		// What cannot be written waits in memory for the database; should the hub
		// die before, the intent still tells of the call.
		if err := l.journal.Append(entry{true, u}.encode()); err == nil {
			l.written++
		}
	}
	ended, full := l.ended, len(l.pending) >= ledgerBatch
	l.mu.Unlock()
	if ended {
		_ = l.writeRest(context.Background()) // it says itself what it could not write
	}
	nudge(l.wake)
	if full {
		nudge(l.full)
	}
}

// touch notes that a key was used now.
func (l *ledger) touch(keyID string) {
	l.mu.Lock()
	l.used[keyID] = time.Now().UTC()
	l.mu.Unlock()
}

// keepFirm brings intents to the disk, many at once, until ctx ends.
func (l *ledger) keepFirm(ctx context.Context) error {
	if l.journal == nil {
		return nil
	}
	var last time.Time
	for ctx.Err() == nil {
		var again <-chan time.Time
		l.mu.Lock()
		if l.broken != nil {
			again = time.After(ledgerAgain)
		}
		l.mu.Unlock()
		select {
		case <-l.sync:
		case <-again:
		case <-ctx.Done():
		}
		if rest := syncPause - time.Since(last); rest > 0 {
			pause(ctx, rest)
			select { // what came meanwhile is served with it
			case <-l.sync:
			default:
			}
		}
		l.firm()
		last = time.Now()
	}
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.firm()
	return nil
}

// firm brings what is in the journal to the disk and tells those who wait for
// it. It begins the journal anew where that is due.
func (l *ledger) firm() {
	if l.journal == nil {
		return
	}
	l.syncing.Lock()
	defer l.syncing.Unlock()
	l.mu.Lock()
	n, news := l.note, l.broken == nil || l.broken == errNotBegun
	l.note = &note{done: make(chan struct{})}
	err := l.tidy()
	l.mu.Unlock()
	if err == nil {
		err = l.journal.Sync()
	}
	n.err = err
	close(n.done)
	l.mu.Lock()
	l.broken = err
	l.mu.Unlock()
	switch {
	case err != nil && news:
		l.log.Error("cannot write the ledger; calls are refused until it can be written", "error", err)
	case err == nil && !news:
		l.log.Info("the ledger is written")
	}
}

// tidy begins the journal anew, with the calls that are not in the database, if
// it is broken or mostly holds others.
func (l *ledger) tidy() error {
	if l.broken == nil && !l.stale() {
		return nil
	}
	entries := make([][]byte, 0, len(l.open)+len(l.pending))
	for _, text := range l.open {
		entries = append(entries, text)
	}
	for _, u := range l.pending {
		entries = append(entries, entry{true, u}.encode())
	}
	l.written = len(entries)
	return l.journal.Restart(entries)
}

// stale reports whether the journal is worth beginning anew: a good part of it
// is taken, most of that by calls that the database has.
func (l *ledger) stale() bool {
	return l.journal != nil && l.journal.Used() > journalStale && 2*(len(l.open)+len(l.pending)) < l.written
}

// run writes the records that come to the database until ctx ends, then what is
// left.
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
			pause(ctx, ledgerAgain)
		}
		select {
		case <-l.full:
		case <-time.After(ledgerPause):
		case <-ctx.Done():
		}
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

// flush writes everything pending, a batch a transaction. A record stays pending
// until it is written; one that is written twice counts once.
func (l *ledger) flush(ctx context.Context) error {
	l.storing.Lock()
	defer l.storing.Unlock()
	for {
		l.mu.Lock()
		batch := slices.Clone(l.pending[:min(ledgerBatch, len(l.pending))])
		l.mu.Unlock()
		if len(batch) == 0 {
			return l.flushRest(ctx)
		}
		err := l.records.RecordUsage(ctx, batch)
		if errors.Is(err, account.ErrInvalid) { // all others are written
			l.log.Error("a usage record was left out", "error", err)
			err = nil
		}
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.pending = l.pending[len(batch):]
		stale := l.stale()
		l.mu.Unlock()
		if stale {
			nudge(l.sync)
		}
	}
}

// flushRest writes the last uses of keys, and says what was dropped.
func (l *ledger) flushRest(ctx context.Context) error {
	l.mu.Lock()
	used, dropped := l.used, l.dropped
	l.used, l.dropped = map[string]time.Time{}, 0
	l.mu.Unlock()
	if dropped > 0 {
		l.log.Error("refusals were not recorded: the database could not be written for too long", "calls", dropped)
	}
	if len(used) == 0 {
		return nil
	}
	return l.records.TouchKeys(ctx, used)
}

// nudge wakes whoever listens, once.
func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
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

// usageOf is what is known of a call while it runs.
func usageOf(call *gateway.Call) account.Usage {
	return account.Usage{
		CallID: call.ID, Attempt: max(1, call.Trace.Attempts), Started: call.Arrived.UTC(),
		MemberID: string(call.Caller.Member), KeyID: call.Caller.KeyID,
		MachineID: string(call.Trace.Machine), OwnerID: string(call.Trace.Owner), GroupID: string(call.Trace.Group),
		Model: string(call.Model), Endpoint: call.Endpoint.Path(), Stream: call.Stream,
		Waited: within(call.Trace.Waited, maxDuration),
	}
}

// record turns a finished call into its usage record (decisions 7): who, what,
// how it ended; nothing of its content.
func record(call *gateway.Call, out gateway.Outcome) account.Usage {
	u := usageOf(call)
	switch {
	case out.Reported:
		u.TokensHow = account.TokensReported
	case out.TokensOut > 0:
		u.TokensHow = account.TokensCounted
	}
	u.Status, u.Code = out.Status, out.Code
	u.FirstByte, u.Duration = within(out.FirstByte, maxDuration), within(out.Duration, maxDuration)
	u.TokensIn, u.TokensOut = within(out.TokensIn, maxTokens), within(out.TokensOut, maxTokens)
	return u
}

// What a record may hold: an engine may claim any number of tokens, and a clock
// may jump. Within these the store takes every record.
const (
	maxTokens   = math.MaxInt32
	maxDuration = 24 * time.Hour
)

func within[N int64 | time.Duration](n, most N) N { return min(max(n, 0), most) }
