package site

import (
	"strings"
	"testing"

	"github.com/kith/kith"
	"github.com/kith/kith/internal/assert"
)

// TestDocumentation checks that visitors and members can read the pages, their pictures
// and search results, and that nothing else is served below /docs.
func TestDocumentation(t *testing.T) {
	tn := newTown(t, nil)
	b := tn.browser()
	b.get("/docs").want(t, 200, `<h1 id="documentation">Documentation</h1>`)
	page := b.get("/docs/install").want(t, 200, "<title>Install, upgrade, uninstall · kith</title>", `<a href="/docs/install" aria-current="page">`, "Sign in", `<details id="pages"><summary>All pages`)
	assert.Equal(t, strings.Count(page.body, `href="/docs/start/pull"`), 1, "the list of pages is there")
	if csp := page.header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'") {
		t.Errorf("Content-Security-Policy %q", csp)
	}
	if !strings.Contains(page.body, "<details><summary>Decisions</summary>") || strings.Contains(b.get("/docs/decisions/0005-machines-that-refuse").body, "<details><summary>Decisions</summary>") {
		t.Error("the list of decisions is folded beside a decision alone")
	}
	b.get("/docs/operate/database").want(t, 200, `id="upgrades">Upgrades<a`)
	b.get("/docs?q=purge+debian").want(t, 200, `<a href="/docs/install#debian-ubuntu">`)
	b.get("/docs?q=%3Cscript%3E"+strings.Repeat("x", 300)).want(t, 200, "No results for", "&lt;script&gt;")
	if picture := b.get("/docs/pictures/usage.png"); picture.status != 200 || picture.header.Get("Content-Type") != "image/png" || !strings.HasPrefix(picture.body, "\x89PNG") {
		t.Errorf("a picture: %d %q", picture.status, picture.header)
	}
	if picture := b.get("/docs/pictures/routing.svg"); picture.status != 200 || picture.header.Get("Content-Type") != "image/svg+xml" {
		t.Errorf("a drawing: %d %q", picture.status, picture.header)
	}
	if to := b.get("/docs/operate/upgrade.md").want(t, 303).header.Get("Location"); to != "/docs/operate/upgrade" {
		t.Errorf("the file name leads to %s", to)
	}
	if script := b.get("/install.sh").want(t, 200); script.body != string(kith.InstallScript) || !strings.HasPrefix(script.body, "#!/bin/sh\n") {
		t.Error("the install script differs from install.sh")
	}
	b.get("/").want(t, 200, "curl -fsSL "+tn.web.URL+"/install.sh | sh", "kith login --hub "+tn.web.URL)
	for _, path := range []string{"/docs/nothing", "/docs/README", "/docs/pictures/none.png", "/docs/embed.go", "/docs/../docs/install"} {
		b.get(path).want(t, 404)
	}
}
