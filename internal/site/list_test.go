package site

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// thing is a row of the list that these tests cut.
type thing struct {
	name string
	size int
	tone string
}

var things = listRules[thing]{
	texts: func(t thing) []string { return []string{t.name, thingState(t).text} },
	state: thingState,
	by: map[string]func(a, b thing) int{
		"name": func(a, b thing) int { return compareNames(a.name, b.name) },
		"size": func(a, b thing) int { return cmp.Compare(a.size, b.size) },
	},
}

func thingState(t thing) words {
	return words{map[string]string{"good": "ready", "warn": "busy", "bad": "offline"}[t.tone], t.tone}
}

// names returns the names of the rows that a query gets, how many there are on all pages,
// and the states.
func (q listQuery) names(rows []thing) string {
	page, found, states := things.cut(rows, q)
	var all []string
	for _, t := range page {
		all = append(all, t.name)
	}
	for _, s := range states {
		all = append(all, fmt.Sprintf("%s=%d", s.State, s.Rows))
	}
	return fmt.Sprintf("%d: %s", found, strings.Join(all, " "))
}

// TestListCut checks the search, the states and the order of a list.
func TestListCut(t *testing.T) {
	rows := []thing{{"qwen3:32b", 2, "good"}, {"Qwen3:8b", 1, "warn"}, {"llama3", 2, "good"}, {"alpha", 3, "bad"}}
	for address, want := range map[string]string{
		"":                           "4: qwen3:32b Qwen3:8b llama3 alpha ready=2 busy=1 offline=1",
		"q=qwen+32b":                 "1: qwen3:32b ready=1",
		"q=++32B++QWEN":              "1: qwen3:32b ready=1",
		"q=qwen+ready":               "1: qwen3:32b ready=1",
		"q=qwen+70b":                 "0: ",
		"q=qwen&state=busy":          "1: Qwen3:8b ready=1 busy=1", // the numbers are of what the search finds
		"state=gone":                 "0: ready=2 busy=1 offline=1",
		"sort=name":                  "4: alpha llama3 qwen3:32b Qwen3:8b ready=2 busy=1 offline=1",
		"sort=-name":                 "4: Qwen3:8b qwen3:32b llama3 alpha ready=2 busy=1 offline=1",
		"sort=size":                  "4: Qwen3:8b qwen3:32b llama3 alpha ready=2 busy=1 offline=1", // equal ones as they were
		"sort=-size":                 "4: alpha qwen3:32b llama3 Qwen3:8b ready=2 busy=1 offline=1",
		"sort=colour&page=x":         "4: qwen3:32b Qwen3:8b llama3 alpha ready=2 busy=1 offline=1",
		"page=7":                     "4: qwen3:32b Qwen3:8b llama3 alpha ready=2 busy=1 offline=1", // the last page
		"q=%00%ff":                   "0: ",
		"page=-1&state=ready&q=3":    "2: qwen3:32b llama3 ready=2 busy=1",
		"page=99999999999999999999":  "4: qwen3:32b Qwen3:8b llama3 alpha ready=2 busy=1 offline=1",
		"page=9223372036854775807":   "4: qwen3:32b Qwen3:8b llama3 alpha ready=2 busy=1 offline=1",
		"b-q=qwen&b-sort=name&q=32b": "1: qwen3:32b ready=1", // of another list
	} {
		asked, err := url.ParseQuery(address)
		check(t, err)
		assert.Equal(t, readList(asked, "").names(rows), want, address)
	}
	assert.Equal(t, readList(url.Values{"b-q": {"32b"}}, "b-").names(rows), "1: qwen3:32b ready=1")
	assert.Equal(t, (listQuery{Page: 1}).names(nil), "0: ")
}

// TestListPages checks that the pages of a list have each row once, in the order asked for,
// and that their links lead from page to page and keep what is asked.
func TestListPages(t *testing.T) {
	var rows []thing
	for i := range 2*pageSize + 7 {
		rows = append(rows, thing{fmt.Sprintf("thing-%03d", i*37%(2*pageSize+7)), i, "good"})
	}
	at := "/things?q=thing&sort=name&state=ready"
	var seen, shown []string
	for at != "" && len(shown) < 9 {
		address, err := url.Parse(at)
		check(t, err)
		l := list{Path: "/things", Query: readList(address.Query(), "")}
		page, found, states := things.cut(rows, l.Query)
		l.Found, l.States = found, states
		for _, row := range page {
			seen = append(seen, row.name)
		}
		shown = append(shown, fmt.Sprintf("%d-%d of %d, after %s", l.First(), l.Last(), l.Found, l.Previous()))
		at = l.Next()
	}
	assert.Same(t, shown, []string{
		"1-50 of 107, after ", "51-100 of 107, after /things?q=thing&sort=name&state=ready",
		"101-107 of 107, after /things?page=2&q=thing&sort=name&state=ready",
	})
	assert.Equal(t, len(slices.Compact(seen)), len(rows))
	assert.That(t, slices.IsSorted(seen), seen)
}

// TestListLinks checks where the heads and the states of a list lead.
func TestListLinks(t *testing.T) {
	l := list{
		Path: "/things", Prefix: "b-", Also: url.Values{"group": {"lab"}}, Query: listQuery{Text: "a b", State: "busy", Sort: "-size", Page: 3},
		Columns: []column{{Head: "Name", Name: "name"}, {Head: "Size", Name: "size", Most: true}, {Head: "Colour", Class: "n"}},
		States:  []stateCount{{"ready", "good", 4}}, Found: 0,
	}
	assert.Same(t, l.Heads(), []listHead{
		{"Name", "", "/things?b-q=a+b&b-sort=name&b-state=busy&group=lab", ""},
		{"Size", "", "/things?b-q=a+b&b-sort=size&b-state=busy&group=lab", "descending"},
		{"Colour", "n", "", ""},
	})
	assert.Same(t, l.Chips(), []chip{
		{"All", "", "/things?b-q=a+b&b-sort=-size&group=lab", 4, false},
		{"ready", "good", "/things?b-q=a+b&b-sort=-size&b-state=ready&group=lab", 4, false},
		{"busy", "", "/things?b-q=a+b&b-sort=-size&b-state=busy&group=lab", 0, true},
	})
	assert.Same(t, l.Hidden(), []hiddenField{{"group", "lab"}, {"b-state", "busy"}, {"b-sort", "-size"}})
	assert.Equal(t, fmt.Sprint(l.First(), l.Last(), l.Previous(), l.Next()), "0 0")
	l.Query.Sort = ""
	assert.Equal(t, l.Heads()[1].Href, "/things?b-q=a+b&b-sort=-size&b-state=busy&group=lab") // the most comes first
	assert.Equal(t, (list{Path: "/things", Query: listQuery{Page: 1}}).address(listQuery{Page: 1}), "/things")
}
