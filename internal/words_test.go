package internal_test

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// foreign are phrases that are correct English but rare in it, with the occurrences in
// 1,000 words of comments that are allowed. net/http has a third of that or less
// (docs/HACKING.md#write).
var foreign = []struct {
	name   string
	most   float64
	phrase *regexp.Regexp
}{
	{"a thing that says", 0.4, regexp.MustCompile(`(?i)\bsays?\b`)},
	{"a preposition before which", 0.7, regexp.MustCompile(`(?i)\b(of|in|by|to|for|from|with|at|on) which\b`)},
	{"where for if", 0.4, regexp.MustCompile(`(?i)\bwhere (it|the|that|a|one|they)\b`)},
	{"a rare adverb", 0.1, regexp.MustCompile(`(?i)\b(any more|no more|lately|by turns|meanwhile|of its own)\b`)},
}

// TestWords counts foreign phrases in the comments of each package, apart from its tests.
// One occurrence is always allowed, so that small packages do not fail because of it.
func TestWords(t *testing.T) {
	comments := map[string]*strings.Builder{}
	for _, text := range texts(t) {
		if text.messages || path.Ext(text.file) != ".go" || strings.HasSuffix(text.file, "_test.go") {
			continue
		}
		c := comments[text.folder()]
		if c == nil {
			c = new(strings.Builder)
			comments[text.folder()] = c
		}
		c.WriteString(strings.Join(strings.Fields(text.prose), " ") + "\n")
	}
	for _, folder := range slices.Sorted(maps.Keys(comments)) {
		prose := comments[folder].String()
		words := float64(len(strings.Fields(prose)))
		var tooMany []string
		for _, f := range foreign {
			found := f.phrase.FindAllStringIndex(prose, -1)
			if len(found) < 2 || 1000*float64(len(found)) <= f.most*words {
				continue
			}
			for _, at := range found {
				around := prose[max(0, at[0]-60):min(len(prose), at[1]+60)]
				tooMany = append(tooMany, f.name+": … "+strings.ToValidUTF8(around, "")+" …")
			}
		}
		for _, problem := range tooMany {
			t.Errorf("%s: %s: write it in plain words", folder, problem)
		}
	}
}
