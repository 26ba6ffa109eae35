package chatform

import (
	"bytes"
	"encoding/json/jsontext"
	"strings"
)

// argumentTags reads the arguments of a call of the kind args, as one JSON object.
func (r *Reader) argumentTags(s schema) {
	f := r.form
	for n := 0; ; n++ {
		start := r.at()
		ok := false
		if n > 0 {
			ok, _ = r.literal(f.ArgSep + f.ArgBegin)
		}
		if !ok {
			ok, _ = r.literal(f.ArgBegin)
		}
		name, kind := "", ""
		if ok {
			name, kind = r.argumentName()
		}
		if name == "" {
			r.back(start)
			switch r.white(); {
			case r.cut && !r.peek(1): // the answer is cut here
			case n == 0:
				r.arguments("{}")
			default:
				r.arguments("}")
			}
			return
		}
		lead := ","
		if n == 0 {
			lead = "{"
		}
		r.arguments(lead + quote(name) + ":")
		if !r.argumentValue(name, s.property(name), kind) {
			return
		}
	}
}

// argumentName reads the name of an argument and what is between it and the value. kind is
// the type of the value if the form distinguishes it, else "".
func (r *Reader) argumentName() (name, kind string) {
	const maxName = 256
	mids := r.form.ArgMid
	for {
		s := r.rest()
		at := -1
		for _, mid := range mids {
			lead := strings.Trim(mid, white)
			if i := strings.IndexAny(lead, white); i > 0 {
				lead = lead[:i]
			}
			if i := bytes.Index(s, []byte(lead)); i >= 0 && (at < 0 || i < at) {
				at = i
			}
		}
		if at >= 0 && at <= maxName {
			name = strings.Trim(string(s[:at]), white)
			r.pos += at
			break
		}
		if len(s) > maxName+maxLiteral || !r.more() {
			return "", ""
		}
	}
	if name == "" || strings.ContainsAny(name, "<>\n") || name[0] == '/' {
		return "", ""
	}
	for _, k := range valueKinds {
		mid := mids[k]
		end := strings.TrimRight(mid, white)
		if ok, _ := r.literal(end); ok {
			r.skipOnly(mid[len(end):])
			if k == "string" && mid == mids["number"] {
				k = ""
			}
			return name, k
		}
	}
	return "", ""
}

// skipOnly reads the white space that the template writes around a value. The rest belongs
// to the value.
func (r *Reader) skipOnly(space string) {
	for i := range len(space) {
		if !r.peek(1) || r.rest()[0] != space[i] {
			return
		}
		r.pos++
	}
}

// argumentValue reads the value of an argument up to its end. It reports false if the
// answer ends before.
func (r *Reader) argumentValue(name string, s schema, kind string) bool {
	end := strings.TrimRight(strings.ReplaceAll(r.form.ArgEnd, MarkArgument, name), white)
	tag := strings.TrimLeft(end, white)
	space := end[:len(end)-len(tag)]
	if strings.HasPrefix(tag, "</") && r.skip("<![CDATA[") {
		tag, space, kind = "]]>"+tag, "", "string"
	}
	types := s.types()
	if kind != "" && types == 0 {
		types = typeNames[kind]
	}
	asText := types == typeString
	if asText {
		r.arguments(`"`)
	}
	for scan := 0; ; { // no end is before scan
		v := r.rest()
		if i := bytes.Index(v[scan:], []byte(tag)); i >= 0 {
			if scan += i; !r.ends(scan + len(tag)) {
				scan++
				continue
			}
			raw := strings.TrimSuffix(string(r.rest()[:scan]), space)
			r.pos += scan + len(tag)
			if asText {
				r.arguments(escape(raw) + `"`)
			} else {
				r.arguments(r.convert(raw, s, types))
			}
			return true
		}
		scan = max(scan, len(v)-partial(v, tag))
		if asText {
			known := v[:scan]
			if space != "" {
				known = bytes.TrimRight(known, white)
			}
			r.arguments(escape(string(known)))
			r.pos += len(known)
			scan -= len(known)
			r.discard()
		}
		if !r.more() {
			if asText {
				r.arguments(escape(string(r.rest())))
				r.pos = len(r.buf)
			}
			return false
		}
	}
}

// convert returns the JSON of the value of an argument.
func (r *Reader) convert(raw string, s schema, types typeSet) string {
	if of := syntaxes[r.form.Syntax].convert; of != nil {
		return of(raw, s)
	}
	return convert(raw, types)
}

// ends reports whether an argument may end n bytes ahead: what follows is a part of the
// form. Else the end is a part of the value, such as a file's text.
func (r *Reader) ends(n int) bool {
	f, start := r.form, r.at()
	r.pos += n
	r.white()
	ok := !r.peek(1)
	for _, literal := range []string{f.ArgSep, f.ArgBegin, f.CallEnd, f.Sep, f.CallBegin, f.End, f.TurnEnd, f.CallTurnEnd} {
		for _, part := range strings.Fields(beforeMarks(literal)) { // models leave out others
			ok = ok || r.has(part)
		}
	}
	r.back(start)
	return ok
}

// escape returns s as it is within a JSON string. Other than jsontext it leaves bytes that
// are no UTF-8 alone, since the rest of a character may follow.
func escape(s string) string {
	if !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == '"' || c == '\\' }) {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ':
			b.WriteString(strings.Trim(quote(string(rune(c))), `"`))
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// convert returns the JSON of a value that is written in tags.
func convert(raw string, types typeSet) string {
	text := strings.Trim(raw, white)
	if v := jsontext.Value(text); v.IsValid() && v.Kind() != '"' && types.allow(v.Kind()) {
		return text
	}
	if v, ok := python(text); ok && types.allow(jsontext.Value(v).Kind()) && v[0] != '"' {
		return v
	}
	if v := jsontext.Value(text); types != 0 && types&typeString == 0 && v.IsValid() {
		return text
	}
	return quote(raw)
}
