// Package docsite turns the documentation into a site: it renders the pages of package
// docs as HTML, lists them in the order of docs/README.md and searches them.
package docsite

import (
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

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
	text      string // in lower case
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

// Folded reports whether the list is collapsed next to a page. The list of decisions is
// long, so it is expanded only next to its own pages.
func (g Group) Folded(page Page) bool {
	return g.Title == decisionsTitle && !strings.HasPrefix(page.Name, "decisions/")
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
}

const mostHits = 40

// Search returns the sections that contain all words of the query. Sections with the
// words in their titles come first.
func Search(query string) []Hit {
	words := strings.Fields(strings.ToLower(query))
	if len(words) == 0 {
		return nil
	}
	var inTitle, inText []Hit
	for _, name := range load().order() {
		page := load().pages[name]
		for _, section := range page.Sections {
			hit := Hit{Path: page.Path() + "#" + section.ID, Page: page.Title, Section: section.Title}
			title := strings.ToLower(page.Title + " " + section.Title)
			switch {
			case holdsAll(title, words):
				inTitle = append(inTitle, hit)
			case holdsAll(title+" "+section.text, words):
				inText = append(inText, hit)
			}
		}
	}
	hits := append(inTitle, inText...)
	return hits[:min(len(hits), mostHits)]
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

func holdsAll(text string, words []string) bool {
	return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
}
