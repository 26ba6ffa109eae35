// Package registry holds the live state of a region on one hub node: which machines
// are connected and what they advertise, who shares with whom, which groups there
// are. It publishes that as an immutable fleet.Snapshot, which it alone writes, and
// reaches the machines whose tunnels end here.
//
//	store ── poll each second, or after a commit ──▶ Registry ──▶ Snapshot, Line
//	tunnel ── advertisements (Serve) ──────────────▶    │
//	                                                    └──▶ Observer: what changed
//
// The registry imports and calls none of those who use it. They read the snapshot,
// and Observe what changes.
//
// The store holds what lasts; the registry polls its epoch. The store's notification of a
// commit makes the next poll come sooner and changes nothing else, so that one that is
// repeated or lost does no harm.
package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

const (
	// A machine is expected back for so long after its tunnel ended, the node of its tunnel
	// was lost, and this node started (spec/routing.md#returning).
	returnAfterLoss  = 10 * time.Second
	returnAfterNode  = 30 * time.Second
	returnAfterStart = 30 * time.Second

	keepFor      = 30 * 24 * time.Hour   // a machine that is not seen stays in the snapshot
	purgeEvery   = time.Hour             // the others are removed
	confirmedFor = 5 * time.Second       // calls may be granted after a confirmation
	pollEvery    = time.Second           // the store is polled
	pollGap      = 20 * time.Millisecond // between two polls, however many notifications come
	pollWithin   = 4 * time.Second       // the store answers
	readsAtOnce  = 4                     // of what changed
	settleWithin = time.Second           // Settle returns
	joinWithin   = 10 * time.Second      // Joined is true after the start
	ackWithin    = 5 * time.Second       // a machine takes the acknowledgement
)

// A machine that comes back more than 3 times in a minute flaps: no call is sent to
// it for a minute (docs/faults.md#34).
const (
	flapCount  = 4 // arrivals before the one that is too many
	flapWindow = time.Minute
)

var (
	// ErrFenced ends Serve: a newer tunnel of the machine took over.
	ErrFenced = errors.New("a newer tunnel of the machine took over")
	// ErrRevoked ends Serve: the machine may no longer connect.
	ErrRevoked = errors.New("the machine was revoked or its owner disabled")
	// ErrNotConnected is the error of Control for a machine that is connected to no node.
	ErrNotConnected = errors.New("the machine is not connected")
)

// Facts is the part of the store that the registry reads, for one region. After an
// error the registry tries again.
type Facts interface {
	// Now is the time by the store's clock: the same at all nodes.
	Now() time.Time
	// Kept is every machine that may connect and was seen at since or later.
	Kept(ctx context.Context, since time.Time) ([]fleet.StoredMachine, error)
	// KeptMachine is one machine; false once it is revoked or its owner disabled.
	KeptMachine(ctx context.Context, id fleet.MachineID) (fleet.StoredMachine, bool, error)
	// Shares is every share in force.
	Shares(ctx context.Context) ([]*fleet.Share, error)
	// SharesTo is every share in force that names the member.
	SharesTo(ctx context.Context, member fleet.MemberID) ([]*fleet.Share, error)
	// Groups is every group, members that are disabled left out.
	Groups(ctx context.Context) ([]*fleet.Group, error)
	// Group is one group as in Groups; nil once it is gone.
	Group(ctx context.Context, id fleet.GroupID) (*fleet.Group, error)
	// Position is the position of the newest change.
	Position(ctx context.Context) (fleet.Position, error)
	// Follow calls changed, which does not block, after each commit that Poll would
	// return, until ctx ends. It may miss some.
	Follow(ctx context.Context, changed func())
	// Poll is what changed after that position; or fleet.ErrBehind, and everything has
	// to be read again; or fleet.ErrReplaced, and this node ends. When it returns,
	// the store has confirmed that it holds all that was committed before the call.
	Poll(ctx context.Context, after fleet.Position) (fleet.Update, error)
	// Generations is the number of the newest tunnel of each of the machines, as far as
	// they are there.
	Generations(ctx context.Context, ids []fleet.MachineID) (map[fleet.MachineID]int64, error)
	// RemoveNode removes a node that ended, unless its row moved since it was read.
	RemoveNode(context.Context, fleet.Node) error
	// SaveOffers keeps a machine's last advertisement and when it was last seen.
	SaveOffers(ctx context.Context, id fleet.MachineID, advertisement []byte, seen time.Time) error
}

// Config is what a Registry works with. All fields are needed.
type Config struct {
	Node   string // this hub node's name, unique in the region
	Region string
	Facts  Facts
	Log    *slog.Logger
}

// Observer is notified of changes once the Snapshot holds them; Committed is called before
// that. The functions may be called by several goroutines at once and must not block, but
// for Committed; nil ones are skipped.
type Observer struct {
	// Committed gets the store's changes before the Snapshot holds them, and reads what it
	// needs of the store: the Snapshot waits until it returns. It gets them again if what
	// changed could not be read. After a gap they are nil, as for Store.
	Committed func([]fleet.Change)
	// Store gets the store's changes, and what they affect. After a gap
	// (fleet.ErrBehind) the changes are nil: everything may have changed.
	Store func([]fleet.Change, fleet.Affected)
	// FailedOver is called when another database server may have taken over, which may
	// lack what was committed last.
	FailedOver func()
	// Machine gets a machine that may have free slots, or whose waiting calls are to
	// be decided again: it connected, disconnected, changed, or is no longer expected
	// back.
	Machine func(fleet.MachineID)
}

// Registry is the live state of one region on one hub node. Make it with New.
type Registry struct {
	config    Config
	made      time.Time
	observer  Observer
	snapshot  atomic.Pointer[fleet.Snapshot]
	confirmed atomic.Pointer[time.Time] // the snapshot holds what was committed before
	nodes     atomic.Pointer[[]seenNode]
	lines     sync.Map      // fleet.MachineID → *connection, routable ones only
	ready     chan struct{} // closed after the first load
	nudged    chan struct{} // one request to poll now
	polls     polls
	drained   chan struct{} // closed once this node's row says that it drains
	drainOnce sync.Once
	others    Others // set by SetOthers; nil: there are none
	stopped   atomic.Bool

	mu sync.Mutex // held by the writer; guards what is below
	// entries has every machine in the snapshot and every attached one.
	entries map[fleet.MachineID]*entry
	shared  map[fleet.MemberID]struct{} // members with shares in the snapshot
	groups  map[fleet.GroupID]struct{}  // groups in the snapshot
	// position is that of the snapshot. Only poll and load use it.
	position fleet.Position
	// What endTunnels ends once the snapshot is published: tunnels of revoked machines and
	// replaced ones, tunnels of clones, and ways that were taken out of lines.
	closing, fencing []*tunnel.Client
	taken            []*connection
	// retired has the tunnels that are kept for the calls that run on them.
	retired map[*tunnel.Client]retired
	loaded  time.Time   // when everything was loaded first
	joined  atomic.Bool // see Joined

	clockAhead atomic.Int64 // nanoseconds, see ClockAhead
}

// connection is the way to a machine whose tunnel is acknowledged, as the writer has it:
// a Line, whose lost channel it closes.
type connection struct {
	http.RoundTripper
	home string        // the node at which the tunnel ends; empty: this one
	lost chan struct{} // closed once the Snapshot holds that the tunnel ended
}

// Line is the way to a machine that is connected.
type Line struct {
	http.RoundTripper
	// Gone is closed when the machine is not connected by this way any more. By then the
	// Snapshot holds that, so that a call which is decided again does not choose it.
	Gone <-chan struct{}
	// Home is the node at which the machine's tunnel ends, and which passes requests on;
	// empty: this one.
	Home string
}

// disconnectGrace is how long Ended waits: HTTP/2 reports the end of a connection to its
// streams, and a daemon that stops resets them, a moment before the tunnel is closed.
const disconnectGrace = 250 * time.Millisecond

// Ended waits for the machine to be connected by this way no longer, for 250 ms at most or
// until ctx ends, and reports whether that is so.
func (l Line) Ended(ctx context.Context) bool {
	select {
	case <-l.Gone:
		return true
	case <-time.After(disconnectGrace):
	case <-ctx.Done():
	}
	return l.HasEnded()
}

// HasEnded reports whether the machine is connected by this way no longer.
func (l Line) HasEnded() bool {
	select {
	case <-l.Gone:
		return true
	default:
		return false
	}
}

// entry is what the writer knows of a machine beside its fleet.Machine.
type entry struct {
	kept       fleet.StoredMachine      // without the advertisement
	client     *tunnel.Client           // of its tunnel, if that ends here; else nil
	refreshed  bool                     // kept was read again since the tunnel was attached
	moving     bool                     // the daemon was asked for another tunnel
	instance   string                   // of the daemon's process; may be empty
	home       string                   // the other node at which its tunnel ends; empty: none
	generation int64                    // of the newest tunnel, here or there
	arrivals   [flapCount]time.Duration // the latest, after the registry was made; a ring
	arrived    int
}

// New returns an empty Registry.
func New(config Config) *Registry {
	r := &Registry{
		config:  config,
		made:    time.Now(),
		ready:   make(chan struct{}),
		nudged:  make(chan struct{}, 1),
		polls:   polls{next: make(chan struct{})},
		drained: make(chan struct{}),
		entries: make(map[fleet.MachineID]*entry),
		retired: make(map[*tunnel.Client]retired),
		shared:  make(map[fleet.MemberID]struct{}),
		groups:  make(map[fleet.GroupID]struct{}),
	}
	r.snapshot.Store(fleet.NewSnapshot())
	return r
}

// Observe sets the Observer. It is called before Run and Serve.
func (r *Registry) Observe(o Observer) { r.observer = o }

// SetOthers sets the other hub nodes of the region. It is called before Run and Serve.
func (r *Registry) SetOthers(o Others) { r.others = o }

// Run loads what the store keeps and follows its changes until ctx ends. It fails if
// the store cannot be read at the start, or another process takes this node's name
// (fleet.ErrReplaced).
func (r *Registry) Run(ctx context.Context) error {
	defer r.stopped.Store(true)
	if err := r.load(ctx, r.Now().Add(returnAfterStart)); err != nil {
		return fmt.Errorf("cannot load the registry: %w", err)
	}
	if err := r.poll(ctx); err != nil { // which confirms what was loaded
		return fmt.Errorf("cannot load the registry: %w", err)
	}
	r.mu.Lock()
	r.loaded = time.Now()
	r.mu.Unlock()
	close(r.ready)
	again := time.AfterFunc(returnAfterStart, r.notifyNotReturned)
	defer again.Stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { r.config.Facts.Follow(ctx, r.pollNow); return nil })
	g.Go(func() error { return r.follow(ctx) })
	return g.Wait()
}

// NodeName returns this node's name.
func (r *Registry) NodeName() string { return r.config.Node }

// Ready is closed once everything is loaded. Before that the Snapshot lacks machines,
// and a refusal made from it would be wrong.
func (r *Registry) Ready() <-chan struct{} { return r.ready }

// Loaded returns how long ago everything was loaded.
func (r *Registry) Loaded() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.loaded)
}

// Joined reports whether the Snapshot has the machines of the other nodes, and not only
// those of this one. It is true some seconds after the start in any case: a node that
// cannot be reached does not keep this one from serving.
func (r *Registry) Joined(now time.Time) bool {
	if r.joined.Load() {
		return true
	}
	r.mu.Lock()
	since := now.Sub(r.loaded)
	r.mu.Unlock()
	if since < joinWithin && slices.ContainsFunc(r.Peers(now), func(n Node) bool {
		// Whether a node is alive is not known before its beat had the time to move.
		return r.heard(n.Name).IsZero() && (n.Alive || since < aliveFor)
	}) {
		return false
	}
	r.joined.Store(true)
	return true
}

// Snapshot returns the present state. It costs nothing.
func (r *Registry) Snapshot() *fleet.Snapshot { return r.snapshot.Load() }

// Confirmed reports whether the Snapshot holds every change of the store up to
// 5 s before now, a time of this process's monotonic clock; if not, nothing may be
// granted from it (spec/routing.md#row-2).
func (r *Registry) Confirmed(now time.Time) bool {
	at := r.confirmed.Load()
	return at != nil && now.Sub(*at) <= confirmedFor
}

// Settle polls the store now, and returns once this node's Snapshot has what was
// committed before the call, or ctx has ended; a store that does not answer delays it for a
// second at most. Before everything is loaded it does not wait.
func (r *Registry) Settle(ctx context.Context) {
	begun, _, _ := r.polls.now()
	r.pollNow()
	select {
	case <-r.ready:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	for !r.stopped.Load() {
		_, good, next := r.polls.now()
		if good > begun {
			return
		}
		select {
		case <-next:
		case <-ctx.Done():
			return
		}
	}
}

// polls counts the polls of the store. One that begins after a commit reads it.
type polls struct {
	mu    sync.Mutex
	begun int           // how many have begun
	good  int           // the last one that ended well, by its number
	next  chan struct{} // closed when another one ends well
}

func (p *polls) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun++
}

// end is called when the poll that began last has ended well.
func (p *polls) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.good = p.begun
	close(p.next)
	p.next = make(chan struct{})
}

func (p *polls) now() (begun, good int, next <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.begun, p.good, p.next
}

// pollNow makes the next poll come now; many calls at once make one poll.
func (r *Registry) pollNow() {
	select {
	case r.nudged <- struct{}{}:
	default:
	}
}

// Line returns the way to a machine whose tunnel is acknowledged, at this node or at
// another one.
func (r *Registry) Line(id fleet.MachineID) (Line, bool) {
	found, ok := r.lines.Load(id)
	if !ok {
		return Line{}, false
	}
	c := found.(*connection)
	return Line{c.RoundTripper, c.lost, c.home}, true
}

// Tunnel returns the way to a machine by a tunnel that ends at this node: the one by which
// it gets calls, or else one that is kept for the calls on it.
func (r *Registry) Tunnel(id fleet.MachineID) (Line, bool) {
	if line, ok := r.Line(id); ok && line.Home == "" {
		return line, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, kept := range r.retired {
		if kept.machine == id {
			return Line{kept.RoundTripper, kept.lost, ""}, true
		}
	}
	return Line{}, false
}

// dropLine takes the way to a machine out of lines. Needs mu.
func (r *Registry) dropLine(id fleet.MachineID) {
	r.disconnected(id)
	if found, ok := r.lines.LoadAndDelete(id); ok {
		r.taken = append(r.taken, found.(*connection))
	}
}

func (r *Registry) disconnected(id fleet.MachineID) {
	if r.others != nil {
		r.others.Disconnected(id)
	}
}

// Control sends a connected machine a change that its owner made. The error is
// ErrNotConnected if the machine is not connected.
func (r *Registry) Control(ctx context.Context, id fleet.MachineID, change tunnel.Control) error {
	line, ok := r.lines.Load(id)
	if !ok {
		return ErrNotConnected
	}
	return tunnel.SendControl(ctx, line.(*connection), change)
}

// write runs change as the only writer: it gets the snapshot and returns the next,
// and the machines that the Observer is notified of. Tunnels that change took out of use
// end before that.
func (r *Registry) write(change func(*fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID)) {
	freed := r.publish(change)
	r.endTunnels()
	for _, id := range freed {
		r.notifyMachine(id)
	}
}

// publish is the first part of write.
func (r *Registry) publish(change func(*fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID)) (freed []fleet.MachineID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next, freed := change(r.snapshot.Load())
	r.snapshot.Store(next)
	return freed
}

// endTunnels ends the tunnels in closing and fencing, and closes the lost channels of the
// connections in taken.
func (r *Registry) endTunnels() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, client := range r.closing {
		client.Close()
	}
	for _, client := range r.fencing { // a dead peer takes 2 s, for which no one waits
		go client.Fence(context.Background())
	}
	for _, c := range r.taken {
		close(c.lost)
	}
	r.closing, r.fencing, r.taken = nil, nil, nil
}

func (r *Registry) notifyMachine(id fleet.MachineID) {
	if r.observer.Machine != nil && !r.stopped.Load() {
		r.observer.Machine(id)
	}
}

// Now returns the time by the store's clock: the same at all nodes. What is stored, what
// is compared with that, and each time in the snapshot is by this clock.
func (r *Registry) Now() time.Time { return r.config.Facts.Now() }

// notifyNotReturned notifies of every machine that did not come back in time.
func (r *Registry) notifyNotReturned() {
	now := r.Now()
	for m := range r.Snapshot().Machines() {
		if !m.Online && !m.ReturningUntil.After(now) {
			r.notifyMachine(m.ID)
		}
	}
}
