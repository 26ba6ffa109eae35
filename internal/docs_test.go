package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// text is what one file of the repository says to its readers: the comments of a Go
// file, its messages, the text of a page or a template.
type text struct {
	file     string // from the repository's root
	prose    string
	messages bool // the strings of a Go file that hold a space
}

// folder is the package or folder of the file, and "messages" for messages.
func (t text) folder() string {
	if t.messages {
		return path.Dir(t.file) + " messages"
	}
	return path.Dir(t.file)
}

// skipped are folders and files that hold nothing of ours, or data of tests.
var skipped = []string{".git", "node_modules", "testdata", "bin", "build", "dist", "lib", "LICENSES.md"}

// texts reads every Go file, page, template, query and script of the repository.
func texts(t *testing.T) []text {
	t.Helper()
	var out []text
	err := filepath.WalkDir("..", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if skip := slices.Contains(skipped, entry.Name()); entry.IsDir() {
			if skip {
				return fs.SkipDir
			}
			return nil
		} else if skip {
			return nil
		}
		file, err := filepath.Rel("..", name)
		if err != nil {
			return err
		}
		file = filepath.ToSlash(file)
		var prose string
		switch path.Ext(file) {
		case ".go":
			var messages string
			if prose, messages, err = parse(name); messages != "" {
				out = append(out, text{file, messages, true})
			}
		case ".md":
			prose, err = cut(name, "(?ms)^```.*?^```$", "(?m)^    .*$", "`[^`\n]*`")
		case ".html", ".tmpl":
			prose, err = cut(name, `(?s)\{\{.*?\}\}`, `(?s)<script.*?</script>`, `(?s)<[^>]*>`)
		case ".sql":
			prose, err = cut(name, `(?m)^[^-].*$`)
		case ".sh":
			prose, err = cut(name, `(?m)^[^#].*$`)
		default:
			return nil
		}
		out = append(out, text{file, prose, false})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// parse returns the comments and the messages of a Go file; nothing of a generated file,
// and no messages of a test.
func parse(name string) (comments, messages string, err error) {
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
	if err != nil || ast.IsGenerated(file) {
		return "", "", err
	}
	var c, m strings.Builder
	for _, group := range file.Comments {
		c.WriteString(group.Text() + "\n")
	}
	if strings.HasSuffix(name, "_test.go") {
		return c.String(), "", nil
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING && strings.Contains(l.Value, " ") {
			m.WriteString(l.Value + "\n")
		}
		return true
	})
	return c.String(), m.String(), nil
}

// cut returns a file's text without what the patterns match.
func cut(name string, patterns ...string) (string, error) {
	data, err := os.ReadFile(name)
	prose := string(data)
	for _, pattern := range patterns {
		prose = regexp.MustCompile(pattern).ReplaceAllString(prose, " ")
	}
	return prose, err
}

var (
	// citation is a rule of a page of docs, as comments and pages cite it.
	citation = regexp.MustCompile(`(?:docs/)?(spec/[\w-]+\.md|docs/[\w/-]+\.md)#([\w-]+)`)
	// link is a link of a page to another one, or to a place in one.
	link = regexp.MustCompile(`\]\(([\w./-]*)(?:#([\w-]+))?\)`)
	// outside is a citation of a page that is not in the repository.
	outside = regexp.MustCompile(`\b(?:decisions [0-9]|S[1-9](?:\.[0-9]+)?\b|trust(?:'s)? (?:[0-9]|fault)|trust page|wire [0-9]|faults? [0-9]|service document|service-api)`)

	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	anchor  = regexp.MustCompile(`<a id="([^"]+)">`)
)

// ids returns the ids of a page: its headings, and its anchors.
func ids(t *testing.T, page string) []string {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Errorf("cannot read a page that is cited: %v", err)
		return nil
	}
	var out []string
	for _, m := range heading.FindAllStringSubmatch(string(data), -1) {
		out = append(out, slug(m[1]))
	}
	for _, m := range anchor.FindAllStringSubmatch(string(data), -1) {
		if slices.Contains(out, m[1]) {
			t.Errorf("%s has the id %q twice", page, m[1])
		}
		out = append(out, m[1])
	}
	return out
}

// slug is a heading's id: its letters and digits in lower case, with hyphens for spaces.
func slug(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			return unicode.ToLower(r)
		default:
			return -1
		}
	}, heading)
}

// TestCitations checks that each citation of a page leads to an id of that page,
// and that no page outside the repository is cited.
func TestCitations(t *testing.T) {
	pages := map[string][]string{}
	lead := func(from, page, id string) {
		if _, read := pages[page]; !read {
			pages[page] = ids(t, page)
		}
		if id != "" && !slices.Contains(pages[page], id) {
			t.Errorf("%s cites %s#%s, which does not exist", from, strings.TrimPrefix(page, "../"), id)
		}
	}
	for _, text := range texts(t) {
		for _, m := range citation.FindAllStringSubmatch(text.prose, -1) {
			lead(text.file, "../docs/"+strings.TrimPrefix(m[1], "docs/"), m[2])
		}
		if path.Ext(text.file) == ".md" {
			for _, m := range link.FindAllStringSubmatch(text.prose, -1) {
				target := path.Join("..", path.Dir(text.file), m[1])
				if m[1] == "" {
					target = path.Join("..", text.file)
				}
				if path.Ext(target) == ".md" {
					lead(text.file, target, m[2])
				}
			}
		}
		if text.messages {
			continue
		}
		for _, old := range outside.FindAllString(text.prose, -1) {
			t.Errorf("%s cites %q, which is not in the repository: cite a rule of docs/spec", text.file, old)
		}
	}
}

// plain finds words for which docs/HACKING.md has a plainer one.
var plain = regexp.MustCompile(`(?i)\b(?:told|tells?|telling|whom|whoever|nobody|somebody|anew|mend(?:s|ed|er|ing)?|strangers?|ow(?:ed?|es|ing)|` +
	`stands?|stood|(?:came|comes?) of|firm|letters?|(?:un)?whole|the law|but for)\b`)

// meant are uses of those words in their plain sense.
var meant = regexp.MustCompile(`(?i)\b(?:stands? for|letters? (?:case|and digits|of (?:one script|several)|, digits)|letters, digits|letters or digits|` +
	`(?:upper|lower|capital)(?:-case)? letters?|letters?,? digits|owing to|tell me|whole numbers?)\b`)

// TestPlainWords counts the words of plain in the comments of each package, in its
// messages, and in each folder of pages and templates: at most one in 2,000 words.
func TestPlainWords(t *testing.T) {
	type count struct {
		words int
		found []string
	}
	counts := map[string]*count{}
	for _, text := range texts(t) {
		c := counts[text.folder()]
		if c == nil {
			c = new(count)
			counts[text.folder()] = c
		}
		c.words += len(strings.Fields(text.prose))
		for line := range strings.SplitSeq(meant.ReplaceAllString(text.prose, " "), "\n") {
			for _, word := range plain.FindAllString(line, -1) {
				c.found = append(c.found, text.file+": "+word+": "+strings.TrimSpace(line))
			}
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(counts)) {
		c := counts[folder]
		t.Logf("%-34s %6d words, %3d to replace: %.1f in 1,000", folder, c.words, len(c.found), 1000*float64(len(c.found))/float64(max(c.words, 1)))
		if 2000*len(c.found) <= c.words {
			continue
		}
		for _, found := range c.found {
			t.Errorf("write it in plainer words: %s", found)
		}
	}
}
