package hub

import (
	"cmp"
	"context"
	"encoding/json/v2"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/registry"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

var errDown = errors.New("the database is down")

// kept is the real store, with look-ups counted, and down on demand.
type kept struct {
	*store.DB
	down    atomic.Bool
	lookups atomic.Int64
	clock   time.Duration // that the store's clock is ahead of this computer's
	found   func()        // comes between the look-up of a key and its answer; nil: nothing does
}

func (k *kept) Now() time.Time { return k.DB.Now().Add(k.clock) }

func (k *kept) look() error {
	k.lookups.Add(1)
	if k.down.Load() {
		return errDown
	}
	return nil
}

func (k *kept) KeyByHash(ctx context.Context, hash [32]byte) (account.Key, account.Member, error) {
	if err := k.look(); err != nil {
		return account.Key{}, account.Member{}, err
	}
	key, member, err := k.DB.KeyByHash(ctx, hash)
	if k.found != nil {
		k.found()
	}
	return key, member, err
}

func (k *kept) MachineByHash(ctx context.Context, hash [32]byte) (account.Machine, account.Member, error) {
	if err := k.look(); err != nil {
		return account.Machine{}, account.Member{}, err
	}
	return k.DB.MachineByHash(ctx, hash)
}

// rig is a hub over a real store, without machines.
type rig struct {
	*Hub
	t        *testing.T
	kept     *kept
	operator http.Handler
}

func newRig(t *testing.T, cfg Config) *rig {
	t.Helper()
	db := assert.Value(store.Open(t.Context(), store.Config{Path: storetest.SQLite(t)}))(t)
	t.Cleanup(func() { db.Close() })
	cfg.Region = cmp.Or(cfg.Region, "home")
	return rigOn(t, db, db.Facts(cfg.Region), cfg)
}

// rigOn is a hub of cfg.Region on a database that it may share.
func rigOn(t *testing.T, db *store.DB, facts registry.Facts, cfg Config) *rig {
	k := &kept{DB: db}
	cfg.Log = slog.New(slog.DiscardHandler)
	live := registry.New(registry.Config{Node: "hub-" + cfg.Region, Region: cfg.Region, Facts: facts, Log: cfg.Log})
	cfg.DB = db
	h := New(cfg, k, live)
	return &rig{Hub: h, t: t, kept: k, operator: h.Operator()}
}

// reply is an answer of the operator's API or of POST /login.
type reply struct {
	Status int
	Header http.Header
	Body   map[string]any
	List   []map[string]any
}

// code is the code of an error answer.
func (a reply) code() string {
	e, _ := a.Body["error"].(map[string]any)
	code, _ := e["code"].(string)
	return code
}

func send(t *testing.T, handler http.Handler, method, path, body string) reply {
	t.Helper()
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(method, path, strings.NewReader(body)))
	a := reply{Status: recorder.Code, Header: recorder.Header()}
	if text := recorder.Body.Bytes(); strings.HasPrefix(string(text), "[") {
		assert.OK(t, json.Unmarshal(text, &a.List), method, path, text)
	} else if err := json.Unmarshal(text, &a.Body); err != nil {
		t.Fatalf("%s %s: %d %q: %v", method, path, recorder.Code, text, err)
	}
	return a
}

// admin asks the operator's API.
func (r *rig) admin(method, path, body string) reply {
	r.t.Helper()
	return send(r.t, r.operator, method, path, body)
}

// ok asks the operator's API for something that works.
func (r *rig) ok(method, path, body string) reply {
	r.t.Helper()
	a := r.admin(method, path, body)
	assert.Require(r.t, a.Status == 200, method, path, body, a.Status, a.Body)
	return a
}

// member makes a member and an API key of theirs: its id and its secret.
func (r *rig) member(name string) (id, secret string) {
	r.t.Helper()
	r.ok("POST", "/members", `{"name":"`+name+`"}`)
	key := r.ok("POST", "/keys", `{"member":"`+name+`"}`).Body
	return key["id"].(string), key["secret"].(string)
}

// machine makes a machine of the member: its id and its credential.
func (r *rig) machine(member, name string) (id, secret string) {
	r.t.Helper()
	token := r.ok("POST", "/machines/token", `{"member":"`+member+`","name":"`+name+`"}`).Body["token"].(string)
	a := send(r.t, r.Handler(), "POST", "/login", `{"token":"`+token+`"}`)
	assert.Require(r.t, a.Status == 200, "login", a.Status, a.Body)
	return a.Body["machine"].(string), a.Body["secret"].(string)
}

// mistyped is a secret with one character wrong.
func mistyped(secret string) string {
	last := "a"
	if strings.HasSuffix(secret, "a") {
		last = "b"
	}
	return secret[:len(secret)-1] + last
}

// elsewhere is a well-formed secret of another region.
func elsewhere(kind credential.Kind) string { return credential.Mint(kind, "moon").Reveal() }
