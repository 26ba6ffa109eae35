package chatform

import (
	"encoding/json/jsontext"
	"strings"
)

// readRecipients reads an answer whose parts begin with their recipient:
//
//	>>>all
//	text>>>NAME
//	{arguments}
//
// The prompt ends with the first >>>.
func (r *Reader) readRecipients(ReaderOptions) {
	const mark = ">>>"
	for r.peek(1) {
		r.skip(mark)
		start := r.at()
		name, known := "", false
		if len(r.names) > 0 && r.calls < maxCalls {
			r.trigger = start
			name, known = r.name("\n")
		}
		switch {
		case known:
			r.beginCall(name, "")
			r.recipientArguments()
			r.white()
			if r.peek(1) && !r.has(mark) {
				r.inCall = false
				r.until(EventText, []string{mark})
			}
		default:
			r.inCall = false
			if !r.skip("all\n") {
				r.back(start)
			}
			r.until(EventText, []string{mark})
		}
	}
}

// recipientArguments reads arguments: a JSON object, or, as some templates write it, a
// Python one.
func (r *Reader) recipientArguments() {
	if r.white(); !r.has("{") {
		r.arguments("{}")
		return
	}
	start := r.at()
	r.pos++
	r.white()
	quoted := r.has("'")
	r.back(start)
	if !quoted {
		r.value(r.arguments)
		return
	}
	var raw strings.Builder
	for depth := 0; ; {
		if r.has("'") {
			text, ok := r.pythonText()
			raw.WriteString(quote(text))
			if !ok {
				break
			}
			continue
		}
		if !r.peek(1) {
			break
		}
		c := r.rest()[0]
		r.pos++
		raw.WriteByte(c)
		if c == '{' || c == '[' {
			depth++
		} else if c == '}' || c == ']' {
			depth--
		}
		if depth == 0 {
			break
		}
	}
	text, ok := python(raw.String())
	if !ok || jsontext.Value(text).Kind() != '{' {
		text = raw.String()
	}
	r.arguments(text)
}

// pythonText reads a quoted Python string.
func (r *Reader) pythonText() (string, bool) {
	for n := 1; r.peek(n + 1); n++ {
		switch c := r.rest()[n]; c {
		case '\\':
			n++
		case r.rest()[0]:
			text, size := pythonString(string(r.rest()[:n+1]))
			r.pos += size
			return text, true
		}
	}
	r.pos = len(r.buf)
	return "", false
}
