package internal_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// proofs are the requirements that the table of Open Responses has at least.
const proofs = 23

var (
	checker = regexp.MustCompile("`((?:Test|check)\\w+)(?:/([\\w-]+))?`(?:, `/([\\w-]+)`)?")
	declare = regexp.MustCompile(`(?m)^func (\w+)\(`)
)

// TestRequirementsHaveTheirTests: every requirement of Open Responses in
// docs/dialects.md names what holds it, and all that is named exists.
func TestRequirementsHaveTheirTests(t *testing.T) {
	text, err := os.ReadFile("../docs/dialects.md")
	if err != nil {
		t.Fatal(err)
	}
	exists := map[string]bool{}
	for _, pattern := range []string{"dialect/*_test.go", "gateway/*_test.go", "../e2e/clients/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, file := range files {
			code, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range declare.FindAllStringSubmatch(string(code), -1) {
				exists[name[1]] = true
			}
		}
	}
	_, table, found := strings.Cut(string(text), "\n### Open Responses\n")
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if !found || len(cells) != 5 || strings.Contains(line, "|---|") || strings.HasPrefix(line, "| Requirement |") {
			continue
		}
		rows++
		names := checker.FindAllStringSubmatch(cells[3], -1)
		if len(names) == 0 {
			t.Errorf("nothing holds %s", cells[1])
		}
		for _, name := range names {
			if !exists[name[1]] {
				t.Errorf("%s names %s, which does not exist", cells[1], name[1])
			}
			for _, golden := range name[2:] {
				if _, err := os.Stat("dialect/testdata/responses/" + golden + ".txtar"); golden != "" && err != nil {
					t.Errorf("%s names a story that is not there: %v", cells[1], err)
				}
			}
		}
		for _, name := range script.FindAllStringSubmatch(cells[3], -1) {
			if _, err := os.Stat(filepath.Join("..", name[1])); err != nil {
				t.Errorf("%s names a script that is not there: %v", cells[1], err)
			}
		}
	}
	if rows < proofs {
		t.Errorf("%d requirements", rows)
	}
}
