package chatform

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// agentCalls are answers that are changed at random.
func seedAnswers(tb testing.TB) (forms []*template, answers [][]string) {
	all := templates(tb)
	for _, name := range sorted(all) {
		tpl := inspected(tb, all[name])
		user := Message{Role: "user", Content: "What does it do?"}
		var list []string
		for _, a := range writtenAnswers {
			if len(a.calls) > 1 && !tpl.form.Parallel {
				continue
			}
			m := Message{Role: "assistant", Content: a.text, Reasoning: a.reasoning, Calls: a.calls}
			text, _, err := tpl.render(&Conversation{Messages: []Message{user, m}, Tools: chatTools(agentTools)})
			if err != nil {
				tb.Fatal(err)
			}
			list = append(list, text[strings.LastIndex(text, user.Content)+len(user.Content):])
		}
		forms, answers = append(forms, tpl), append(answers, list)
	}
	return forms, answers
}

// change changes a text at random: it cuts, repeats and swaps pieces.
func change(rng *rand.Rand, s string, others []string) string {
	for range 1 + rng.IntN(3) {
		if s == "" {
			return s
		}
		i := rng.IntN(len(s))
		j := min(i+rng.IntN(30), len(s))
		switch rng.IntN(5) {
		case 0:
			s = s[:i] + s[j:]
		case 1:
			s = s[:j] + s[i:]
		case 2:
			other := others[rng.IntN(len(others))]
			s = s[:i] + other[rng.IntN(len(other)):]
		case 3:
			s = s[:j]
		case 4:
			s = s[:i] + []string{"\n", "<", "</think>", "{", "\"", "<think>", "é"}[rng.IntN(7)] + s[i:]
		}
	}
	return s
}

// checkAnswer fails if an answer read in pieces differs from one read at once.
func checkAnswer(tb testing.TB, f *Form, o ReaderOptions, answer, reason string, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	var whole result
	reader := f.NewReader(o)
	whole.add(reader.Write(answer))
	whole.add(reader.Close(reason))
	for _, most := range []int{1, 16} {
		var got result
		reader := f.NewReader(o)
		for rest := answer; rest != ""; {
			n := min(1+rng.IntN(most), len(rest))
			got.add(reader.Write(rest[:n]))
			rest = rest[n:]
			if reader.InCall() && reader.Trigger() < 0 {
				tb.Fatalf("the calls begin %d bytes after what was written", -reader.Trigger())
			}
		}
		got.add(reader.Close(reason))
		if fmt.Sprint(got) != fmt.Sprint(whole) {
			tb.Fatalf("prompt %q, %s: %q in pieces of at most %d:\n got %q\nwant %q", o.Prompt, reason, answer, most, got, whole)
		}
	}
	if written := len(whole.Text) + len(whole.Reasoning); written > len(answer)+len(o.Prompt) {
		tb.Fatalf("%q has more text than was written: %q", answer, whole)
	}
}

// TestChangedAnswers reads answers that no model writes.
func TestChangedAnswers(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	forms, answers := seedAnswers(t)
	rounds := 10
	if testing.Short() {
		rounds = 2
	}
	for i, tpl := range forms {
		for _, answer := range answers[i] {
			for range rounds {
				o := ReaderOptions{Tools: agentTools, Prompt: []string{"", tpl.form.ThinkBegin, "<tool_call>\n"}[rng.IntN(3)]}
				checkAnswer(t, tpl.form, o, change(rng, answer, answers[i]), []string{"stop", "length"}[rng.IntN(2)], rng.Uint64())
			}
		}
	}
}

// FuzzReader reads any text as an answer in the form of one of the templates.
func FuzzReader(f *testing.F) {
	forms, answers := seedAnswers(f)
	for i := range forms {
		for j, answer := range answers[i] {
			f.Add(uint8(i), uint64(j), answer)
		}
	}
	f.Fuzz(func(t *testing.T, form uint8, seed uint64, answer string) {
		tpl := forms[int(form)%len(forms)]
		reason := []string{"stop", "length"}[seed%2]
		o := ReaderOptions{Tools: agentTools, Prompt: []string{"", tpl.form.ThinkBegin}[seed/2%2]}
		checkAnswer(t, tpl.form, o, answer, reason, seed)
	})
}
