package llama

import "strings"

const (
	openMark  = "<think>"
	closeMark = "</think>"
)

// thinking reports whether the model thinks before it answers, between two marks.
func (t *chatTemplate) thinking() bool {
	return strings.Contains(t.source, openMark) || strings.Contains(t.source, closeMark) || strings.Contains(t.source, "enable_thinking")
}

// reasoningSplitter separates the reasoning from the answer in a stream of text. For the
// zero value all text is the answer.
type reasoningSplitter struct {
	state splitterState
	held  string // a possible start of a mark
}

type splitterState uint8

const (
	answering splitterState = iota // the rest is the answer
	opening                        // at the start, which may contain a mark
	reasoning                      // until the closing mark
	afterMark                      // the line breaks after the closing mark
)

// splitterAfter returns the splitter for an answer to the prompt: some templates end with
// the opening mark.
func splitterAfter(prompt string) reasoningSplitter {
	if strings.HasSuffix(strings.TrimRight(prompt, " \n"), openMark) {
		return reasoningSplitter{state: reasoning}
	}
	return reasoningSplitter{state: opening}
}

// split returns the reasoning and the answer in text; last reports that it is the end of
// the stream.
func (s *reasoningSplitter) split(text string, last bool) (thoughts, answer string) {
	text, s.held = s.held+text, ""
	for {
		switch s.state {
		case opening:
			trimmed := strings.TrimLeft(text, " \r\n")
			switch {
			case strings.HasPrefix(trimmed, openMark):
				s.state, text = reasoning, strings.TrimPrefix(trimmed[len(openMark):], "\n")
				continue
			case strings.HasPrefix(openMark, trimmed) && !last:
				s.held = text
				return thoughts, answer
			}
			s.state = answering
		case reasoning:
			before, after, over := strings.Cut(text, closeMark)
			if over {
				thoughts += strings.TrimRight(before, "\n")
				s.state, text = afterMark, after
				continue
			}
			if !last {
				// Line breaks before the mark belong to it.
				s.held = text[len(strings.TrimRight(text[:len(text)-partialMark(text, closeMark)], "\n")):]
			}
			return thoughts + strings.TrimSuffix(text, s.held), answer
		case afterMark:
			text = strings.TrimLeft(text, "\r\n")
			if text == "" {
				return thoughts, answer
			}
			s.state = answering
		default:
			return thoughts, answer + text
		}
	}
}

// partialMark returns the length of the longest suffix of text that is a prefix of
// mark.
func partialMark(text, mark string) int {
	for n := min(len(text), len(mark)-1); n > 0; n-- {
		if strings.HasSuffix(text, mark[:n]) {
			return n
		}
	}
	return 0
}
