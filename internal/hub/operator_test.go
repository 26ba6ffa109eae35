package hub

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/credential"
)

// Every route of the operator's API: what is good, missing, taken and unreadable.
func TestOperator(t *testing.T) {
	r := newRig(t, Config{})
	keyID, _ := r.member("ann")
	r.member("bob")
	machineID, _ := r.machine("ann", "box")
	long := strings.Repeat("x", 65)
	for _, c := range []struct {
		method, path, body string
		status             int
		code               string
	}{
		{"POST", "/members", `{"name":"carol","operator":true}`, 200, ""},
		{"POST", "/members", `{"name":"ann"}`, 400, "invalid_request"},
		{"POST", "/members", `{"name":""}`, 400, "invalid_request"},
		{"POST", "/members", `{"name":"` + long + `"}`, 400, "invalid_request"},
		{"POST", "/members", `{"name":" ann"}`, 400, "invalid_request"},
		{"POST", "/members", `{"name":"a\nb"}`, 400, "invalid_request"},
		{"POST", "/members", `{"name":"dave","name":"eve"}`, 400, "invalid_request"},
		{"POST", "/members", `{"nom":"dave"}`, 400, "invalid_request"},
		{"POST", "/members", `{`, 400, "invalid_request"},
		{"POST", "/members", `{"name":"` + strings.Repeat("x", 70<<10) + `"}`, 400, "invalid_request"},
		{"GET", "/members", "", 200, ""},

		{"POST", "/keys", `{"member":"ann","name":"laptop","region":"home","reach":"own"}`, 200, ""},
		{"POST", "/keys", `{"member":"nobody"}`, 404, "not_found"},
		{"POST", "/keys", `{"member":"ann","region":"moon"}`, 400, "invalid_request"},
		{"POST", "/keys", `{"member":"ann","reach":"moon"}`, 400, "invalid_request"},
		{"POST", "/keys", `[]`, 400, "invalid_request"},
		{"GET", "/keys?member=ann", "", 200, ""},
		{"GET", "/keys?member=nobody", "", 404, "not_found"},
		{"GET", "/keys", "", 404, "not_found"},
		{"POST", "/keys/" + keyID + "/revoke", "", 200, ""},
		{"POST", "/keys/key_nobodys/revoke", "", 404, "not_found"},

		{"POST", "/machines/token", `{"member":"ann"}`, 200, ""},
		{"POST", "/machines/token", `{"member":"ann","name":"a/b"}`, 400, "invalid_request"},
		{"POST", "/machines/token", `{"member":"nobody"}`, 404, "not_found"},
		{"POST", "/machines/token", ``, 400, "invalid_request"},
		{"GET", "/machines", "", 200, ""},
		{"GET", "/machines?member=ann", "", 200, ""},
		{"GET", "/machines?member=nobody", "", 404, "not_found"},
		{"POST", "/machines/" + machineID + "/revoke", "", 200, ""},
		{"POST", "/machines/mch_nobodys/revoke", "", 404, "not_found"},

		{"POST", "/shares", `{"owner":"ann","with":"bob"}`, 200, ""},
		{"POST", "/shares", `{"owner":"ann","with":"bob"}`, 400, "invalid_request"},
		{"POST", "/shares", `{"owner":"ann","with":"ann"}`, 400, "invalid_request"},
		{"POST", "/shares", `{"owner":"ann","with":"nobody"}`, 404, "not_found"},
		{"POST", "/shares", `{"owner":"nobody","with":"ann"}`, 404, "not_found"},
		{"POST", "/shares", `null and void`, 400, "invalid_request"},
		{"DELETE", "/shares?owner=ann&with=bob", "", 200, ""},
		{"DELETE", "/shares?owner=ann&with=bob", "", 404, "not_found"},
		{"DELETE", "/shares?owner=ann&with=nobody", "", 404, "not_found"},
		{"DELETE", "/shares", "", 404, "not_found"},

		{"POST", "/groups", `{"name":"lab","kind":"org","admin":"ann"}`, 200, ""},
		{"POST", "/groups", `{"name":"lab","kind":"open","admin":"ann"}`, 400, "invalid_request"},
		{"POST", "/groups", `{"name":"club","kind":"secret","admin":"ann"}`, 400, "invalid_request"},
		{"POST", "/groups", `{"name":"club","kind":"open","admin":"nobody"}`, 404, "not_found"},
		{"POST", "/groups", `{"name":"","kind":"open","admin":"ann"}`, 400, "invalid_request"},
		{"POST", "/groups", `"`, 400, "invalid_request"},
		{"POST", "/groups", `{"name":"everyone","kind":"open","admin":"ann"}`, 200, ""},
		{"POST", "/groups/lab/invitations", `{"member":"bob"}`, 200, ""},
		{"POST", "/groups/lab/invitations", `{"member":"bob"}`, 400, "invalid_request"},
		{"POST", "/groups/lab/invitations", `{"member":"ann"}`, 400, "invalid_request"},
		{"POST", "/groups/lab/invitations", `{"member":"nobody"}`, 404, "not_found"},
		{"POST", "/groups/none/invitations", `{"member":"bob"}`, 404, "not_found"},
		{"POST", "/groups/everyone/invitations", `{"member":"bob"}`, 400, "invalid_request"},
		{"POST", "/groups/lab/invitations", `{"member":1}`, 400, "invalid_request"},
		{"DELETE", "/groups/lab/members/bob", "", 200, ""},
		{"DELETE", "/groups/lab/members/bob", "", 404, "not_found"},
		{"DELETE", "/groups/none/members/bob", "", 404, "not_found"},

		{"POST", "/members/bob/disable", "", 200, ""},
		{"POST", "/members/nobody/disable", "", 404, "not_found"},
	} {
		a := r.admin(c.method, c.path, c.body)
		if a.Status != c.status || a.code() != c.code {
			t.Errorf("%s %s %.60s: %d %v", c.method, c.path, c.body, a.Status, a.Body)
		}
	}
	for _, name := range []string{"lab", "everyone"} { // no member is in a group without an act of their own
		if g, err := r.kept.GroupByName(t.Context(), name); err != nil || len(g.Members) > 0 {
			t.Errorf("%+v, %v", g, err)
		}
	}
}

// A secret is in the answer that makes it and in no other.
func TestOperatorShowsASecretOnce(t *testing.T) {
	r := newRig(t, Config{})
	keyID, secret := r.member("ann")
	if s, err := credential.Parse(secret); err != nil || s.Kind() != credential.APIKey || s.Region() != "home" {
		t.Errorf("%v %v", s, err)
	}
	keys := r.ok("GET", "/keys?member=ann", "").List
	if len(keys) != 1 || keys[0]["id"] != keyID || keys[0]["secret"] != nil || !strings.HasSuffix(secret, keys[0]["last_four"].(string)) || keys[0]["revoked"] != nil {
		t.Errorf("%v", keys)
	}
	r.ok("POST", "/keys/"+keyID+"/revoke", "")
	if keys := r.ok("GET", "/keys?member=ann", "").List; keys[0]["revoked"] == nil {
		t.Errorf("%v", keys)
	}
	machineID, _ := r.machine("ann", "box")
	machines := r.ok("GET", "/machines", "").List
	if len(machines) != 1 || machines[0]["id"] != machineID || machines[0]["owner"] != "ann" || machines[0]["online"] != false {
		t.Errorf("%v", machines)
	}
	members := r.ok("GET", "/members", "").List
	assert.That(t, len(members) == 1 && members[0]["disabled"] == false, members)
}

// A panic in front of a tunnel is answered as an internal error, with the id under
// which its stack is in the log.
func TestPanic(t *testing.T) {
	r := newRig(t, Config{})
	r.member("ann")
	_, secret := r.machine("ann", "box")
	var log bytes.Buffer
	r.records, r.log = nil, slog.New(slog.NewTextHandler(&log, nil))
	dial := httptest.NewRequest("GET", "/tunnel", nil)
	dial.Header.Set("Authorization", "Bearer "+secret)
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, dial)
	id := w.Header().Get("X-Correlation-ID")
	if w.Code != 500 || !strings.Contains(w.Body.String(), `"internal_error"`) || id == "" || !strings.Contains(w.Body.String(), id) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if !strings.Contains(log.String(), "id="+id) || !strings.Contains(log.String(), "nil pointer") || !strings.Contains(log.String(), "accept.go") {
		t.Errorf("logged %s", &log)
	}
}
