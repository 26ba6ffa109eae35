package hub

import (
	"bytes"
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/web"
)

// SiteConfig is what an operator sets of the members' site.
type SiteConfig struct {
	// Base is the address members see, without a slash at the end.
	Base string
	// SignUp says who may make an account: "open", "invite" (the default) or
	// "closed".
	SignUp string
	// Provider is an OpenID provider at which members may sign in, too.
	Provider Provider
	// Mail is how letters to members are sent.
	Mail Mail
	// FirstMade is called when the link to the first operator's account was used.
	// May be nil.
	FirstMade func()
}

// Provider is an OpenID provider; the zero Provider is none.
type Provider = web.Provider

// Mail says how letters are sent; the zero Mail is not at all.
type Mail = web.Mail

// MailTLS says how the connection to the mail server is secured: "starttls" (the
// default), "implicit" or "none".
type MailTLS = web.MailTLS

// newSite is the members' pages over their API.
func (h *Hub) newSite(api *web.API) *web.Site {
	return web.NewSite(api, web.SiteConfig{
		Base: h.cfg.Site.Base, SignUp: web.SignUp(h.cfg.Site.SignUp), Provider: h.cfg.Site.Provider, Mail: h.cfg.Site.Mail, FirstMade: h.cfg.Site.FirstMade, Try: h.callOnce,
		Health: h.health, Limits: h.limits(),
		Call: func(w http.ResponseWriter, r *http.Request, c web.Caller) { h.edge.ServeAs(w, r, gateway.Caller(c)) },
	})
}

// FirstLink is the address of a new one-time link to the account of this hub's
// first operator; empty where an operator can sign in already.
func (h *Hub) FirstLink(ctx context.Context) (string, error) {
	path, err := h.site.FirstLink(ctx)
	if path == "" || err != nil {
		return "", err
	}
	return h.cfg.Site.Base + path, nil
}

// tryWithin is how long a live call from a page may take.
const tryWithin = 60 * time.Second

// callOnce makes a short call with an API key as any client would, through all of
// the edge.
func (h *Hub) callOnce(ctx context.Context, secret string, model fleet.ModelID) web.Trial {
	ctx, cancel := context.WithTimeout(ctx, tryWithin)
	defer cancel()
	if model == "" {
		var f *fault.Fault
		if model, f = h.anyModel(ctx, secret); f != nil {
			return web.Trial{Status: f.Status(), Code: string(f.Code), Message: f.Message}
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
		return web.Trial{Model: model, Message: "the model's id cannot be written as JSON"}
	}
	began, answer := time.Now(), &inMemory{header: http.Header{}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, fleet.ChatCompletions.String(), bytes.NewReader(body))
	if err != nil {
		return web.Trial{Model: model, Message: "the call cannot be made"}
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	r.Header.Set("Content-Type", "application/json")
	r.RequestURI = r.URL.RequestURI()
	h.edge.ServeHTTP(answer, r)
	t := web.Trial{Model: model, Status: cmp.Or(answer.status, http.StatusOK), Route: answer.header.Get("X-Kith-Route"), Took: time.Since(began)}
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

// createLink is POST /members/{name}/link of the operator's API: a one-time link
// that signs the member in on the site.
func (h *Hub) createLink(ctx context.Context, r *http.Request) (any, error) {
	member, err := h.member(ctx, r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	path, err := h.site.NewLink(ctx, member.ID)
	return map[string]string{"member": member.Name, "link": h.cfg.Site.Base + path}, err
}

// GrantView is a request that waits for approval, as the operator's API tells it.
type GrantView struct {
	Code    string    `json:"code"`
	Kind    string    `json:"kind"`
	Name    string    `json:"name"`
	Client  string    `json:"client"`
	Address string    `json:"address"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
}

func viewGrant(g account.Grant) GrantView {
	return GrantView{g.UserCode, string(g.Kind), g.Name, g.Client, g.Address, g.Created, g.Expires}
}

// listGrants is GET /devices: the sign-ins and requests for keys that wait.
func (h *Hub) listGrants(ctx context.Context, _ *http.Request) (any, error) {
	grants, err := h.records.WaitingGrants(ctx, time.Now())
	views := make([]GrantView, len(grants))
	for i, g := range grants {
		views[i] = viewGrant(g)
	}
	return views, err
}

// approveGrant is POST /devices/{code}/approve {"member"}: in that member's name,
// without the site.
func (h *Hub) approveGrant(ctx context.Context, r *http.Request) (any, error) {
	var ask struct {
		Member string `json:"member"`
	}
	if f := readJSON(nil, r, &ask); f != nil {
		return nil, f
	}
	member, err := h.member(ctx, ask.Member)
	if err != nil {
		return nil, err
	}
	code := credential.ReadUserCode(r.PathValue("code"))
	about(ctx, r.PathValue("code"), member.Name)
	g, err := h.records.DecideGrant(ctx, code, account.GrantApproved, member.ID, time.Now())
	if err != nil {
		return nil, h.missing(err, "nothing waits under the code %.20q; kith admin device list shows what does", r.PathValue("code"))
	}
	return viewGrant(g), nil
}
