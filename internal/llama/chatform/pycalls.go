package chatform

import (
	"encoding/json/jsontext"
	"strings"
)

// readPython reads calls of the form
//
//	<|tool_call_start|>[NAME(key='text', other=1), NAME()]<|tool_call_end|>
func (r *Reader) readPython() {
	f := r.form
	for r.calls < maxCalls {
		// What is between the calls varies: commas, line breaks, or the marks.
		start := r.at()
		for skipped := true; skipped; {
			skipped = false
			r.white()
			for _, s := range []string{f.CallBegin, f.CallEnd, "[", "]", ","} {
				if !skipped && s != "" {
					skipped, _ = r.literal(s)
				}
			}
		}
		name, ok := r.name("(")
		if !ok {
			r.back(start)
			break
		}
		r.beginCall(name, "")
		if !r.pythonArguments(r.tools[name]) {
			return
		}
	}
	r.literal("]")
	r.literal(f.CallEnd)
}

// pythonArguments reports the arguments of a call up to its parenthesis.
func (r *Reader) pythonArguments(s schema) bool {
	for n := 0; ; n++ {
		if r.white(); r.skip(")") {
			if n == 0 {
				r.arguments("{")
			}
			r.arguments("}")
			return true
		}
		if n > 0 {
			r.skip(",")
			r.white()
		}
		key := r.word()
		if r.white(); key == "" || !r.skip("=") {
			return false
		}
		raw, ok := r.pythonValue()
		if !ok {
			return false
		}
		lead := ","
		if n == 0 {
			lead = "{"
		}
		value := raw
		if v := jsontext.Value(raw); !v.IsValid() {
			value = convert(raw, s.property(key).types()&^typeString)
		}
		r.arguments(lead + quote(key) + ":" + value)
	}
}

// pythonValue reads a value: a list or a dict, or what is before a comma or a parenthesis.
// It is returned as JSON.
func (r *Reader) pythonValue() (string, bool) {
	r.white()
	var b strings.Builder
	for depth := 0; r.peek(1); {
		c := r.rest()[0]
		switch {
		case c == '\'' || c == '"':
			text, ok := r.pythonQuoted(c, depth)
			if !ok {
				return "", false
			}
			b.WriteString(quote(text))
			continue
		case depth == 0 && (c == ',' || c == ')'):
			return pythonJSON(b.String()), true
		case strings.IndexByte("[{(", c) >= 0:
			depth++
		case strings.IndexByte("]})", c) >= 0:
			depth--
		}
		b.WriteByte(c)
		r.pos++
		if depth == 0 && strings.IndexByte("]})", c) >= 0 {
			return pythonJSON(b.String()), true
		}
	}
	return "", false
}

// pythonJSON returns a Python value as JSON, or as it is if it is none.
func pythonJSON(s string) string {
	s = strings.Trim(s, white)
	if v, ok := python(s); ok {
		return v
	}
	return s
}

// pythonQuoted reads a string in the quotes c. Templates write strings without escapes, so
// a quote only ends it if what follows does.
func (r *Reader) pythonQuoted(c byte, depth int) (string, bool) {
	for n := 1; r.peek(n + 1); n++ {
		switch r.rest()[n] {
		case '\\':
			n++
		case c:
			if !r.pythonEnds(n+1, depth) {
				continue
			}
			text, _ := pythonString("\x00" + string(r.rest()[1:n]) + "\x00")
			r.pos += n + 1
			return text, true
		}
	}
	return "", false
}

// pythonEnds reports whether a string may end n bytes ahead: within a list or a dict before
// a comma, a colon or a bracket; else before the next argument or the end of the call.
func (r *Reader) pythonEnds(n, depth int) bool {
	start := r.at()
	defer r.back(start)
	r.pos += n
	r.white()
	switch {
	case !r.peek(1):
		return true
	case depth > 0:
		return strings.IndexByte(",:)]}", r.rest()[0]) >= 0
	case r.skip(","):
		r.white()
		name := r.word()
		r.white()
		return name != "" && r.has("=")
	case r.skip(")"):
		r.white()
		return !r.peek(1) || strings.IndexByte(",]<`", r.rest()[0]) >= 0 || isLetter(r.rest()[0])
	}
	return false
}

// writePython writes calls.
func writePython(calls []Call) string {
	var list []string
	for _, c := range calls {
		var arguments []string
		dec := jsontext.NewDecoder(strings.NewReader(c.Arguments))
		if t, err := dec.ReadToken(); err == nil && t.Kind() == '{' {
			for dec.PeekKind() == '"' {
				key, err := dec.ReadToken()
				if err != nil {
					break
				}
				name := key.String()
				value, err := dec.ReadValue()
				if err != nil {
					break
				}
				arguments = append(arguments, name+"="+string(value))
			}
		}
		list = append(list, c.Name+"("+strings.Join(arguments, ", ")+")")
	}
	return "<|tool_call_start|>[" + strings.Join(list, ", ") + "]<|tool_call_end|>"
}
