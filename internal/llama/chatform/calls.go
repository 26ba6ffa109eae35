package chatform

import (
	"encoding/json/jsontext"
	"slices"
	"strings"
)

// readCalls reads calls up to the text after them. If no call is there, it reads nothing
// and reports false. If certain, it is known from the start that calls begin.
func (r *Reader) readCalls(certain bool) bool {
	f, start, calls := r.form, r.at(), r.calls
	r.trigger, r.starved, r.held = start, false, true
	defer func() { r.held = false }()
	r.inCall = certain && r.guess == nil
	read := syntaxes[f.Syntax].calls
	if read != nil {
		read(r)
	} else {
		r.firstOf(f.CallBegins(), true)
	}
	if r.calls == calls {
		r.inCall = false
		r.back(start)
		return false
	}
	for read == nil && r.between() {
	}
	if len(r.rest()) > 0 {
		r.inCall = false
	}
	return true
}

// firstOf reads a call that begins with one of the literals. The first call must have one
// of them, if the form has any.
func (r *Reader) firstOf(literals []string, first bool) bool {
	start, calls := r.at(), r.calls
	for i, literal := range literals {
		if blank := strings.Trim(literal, white) == ""; blank && (i > 0 || !first && r.form.Kind != KindJSON) || slices.Contains(literals[:i], literal) {
			continue
		}
		r.id, r.held = "", true
		if ok, _ := r.literal(literal); ok {
			if r.form.Kind != KindJSON && strings.Trim(literal, white) != "" {
				r.inCall = r.guess == nil
			}
			r.call(literal)
			if r.calls > calls {
				return true
			}
		}
		r.back(start)
	}
	return false
}

// between reads what follows a call: another one, or the end of all. It reports whether it
// read something.
func (r *Reader) between() bool {
	f, start := r.form, r.at()
	r.white()
	if !r.peek(1) {
		return false
	}
	if r.calls < maxCalls && r.firstOf([]string{f.Sep + f.CallBegin, f.CallBegin, f.Begin + f.CallBegin}, false) {
		return true
	}
	ends := append([]string{f.CallEnd, f.End, f.TurnEnd, f.CallTurnEnd}, strings.Fields(f.CallEnd)...)
	for _, end := range ends {
		if strings.Trim(end, white) == "" {
			continue
		}
		ok, short := r.literal(end)
		if short {
			r.pos = len(r.buf) // the model's end of the answer is within it
			return false
		}
		if ok {
			return true
		}
	}
	r.back(start)
	return false
}

// call reads a call after its begin, which is given. It is reported once its name is known
// to be one of the tools.
func (r *Reader) call(begin string) {
	calls := r.calls
	switch r.form.Kind {
	case KindJSON:
		r.jsonCall()
	case KindTag, KindArgs:
		start := r.at()
		name, ok := r.name(r.form.NameEnd)
		if !ok {
			return
		}
		id := r.id
		if id == "" {
			id = r.countedID(begin, start, name)
		}
		r.beginCall(name, id)
		if r.form.Kind == KindArgs {
			r.argumentTags(r.tools[name])
		} else {
			r.object()
		}
	}
	if r.calls > calls {
		r.literal(r.form.CallEnd)
	}
}

// object reads the arguments of a call, a JSON object. Without one they are empty.
func (r *Reader) object() {
	if r.white(); r.has("{") {
		r.value(r.arguments)
	} else if r.peek(1) || !r.cut {
		r.arguments("{}")
	}
}

// name reads the name of a tool and what follows it.
func (r *Reader) name(end string) (string, bool) {
	r.white()
	start := r.at()
	for _, name := range r.names {
		if !r.skip(name) {
			continue
		}
		if ends := end != "" && isWord(end[0]); ends || !r.peek(1) || !isWord(r.rest()[0]) {
			if ok, _ := r.literal(end); ok {
				return name, true
			}
		}
		r.back(start)
	}
	return "", false
}

// countedID returns the id of a call whose head counts the calls, such as
// <|call|>functions.NAME:0<|arguments|>: what is between the tags.
func (r *Reader) countedID(begin string, start int, name string) string {
	f := r.form
	if !strings.Contains(begin+f.NameEnd, MarkCount) {
		return ""
	}
	before := begin[strings.LastIndexAny(begin, ">]")+1:]
	head := string(r.buf[start-r.base : r.pos])
	after, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimLeft(head, white), name), "<")
	id := before + name + after
	if strings.ContainsFunc(id, func(c rune) bool { return c > 127 || !isWord(byte(c)) }) {
		return ""
	}
	return id
}

// pendingCall is a call of the kind json that is read.
type pendingCall struct {
	name, id  string
	arguments strings.Builder // until the call is reported
	has       bool            // the call has arguments
	reported  bool
}

// jsonCall reads a call of the kind json.
func (r *Reader) jsonCall() {
	var c pendingCall
	if !r.has("{") || !r.members(&c, nil) || c.name == "" {
		return
	}
	if !c.reported {
		r.report(&c)
	}
	if !c.has {
		r.arguments("{}")
	}
}

// report reports a call, and its arguments as far as they are known.
func (r *Reader) report(c *pendingCall) {
	r.beginCall(c.name, c.id)
	r.arguments(c.arguments.String())
	c.reported = true
}

// members reads an object of a call. It reports false if it is none.
func (r *Reader) members(c *pendingCall, path []string) bool {
	r.pos++
	for {
		r.white()
		switch {
		case r.skip("}"):
			return true
		case r.skip(","):
			continue
		case !r.has(`"`):
			return c.reported
		}
		key, ok := r.jsonString()
		r.white()
		if !ok || !r.skip(":") {
			return c.reported
		}
		r.white()
		if !r.member(c, append(path[:len(path):len(path)], key)) {
			return c.reported
		}
	}
}

// member reads the value of a member.
func (r *Reader) member(c *pendingCall, path []string) bool {
	f := r.form
	key := path[len(path)-1]
	above := path[:len(path)-1]
	within := func(of []string) bool { return len(of) > len(path) && slices.Equal(of[:len(path)], path) }
	switch _, known := r.tools[key]; {
	case f.NameIsKey && known && slices.Equal(above, f.NamePath):
		c.name = key
		return r.jsonArguments(c)
	case slices.Equal(path, f.NamePath) && !f.NameIsKey:
		r.inCall = r.guess == nil
		name, ok := r.jsonString()
		if _, known := r.tools[name]; !ok || !known {
			return false
		}
		c.name = name
		if c.arguments.Len() > 0 && !f.idLast() {
			r.report(c)
		}
		return true
	case slices.Equal(path, f.IDPath):
		var raw strings.Builder
		ok := r.value(func(s string) { raw.WriteString(s) })
		if c.id = raw.String(); strings.HasPrefix(c.id, `"`) {
			id, _ := jsontext.AppendUnquote(nil, c.id)
			c.id = string(id)
		}
		return ok
	case slices.Equal(path, f.ArgumentsPath) && !f.NameIsKey,
		!c.has && !within(f.NamePath) && r.has("{") && len(f.ArgumentsPath) > 0 && slices.Equal(above, f.ArgumentsPath[:len(f.ArgumentsPath)-1]):
		return r.jsonArguments(c) // models also write parameters for arguments
	case (within(f.NamePath) || within(f.ArgumentsPath)) && r.has("{"):
		return r.members(c, path)
	}
	return r.value(func(string) {})
}

// idLast reports whether the id of a call follows its arguments.
func (f *Form) idLast() bool {
	return strings.Index(f.Shape, MarkID) > strings.Index(f.Shape, MarkArguments)
}

// jsonArguments reads the arguments in a JSON call. They are reported as they come, except
// if the name or the id follows them.
func (r *Reader) jsonArguments(c *pendingCall) bool {
	if c.name != "" && !c.reported && !r.form.idLast() {
		r.report(c)
	}
	write := r.arguments
	if !c.reported {
		write = func(s string) {
			if c.arguments.Len()+len(s) <= maxArguments {
				c.arguments.WriteString(s)
			}
		}
	}
	if c.has {
		return r.value(func(string) {})
	}
	c.has = true
	switch {
	case r.has(`"`): // an object as text
		text, ok := r.jsonString()
		if v := jsontext.Value(text); !v.IsValid() || v.Kind() != '{' {
			text = "{}"
		}
		write(text)
		return ok
	case r.has("{"):
		return r.value(write)
	}
	write("{}")
	return r.value(func(string) {})
}

// jsonString reads a JSON string.
func (r *Reader) jsonString() (string, bool) {
	var raw strings.Builder
	if !r.has(`"`) || !r.value(func(s string) { raw.WriteString(s) }) {
		return "", false
	}
	text, err := jsontext.AppendUnquote(nil, raw.String())
	return string(text), err == nil
}

// value passes on the bytes of a JSON value as they come. It reports whether the value is
// complete. Control characters in strings, which models write, are escaped.
func (r *Reader) value(write func(string)) bool {
	depth, text, escaped := 0, false, false
	for {
		s := r.rest()
		from, end := 0, -1
		for i := 0; i < len(s) && end < 0; i++ {
			switch c := s[i]; {
			case text && c < ' ':
				write(string(s[from:i]) + escape(string(s[i:i+1])))
				from, escaped = i+1, false
			case escaped:
				escaped = false
			case text && c == '\\':
				escaped = true
			case c == '"':
				if text = !text; !text && depth == 0 {
					end = i + 1
				}
			case text:
			case c == '{' || c == '[':
				depth++
			case (c == '}' || c == ']') && depth > 0:
				if depth--; depth == 0 {
					end = i + 1
				}
			case depth == 0 && strings.IndexByte(",}]"+white, c) >= 0: // after a number or a word
				end = i
			}
		}
		if end >= 0 {
			write(string(s[from:end]))
			r.pos += end
			return true
		}
		write(string(s[from:]))
		r.pos += len(s)
		r.discard()
		if !r.more() {
			return false
		}
	}
}
