package registry

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"encoding/json/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/kith/kith/internal/peer"
)

// natsWithin bounds the start of the embedded NATS server, and the connection to it.
const natsWithin = 10 * time.Second

const (
	redialHints = 250 * time.Millisecond
	maxHint     = 512 << 10 // bytes; NATS carries 1 MiB
)

// hints notify the hub nodes of a region that the store or a node's state changed, over
// a NATS server that runs inside each process, keeps nothing and listens nowhere: the
// other nodes are its clients, by streams between nodes (peer.Peer.Open).
//
// A hint that is lost or doubled costs a second at most: the store is polled in any case,
// and a state whose sequence numbers have a gap is read again.
type hints struct {
	conn   atomic.Pointer[nats.Conn]     // nil while it does not run
	server atomic.Pointer[server.Server] // nil while it does not run
	prefix string                        // of all subjects
}

// run sends and receives hints until ctx ends, and calls pollNow for each of another
// node.
func (h *hints) run(ctx context.Context, node string, pollNow func()) error {
	s, err := embed(node)
	if err != nil {
		return err
	}
	h.server.Store(s)
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	return h.serve(ctx, s, pollNow)
}

// embed starts a NATS server inside the process.
func embed(node string) (*server.Server, error) {
	s, err := server.NewServer(&server.Options{
		ServerName: node,
		DontListen: true, // there are no routes, which would need it to listen
		NoSigs:     true,
		NoLog:      true,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make the embedded NATS server: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(natsWithin) {
		s.Shutdown()
		return nil, fmt.Errorf("cannot start the embedded NATS server in %v", natsWithin)
	}
	return s, nil
}

// serve is run with a server.
func (h *hints) serve(ctx context.Context, s nats.InProcessConnProvider, pollNow func()) error {
	closed := make(chan struct{})
	conn, err := nats.Connect("", nats.InProcessServer(s), nats.NoEcho(), nats.MaxReconnects(-1),
		nats.Timeout(natsWithin), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		return fmt.Errorf("cannot connect to the embedded NATS server: %w", err)
	}
	defer func() { conn.Close(); <-closed }()
	if _, err := conn.Subscribe(h.prefix+subjectChanged, func(*nats.Msg) { pollNow() }); err != nil {
		return fmt.Errorf("cannot listen for hints: %w", err)
	}
	h.conn.Store(conn)
	defer h.conn.Store(nil)
	<-ctx.Done()
	return nil
}

// send notifies the other nodes. A hint that is lost costs a second
// (docs/faults.md#20).
func (h *hints) send() {
	if conn := h.conn.Load(); conn != nil {
		_ = conn.Publish(h.prefix+subjectChanged, nil)
	}
}

// Subjects, below the prefix.
const (
	subjectChanged = "changed" // the store; no payload
	subjectAt      = "at."     // and a node's name: a stateHint
	subjectWait    = "wait."   // and a node's name: a waitingHint
	subjectSeen    = "seen."   // and a node's name: see PublishSeen
	subjectRates   = "rates."  // and a node's name: see PublishRates
)

// join makes another node a client of this node's server, by a stream of its own.
func (h *hints) join(stream net.Conn) {
	s := h.server.Load()
	if s == nil {
		return
	}
	if conn, err := s.InProcessConn(); err == nil {
		peer.Join(stream, conn)
	}
}

// streamDialer dials another node's server until ctx ends.
type streamDialer struct {
	ctx  context.Context
	peer *peer.Peer

	mu   sync.Mutex
	last net.Conn
}

// Dial implements nats.CustomDialer. The client leaves a connection open whose server does
// not greet it.
func (d *streamDialer) Dial(string, string) (net.Conn, error) {
	conn, err := d.peer.Open(d.ctx)
	if err != nil {
		return nil, err
	}
	d.close()
	d.mu.Lock()
	d.last = conn
	d.mu.Unlock()
	if d.ctx.Err() != nil {
		d.close()
	}
	return conn, nil
}

// close closes the last connection. The client itself cannot while it waits for the
// server's greeting, which it does with its lock held.
func (d *streamDialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last != nil {
		d.last.Close()
	}
}

// follow receives the hints of another node until ctx ends: those of its state go to
// states, and what PublishSeen and PublishRates sent there to raw, by subject.
func (h *hints) follow(ctx context.Context, p *peer.Peer, states chan *nats.Msg, pollNow func(), raw map[string]func([]byte)) error {
	closed := make(chan struct{})
	dialer := &streamDialer{ctx: ctx, peer: p}
	defer context.AfterFunc(ctx, dialer.close)()
	conn, err := nats.Connect("nats://127.0.0.1", nats.SetCustomDialer(dialer), nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1), nats.ReconnectWait(redialHints), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		return fmt.Errorf("cannot connect to the NATS server of hub node %s: %w", p.Node.Name, err)
	}
	defer func() { conn.Close(); <-closed }()
	for _, subject := range []string{subjectAt, subjectWait} {
		if _, err := conn.ChanSubscribe(h.prefix+subject+p.Node.Name, states); err != nil {
			return fmt.Errorf("cannot listen for the state of hub node %s: %w", p.Node.Name, err)
		}
	}
	for subject, take := range raw {
		if _, err := conn.Subscribe(h.prefix+subject+p.Node.Name, func(m *nats.Msg) { take(m.Data) }); err != nil {
			return fmt.Errorf("cannot listen for the prompts and rates of hub node %s: %w", p.Node.Name, err)
		}
	}
	if _, err := conn.Subscribe(h.prefix+subjectChanged, func(*nats.Msg) { pollNow() }); err != nil {
		return fmt.Errorf("cannot listen for hints of hub node %s: %w", p.Node.Name, err)
	}
	<-ctx.Done()
	return nil
}

// publishState publishes a node's state. One that is too long is read by the others.
func (h *hints) publishState(node string, hint stateHint) {
	if !h.publish(subjectAt+node, hint) {
		hint.State = state{After: hint.State.Sequence, Sequence: hint.State.Sequence, Waiting: hint.State.Waiting}
		h.publish(subjectAt+node, hint)
	}
}

// publish publishes a hint, and reports whether it is short enough.
func (h *hints) publish(subject string, hint any) bool {
	conn := h.conn.Load()
	if conn == nil {
		return true
	}
	data, err := json.Marshal(hint)
	if err != nil || len(data) > maxHint {
		return false
	}
	_ = conn.Publish(h.prefix+subject, data)
	return true
}
