package site

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// atForm moves the error message of a page, its element #problem, to the form that was
// refused, and focuses the invalid field, or the message if the message is about no
// field. The form is the one that posts to the path. Of several, it prefers one with the
// field, and with a hidden field of that value.
func atForm(page []byte, path, value, field string) []byte {
	root, err := html.Parse(bytes.NewReader(page))
	if err != nil { // cannot happen: it reads from memory
		return page
	}
	var problem *html.Node
	var forms []*html.Node
	for n := range root.Descendants() {
		switch {
		case attribute(n, "id") == "problem":
			problem = n
		case n.DataAtom == atom.Form && attribute(n, "method") == "post" && attribute(n, "action") == path:
			forms = append(forms, n)
		}
	}
	if problem == nil || len(forms) == 0 {
		return page
	}
	fits := func(form *html.Node) (score int) {
		for n := range form.Descendants() {
			switch hidden := attribute(n, "type") == "hidden"; {
			case hidden && value != "" && attribute(n, "value") == value:
				score += 2
			case !hidden && field != "" && attribute(n, "name") == field:
				score++
			}
		}
		return score
	}
	form := slices.MaxFunc(forms, func(a, b *html.Node) int { return cmp.Compare(fits(a), fits(b)) })
	problem.Parent.RemoveChild(problem)
	form.Parent.InsertBefore(problem, form)
	at := problem
	for n := range form.Descendants() {
		// A checkbox has a valid value: what is refused was typed.
		if kind := attribute(n, "type"); field != "" && attribute(n, "name") == field && kind != "hidden" && kind != "checkbox" {
			at = n
			setAttribute(n, "aria-invalid", "true")
			setAttribute(n, "aria-describedby", strings.TrimSpace("problem "+attribute(n, "aria-describedby")))
			break
		}
	}
	if at == problem {
		setAttribute(at, "tabindex", "-1")
	}
	setAttribute(at, "autofocus", "")
	for n := range at.Ancestors() {
		if n.DataAtom == atom.Details {
			setAttribute(n, "open", "")
		}
	}
	var out bytes.Buffer
	if err := html.Render(&out, root); err != nil { // cannot happen
		return page
	}
	return out.Bytes()
}

// attribute returns the value of an element's attribute, or "" if there is none.
func attribute(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

func setAttribute(n *html.Node, key, value string) {
	n.Attr = slices.DeleteFunc(n.Attr, func(a html.Attribute) bool { return a.Key == key })
	n.Attr = append(n.Attr, html.Attribute{Key: key, Val: value})
}
