package docsite_test

import (
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kith/kith/docs"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/docsite"
)

// pages returns every page of the documentation.
func pages(t *testing.T) []docsite.Page {
	t.Helper()
	var out []docsite.Page
	err := fs.WalkDir(docs.Files, ".", func(name string, _ fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(name, ".md"); ok {
			page, found := docsite.Find(name)
			assert.That(t, found, "docs", name, ".md is not served")
			out = append(out, page)
		}
		return err
	})
	assert.OK(t, err)
	return out
}

var (
	href = regexp.MustCompile(`(href|src)="([^"]*)"`)
	id   = regexp.MustCompile(`\bid="([^"]*)"`)
)

// TestLinks follows every link and picture of the rendered pages: to a page, and to a
// place that it has.
func TestLinks(t *testing.T) {
	ids := map[string][]string{}
	for _, page := range pages(t) {
		for _, m := range id.FindAllStringSubmatch(page.HTML, -1) {
			assert.That(t, !slices.Contains(ids[page.Path()], m[1]), page.Name, "has the id", m[1], "twice")
			ids[page.Path()] = append(ids[page.Path()], m[1])
		}
	}
	followed := 0
	for _, page := range pages(t) {
		for _, m := range href.FindAllStringSubmatch(page.HTML, -1) {
			to, place, hasPlace := strings.Cut(m[2], "#")
			isPicture := m[1] == "src"
			if _, found := docsite.Picture(strings.TrimPrefix(to, docsite.Root+"/")); found != isPicture {
				t.Errorf("%s: %s is not a picture that the hub serves", page.Name, m[0])
			} else if isPicture {
				followed++
				continue
			}
			if strings.Contains(to, ":") {
				continue // another site, or an address to write to
			}
			if followed++; to == "" {
				to = page.Path()
			}
			if ids[to] == nil {
				t.Errorf("%s links to %s, which is no page", page.Name, m[2])
			} else if hasPlace && !slices.Contains(ids[to], place) {
				t.Errorf("%s links to %s, which that page does not have", page.Name, m[2])
			}
		}
	}
	assert.That(t, followed >= 300, "the pages", followed, "links: the pattern finds few")
}

// TestEveryPageIsListed: docs/README.md links each page, and each once.
func TestEveryPageIsListed(t *testing.T) {
	listed := map[string]int{}
	for _, group := range docsite.Groups() {
		if group.Title == "" || len(group.Links) == 0 {
			t.Errorf("a list of docs/README.md has the title %q and %d links", group.Title, len(group.Links))
		}
		for _, link := range group.Links {
			listed[link.Path]++
		}
	}
	for _, page := range pages(t) {
		if n := listed[page.Path()]; page.Name != "README" && n != 1 {
			t.Errorf("docs/README.md links %s.md %d times: list it once, below the readers that it is for", page.Name, n)
		}
	}
}

func TestRendering(t *testing.T) {
	install, _ := docsite.Find("install")
	if install.Title != "Install, upgrade, uninstall" || install.Path() != "/docs/install" {
		t.Errorf("%q at %q", install.Title, install.Path())
	}
	for _, want := range []string{
		`<h1 id="install-upgrade-uninstall">Install, upgrade, uninstall</h1>`,
		`<h2 id="a-hub">A hub<a href="#a-hub" title="Link to this section" class="anchor">#</a></h2>`,
		`<figure class="code-block"><figcaption>sh</figcaption><pre tabindex="0" data-copy aria-label="these lines"><code>`,
		`<div class="scroll" tabindex="0"><table class="stack">`,
		`href="/docs/operate/backup#postgresql"`,
	} {
		assert.Contains(t, install.HTML, want, "docs/install.md has no")
	}
	file := regexp.MustCompile(`<a href="/docs[^"]*">(?:<code>)?[^<]*\.md<`)
	for _, page := range pages(t) {
		assert.Equal(t, file.FindString(page.HTML), "", page.Name, "has a link that is named after a file")
		if strings.Contains(page.HTML, "</th>\n<th></th>") || strings.Contains(page.HTML, "<th></th>\n</tr>") {
			t.Errorf("%s has a table with a column without a name", page.Name)
		}
		if strings.Contains(page.HTML, "<pre><code") {
			t.Errorf("%s has an indented block of code: write it between lines of ```", page.Name)
		}
		for _, unwanted := range []string{"<!--", "<script", "style=", "onclick"} {
			if strings.Contains(page.HTML, unwanted) {
				t.Errorf("%s holds %s, which the site's Content-Security-Policy or its readers have no use for", page.Name, unwanted)
			}
		}
	}
	commands, _ := docsite.Find("commands") // a word of code stays on one line, a long one may break
	for _, want := range []string{"<code><span>--json</span></code>", "<code><span>kith</span> <span>models</span></code>", "<span>claude|codex|opencode</span> <span>[--model</span> <span>M]</span>"} {
		assert.Contains(t, commands.HTML, want, "docs/commands.md has no")
	}
	if !strings.Contains(install.HTML, "<code>kith-slim_VERSION_linux_amd64.tar.gz</code>") {
		t.Error("docs/install.md: a long name cannot break")
	}
	drawing, _ := docsite.Find("ARCHITECTURE")
	if strings.Contains(drawing.HTML, "data-copy") || !strings.Contains(drawing.HTML, `<pre tabindex="0" aria-label="these lines"><code>client ──`) {
		t.Error("docs/ARCHITECTURE.md: a drawing has a button that copies it")
	}
	first, _ := docsite.Find("README")
	if first.Path() != docsite.Root || !strings.Contains(first.HTML, `href="https://github.com/kith/kith/blob/main/CHANGELOG.md"`) {
		t.Errorf("%s: %s", first.Path(), first.HTML)
	}
}

func TestSearch(t *testing.T) {
	hits := docsite.Search("Purge debian")
	if len(hits) == 0 || hits[0].Path != "/docs/install#debian-ubuntu" || hits[0].Section != "Debian, Ubuntu" {
		t.Errorf("%+v", hits)
	}
	if hits = docsite.Search("uninstall"); len(hits) == 0 || path.Base(hits[0].Path) != "install#install-upgrade-uninstall" {
		t.Errorf("a title does not come first: %+v", hits)
	}
	for _, query := range []string{"", "  ", "nothing-holds-this-word"} {
		if hits := docsite.Search(query); len(hits) > 0 {
			t.Errorf("%q: %+v", query, hits)
		}
	}
	assert.Equal(t, len(docsite.Search("the")), 40, "hits")

	hits = docsite.Search("outside_sharing_hours")
	assert.That(t, hits[0].Group == "Members" && strings.HasPrefix(hits[0].Path, "/docs/errors#"), "the first is of", hits[0].Group, hits[0].Path)
	assert.That(t, len(hits[0].Excerpt) >= 3 && hits[0].Excerpt[1] == "outside_sharing_hours" && len(strings.Join(hits[0].Excerpt, "")) < 400, "the excerpt", hits[0].Excerpt)
	if hits = docsite.Search("pause"); hits[0].Group != "Members" { // a decision has it in a title
		t.Errorf("a page for developers comes first: %+v", hits[0])
	}
	hits = docsite.Search(".part elsewhere")
	assert.Contains(t, strings.Join(hits[0].Excerpt, ""), "in .part. To send a copy elsewhere:", "a sentence with code in it")
	for _, query := range []string{"kith pause", "models", "journal", "share", "spec"} {
		for _, hit := range docsite.Search(query) {
			for _, mark := range []string{"|---", "| ---", "**", "](#"} {
				assert.Lacks(t, strings.Join(hit.Excerpt, ""), mark, query, "in", hit.Path)
			}
		}
	}
	for _, query := range []string{".*(", "a]", "—", "\xff"} {
		docsite.Search(query) // is no pattern
	}
}

// TestExamplesNameTheHub checks that examples have the address of the hub that shows them, and
// that other addresses stay.
func TestExamplesNameTheHub(t *testing.T) {
	page := docsite.Page{HTML: `curl https://hub.example/v1 "https://hub.example" https://hub.example.org https://hub.examples https://hub.example`}
	assert.Equal(t, page.On("https://a.test:8443/$1"), `curl https://a.test:8443/$1/v1 "https://a.test:8443/$1" https://hub.example.org https://hub.examples https://a.test:8443/$1`)
	clients, _ := docsite.Find("clients")
	if strings.Contains(clients.On("https://a.test"), "hub.example") || !strings.Contains(clients.On("https://a.test"), "https://a.test/v1") {
		t.Error("docs/clients.md: an example names another hub")
	}
}

// TestListsAreFolded checks that lists of pages for developers are folded beside a page for members,
// and not beside their own.
func TestListsAreFolded(t *testing.T) {
	clients, _ := docsite.Find("clients")
	hacking, _ := docsite.Find("HACKING")
	folded := func(page docsite.Page) (titles []string) {
		for _, group := range docsite.Groups() {
			if group.Folded(page) {
				titles = append(titles, group.Title)
			}
		}
		return titles
	}
	assert.Same(t, folded(clients), []string{"Contract", "Development", "Decisions"})
	assert.Same(t, folded(hacking), []string{"Contract", "Decisions"})
}

// A PNG has its size on the page, so that nothing moves when it arrives.
func TestPicturesHaveTheirSize(t *testing.T) {
	page, found := docsite.Find("site")
	assert.That(t, found, "the page is not found")
	assert.Contains(t, page.HTML, `<img src="/docs/pictures/home.png"`)
	for _, tag := range regexp.MustCompile(`<img [^>]*>`).FindAllString(page.HTML, -1) {
		assert.That(t, regexp.MustCompile(` width="1200" height="\d+" loading="lazy"`).MatchString(tag), tag, "has no size")
	}
}
