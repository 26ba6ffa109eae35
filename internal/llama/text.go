package llama

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// holder turns the pieces a model writes into text that may be sent. It holds
// back what could still become a stop string, so that none is ever half sent,
// and a rune whose last bytes are not there yet. The zero holder has no stops.
type holder struct {
	stops   []string
	held    []byte
	sent    int    // bytes of the answer that were sent
	written int    // bytes of the answer in all
	stopped string // the stop string that ended it
}

// write takes the next piece and returns the text that is now safe to send.
// stopped is true once a stop string was met: the text ends before it, and
// nothing comes after.
func (h *holder) write(piece []byte) (text string, stopped bool) {
	if h.stopped != "" {
		return "", true
	}
	h.held = append(h.held, piece...)
	h.written += len(piece)
	if end, stop := h.firstStop(); end >= 0 {
		text = strings.ToValidUTF8(string(h.held[:end]), "\uFFFD")
		h.held, h.stopped, h.sent = nil, stop, h.sent+end
		return text, true
	}
	safe := len(h.held) - h.maybeStop()
	safe = wholeRunes(h.held[:safe])
	text = strings.ToValidUTF8(string(h.held[:safe]), "\uFFFD")
	h.held = append(h.held[:0], h.held[safe:]...)
	h.sent += safe
	return text, false
}

// flush returns what is held when the model has ended: no stop string can come
// of it any more.
func (h *holder) flush() string {
	text := strings.ToValidUTF8(string(h.held), "\uFFFD")
	h.held, h.sent = nil, h.written
	return text
}

// firstStop is the stop string that begins earliest in held, and where, or -1.
func (h *holder) firstStop() (first int, met string) {
	first = -1
	for _, stop := range h.stops {
		if at := bytes.Index(h.held, []byte(stop)); at >= 0 && (first < 0 || at < first) {
			first, met = at, stop
		}
	}
	return first, met
}

// maybeStop is the length of the longest end of held that begins a stop string.
func (h *holder) maybeStop() int {
	longest := 0
	for _, stop := range h.stops {
		for n := min(len(stop)-1, len(h.held)); n > longest; n-- {
			if bytes.HasSuffix(h.held, []byte(stop[:n])) {
				longest = n
				break
			}
		}
	}
	return longest
}

// wholeRunes is the length of b without a rune that has only begun at its end.
func wholeRunes(b []byte) int {
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
