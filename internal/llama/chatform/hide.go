package chatform

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

// hider replaces the texts of control tokens in a conversation by private-use
// characters, so that they are still known after rendering.
type hider struct {
	texts    []string // longest first: one may begin with another
	replacer [len(planes)]*strings.Replacer
}

// planes are the first characters of the two supplementary private-use areas. A
// conversation that has characters of one of them uses the other.
var planes = [...]rune{0xF0000, 0x100000}

const planeSize = 0xFFFE

func newHider(texts []string) *hider {
	h := &hider{texts: slices.DeleteFunc(slices.Clone(texts), func(s string) bool { return s == "" })}
	slices.SortFunc(h.texts, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	h.texts = slices.Compact(h.texts)
	h.texts = h.texts[:min(len(h.texts), planeSize)]
	for p, first := range planes {
		pairs := make([]string, 0, 2*len(h.texts))
		for i, s := range h.texts {
			pairs = append(pairs, s, string(first+rune(i)))
		}
		h.replacer[p] = strings.NewReplacer(pairs...)
	}
	return h
}

// hidden is the use of a hider for one conversation.
type hidden struct {
	*hider
	plane int
}

// begin returns the hider for a conversation.
func (h *hider) begin(c *Conversation) *hidden {
	has := func(s string) bool {
		return strings.ContainsFunc(s, func(r rune) bool { return r >= planes[0] && r < planes[1] })
	}
	for i := range c.Messages {
		m := &c.Messages[i]
		if has(m.Content) || has(m.Reasoning) || slices.ContainsFunc(m.Calls, func(c Call) bool { return has(c.Arguments) }) {
			return &hidden{h, 1}
		}
	}
	return &hidden{h, 0}
}

// hide returns s with the texts of control tokens replaced. Characters that would be
// mistaken for a replacement become U+FFFD: no text has characters of both private-use
// areas.
func (h *hidden) hide(s string) string {
	if len(h.texts) == 0 {
		return s
	}
	if strings.ContainsFunc(s, h.replaces) {
		s = strings.Map(func(r rune) rune {
			if h.replaces(r) {
				return utf8.RuneError
			}
			return r
		}, s)
	}
	return h.replacer[h.plane].Replace(s)
}

func (h *hidden) replaces(r rune) bool {
	return r >= planes[h.plane] && r < planes[h.plane]+rune(len(h.texts))
}

// Piece is a part of a prompt. The text of a Literal piece is no control token, even if it
// reads like one.
type Piece struct {
	Text    string `json:"text"`
	Literal bool   `json:"literal,omitempty"`
}

// pieces returns a prompt in pieces, with what was hidden.
func (h *hidden) pieces(prompt string) []Piece {
	var list []Piece
	for len(prompt) > 0 {
		i := strings.IndexFunc(prompt, h.replaces)
		if i < 0 {
			i = len(prompt)
		}
		if i > 0 {
			list, prompt = append(list, Piece{Text: prompt[:i]}), prompt[i:]
			continue
		}
		r, size := utf8.DecodeRuneInString(prompt)
		list, prompt = append(list, Piece{h.texts[r-planes[h.plane]], true}), prompt[size:]
	}
	return list
}
