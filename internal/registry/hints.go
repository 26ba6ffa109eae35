package registry

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/kith/kith/internal/fleet"
)

// natsWithin bounds the start of the embedded NATS server.
const natsWithin = 10 * time.Second

// hints are words between the hub nodes of a region, over a NATS server that
// runs inside the process, keeps nothing and listens nowhere. They carry no
// authority: "changed" makes a node look at the store sooner, and presence says
// which node might hold a machine's tunnel.
type hints struct {
	conn   atomic.Pointer[nats.Conn] // nil while it does not run
	region string
	node   string
}

// presence is said of a machine that came or went.
type presence struct {
	Node       string          `json:"node"`
	Machine    fleet.MachineID `json:"machine"`
	Generation int64           `json:"generation"`
	Online     bool            `json:"online"`
}

// run serves hints until ctx ends and calls poke for each "changed" of others.
func (h *hints) run(ctx context.Context, node, region string, poke func()) error {
	s, err := embed(node)
	if err != nil {
		return err
	}
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	return h.serve(ctx, s, node, region, poke)
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

// serve takes part in the hints of a server until ctx ends.
func (h *hints) serve(ctx context.Context, s nats.InProcessConnProvider, node, region string, poke func()) error {
	closed := make(chan struct{})
	conn, err := nats.Connect("", nats.InProcessServer(s), nats.NoEcho(), nats.MaxReconnects(-1),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		return fmt.Errorf("cannot connect to the embedded NATS server: %w", err)
	}
	defer func() { conn.Close(); <-closed }()
	if _, err := conn.Subscribe(subject(region, "changed"), func(*nats.Msg) { poke() }); err != nil {
		return fmt.Errorf("cannot listen for hints: %w", err)
	}
	h.node, h.region = node, region
	h.conn.Store(conn)
	defer h.conn.Store(nil)
	<-ctx.Done()
	return nil
}

func subject(region, word string) string { return "kith." + region + "." + word }

// changed tells other nodes that the store changed.
func (h *hints) changed() { h.say("changed", nil) }

// presence tells other nodes that a machine came or went.
func (h *hints) presence(id fleet.MachineID, generation int64, online bool) {
	if h.conn.Load() == nil {
		return
	}
	body, err := json.Marshal(presence{Node: h.node, Machine: id, Generation: generation, Online: online})
	if err != nil {
		return // an id that is no text cannot be told; nobody depends on it
	}
	h.say("presence", body)
}

// say publishes a hint. One that is lost costs a second (fault 20).
func (h *hints) say(word string, body []byte) {
	if conn := h.conn.Load(); conn != nil {
		_ = conn.Publish(subject(h.region, word), body)
	}
}
