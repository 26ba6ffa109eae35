package hub

import (
	"context"
	"net/http"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/site"
)

// newSite is the members' pages over the management API.
func (h *Hub) newSite() *site.Site {
	c := h.cfg.Site
	c.Edge, c.Health, c.Limits = h.edge, h.health, h.limits()
	c.Call = func(w http.ResponseWriter, r *http.Request, who api.Caller) {
		h.edge.ServeAs(w, r, gateway.Caller(who))
	}
	return site.New(h.api, c)
}

// Operator is the operator's part of the management API, for the socket in the
// hub's data directory.
func (h *Hub) Operator() http.Handler { return h.api.Operator() }

// FirstLink is the address of a new one-time link to the account of this hub's
// first operator; empty where an operator can sign in already.
func (h *Hub) FirstLink(ctx context.Context) (string, error) { return h.api.FirstLink(ctx) }
