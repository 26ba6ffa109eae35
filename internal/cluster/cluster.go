// Package cluster connects the hub nodes of a region, which share a PostgreSQL database
// (docs/spec/peers.md). A hub that is the only node does not use it.
//
// Each node serves the machines whose tunnels end at it and the callers that are
// connected to it. Over links between the nodes, it announces its machines, its waiting
// calls and its use of limits and rates, and it follows what the others announce:
//
//	registry ── Connected … ──▶ feed ──▶ GET /peer/state ══▶ the others' follow
//	dispatch ── Waiting … ────▶
//
//	follow ══▶ GET /peer/state of another node ──▶ registry, dispatch, rates
//
// A request to a machine of another node is sent to that node, the machine's home, which
// checks it again and forwards it (way). If a machine of this node has a free slot for a
// call that waits at another node, this node offers the slot to that node (POST
// /peer/grant).
package cluster

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/dispatch"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/registry"
)

// The paths that a node serves to other nodes.
const (
	pathState = "/peer/state" // spec/peers.md#state
	pathGrant = "/peer/grant" // spec/peers.md#grant
)

// Config configures a Cluster.
type Config struct {
	// Dial opens a connection to a node's address. Default: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	Log  *slog.Logger
}

// Cluster is this node's connection to the other nodes of its region. Create it with New,
// call Join, then Run and Serve.
type Cluster struct {
	config Config
	mesh   *mesh
	parts  Parts

	feed     feed
	polled   chan struct{} // signals that the nodes may have changed; capacity 1
	followed sync.Map      // node name → *followed
	forwards forwardCounts
	uses     limitUses
	grants   grants
	repeated repetitions
	joined   atomic.Bool                                                  // see Joined
	before   map[string]chan struct{}                                     // followed.done of the latest node of each name; only Run uses it
	send     func(ctx context.Context, node string, g grant) (status int) // sendGrant, or a test's
}

// Parts are the parts of this node that a Cluster connects with the other nodes.
type Parts struct {
	Registry *registry.Registry
	Dispatch *dispatch.Dispatcher
	Edge     *gateway.Edge
	// Calls returns the number of calls that this node serves. Other nodes display it.
	Calls func() int
}

// followed is another node whose state this one follows.
type followed struct {
	peer   *peer
	cancel context.CancelFunc        // stops following the node
	heard  atomic.Pointer[time.Time] // when its state was last received; nil: never
	calls  atomic.Int64              // calls that it serves, from its state
	done   chan struct{}             // closed when it is no longer followed
}

// New returns a Cluster with a new key. It trusts no other node yet.
func New(config Config) (*Cluster, error) {
	mesh, err := newMesh(config.Dial, config.Log)
	if err != nil {
		return nil, err
	}
	c := &Cluster{config: config, mesh: mesh, polled: make(chan struct{}, 1), before: make(map[string]chan struct{})}
	c.send = c.sendGrant
	return c, nil
}

// Pin returns the SHA-256 of this node's public key (its SubjectPublicKeyInfo), in hex.
func (c *Cluster) Pin() string { return c.mesh.pin }

// Join connects the parts of this node with the other nodes. Call it before running the
// parts.
func (c *Cluster) Join(p Parts) {
	c.parts = p
	p.Registry.SetOthers(c)
	p.Dispatch.SetOthers(c)
}

// Run follows the other nodes until ctx ends.
func (c *Cluster) Run(ctx context.Context) error {
	select {
	case <-c.parts.Registry.Ready():
	case <-ctx.Done():
		return nil
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { c.sendRates(ctx) })
	prune := time.NewTicker(pruneEvery)
	defer prune.Stop()
	for {
		c.updatePeers(ctx, &running)
		select {
		case <-c.polled:
		case <-prune.C:
			c.prune()
		case <-ctx.Done():
			return nil
		}
	}
}

// Serve serves the other nodes on the listener until ctx ends. Requests for machines
// whose tunnels end at this node are wrapped by counted.
func (c *Cluster) Serve(ctx context.Context, listener net.Listener, counted func(http.HandlerFunc) http.HandlerFunc) error {
	forwarded := counted(c.ServeForwarded)
	return c.mesh.serve(ctx, listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case pathState:
			c.serveState(w, r)
		case pathGrant:
			c.serveGrant(w, r)
		default:
			forwarded(w, r)
		}
	}))
}

// pruneEvery is how often what belongs to nodes and limits that no longer exist is forgotten.
const pruneEvery = time.Hour

// prune forgets nodes that no longer exist, and deleted limits.
func (c *Cluster) prune() {
	names := make(map[string]bool)
	for _, n := range c.parts.Registry.Peers(time.Now()) {
		names[n.Name] = true
	}
	gone := func(node string) bool { return !names[node] && c.followedNode(node) == nil }
	maps.DeleteFunc(c.before, func(node string, done chan struct{}) bool { return gone(node) && isClosed(done) })
	c.grants.prune(gone)
	c.pruneLimits(gone)
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// updatePeers follows each node of the region whose heartbeat is current, and stops
// following nodes that ended or whose name another process took over.
func (c *Cluster) updatePeers(ctx context.Context, running *sync.WaitGroup) {
	nodes := make(map[string]registry.Node)
	var trusted []account.Node
	for _, n := range c.parts.Registry.Peers(time.Now()) {
		nodes[n.Name] = n
		trusted = append(trusted, n.Node)
	}
	c.mesh.trust(trusted)
	c.followed.Range(func(name, value any) bool {
		f := value.(*followed)
		n, ok := nodes[name.(string)]
		if !ok || n.Incarnation != f.peer.node.Incarnation || !n.Alive && !f.peer.isConnected() {
			f.cancel()
			c.followed.Delete(name)
		}
		return true
	})
	for name, n := range nodes {
		if c.followedNode(name) != nil || !n.Alive {
			continue
		}
		within, cancel := context.WithCancel(ctx)
		f := &followed{peer: c.mesh.peer(n.Node), cancel: cancel, done: make(chan struct{})}
		c.followed.Store(name, f)
		before := c.before[name]
		c.before[name] = f.done
		running.Go(func() { f.peer.run(within) })
		running.Go(func() {
			defer close(f.done)
			if before != nil {
				<-before // the earlier follower ends by marking its process's machines as lost
			}
			c.follow(within, f)
		})
	}
}

// followedNode returns the followed node with the given name, or nil.
func (c *Cluster) followedNode(name string) *followed {
	value, _ := c.followed.Load(name)
	f, _ := value.(*followed)
	return f
}

// Peer is another node of the region as seen by this one.
type Peer struct {
	Name      string
	Connected bool
	// Heard is the age of the last state received from the node; negative if there is
	// none.
	Heard time.Duration
	// Calls is the number of calls that the node serves, as last announced.
	Calls int
}

// Peers returns the nodes that this one follows.
func (c *Cluster) Peers(now time.Time) (peers []Peer) {
	c.followed.Range(func(_, value any) bool {
		f := value.(*followed)
		p := Peer{Name: f.peer.node.Name, Connected: f.peer.isConnected(), Heard: -1, Calls: int(f.calls.Load())}
		if at := f.heard.Load(); at != nil {
			p.Heard = now.Sub(*at)
		}
		peers = append(peers, p)
		return true
	})
	return peers
}

// Forwards returns how many requests to machines of other nodes ended in each way.
func (c *Cluster) Forwards() map[string]uint64 { return c.forwards.counts() }

// joinWithin is how long after the registry was loaded Joined waits for other nodes. After
// that Joined is true even if some node was not heard.
const joinWithin = 10 * time.Second

// Joined reports whether the registry has the machines of the other nodes. It is always
// true some seconds after the start, so that an unreachable node does not keep this one
// from serving.
func (c *Cluster) Joined(now time.Time) bool {
	if c.joined.Load() {
		return true
	}
	select {
	case <-c.parts.Registry.Ready():
	default:
		return false
	}
	since := c.parts.Registry.SinceLoaded()
	if since < joinWithin && slices.ContainsFunc(c.parts.Registry.Peers(now), func(n registry.Node) bool {
		// Until a node's beat had time to change, it is not known whether the node is
		// alive.
		return c.heard(n.Name).IsZero() && (n.Alive || since < registry.AliveFor)
	}) {
		return false
	}
	c.joined.Store(true)
	return true
}

// cutOffAfter is how long a node that is alive may send nothing until Silent reports it.
const cutOffAfter = time.Second

// Silent implements registry.Others.
func (c *Cluster) Silent(now time.Time) bool {
	return slices.ContainsFunc(c.parts.Registry.Peers(now), func(n registry.Node) bool {
		heard := c.heard(n.Name)
		return n.Alive && (heard.IsZero() || now.Sub(heard) > cutOffAfter)
	})
}

// heard returns when the state of a node was last received, or the zero time if it never
// was.
func (c *Cluster) heard(node string) time.Time {
	if f := c.followedNode(node); f != nil && f.heard.Load() != nil {
		return *f.heard.Load()
	}
	return time.Time{}
}

// Polled implements registry.Others.
func (c *Cluster) Polled() {
	select {
	case c.polled <- struct{}{}:
	default:
	}
}
