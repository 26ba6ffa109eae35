package llama

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// stopFilter converts the pieces of an answer to text that may be sent. It holds back a
// possible start of a stop string and incomplete runes.
type stopFilter struct {
	stops   []string
	held    []byte
	sent    int    // bytes of the answer that were returned
	written int    // bytes of the answer
	stopped string // the stop string that ended it
}

// write adds a piece and returns the text that may be sent now. stopped reports that a
// stop string was found. The text then ends before it, and nothing follows.
func (f *stopFilter) write(piece []byte) (text string, stopped bool) {
	if f.stopped != "" {
		return "", true
	}
	f.held = append(f.held, piece...)
	f.written += len(piece)
	if end, stop := f.firstStop(); end >= 0 {
		text = strings.ToValidUTF8(string(f.held[:end]), "\uFFFD")
		f.held, f.stopped, f.sent = nil, stop, f.sent+end
		return text, true
	}
	safe := len(f.held) - f.partialStop()
	safe = completeRunes(f.held[:safe])
	text = strings.ToValidUTF8(string(f.held[:safe]), "\uFFFD")
	f.held = append(f.held[:0], f.held[safe:]...)
	f.sent += safe
	return text, false
}

// flush returns the held text at the end of the answer.
func (f *stopFilter) flush() string {
	text := strings.ToValidUTF8(string(f.held), "\uFFFD")
	f.held, f.sent = nil, f.written
	return text
}

// firstStop returns the first stop string in held and its index, or -1.
func (f *stopFilter) firstStop() (first int, met string) {
	first = -1
	for _, stop := range f.stops {
		if at := bytes.Index(f.held, []byte(stop)); at >= 0 && (first < 0 || at < first) {
			first, met = at, stop
		}
	}
	return first, met
}

// partialStop returns the length of the longest suffix of held that is a prefix of
// a stop string.
func (f *stopFilter) partialStop() int {
	longest, held := 0, string(f.held)
	for _, stop := range f.stops {
		longest = max(longest, partialMark(held, stop))
	}
	return longest
}

// completeRunes returns the length of b without an incomplete rune at the end.
func completeRunes(b []byte) int {
	for back := 1; back < utf8.UTFMax && back <= len(b); back++ {
		at := len(b) - back
		if !utf8.RuneStart(b[at]) {
			continue
		}
		if !utf8.FullRune(b[at:]) {
			return at
		}
		break
	}
	return len(b)
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
