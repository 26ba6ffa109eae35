package site

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
)

// The secret of a new key is shown once, to the browser that created it. Reloading the
// page, or opening the form's path, does not create a second key.
func TestNewKeyIsShownOnce(t *testing.T) {
	onEachStore(t, func(t *testing.T, tn *town) {
		ada := tn.as("ada")
		keys := func() []account.Key {
			all, err := tn.db.Keys(t.Context(), tn.members["ada"].ID)
			check(t, err)
			return all
		}
		before := len(keys())
		ada.post("/applications", "name", "editor", "reach", "own").goes(t, newKeyPath)
		for _, s := range sessionsOf(t, tn, "ada") {
			assert.Lacks(t, string(s), "kith_", "the database has the secret", s)
		}
		secret := textOf(t, ada.get(newKeyPath).want(t, 200, "this once", "editor"), "secret")
		assert.That(t, strings.HasPrefix(secret, "kith_home_"), "the page shows", secret)
		for range 2 {
			ada.get(newKeyPath).goes(t, "/applications")
		}
		ada.get("/applications").want(t, 200, "give the key a new secret")
		for form, page := range map[string]string{"/applications/test": "/applications", "/machines/pause": "/machines", "/theme": "/", "/sharing/share": "/access", "/groups/join": "/access/groups"} {
			ada.get(form).goes(t, page)
		}

		// Another browser of the member with the same session, but without the cookie,
		// gets nothing.
		ada.post("/applications", "name", "lost", "reach", "own").goes(t, newKeyPath)
		at, _ := url.Parse(tn.web.URL + newKeyPath)
		ada.client.Jar.SetCookies(at, []*http.Cookie{{Name: sessionNewKey, Path: newKeyPath, MaxAge: -1}})
		ada.get(newKeyPath).goes(t, "/applications")
		assert.Equal(t, len(keys())-before, 2, "keys were made")
	})
}

// A rolled key has a new secret and the same name. The old secret is refused.
func TestRollKey(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	ada.post("/applications", "name", "editor", "reach", "own").goes(t, newKeyPath)
	first := textOf(t, ada.get(newKeyPath), "secret")
	old := newest(t, tn)
	ada.get("/applications/roll?key="+old.ID).want(t, 200, "Give editor a new secret?", "No program has used it yet.", "ending in "+old.LastFour)
	ada.post("/applications/roll", "key", old.ID).goes(t, newKeyPath)
	if second := textOf(t, ada.get(newKeyPath).want(t, 200, "editor"), "secret"); second == first {
		t.Error("the secret is the old one")
	}
	made := newest(t, tn)
	if made.ID == old.ID || made.Name != "editor" || made.Reach != account.ReachOwn || !made.Revoked.IsZero() {
		t.Errorf("the new key is %+v", made)
	}
	ada.get("/applications/revoke?key="+old.ID).want(t, 404, "no active key")
	ada.post("/applications/roll", "key", old.ID).want(t, 404, "no active key")
	ada.get("/applications/revoke?key="+made.ID).want(t, 200, "Revoke editor?", `action="/applications/revoke"`)
	tn.as("bob").get("/applications/revoke?key="+made.ID).want(t, 404)

	// The operator's command creates keys with any name, or without one.
	for i, name := range []string{"", "laptop (ada)"} {
		given := account.Key{ID: account.NewID("key_"), MemberID: tn.members["ada"].ID, Name: name, Region: "home", Reach: account.ReachAll, Hash: [32]byte{8, byte(i)}, LastFour: "wxyz", Created: time.Now()}
		check(t, tn.db.CreateKey(t.Context(), given))
		called := cmp.Or(name, "the key that ends in wxyz")
		ada.get("/applications/roll?key="+given.ID).want(t, 200, "Give "+called+" a new secret?")
		ada.get("/applications/revoke?key="+given.ID).want(t, 200, "Revoke "+called+"?")
		ada.post("/applications/roll", "key", given.ID).goes(t, newKeyPath)
		ada.get(newKeyPath).want(t, 200, "this once")
		if made := newest(t, tn); made.ID == given.ID || made.Name != name {
			t.Errorf("%q: the new key is %+v", name, made)
		}
	}
}

// A key can have an expiry, which its page and the list show and a roll keeps. After it
// the key is neither live nor can be rolled.
func TestKeyWithAnEnd(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	ada.post("/applications", "name", "trial", "reach", "own", "expires", "30d").goes(t, newKeyPath)
	ada.get(newKeyPath).want(t, 200, "until <time")
	old := newest(t, tn)
	assert.Equal(t, old.Expires.Sub(old.Created), 30*24*time.Hour, "the key ends after")
	ada.post("/applications/roll", "key", old.ID).goes(t, newKeyPath)
	if made := newest(t, tn); made.ID == old.ID || !made.Expires.Equal(old.Expires) {
		t.Errorf("the new key is %+v, the old one ends %s", made, old.Expires)
	}
	ada.post("/applications", "name", "trial", "reach", "own", "expires", "yesterday").want(t, 400, "like 7d or 12h")
	// No response could contain a key of the year 10000, because JSON has no such time.
	ada.post("/applications", "name", "trial", "reach", "own", "expires", "9999-12-31T23:59:59-01:00").want(t, 400, "before the year 10000")

	past := account.Key{ID: account.NewID("key_"), MemberID: tn.members["ada"].ID, Name: "past", Region: "home", Reach: account.ReachAll, Hash: [32]byte{9}, Created: time.Now().Add(-2 * time.Hour), Expires: time.Now().Add(-time.Hour)}
	check(t, tn.db.CreateKey(t.Context(), past))
	now := time.Now().UTC()
	check(t, tn.db.RecordUsage(t.Context(), []account.Usage{
		{CallID: "req_1", Attempt: 1, Started: now, MemberID: past.MemberID, KeyID: past.ID, Model: "m"},
		{CallID: "req_2", Attempt: 1, Started: now.AddDate(0, 0, -31), MemberID: past.MemberID, KeyID: past.ID, Model: "m"},
	}))
	ada.get("/applications").want(t, 200, ">expired<", `aria-label="Calls of past: 1"`)
	ada.post("/applications/roll", "key", past.ID).want(t, 404, "no active key")
}

// A key can have a limit of calls a day, which its page and the list show, a new secret
// keeps, and a form changes. The list shows how many are used today.
func TestKeyWithALimit(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	ada.post("/applications", "name", "agent", "reach", "own", "per_day", "1500").goes(t, newKeyPath)
	ada.get(newKeyPath).want(t, 200, "at most 1,500 calls a day")
	old := newest(t, tn)
	ada.get("/applications/roll?key="+old.ID).want(t, 200, "name, reach, region, scope, expiry and limit")
	ada.post("/applications/roll", "key", old.ID).goes(t, newKeyPath)
	key := newest(t, tn)
	assert.That(t, key.ID != old.ID && key.PerDay == 1500, key)
	ada.get("/applications").want(t, 200, "0 of 1,500", "Used today", "Calls, 30 days")
	now := time.Now().UTC()
	for i, machine := range []string{"", tn.machine.ID, tn.machine.ID} {
		check(t, tn.db.RecordUsage(t.Context(), []account.Usage{
			{CallID: fmt.Sprint("req_", i), Attempt: 1, Started: now, MemberID: key.MemberID, KeyID: key.ID, MachineID: machine, Model: "m"},
		}))
	}
	ada.post("/applications/limit", "key", key.ID, "per_day", "2").goes(t, "/applications")
	ada.get("/applications").want(t, 200, "daily limit is 2, of which 2 are used", `2 of 2 <span class="state warn">used up</span>`)
	ada.post("/applications/limit", "key", key.ID, "per_day", "").goes(t, "/applications")
	ada.get("/applications").want(t, 200, "no daily limit", `<td class="n">2</td>`)
	assert.Equal(t, newest(t, tn).PerDay, 0, "calls a day")
	for _, wrong := range []string{"-1", "0", "1000001", "many"} {
		ada.post("/applications/limit", "key", key.ID, "per_day", wrong).want(t, 400, "Calls a day is a whole number")
		ada.post("/applications", "name", "agent", "reach", "own", "per_day", wrong).want(t, 400, "Calls a day is a whole number", `value="`+wrong+`"`)
	}
	ada.post("/applications/limit", "key", old.ID, "per_day", "1").want(t, 404, "no active key")
	tn.as("bob").post("/applications/limit", "key", key.ID, "per_day", "1").want(t, 404, "no active key")
}

// The lines to paste are in panes, each with its tab in front, and the first is open.
func TestNewKeyPanes(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	ada.post("/applications", "name", "editor", "reach", "own").goes(t, newKeyPath)
	page := ada.get(newKeyPath).want(t, 200).body
	tabs := regexp.MustCompile(`<label><input type="radio" name="lines" id="([a-z]+)"( checked)? autocomplete="off">[A-Za-z ]+</label>\n<div><pre data-copy aria-label="[^"]+" id="for-([a-z]+)">`).FindAllStringSubmatch(page, -1)
	var ids []string
	for i, tab := range tabs {
		assert.That(t, tab[1] == tab[3] && (tab[2] != "") == (i == 0), tab)
		ids = append(ids, tab[1])
	}
	assert.Equal(t, strings.Join(ids, " "), "curl python js go anthropic openai", "panes")
}

// newest returns ada's newest key.
func newest(t *testing.T, tn *town) account.Key {
	keys, err := tn.db.Keys(t.Context(), tn.members["ada"].ID)
	check(t, err)
	return keys[len(keys)-1]
}

// sessionsOf returns what the database contains of a member's sessions.
func sessionsOf(t *testing.T, tn *town, name string) (data [][]byte) {
	sessions, err := tn.db.SessionsOf(t.Context(), tn.members[name].ID, time.Now())
	check(t, err)
	for _, s := range sessions {
		data = append(data, s.Data)
	}
	return data
}
