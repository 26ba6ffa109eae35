package llama

import "strings"

const (
	thinkBegins = "<think>"
	thinkEnds   = "</think>"
)

// thinking reports whether the template is of a model that thinks before it
// answers, between the two marks.
func (t *chatTemplate) thinking() bool {
	return strings.Contains(t.source, thinkBegins) || strings.Contains(t.source, thinkEnds) || strings.Contains(t.source, "enable_thinking")
}

// thoughts tells what a model thinks from what it says, piece by piece as they
// come. The zero value tells nothing apart.
type thoughts struct {
	state thoughtState
	held  string // may be the beginning of a mark
}

type thoughtState uint8

const (
	saying    thoughtState = iota // all of it is the answer
	opening                       // nothing came yet: a mark may
	pondering                     // until the mark that ends it
	turning                       // the line breaks behind that mark
)

// thoughtsAfter is the state that the prompt of a thinking model leaves it in:
// some templates write the first mark themselves.
func thoughtsAfter(prompt string) thoughts {
	if strings.HasSuffix(strings.TrimRight(prompt, " \n"), thinkBegins) {
		return thoughts{state: pondering}
	}
	return thoughts{state: opening}
}

// tell is what a piece of text adds to the thoughts and to the answer; last
// says that no other follows.
func (t *thoughts) tell(text string, last bool) (thought, said string) {
	text, t.held = t.held+text, ""
	for {
		switch t.state {
		case opening:
			trimmed := strings.TrimLeft(text, " \r\n")
			switch {
			case strings.HasPrefix(trimmed, thinkBegins):
				t.state, text = pondering, strings.TrimPrefix(trimmed[len(thinkBegins):], "\n")
				continue
			case strings.HasPrefix(thinkBegins, trimmed) && !last:
				t.held = text
				return thought, said
			}
			t.state = saying
		case pondering:
			before, after, over := strings.Cut(text, thinkEnds)
			if over {
				thought += strings.TrimRight(before, "\n")
				t.state, text = turning, after
				continue
			}
			if !last {
				// Line breaks before the mark are the mark's.
				t.held = text[len(strings.TrimRight(text[:len(text)-beginningOf(text, thinkEnds)], "\n")):]
			}
			return thought + strings.TrimSuffix(text, t.held), said
		case turning:
			text = strings.TrimLeft(text, "\r\n")
			if text == "" {
				return thought, said
			}
			t.state = saying
		default:
			return thought, said + text
		}
	}
}

// beginningOf is the length of the end of text that a mark may begin with.
func beginningOf(text, mark string) int {
	for n := min(len(text), len(mark)-1); n > 0; n-- {
		if strings.HasSuffix(text, mark[:n]) {
			return n
		}
	}
	return 0
}
