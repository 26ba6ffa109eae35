package cli

import (
	"crypto/rand"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"charm.land/lipgloss/v2"
)

// screen is an output of the program that may be a terminal. It removes the controls of
// the text that it writes: most of it is of servers, machines, models and files, and a
// terminal obeys what it finds there. The colours of the program itself stay: ours marks
// them.
type screen struct {
	raw io.Writer // for what is no text, and for programs that know what they write
}

// Write implements io.Writer for complete texts: what is cut within a character is shown
// as U+FFFD.
func (s screen) Write(text []byte) (int, error) {
	clean := plain(string(text))
	var err error
	if strings.Contains(clean, "\x1b") {
		_, err = lipgloss.Fprint(s.raw, clean) // without styles, unless it is a terminal
	} else {
		_, err = io.WriteString(s.raw, clean)
	}
	if err != nil {
		return 0, err
	}
	return len(text), nil
}

// mark precedes each control that is this program's own. Other texts cannot have it: it
// differs in each process.
var mark = "\x00" + rand.Text()

// ours marks the controls in a text of this program's own.
func ours(text string) string {
	var b strings.Builder
	for _, r := range text {
		if isControl(r) {
			b.WriteString(mark)
		}
		b.WriteRune(r)
	}
	return b.String()
}

// plain returns the text without the controls that are not marked, and without the marks.
func plain(text string) string {
	parts := strings.Split(text, mark)
	for i, part := range parts {
		own := 0
		if i > 0 {
			_, own = utf8.DecodeRuneInString(part)
		}
		parts[i] = part[:own] + strings.Map(func(r rune) rune {
			if isControl(r) {
				return -1
			}
			return r
		}, part[own:])
	}
	return strings.Join(parts, "")
}

// isControl reports whether a terminal may obey the character instead of showing it: the
// controls of ASCII and of Latin-1 but line feed and tab, and those of text in two
// directions.
func isControl(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
}

// style returns a function that renders a text without controls in the style.
func style(s lipgloss.Style) func(string) string {
	return func(text string) string { return ours(s.Render(plain(text))) }
}

// The styles of the text for people.
var (
	strong = style(lipgloss.NewStyle().Bold(true))
	faint  = style(lipgloss.NewStyle().Faint(true))
	accent = style(lipgloss.NewStyle().Foreground(lipgloss.Cyan))
)
