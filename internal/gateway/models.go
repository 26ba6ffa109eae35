package gateway

import (
	"net/url"
	"strconv"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// modelExtras are the additional fields of a listing's entries
// (spec/api.md#models-shape).
type modelExtras struct {
	ContextLength int          `json:"context_length,omitzero"`
	Capabilities  []string     `json:"capabilities"`
	Availability  Availability `json:"availability"`
	Via           string       `json:"via"`
	Machines      int          `json:"machines"` // online machines in reach that offer it
	fleet.ModelFacts
}

// chatModel is an entry in the chat dialect.
type chatModel struct {
	ID      fleet.ModelID `json:"id"`
	Object  string        `json:"object"`
	Created int64         `json:"created"` // Unix time in seconds
	OwnedBy string        `json:"owned_by"`
	modelExtras
}

// messagesModel is an entry in the messages dialect.
type messagesModel struct {
	Type        string        `json:"type"`
	ID          fleet.ModelID `json:"id"`
	DisplayName fleet.ModelID `json:"display_name"`
	CreatedAt   time.Time     `json:"created_at"`
	modelExtras
}

// entry returns the entry of m in the dialect of the request.
func (r *request) entry(m Model) any {
	created := m.Created.UTC().Truncate(time.Second)
	if created.Unix() < 0 {
		created = time.Unix(0, 0).UTC()
	}
	extras := modelExtras{
		ContextLength: m.ContextLength, Capabilities: m.Capabilities,
		Availability: m.Availability, Via: m.Via.String(), Machines: m.Machines,
		ModelFacts: m.Facts,
	}
	if r.envelope == dialect.Messages {
		return messagesModel{Type: "model", ID: m.ID, DisplayName: m.ID, CreatedAt: created, modelExtras: extras}
	}
	return chatModel{ID: m.ID, Object: "model", Created: created.Unix(), OwnedBy: "kith", modelExtras: extras}
}

// listModels serves GET /v1/models: the complete list in the chat dialect, a page of it
// in the messages dialect.
func (r *request) listModels() error {
	models, err := r.edge.cfg.Backend.Models(r.Context(), r.caller)
	if err != nil {
		return r.faultOf(r.Context(), err)
	}
	if r.envelope != dialect.Messages {
		return r.writeJSON(struct {
			Object string `json:"object"`
			Data   []any  `json:"data"`
		}{"list", r.entries(models)})
	}
	models, more, err := page(models, r.URL.Query())
	if err != nil {
		return err
	}
	var first, last *fleet.ModelID
	if len(models) > 0 {
		first, last = &models[0].ID, &models[len(models)-1].ID
	}
	return r.writeJSON(struct {
		Data    []any          `json:"data"`
		HasMore bool           `json:"has_more"`
		FirstID *fleet.ModelID `json:"first_id"`
		LastID  *fleet.ModelID `json:"last_id"`
	}{r.entries(models), more, first, last})
}

func (r *request) entries(models []Model) []any {
	entries := make([]any, len(models))
	for i, m := range models {
		entries[i] = r.entry(m)
	}
	return entries
}

// page returns the part of a sorted list that limit, after_id and before_id select, and
// reports whether there is more. Without a limit, it returns everything. The ids need not
// be in the list, so that paging continues after a model was removed.
func page(models []Model, query url.Values) (_ []Model, more bool, err error) {
	limit := len(models)
	if text := query.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 {
			return nil, false, fault.New(fault.InvalidRequest, "limit must be a positive integer").WithParam("limit")
		}
	}
	after, before := fleet.ModelID(query.Get("after_id")), fleet.ModelID(query.Get("before_id"))
	for len(models) > 0 && after != "" && models[0].ID <= after {
		models = models[1:]
	}
	for len(models) > 0 && before != "" && models[len(models)-1].ID >= before {
		models = models[:len(models)-1]
	}
	more = len(models) > limit
	switch {
	case !more:
	case before != "" && after == "": // the page directly before it
		models = models[len(models)-limit:]
	default:
		models = models[:limit]
	}
	return models, more, nil
}

// oneModel serves GET /v1/models/{id}. An id may contain slashes and colons, plain or
// percent-encoded.
func (r *request) oneModel() error {
	id := fleet.ModelID(r.route.argument(r.URL.EscapedPath()))
	models, err := r.edge.cfg.Backend.Models(r.Context(), r.caller)
	if err != nil {
		return r.faultOf(r.Context(), err)
	}
	for _, m := range models {
		if m.ID == id {
			return r.writeJSON(r.entry(m))
		}
	}
	return fault.New(fault.ModelNotFound,
		"no model with that id is available to you: GET /v1/models lists those that are")
}
