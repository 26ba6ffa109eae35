package fault

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write docs/errors.md")

func TestErrorsPage(t *testing.T) {
	titles := map[string]Code{}
	for code := range codes {
		if code.When() == "" {
			t.Errorf("%s has no description", code)
		}
		if title := code.Title(); title == string(code) || len(title) > 30 || titles[title] != "" {
			t.Errorf("the title of %s, %q, is missing, too long or that of %s, too", code, title, titles[title])
		}
		titles[code.Title()] = code
	}
	if got := Code("an_old_one").Title(); got != "an_old_one" {
		t.Errorf("the title of an unknown code is %q", got)
	}
	path := filepath.Join("..", "..", "docs", "errors.md")
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(Page()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(page) != Page() {
		t.Error("docs/errors.md is not what the table says: run go test ./internal/fault -update")
	}
}
