package site

import (
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// Every class in templates and scripts has a rule, and every icon has a symbol.
func TestClassesAndIcons(t *testing.T) {
	rules := map[string]bool{}
	css := ""
	for _, name := range must(fs.Glob(files, "static/*.css")) {
		css += regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(string(must(files.ReadFile(name))), "")
	}
	for _, m := range regexp.MustCompile(`\.([a-z][a-z-]*)`).FindAllStringSubmatch(css, -1) {
		rules[m[1]] = true
	}
	// Scripts find elements by these classes. They have no style.
	hooks := []string{"stack", "scripted", "scriptless", "outline"}
	icons := map[string]bool{}
	action := regexp.MustCompile(`\{\{[^}]*\}\}`)
	for _, name := range slices.Concat(must(fs.Glob(files, "templates/*.html")), must(fs.Glob(files, "static/*.js"))) {
		text := string(must(files.ReadFile(name)))
		if library(name) { // they use none of our classes
			continue
		}
		if strings.HasSuffix(name, "parts.html") {
			text = text[strings.Index(text, "*/}}"):]
		}
		for _, m := range regexp.MustCompile(`class="((?:\{\{[^}]*\}\}|[^"{])*)"|className = "([^"]*)"|classList\.\w+\("([^"]*)"`).FindAllStringSubmatch(text, -1) {
			for class := range strings.FieldsSeq(action.ReplaceAllString(m[1], " ") + " " + m[2] + " " + m[3]) {
				if !rules[class] && !slices.Contains(hooks, class) {
					t.Errorf("%s: no stylesheet has a rule for the class %q", name, class)
				}
			}
		}
		for _, m := range regexp.MustCompile(`icon "([a-z0-9-]+)"|"/[a-z]*" "[A-Z][a-z]+" "([a-z0-9-]+)"|\.Me\.Name "([a-z]+)"`).FindAllStringSubmatch(text, -1) {
			icons[m[1]+m[2]+m[3]] = true
		}
	}
	sprite := string(must(files.ReadFile("static/icons.svg")))
	for _, m := range regexp.MustCompile(`<symbol id="([^"]+)"`).FindAllStringSubmatch(sprite, -1) {
		delete(icons, m[1])
	}
	for name := range icons {
		t.Errorf("icons.svg has no symbol %q", name)
	}
	if size := len(must(files.ReadFile("static/app.css"))) + len(must(files.ReadFile("static/tokens.css"))); size > 60<<10 {
		t.Errorf("the stylesheets are %d bytes, want 60 KiB at most", size)
	}
}

// TestBundles checks that removing lines of comments changes nothing of the bundled scripts.
func TestBundles(t *testing.T) {
	for name, parts := range bundles {
		assert.That(t, !strings.Contains(string(assets()[assetPaths()[name]].body), "`"), name, "has a template literal")
		assert.That(t, len(parts) > 1, name)
	}
}

// library reports whether a static file is one that npm ships.
func library(name string) bool {
	return slices.Contains([]string{"marked.js", "purify.js", "temml.js", "highlight.js", "pdf.js", "pdf.worker.js"}, path.Base(name))
}

// TestTokens checks that each color and distance used by a stylesheet, script or page is
// defined in tokens.css, or set where it is used.
func TestTokens(t *testing.T) {
	known, used := map[string]bool{}, map[string]string{}
	for _, name := range slices.Concat(must(fs.Glob(files, "static/*.css")), must(fs.Glob(files, "static/*.js")), must(fs.Glob(files, "templates/*.html"))) {
		if library(name) {
			continue
		}
		text := string(must(files.ReadFile(name)))
		for _, m := range regexp.MustCompile(`(--[a-z][a-z0-9-]*):`).FindAllStringSubmatch(text, -1) {
			known[m[1]] = true
		}
		for _, m := range regexp.MustCompile(`(?:var\(|")(--[a-z][a-z0-9-]*)[),"]`).FindAllStringSubmatch(text, -1) {
			used[m[1]] = name
		}
	}
	assert.Require(t, len(used) >= 20, "found only", len(used))
	for token, name := range used {
		assert.That(t, known[token], name, "nothing sets", token)
	}
}

// The switch between light and dark only needs a cookie, and returns to its page.
func TestTheme(t *testing.T) {
	visitor := newTown(t, nil).browser()
	visitor.get("/signin").want(t, 200, `<html lang="en">`, `content="light dark"`)
	for _, theme := range []string{"dark", "light"} {
		if got := visitor.post("/theme", "theme", theme, "next", "/signin?next=%2Fusage"); got.status != http.StatusSeeOther || got.header.Get("Location") != "/signin?next=%2Fusage" {
			t.Errorf("%s: %d, to %s", theme, got.status, got.header.Get("Location"))
		}
		visitor.get("/signup").want(t, 200, `data-theme="`+theme+`"`, `content="`+theme+`"`)
	}
	if got := visitor.post("/theme", "theme", "dark", "next", "https://elsewhere.example/"); got.header.Get("Location") != "/" {
		t.Errorf("it leads to %s", got.header.Get("Location"))
	}
	visitor.post("/theme", "theme", "pink").want(t, 400, "not &#34;pink&#34;")
	visitor.post("/theme", "theme", "")
	visitor.get("/signin").want(t, 200, `<html lang="en">`)
}

func TestAgo(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for apart, want := range map[time.Duration]string{
		0: "just now", -59 * time.Second: "just now", 30 * time.Second: "in a moment", -3 * time.Minute: "3 min ago", 57 * time.Minute: "in 57 min",
		-3 * time.Hour: "3 h ago", -30 * time.Hour: "1 day ago", -7 * 24 * time.Hour: "7 days ago", 3 * 24 * time.Hour: "in 3 days", 7*24*time.Hour - time.Minute: "in 7 days", 30 * time.Hour: "in 1 day", 40 * time.Hour: "in 2 days",
		-20 * 24 * time.Hour: "2 Nov 12:00 UTC", 60 * 24 * time.Hour: "21 Jan 2027 12:00 UTC",
	} {
		assert.Equal(t, ago(now.Add(apart), now), want, apart)
	}
	assert.Equal(t, ago(time.Time{}, now), "never", "no time")
}

func TestDuration(t *testing.T) {
	for ms, want := range map[int64]string{
		0: "0 ms", 999: "999 ms", 1_000: "1.0 s", 1_584: "1.6 s", 60_000: "1 min", 3_420_000: "57 min", 3_600_000: "1 h", 11_520_000: "3 h 12 min", 604_800_000: "7 days",
	} {
		assert.Equal(t, duration(ms), want, ms, "ms")
	}
}
