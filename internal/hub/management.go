package hub

import (
	"context"
	"errors"
	"net/http"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/registry"
	"github.com/kith/kith/internal/site"
	"github.com/kith/kith/internal/tunnel"
)

// newAPI returns the management API for this hub's database and registry.
func (h *Hub) newAPI() *api.API {
	return api.New(api.Config{
		DB:       h.cfg.DB,
		Region:   h.cfg.Region,
		Regions:  h.cfg.Regions,
		Identify: h.memberOf,
		Snapshot: h.live.Snapshot,
		Models:   h.accountModels,
		Running:  h.running,
		Waiting:  h.waiting,
		Queued:   h.calls.Queued,
		Control:  h.control,
		Ready:    h.Ready,
		Nodes:    h.nodes, Home: h.home, DrainNode: h.drainNode,
		Reload:  h.cfg.ReloadConfig,
		Changed: h.live.Settle,
		Admit:   func(c api.Caller) error { return h.edge.Admit(gateway.Caller(c)) },
		Miss: func(c api.Caller, model fleet.ModelID, f *fault.Fault) *fault.Fault {
			return h.edge.Miss(gateway.Caller(c), model, f)
		},
		Guess:     h.guess,
		Confirmed: h.live.Confirmed,
		Trace:     h.traces.Get,
		Flush:     func(ctx context.Context) error { return errors.Join(h.ledger.Flush(ctx), h.traces.Flush(ctx)) },
		Open:      h.ledger.Open,
		Log:       h.log,
	})
}

// memberOf returns the caller of the members' API: the holder of an API key or a machine
// credential.
func (h *Hub) memberOf(ctx context.Context, secret string) (api.Caller, error) {
	c, err := h.Identify(ctx, secret)
	return api.Caller{Member: c.Member, Name: c.Name, KeyID: c.KeyID, Reach: c.Reach, Machine: c.Machine, Inference: c.Inference}, err
}

// accountModels returns the models that the account can reach, including those of the
// machine that asks.
func (h *Hub) accountModels(ctx context.Context, c api.Caller) ([]api.Model, error) {
	models, err := h.calls.Models(ctx, gateway.Caller{Member: c.Member, Name: c.Name, KeyID: c.KeyID, Reach: c.Reach})
	out := make([]api.Model, len(models))
	for i, m := range models {
		out[i] = api.Model{
			ID: m.ID, ContextLength: m.ContextLength, Capabilities: m.Capabilities,
			Availability: string(m.Availability), Via: m.Via.String(), Owner: m.Owner, Chat: m.Chat, Machines: m.Machines,
		}
	}
	return out, err
}

// control sends an owner's change to a connected machine.
func (h *Hub) control(ctx context.Context, id fleet.MachineID, change api.Control) error {
	err := h.live.Control(ctx, id, tunnel.Control(change))
	if errors.Is(err, registry.ErrNotConnected) {
		return api.ErrNotConnected
	}
	return err
}

// newSite returns the members' pages, which use the management API.
func (h *Hub) newSite() *site.Site {
	c := h.cfg.Site
	c.Edge, c.Health, c.Limits, c.Near = h.drain.counted(h.edge.ServeHTTP), h.health, h.limits, h.near
	c.Call = func(w http.ResponseWriter, r *http.Request, who api.Caller) {
		h.drain.counted(func(w http.ResponseWriter, r *http.Request) { h.edge.ServeAs(w, r, gateway.Caller(who)) })(w, r)
	}
	return site.New(h.api, c)
}

// Operator returns the operator's part of the management API, for the socket in the hub's
// data directory.
func (h *Hub) Operator() http.Handler { return h.api.Operator() }

// FirstLink returns the address of a new one-time link to the account of the hub's first
// operator, or "" if an operator can already sign in.
func (h *Hub) FirstLink(ctx context.Context) (string, error) { return h.api.FirstLink(ctx) }
