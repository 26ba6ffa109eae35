// Package ledger stores what the hub records about its calls:
//
//   - Ledger: one usage record for each call. It survives a crash of the hub.
//   - Traces: how each call was routed, and the machines that were tried, for its caller
//     and the machines' owners. A crash loses the last second of them.
//   - Turns: the turns of the responses dialect that a later call may refer to,
//     sealed.
//
// A usage record is written in these steps:
//
//	Begin ── intent ──▶ journal ── sync, every 2 ms at most ──▶ Await returns
//	End ──── result ──▶ journal, and pending ── Run, in batches ──▶ database
//
// An intent is in the journal before its call is sent to a machine, and on disk before
// the first byte of the answer is sent to the caller. The journal is restarted when most
// of its entries are in the database. New closes calls that were still open when an
// earlier process ended, as account.Interrupted (docs/decisions/0002-ledger.md).
package ledger

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/ledger/journal"
)

const (
	// batchSize is the maximum number of records in one transaction.
	batchSize = 512
	// maxPending is the maximum number of records that wait while the database cannot be
	// written. Beyond it calls are refused, and refusals are not recorded.
	maxPending = 100_000
	// maxWritten and writtenFor limit the records that are kept for Requeue.
	maxWritten = maxPending / 2
	writtenFor = time.Minute
	// shutdownTimeout is the timeout of the last write when the hub stops.
	shutdownTimeout = 5 * time.Second
	// batchDelay is how long records are collected for one transaction. Its sync costs as
	// much as about fifty records.
	batchDelay = 250 * time.Millisecond
	// retryDelay is the pause between two attempts at a failing write.
	retryDelay = time.Second
	// syncInterval is the minimum time between two syncs of the journal. Concurrent calls
	// share a sync, and most engines take much longer until their first byte.
	syncInterval = 2 * time.Millisecond
	// intentShare is the part of the journal that intents may fill. The rest is reserved
	// for results, so that running calls can end when the disk is full.
	intentShare = 0.5
	// restartAbove is how full the journal must be before a restart is worthwhile.
	restartAbove = 0.25

	usageRecords = "usage records" // in the log
)

// Store is the part of the database that this package uses. *store.DB implements it.
type Store interface {
	// Now returns the time by the database's clock.
	Now() time.Time
	// RecordUsage adds records. A record that is already stored counts only once.
	RecordUsage(context.Context, []account.Usage) error
	TouchKeys(context.Context, map[string]time.Time) error

	SaveTraces(ctx context.Context, traces []account.Trace, now time.Time) error
	Trace(ctx context.Context, callID, memberID string) (account.Trace, error)

	KeepTurn(ctx context.Context, turn account.Turn, most int, mostBytes int64) error
	Turn(ctx context.Context, hash [32]byte, memberID string, now time.Time) (account.Turn, error)
	TurnSize(ctx context.Context, hash [32]byte, memberID string, now time.Time) (int64, error)
	ForgetTurn(ctx context.Context, hash [32]byte, memberID string, now time.Time) error
	PruneTurns(ctx context.Context, now time.Time) error
}

// Ledger records the usage of calls. Create it with New, then Run it.
type Ledger struct {
	store   Store
	journal *journal.Journal // nil: only the database outlives the process
	log     *slog.Logger

	syncing  sync.Mutex // serializes the journal's Sync and Restart
	flushing sync.Mutex // held while records are taken from pending

	mu       sync.Mutex
	open     map[string][]byte    // call id: its newest intent, encoded
	pending  []account.Usage      // results that are not in the database yet
	written  []writtenBatch       // recently written to the database; oldest first
	refused  time.Time            // when a call was last refused because it could not be recorded
	keysUsed map[string]time.Time // key id: last use, not yet written
	next     *Receipt             // of the intents that the next sync includes
	entries  int                  // number in the journal's active slot
	broken   error                // why the journal accepts nothing until its next restart
	dropped  int                  // number of refusals that were not recorded
	stopped  bool                 // Run has ended: Begin and End write themselves

	wake chan struct{} // there are pending records
	sync chan struct{} // there are intents to sync
}

// writtenBatch is a batch of records that are in the database.
type writtenBatch struct {
	at      time.Time
	records []account.Usage
}

// errNotStarted is why a new ledger accepts nothing before its first restart.
var errNotStarted = errors.New("the journal was not started yet")

// Receipt belongs to the intents that one sync writes to disk.
type Receipt struct {
	done chan struct{} // closed after the sync
	err  error         // of the sync; read after done
}

// New returns a ledger that has read the entries of an earlier process from journal j. If
// j is nil, a crash loses the records that are not in the database.
func New(store Store, j *journal.Journal, log *slog.Logger) *Ledger {
	l := &Ledger{
		store: store, journal: j, log: log,
		open: map[string][]byte{}, keysUsed: map[string]time.Time{},
		next: &Receipt{done: make(chan struct{})},
		wake: make(chan struct{}, 1), sync: make(chan struct{}, 1),
	}
	if j != nil {
		l.restore(j.Found())
		if n := j.Damage(); n > 0 {
			l.log.Error("the journal is damaged: what was recorded in these bytes is lost, all other calls are kept; check this disk", "bytes", n)
		}
		l.broken = errNotStarted
		l.syncJournal()
	}
	return l
}

// restore adds pending records for the entries of an earlier process. These are calls
// that ended, though some may be in the database already, and calls without a result,
// which are recorded as interrupted.
func (l *Ledger) restore(left [][]byte) {
	intents := map[string]account.Usage{}
	ended := map[string]bool{}
	for _, text := range left {
		e, err := decodeEntry(text)
		switch {
		case err != nil:
			l.log.Error("cannot read an entry of the journal", "error", err)
		case !e.Ended:
			if intents[e.Usage.CallID].Attempt <= e.Usage.Attempt {
				intents[e.Usage.CallID] = e.Usage
			}
		case !ended[e.Usage.CallID]:
			ended[e.Usage.CallID] = true
			l.pending = append(l.pending, e.Usage)
		}
	}
	interrupted := 0
	for id, u := range intents {
		if !ended[id] {
			l.pending = append(l.pending, interrupt(u))
			interrupted++
		}
	}
	if len(l.pending) > 0 {
		notify(l.wake)
	}
	if interrupted > 0 {
		l.log.Warn("the hub died while calls ran; they are in the ledger as interrupted, their tokens unknown", "calls", interrupted)
	}
}

// interrupt returns the record for a call without a result.
func interrupt(u account.Usage) account.Usage {
	u.Code, u.TokensHow = account.Interrupted, account.TokensUnknown
	return u
}

// Open returns the calls that have no result yet, as a crash would leave them in the
// ledger.
func (l *Ledger) Open() []account.Usage {
	l.mu.Lock()
	texts := slices.Collect(maps.Values(l.open))
	l.mu.Unlock()
	calls := make([]account.Usage, 0, len(texts))
	for _, text := range texts {
		if e, err := decodeEntry(text); err == nil { // encoded by Begin, so that it is valid
			calls = append(calls, interrupt(e.Usage))
		}
	}
	return calls
}

// Begin records the intent to send a call to a machine. u is what is known of the call so
// far. After Begin returns, a crash of this process does not lose the call; after Await,
// a power cut does not. If the ledger cannot be written, the error is CASCADE_EXHAUSTED
// (docs/faults.md#27).
func (l *Ledger) Begin(u account.Usage) (*Receipt, error) {
	text := entry{Usage: u}.encode()
	l.mu.Lock()
	if err := l.appendIntent(text); err != nil {
		l.refused = time.Now()
		l.mu.Unlock()
		notify(l.sync) // restarts the journal if that helps
		return nil, notWritten(err)
	}
	l.open[u.CallID] = text
	receipt, stopped := l.next, l.stopped
	l.mu.Unlock()
	if stopped {
		l.syncJournal()
	}
	return receipt, nil
}

func notWritten(err error) *fault.Fault {
	return fault.New(fault.CascadeExhausted, "the service could not write its ledger just now; try again shortly").Because(err)
}

// appendIntent writes an intent, if there is room for it and its result. mu must be held.
func (l *Ledger) appendIntent(text []byte) error {
	switch {
	case len(l.pending) >= maxPending:
		return errors.New("the database could not be written for too long")
	case l.journal == nil:
		return nil
	case l.broken != nil:
		return l.broken
	case l.journal.Used() > intentShare:
		return journal.ErrFull
	}
	return l.append(text)
}

// append writes an entry to the journal. mu must be held.
func (l *Ledger) append(text []byte) error {
	err := l.journal.Append(text)
	if err == nil {
		l.entries++
	}
	return err
}

// RequestSync starts a sync of the journal. It should be called after the call was sent
// to its machine, because an earlier sync would delay that.
func (l *Ledger) RequestSync() { notify(l.sync) }

// Await returns when the receipt's intent is on disk, or an error if it could not be
// written or ctx ended.
func (l *Ledger) Await(ctx context.Context, r *Receipt) error {
	if l.journal == nil {
		return nil
	}
	l.mu.Lock()
	unsynced := l.next == r
	l.mu.Unlock()
	if unsynced { // in case RequestSync was not called
		l.RequestSync()
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if r.err != nil {
		return notWritten(r.err)
	}
	return nil
}

// End records how a call ended, even if Begin was not called for it. It does not block
// until Run has ended; after that it writes to the database.
func (l *Ledger) End(u account.Usage) {
	l.mu.Lock()
	_, began := l.open[u.CallID]
	if !began && len(l.pending) >= maxPending {
		l.dropped++
		l.mu.Unlock()
		return
	}
	delete(l.open, u.CallID)
	l.pending = append(l.pending, u)
	if l.journal != nil && l.broken == nil {
		// If a result cannot be appended, it waits in memory for the database. If the hub
		// crashes before it is written there, the intent remains.
		_ = l.append(entry{true, u}.encode())
	}
	stopped := l.stopped
	l.mu.Unlock()
	if stopped {
		_ = last(context.Background(), l.Flush, l.log, usageRecords) // it logs its error
	}
	notify(l.wake)
}

// KeyUsed records that an API key was used now.
func (l *Ledger) KeyUsed(id string) {
	l.mu.Lock()
	l.keysUsed[id] = l.store.Now().UTC()
	l.mu.Unlock()
}

// Status is the state of a Ledger, for the operator.
type Status struct {
	Journal bool    // the ledger has one
	Used    float64 // how full the journal is, from 0 to 1
	Bytes   int64   // used bytes of the journal
	Open    int     // number of calls without a result
	Pending int     // number of results that are not in the database yet
	Broken  bool    // the journal accepts nothing, and calls are refused
	// Refused is when a call was last refused because it could not be recorded; zero if
	// never.
	Refused time.Time
	// Oldest is the end of the oldest call whose result is pending; zero if there is
	// none.
	Oldest time.Time
}

// Status returns the ledger's current state.
func (l *Ledger) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Status{Journal: l.journal != nil, Open: len(l.open), Pending: len(l.pending), Broken: l.broken != nil, Refused: l.refused}
	if s.Journal {
		s.Used, s.Bytes = l.journal.Used(), l.journal.Bytes()
	}
	if len(l.pending) > 0 {
		s.Oldest = l.pending[0].Started.Add(l.pending[0].Duration)
	}
	return s
}

// Run syncs the journal and writes records to the database until ctx ends. Then it writes
// what is pending.
func (l *Ledger) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	loops.Go(func() { l.runFlush(ctx) })
	if l.journal != nil {
		loops.Go(func() { l.runSync(ctx) })
	}
	loops.Wait()
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	l.syncJournal()
	return last(ctx, l.Flush, l.log, usageRecords)
}

// runSync syncs the journal on request, at most once every syncInterval, until ctx ends.
// If the journal is broken, it retries.
func (l *Ledger) runSync(ctx context.Context) {
	for ctx.Err() == nil {
		var retry <-chan time.Time
		l.mu.Lock()
		if l.broken != nil {
			retry = time.After(retryDelay)
		}
		l.mu.Unlock()
		select {
		case <-l.sync:
		case <-retry:
		case <-ctx.Done():
		}
		l.syncJournal()
		sleep(ctx, syncInterval)
	}
}

// syncJournal writes the journal's entries to disk and closes the receipt of their
// intents. If the journal is due for a restart, it restarts it first.
func (l *Ledger) syncJournal() {
	if l.journal == nil {
		return
	}
	l.syncing.Lock()
	defer l.syncing.Unlock()
	l.mu.Lock()
	receipt, worked := l.next, l.broken == nil || l.broken == errNotStarted
	l.next = &Receipt{done: make(chan struct{})}
	err := l.restartIfDue()
	l.mu.Unlock()
	if err == nil {
		err = l.journal.Sync()
	}
	receipt.err = err
	close(receipt.done)
	l.mu.Lock()
	l.broken = err
	l.mu.Unlock()
	switch {
	case err != nil && worked:
		l.log.Error("cannot write the ledger; calls are refused until it can be written", "error", err)
	case err == nil && !worked:
		l.log.Info("the ledger is written again")
	}
}

// restartIfDue restarts the journal with the entries that the database does not have. It
// does so only if the journal is broken or most of its entries are in the database. Needs
// mu.
func (l *Ledger) restartIfDue() error {
	if l.broken == nil && !l.restartDue() {
		return nil
	}
	entries := make([][]byte, 0, len(l.open)+len(l.pending))
	for _, text := range l.open {
		entries = append(entries, text)
	}
	for _, u := range l.pending {
		entries = append(entries, entry{true, u}.encode())
	}
	l.entries = len(entries)
	return l.journal.Restart(entries)
}

// restartDue reports whether much of the journal is used, mostly by calls that are in the
// database. mu must be held.
func (l *Ledger) restartDue() bool {
	return l.journal != nil && l.journal.Used() > restartAbove && 2*(len(l.open)+len(l.pending)) < l.entries
}

// runFlush writes pending records to the database until ctx ends.
func (l *Ledger) runFlush(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-l.wake:
		case <-time.After(time.Minute): // for the last uses of keys, which do not wake it
		case <-ctx.Done():
		}
		retry(ctx, l.Flush, l.log, usageRecords)
		sleep(ctx, batchDelay)
	}
}

// retry calls flush until it succeeds or ctx ends. It logs the first failure, then at
// most one each minute, and the recovery.
func retry(ctx context.Context, flush func(context.Context) error, log *slog.Logger, of string) {
	var logged time.Time
	err := flush(ctx)
	for ; err != nil && ctx.Err() == nil; err = flush(ctx) {
		if now := time.Now(); now.Sub(logged) >= time.Minute {
			logged = now
			log.Error("cannot write "+of+"; they are kept and tried again each second", "error", err)
		}
		sleep(ctx, retryDelay)
	}
	if err == nil && !logged.IsZero() {
		log.Info(of + " are written again")
	}
}

// last calls flush once, with shutdownTimeout, after ctx has ended.
func last(ctx context.Context, flush func(context.Context) error, log *slog.Logger, of string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	err := flush(ctx)
	if err != nil {
		log.Error("cannot write the last "+of, "error", err)
	}
	return err
}

// Flush writes all pending records to the database, one transaction for each batch. A
// record stays pending until it is written. If it is written twice, it counts only once.
func (l *Ledger) Flush(ctx context.Context) error {
	l.flushing.Lock()
	defer l.flushing.Unlock()
	for {
		l.mu.Lock()
		batch := slices.Clone(l.pending[:min(batchSize, len(l.pending))])
		l.mu.Unlock()
		if len(batch) == 0 {
			return l.flushKeys(ctx)
		}
		err := l.store.RecordUsage(ctx, batch)
		if errors.Is(err, account.ErrInvalid) { // the rest of the batch was written
			l.log.Error("a usage record was left out", "error", err)
			err = nil
		}
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.pending = l.pending[len(batch):]
		l.keepWritten(batch, time.Now())
		due := l.restartDue()
		l.mu.Unlock()
		if due {
			notify(l.sync)
		}
	}
}

// keepWritten keeps a batch for Requeue, and drops old ones. mu must be held.
func (l *Ledger) keepWritten(batch []account.Usage, now time.Time) {
	l.written = append(l.written, writtenBatch{now, batch})
	kept, drop := 0, 0
	for _, w := range l.written {
		kept += len(w.records)
	}
	for ; kept > maxWritten || now.Sub(l.written[drop].at) > writtenFor; drop++ {
		kept -= len(l.written[drop].records)
	}
	l.written = slices.Delete(l.written, 0, drop)
}

// Requeue makes the records of the last minute pending again, because the database
// failed over to a server that may lack them. It does not block.
func (l *Ledger) Requeue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.written {
		l.pending = append(l.pending, w.records...)
	}
	l.written = nil
	notify(l.wake)
}

// flushKeys writes the last uses of keys, and logs how many records were dropped.
func (l *Ledger) flushKeys(ctx context.Context) error {
	l.mu.Lock()
	used, dropped := l.keysUsed, l.dropped
	l.keysUsed, l.dropped = map[string]time.Time{}, 0
	l.mu.Unlock()
	if dropped > 0 {
		l.log.Error("refusals were not recorded: the database could not be written for too long", "calls", dropped)
	}
	if len(used) == 0 {
		return nil
	}
	err := l.store.TouchKeys(ctx, used)
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		maps.Copy(used, l.keysUsed) // later uses win
		l.keysUsed = used
	}
	return err
}

// notify wakes the receiver of c. Calls before it wakes have no further effect.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// entry is one record of the journal: the intent to send a call to a machine, or the
// result of a call. In an intent, Status and the fields after it are zero. On disk it is
// a CBOR map. Readers skip unknown keys.
type entry struct {
	Ended bool          `cbor:"1,keyasint,omitempty"`
	Usage account.Usage `cbor:"2,keyasint"`
}

var encoder, _ = cbor.EncOptions{Time: cbor.TimeRFC3339Nano}.EncMode() // the options are valid

func (e entry) encode() []byte {
	text, err := encoder.Marshal(e)
	if err != nil {
		panic(err) // cannot happen: every field can be encoded
	}
	return text
}

func decodeEntry(text []byte) (e entry, err error) {
	if err := cbor.Unmarshal(text, &e); err != nil {
		return entry{}, errors.Join(errEntry, err)
	}
	return e, nil
}

var errEntry = errors.New("an entry of the journal cannot be read: another version of kith wrote it")
