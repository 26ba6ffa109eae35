package chatform

import (
	"encoding/json/jsontext"
	"strings"
)

// python returns a Python literal as JSON.
func python(s string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(s); {
		switch c := s[i]; {
		case c == '\'' || c == '"':
			text, n := pythonString(s[i:])
			b.WriteString(quote(text))
			i += n
		case c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' && c != 'e':
			j := i
			for j < len(s) && isWord(s[j]) {
				j++
			}
			word := s[i:j]
			if w, ok := map[string]string{"True": "true", "False": "false", "None": "null"}[word]; ok {
				word = w
			}
			b.WriteString(word)
			i = j
		case c == '(':
			b.WriteByte('[')
			i++
		case c == ')':
			b.WriteByte(']')
			i++
		default:
			b.WriteByte(c)
			i++
		}
	}
	v := jsontext.Value(b.String())
	return b.String(), len(v) > 0 && v.IsValid()
}

// pythonString returns the text of the Python string that s begins with, and its length.
func pythonString(s string) (text string, n int) {
	var b strings.Builder
	for n = 1; n < len(s) && s[n] != s[0]; n++ {
		if s[n] != '\\' || n+1 == len(s) {
			b.WriteByte(s[n])
			continue
		}
		n++
		switch s[n] {
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case 'r':
			b.WriteByte('\r')
		case '\\', '\'', '"':
			b.WriteByte(s[n])
		default:
			b.WriteString(s[n-1 : n+1])
		}
	}
	return b.String(), min(n+1, len(s))
}
