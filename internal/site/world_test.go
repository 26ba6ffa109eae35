package site

import (
	"bytes"
	"context"
	"encoding/json/v2"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

// world is the api.API on a real store. Members authenticate by sending their name as the
// secret.
type world struct {
	t        *testing.T
	db       *store.DB
	api      *api.API
	server   *httptest.Server
	members  map[string]account.Member
	machine  account.Machine // ada's
	snapshot *fleet.Snapshot
	changed  int
	controls []fleet.Control
	acts     []fleet.FileAct // those that change something
	files    fleet.ModelFiles
	filing   sync.Mutex // guards acts and files
	refuse   error      // result of Control and of acts on files
	limit    error      // result of Admit
	missed   []fleet.ModelID
	blind    bool              // nothing can be confirmed
	keys     map[string]string // secrets of API keys, and their members
	uses     []fleet.ActiveCall
	queued   int
	crash    bool        // Admit panics
	models   []api.Model // in reach of everyone, if not nil
	drained  []string
	log      bytes.Buffer
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return worldOn(t, store.Config{Path: storetest.SQLite(t)})
}

func worldOn(t *testing.T, config store.Config) *world {
	t.Helper()
	db, err := store.Open(t.Context(), config)
	check(t, err)
	w := &world{t: t, db: db, members: map[string]account.Member{}, snapshot: fleet.NewSnapshot()}
	for _, name := range []string{"ada", "bob", "eve"} {
		m := account.Member{ID: account.NewID("mem_"), Name: name, Created: time.Now()}
		check(t, db.CreateMember(t.Context(), m))
		w.members[name] = m
	}
	w.machine = account.Machine{
		ID: account.NewID("mch_"), OwnerID: w.members["ada"].ID, Name: "box", Region: "home", Hash: [32]byte{1}, Created: time.Now(),
	}
	check(t, db.CreateMachine(t.Context(), w.machine))
	hours, err := fleet.ParseHours("Mon-Sun 00:00-24:00", "Europe/Lisbon")
	check(t, err)
	w.snapshot = w.snapshot.WithMachine(&fleet.Machine{
		ID: fleet.MachineID(w.machine.ID), Owner: fleet.MemberID(w.machine.OwnerID), OwnerName: "ada", Name: "box", Online: true, Slots: 3, Hours: hours, Groups: []string{"lab"},
		Offers: []fleet.Offer{{ID: "tiny", Families: fleet.Families(fleet.Chat), ContextLength: 512, Slots: 2}},
	})
	w.api = api.New(api.Config{
		DB: db, Region: "home", Identify: w.identify,
		Snapshot: func() *fleet.Snapshot { return w.snapshot },
		Models: func(_ context.Context, c fleet.Caller) ([]api.Model, error) {
			if w.models != nil {
				return w.models, nil
			}
			return []api.Model{{ID: fleet.ModelID("of-" + c.Name), Chat: true}}, nil
		},
		Control: func(_ context.Context, id fleet.MachineID, c fleet.Control) error {
			assert.Equal(t, string(id), w.machine.ID, "machine", id, "was to be changed")
			w.controls = append(w.controls, c)
			return w.refuse
		},
		Files: func(_ context.Context, id fleet.MachineID, act fleet.FileAct) (fleet.ModelFiles, error) {
			w.filing.Lock()
			defer w.filing.Unlock()
			assert.Equal(t, string(id), w.machine.ID, "machine")
			if act.Act != fleet.ActList {
				w.acts = append(w.acts, act)
			}
			return w.files, w.refuse
		},
		Changed: func(context.Context) { w.changed++ },
		Admit: func(fleet.Caller) error {
			if w.crash {
				panic("the secret inside")
			}
			return w.limit
		},
		Miss: func(_ fleet.Caller, model fleet.ModelID, f *fault.Fault) *fault.Fault {
			if w.missed = append(w.missed, model); len(w.missed) > 60 {
				return fault.New(fault.RateLimitExceeded, "too many")
			}
			return f
		},
		Confirmed: func(time.Time) bool { return !w.blind },
		Running:   func() []fleet.ActiveCall { return w.uses },
		Queued:    func(*fleet.Machine) int { return w.queued },
		KeyLoad:   func(string) *fleet.LimitLoad { return nil },
		Trace:     db.Trace,
		Nodes: func() []api.Node {
			return []api.Node{{Name: "a", Alive: true, Here: true, Linked: true, Machines: 1, Calls: 1}, {Name: "b", Alive: true, Linked: true}}
		},
		DrainNode: func(_ context.Context, name string) error { w.drained = append(w.drained, name); return nil },
		Log:       slog.New(slog.NewTextHandler(&w.log, nil)),
	})
	w.server = httptest.NewServer(w.api)
	t.Cleanup(func() { w.server.Close(); check(t, db.Close()) })
	return w
}

func check(t *testing.T, err error) {
	t.Helper()
	assert.OK(t, err)
}

func (w *world) identify(_ context.Context, secret string) (fleet.Caller, error) {
	if whose, ok := w.keys[secret]; ok {
		return fleet.Caller{Member: fleet.MemberID(w.members[whose].ID), Name: whose, KeyID: "key_of_" + whose}, nil
	}
	m, ok := w.members[secret]
	if !ok {
		return fleet.Caller{}, fault.New(fault.InvalidAPIKey, "who is that?")
	}
	return fleet.Caller{Member: fleet.MemberID(m.ID), Name: m.Name}, nil
}

// response is the part of a response that tests use.
type response struct {
	status int
	code   string
	body   string
}

// ask makes one request as that member.
func (w *world) ask(who, method, path, body string) response {
	w.t.Helper()
	r, err := http.NewRequest(method, w.server.URL+path, strings.NewReader(body))
	check(w.t, err)
	if who != "" {
		r.Header.Set("Authorization", "Bearer "+who)
	}
	resp, err := w.server.Client().Do(r)
	check(w.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	check(w.t, err)
	answer := response{status: resp.StatusCode, body: string(text)}
	assert.That(w.t, resp.Header.Get("X-Correlation-ID") != "", method, path, "has no correlation id")
	if resp.StatusCode != http.StatusOK {
		var envelope struct{ Error api.Problem }
		check(w.t, json.Unmarshal(text, &envelope, json.MatchCaseInsensitiveNames(true)))
		answer.code = string(envelope.Error.Code)
		if envelope.Error.CorrelationID != resp.Header.Get("X-Correlation-ID") || envelope.Error.Message == "" || envelope.Error.Type == "" {
			w.t.Errorf("%s %s is refused with %s", method, path, text)
		}
	}
	return answer
}

// good is ask for a response with status 200, decoded into T.
func good[T any](w *world, who, method, path, body string) T {
	w.t.Helper()
	answer := w.ask(who, method, path, body)
	assert.Require(w.t, answer.status == http.StatusOK, who, method, path, body, answer.status, answer.body)
	var into T
	check(w.t, json.Unmarshal([]byte(answer.body), &into))
	return into
}

type anything = map[string]any

// intoGroup makes ada invite a member to a group of hers, and the member accept.
func (w *world) intoGroup(group, who string) {
	w.t.Helper()
	good[anything](w, "ada", "POST", "/api/groups/"+group+"/invitations", `{"member":"`+who+`"}`)
	good[anything](w, who, "POST", "/api/groups/"+group+"/accept", "")
}

// adas is everything that ada sees of her account.
func (w *world) adas() []response {
	var all []response
	for _, path := range []string{"/api/shares", "/api/invites", "/api/groups", "/api/notices", "/api/keys", "/api/requests", "/api/why/req_adas"} {
		all = append(all, w.ask("ada", "GET", path, ""))
	}
	m, err := w.db.OwnMachine(w.t.Context(), w.members["ada"].ID, w.machine.ID)
	check(w.t, err)
	text, err := json.Marshal(m)
	check(w.t, err)
	return append(all, response{body: string(text)})
}
