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

// hints notify the hub nodes of a region that the store changed, over a NATS
// server that runs inside the process, keeps nothing and listens nowhere. A hint
// has no content and no authority: it makes a node poll the store sooner.
type hints struct {
	conn   atomic.Pointer[nats.Conn] // nil while it does not run
	region string
}

// run serves hints until ctx ends and calls poke for each hint of another node.
func (h *hints) run(ctx context.Context, node, region string, poke func()) error {
	s, err := embed(node)
	if err != nil {
		return err
	}
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	return h.serve(ctx, s, region, poke)
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

// serve sends and receives hints over that server until ctx ends.
func (h *hints) serve(ctx context.Context, s nats.InProcessConnProvider, region string, poke func()) error {
	closed := make(chan struct{})
	conn, err := nats.Connect("", nats.InProcessServer(s), nats.NoEcho(), nats.MaxReconnects(-1),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		return fmt.Errorf("cannot connect to the embedded NATS server: %w", err)
	}
	defer func() { conn.Close(); <-closed }()
	if _, err := conn.Subscribe(subject(region), func(*nats.Msg) { poke() }); err != nil {
		return fmt.Errorf("cannot listen for hints: %w", err)
	}
	h.region = region
	h.conn.Store(conn)
	defer h.conn.Store(nil)
	<-ctx.Done()
	return nil
}

func subject(region string) string { return "kith." + region + ".changed" }

// changed notifies the other nodes that the store changed. A hint that is lost
// delays them by up to a second.
func (h *hints) changed() {
	if conn := h.conn.Load(); conn != nil {
		_ = conn.Publish(subject(h.region), nil)
	}
}
