package site

import (
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/kith/kith/internal/assert"
)

// TestAtForm checks that a refusal is shown before its form, with the focus on the
// invalid field and its details element open. Without such a field the message has the
// focus.
func TestAtForm(t *testing.T) {
	const page = `<main><div id="problem">no</div>
<form method="get" action="/a"><input name="x"></form>
<form method="post" action="/b" id="b"><input name="x"></form>
<form method="post" action="/a" id="hidden"><input type="hidden" name="with" value="bob"><input type="hidden" name="x"></form>
<details id="d"><form method="post" action="/a" id="eve"><input type="hidden" name="with" value="eve"><input name="x" aria-describedby="help"></form></details>
<form method="post" action="/a" id="bob"><input type="hidden" name="with" value="bob"><details id="e"><input name="x"></details></form></main>`
	for name, test := range map[string]struct{ path, value, field, form, focus, open string }{
		"by its field alone":        {"/a", "", "x", "eve", "x", "d"},
		"of the member":             {"/a", "bob", "x", "bob", "x", "e"},
		"without a field":           {"/a", "eve", "", "eve", "problem", "d"},
		"a field that is not there": {"/b", "", "y", "b", "problem", ""},
		"no form":                   {"/c", "", "x", "", "", ""},
	} {
		root, err := html.Parse(strings.NewReader(string(atForm([]byte(page), test.path, test.value, test.field))))
		check(t, err)
		form, focus, open := "", "", ""
		for n := range root.Descendants() {
			if attribute(n, "id") == "problem" {
				for next := n.NextSibling; next != nil && form == ""; next = next.NextSibling {
					form = attribute(next, "id")
				}
			}
			for _, a := range n.Attr {
				switch a.Key {
				case "autofocus":
					focus += attribute(n, "name")
					if focus == "" {
						focus = attribute(n, "id")
					} else if got := attribute(n, "aria-describedby"); attribute(n, "aria-invalid") != "true" || !strings.HasPrefix(got, "problem") || test.form == "eve" && got != "problem help" {
						t.Errorf("%s: the field is described by %q", name, got)
					}
				case "open":
					open += attribute(n, "id")
				}
			}
		}
		if form != test.form && test.form != "" || focus != test.focus || open != test.open {
			t.Errorf("%s: before the form %q, the focus at %q, open %q; want %+v", name, form, focus, open, test)
		}
	}
}

// A refused form is marked without a script.
func TestRefusedField(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	for _, test := range [][]string{
		{"/sharing/share", `name="with"`, "with", "no-one"},
		{"/sharing/share", `name="per_day"`, "with", "bob", "per_day", "0"},
		{"/applications", `name="expires"`, "name", "k", "expires", "soon"},
		{"/account/password", `name="password"`, "password", "short"},
		{"/groups/create", `name="name"`, "name", "", "kind", "org"},
	} {
		page := ada.post(test[0], test[2:]...)
		at := strings.Index(page.body, ` autofocus=""`)
		if page.status < 400 || at < 0 {
			t.Errorf("%s: %d, no field has the focus", test, page.status)
			continue
		}
		tag := page.body[strings.LastIndex(page.body[:at], "<") : at+len(` autofocus=""`)]
		if !strings.Contains(tag, test[1]) || !strings.Contains(tag, `aria-invalid="true"`) || !strings.Contains(tag, `aria-describedby="problem`) {
			t.Errorf("%s: the focus is at %s", test, tag)
		}
	}
	page := tn.browser().post("/signin", "name", "ada", "password", "wrong").want(t, 403, `autofocus=""`)
	assert.Equal(t, strings.Count(page.body, "aria-invalid"), 1, "not one field is marked")
}
