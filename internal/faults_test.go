package internal_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// faults is how many rows docs/faults.md has.
const faults = 58

var (
	testName = regexp.MustCompile("`(\\w+)\\.(Test\\w+)`")
	script   = regexp.MustCompile("`(e2e/testdata/[\\w-]+\\.txtar)`")
	function = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	numbered = regexp.MustCompile(`^TestFault(\d\d)`)
)

// TestScriptsNameTests: the tests that a script selects by name exist. go test reports
// success if it finds none.
func TestScriptsNameTests(t *testing.T) {
	named := map[string]bool{}
	for _, pattern := range []string{"*/*_test.go", "../e2e/*_test.go", "../e2e/*/*_test.go"} {
		tests, err := filepath.Glob(pattern)
		if err != nil || len(tests) == 0 {
			t.Fatal(tests, err)
		}
		for _, file := range tests {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range function.FindAllStringSubmatch(string(text), -1) {
				named[name[1]] = true
			}
		}
	}
	files, err := filepath.Glob("../scripts/*.sh")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range append(files, "../Makefile") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`(?:^|[^.\w])(Test[A-Z]\w*)`).FindAllStringSubmatch(string(text), -1) {
			if !named[name[1]] {
				t.Errorf("%s names %s, which does not exist", file, name[1])
			}
		}
	}
}

// TestFaultsHaveTheirTests: every row of docs/faults.md is there, every test it
// names exists, and every test that has a row's number is in that row.
func TestFaultsHaveTheirTests(t *testing.T) {
	text, err := os.ReadFile("../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	exists := testsByPackage(t)
	rows := map[int]string{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) < 2 {
			continue
		}
		_, number, _ := strings.Cut(strings.TrimSpace(cells[1]), "</a>")
		row, err := strconv.Atoi(number)
		if err != nil {
			continue
		}
		if len(cells) != 8 || rows[row] != "" || row != len(rows)+1 {
			t.Errorf("row %d has %d cells, stands twice or out of order", row, len(cells)-2)
			continue
		}
		rows[row] = line
		proof := strings.TrimSpace(cells[5])
		if proof == "cannot occur on one hub" || strings.HasPrefix(proof, "open: ") {
			continue
		}
		if !testName.MatchString(proof) && !script.MatchString(proof) {
			t.Errorf("row %d names no test", row)
		}
	}
	if len(rows) != faults {
		t.Errorf("%d rows, not %d", len(rows), faults)
	}
	for _, name := range testName.FindAllStringSubmatch(string(text), -1) {
		if !exists[name[1]+"."+name[2]] {
			t.Errorf("docs/faults.md names %s, which does not exist", name[0])
		}
	}
	for _, name := range script.FindAllStringSubmatch(string(text), -1) {
		if _, err := os.Stat(filepath.Join("..", name[1])); err != nil {
			t.Errorf("docs/faults.md names a script that is not there: %v", err)
		}
	}
	for name := range exists {
		_, test, _ := strings.Cut(name, ".")
		if number := numbered.FindStringSubmatch(test); number != nil {
			row, _ := strconv.Atoi(number[1])
			if !strings.Contains(rows[row], "`"+name+"`") {
				t.Errorf("%s is not in row %d of docs/faults.md", name, row)
			}
		}
	}
}

// testsByPackage is every test function below internal/ and of e2e/cluster, as
// package.Test.
func testsByPackage(t *testing.T) map[string]bool {
	t.Helper()
	files, err1 := filepath.Glob("*/*_test.go")
	cluster, err2 := filepath.Glob("../e2e/cluster/*_test.go")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	files = append(files, cluster...)
	out := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range function.FindAllStringSubmatch(string(text), -1) {
			out[filepath.Base(filepath.Dir(file))+"."+name[1]] = true
		}
	}
	return out
}
