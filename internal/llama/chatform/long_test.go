package chatform

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// TestLongAnswers reads answers of which the reader does not keep all: a word in them is
// long, so that calls are none, or their arguments are more than it keeps.
func TestLongAnswers(t *testing.T) {
	long := strings.Repeat("words and more words ", 300)
	words := []string{"What", "src/main.go", "package a", "path", "command", "read_file", "Let me"}
	forms, answers := seedAnswers(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for i, tpl := range forms {
		count := len(answers[i])
		if testing.Short() {
			count = 2
		}
		for range count {
			answer := answers[i][rng.IntN(len(answers[i]))]
			word := words[rng.IntN(len(words))]
			o := ReaderOptions{Tools: agentTools, Prompt: []string{"", tpl.form.ThinkBegin}[rng.IntN(2)]}
			answer = strings.Replace(answer, word, []string{word + long, long + word}[rng.IntN(2)], 1)
			checkAnswer(t, tpl.form, o, answer, []string{"stop", "length"}[rng.IntN(2)], rng.Uint64())
		}
	}
}

// The name of a call may follow arguments of any length, and be that of no tool.
func TestLongArguments(t *testing.T) {
	f := defaultForm()
	for name, calls := range map[string]int{"nothing": 0, "read_file": 1} {
		call := `<tool_call>
{"arguments": {"path": "` + strings.Repeat("a", 9000) + `"}, "name": "` + name + `"}
</tool_call>`
		for _, answer := range []string{call, `<tool_call>{"name": "run", "arguments": {}}</tool_call>` + call} {
			want := calls
			if answer != call {
				want++
			}
			if got := readPieces(t, &f, ReaderOptions{Tools: agentTools}, answer); len(got.Calls) != want || calls == 0 && !strings.Contains(got.Text, call) {
				t.Errorf("%s: %d calls and %d bytes of text", name, len(got.Calls), len(got.Text))
			}
		}
	}
}
