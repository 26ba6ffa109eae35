package registry

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// facts is a store in memory that records changes and can be down.
type facts struct {
	mu          sync.Mutex
	kept        map[fleet.MachineID]account.Machine
	shares      []*fleet.Share
	groups      map[fleet.GroupID]*fleet.Group
	changes     []fleet.Change
	generations map[fleet.MachineID]int64
	saves       map[fleet.MachineID]int
	polls       int
	down        bool
	groupsDown  bool
	behind      bool
	nodes       []account.Node
	ahead       time.Duration // how far this computer's clock is ahead
	replaced    bool
}

func newFacts(ids ...fleet.MachineID) *facts {
	f := &facts{
		kept:        make(map[fleet.MachineID]account.Machine),
		groups:      make(map[fleet.GroupID]*fleet.Group),
		generations: make(map[fleet.MachineID]int64),
		saves:       make(map[fleet.MachineID]int),
	}
	for _, id := range ids {
		f.kept[id] = account.Machine{ID: string(id), OwnerID: "owner-" + string(id), OwnerName: "ann", Name: "box-" + string(id)}
	}
	return f
}

var errDown = errors.New("the database is down")

// locked runs f under the lock, like every read.
func (f *facts) locked(do func()) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return errDown
	}
	do()
	return nil
}

// change runs a write and records what it changed.
func (f *facts) change(kind fleet.ChangeKind, id string, do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	f.changes = append(f.changes, fleet.Change{Epoch: int64(len(f.changes) + 1), Kind: kind, ID: id})
}

func (f *facts) revoke(id fleet.MachineID) {
	f.change(fleet.MachineChanged, string(id), func() { delete(f.kept, id) })
}

func (f *facts) ActiveMachines(_ context.Context, since time.Time) (out []account.Machine, err error) {
	err = f.locked(func() {
		for _, k := range f.kept {
			if !k.LastSeen.Before(since) {
				out = append(out, k)
			}
		}
	})
	return out, err
}

func (f *facts) ActiveMachine(_ context.Context, id fleet.MachineID) (k account.Machine, ok bool, err error) {
	err = f.locked(func() { k, ok = f.kept[id] })
	return k, ok, err
}

func (f *facts) Shares(context.Context) (out []*fleet.Share, err error) {
	err = f.locked(func() {
		for _, s := range f.shares {
			c := *s
			out = append(out, &c)
		}
	})
	return out, err
}

func (f *facts) SharesTo(ctx context.Context, member fleet.MemberID) ([]*fleet.Share, error) {
	all, err := f.Shares(ctx)
	return slices.DeleteFunc(all, func(s *fleet.Share) bool { return s.Member != member }), err
}

func (f *facts) Groups(context.Context) (out []*fleet.Group, err error) {
	err = f.locked(func() {
		for _, g := range f.groups {
			c := *g
			out = append(out, &c)
		}
	})
	return out, err
}

func (f *facts) Group(_ context.Context, id fleet.GroupID) (out *fleet.Group, err error) {
	down := false
	err = f.locked(func() {
		down = f.groupsDown
		if g := f.groups[id]; g != nil {
			c := *g
			out = &c
		}
	})
	if down {
		return nil, errDown
	}
	return out, err
}

func (f *facts) Position(context.Context) (at account.Position, err error) {
	err = f.locked(func() { at.Epoch = int64(len(f.changes)) })
	return at, err
}

func (f *facts) Poll(_ context.Context, after account.Position) (state account.StoreState, changes []fleet.Change, err error) {
	behind, replaced := false, false
	err = f.locked(func() {
		f.polls++
		state = account.StoreState{Position: account.Position{Epoch: int64(len(f.changes))}, Nodes: slices.Clone(f.nodes), ClockAhead: f.ahead}
		replaced = f.replaced
		if behind, f.behind = f.behind || after.Epoch > state.Position.Epoch, false; !behind {
			changes = slices.Clone(f.changes[after.Epoch:])
		}
	})
	switch {
	case err != nil:
	case replaced:
		err = account.ErrReplaced
	case behind:
		err = account.ErrBehind
	}
	return state, changes, err
}

func (f *facts) Follow(ctx context.Context, _ func()) { <-ctx.Done() }

func (f *facts) Generations(_ context.Context, ids []fleet.MachineID) (map[fleet.MachineID]int64, error) {
	newest := make(map[fleet.MachineID]int64)
	return newest, f.locked(func() {
		for _, id := range ids {
			newest[id] = f.generations[id]
		}
	})
}

func (f *facts) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Now().Add(-f.ahead)
}

func (f *facts) RemoveNode(_ context.Context, n account.Node) error {
	return f.locked(func() {
		f.nodes = slices.DeleteFunc(f.nodes, func(o account.Node) bool { return o == n })
	})
}

func (f *facts) SaveOffers(_ context.Context, id fleet.MachineID, ad []byte, seen time.Time) error {
	return f.locked(func() {
		k := f.kept[id]
		k.Offers, k.LastSeen = ad, seen
		f.kept[id] = k
		f.saves[id]++
	})
}

func (f *facts) saved(id fleet.MachineID) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.saves[id]
}

// node is a hub node: a running Registry behind a server in memory that uses a machine's
// id as its credential.
type node struct {
	*Registry
	facts    *facts
	conns    chan net.Conn
	machines chan fleet.MachineID
	changes  chan []fleet.Change
	// committed, once it is set, is called by Observer.Committed.
	committed func([]fleet.Change)
	ends      chan error    // results of Serve
	pace      *rate.Limiter // limits each machine's advertisements; nil: no limit
}

func newNode(t *testing.T, f *facts, others ...Others) *node {
	t.Helper()
	n := &node{
		facts: f, conns: make(chan net.Conn),
		machines: make(chan fleet.MachineID, 100_000), changes: make(chan []fleet.Change, 1000), ends: make(chan error, 100_000),
	}
	n.Registry = New(Config{
		Node: "hub-1", Region: "home", Facts: f, Log: slog.New(slog.DiscardHandler),
	})
	for _, o := range others {
		n.SetOthers(o)
	}
	n.Observe(Observer{
		Committed: func(c []fleet.Change) {
			if n.committed != nil {
				n.committed(c)
			}
		},
		Store:   func(c []fleet.Change, _ fleet.Affected) { n.changes <- c },
		Machine: func(id fleet.MachineID) { n.machines <- id },
	})
	ctx, cancel := context.WithCancel(context.Background())
	server := &http.Server{Handler: n, BaseContext: func(net.Listener) context.Context { return ctx }}
	var all sync.WaitGroup
	all.Go(func() { server.Serve(listener{n.conns, ctx}) })
	all.Go(func() {
		if err := n.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); server.Close(); all.Wait() })
	<-n.Ready()
	return n
}

func (n *node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := fleet.MachineID(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	var generation int64
	n.facts.locked(func() {
		n.facts.generations[id]++
		generation = n.facts.generations[id]
	})
	kept, ok, err := n.facts.ActiveMachine(r.Context(), id)
	if err != nil || !ok {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	line, err := tunnel.Upgrade(w, r, tunnel.UpgradeConfig{Generation: generation, Offers: n.pace})
	if err != nil {
		return
	}
	kept.Generation = generation
	n.ends <- n.Serve(r.Context(), kept, line)
}

// machine returns the snapshot's machine, or a zero one.
func (n *node) machine(id fleet.MachineID) fleet.Machine {
	if m := n.Snapshot().Machine(id); m != nil {
		return *m
	}
	return fleet.Machine{}
}

// listener accepts the connections that dial creates.
type listener struct {
	conns chan net.Conn
	ctx   context.Context
}

func (l listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (l listener) Close() error   { return nil }
func (l listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func (n *node) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case n.conns <- b:
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// daemon is a running Dialer of one machine.
type daemon struct {
	lost    chan error // why a tunnel ended or was not opened
	notices chan tunnel.Notice
	stop    context.CancelFunc

	mu      sync.Mutex
	ad      tunnel.Advertisement
	changed chan struct{}
}

func offering(ids ...string) tunnel.Advertisement {
	ad := tunnel.Advertisement{Slots: 1, Free: 1}
	for _, id := range ids {
		ad.Models = append(ad.Models, tunnel.Model{ID: id, Families: []string{"chat"}, Endpoints: []string{"/v1/chat/completions"}})
	}
	return ad
}

// connect runs a machine's daemon until the test ends.
func (n *node) connect(t *testing.T, id fleet.MachineID, ad tunnel.Advertisement) *daemon {
	t.Helper()
	return n.connectInstance(t, id, ad, rand.Text(), func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(id)) })
}

// connectInstance is like connect for a given instance, whose calls are served by
// handler.
func (n *node) connectInstance(t *testing.T, id fleet.MachineID, ad tunnel.Advertisement, instance string, handler http.HandlerFunc) *daemon {
	t.Helper()
	d := &daemon{lost: make(chan error, 1000), notices: make(chan tunnel.Notice, 1000), ad: ad, changed: make(chan struct{})}
	dialer := &tunnel.Dialer{
		HubURL:     "http://127.0.0.1",
		Credential: func() string { return string(id) },
		Instance:   instance,
		Handler:    handler,
		OnState: func(s tunnel.State) {
			if s.Phase == tunnel.Lost {
				d.lost <- s.Err
			}
		},
		Advertise: func() (tunnel.Advertisement, <-chan struct{}) {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.ad, d.changed
		},
		Notice: func(n tunnel.Notice) { d.notices <- n },
		Dial:   n.dial,
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.stop = cancel
	done := make(chan struct{})
	go func() { defer close(done); dialer.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return d
}

func (d *daemon) change(f func(*tunnel.Advertisement)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ad.Models = slices.Clone(d.ad.Models)
	f(&d.ad)
	close(d.changed)
	d.changed = make(chan struct{})
}

// cut ends a machine's tunnel like a network failure.
func (n *node) cut(id fleet.MachineID) {
	if l, ok := n.lines.Load(id); ok {
		l.(*connection).RoundTripper.(*tunnel.Client).Close()
	}
}

// rawDaemon performs the upgrade itself and serves with any handler.
func (n *node) rawDaemon(t *testing.T, id fleet.MachineID, handler http.HandlerFunc) {
	t.Helper()
	raw := assert.Value(n.dial(t.Context(), "", ""))(t)
	go raw.Write([]byte("GET /tunnel HTTP/1.1\r\nHost: hub\r\nConnection: Upgrade\r\nUpgrade: " + tunnel.Protocol +
		"\r\nAuthorization: Bearer " + string(id) + "\r\nKith-Version: 1\r\nKith-Instance: raw\r\n\r\n"))
	r := bufio.NewReader(raw)
	assert.Value(http.ReadResponse(r, nil))(t)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: handler, Protocols: protocols}
	conns := make(chan net.Conn, 1)
	conns <- readConn{raw, r}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); server.Serve(listener{conns, ctx}) }()
	t.Cleanup(func() { cancel(); raw.Close(); server.Close(); <-done })
}

type readConn struct {
	net.Conn
	r *bufio.Reader
}

func (c readConn) Read(p []byte) (int, error) { return c.r.Read(p) }
