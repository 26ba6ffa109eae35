package hub

import (
	"net/http"
	"strings"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// ModelView is a model as the member's JSON API tells it.
type ModelView struct {
	ID            fleet.ModelID        `json:"id"`
	ContextLength int                  `json:"context_length,omitzero"`
	Capabilities  []string             `json:"capabilities"`
	Availability  gateway.Availability `json:"availability"`
	Via           string               `json:"via"`
	Machines      int                  `json:"machines"`
}

// accountModels is GET /api/models: what the account reaches. Unlike the
// inference routes, it does not leave out the machine whose credential asks:
// that one cannot be called from itself, but it is the account's.
func (h *Hub) accountModels(w http.ResponseWriter, r *http.Request) {
	caller, err := h.memberOf(r)
	if err != nil {
		writeProblem(w, fault.Of(err))
		return
	}
	caller.Machine = ""
	models, err := h.Models(r.Context(), caller)
	if err != nil {
		writeProblem(w, fault.Of(err))
		return
	}
	views := make([]ModelView, len(models))
	for i, m := range models {
		views[i] = ModelView{m.ID, m.ContextLength, m.Capabilities, m.Availability, m.Via.String(), m.Machines}
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": views})
}

// memberOf is who asks on the member's JSON API: the holder of an API key or a
// machine credential (decisions 5).
func (h *Hub) memberOf(r *http.Request) (gateway.Caller, error) {
	secret, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return gateway.Caller{}, badKey()
	}
	return h.Identify(r.Context(), secret)
}
