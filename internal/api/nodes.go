package api

import (
	"context"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// Node is a hub node as seen by the node that serves the request.
type Node struct {
	Name    string    `json:"name"`
	Region  string    `json:"region"`
	Address string    `json:"address"` // for connections from other nodes
	Version string    `json:"version"`
	State   string    `json:"state"` // "serving" or "draining"
	Started time.Time `json:"started,omitzero"`
	// Alive reports whether its heartbeat in the database is current. Seen is the time of
	// the last change.
	Alive bool      `json:"alive"`
	Seen  time.Time `json:"seen,omitzero"`
	// Here reports whether this is the node that serves the request, and Linked whether
	// that node has a connection to this one.
	Here   bool `json:"here"`
	Linked bool `json:"linked"`
	// Machines is the number of machines with tunnels to this node, and Calls the number
	// of calls that it serves.
	Machines int `json:"machines"`
	Calls    int `json:"calls"`
}

// Health reports whether a hub serves calls.
type Health struct {
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"` // why it refuses all calls
}

func (a *API) operatorGetHealth(context.Context, fleet.Caller, None) (Health, error) {
	if err := a.Ready(time.Now()); err != nil {
		return Health{Reason: err.Error()}, nil
	}
	return Health{Ready: true}, nil
}

func (a *API) operatorListNodes(context.Context, fleet.Caller, None) ([]Node, error) {
	return a.Nodes(), nil
}

func (a *API) operatorDrainNode(ctx context.Context, _ fleet.Caller, in Named) (Named, error) {
	return in, a.DrainNode(ctx, in.Name)
}

// Reloaded is the result of reloading the configuration.
type Reloaded struct {
	Applied []string `json:"applied"` // keys that are in effect now
	Restart []string `json:"restart"` // changed keys that need a restart
}

func (a *API) operatorReload(ctx context.Context, _ fleet.Caller, _ None) (Reloaded, error) {
	done, err := a.Reload(ctx)
	if err != nil {
		return Reloaded{}, fault.New(fault.InvalidRequest, "nothing has changed: %s", err)
	}
	return done, nil
}
