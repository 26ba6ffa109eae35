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
	"sync"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fleet"
)

// upstreamSlots is how many calls of others one model of an upstream takes at
// once where it is shared: services elsewhere do not say.
const upstreamSlots = 4

// Key is the owner's secret for an upstream. Printed or logged it is nothing;
// only the requests that need it hold it.
type Key string

// String hides the key.
func (Key) String() string { return "[key]" }

// GoString hides the key from %#v, too.
func (Key) GoString() string { return "[key]" }

// LogValue hides the key from slog.
func (Key) LogValue() slog.Value { return slog.StringValue("[key]") }

// MarshalText hides the key from whoever writes documents.
func (Key) MarshalText() ([]byte, error) { return []byte("[key]"), nil }

// UpstreamConfig names a service elsewhere that the owner has an account with
// (decisions 1).
type UpstreamConfig struct {
	Name string
	// URL is its base with the /v1. Off this machine it is https.
	URL string
	// Dialect is what it speaks: "chat" (chat, embeddings and responses, as OpenAI
	// does), one of "embeddings" and "responses" alone, or "messages".
	Dialect string
	Key     Key
	// Models are those to offer; empty: those it lists.
	Models []fleet.ModelID
	// Share offers them to others, for chat and embeddings.
	Share bool
	Log   *slog.Logger
	// Transport reaches it; nil: one made for it.
	Transport http.RoundTripper
}

// dialects are the endpoints of each word for a dialect, for a model that
// chats and for one that embeds.
var dialects = map[string]struct{ chat, embed []fleet.Endpoint }{
	"chat":       {[]fleet.Endpoint{fleet.ChatCompletions, fleet.Responses}, []fleet.Endpoint{fleet.EmbeddingsEndpoint}},
	"embeddings": {nil, []fleet.Endpoint{fleet.EmbeddingsEndpoint}},
	"responses":  {[]fleet.Endpoint{fleet.Responses}, nil},
	"messages":   {[]fleet.Endpoint{fleet.Messages}, nil},
}

// shareable are the endpoints at which a stranger's request is rebuilt from what
// is allowed (decisions 5); no other goes out under the owner's key.
var shareable = []fleet.Endpoint{fleet.ChatCompletions, fleet.EmbeddingsEndpoint}

// Upstream is a service elsewhere, with what it offers.
type Upstream struct {
	config UpstreamConfig
	kind   *kind
	base   string // with its /v1
	rt     http.RoundTripper
	load   *load

	mu      sync.RWMutex
	engine  *Engine // nil: nothing is offered
	shared  *Engine // what of it is for others; nil: nothing
	finding Finding
}

// NewUpstream is an Upstream that offers the models it was told, or none until
// it was checked. It refuses what UpstreamConfig does not allow.
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
		kind: &kind{word: "upstream", name: c.Name, think: effortThinking},
	}
	if u.rt == nil {
		t := newTransport()
		t.ForceAttemptHTTP2 = true
		u.rt = t
	}
	u.finding = u.found(0, "its models are being asked for")
	if len(c.Models) > 0 {
		u.offer(c.Models)
	}
	return u, nil
}

// upstreamBase checks an upstream's address: the key must not travel in the
// clear beyond this machine.
func upstreamBase(address string) (string, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return "", errors.New("write its url like https://api.example.com/v1")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "", errors.New("leave the user, the query and the fragment out of its url; the key has its own place")
	case strings.Trim(u.Path, "/") == "":
		return "", errors.New("write its url with the /v1, or whatever stands in its place")
	case u.Scheme == "http" && !loopback(address):
		return "", errors.New("its url is not https:// and not on this machine: the key would travel in the clear")
	}
	base := u.Scheme + "://" + u.Host + strings.TrimRight(u.Path, "/")
	return strings.Replace(base, "://localhost", "://127.0.0.1", 1), nil
}

func (u *Upstream) found(models int, why string) Finding {
	return Finding{Place: u.base, Configured: true, Kind: u.kind.word, Name: u.config.Name, Models: models, Why: why}
}

// Engine is what the owner's own calls may use; nil: nothing just now.
func (u *Upstream) Engine() *Engine {
	u.mu.RLock()
	defer u.mu.RUnlock()
	return u.engine
}

// Shared is what calls of others may use; nil: nothing.
func (u *Upstream) Shared() *Engine {
	u.mu.RLock()
	defer u.mu.RUnlock()
	return u.shared
}

// Finding says what is known of the upstream, and why it is not offered.
func (u *Upstream) Finding() Finding {
	u.mu.RLock()
	defer u.mu.RUnlock()
	return u.finding
}

// Check asks the upstream for its models, unless the owner named them, and
// reports whether it is in order.
func (u *Upstream) Check(ctx context.Context) bool {
	if len(u.config.Models) > 0 {
		return true
	}
	p := &place{ctx: ctx, rt: keyed{u}, base: u.base, wait: farLook, pages: map[string]page{}}
	var l modelList
	err := p.get("/models?limit=1000").into(&l)
	if ctx.Err() != nil {
		return false // cut short: it says nothing of the upstream
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

// offer makes those models the ones that are offered.
func (u *Upstream) offer(ids []fleet.ModelID) {
	speaks := dialects[u.config.Dialect]
	var models, shared []Model
	for _, id := range ids {
		m := byName(string(id), 0)
		m.Slots, m.Endpoints = upstreamSlots, speaks.chat
		if speaks.chat == nil || speaks.embed != nil && m.Families[0] == fleet.Embeddings {
			m.embedding()
		} else {
			m.Families = []fleet.Family{fleet.Chat}
		}
		models = append(models, m)
		m.Endpoints = slices.DeleteFunc(slices.Clone(m.Endpoints), func(e fleet.Endpoint) bool { return !slices.Contains(shareable, e) })
		shared = append(shared, m)
	}
	models, shared = usable(models), usable(shared)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.engine != nil && slices.EqualFunc(u.engine.models, models, sameModel) {
		return
	}
	u.engine = &Engine{kind: u.kind, name: u.config.Name, base: u.base, rt: keyed{u}, models: models, load: u.load, elsewhere: true}
	if u.config.Share {
		u.shared = &Engine{kind: u.kind, name: u.config.Name, base: u.base, rt: keyed{u}, models: shared, load: u.load, elsewhere: true}
	}
	u.finding = u.found(len(models), "")
	if len(models) == 0 {
		u.engine, u.shared, u.finding = nil, nil, u.found(0, "it lists no model whose id can be offered: "+idRule)
	}
}

// keyed is the way to an upstream: it adds the key to what goes out and takes
// it from the errors that come back.
type keyed struct{ u *Upstream }

// RoundTrip satisfies http.RoundTripper.
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
	// Services quote a key that they refuse, whole or in part.
	text := []byte(nil)
	if s := resp.StatusCode; s != http.StatusUnauthorized && s != http.StatusForbidden && resp.Header.Get("Content-Encoding") == "" {
		text, _ = io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // what came before a break is enough
	}
	resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(bytes.ReplaceAll(text, []byte(secret), []byte("[key]"))))
	resp.ContentLength = -1
	resp.Header.Del("Content-Encoding")
	return resp, nil
}

// native passes an answer of a dialect that is not ours to mend: its bytes as
// they come, an unary one most bytes of them at most.
func native(src io.ReadCloser, stream bool, most int64, cancel context.CancelFunc) io.ReadCloser {
	reader := io.Reader(src)
	if !stream {
		reader = io.LimitReader(src, most)
	}
	return &limited{Reader: reader, src: src, cancel: cancel}
}
