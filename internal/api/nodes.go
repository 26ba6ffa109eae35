package api

import (
	"context"
	"time"

	"github.com/kith/kith/internal/fault"
)

// Node is a hub node as the node that was asked sees it.
type Node struct {
	Name    string    `json:"name"`
	Region  string    `json:"region"`
	Address string    `json:"address"` // where the other nodes reach it
	Version string    `json:"version"`
	State   string    `json:"state"` // "serving" or "draining"
	Started time.Time `json:"started,omitzero"`
	// Alive is whether its beat in the database moves, and Seen when it last did.
	Alive bool      `json:"alive"`
	Seen  time.Time `json:"seen,omitzero"`
	// Here is whether this is the node that was asked, Linked whether that one has a
	// connection to it.
	Here   bool `json:"here"`
	Linked bool `json:"linked"`
	// Machines is how many machines have their tunnel there, Calls how many calls it
	// serves.
	Machines int `json:"machines"`
	Calls    int `json:"calls"`
}

// Health is whether a hub serves calls.
type Health struct {
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"` // why it refuses every call
}

func (a *API) operatorGetHealth(context.Context, Caller, None) (Health, error) {
	if err := a.Ready(time.Now()); err != nil {
		return Health{Reason: err.Error()}, nil
	}
	return Health{Ready: true}, nil
}

func (a *API) operatorListNodes(context.Context, Caller, None) ([]Node, error) { return a.Nodes(), nil }

func (a *API) operatorDrainNode(ctx context.Context, _ Caller, in Named) (Named, error) {
	return in, a.DrainNode(ctx, in.Name)
}

// Reloaded lists what a reload of the configuration has changed.
type Reloaded struct {
	Applied []string `json:"applied"` // keys that are in effect now
	Restart []string `json:"restart"` // changed keys that take effect at the next start
}

func (a *API) operatorReload(ctx context.Context, _ Caller, _ None) (Reloaded, error) {
	done, err := a.Reload(ctx)
	if err != nil {
		return Reloaded{}, fault.New(fault.InvalidRequest, "nothing has changed: %s", err)
	}
	return done, nil
}
