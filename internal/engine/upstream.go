package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/outbound"
)

// upstreamSlots is the number of concurrent shared calls for one model of an upstream.
const upstreamSlots = 4

// Key is the owner's API key for an upstream. It prints and logs as [key].
type Key string

// String hides the key.
func (Key) String() string { return "[key]" }

// GoString hides the key from %#v, too.
func (Key) GoString() string { return "[key]" }

// LogValue hides the key from slog.
func (Key) LogValue() slog.Value { return slog.StringValue("[key]") }

// MarshalText hides the key from encoders.
func (Key) MarshalText() ([]byte, error) { return []byte("[key]"), nil }

// UpstreamConfig configures an upstream service that the owner has an account with.
type UpstreamConfig struct {
	Name string
	// URL is the base address with the /v1. It must be https unless it is on this machine.
	URL string
	// Dialect is "chat" (chat, embeddings and responses, as at OpenAI),
	// "embeddings", "responses" or "messages".
	Dialect string
	Key     Key
	// Models are the models to offer; empty means those that the upstream lists.
	Models []fleet.ModelID
	// Share offers the models to others, for chat and embeddings.
	Share bool
	Log   *slog.Logger
	// Transport connects to the upstream; nil means a new transport.
	Transport http.RoundTripper
}

// dialects maps each Dialect to the endpoints for chat models and for embedding models.
var dialects = map[string]struct{ chat, embed []fleet.Endpoint }{
	"chat":       {[]fleet.Endpoint{fleet.ChatCompletions, fleet.Responses}, []fleet.Endpoint{fleet.EmbeddingsEndpoint}},
	"embeddings": {nil, []fleet.Endpoint{fleet.EmbeddingsEndpoint}},
	"responses":  {[]fleet.Endpoint{fleet.Responses}, nil},
	"messages":   {[]fleet.Endpoint{fleet.Messages}, nil},
}

// shareable are the endpoints with an allow-list. Members' requests to other endpoints
// are not sent with the owner's key.
var shareable = []fleet.Endpoint{fleet.ChatCompletions, fleet.EmbeddingsEndpoint}

// Upstream is an upstream service with its models.
type Upstream struct {
	config UpstreamConfig
	kind   *kind
	base   string // including /v1
	rt     http.RoundTripper
	load   *load

	offered
	shared *Engine // offered to others, or nil; guarded by mu
}

// NewUpstream returns an Upstream that offers the configured models, or none until Check.
// It rejects an invalid UpstreamConfig.
func NewUpstream(c UpstreamConfig) (*Upstream, error) {
	base, err := upstreamBase(c.URL)
	if err != nil {
		return nil, fmt.Errorf("cannot use the upstream %q: %w", c.Name, err)
	}
	switch _, known := dialects[c.Dialect]; {
	case !known:
		return nil, fmt.Errorf("cannot use the upstream %q: its dialect is chat, embeddings, responses or messages", c.Name)
	case c.Share && (c.Dialect == "responses" || c.Dialect == "messages"):
		return nil, fmt.Errorf("cannot share the upstream %q: others are served in the chat dialect only; take share away", c.Name)
	}
	for _, id := range c.Models {
		if !id.Valid() {
			return nil, fmt.Errorf("cannot offer a model of the upstream %q: an id is 1 to 256 printable bytes", c.Name)
		}
	}
	u := &Upstream{
		config: c, base: base, rt: c.Transport, load: new(load),
		kind: &kind{id: "upstream", name: c.Name, think: effortThinking, developer: strings.HasPrefix(base, "https://api.openai.com/")},
	}
	if u.rt == nil {
		t := newTransport()
		far := outbound.NewTransport()
		t.Proxy, t.OnProxyConnectResponse = far.Proxy, far.OnProxyConnectResponse
		t.ForceAttemptHTTP2 = true
		u.rt = t
	}
	u.finding = u.found(0, "its models are being asked for")
	if len(c.Models) > 0 {
		u.offer(c.Models)
	}
	return u, nil
}

// upstreamBase validates an upstream's address: the key must not leave this machine
// unencrypted.
func upstreamBase(address string) (string, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return "", errors.New("write its url like https://api.example.com/v1")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "", errors.New("leave the user, the query and the fragment out of its url; the key has its own place")
	case strings.Trim(u.Path, "/") == "":
		return "", errors.New("write its url with the /v1, or what takes its place")
	case u.Scheme == "http" && !loopback(address):
		return "", errors.New("its url is not https:// and not on this machine: the key would travel in the clear")
	}
	return origin(u) + strings.TrimRight(u.Path, "/"), nil
}

func (u *Upstream) found(models int, why string) Finding {
	return Finding{Place: u.base, Configured: true, Kind: u.kind.id, Name: u.config.Name, Models: models, Why: why}
}

// Shared returns the engine for calls of others, or nil.
func (u *Upstream) Shared() *Engine { return locked(&u.mu, &u.shared) }

// Check lists the upstream's models, unless they are configured, and reports whether the
// upstream works.
func (u *Upstream) Check(ctx context.Context) bool {
	if len(u.config.Models) > 0 {
		return true
	}
	p := &probe{ctx: ctx, rt: keyed{u}, base: u.base, wait: farProbe, pages: map[string]page{}}
	var l modelList
	err := p.get("/models?limit=1000").into(&l)
	if ctx.Err() != nil {
		return false // an interrupted check has no result
	}
	var ids []fleet.ModelID
	for _, d := range l.Data {
		ids = append(ids, fleet.ModelID(d.ID))
	}
	why := ""
	switch {
	case errors.Is(err, errLocked):
		why = "it refuses the key; correct the key of this [[upstream]]"
	case err != nil:
		why = err.Error()
	case len(ids) == 0:
		why = "it lists no models; name those to offer as models of this [[upstream]]"
	}
	if why != "" {
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.finding.Why != why {
			u.config.Log.Warn("upstream not offered", "upstream", u.config.Name, "why", why)
		}
		u.engine, u.shared, u.finding = nil, nil, u.found(0, why)
		return false
	}
	u.offer(ids)
	return true
}

// offer replaces the offered models.
func (u *Upstream) offer(ids []fleet.ModelID) {
	speaks := dialects[u.config.Dialect]
	var models, shared []Model
	for _, id := range ids {
		m := byName(string(id), 0)
		embeds := speaks.chat == nil || speaks.embed != nil && m.Families[0] == fleet.Embeddings
		m.Slots, m.Families, m.Endpoints = upstreamSlots, []fleet.Family{fleet.Chat}, speaks.chat
		m.setEmbeds(embeds, false)
		models = append(models, m)
		m.Endpoints = slices.DeleteFunc(slices.Clone(m.Endpoints), func(e fleet.Endpoint) bool { return !slices.Contains(shareable, e) })
		shared = append(shared, m)
	}
	models, leftOut := usable(models)
	shared, _ = usable(shared)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.engine != nil && slices.EqualFunc(u.engine.models, models, sameModel) {
		return
	}
	offered := Engine{
		kind: u.kind, name: u.config.Name, base: u.base, rt: keyed{u}, models: models, load: u.load, upstream: true,
	}
	if u.engine = new(offered); u.config.Share {
		offered.models = shared
		u.shared = &offered
	}
	u.finding = u.found(len(models), "")
	u.finding.LeftOut = leftOut
	if len(models) == 0 {
		u.engine, u.shared, u.finding = nil, nil, u.found(0, "it lists no model whose id can be offered: "+idRule)
	}
}

// keyed is the transport to an upstream. It adds the key to requests and removes it from
// error responses.
type keyed struct{ u *Upstream }

func (k keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	secret := string(k.u.config.Key)
	r = r.Clone(r.Context())
	switch {
	case secret == "":
	case k.u.config.Dialect == "messages":
		r.Header.Set("X-Api-Key", secret)
	default:
		r.Header.Set("Authorization", "Bearer "+secret)
	}
	if k.u.config.Dialect == "messages" && r.Header.Get(dialect.VersionHeader) == "" {
		r.Header.Set(dialect.VersionHeader, "2023-06-01")
	}
	resp, err := k.u.rt.RoundTrip(r)
	if err != nil || resp.StatusCode == http.StatusOK || secret == "" {
		return resp, err
	}
	// Services quote a refused key, completely or in part.
	text := []byte(nil)
	if s := resp.StatusCode; s != http.StatusUnauthorized && s != http.StatusForbidden && resp.Header.Get("Content-Encoding") == "" {
		text, _ = io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // an incomplete text is sufficient
	}
	resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(bytes.ReplaceAll(text, []byte(secret), []byte("[key]"))))
	resp.ContentLength = -1
	resp.Header.Del("Content-Encoding")
	return resp, nil
}
