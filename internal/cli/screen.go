package cli

import (
	"crypto/rand"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"charm.land/lipgloss/v2"
)

// screen is an output that may be a terminal. It removes control characters from the
// text, because most of it comes from servers, machines, models and files, and a terminal
// would execute them. The program's own colors remain; they are marked by ours.
type screen struct {
	raw io.Writer // for output that is not text, and for programs that handle this themselves
}

// Write implements io.Writer for complete texts. A character that is cut off is shown as
// U+FFFD.
func (s screen) Write(text []byte) (int, error) {
	clean := plain(string(text))
	var err error
	if strings.Contains(clean, "\x1b") {
		_, err = lipgloss.Fprint(s.raw, clean) // without styles unless it is a terminal
	} else {
		_, err = io.WriteString(s.raw, clean)
	}
	if err != nil {
		return 0, err
	}
	return len(text), nil
}

// mark precedes each control sequence of this program. Other texts cannot contain it,
// because it is random.
var mark = "\x00" + rand.Text()

// ours marks the control sequences in the program's own text.
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

// plain returns the text without unmarked control characters and without marks.
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

// isControl reports whether a terminal may execute the character instead of showing it:
// the controls of ASCII and Latin-1 except line feed and tab, and those for bidirectional
// text.
func isControl(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
}

// style returns a function that renders a text in the style, without control characters.
func style(s lipgloss.Style) func(string) string {
	return func(text string) string { return ours(s.Render(plain(text))) }
}

// The styles of text for people.
var (
	strong = style(lipgloss.NewStyle().Bold(true))
	faint  = style(lipgloss.NewStyle().Faint(true))
	accent = style(lipgloss.NewStyle().Foreground(lipgloss.Cyan))
	good   = style(lipgloss.NewStyle().Foreground(lipgloss.Green))
	warn   = style(lipgloss.NewStyle().Foreground(lipgloss.Yellow))
	bad    = style(lipgloss.NewStyle().Foreground(lipgloss.Red))
)
