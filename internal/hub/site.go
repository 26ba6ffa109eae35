package hub

import (
	"bytes"
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/site"
)

// newSite is the members' pages over the management API.
func (h *Hub) newSite() *site.Site {
	c := h.cfg.Site
	c.Try, c.Health, c.Limits = h.callOnce, h.health, h.limits()
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

// tryWithin is how long a live call from a page may take.
const tryWithin = 60 * time.Second

// callOnce makes a short call with an API key as any client would, through all of
// the edge.
func (h *Hub) callOnce(ctx context.Context, secret string, model fleet.ModelID) site.Trial {
	ctx, cancel := context.WithTimeout(ctx, tryWithin)
	defer cancel()
	if model == "" {
		var f *fault.Fault
		if model, f = h.anyModel(ctx, secret); f != nil {
			return site.Trial{Status: f.Status(), Code: string(f.Code), Message: f.Message}
		}
	}
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	body, err := json.Marshal(struct {
		Model     fleet.ModelID `json:"model"`
		MaxTokens int           `json:"max_tokens"`
		Messages  []message     `json:"messages"`
	}{model, 32, []message{{"user", "Say hello."}}})
	if err != nil {
		return site.Trial{Model: model, Message: "the model's id cannot be written as JSON"}
	}
	began, answer := time.Now(), &inMemory{header: http.Header{}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, fleet.ChatCompletions.String(), bytes.NewReader(body))
	if err != nil {
		return site.Trial{Model: model, Message: "the call cannot be made"}
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	r.Header.Set("Content-Type", "application/json")
	r.RequestURI = r.URL.RequestURI()
	h.edge.ServeHTTP(answer, r)
	t := site.Trial{Model: model, Status: cmp.Or(answer.status, http.StatusOK), Route: answer.header.Get("X-Kith-Route"), Took: time.Since(began)}
	var told struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
		Choices []struct {
			Message message `json:"message"`
		} `json:"choices"`
	}
	_ = json.Unmarshal(answer.body.Bytes(), &told) // whatever it is, the status says how it went
	t.Code, t.Message = told.Error.Code, told.Error.Message
	if len(told.Choices) > 0 {
		t.Message = told.Choices[0].Message.Content
	}
	return t
}

// anyModel is one that a call with the key would reach now, a ready one if there
// is one.
func (h *Hub) anyModel(ctx context.Context, secret string) (fleet.ModelID, *fault.Fault) {
	caller, err := h.Identify(ctx, secret)
	if err != nil {
		return "", fault.Of(err)
	}
	models, err := h.calls.Models(ctx, caller)
	if err != nil || len(models) == 0 {
		return "", fault.New(fault.ModelNotFound, "the key reaches no model just now: connect a machine that runs one, or accept an invite")
	}
	for _, m := range models {
		if m.Availability == gateway.Ready {
			return m.ID, nil
		}
	}
	return models[0].ID, nil
}

// inMemory takes an answer of the edge.
type inMemory struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header satisfies http.ResponseWriter.
func (m *inMemory) Header() http.Header { return m.header }

// WriteHeader satisfies http.ResponseWriter.
func (m *inMemory) WriteHeader(status int) {
	if m.status == 0 {
		m.status = status
	}
}

// Write satisfies http.ResponseWriter.
func (m *inMemory) Write(p []byte) (int, error) { return m.body.Write(p) }
