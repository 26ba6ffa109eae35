package api

import (
	"bytes"
	"encoding/json/v2"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
)

// strictly is the API's description, in which no object may have a member that
// it does not describe, and a compiler that knows it.
var strictly = sync.OnceValues(func() (map[string]any, *jsonschema.Compiler) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(OpenAPI()))
	if err != nil {
		panic(err)
	}
	whole := doc.(map[string]any)
	for _, schema := range whole["components"].(map[string]any)["schemas"].(map[string]any) {
		schema.(map[string]any)["additionalProperties"] = false
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("openapi.json", whole); err != nil {
		panic(err)
	}
	return whole, c
})

var compiling sync.Mutex

// asDescribed fails the test if an answer to a route is not what the description
// says; every answer that a test of the API gets comes through here.
func asDescribed(t *testing.T, method, path string, status int, body string) {
	t.Helper()
	at := "openapi.json#/components/schemas/Error"
	if status == 200 {
		escaped := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(path)
		at = fmt.Sprintf("openapi.json#/paths/%s/%s/responses/200/content/application~1json/schema", escaped, strings.ToLower(method))
	}
	compiling.Lock()
	_, c := strictly()
	schema, err := c.Compile(at)
	compiling.Unlock()
	assert.OK(t, err, at)
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
	if err == nil {
		err = schema.Validate(value)
	}
	if err != nil {
		t.Errorf("%s %s answers %s, which is not as described: %v", method, path, body, err)
	}
}

// routeOf is the route's path that a request's path is for.
func routeOf(method, path string) string {
	if l := lineOf(method, path); l != nil {
		return l.path
	}
	return ""
}

func lineOf(method, path string) *line {
	var mux Mux
	for i, l := range table {
		if l.may == members {
			mux.Handle(l.method, l.path, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(600 + i) }))
		}
	}
	w := httptest.NewRecorder()
	if mux.ServeHTTP(w, httptest.NewRequest(method, path, nil)); w.Code < 600 {
		return nil
	}
	return table[w.Code-600]
}

var update = flag.Bool("update", false, "write the list of routes in docs/api.md")

// TestListOfRoutes: docs/api.md lists the members' routes, each with its summary of a few
// words.
func TestListOfRoutes(t *testing.T) {
	list := "## All routes\n\n| Route | What it does |\n|---|---|\n"
	for _, op := range Describe().Operations {
		if n := len(op.Summary); n == 0 || n > 64 {
			t.Errorf("%s %s: the summary %q has %d bytes, want 1 to 64", op.Method, op.Path, op.Summary, n)
		}
		list += fmt.Sprintf("| `%s %s` | %s |\n", op.Method, op.Path, op.Summary)
	}
	const path = "../../docs/api.md"
	text, err := os.ReadFile(path)
	check(t, err)
	page := string(text)
	rest, _, _ := strings.Cut(page, "## All routes\n")
	if *update {
		page = rest + list
		check(t, os.WriteFile(path, []byte(page), 0o644))
	}
	if page != rest+list {
		t.Error("docs/api.md does not end with the list of the routes: run go test ./internal/api -run ListOfRoutes -update")
	}
}

// TestOpenAPI: every route is described and nothing else is; each answers as
// described, and takes the body that is described and none that lacks what has to
// be there.
func TestOpenAPI(t *testing.T) {
	var known []string
	for _, l := range table {
		if l.may == members {
			known = append(known, l.method+" "+l.path)
		}
		for _, f := range l.fields {
			if l.may == members && parameterTexts[f.name] == "" {
				t.Errorf("%s: say in parameterTexts what %s is", l.path, f.name)
			}
		}
		if l.about == "" && (l.may == members || l.method != http.MethodGet) {
			t.Errorf("%s %s: say what it does", l.method, l.path)
		}
	}
	whole, _ := strictly()
	assert.Equal(t, whole["openapi"], "3.1.0", "version")
	n := 0
	for _, operations := range whole["paths"].(map[string]any) {
		n += len(operations.(map[string]any))
	}
	assert.Equal(t, n, len(known), "operations of")

	w := newWorld(t)
	w.refuse = nil
	machine := "/api/machines/" + w.machine.ID
	key := account.Key{ID: account.NewID("key_"), MemberID: w.members["ada"].ID, Name: "k", Region: "home", Reach: account.ReachOwn, Hash: [32]byte{2}, Created: time.Now(), LastUsed: time.Now()}
	check(t, w.db.CreateKey(t.Context(), key))
	w.history()
	var invite Invite
	answered := map[string]bool{}
	for _, step := range []struct{ who, method, path, body string }{
		{"ada", "GET", "/api/models", ""}, {"ada", "GET", "/api/keys", ""},
		{"ada", "POST", "/api/shares", `{"with":"bob","models":["tiny"],"hours":"Sat 10:00-12:00","concurrent":2,"per_day":9}`}, {"bob", "GET", "/api/shares", ""},
		{"ada", "DELETE", "/api/shares/bob", ""},
		{"ada", "POST", "/api/invites", `{"uses":2,"expires":"1d","models":["tiny"]}`}, {"bob", "POST", "/api/invites/accept", "CODE"}, {"bob", "POST", "/api/invites/accept", "CODE"},
		{"ada", "GET", "/api/invites", ""}, {"ada", "DELETE", "/api/invites/INVITE", ""},
		{"ada", "POST", "/api/groups", `{"name":"lab","kind":"org"}`}, {"ada", "POST", "/api/groups", `{"name":"all","kind":"open"}`},
		{"ada", "POST", "/api/groups/lab/invitations", `{"member":"eve"}`}, {"eve", "GET", "/api/groups", ""}, {"ada", "GET", "/api/groups", ""}, {"eve", "POST", "/api/groups/lab/decline", ""},
		{"ada", "POST", "/api/groups/lab/invitations", `{"member":"bob"}`}, {"bob", "GET", "/api/notices", ""}, {"bob", "POST", "/api/groups/lab/accept", ""},
		{"ada", "GET", "/api/notices", ""}, {"ada", "POST", "/api/notices/seen", `{"until":"2020-01-01T00:00:00Z"}`},
		{"ada", "POST", "/api/notices/off", `{"site":["joined"],"mail":null}`}, {"ada", "GET", "/api/notices/off", ""}, {"ada", "POST", "/api/groups/lab/admins", `{"member":"bob"}`},
		{"ada", "POST", "/api/groups/lab/machines", `{"owner":"ada","machine":"box","rule":"pinned"}`},
		{"bob", "POST", "/api/groups/all/join", ""}, {"bob", "POST", "/api/groups/all/limits", `{"models":["none"],"hours":null,"per_day":3}`}, {"bob", "POST", "/api/groups/all/leave", ""},
		{"ada", "POST", machine + "/show", `{"shown":true}`}, {"ada", "POST", machine + "/keep-out", `{"group":"lab"}`}, {"ada", "POST", machine + "/keep-out", `{"all":true,"undo":true}`}, {"ada", "GET", "/api/groups", ""},
		{"ada", "DELETE", "/api/groups/lab/admins/bob", ""}, {"ada", "DELETE", "/api/groups/lab/members/bob", ""}, {"ada", "DELETE", "/api/groups/lab", ""},
		{"ada", "POST", machine + "/name", `{"name":"desk"}`}, {"ada", "POST", machine + "/control", `{"paused":true,"hours":"","timezone":"UTC","slots":2}`},
		{"ada", "GET", "/api/machines", ""}, {"ada", "GET", machine + "/usage", ""}, {"ada", "GET", machine + "/seal", ""}, {"ada", "GET", "/api/seals?model=tiny", ""}, {"ada", "GET", "/api/requests", ""}, {"ada", "GET", "/api/why?model=tiny", ""}, {"bob", "GET", "/api/why?model=tiny", ""},
		{"ada", "GET", "/api/machines", ""}, {"ada", "GET", machine + "/usage", ""}, {"ada", "GET", machine + "/models", ""}, {"ada", "POST", machine + "/models", `{"act":"load","model":"words"}`}, {"ada", "GET", "/api/requests", ""}, {"ada", "GET", "/api/why?model=tiny", ""}, {"bob", "GET", "/api/why?model=tiny", ""},
		{"ada", "GET", "/api/why/req_1", ""}, {"ada", "GET", "/api/usage?days=7", ""},
		{"ada", "POST", "/api/keys/" + key.ID + "/limit", `{"per_day":9}`}, {"ada", "DELETE", "/api/keys/" + key.ID, ""}, {"ada", "DELETE", machine, ""},
	} {
		path, body := strings.Replace(step.path, "INVITE", invite.ID, 1), step.body
		if body == "CODE" {
			body = `{"code":"` + invite.Code + `"}`
		}
		got := w.ask(step.who, step.method, path, body) // which looks at the answer
		assert.Equal(t, got.status, 200, step.who, step.method, path, got.body)
		name := step.method + " " + routeOf(step.method, path)
		if answered[name] = true; name == "POST /api/invites" {
			check(t, json.Unmarshal([]byte(got.body), &invite))
		}
		l := lineOf(step.method, path)
		if !l.body && body != "" || l.needed && body == "" {
			t.Errorf("%s: a body is sent and none described, or the other way round", name)
		}
		if !l.needed {
			continue
		}
		for _, needed := range (schemas{}).object(l.in).Required {
			var without map[string]any
			check(t, json.Unmarshal([]byte(body), &without))
			delete(without, needed)
			text, err := json.Marshal(without)
			check(t, err)
			if got := w.ask(step.who, step.method, path, string(text)); got.status < 400 || got.status >= 500 {
				t.Errorf("%s without %s: %d", name, needed, got.status)
			}
		}
	}
	for _, name := range known {
		assert.That(t, answered[name], name, "have it answer here")
	}
}

// The page of the API has each operation once, under the first part of its path.
func TestResources(t *testing.T) {
	seen, names := 0, map[string]bool{}
	for _, r := range Describe().Resources() {
		assert.That(t, !names[r.Name], r.Name, "is there twice")
		names[r.Name] = true
		for _, op := range r.Operations {
			seen++
			assert.That(t, strings.HasPrefix(op.Path+"/", "/api/"+strings.ToLower(r.Name)+"/"), op.Path, "is under", r.Name)
		}
	}
	assert.Equal(t, seen, len(Describe().Operations))
}

// The description needs no key.
func TestOpenAPIServed(t *testing.T) {
	w := newWorld(t)
	got := w.ask("", "GET", openAPIPath, "")
	if got.status != 200 || got.body != string(OpenAPI()) {
		t.Errorf("%d %.80s", got.status, got.body)
	}
	assert.Equal(t, w.ask("", "POST", openAPIPath, "").status, 404, "POST")
}

// The examples of the page are as the description has it.
func TestExamples(t *testing.T) {
	d := Describe()
	anchors := map[string]bool{}
	for _, op := range d.Operations {
		text, err := d.Example(op.Responses.Done.Content.JSON.Schema)
		assert.OK(t, err)
		asDescribed(t, op.Method, op.Path, 200, text)
		method := "" // curl's own is GET
		if op.Method != "GET" {
			method = "-X " + op.Method + " "
		}
		call, err := d.Call("https://hub.example", op)
		if err != nil || strings.ContainsAny(call, "{}") && op.Body == nil || !strings.HasPrefix(call, "curl -sS "+method+"'https://hub.example/api/") {
			t.Errorf("%s %s: %v: %s", op.Method, op.Path, err, call)
		}
		assert.That(t, !anchors[op.Anchor()], "two sections are called", op.Anchor())
		anchors[op.Anchor()] = true
	}
	if call, _ := d.Call("https://hub.example", d.Operations[2]); !strings.Contains(call, `"with":"bob"`) || !strings.Contains(call, `"per_day":50`) {
		t.Errorf("to share: %s", call)
	}
}
