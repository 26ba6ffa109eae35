// Package registry is what one hub node knows of its region just now: which
// machines are connected and what they advertise, who shares with whom, which
// groups there are. It publishes that as an immutable fleet.Snapshot, of which
// it is the only writer, and reaches the machines whose tunnels end here.
//
// The store is the truth about people; its epoch is polled every second, and
// at once on a hint. Hints travel over NATS and are never believed: one that
// is forged, doubled or lost moves a poll in time and changes nothing else.
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

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// Times of decisions 2 and 7.
const (
	returnAfterLoss  = 10 * time.Second
	returnAfterStart = 30 * time.Second
	keepFor          = 30 * 24 * time.Hour
	confirmedFor     = 5 * time.Second
	pollEvery        = time.Second
	pollGap          = 20 * time.Millisecond // between two polls, however many hints come
	pollWithin       = 4 * time.Second
	purgeEvery       = time.Hour
	ackWithin        = 5 * time.Second
)

// A machine that comes back more than 3 times in a minute flaps: it is held out
// of every decision for a minute (fault 34).
const (
	flapCount  = 4 // arrivals before the one that is too many
	flapWindow = time.Minute
)

var (
	// ErrFenced ends Serve: a newer tunnel of the machine took over.
	ErrFenced = errors.New("a newer tunnel of the machine took over")
	// ErrRevoked ends Serve: the machine may no longer connect.
	ErrRevoked = errors.New("the machine was revoked or its owner disabled")
	// ErrNotHere is an operation on a machine without a live tunnel here.
	ErrNotHere = errors.New("the machine is not connected")
)

// Facts is what lasts, in the words of fleet, for one region. Its errors are of
// the moment: what failed is tried again.
type Facts interface {
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
	// Epoch is the number of the newest change.
	Epoch(ctx context.Context) (int64, error)
	// Changes is every change after that epoch, in order, and the epoch reached
	// with them; or fleet.ErrBehind, and everything has to be read again.
	Changes(ctx context.Context, after int64) (epoch int64, changes []fleet.Change, err error)
	// SaveOffers keeps a machine's last advertisement and when it was last seen.
	SaveOffers(ctx context.Context, id fleet.MachineID, advertisement []byte, seen time.Time) error
}

// Config is what a Registry works with. All fields but the functions are needed.
type Config struct {
	Node   string // this hub node's name, unique in the region
	Region string
	Facts  Facts
	Log    *slog.Logger
	// OnChange is told of the store's changes after the Snapshot holds them, and
	// whom they concern. After a gap (fleet.ErrBehind) it is told nil: everything
	// may have changed, for everybody.
	OnChange func([]fleet.Change, fleet.Affected)
	// OnFree is told of a machine that may have gained room or whose waiters
	// must be decided anew: it came, changed, left, or is no longer expected
	// back. The Snapshot holds it already. May be called by several goroutines
	// at once and must not block.
	OnFree func(fleet.MachineID)
}

// Registry is the live state of one region on one hub node. Make it with New.
type Registry struct {
	config    Config
	snapshot  atomic.Pointer[fleet.Snapshot]
	confirmed atomic.Int64  // Unix nanoseconds: the store was read as of then
	lines     sync.Map      // fleet.MachineID → *connection, routable ones only
	ready     chan struct{} // closed after the first load
	nudged    chan struct{} // one waiting poll
	hints     hints
	stopped   atomic.Bool

	mu sync.Mutex // held by whoever writes; what is below is the writer's
	// entries has every machine in the snapshot and every attached one.
	entries map[fleet.MachineID]*entry
	shared  map[fleet.MemberID]struct{} // members with shares in the snapshot
	groups  map[fleet.GroupID]struct{}  // groups in the snapshot
	epoch   int64                       // poll's alone
	revoked []*tunnel.Client            // to be closed by endLines
	taken   []*connection               // out of lines; endLines reports them lost
}

// connection is the way to a machine whose tunnel is acknowledged.
type connection struct {
	*tunnel.Client
	lost chan struct{} // closed once the Snapshot holds that the tunnel ended
}

// entry is what the writer knows of a machine beside its fleet.Machine.
type entry struct {
	kept       fleet.StoredMachine // without the advertisement
	refreshed  bool                // kept was read again since the line was attached
	line       *tunnel.Client
	generation int64
	arrivals   [flapCount]time.Time // the latest, a ring
	arrived    int
}

// New makes a Registry that knows nothing yet.
func New(config Config) *Registry {
	r := &Registry{
		config:  config,
		ready:   make(chan struct{}),
		nudged:  make(chan struct{}, 1),
		entries: make(map[fleet.MachineID]*entry),
		shared:  make(map[fleet.MemberID]struct{}),
		groups:  make(map[fleet.GroupID]struct{}),
	}
	r.snapshot.Store(fleet.NewSnapshot())
	return r
}

// Run loads what the store keeps and follows its changes until ctx ends. An
// error is a store that could not be read at the start or hints that cannot run.
func (r *Registry) Run(ctx context.Context) error {
	defer r.stopped.Store(true)
	if err := r.load(ctx, time.Now().Add(returnAfterStart)); err != nil {
		return fmt.Errorf("cannot load the registry: %w", err)
	}
	close(r.ready)
	again := time.AfterFunc(returnAfterStart, r.endOfReturn)
	defer again.Stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.hints.run(ctx, r.config.Node, r.config.Region, r.poke) })
	g.Go(func() error { r.follow(ctx); return nil })
	return g.Wait()
}

// Ready is closed once everything was loaded: before that the Snapshot lacks
// machines, and a refusal made from it would be wrong.
func (r *Registry) Ready() <-chan struct{} { return r.ready }

// Snapshot is the present state. It costs nothing.
func (r *Registry) Snapshot() *fleet.Snapshot { return r.snapshot.Load() }

// Confirmed reports whether the Snapshot holds every change of the store up to
// 5 s before now; if not, nothing may be granted from it (decisions 2, row 2).
func (r *Registry) Confirmed(now time.Time) bool {
	at := r.confirmed.Load()
	return at != 0 && now.Sub(time.Unix(0, at)) <= confirmedFor
}

// Hinted reports whether this node takes part in the hints of NATS just now.
func (r *Registry) Hinted() bool {
	conn := r.hints.conn.Load()
	return conn != nil && conn.IsConnected()
}

// Nudge says that this node changed the store: it is read now, and other nodes
// are told to read it, too.
func (r *Registry) Nudge() {
	r.poke()
	r.hints.changed()
}

// poke makes the next poll come now; many at once are one.
func (r *Registry) poke() {
	select {
	case r.nudged <- struct{}{}:
	default:
	}
}

// Line is the way to a machine whose tunnel ends at this node and is
// acknowledged, and a channel that is closed when that tunnel has ended. By then
// the Snapshot holds that the machine is gone, so that a call which moves on does
// not choose it again.
func (r *Registry) Line(id fleet.MachineID) (http.RoundTripper, <-chan struct{}, bool) {
	found, ok := r.lines.Load(id)
	if !ok {
		return nil, nil, false
	}
	c := found.(*connection)
	return c, c.lost, true
}

// take takes the way to a machine out of lines. The caller writes.
func (r *Registry) take(id fleet.MachineID) {
	if found, ok := r.lines.LoadAndDelete(id); ok {
		r.taken = append(r.taken, found.(*connection))
	}
}

// Control hands a connected machine a change that its owner made; ErrNotHere if
// it is not connected.
func (r *Registry) Control(ctx context.Context, id fleet.MachineID, change tunnel.Control) error {
	line, ok := r.lines.Load(id)
	if !ok {
		return ErrNotHere
	}
	return line.(*connection).Control(ctx, change)
}

// write runs change as the only writer: it gets the snapshot and returns the
// next. Afterwards lines that change took away end, and OnFree is called for the
// machines that it named.
func (r *Registry) write(change func(*fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID)) {
	freed := r.publish(change)
	r.endLines()
	for _, id := range freed {
		r.free(id)
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

// endLines closes the lines of machines that were revoked, and reports those lost
// that the writer took away.
func (r *Registry) endLines() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, line := range r.revoked {
		line.Close()
	}
	for _, c := range r.taken {
		close(c.lost)
	}
	r.revoked, r.taken = nil, nil
}

func (r *Registry) free(id fleet.MachineID) {
	if r.config.OnFree != nil && !r.stopped.Load() {
		r.config.OnFree(id)
	}
}

// endOfReturn tells of every machine that did not come back in time.
func (r *Registry) endOfReturn() {
	now := time.Now()
	for m := range r.Snapshot().Machines() {
		if !m.Online && !m.ReturningUntil.After(now) {
			r.free(m.ID)
		}
	}
}
