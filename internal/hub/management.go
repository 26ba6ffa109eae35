package hub

import (
	"context"
	"errors"
	"net/http"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/site"
)

// newAPI returns the management API for this hub's database and registry.
func (h *Hub) newAPI() *api.API {
	return api.New(api.Config{
		DB:       h.cfg.DB,
		Region:   h.cfg.Region,
		Regions:  h.cfg.Regions,
		Identify: h.Identify,
		Snapshot: h.live.Snapshot,
		Models:   h.accountModels,
		Running:  h.calls.Running,
		Waiting:  h.calls.Waiting,
		Queued:   h.calls.Queued,
		Control:  h.live.Control,
		Ready:    h.Ready,
		Nodes:    h.nodes, Home: h.home, DrainNode: h.drainNode,
		Reload:    h.cfg.ReloadConfig,
		Changed:   h.live.Settle,
		Admit:     h.edge.Admit,
		Miss:      h.edge.Miss,
		Guess:     h.guess,
		Confirmed: h.live.Confirmed,
		Trace:     h.traces.Get,
		Flush:     func(ctx context.Context) error { return errors.Join(h.ledger.Flush(ctx), h.traces.Flush(ctx)) },
		Open:      h.ledger.Open,
		Log:       h.log,
	})
}

// accountModels returns the models that the account can reach, including those of the
// machine that asks.
func (h *Hub) accountModels(ctx context.Context, c fleet.Caller) ([]api.Model, error) {
	c.Machine = ""
	models, err := h.calls.Models(ctx, c)
	out := make([]api.Model, len(models))
	for i, m := range models {
		out[i] = api.Model{
			ID: m.ID, ContextLength: m.ContextLength, Capabilities: m.Capabilities,
			Availability: string(m.Availability), Via: m.Via.String(), Owner: m.Owner, Chat: m.Chat, Machines: m.Machines,
		}
	}
	return out, err
}

// newSite returns the members' pages, which use the management API.
func (h *Hub) newSite() *site.Site {
	c := h.cfg.Site
	c.Edge, c.Health, c.Limits, c.BusyClients = h.drain.counted(h.edge.ServeHTTP), h.health, h.limits, h.busyClients
	c.Call = func(w http.ResponseWriter, r *http.Request, who fleet.Caller) {
		h.drain.counted(func(w http.ResponseWriter, r *http.Request) { h.edge.ServeAs(w, r, who) })(w, r)
	}
	return site.New(h.api, c)
}

// Operator returns the operator's part of the management API, for the socket in the hub's
// data directory.
func (h *Hub) Operator() http.Handler { return h.api.Operator() }

// FirstLink returns the address of a new one-time link to the account of the hub's first
// operator, or "" if an operator can already sign in.
func (h *Hub) FirstLink(ctx context.Context) (string, error) { return h.api.FirstLink(ctx) }
