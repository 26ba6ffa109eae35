package site

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/api"
)

// pageSize is the number of rows on one page of a list.
const pageSize = 50

// listQuery is what the address of a page asks of a list on it.
type listQuery struct {
	Text  string // each of its words is in a row, in any order and case; empty: any row
	State string // of the rows; empty: any
	Sort  string // name of a column, after a "-" if its rows are in reverse; empty: the list's own order
	Page  int    // from 1
}

// readList reads the query of a list, whose parameters begin with prefix.
func readList(asked url.Values, prefix string) listQuery {
	page, _ := strconv.Atoi(asked.Get(prefix + "page"))
	return listQuery{
		Text: searched(asked.Get(prefix + "q")), State: asked.Get(prefix + "state"),
		Sort: asked.Get(prefix + "sort"), Page: max(1, page),
	}
}

// sortedBy returns the column to sort by, and whether its rows are in reverse.
func (q listQuery) sortedBy() (column string, reverse bool) {
	column, reverse = strings.CutPrefix(q.Sort, "-")
	return column, reverse
}

// searched returns the text to search for. It replaces what no database can store, as in
// the stored names.
func searched(text string) string {
	return strings.TrimSpace(strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", "\ufffd"))
}

// column is a column of a list.
type column struct {
	Head  string
	Class string // of the head
	Name  string // in an address; empty: rows cannot be sorted by it
	Most  bool   // the first press sorts in reverse: the newest or the most comes first
}

// stateCount is how many rows of a list are in a state. The tone is that of the state.
type stateCount struct {
	State, Tone string
	Rows        int
}

// listRules are what can be asked of a list whose rows are in memory.
type listRules[Row any] struct {
	texts func(Row) []string            // that a search looks at
	state func(Row) words               // of a row
	by    map[string]func(a, b Row) int // orders by the name of the column
}

// cut returns the rows of the page that is asked for, the number of rows on all pages, and
// how many rows that the search finds are in each state. Rows that are equal in the order
// asked for remain in the order of all.
func (l listRules[Row]) cut(all []Row, q listQuery) (page []Row, found int, states []stateCount) {
	counts := map[string]stateCount{}
	var rows []Row
	for _, row := range all {
		if !api.Finds(q.Text, l.texts(row)...) {
			continue
		}
		state := l.state(row)
		counts[state.text] = stateCount{state.text, state.tone, counts[state.text].Rows + 1}
		if q.State == "" || q.State == state.text {
			rows = append(rows, row)
		}
	}
	column, reverse := q.sortedBy()
	if by := l.by[column]; by != nil && reverse {
		slices.SortStableFunc(rows, func(a, b Row) int { return by(b, a) })
	} else if by != nil {
		slices.SortStableFunc(rows, by)
	}
	first := min(q.skip(len(rows)), len(rows))
	return rows[first:min(first+pageSize, len(rows))], len(rows), slices.SortedFunc(maps.Values(counts),
		func(a, b stateCount) int { return compareStates(words{a.State, a.Tone}, words{b.State, b.Tone}) })
}

// skip returns the number of rows before the page that is asked for, or before the last page
// of found rows if there are fewer.
func (q listQuery) skip(found int) int {
	return (min(q.Page, max(1, (found+pageSize-1)/pageSize)) - 1) * pageSize
}

// tones are the tones of states, in the order of a list: what works comes first.
var tones = []string{"good", "warn", "", "bad"}

// compareStates compares two states: what works comes first.
func compareStates(a, b words) int {
	return cmp.Or(slices.Index(tones, a.tone)-slices.Index(tones, b.tone), strings.Compare(a.text, b.text))
}

// compareNames compares two names as people order them.
func compareNames(a, b string) int {
	return cmp.Or(strings.Compare(strings.ToLower(a), strings.ToLower(b)), strings.Compare(a, b))
}

// list is what a page shows of a list besides its rows. Its parts are the templates
// list-find, list-head and list-foot.
type list struct {
	ID, Path  string     // of the list's element, and of the page
	Label     string     // of its table
	One, Many string     // what a row is: "machine", "machines"
	Find      string     // the placeholder of the search
	Prefix    string     // of the parameters in the address
	Also      url.Values // further parameters of the page
	Query     listQuery
	Columns   []column
	Found     int  // rows on all pages
	Brief     bool // plain while it is short
	States    []stateCount
}

// address returns the address of the list with another query.
func (l list) address(q listQuery) string {
	values := maps.Clone(l.Also)
	if values == nil {
		values = url.Values{}
	}
	for name, value := range map[string]string{"q": q.Text, "state": q.State, "sort": q.Sort, "page": strconv.Itoa(q.Page)} {
		if value != "" && (name != "page" || q.Page > 1) {
			values.Set(l.Prefix+name, value)
		}
	}
	if len(values) == 0 {
		return l.Path
	}
	return l.Path + "?" + values.Encode()
}

// All returns the address of all rows in the list's own order.
func (l list) All() string { return l.address(listQuery{}) }

// Asked reports whether the address leaves out rows.
func (l list) Asked() bool { return l.Query.Text != "" || l.Query.State != "" }

// Hidden returns the fields that keep the state and the order while a search is sent.
func (l list) Hidden() (all []hiddenField) {
	for name, values := range l.Also {
		all = append(all, hiddenField{name, values[0]})
	}
	for _, f := range []hiddenField{{"state", l.Query.State}, {"sort", l.Query.Sort}} {
		if f.Value != "" {
			all = append(all, hiddenField{l.Prefix + f.Name, f.Value})
		}
	}
	return all
}

// listHead is the head of a column. Href sorts by it; empty: nothing does.
type listHead struct{ Text, Class, Href, Sorted string }

// Heads returns the heads of the columns.
func (l list) Heads() []listHead {
	var heads []listHead
	by, reverse := l.Query.sortedBy()
	for _, c := range l.Columns {
		head := listHead{Text: c.Head, Class: c.Class}
		if c.Name != "" {
			next := c.Most
			if c.Name == by {
				next = !reverse
				head.Sorted = map[bool]string{false: "ascending", true: "descending"}[reverse]
			}
			q := l.Query
			q.Page, q.Sort = 1, map[bool]string{true: "-"}[next]+c.Name
			head.Href = l.address(q)
		}
		heads = append(heads, head)
	}
	return heads
}

// chip is a link to the rows in a state.
type chip struct {
	Text, Tone, Href string
	Rows             int
	Here             bool
}

// mostPlain is the number of rows up to which a brief list has neither a search nor chips.
const mostPlain = 10

// Plain reports whether all rows are there to see at a glance.
func (l list) Plain() bool { return l.Brief && l.Found <= mostPlain && !l.Asked() }

// Chips returns none if the list is plain, else a link to all rows and one for each state, also for the one that is asked
// for if no row is in it.
func (l list) Chips() []chip {
	if l.Plain() {
		return nil
	}
	states, all := slices.Clone(l.States), 0
	for _, s := range states {
		all += s.Rows
	}
	asked := l.Query.State
	if asked != "" && !slices.ContainsFunc(states, func(s stateCount) bool { return s.State == asked }) {
		states = append(states, stateCount{State: asked})
	}
	q := l.Query
	q.Page, q.State = 1, ""
	chips := []chip{{"All", "", l.address(q), all, asked == ""}}
	for _, s := range states {
		q.State = s.State
		chips = append(chips, chip{s.State, s.Tone, l.address(q), s.Rows, s.State == asked})
	}
	return chips
}

// PageRows returns the number of rows on one page.
func (l list) PageRows() int { return pageSize }

// First and Last return the numbers of the rows at the ends of the page, from 1.
func (l list) First() int { return min(l.Query.skip(l.Found)+1, l.Found) }
func (l list) Last() int  { return min(l.Query.skip(l.Found)+pageSize, l.Found) }

// Previous and Next return the addresses of the pages beside this one, or "".
func (l list) Previous() string {
	if l.First() <= 1 {
		return ""
	}
	return l.page(-1)
}
func (l list) Next() string {
	if l.Last() >= l.Found {
		return ""
	}
	return l.page(1)
}

func (l list) page(step int) string {
	q := l.Query
	q.Page = l.Query.skip(l.Found)/pageSize + 1 + step
	return l.address(q)
}
