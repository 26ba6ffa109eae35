package fault

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/kith/kith/internal/assert"
)

var update = flag.Bool("update", false, "write docs/errors.md")

func TestErrorsPage(t *testing.T) {
	titles := map[string]Code{}
	for code := range codes {
		assert.That(t, code.When() != "", code, "has no description")
		if title := code.Title(); title == string(code) || len(title) > 30 || titles[title] != "" {
			t.Errorf("the title of %s, %q, is missing, too long or that of %s, too", code, title, titles[title])
		}
		titles[code.Title()] = code
	}
	assert.Equal(t, Code("an_old_one").Title(), "an_old_one", "the title of an unknown code")
	path := filepath.Join("..", "..", "docs", "errors.md")
	if *update {
		assert.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		assert.OK(t, os.WriteFile(path, []byte(Page()), 0o644))
	}
	page := assert.Value(os.ReadFile(path))(t)
	if string(page) != Page() {
		t.Error("docs/errors.md is not what the table says: run go test ./internal/fault -update")
	}
}
