// Package docsite turns the documentation into a site: it renders the pages of package
// docs as HTML, lists them in the order of docs/README.md and searches them.
package docsite

import (
	"cmp"
	"html"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/kith/kith/docs"
)

// Root is the path of the documentation on a hub. The page for docs/install.md is at Root
// + "/install" and the one for docs/README.md at Root.
const Root = "/docs"

// pictures is the folder with the pictures, relative to docs.
const pictures = "pictures"

// Page is one page of the documentation.
type Page struct {
	Name     string // the path relative to docs, without ".md"; "README" is the first page
	Title    string
	HTML     string // the content, including the title
	Sections []Section

	links []Link // links to other pages in their order on the page, with the headings above them
}

// Path returns the path of the page on a hub.
func (p Page) Path() string {
	if p.Name == "README" {
		return Root
	}
	return Root + "/" + p.Name
}

// Section is a heading of a page and the text up to the next heading.
type Section struct {
	ID, Title string
	Level     int
	text      string
}

// Contents returns the page's headings below its title.
func (p Page) Contents() (all []Section) {
	for _, s := range p.Sections {
		if s.Level == 2 {
			all = append(all, s)
		}
	}
	return all
}

// anyHub matches the address of a hub in the examples, which is no real one, and what follows.
var anyHub = regexp.MustCompile(`https://hub\.example([^.\w]|$)`)

// On returns the content with the address of a hub in the examples.
func (p Page) On(hub string) string {
	return anyHub.ReplaceAllString(p.HTML, strings.ReplaceAll(html.EscapeString(hub), "$", "$$")+"$1")
}

// Link is a link to a page.
type Link struct {
	Path, Title string

	below string // the heading above the link
}

// decisionsTitle is the title of the list of decisions, which docs/README.md does not
// include.
const decisionsTitle = "Decisions"

// Group is a list of pages under a title.
type Group struct {
	Title string
	Links []Link
}

// forDevelopers are the lists of pages for those who change kith or build on its protocols.
var forDevelopers = []string{"Contract", "Development", decisionsTitle}

// Folded reports whether the list is collapsed next to a page: those for developers are,
// except next to their own pages.
func (g Group) Folded(page Page) bool {
	return slices.Contains(forDevelopers, g.Title) && !slices.ContainsFunc(g.Links, func(l Link) bool { return l.Path == page.Path() })
}

type site struct {
	pages  map[string]Page
	groups []Group
}

// load renders all pages when it is first called.
var load = sync.OnceValue(func() site {
	s := site{pages: map[string]Page{}}
	titles := map[string]string{}
	read := func(file string) error {
		text, err := docs.Files.ReadFile(file)
		if err != nil {
			return err
		}
		page, err := render(strings.TrimSuffix(file, ".md"), text, titles)
		s.pages[page.Name] = page
		return err
	}
	err := read("README.md") // first, because it has the titles
	for _, link := range s.pages["README"].links {
		titles[link.Path] = link.Title
	}
	if err == nil {
		err = fs.WalkDir(docs.Files, ".", func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || path.Ext(name) != ".md" {
				return err
			}
			return read(name)
		})
	}
	if err != nil {
		panic(err) // the pages are compiled in, so that any test finds this
	}
	s.groups = s.list()
	return s
})

// list returns the pages as the first page lists them below its headings. The decisions
// follow, of which it lists the index only.
func (s site) list() []Group {
	var out []Group
	for _, link := range s.pages["README"].links {
		if len(out) == 0 || out[len(out)-1].Title != link.below {
			out = append(out, Group{Title: link.below})
		}
		last := &out[len(out)-1]
		last.Links = append(last.Links, link)
	}
	decisions := Group{Title: decisionsTitle}
	for _, p := range s.pages {
		if strings.HasPrefix(p.Name, "decisions/") && p.Name != "decisions/README" { // which is listed
			decisions.Links = append(decisions.Links, Link{Path: p.Path(), Title: p.Title})
		}
	}
	slices.SortFunc(decisions.Links, func(a, b Link) int { return strings.Compare(a.Path, b.Path) })
	return append(out, decisions)
}

// Find returns the page with the given name.
func Find(name string) (Page, bool) {
	page, found := load().pages[name]
	return page, found
}

// Groups returns the lists of pages in display order.
func Groups() []Group { return load().groups }

// Picture returns a picture by its path relative to docs.
func Picture(name string) ([]byte, bool) {
	if path.Dir(name) != pictures {
		return nil, false
	}
	data, err := docs.Files.ReadFile(name)
	return data, err == nil
}

// Hit is a section that matches a search.
type Hit struct {
	Path, Page, Section string
	Group               string // the title of the page's list
	// Excerpt is the text around the first of the words, in parts: every second one is one of
	// the words.
	Excerpt []string

	score int
}

// mostHits is the number of results, and aroundWord how many bytes of text an excerpt has
// before and after the first word.
const (
	mostHits   = 40
	aroundWord = 90
)

// Search returns the sections that contain all words of the query, best first: words in a
// title count more than words in the text, complete words more than parts, and pages for
// developers less than others.
func Search(query string) (hits []Hit) {
	words := strings.Fields(strings.ToLower(query))
	if len(words) == 0 {
		return nil
	}
	for _, name := range load().order() {
		page := load().pages[name]
		group := load().groupOf(page)
		for _, section := range page.Sections {
			score := scoreOf(page, section, words)
			if score == 0 {
				continue
			}
			if slices.Contains(forDevelopers, group) {
				score /= 6
			}
			hits = append(hits, Hit{
				Path: page.Path() + "#" + section.ID, Page: page.Title, Section: section.Title, Group: group,
				Excerpt: excerpt(section.text, words), score: score,
			})
		}
	}
	slices.SortStableFunc(hits, func(a, b Hit) int { return cmp.Compare(b.score, a.score) })
	return hits[:min(len(hits), mostHits)]
}

// scoreOf returns how well a section matches the words, or 0 if one of them is in neither its
// text nor its titles.
func scoreOf(page Page, section Section, words []string) (sum int) {
	pageTitle, title, text := strings.ToLower(page.Title), strings.ToLower(section.Title), strings.ToLower(section.text)
	for _, word := range words {
		score := 60*rank(title, word) + 20*rank(pageTitle, word) + 5*rank(text, word) + min(strings.Count(text, word), 10)
		if score == 0 {
			return 0
		}
		sum += score
	}
	return sum
}

// rank returns 0 if the text does not contain the word, 1 if as a part of another, 2 as its
// beginning, and 3 as a word.
func rank(text, word string) (best int) {
	isLetter := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
	for at := 0; ; {
		i := strings.Index(text[at:], word)
		if i < 0 {
			return best
		}
		before, _ := utf8.DecodeLastRuneInString(text[:at+i])
		at += i + len(word)
		after, _ := utf8.DecodeRuneInString(text[at:])
		switch {
		case isLetter(before):
			best = max(best, 1)
		case isLetter(after):
			best = max(best, 2)
		default:
			return 3
		}
	}
}

// excerpt returns the text around the first of the words, or the beginning if there is none.
func excerpt(text string, words []string) []string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = regexp.QuoteMeta(word)
	}
	pattern := regexp.MustCompile("(?i)" + strings.Join(quoted, "|"))
	text = strings.Join(strings.Fields(text), " ")
	from, to := 0, min(len(text), 2*aroundWord)
	if at := pattern.FindStringIndex(text); at != nil {
		from, to = max(0, at[0]-aroundWord), min(len(text), at[1]+aroundWord)
	}
	before, after := "", ""
	if from > 0 { // begin and end with a word
		before = "… "
		from += strings.IndexByte(text[from:], ' ') + 1
	}
	if to < len(text) {
		after = " …"
		to = max(from, strings.LastIndexByte(text[:to], ' '))
	}
	text = before + text[from:to] + after
	var parts []string
	end := 0
	for _, at := range pattern.FindAllStringIndex(text, -1) {
		parts = append(parts, text[end:at[0]], text[at[0]:at[1]])
		end = at[1]
	}
	return append(parts, text[end:])
}

// groupOf returns the title of the list that has the page, or "".
func (s site) groupOf(page Page) string {
	for _, group := range s.groups {
		if slices.ContainsFunc(group.Links, func(l Link) bool { return l.Path == page.Path() }) {
			return group.Title
		}
	}
	return ""
}

// order returns the names of all pages in the order of the lists, with the first page
// last.
func (s site) order() []string {
	var out []string
	for _, group := range s.groups {
		for _, link := range group.Links {
			name := strings.TrimPrefix(link.Path, Root+"/")
			if _, found := s.pages[name]; found && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return append(out, "README")
}
