package web

import (
	"bytes"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/kith/kith/internal/account"
)

// strictly is the API's description, in which no object may have a member that
// it does not tell of, and a compiler that knows it.
var strictly = sync.OnceValues(func() (map[string]any, *jsonschema.Compiler) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(openAPI()))
	must(err)
	whole := doc.(map[string]any)
	for _, schema := range whole["components"].(map[string]any)["schemas"].(map[string]any) {
		schema.(map[string]any)["additionalProperties"] = false
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	must(c.AddResource("openapi.json", whole))
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
	if err != nil {
		t.Fatalf("%s: %v", at, err)
	}
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
	r := httptest.NewRequest(method, path, nil)
	for _, known := range routes {
		if _, ok := match(known.path, r.URL); ok && known.method == method {
			return known.path
		}
	}
	return ""
}

// TestOpenAPI: every route is described and nothing else is; each answers as
// described, and takes the body that is described and none that lacks what has to
// be there.
func TestOpenAPI(t *testing.T) {
	var known []string
	for _, r := range routes {
		name := r.method + " " + r.path
		known = append(known, name)
		d, ok := descriptions[name]
		if !ok || d.about == "" || d.answer == nil {
			t.Errorf("%s: say in descriptions what it does, reads and answers", name)
		}
		for segment := range strings.SplitSeq(r.path, "/") {
			if name, open := strings.CutPrefix(segment, "{"); open && pathParameters[strings.TrimSuffix(name, "}")] == "" {
				t.Errorf("%s: say in pathParameters what %s is", r.path, segment)
			}
		}
	}
	for name := range descriptions {
		if !slices.Contains(known, name) {
			t.Errorf("%s is described, and there is no such route", name)
		}
	}
	whole, _ := strictly()
	if version := whole["openapi"]; version != "3.1.0" {
		t.Errorf("version %v", version)
	}
	n := 0
	for _, operations := range whole["paths"].(map[string]any) {
		n += len(operations.(map[string]any))
	}
	if n != len(routes) {
		t.Errorf("%d operations of %d routes", n, len(routes))
	}

	w := newWorld(t)
	w.refuse = nil
	machine := "/api/machines/" + w.machine.ID
	key := account.Key{ID: account.NewID("key_"), MemberID: w.members["ada"].ID, Name: "k", Region: "home", Reach: account.ReachOwn, Hash: [32]byte{2}, Created: time.Now(), LastUsed: time.Now()}
	check(t, w.db.CreateKey(t.Context(), key))
	tn := town{world: w}
	tn.history()
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
		{"ada", "GET", "/api/notices", ""}, {"ada", "POST", "/api/notices/seen", `{"until":"2020-01-01T00:00:00Z"}`}, {"ada", "POST", "/api/groups/lab/admins", `{"member":"bob"}`},
		{"bob", "POST", "/api/groups/all/join", ""}, {"bob", "POST", "/api/groups/all/limits", `{"models":["none"],"hours":null,"per_day":3}`}, {"bob", "POST", "/api/groups/all/leave", ""},
		{"ada", "POST", machine + "/keep-out", `{"group":"lab"}`}, {"ada", "POST", machine + "/keep-out", `{"all":true,"undo":true}`}, {"ada", "GET", "/api/groups", ""},
		{"ada", "DELETE", "/api/groups/lab/admins/bob", ""}, {"ada", "DELETE", "/api/groups/lab/members/bob", ""}, {"ada", "DELETE", "/api/groups/lab", ""},
		{"ada", "POST", machine + "/name", `{"name":"desk"}`}, {"ada", "POST", machine + "/control", `{"paused":true,"hours":"","timezone":"UTC","slots":2}`},
		{"ada", "GET", "/api/machines", ""}, {"ada", "GET", "/api/requests", ""}, {"ada", "GET", "/api/why?model=tiny", ""}, {"bob", "GET", "/api/why?model=tiny", ""},
		{"ada", "GET", "/api/why/req_1", ""}, {"ada", "GET", "/api/usage?days=7", ""},
		{"ada", "DELETE", "/api/keys/" + key.ID, ""}, {"ada", "DELETE", machine, ""},
	} {
		path, body := strings.Replace(step.path, "INVITE", invite.ID, 1), step.body
		if body == "CODE" {
			body = `{"code":"` + invite.Code + `"}`
		}
		got := w.ask(step.who, step.method, path, body) // which looks at the answer
		if got.status != 200 {
			t.Errorf("%s %s %s: %d %s", step.who, step.method, path, got.status, got.body)
		}
		name := step.method + " " + routeOf(step.method, path)
		if answered[name] = true; name == "POST /api/invites" {
			check(t, json.Unmarshal([]byte(got.body), &invite))
		}
		d := descriptions[name]
		if (d.body == nil) != (body == "") {
			t.Errorf("%s: a body is sent and none described, or the other way round", name)
		}
		for _, needed := range d.needs {
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
		if !answered[name] {
			t.Errorf("%s: have it answer here", name)
		}
	}
}

// The description is told to anybody, whole; and a person can read it.
func TestOpenAPIServed(t *testing.T) {
	tn := newTown(t, nil)
	got := tn.ask("", "GET", openAPIPath, "")
	if got.status != 200 || got.body != string(openAPI()) {
		t.Errorf("%d %.80s", got.status, got.body)
	}
	if got := tn.ask("", "POST", openAPIPath, ""); got.status != 404 {
		t.Errorf("POST: %d", got.status)
	}
	page := tn.browser().get("/api").want(t, 200, openAPIPath, "Whether a call for a model would be served")
	for _, r := range routes {
		if !strings.Contains(page.body, "<code>"+r.method+" "+r.path+"</code>") {
			t.Errorf("the page does not tell of %s %s", r.method, r.path)
		}
	}
	if strings.Contains(page.body, `href="#type-"`) {
		t.Error("the page has a link to no type")
	}
}
