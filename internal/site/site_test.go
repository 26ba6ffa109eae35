package site

import (
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

// town is a world with the site on top. Its browsers keep cookies and do not follow
// redirects.
type town struct {
	*world
	site *Site
	web  *httptest.Server
	// call serves the hosted routes for the signed-in member.
	call func(http.ResponseWriter, *http.Request, fleet.Caller)
}

const aPassword = "correct horse battery"

func newTown(t *testing.T, change func(*Config)) *town {
	t.Helper()
	return townOf(t, newWorld(t), change)
}

func townOf(t *testing.T, w *world, change func(*Config)) *town {
	t.Helper()
	tn := &town{world: w, call: parrot}
	tn.web = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !tn.site.Serves(r) {
			http.Error(rw, "not of the site", http.StatusTeapot)
			return
		}
		tn.site.ServeHTTP(rw, r)
	}))
	t.Cleanup(tn.web.Close)
	t.Cleanup(tn.web.CloseClientConnections)                              // Close waits for streams of a failed test
	tn.web.URL = strings.Replace(tn.web.URL, "127.0.0.1", "localhost", 1) // passkeys require a name
	c := Config{
		Base: tn.web.URL, SignUp: SignUpOpen,
		Edge: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(rw, `{"choices":[{"message":{"role":"assistant","content":"Hello there."}}]}`)
		}),
	}
	c.Health = func(context.Context) []Part {
		return []Part{{Name: "Database", Good: true, Text: "answered"}, {Name: "Journal"}}
	}
	c.Limits = func() []Limit { return []Limit{{Name: "Requests of one key", Value: "50 a second"}} }
	c.BusyClients = func() []BusyClient {
		return []BusyClient{{Client: "192.0.2.7", What: "connections", Held: 190, Limit: 200}}
	}
	c.Call = func(rw http.ResponseWriter, r *http.Request, who fleet.Caller) { tn.call(rw, r, who) }
	if change != nil {
		change(&c)
	}
	tn.site = New(w.api, c)
	return tn
}

// onEachStore runs a test on both databases.
func onEachStore(t *testing.T, test func(*testing.T, *town)) {
	t.Run("SQLite", func(t *testing.T) { test(t, newTown(t, nil)) })
	t.Run("PostgreSQL", func(t *testing.T) {
		test(t, townOf(t, worldOn(t, store.Config{URL: storetest.PostgresWithTables(t)}), nil))
	})
}

// browser belongs to a member or a visitor.
type browser struct {
	*town
	client *http.Client
	header http.Header // sent with every request
}

func (tn *town) browser() *browser {
	jar, err := cookiejar.New(nil)
	check(tn.t, err)
	return &browser{tn, &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, http.Header{}}
}

// seen is a response.
type seen struct {
	status int
	header http.Header
	body   string
}

func (b *browser) do(method, path string, form url.Values) seen {
	b.t.Helper()
	r, err := http.NewRequest(method, b.web.URL+path, strings.NewReader(form.Encode()))
	check(b.t, err)
	r.Header = b.header.Clone()
	if r.Header.Get("Accept") == "" {
		r.Header.Set("Accept", "text/html")
	}
	if method == "POST" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := b.client.Do(r)
	check(b.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	check(b.t, err)
	return seen{resp.StatusCode, resp.Header, string(text)}
}

func (b *browser) get(path string) seen { b.t.Helper(); return b.do("GET", path, nil) }

// post sends a form, given as name, value, name, value.
func (b *browser) post(path string, fields ...string) seen {
	b.t.Helper()
	form := url.Values{}
	for pair := range slices.Chunk(fields, 2) {
		form.Add(pair[0], pair[1])
	}
	return b.do("POST", path, form)
}

// want checks the status and that the page has these texts.
func (s seen) want(t *testing.T, status int, says ...string) seen {
	t.Helper()
	if s.status != status {
		t.Fatalf("status %d, want %d (Location %q): %s", s.status, status, s.header.Get("Location"), problemIn(s.body))
	}
	for _, text := range says {
		assert.Require(t, strings.Contains(s.body, text), "the page does not say", text, s.body)
	}
	return s
}

// goes checks that the response redirects there.
func (s seen) goes(t *testing.T, to string) {
	t.Helper()
	if s.status != http.StatusSeeOther || s.header.Get("Location") != to {
		t.Fatalf("status %d to %q, want 303 to %q: %s", s.status, s.header.Get("Location"), to, problemIn(s.body))
	}
}

func problemIn(body string) string {
	if found := regexp.MustCompile(`(?s)id="problem"[^>]*>(.*?)</div>`).FindStringSubmatch(body); found != nil {
		return found[1]
	}
	return body
}

// textOf returns the text of the element with that id.
func textOf(t *testing.T, page seen, id string) string {
	t.Helper()
	found := regexp.MustCompile(`(?s)id="` + id + `"[^>]*>([^<]*)<`).FindStringSubmatch(page.body)
	assert.Require(t, found != nil, "the page has no", id, page.body)
	return strings.TrimSpace(found[1])
}

// link returns the path of a one-time link that signs the member in.
func (tn *town) link(memberID string) string {
	return strings.TrimPrefix(must1(tn.site.NewLink(tn.t.Context(), memberID)), tn.site.Base)
}

// as returns a browser where that member is signed in, by a link.
func (tn *town) as(name string) *browser {
	tn.t.Helper()
	link := tn.link(tn.members[name].ID)
	b := tn.browser()
	b.get(link).want(tn.t, 200, "Sign in as "+name)
	b.post("/welcome", "link", strings.TrimPrefix(link, "/welcome/")).goes(tn.t, "/")
	return b
}

func TestFirstSteps(t *testing.T) {
	tn := newTown(t, func(c *Config) { c.SignUp = SignUpClosed })
	link := strings.TrimPrefix(must1(tn.site.FirstLink(t.Context())), tn.site.Base)
	op := tn.browser()
	op.get("/").want(t, 200, "Sign in")
	op.get(link).want(t, 200, "The account you create here will run it")
	for _, at := range []string{"/signin", "/signup"} { // without "ask a member for an invite"
		op.get(at).want(t, 200, "Sign in")
	}
	code := strings.TrimPrefix(link, "/welcome/")
	op.post("/signup", "link", code, "name", "root", "password", "short").want(t, 400, "at least 10")
	op.post("/signup", "link", code, "name", "ada", "password", aPassword).want(t, 400, "is taken: choose another one")
	op.post("/signup", "link", code, "name", "root", "password", aPassword).goes(t, "/")
	op.get("/").want(t, 200, "Hello, root")
	if m, err := tn.db.MemberByName(t.Context(), "root"); err != nil || !m.Operator {
		t.Errorf("made %+v, %v", m, err)
	}
	// The link is used up, and there is no second one.
	tn.browser().post("/signup", "link", code, "name", "root2", "password", aPassword).want(t, 404)
	if again, err := tn.site.FirstLink(t.Context()); again != "" || err != nil {
		t.Errorf("a second first link: %q, %v", again, err)
	}

	// A key is created, shown once, tested and revoked.
	op.post("/applications", "name", "my editor", "reach", "shared").goes(t, newKeyPath)
	page := op.get(newKeyPath).want(t, 200, "this once", "OPENAI_BASE_URL="+tn.web.URL+"/v1", "ANTHROPIC_BASE_URL="+tn.web.URL)
	secret := textOf(t, page, "secret")
	op.get(newKeyPath).goes(t, "/applications") // a reload shows nothing and creates nothing
	listed := op.get("/applications").want(t, 200, "my editor", "your own and shared machines")
	assert.Lacks(t, listed.body, secret, "the secret is shown again")
	keys, err := tn.db.Keys(t.Context(), memberID(t, tn, "root"))
	check(t, err)
	op.post("/applications/revoke", "key", keys[0].ID).goes(t, "/applications")
	op.get("/applications").want(t, 200, "The key is revoked")
	if page := op.get("/applications").want(t, 200); strings.Contains(page.body, "The key is revoked") {
		t.Error("what was done is told twice")
	}
}

// Model ids in a form are used exactly as typed, or refused.
func TestShareFormTakesIDsExactly(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	for _, models := range []string{" tiny", "tiny ", "org/a b\r\n tiny", " "} {
		ada.post("/sharing/share", "with", "bob", "models", models, "concurrent", "", "per_day", "").want(t, 400, "invalid model id")
	}
	ada.post("/sharing/share", "with", "bob", "models", "org/a b\r\ntiny\r\n\r\n", "concurrent", "", "per_day", "").goes(t, "/access")
	if made := good[api.List[api.Share]](tn.world, "ada", "GET", "/api/shares", "").Data; len(made) != 1 || !slices.Equal(made[0].Models, []string{"org/a b", "tiny"}) {
		t.Errorf("%+v", made)
	}
}

func memberID(t *testing.T, tn *town, name string) string {
	t.Helper()
	m, err := tn.db.MemberByName(t.Context(), name)
	check(t, err)
	return m.ID
}

func TestEveryPageRenders(t *testing.T) {
	tn := newTown(t, nil)
	good[anything](tn.world, "ada", "POST", "/api/shares", `{"with":"bob","models":["tiny"],"per_day":3}`)
	good[anything](tn.world, "bob", "POST", "/api/shares", `{"with":"ada"}`)
	good[anything](tn.world, "ada", "POST", "/api/invites", "")
	good[anything](tn.world, "ada", "POST", "/api/groups", `{"name":"lab","kind":"org"}`)
	tn.intoGroup("lab", "bob")
	good[anything](tn.world, "eve", "POST", "/api/groups", `{"name":"all","kind":"open"}`)
	tn.history()
	ada := tn.as("ada")
	for _, p := range sitePages() {
		if p.method != "GET" || p.may == operators || strings.Contains(p.path, "{") || strings.Contains(p.path, "/provider") || p.asks || p.path == newKeyPath || p.path == groupPath || p.path == "/install.sh" {
			continue
		}
		page := ada.get(p.path)
		if strings.HasPrefix(p.path, livePath) {
			page.goes(t, strings.TrimSuffix(strings.TrimPrefix(p.path, "/live"), "home"))
			continue
		}
		if page.status != 200 {
			t.Errorf("%s: %d %s", p.path, page.status, problemIn(page.body))
		}
		if kind := page.header.Get("Content-Type"); kind != "text/html; charset=utf-8" && p.path != "/usage.csv" {
			t.Errorf("%s is %s", p.path, kind)
		}
	}
	ada.get("/machines").want(t, 200, "box", "ready")
	ada.get("/machines/"+tn.machine.ID).want(t, 200, "box", "ready", "In use by")
	ada.get("/models?q=of-a").want(t, 200, "of-ada")
	ada.get("/models?q=zzz").want(t, 200, "No models match")
	ada.get("/models?model=of-ado").want(t, 200, "would be refused", "Did you mean", `href="/models?model=of-ada"`, "Accept an invite")
	ada.get("/access").want(t, 200, "bob", "models tiny; 3 calls a day")
	ada.get("/access/groups").want(t, 200, "lab", "all", "Join")
	ada.get("/access/group?group=all").want(t, 200, "Everyone in this group, including people you do not know", `aria-label="Join all"`)
	ada.get("/access/group").goes(t, "/access/groups")
	ada.get("/access?group=a+b").goes(t, "/access/group?group=a+b")
	ada.get("/models").want(t, 200, "of-ada")
	ada.get("/models?model=tiny").want(t, 200, "would be served", ">box</a>", "Chat with it")
	ada.get("/usage?days=7").want(t, 200, "usage-model", "7 days")
	ada.get("/usage?days=x").want(t, 400, "whole number")
	ada.get("/usage.csv").want(t, 200, "caller,model,usage-model")
	ada.get("/requests").want(t, 200, "story-model")
	ada.get("/requests/req_1").want(t, 200, "story-model", "NOT_IN_CIRCLE", "; prompt sent; ")
	ada.get("/requests/req_2").want(t, 404)
	ada.get("/nothing").want(t, 404, "no such page")

}

// history gives ada two past calls: one was served, one was refused.
func (tn *town) history() {
	tn.t.Helper()
	ada := tn.members["ada"].ID
	check(tn.t, tn.db.RecordUsage(tn.t.Context(), []account.Usage{
		{CallID: "req_0", Attempt: 1, Started: time.Now().Add(-24 * time.Hour), MemberID: ada, OwnerID: ada, MachineID: tn.machine.ID, Model: "usage-model", TokensOut: 1234567},
		{CallID: "req_1", Attempt: 1, Started: time.Now(), MemberID: ada, Model: "usage-model", Code: "NOT_IN_CIRCLE"},
	}))
	check(tn.t, tn.db.SaveTraces(tn.t.Context(), []account.Trace{{
		CallID: "req_1", MemberID: ada, Started: time.Now().UTC().Truncate(time.Second), Mine: true, Caller: "ada", Model: "story-model", Endpoint: "/v1/chat/completions",
		Status: 403, Code: "NOT_IN_CIRCLE", Decisions: []account.Decision{{Verdict: "refuse", Row: 7, Seen: []account.StateCount{{Via: "own", State: "offline", Machines: 1}}}},
		Tries: []account.Attempt{{Machine: "box", Owner: "ada", Via: "own", Outcome: "gone", Prompt: true}},
	}}, time.Now()))
}

// TestAPIPage checks that people can read which routes the API has.
func TestAPIPage(t *testing.T) {
	page := newTown(t, nil).browser().get("/api").want(t, 200, "/api/openapi.json", `<a href="#get-why"><code>GET /api/why</code></a><span>Ask whether a call for a model would be served now</span>`, "served now. The answer names the machine")
	before(t, page, `<h2 id="api-Keys">Keys</h2>`, `<h3 id="get-keys">`)
	before(t, page, `<h3 id="get-keys">`, `<h2 id="api-Machines">Machines</h2>`)
	for _, op := range api.Describe().Operations {
		if !strings.Contains(page.body, "<code>"+op.Method+" "+op.Path+"</code>") {
			t.Errorf("the page does not list %s %s", op.Method, op.Path)
		}
	}
	assert.Lacks(t, page.body, `href="#type-"`, "the page has a link to no type")
}

// TestModelsWithAKey checks that /models with a key, from a client whose base URL lacks
// /v1, gets the hosted routes' 404, not the sign-in page.
func TestModelsWithAKey(t *testing.T) {
	tn := newTown(t, nil)
	for _, test := range []struct {
		header, value, accept string
		want                  bool
	}{
		{"", "", "", true},
		{"", "", "text/html", true},
		{"Authorization", "Bearer k", "application/json", false},
		{"X-Api-Key", "k", "*/*", false},
		{"Authorization", "Basic x", "text/html", true}, // a browser behind a proxy with a password
	} {
		r := httptest.NewRequest(http.MethodGet, "/models", nil)
		r.Header.Set("Accept", test.accept)
		if test.header != "" {
			r.Header.Set(test.header, test.value)
		}
		assert.Equal(t, tn.site.Serves(r), test.want, test)
	}
}

// A model's page says what it lacks, and the list shows what it can do.
func TestWhatModelsLack(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	for _, test := range []struct {
		capabilities []string
		abilities    string
		lacks        string // "" for nothing
	}{
		{[]string{"thinking", "tools"}, "thinking, tools", ""},
		{[]string{"default_tools", "tools"}, "tools", "native tool calls"},
		{[]string{"no_tools", "thinking"}, "thinking", "tools: kith cannot read how its chat template"},
	} {
		tn.models = []api.Model{{ID: "tiny", Capabilities: test.capabilities}}
		ada.get("/models").want(t, 200, `<td class="spare">`+test.abilities+"</td>")
		page := ada.get("/models?model=tiny").want(t, 200, "<dd>"+test.abilities+"</dd>", test.lacks)
		assert.Equal(t, strings.Contains(page.body, `id="lacks"`), test.lacks != "", test.capabilities)
	}
}
