// Package registry holds the live state of a region on one hub node: which machines
// are connected and what they advertise, who shares with which member, and the groups.
// It publishes that as an immutable fleet.Snapshot, of which it is the only writer, and
// sends requests to the machines whose tunnels end here.
//
//	store ── poll each second, or after a commit ──▶ Registry ──▶ Snapshot, Line
//	tunnel ── advertisements (Serve) ──────────────▶    │
//	                                                    └──▶ Observer: what changed
//
// The registry imports none of its users; it calls them only through Observer and Others.
//
// The store holds everything that lasts, and the registry polls its epoch. When the store
// notifies it of a commit, the registry polls at once and does nothing else, so that a
// repeated or lost notification does no harm.
package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

const (
	// How long a machine is expected back after its tunnel ended, after the node of its
	// tunnel was lost, and after this node started (spec/routing.md#returning).
	returnAfterLoss  = 10 * time.Second
	returnAfterNode  = 30 * time.Second
	returnAfterStart = 30 * time.Second

	// keepFor is how long a machine stays in the snapshot after it was last seen, and
	// purgeEvery the interval between removals of older machines.
	keepFor    = 30 * 24 * time.Hour
	purgeEvery = time.Hour
	// confirmedFor is how long calls may be granted after a confirmation by the store.
	confirmedFor = 5 * time.Second
	// pollEvery is the interval of polls of the store, and pollGap the minimum time between
	// two polls, however many notifications arrive.
	pollEvery = time.Second
	pollGap   = 20 * time.Millisecond
	// pollWithin is the timeout of a poll and of saving offers.
	pollWithin = 4 * time.Second
	// readsAtOnce is the maximum number of parallel reads of what changed.
	readsAtOnce = 4
	// settleWithin is the timeout of Settle.
	settleWithin = time.Second
	// ackWithin is the timeout for acknowledging the first advertisement, and for a notice.
	ackWithin = 5 * time.Second
)

// A machine that comes back more than 3 times in a minute flaps, and gets no calls for a
// minute (docs/faults.md#34).
const (
	flapCount  = 4 // the maximum number of connections within flapWindow
	flapWindow = time.Minute
)

var (
	// ErrTunnelReplaced ends Serve: a newer tunnel of the machine replaced it.
	ErrTunnelReplaced = errors.New("a newer tunnel of the machine replaced it")
	// ErrRevoked ends Serve: the machine may no longer connect.
	ErrRevoked = errors.New("the machine was revoked or its owner disabled")
)

// Facts is the part of the store that the registry uses, for one region: it reads all
// that lasts, removes nodes, and saves the last advertisements. After an error the
// registry retries.
type Facts interface {
	// Now returns the time by the store's clock, which is the same for all nodes.
	Now() time.Time
	// ActiveMachines returns every machine that may connect and was seen at since or
	// later.
	ActiveMachines(ctx context.Context, since time.Time) ([]account.Machine, error)
	// ActiveMachine returns one machine that may connect; false if it is revoked or its
	// owner is disabled.
	ActiveMachine(ctx context.Context, id fleet.MachineID) (account.Machine, bool, error)
	// Shares returns every share in force.
	Shares(ctx context.Context) ([]*fleet.Share, error)
	// SharesTo returns every share in force to the member.
	SharesTo(ctx context.Context, member fleet.MemberID) ([]*fleet.Share, error)
	// Groups returns every group, without disabled members.
	Groups(ctx context.Context) ([]*fleet.Group, error)
	// Group returns one group as in Groups, or nil if it does not exist.
	Group(ctx context.Context, id fleet.GroupID) (*fleet.Group, error)
	// Position returns the position of the newest change.
	Position(ctx context.Context) (account.Position, error)
	// Follow calls changed, which does not block, after each commit that Poll would
	// return, until ctx ends. It may miss some commits.
	Follow(ctx context.Context, changed func())
	// Poll returns what changed after that position. The error account.ErrBehind means that
	// everything has to be read again, and account.ErrReplaced that this node ends. When
	// Poll returns, the store has confirmed that it holds everything that was committed
	// before the call.
	Poll(ctx context.Context, after account.Position) (account.StoreState, []fleet.Change, error)
	// Generations returns the number of each machine's newest tunnel, if it has one.
	Generations(ctx context.Context, ids []fleet.MachineID) (map[fleet.MachineID]int64, error)
	// RemoveNode removes a node that ended, unless its row changed since it was read.
	RemoveNode(context.Context, account.Node) error
	// SaveOffers stores a machine's last advertisement and when it was last seen.
	SaveOffers(ctx context.Context, id fleet.MachineID, advertisement []byte, seen time.Time) error
}

// Config configures a Registry. All fields are required.
type Config struct {
	Node   string // this hub node's name, unique in the region
	Region string
	Facts  Facts
	Log    *slog.Logger
}

// Observer is notified of changes after the Snapshot has them, except Committed, which is
// called before. The functions may be called concurrently and must not block, except
// Committed. A nil function is skipped.
type Observer struct {
	// Committed gets the store's changes before the Snapshot has them, so that it can
	// read what it needs from the store: the Snapshot waits until it returns. It gets the
	// same changes again if they could not be read. After a gap they are nil, as for
	// Store.
	Committed func([]fleet.Change)
	// Store gets the store's changes and what they affect. After a gap (account.ErrBehind)
	// the changes are nil: anything may have changed.
	Store func([]fleet.Change, fleet.Affected)
	// FailedOver is called when another database server may have taken over. It may lack
	// the latest commits.
	FailedOver func()
	// Machine gets a machine that may have free slots, or whose waiting calls have to be
	// routed again: it connected, disconnected, changed, or is no longer expected back.
	Machine func(fleet.MachineID)
}

// Registry is the live state of one region on one hub node. Create it with New.
type Registry struct {
	config    Config
	made      time.Time
	observer  Observer
	snapshot  atomic.Pointer[fleet.Snapshot]
	confirmed atomic.Pointer[time.Time] // the snapshot has everything committed before this time
	nodes     atomic.Pointer[[]seenNode]
	lines     sync.Map      // fleet.MachineID → *connection, only for routable machines
	ready     chan struct{} // closed after the first load
	nudged    chan struct{} // requests an immediate poll
	polls     polls
	drained   chan struct{} // closed when this node's row has the state draining
	drainOnce sync.Once
	others    Others // set by SetOthers; nil: there are none
	stopped   atomic.Bool

	mu sync.Mutex // held by the writer; guards the fields below
	// entries has every machine in the snapshot and every attached one.
	entries map[fleet.MachineID]*entry
	shared  map[fleet.MemberID]struct{} // members with shares in the snapshot
	groups  map[fleet.GroupID]struct{}  // groups in the snapshot
	// position is that of the snapshot. Only poll and readAll use it.
	position account.Position
	// What endTunnels ends after the snapshot is published. A fence closes a tunnel and
	// notifies its daemon that another one with the same credential has taken its place.
	closing []*tunnel.Client // replaced tunnels, and those of revoked machines
	fencing []*tunnel.Client // tunnels to fence: another daemon has a newer one
	dropped []*connection    // connections that were removed from lines
	// retired has the tunnels that are kept open for their running calls.
	retired map[*tunnel.Client]retired
	loaded  time.Time // when everything was first loaded

	clockAhead atomic.Int64 // nanoseconds, see ClockAhead
}

// connection is the writer's record of a machine's current tunnel, in lines once it is
// acknowledged. The writer closes gone.
type connection struct {
	http.RoundTripper
	home string        // the node of the tunnel; empty: this one
	gone chan struct{} // closed after the Snapshot has the end of the tunnel
}

// Line is the reader's copy of a connection to a machine.
type Line struct {
	http.RoundTripper
	// Gone is closed when the machine is no longer connected this way. The Snapshot has
	// that by then, so that a call which is routed again does not choose the machine.
	//
	// It stays open when the same daemon replaces a tunnel that ends at another node,
	// because calls on that tunnel may continue. The node refuses further calls, and reports
	// how these end.
	Gone <-chan struct{}
	// Home is the node of the machine's tunnel, which forwards requests. Empty means this
	// node.
	Home string
}

// disconnectGrace is the timeout of Ended. A call fails a moment before its tunnel is
// closed: HTTP/2 reports the end of the connection to the streams first, or the daemon
// resets them when it stops.
const disconnectGrace = 250 * time.Millisecond

// Ended waits until the machine is no longer connected this way, for at most 250 ms or
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

// HasEnded reports whether the machine is no longer connected this way.
func (l Line) HasEnded() bool {
	select {
	case <-l.Gone:
		return true
	default:
		return false
	}
}

// entry is what the writer knows about a machine apart from its fleet.Machine.
type entry struct {
	stored             account.Machine          // without the advertisement
	client             *tunnel.Client           // of its tunnel if that ends here; else nil
	changedSinceAttach bool                     // stored was set by a change after the tunnel was attached
	moving             bool                     // the daemon was asked to open another tunnel
	instance           string                   // id of the daemon's process; may be empty
	home               string                   // the other node, if its tunnel ends there; else empty
	generation         int64                    // of the newest tunnel, at any node
	arrivals           [flapCount]time.Duration // ring of the latest connections, as time since the registry was created
	arrived            int
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

// Observe sets the Observer. It must be called before Run and Serve.
func (r *Registry) Observe(o Observer) { r.observer = o }

// SetOthers sets the other hub nodes of the region. It must be called before Run and
// Serve.
func (r *Registry) SetOthers(o Others) { r.others = o }

// Run loads the store's data and follows its changes until ctx ends. It fails if the
// store cannot be read at the start, or if another process takes this node's name
// (account.ErrReplaced).
func (r *Registry) Run(ctx context.Context) error {
	defer r.stopped.Store(true)
	if err := r.readAll(ctx, r.Now().Add(returnAfterStart)); err != nil {
		return fmt.Errorf("cannot load the registry: %w", err)
	}
	if err := r.poll(ctx); err != nil { // confirms what was loaded
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

// Ready returns a channel that is closed when everything is loaded. Until then the
// Snapshot lacks machines, and a refusal based on it could be wrong.
func (r *Registry) Ready() <-chan struct{} { return r.ready }

// SinceLoaded returns how long ago everything was loaded.
func (r *Registry) SinceLoaded() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.loaded)
}

// Snapshot returns the current state. It is cheap to call.
func (r *Registry) Snapshot() *fleet.Snapshot { return r.snapshot.Load() }

// Confirmed reports whether the Snapshot has all changes of the store up to 5 s before
// now, which is a time of this process's monotonic clock. If not, nothing may be granted
// from it (spec/routing.md#row-2).
func (r *Registry) Confirmed(now time.Time) bool {
	at := r.confirmed.Load()
	return at != nil && now.Sub(*at) <= confirmedFor
}

// Settle polls the store and returns when this node's Snapshot has everything that was
// committed before the call. If the store does not answer, it returns after a second, or
// when ctx ends. Before everything is loaded it returns at once.
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

// polls counts the polls of the store. A poll that begins after a commit reads it.
type polls struct {
	mu    sync.Mutex
	begun int           // number of polls that have begun
	good  int           // number of the last successful poll
	next  chan struct{} // closed when another poll succeeds
}

func (p *polls) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun++
}

// end records that the latest poll has succeeded.
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

// pollNow requests an immediate poll. Several requests may result in one poll.
func (r *Registry) pollNow() {
	select {
	case r.nudged <- struct{}{}:
	default:
	}
}

// Line returns the connection to a machine whose tunnel is acknowledged, at this node or
// another one.
func (r *Registry) Line(id fleet.MachineID) (Line, bool) {
	found, ok := r.lines.Load(id)
	if !ok {
		return Line{}, false
	}
	c := found.(*connection)
	return Line{c.RoundTripper, c.gone, c.home}, true
}

// Tunnel returns a connection to a machine by a tunnel that ends at this node: the
// current one or, if there is none, one that is kept open for its running calls.
func (r *Registry) Tunnel(id fleet.MachineID) (Line, bool) {
	if line, ok := r.Line(id); ok && line.Home == "" {
		return line, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, kept := range r.retired {
		if kept.machine == id {
			return Line{kept.RoundTripper, kept.gone, ""}, true
		}
	}
	return Line{}, false
}

// dropLine removes the connection to a machine from lines. mu must be held.
func (r *Registry) dropLine(id fleet.MachineID) {
	r.disconnected(id)
	if found, ok := r.lines.LoadAndDelete(id); ok {
		r.dropped = append(r.dropped, found.(*connection))
	}
}

func (r *Registry) disconnected(id fleet.MachineID) {
	if r.others != nil {
		r.others.Disconnected(id)
	}
}

// Control sends a change by the owner to a connected machine. It returns
// fleet.ErrNotConnected if the machine is not connected.
func (r *Registry) Control(ctx context.Context, id fleet.MachineID, change fleet.Control) error {
	line, ok := r.lines.Load(id)
	if !ok {
		return fleet.ErrNotConnected
	}
	return tunnel.SendControl(ctx, line.(*connection), change)
}

// Seal returns what others need to seal calls for a connected machine. It returns
// fleet.ErrNotConnected if the machine is not connected.
func (r *Registry) Seal(ctx context.Context, id fleet.MachineID) (fleet.Seal, error) {
	line, ok := r.lines.Load(id)
	if !ok {
		return fleet.Seal{}, fleet.ErrNotConnected
	}
	return tunnel.FetchSeal(ctx, line.(*connection))
}

// FileAct has a connected machine carry out an act on its model files. It returns
// fleet.ErrNotConnected if the machine is not connected.
func (r *Registry) FileAct(ctx context.Context, id fleet.MachineID, act fleet.FileAct) (fleet.ModelFiles, error) {
	line, ok := r.lines.Load(id)
	if !ok {
		return fleet.ModelFiles{}, fleet.ErrNotConnected
	}
	return tunnel.SendFileAct(ctx, line.(*connection), act)
}

// write runs change as the only writer. change takes the snapshot and returns the next
// one, and the machines that the Observer is notified of. Before that, write ends the
// tunnels that change stopped using.
func (r *Registry) write(change func(*fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID)) {
	notify := r.publish(change)
	r.endTunnels()
	for _, id := range notify {
		r.notifyMachine(id)
	}
}

// publish is the first part of write.
func (r *Registry) publish(change func(*fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID)) (notify []fleet.MachineID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next, notify := change(r.snapshot.Load())
	r.snapshot.Store(next)
	return notify
}

// endTunnels ends the tunnels in closing and fencing, and closes the gone channels of the
// connections in dropped.
func (r *Registry) endTunnels() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, client := range r.closing {
		client.Close()
	}
	for _, client := range r.fencing { // a dead peer takes 2 s; do not wait for it
		go client.Fence(context.Background())
	}
	for _, c := range r.dropped {
		close(c.gone)
	}
	r.closing, r.fencing, r.dropped = nil, nil, nil
}

func (r *Registry) notifyMachine(id fleet.MachineID) {
	if r.observer.Machine != nil && !r.stopped.Load() {
		r.observer.Machine(id)
	}
}

// Now returns the time by the store's clock, which is the same for all nodes. All stored
// times, all times that are compared with them, and all times in the snapshot use this
// clock.
func (r *Registry) Now() time.Time { return r.config.Facts.Now() }

// notifyNotReturned notifies the Observer of every machine that did not come back in
// time.
func (r *Registry) notifyNotReturned() {
	now := r.Now()
	for m := range r.Snapshot().Machines() {
		if !m.Online && !m.ReturningUntil.After(now) {
			r.notifyMachine(m.ID)
		}
	}
}
