package api

import (
	"bytes"
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

// world is the API over a real store. A member's name, sent as
// the secret, identifies that member.
type world struct {
	t        *testing.T
	db       *store.DB
	api      *API
	server   *httptest.Server
	members  map[string]account.Member
	machine  account.Machine // ada's
	from     fleet.MachineID // the machine whose credential a member uses
	snapshot *fleet.Snapshot
	changed  int
	controls []fleet.Control
	acts     []fleet.FileAct
	refuse   error // what Control and Files answer
	limit    error // what Admit answers
	missed   []fleet.ModelID
	blind    bool              // nothing can be confirmed
	keys     map[string]string // secrets of API keys, and whose they are
	uses     []fleet.ActiveCall
	queued   int
	loads    map[string]*fleet.LimitLoad // of keys
	padding  int                         // of statements of keys, in bytes
	crash    bool                        // Admit panics
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
	w.api = New(Config{
		DB: db, Region: "home", Identify: w.identify,
		Snapshot: func() *fleet.Snapshot { return w.snapshot },
		Models: func(_ context.Context, c fleet.Caller) ([]Model, error) {
			return []Model{{ID: fleet.ModelID("of-" + c.Name)}}, nil
		},
		Seal: func(_ context.Context, id fleet.MachineID) (fleet.Seal, error) {
			return fleet.Seal{Statement: append([]byte("statement of "+id), make([]byte, w.padding)...), Ask: []byte("ask")}, nil
		},
		Control: func(_ context.Context, id fleet.MachineID, c fleet.Control) error {
			assert.Equal(t, string(id), w.machine.ID, "machine", id, "was to be changed")
			w.controls = append(w.controls, c)
			return w.refuse
		},
		Files: func(_ context.Context, id fleet.MachineID, act fleet.FileAct) (fleet.ModelFiles, error) {
			assert.Equal(t, string(id), w.machine.ID, "machine")
			w.acts = append(w.acts, act)
			return fleet.ModelFiles{
				Files: []fleet.ModelFile{{ID: "words", Size: 3, State: fleet.FileLoaded}},
				Pulls: []fleet.ModelPull{{Model: "qwen3-4b", State: fleet.PullRunning, Done: 1, Total: -1}}, List: []fleet.ListedModel{},
			}, w.refuse
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
		KeyLoad:   func(key string) *fleet.LimitLoad { return w.loads[key] },
		Trace:     db.Trace,
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
		return fleet.Caller{Member: fleet.MemberID(w.members[whose].ID), Name: whose, KeyID: "key_of_" + whose, Inference: strings.HasPrefix(secret, "inference")}, nil
	}
	m, ok := w.members[secret]
	if !ok {
		return fleet.Caller{}, fault.New(fault.InvalidAPIKey, "who is that?")
	}
	return fleet.Caller{Member: fleet.MemberID(m.ID), Name: m.Name, Machine: w.from}, nil
}

// response is what the tests look at of an answer.
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
		var envelope struct{ Error Problem }
		check(w.t, json.Unmarshal(text, &envelope, json.MatchCaseInsensitiveNames(true)))
		answer.code = string(envelope.Error.Code)
		if envelope.Error.CorrelationID != resp.Header.Get("X-Correlation-ID") || envelope.Error.Message == "" || envelope.Error.Type == "" {
			w.t.Errorf("%s %s is refused with %s", method, path, text)
		}
	}
	if path != openAPIPath {
		asDescribed(w.t, method, routeOf(method, path), resp.StatusCode, answer.body)
	}
	return answer
}

// good is ask where the answer must be 200; it is decoded into T.
func good[T any](w *world, who, method, path, body string) T {
	w.t.Helper()
	answer := w.ask(who, method, path, body)
	assert.Require(w.t, answer.status == http.StatusOK, who, method, path, body, answer.status, answer.body)
	var into T
	check(w.t, json.Unmarshal([]byte(answer.body), &into))
	return into
}

type anything = map[string]any

// intoGroup has ada invite a member to a group of hers, and the member accept.
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

// TestWhatIsAdasIsNotEves walks every route as another member, and as a member of
// ada's org who does not run it: neither reads nor changes what is ada's. A
// route that is not in the table fails.
func TestWhatIsAdasIsNotEves(t *testing.T) {
	w := newWorld(t)
	good[anything](w, "ada", "POST", "/api/shares", `{"with":"bob","models":["secret-model"]}`)
	invite := good[Invite](w, "ada", "POST", "/api/invites", "")
	good[anything](w, "ada", "POST", "/api/groups", `{"name":"lab","kind":"org"}`)
	w.intoGroup("lab", "bob")
	pat := account.Member{ID: account.NewID("mem_"), Name: "pat", Created: time.Now()}
	check(t, w.db.CreateMember(t.Context(), pat))
	good[anything](w, "ada", "POST", "/api/groups/lab/invitations", `{"member":"pat"}`)
	good[anything](w, "ada", "POST", "/api/groups", `{"name":"all","kind":"open"}`)
	good[anything](w, "ada", "POST", "/api/machines/"+w.machine.ID+"/keep-out", `{"group":"lab"}`)

	key := account.Key{ID: account.NewID("key_"), MemberID: w.members["ada"].ID, Name: "adas", Region: "home", Reach: account.ReachAll, Hash: [32]byte{2}, Created: time.Now()}
	check(t, w.db.CreateKey(t.Context(), key))

	type attempt struct {
		who, path, body string
		want            int
	}
	machine := "/api/machines/" + w.machine.ID
	attempts := map[string][]attempt{
		"GET /api/models":                             {{"eve", "/api/models", "", 200}},
		"GET /api/shares":                             {{"eve", "/api/shares", "", 200}},
		"POST /api/shares":                            {{"eve", "/api/shares", `{"with":"bob","per_day":1}`, 200}, {"eve", "/api/shares", `{"with":"eve"}`, 400}, {"eve", "/api/shares", `{"with":"bob","owner":"ada"}`, 400}},
		"DELETE /api/shares/{member}":                 {{"eve", "/api/shares/ada", "", 404}, {"bob", "/api/shares/ada", "", 404}, {"eve", "/api/shares/nobody", "", 404}},
		"GET /api/invites":                            {{"eve", "/api/invites", "", 200}},
		"POST /api/invites":                           {{"eve", "/api/invites", `{"uses":2}`, 200}},
		"POST /api/invites/accept":                    {{"eve", "/api/invites/accept", `{"code":"` + strings.Repeat("x", 40) + `"}`, 404}, {"eve", "/api/invites/accept", `{"code":"` + invite.ID + `"}`, 404}, {"ada", "/api/invites/accept", `{"code":"` + invite.Code + `"}`, 400}},
		"DELETE /api/invites/{invite}":                {{"eve", "/api/invites/" + invite.ID, "", 404}, {"bob", "/api/invites/" + invite.ID, "", 404}},
		"GET /api/groups":                             {{"eve", "/api/groups", "", 200}},
		"POST /api/groups":                            {{"eve", "/api/groups", `{"name":"lab","kind":"org"}`, 400}},
		"DELETE /api/groups/{group}":                  {{"eve", "/api/groups/lab", "", 404}, {"bob", "/api/groups/lab", "", 403}, {"eve", "/api/groups/all", "", 403}},
		"POST /api/groups/{group}/join":               {{"eve", "/api/groups/lab/join", "", 404}, {"eve", "/api/groups/none/join", "", 404}},
		"POST /api/groups/{group}/leave":              {{"eve", "/api/groups/lab/leave", "", 404}, {"eve", "/api/groups/all/leave", "", 403}},
		"POST /api/groups/{group}/limits":             {{"eve", "/api/groups/lab/limits", `{"per_day":1}`, 404}, {"eve", "/api/groups/all/limits", `{"per_day":1}`, 403}, {"bob", "/api/groups/lab/limits", `{"per_day":1}`, 200}, {"ada", "/api/groups/lab/limits", `{"per_day":0}`, 400}},
		"POST /api/groups/{group}/accept":             {{"eve", "/api/groups/lab/accept", "", 404}, {"eve", "/api/groups/none/accept", "", 404}, {"eve", "/api/groups/all/accept", "", 400}, {"bob", "/api/groups/lab/accept", "", 200}},
		"POST /api/groups/{group}/decline":            {{"eve", "/api/groups/lab/decline", "", 404}, {"eve", "/api/groups/all/decline", "", 400}, {"bob", "/api/groups/lab/decline", "", 400}},
		"POST /api/groups/{group}/invitations":        {{"eve", "/api/groups/lab/invitations", `{"member":"eve"}`, 404}, {"bob", "/api/groups/lab/invitations", `{"member":"eve"}`, 403}, {"ada", "/api/groups/all/invitations", `{"member":"eve"}`, 400}, {"ada", "/api/groups/lab/invitations", `{"member":"nobody"}`, 404}},
		"GET /api/notices":                            {{"eve", "/api/notices", "", 200}},
		"POST /api/notices/seen":                      {{"eve", "/api/notices/seen", `{"until":"` + time.Now().Format(time.RFC3339) + `"}`, 200}, {"eve", "/api/notices/seen", `{"until":"2999-01-01T00:00:00Z"}`, 400}},
		"GET /api/notices/off":                        {{"eve", "/api/notices/off", "", 200}},
		"POST /api/notices/off":                       {{"eve", "/api/notices/off", `{"site":["offline"],"mail":["spent"]}`, 200}, {"eve", "/api/notices/off", `{"site":["all"]}`, 400}},
		"DELETE /api/groups/{group}/members/{member}": {{"eve", "/api/groups/lab/members/bob", "", 404}, {"bob", "/api/groups/lab/members/ada", "", 403}, {"ada", "/api/groups/lab/members/ada", "", 400}},
		"POST /api/groups/{group}/admins":             {{"eve", "/api/groups/lab/admins", `{"member":"eve"}`, 404}, {"bob", "/api/groups/lab/admins", `{"member":"bob"}`, 403}, {"ada", "/api/groups/lab/admins", `{"member":"eve"}`, 404}},
		"DELETE /api/groups/{group}/admins/{member}":  {{"eve", "/api/groups/lab/admins/ada", "", 404}, {"bob", "/api/groups/lab/admins/ada", "", 403}},
		"GET /api/keys":                               {{"eve", "/api/keys", "", 200}},
		"DELETE /api/keys/{key}":                      {{"eve", "/api/keys/" + key.ID, "", 404}, {"bob", "/api/keys/none", "", 404}},
		"POST /api/keys/{key}/limit":                  {{"eve", "/api/keys/" + key.ID + "/limit", `{"per_day":1}`, 404}, {"bob", "/api/keys/none/limit", `{"per_day":1}`, 404}, {"ada", "/api/keys/" + key.ID + "/limit", `{"per_day":-1}`, 400}},
		"GET /api/machines":                           {{"eve", "/api/machines", "", 200}, {"bob", "/api/machines", "", 200}},
		"DELETE /api/machines/{machine}":              {{"eve", machine, "", 404}, {"bob", machine, "", 404}, {"eve", "/api/machines/none", "", 404}},
		"POST /api/machines/{machine}/name":           {{"eve", machine + "/name", `{"name":"mine"}`, 404}, {"bob", machine + "/name", `{"name":"mine"}`, 404}, {"ada", machine + "/name", `{"name":"a/b"}`, 400}},
		"GET /api/requests":                           {{"eve", "/api/requests", "", 200}, {"eve", "/api/requests?before=x", "", 400}},
		"POST /api/machines/{machine}/control":        {{"eve", machine + "/control", `{"paused":true}`, 404}, {"bob", machine + "/control", `{"paused":true}`, 404}, {"eve", "/api/machines/none/control", `{"paused":true}`, 404}},
		"GET /api/seals":                              {{"eve", "/api/seals", "", 400}, {"eve", "/api/seals?model=secret-model", "", 404}, {"eve", "/api/seals?model=tiny&family=audio", "", 400}},
		"GET /api/machines/{machine}/seal":            {{"eve", machine + "/seal", "", 404}, {"bob", machine + "/seal", "", 404}},
		"GET /api/why":                                {{"eve", "/api/why", "", 400}, {"eve", "/api/why?model=secret-model", "", 200}},
		"GET /api/why/{call}":                         {{"eve", "/api/why/req_1", "", 404}},
		"GET /api/usage":                              {{"eve", "/api/usage", "", 200}},
		"GET /api/machines/{machine}/usage":           {{"eve", machine + "/usage", "", 404}, {"bob", machine + "/usage", "", 404}, {"ada", machine + "/usage", "", 200}},
		"POST /api/groups/{group}/machines":           {{"eve", "/api/groups/lab/machines", `{"owner":"ada","machine":"box","rule":"excluded"}`, 404}, {"bob", "/api/groups/lab/machines", `{"owner":"ada","machine":"box","rule":"excluded"}`, 403}, {"ada", "/api/groups/lab/machines", `{"owner":"eve","machine":"box","rule":"pinned"}`, 404}},
		"GET /api/machines/{machine}/models":          {{"eve", machine + "/models", "", 404}, {"bob", machine + "/models", "", 404}},
		"POST /api/machines/{machine}/models":         {{"eve", machine + "/models", `{"act":"remove","model":"words"}`, 404}, {"bob", machine + "/models", `{"act":"pull","model":"words"}`, 404}},
		"POST /api/machines/{machine}/show":           {{"eve", machine + "/show", `{"shown":true}`, 404}},
		"POST /api/machines/{machine}/keep-out":       {{"eve", machine + "/keep-out", `{"all":true}`, 404}, {"bob", machine + "/keep-out", `{"group":"lab","undo":true}`, 404}, {"ada", machine + "/keep-out", `{"group":"none"}`, 404}},
	}
	check(t, w.db.SaveTraces(t.Context(), []account.Trace{{CallID: "req_adas", MemberID: w.members["ada"].ID, Started: time.Now(), Model: "secret-model"}}, time.Now()))
	attempts["GET /api/why"] = []attempt{{"eve", "/api/why?model=tiny", "", 200}}
	attempts["GET /api/why/{call}"] = []attempt{{"eve", "/api/why/req_adas", "", 404}, {"bob", "/api/why/req_adas", "", 404}, {"eve", "/api/why/none", "", 404}}
	before := w.adas()
	for _, l := range table {
		if l.may != members {
			continue
		}
		name := l.method + " " + l.path
		assert.That(t, attempts[name] != nil, name, "say here what a stranger gets")
		if got := w.ask("", l.method, l.path, ""); got.status != 401 {
			t.Errorf("%s without a key: %+v", name, got)
		}
		if got := w.ask("mallory", l.method, l.path, ""); got.status != 401 {
			t.Errorf("%s with a wrong key: %+v", name, got)
		}
		for _, a := range attempts[name] {
			got := w.ask(a.who, l.method, a.path, a.body)
			assert.Equal(t, got.status, a.want, name, "as", a.who, got)
			for _, secret := range []string{"secret-model", w.machine.ID, invite.Code, invite.ID, key.ID, `"pat"`} {
				if (a.who == "eve" || secret == `"pat"` && a.who == "bob") && strings.Contains(got.body, secret) && !strings.Contains(a.path, secret) {
					t.Errorf("%s tells eve of ada's %s: %s", name, secret, got.body)
				}
			}
		}
		if diff := cmp.Diff(before, w.adas(), cmp.AllowUnexported(response{})); diff != "" {
			t.Fatalf("%s changed what is ada's:\n%s", name, diff)
		}
	}
	assert.That(t, len(w.controls) == 0, "a stranger changed ada's machine", w.controls)
	// An org and a group that is not there cannot be distinguished.
	hidden, absent := w.ask("eve", "POST", "/api/groups/lab/leave", ""), w.ask("eve", "POST", "/api/groups/bal/leave", "")
	if a, b := message(t, hidden), message(t, absent); strings.ReplaceAll(a, "lab", "bal") != b {
		t.Errorf("%q and %q differ", a, b)
	}
}

func message(t *testing.T, answer response) string {
	t.Helper()
	var envelope struct {
		Error struct{ Message string } `json:"error"`
	}
	check(t, json.Unmarshal([]byte(answer.body), &envelope, json.MatchCaseInsensitiveNames(true)))
	return envelope.Error.Message
}

// A defect is answered as one, is in the log under its id, and is this request's only,
// on a route of a member, the operator or a machine.
func TestPanic(t *testing.T) {
	w := newWorld(t)
	w.crash = true
	db := w.api.DB
	defer func() { w.api.DB = db }()
	for name, ask := range map[string]struct {
		handler http.Handler
		request *http.Request
		log     []string
	}{
		"member":   {w.api, httptest.NewRequest("GET", "/api/shares", nil), []string{"panic (string)", "api_test.go"}},
		"operator": {w.api.Operator(), httptest.NewRequest("POST", "/backups", strings.NewReader(`{"file":"x"}`)), []string{"nil pointer", "operator.go"}}, // Flush is nil
		"machine": {w.api, httptest.NewRequest("POST", "/login", strings.NewReader(`{"token":"`+credential.Mint(credential.LoginToken, "home").Reveal()+`"}`)),
			[]string{"nil pointer", "machines.go"}},
	} {
		w.api.DB = db
		if name == "machine" {
			w.api.DB = nil
		}
		w.log.Reset()
		ask.request.Header.Set("Authorization", "Bearer ada")
		got := httptest.NewRecorder()
		ask.handler.ServeHTTP(got, ask.request)
		id := got.Header().Get("X-Correlation-ID")
		if body := got.Body.String(); got.Code != 500 || !strings.Contains(body, `"internal_error"`) || strings.Contains(body, "secret") || !strings.Contains(body, id) {
			t.Errorf("%s: %d %s", name, got.Code, body)
		}
		for _, text := range append(ask.log, "id="+id) {
			if log := w.log.String(); !strings.Contains(log, text) || strings.Contains(log, "secret") {
				t.Errorf("%s: logged %s", name, log)
			}
		}
	}
	w.crash, w.api.DB = false, db
	good[List[Share]](w, "ada", "GET", "/api/shares", "")
}

// TestWhoMay: a route of the operator's is on the socket alone, and all others are on
// the public address alone; of those, only a machine's sign-in takes no credential.
func TestWhoMay(t *testing.T) {
	w := newWorld(t)
	for _, l := range table {
		handlers := []http.Handler{w.api, w.api.Operator()}
		if l.may == operators {
			handlers[0], handlers[1] = handlers[1], handlers[0]
		}
		for i, want := range []map[access]int{{members: 401, machines: 400}, {members: 404, machines: 404, operators: 404}} {
			got := httptest.NewRecorder()
			handlers[i].ServeHTTP(got, httptest.NewRequest(l.method, strings.NewReplacer("{", "", "}", "").Replace(l.path), nil))
			status, known := want[l.may]
			if known && got.Code != status && (i == 0 || got.Code != 405) || !known && got.Code == 401 {
				t.Errorf("%s %s at %d: %d %s", l.method, l.path, i, got.Code, got.Body)
			}
		}
	}
	db, err := store.Open(t.Context(), store.Config{Path: storetest.SQLite(t)})
	check(t, err)
	check(t, db.Close())
	w.api.DB, db = db, w.api.DB
	defer func() { w.api.DB = db }()
	body := `{"token":"` + credential.Mint(credential.LoginToken, "home").Reveal() + `"}`
	got := httptest.NewRecorder()
	if w.api.ServeHTTP(got, httptest.NewRequest("POST", "/login", strings.NewReader(body))); got.Code != 500 || !strings.Contains(got.Body.String(), `"internal_error"`) {
		t.Errorf("without a database: %d %s", got.Code, got.Body)
	}
}

func TestShares(t *testing.T) {
	w := newWorld(t)
	made := good[Share](w, "ada", "POST", "/api/shares", `{"with":"bob","models":["tiny"],"hours":"sat,sun 00:00-24:00","concurrent":2,"per_day":9}`)
	want := Share{ID: made.ID, Owner: "ada", With: "bob", Direction: "given", Created: made.Created,
		Limits: Limits{Models: []string{"tiny"}, Hours: "Sat,Sun 00:00-24:00", Concurrent: limit(2), PerDay: limit(9)}}
	assert.Same(t, made, want)
	again := good[Share](w, "ada", "POST", "/api/shares", `{"with":"bob","per_day":5}`)
	want.PerDay = limit(5) // all else stays
	assert.Same(t, again, want)
	assert.Same(t, good[Share](w, "ada", "POST", "/api/shares", `{"with":"bob"}`), want)
	want.Models, want.Hours, want.Concurrent = []string{}, "", nil
	again = good[Share](w, "ada", "POST", "/api/shares", `{"with":"bob","models":null,"hours":null,"concurrent":null}`)
	assert.Same(t, again, want)
	for who, direction := range map[string]string{"ada": "given", "bob": "received"} {
		got := good[List[Share]](w, who, "GET", "/api/shares", "").Data
		want := again
		want.Direction = direction
		assert.Same(t, got, []Share{want})
	}
	for _, body := range []string{
		`{"with":"bob","hours":"never"}`, `{"with":"bob","concurrent":-1}`, `{"with":"bob","per_day":-1}`, `{"with":"bob","concurrent":0}`, `{"with":"bob","per_day":0}`, `{"with":"bob","models":[""]}`,
		`{"with":"bob","with":"eve"}`, `{"with":7}`, ``, `[]`, `{"with":"bob"} {}`,
	} {
		if got := w.ask("ada", "POST", "/api/shares", body); got.status != 400 || got.code != "invalid_request" {
			t.Errorf("%s: %+v", body, got)
		}
	}
	check(t, w.db.SetMemberDisabled(t.Context(), w.members["bob"].ID, true))
	if got := w.ask("ada", "POST", "/api/shares", `{"with":"bob"}`); got.status != 404 || got.code != "not_found" {
		t.Errorf("a disabled member: %+v", got)
	}
	before := w.changed
	good[anything](w, "ada", "DELETE", "/api/shares/bob", "")
	if got := w.ask("ada", "DELETE", "/api/shares/bob", ""); got.status != 404 {
		t.Errorf("ended twice: %+v", got)
	}
	if w.changed != before+1 {
		t.Errorf("told of %d changes, want 1", w.changed-before)
	}
}

func TestInvites(t *testing.T) {
	w := newWorld(t)
	once := good[Invite](w, "ada", "POST", "/api/invites", "")
	if left := time.Until(once.Expires); once.Uses != 1 || left < inviteLife-time.Minute || left > inviteLife {
		t.Errorf("made %+v", once)
	}
	good[anything](w, "bob", "POST", "/api/invites/accept", `{"code":" `+once.Code+`\n"}`)
	if got := w.ask("eve", "POST", "/api/invites/accept", `{"code":"`+once.Code+`"}`); got.status != 404 {
		t.Errorf("used up: %+v", got)
	}
	twice := good[Invite](w, "ada", "POST", "/api/invites", `{"uses":2,"expires":"1d"}`)
	if got := good[anything](w, "bob", "POST", "/api/invites/accept", `{"code":"`+twice.Code+`"}`); got["state"] != "shared already" || got["owner"] != "ada" {
		t.Errorf("accepted by one who has the share: %v", got)
	}
	if got := good[anything](w, "eve", "POST", "/api/invites/accept", `{"code":"`+twice.Code+`"}`); got["state"] != "accepted" || got["owner"] != "ada" {
		t.Errorf("accepted: %v", got)
	}
	limits := Limits{Models: []string{"tiny"}, Hours: "Sat,Sun 00:00-24:00", Concurrent: limit(2), PerDay: limit(9)}
	limited := good[Invite](w, "ada", "POST", "/api/invites", `{"models":["tiny"],"hours":"sat,sun 00:00-24:00","concurrent":2,"per_day":9}`)
	check(t, w.db.RemoveShare(t.Context(), w.members["ada"].ID, w.members["eve"].ID))
	accepted := good[Share](w, "eve", "POST", "/api/invites/accept", `{"code":"`+limited.Code+`"}`)
	received := good[List[Share]](w, "eve", "GET", "/api/shares", "").Data[0]
	for what, got := range map[string]Limits{"made": limited.Limits, "accepted": accepted.Limits, "in force": received.Limits} {
		assert.Same(t, got, limits, what, "with")
	}
	// A use is left, but the share that eve got by it was ended.
	check(t, w.db.RemoveShare(t.Context(), w.members["ada"].ID, w.members["eve"].ID))
	for _, code := range []string{once.Code, twice.Code} {
		got := w.ask("bob", "POST", "/api/invites/accept", `{"code":"`+code+`"}`)
		if code == once.Code && got.status != 404 || code == twice.Code && !strings.Contains(got.body, "shared already") {
			t.Errorf("bob, who has the share, accepted %s: %+v", code, got)
		}
	}
	if got := w.ask("eve", "POST", "/api/invites/accept", `{"code":"`+twice.Code+`"}`); got.status != 400 || !strings.Contains(got.body, "ask ada for another") {
		t.Errorf("accepted again after the share ended: %+v", got)
	}
	good[anything](w, "ada", "DELETE", "/api/invites/"+twice.ID, "")
	foreign := credential.Mint(credential.InviteCode, "mars").Reveal()
	unknown := credential.Mint(credential.InviteCode, "home").Reveal()
	key := credential.Mint(credential.APIKey, "home").Reveal()
	for _, code := range []string{twice.Code, foreign, unknown, key, ""} {
		if got := w.ask("eve", "POST", "/api/invites/accept", `{"code":"`+code+`"}`); got.status != 404 || got.code != "not_found" {
			t.Errorf("accepted %s: %+v", code, got)
		}
	}
	var states []string
	for _, i := range good[List[Invite]](w, "ada", "GET", "/api/invites", "").Data {
		assert.Equal(t, i.Code, "", "the code is told again", i)
		states = append(states, i.State)
	}
	assert.Same(t, states, []string{"used up", "revoked", "used up"})
	for _, body := range []string{`{"uses":-1}`, `{"uses":1001}`, `{"expires":"0d"}`, `{"expires":"-7d"}`, `{"expires":"400d"}`, `{"expires":"soon"}`, `{"expires":"d"}`, `{"expires":"99999999999999d"}`, `{"hours":"never"}`, `{"per_day":-1}`, `{"per_day":0}`, `{"concurrent":0}`, `{"models":[""]}`} {
		if got := w.ask("ada", "POST", "/api/invites", body); got.status != 400 {
			t.Errorf("%s: %+v", body, got)
		}
	}
}

func TestGroups(t *testing.T) {
	w := newWorld(t)
	// From before such a name was refused: as a path it would be another.
	check(t, w.db.CreateGroup(t.Context(), account.Group{
		ID: account.NewID("grp_"), Name: "..", Kind: account.GroupOrg, Created: time.Now(),
		Members: []account.GroupMember{{MemberID: w.members["ada"].ID, Admin: true}},
	}))
	w.intoGroup("..", "bob")
	if got := w.ask("ada", "POST", "/api/groups/../leave", ""); got.status != 400 || !strings.Contains(got.body, "without an admin") {
		t.Errorf("the last admin left: %+v", got)
	}
	good[anything](w, "ada", "POST", "/api/groups/../admins", `{"member":"bob"}`)
	good[anything](w, "ada", "POST", "/api/groups/../leave", "")
	good[Group](w, "ada", "POST", "/api/groups", `{"name":"all","kind":"open"}`)
	good[anything](w, "bob", "POST", "/api/groups/all/join", "")
	good[anything](w, "bob", "POST", "/api/groups/all/join", "")
	good[anything](w, "ada", "POST", "/api/machines/"+w.machine.ID+"/keep-out", `{"group":"all"}`)
	got := good[List[Group]](w, "ada", "GET", "/api/groups", "").Data
	want := []Group{{
		Name: "all", Kind: account.GroupOpen, In: true, Admin: true, Size: 2, Created: got[0].Created,
		Members: []GroupMember{{"ada", true}, {"bob", false}}, Invitations: []Invitation{}, KeptOut: []string{"box"}, Closed: []Closed{}, Limits: &Limits{Models: []string{}},
	}}
	assert.Same(t, got, want)
	for _, step := range []struct {
		change string
		closed []Closed
	}{
		{`{"group":"all","undo":true}`, []Closed{{"box", "configuration"}}},
		{`{"all":true}`, []Closed{{"box", "all"}}},
		{`{"all":true,"undo":true}`, []Closed{{"box", "configuration"}}},
	} {
		good[anything](w, "ada", "POST", "/api/machines/"+w.machine.ID+"/keep-out", step.change)
		got := good[List[Group]](w, "ada", "GET", "/api/groups", "").Data[0]
		if diff := cmp.Diff(step.closed, got.Closed); diff != "" || len(got.KeptOut) != 0 {
			t.Errorf("after %s: %s kept out %v", step.change, diff, got.KeptOut)
		}
	}
	good[anything](w, "bob", "DELETE", "/api/groups/..", "")
	if got := good[List[Group]](w, "bob", "GET", "/api/groups", "").Data; len(got) != 1 || len(got[0].KeptOut) != 0 {
		t.Errorf("bob sees %+v", got)
	}
	for _, body := range []string{`{"name":"","kind":"org"}`, `{"name":"a/b","kind":"org"}`, `{"name":" a","kind":"org"}`, `{"name":"x","kind":"club"}`, `{"name":"all","kind":"org"}`} {
		if got := w.ask("ada", "POST", "/api/groups", body); got.status != 400 {
			t.Errorf("%s: %+v", body, got)
		}
	}
}

func limit(n int) *int { return &n }

// TestGroupLimits: a member limits a group for its own machines; what is absent
// stays, null ends, 0 is refused, and a model that no machine of the member's
// offers is taken with a warning.
func TestGroupLimits(t *testing.T) {
	w := newWorld(t)
	good[Group](w, "ada", "POST", "/api/groups", `{"name":"lab","kind":"open"}`)
	good[anything](w, "bob", "POST", "/api/groups/lab/join", "")
	for _, step := range []struct {
		body string
		want GroupLimits
	}{
		{`{"models":["tiny"],"hours":"sat,sun 00:00-24:00","concurrent":2,"per_day":9}`, GroupLimits{"lab", Limits{[]string{"tiny"}, "Sat,Sun 00:00-24:00", limit(2), limit(9)}, 0, nil}},
		{`{"per_day":5}`, GroupLimits{"lab", Limits{[]string{"tiny"}, "Sat,Sun 00:00-24:00", limit(2), limit(5)}, 0, nil}},
		{`{"hours":null,"concurrent":null,"models":["Tiny:latest"]}`, GroupLimits{"lab", Limits{[]string{"Tiny:latest"}, "", nil, limit(5)}, 0,
			[]string{`no machine of yours offers the model "Tiny:latest": this has no effect until one does; did you mean "tiny"?`}}},
		{`{}`, GroupLimits{"lab", Limits{[]string{"Tiny:latest"}, "", nil, limit(5)}, 0, nil}},
	} {
		assert.Same(t, good[GroupLimits](w, "ada", "POST", "/api/groups/lab/limits", step.body), step.want, step.body)
	}
	for who, perDay := range map[string]*int{"ada": limit(5), "bob": nil} {
		if got := good[List[Group]](w, who, "GET", "/api/groups", "").Data[0].Limits; got == nil || !cmp.Equal(got.PerDay, perDay) {
			t.Errorf("%s sees %+v", who, got)
		}
	}
	if got := good[List[Group]](w, "eve", "GET", "/api/groups", "").Data[0].Limits; got != nil {
		t.Errorf("eve, who is not in it, sees %+v", got)
	}
	for _, body := range []string{`{"per_day":0}`, `{"concurrent":0}`, `{"per_day":-1}`} {
		if got := w.ask("ada", "POST", "/api/groups/lab/limits", body); got.status != 400 || !strings.Contains(got.body, "for no limit send null") || !strings.Contains(got.body, "pause") {
			t.Errorf("%s: %+v", body, got)
		}
	}
	made := good[Share](w, "ada", "POST", "/api/shares", `{"with":"bob","models":["tiny","big"]}`)
	invited := good[Invite](w, "ada", "POST", "/api/invites", `{"models":["big"]}`)
	if len(made.Warnings) != 1 || len(invited.Warnings) != 1 || !strings.Contains(made.Warnings[0], `"big"`) {
		t.Errorf("warned of %q and %q", made.Warnings, invited.Warnings)
	}
}

// Only its owner revokes a machine, and only once.
func TestRevokeMachine(t *testing.T) {
	w := newWorld(t)
	path := "/api/machines/" + w.machine.ID
	if got := w.ask("bob", "DELETE", path, ""); got.status != 404 || got.code != "not_found" {
		t.Errorf("by another: %+v", got)
	}
	if got := good[anything](w, "ada", "DELETE", path, ""); got["state"] != "revoked" || got["name"] != "box" {
		t.Errorf("revoked: %v", got)
	}
	if got := good[List[Machine]](w, "ada", "GET", "/api/machines", "").Data; len(got) != 0 {
		t.Errorf("still listed: %+v", got)
	}
	if got := w.ask("ada", "DELETE", path, ""); got.status != 404 {
		t.Errorf("twice: %+v", got)
	}
}

func TestMachines(t *testing.T) {
	w := newWorld(t)
	path := "/api/machines/" + w.machine.ID
	good[anything](w, "ada", "POST", path+"/keep-out", `{"all":true}`)
	got := good[List[Machine]](w, "ada", "GET", "/api/machines", "").Data
	want := []Machine{{
		ID: w.machine.ID, Name: "box", Online: true, Hours: "Mon-Sun 00:00-24:00", Timezone: "Europe/Lisbon", Open: true, Slots: 3,
		Models: []MachineModel{{ID: "tiny", ContextLength: 512, Slots: 2}}, KeptOut: true, Groups: []string{"lab"}, Created: got[0].Created, LastSeen: got[0].LastSeen,
	}}
	assert.Same(t, got, want)
	away, seen := *w.snapshot.Machine(fleet.MachineID(w.machine.ID)), time.Now().Add(-time.Minute).UTC()
	away.Online, away.LastSeen = false, seen
	was := w.snapshot
	w.snapshot = was.WithMachine(&away)
	assert.Equal(t, good[List[Machine]](w, "ada", "GET", "/api/machines", "").Data[0].LastSeen, seen) // the store may be behind
	w.snapshot = was
	for _, body := range []string{`{}`, `{"all":true,"group":"x"}`, `{"undo":true}`} {
		if got := w.ask("ada", "POST", path+"/keep-out", body); got.status != 400 {
			t.Errorf("%s: %+v", body, got)
		}
	}

	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	good[anything](w, "ada", "POST", path+"/control", `{"paused":true,"until":"`+until.Format(time.RFC3339)+`"}`)
	good[anything](w, "ada", "POST", path+"/control", `{"hours":"","slots":0}`)
	yes, always, none := true, "", 0
	assert.Same(t, w.controls, []fleet.Control{{Paused: &yes, Until: &until}, {Hours: &always, Slots: &none}})
	for body, param := range map[string]string{
		`{}`: "", `{"until":"2099-01-01T00:00:00Z"}`: "until", `{"paused":true,"until":"2001-01-01T00:00:00Z"}`: "until",
		`{"hours":"x"}`: "hours", `{"timezone":"Mars/Olympus"}`: "timezone", `{"slots":-1}`: "slots", `{"slots":"1"}`: "slots",
	} {
		got := w.ask("ada", "POST", path+"/control", body)
		if got.status != 400 || param != "" && !strings.Contains(got.body, `"param":"`+param+`"`) {
			t.Errorf("%s: %+v", body, got)
		}
	}
	if len(w.controls) != 2 {
		t.Errorf("a machine was asked for %+v", w.controls[2:])
	}
	for _, refuse := range []error{fleet.ErrNotConnected, errors.New("it broke")} {
		w.refuse = refuse
		if got := w.ask("ada", "POST", path+"/control", `{"paused":false}`); got.status != 503 || got.code != "machine_offline" || strings.Contains(got.body, "broke") {
			t.Errorf("%v: %+v", refuse, got)
		}
	}
	check(t, w.db.RevokeMachine(t.Context(), w.machine.ID, time.Now()))
	if got := good[List[Machine]](w, "ada", "GET", "/api/machines", "").Data; len(got) != 0 {
		t.Errorf("a revoked machine is listed: %+v", got)
	}
}

func TestPathsAndMethods(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{"/api/", "/api/nothing", "/api/shares/", "/api/shares/a/b", "/api//shares", "/api/groups//join"} {
		if got := w.ask("ada", "GET", path, ""); got.status != 404 || got.code != "route_not_found" {
			t.Errorf("GET %s: %+v", path, got)
		}
	}
	r, err := http.NewRequest("PUT", w.server.URL+"/api/shares", nil)
	check(t, err)
	resp, err := w.server.Client().Do(r)
	check(t, err)
	resp.Body.Close()
	if resp.StatusCode != 405 || resp.Header.Get("Allow") != "GET, POST" {
		t.Errorf("PUT /api/shares: %s, Allow %q", resp.Status, resp.Header.Get("Allow"))
	}
}

// TestWrongBodies: a refusal names the member at fault and what the request takes,
// and nothing of this program's inside.
func TestWrongBodies(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct{ path, body, message, param string }{
		{"/api/shares", `{"whit":"eve"}`, `this request has no member "whit"; it takes with, models, hours, concurrent, per_day`, "whit"},
		{"/api/shares", `{"with":7}`, "with cannot be a JSON number", "with"},
		{"/api/shares", `[]`, "the body cannot be a JSON array", ""},
		{"/api/shares", `{"with":"eve","with":"bob"}`, "duplicate object member name", ""},
		{"/api/shares", `{"with":`, "the body is not strict JSON", ""},
		{"/api/shares", ``, "this request needs a JSON body", ""},
		{"/api/shares", `{"with":"eve","per_day":"many"}`, "per_day cannot be a JSON string", "per_day"},
		{"/api/notices/seen", `{"until":"yesterday"}`, `until takes a time such as "2026-11-23T18:30:00Z"`, "until"},
	} {
		got := w.ask("ada", "POST", c.path, c.body)
		var answer struct {
			Error struct {
				Message string  `json:"message"`
				Param   *string `json:"param"`
			} `json:"error"`
		}
		check(t, json.Unmarshal([]byte(got.body), &answer))
		param := ""
		if answer.Error.Param != nil {
			param = *answer.Error.Param
		}
		if got.status != 400 || !strings.Contains(answer.Error.Message, c.message) || param != c.param {
			t.Errorf("%s: %d %s (param %q)", c.body, got.status, answer.Error.Message, param)
		}
		for _, inside := range []string{"Go ", "api.", "jsontext", "unmarshal"} {
			assert.Lacks(t, answer.Error.Message, inside, c.body)
		}
	}
}

// TestBodiesThatDoNotEnd: a body is bounded, and one that never comes holds no
// answer back.
func TestBodiesThatDoNotEnd(t *testing.T) {
	w := newWorld(t)
	if got := w.ask("ada", "POST", "/api/shares", `{"with":"`+strings.Repeat("x", maxBody)+`"}`); got.status != 413 || got.code != "request_too_large" {
		t.Errorf("a large body: %+v", got)
	}
	c, err := net.Dial("tcp", w.server.Listener.Addr().String())
	check(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "POST /api/shares HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"+strings.Repeat(" ", maxBody+1))
	check(t, err)
	text, err := io.ReadAll(c) // to the end of the connection: nothing waits for the rest
	check(t, err)
	assert.That(t, strings.HasPrefix(string(text), "HTTP/1.1 401 "), "answered", text)
}

// history gives ada a past: a call that was served, and one that was refused.
func (w *world) history() {
	w.t.Helper()
	ada := w.members["ada"].ID
	check(w.t, w.db.RecordUsage(w.t.Context(), []account.Usage{
		{CallID: "req_0", Attempt: 1, Started: time.Now().Add(-24 * time.Hour), MemberID: ada, OwnerID: ada, MachineID: w.machine.ID, Model: "usage-model", TokensOut: 1234567},
		{CallID: "req_1", Attempt: 1, Started: time.Now(), MemberID: ada, Model: "usage-model", Code: "NOT_IN_CIRCLE"},
	}))
	check(w.t, w.db.SaveTraces(w.t.Context(), []account.Trace{{
		CallID: "req_1", MemberID: ada, Started: time.Now().UTC().Truncate(time.Second), Mine: true, Caller: "ada", Model: "story-model", Endpoint: "/v1/chat/completions",
		Status: 403, Code: "NOT_IN_CIRCLE", Decisions: []account.Decision{{Verdict: "refuse", Row: 7, Seen: []account.StateCount{{Via: "own", State: "offline", Machines: 1}}}},
		Tries: []account.Attempt{{Machine: "box", Owner: "ada", Via: "own", Outcome: "gone", Prompt: true}},
	}}, time.Now()))
}

// A key that is for inference alone lists models and says why calls went where they went. It
// reads and changes nothing else (spec/api.md#scopes).
func TestKeysForInference(t *testing.T) {
	w := newWorld(t)
	w.keys = map[string]string{"inference of ada": "ada"}
	check(t, w.db.SaveTraces(t.Context(), []account.Trace{{CallID: "req_adas", MemberID: w.members["ada"].ID, Started: time.Now(), Model: "m"}}, time.Now()))
	allowed := []string{"GET /api/models", "GET /api/seals", "GET /api/why", "GET /api/why/{call}"}
	before := w.adas()
	for _, l := range table {
		if l.may != members {
			continue
		}
		got := w.ask("inference of ada", l.method, l.path, "")
		want := !slices.Contains(allowed, l.method+" "+l.path)
		if refused := got.status == 403 && strings.Contains(got.body, "may not manage the account"); refused != want {
			t.Errorf("%s %s: %+v, to be refused %v", l.method, l.path, got, want)
		}
	}
	if diff := cmp.Diff(before, w.adas(), cmp.AllowUnexported(response{})); diff != "" {
		t.Errorf("it changed what is ada's:\n%s", diff)
	}
}

// TestLimitKey checks that a key's calls a day are changed and ended, and that the count
// of today's calls is the larger of the database's and this hub's.
func TestLimitKey(t *testing.T) {
	w := newWorld(t)
	now := time.Now()
	key := account.Key{ID: account.NewID("key_"), MemberID: w.members["ada"].ID, Name: "k", Region: "home", Reach: account.ReachAll, Hash: [32]byte{2}, Created: now, PerDay: 9}
	check(t, w.db.CreateKey(t.Context(), key))
	for i, machine := range []string{"", w.machine.ID, w.machine.ID} {
		check(t, w.db.RecordUsage(t.Context(), []account.Usage{{
			CallID: fmt.Sprint("req_", i), Attempt: 1, Started: now, MemberID: key.MemberID, KeyID: key.ID, MachineID: machine, OwnerID: key.MemberID, Model: "m",
		}}))
	}
	list := func() Key {
		t.Helper()
		return good[List[Key]](w, "ada", "GET", "/api/keys", "").Data[0]
	}
	if k := list(); k.PerDay != 9 || k.Today != 2 || k.Calls != 3 || k.Spent() {
		t.Errorf("the key is %+v", k)
	}
	at := "/api/keys/" + key.ID + "/limit"
	if k := good[Key](w, "ada", "POST", at, `{"per_day":2}`); k.ID != key.ID || k.PerDay != 2 || !k.Spent() || w.changed == 0 {
		t.Errorf("with the limit of 2 it is %+v", k)
	}
	w.loads = map[string]*fleet.LimitLoad{key.ID: fleet.NewLimitLoad(now, 5)}
	assert.Equal(t, list().Today, int64(5), "with calls that run")
	for _, body := range []string{`{"per_day":null}`, `{"per_day":0}`} {
		good[Key](w, "ada", "POST", at, `{"per_day":1000000}`)
		if k := good[Key](w, "ada", "POST", at, body); k.PerDay != 0 || list().PerDay != 0 {
			t.Errorf("after %s it is %+v", body, k)
		}
	}
	for body, says := range map[string]string{`{}`: "per_day is missing", `{"per_day":1000001}`: "1 to 1000000", `{"per_day":-1}`: "0 for no limit"} {
		got := w.ask("ada", "POST", at, body)
		assert.That(t, got.status == 400 && strings.Contains(got.body, says), body, got)
	}
	check(t, w.db.RevokeKey(t.Context(), key.ID, now))
	assert.Equal(t, w.ask("ada", "POST", at, `{"per_day":1}`).status, 404, "of a revoked key")
}

// A list has the statements of the machines with keys, and none that is too long.
func TestSeals(t *testing.T) {
	w := newWorld(t)
	box := *w.snapshot.Machine(fleet.MachineID(w.machine.ID))
	box.Seals = []fleet.SealKey{{1}}
	w.snapshot = w.snapshot.WithMachine(&box)
	text := "statement of " + w.machine.ID
	for padding, want := range map[int]int{0: len(text), maxStatement - len(text): maxStatement, maxStatement - len(text) + 1: 0} {
		w.padding = padding
		list := good[fleet.SealList](w, "ada", "GET", "/api/seals?model=tiny", "")
		assert.That(t, len(list.Machines) == 1 && list.Machines[0].Keys[0] == box.Seals[0] && len(list.Machines[0].Statement) == want, list)
	}
}

// A group's admins pin and exclude machines of its members, whose owners are notified of
// each change. Members see it; another rule takes the place of the one before.
func TestGroupMachines(t *testing.T) {
	w := newWorld(t)
	good[Group](w, "bob", "POST", "/api/groups", `{"name":"all","kind":"open"}`)
	good[GroupAct](w, "ada", "POST", "/api/groups/all/join", "")
	name := good[List[Machine]](w, "ada", "GET", "/api/machines", "").Data[0].Name
	set := func(who, rule string) response {
		return w.ask(who, "POST", "/api/groups/all/machines", `{"owner":"ada","machine":"`+name+`","rule":"`+rule+`"}`)
	}
	for _, c := range []struct {
		rule             string
		pinned, excluded int
	}{{"pinned", 1, 0}, {"excluded", 0, 1}, {"none", 0, 0}, {"excluded", 0, 1}} {
		if got := set("bob", c.rule); got.status != 200 {
			t.Fatalf("%s: %+v", c.rule, got)
		}
		groups, err := w.db.GroupList(t.Context())
		check(t, err)
		g := groups[slices.IndexFunc(groups, func(g account.Group) bool { return g.Name == "all" })]
		if len(g.Pinned) != c.pinned || len(g.Excluded) != c.excluded {
			t.Errorf("%s: pinned %v, excluded %v", c.rule, g.Pinned, g.Excluded)
		}
	}
	seen := good[List[Group]](w, "ada", "GET", "/api/groups", "").Data
	if i := slices.IndexFunc(seen, func(g Group) bool { return g.Name == "all" }); len(seen[i].Machines) != 1 || seen[i].Machines[0].Rule != account.MachineExcluded {
		t.Errorf("ada sees %+v", seen[i].Machines)
	}
	noted := func(want ...string) {
		t.Helper()
		var got []string
		for _, n := range good[List[Notice]](w, "ada", "GET", "/api/notices", "").Data {
			if n.Kind == account.NoticeAccess && n.Text != "You joined all." {
				got = append(got, n.Text)
			}
		}
		slices.Sort(got)
		assert.Same(t, got, want, "ada's notices")
	}
	want := []string{ // each once a day
		"An admin of all excluded your machine box: its members can no longer use it through the group.",
		"An admin of all no longer excludes your machine box: its members can use it through the group.",
		"An admin of all no longer pins your machine box: it is used there by what it has served.",
		"An admin of all pinned your machine box: it is used there before new machines.",
	}
	noted(want[0], want[1], want[3])
	for _, rule := range []string{"pinned", "none", "none"} {
		if got := set("bob", rule); got.status != 200 {
			t.Fatalf("%s: %+v", rule, got)
		}
	}
	noted(want...)
	for who, status := range map[string]int{"ada": 403, "eve": 403} { // no admin; not in it
		if got := set(who, "none"); got.status != status {
			t.Errorf("%s: %+v", who, got)
		}
	}
	if got := set("bob", "best"); got.status != 400 {
		t.Errorf("an unknown rule: %+v", got)
	}
}

// A share of a model whose id is a path on its owner's machine is made with a warning.
func TestShareOfAPathWarns(t *testing.T) {
	w := newWorld(t)
	m := *w.snapshot.Machine(fleet.MachineID(w.machine.ID))
	m.Offers = append(slices.Clone(m.Offers), fleet.Offer{ID: "/home/ada/big.gguf", Families: fleet.Families(fleet.Chat)})
	w.snapshot = w.snapshot.WithMachine(&m)
	for body, want := range map[string]int{`{"with":"bob"}`: 1, `{"with":"eve","models":["tiny"]}`: 0, `{"with":"eve","models":["/home/ada/big.gguf"]}`: 1} {
		made := good[Share](w, "ada", "POST", "/api/shares", body)
		if len(made.Warnings) != want || want > 0 && !strings.Contains(made.Warnings[0], "--alias NAME") {
			t.Errorf("%s warns of %q", body, made.Warnings)
		}
	}
}

// A refusal has what programs need to decide whether to try again.
func TestWriteFault(t *testing.T) {
	for _, c := range []struct {
		fault        *fault.Fault
		after, retry string
	}{
		{fault.New(fault.ModelNotFound, "no"), "", ""},
		{fault.New(fault.CapacityFull, "busy").WithRetryAfter(7), "7", ""},
		{fault.New(fault.OutsideSharingHours, "closed").WithNoRetry(), "5", "false"},
	} {
		w := httptest.NewRecorder()
		WriteFault(w, c.fault, "req_1")
		h := w.Header()
		assert.That(t, w.Code == c.fault.Status() && h.Get("Retry-After") == c.after && h.Get("X-Should-Retry") == c.retry, c.fault, w.Code, h)
	}
}
