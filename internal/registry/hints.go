package registry

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// natsWithin bounds the start of the embedded NATS server.
const natsWithin = 10 * time.Second

// hints notify the hub nodes of a region that the store changed, over a NATS server
// that runs inside the process, keeps nothing and listens nowhere.
type hints struct {
	conn    atomic.Pointer[nats.Conn] // nil while it does not run
	subject string
}

// run sends and receives hints until ctx ends, and calls pollNow for each of another
// node.
func (h *hints) run(ctx context.Context, node, region string, pollNow func()) error {
	s, err := embed(node)
	if err != nil {
		return err
	}
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	return h.serve(ctx, s, region, pollNow)
}

// embed starts a NATS server inside the process.
func embed(node string) (*server.Server, error) {
	s, err := server.NewServer(&server.Options{
		ServerName: node,
		DontListen: true, // one node; in a cluster it listens on loopback, else routes never form
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
func (h *hints) serve(ctx context.Context, s nats.InProcessConnProvider, region string, pollNow func()) error {
	closed := make(chan struct{})
	conn, err := nats.Connect("", nats.InProcessServer(s), nats.NoEcho(), nats.MaxReconnects(-1),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		return fmt.Errorf("cannot connect to the embedded NATS server: %w", err)
	}
	defer func() { conn.Close(); <-closed }()
	h.subject = "kith." + region + ".changed"
	if _, err := conn.Subscribe(h.subject, func(*nats.Msg) { pollNow() }); err != nil {
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
		_ = conn.Publish(h.subject, nil)
	}
}
