package chatform

import (
	"encoding/json/jsontext"
	"strings"
)

// The mark around strings.
const quoteMark = `<|"|>`

// readQuoted reads calls of the form
//
//	<|tool_call>call:NAME{key:<|"|>text<|"|>,other:[1,true,{a:None}]}<tool_call|>
func (r *Reader) readQuoted() {
	f := r.form
	for r.calls < maxCalls {
		start := r.at()
		if ok, _ := r.literal(f.CallBegin); !ok {
			r.back(start)
			return
		}
		name, ok := r.name("")
		if !ok || !r.has("{") {
			r.back(start)
			return
		}
		r.beginCall(name, "")
		if !r.quotedValue(r.tools[name], 0) {
			return
		}
		if r.white(); !r.skip(f.CallEnd) && !r.has(f.CallBegin) {
			return
		}
		r.white()
	}
}

// quotedValue reports a value as JSON. It reports false if the value is not complete.
func (r *Reader) quotedValue(s schema, depth int) bool {
	if depth > maxDepth {
		return false
	}
	switch r.white(); {
	case r.skip(quoteMark):
		return r.quotedText()
	case r.has(`"`):
		return r.value(r.arguments)
	case r.has("{"), r.has("["):
		return r.quotedList(s, depth)
	}
	start := r.at()
	for r.peek(1) && !strings.ContainsRune(",}]", rune(r.rest()[0])) {
		r.pos++
	}
	if !r.peek(1) {
		return false
	}
	r.arguments(convert(string(r.buf[start-r.base:r.pos]), s.types()&^typeString))
	return true
}

// quotedText reports a string up to its mark.
func (r *Reader) quotedText() bool {
	r.arguments(`"`)
	for {
		s := string(r.rest())
		i := strings.Index(s, quoteMark)
		if i >= 0 {
			r.arguments(escape(s[:i]) + `"`)
			r.pos += i + len(quoteMark)
			return true
		}
		i = len(s) - partial([]byte(s), quoteMark)
		r.arguments(escape(s[:i]))
		r.pos += i
		r.discard()
		if !r.more() {
			return false
		}
	}
}

// quotedList reports an object or an array.
func (r *Reader) quotedList(s schema, depth int) bool {
	object := r.skip("{")
	end, open, item := "}", "{", s.items()
	if !object {
		r.skip("[")
		end, open = "]", "["
	}
	r.arguments(open)
	for n := 0; ; n++ {
		if r.white(); r.skip(end) {
			r.arguments(end)
			return true
		}
		if n > 0 && !r.skip(",") || !r.peek(1) {
			return false
		}
		if n > 0 {
			r.arguments(",")
		}
		if object {
			key, ok := r.quotedKey()
			if !ok {
				return false
			}
			r.arguments(quote(key) + ":")
			item = s.property(key)
		}
		if !r.quotedValue(item, depth+1) {
			return false
		}
	}
}

// quotedKey reads the name of a member and the colon after it.
func (r *Reader) quotedKey() (string, bool) {
	r.white()
	start := r.at()
	for r.peek(1) && r.rest()[0] != ':' {
		r.pos++
	}
	key := strings.Trim(string(r.buf[start-r.base:r.pos]), white)
	key = strings.TrimSuffix(strings.TrimPrefix(key, quoteMark), quoteMark)
	if text, err := jsontext.AppendUnquote(nil, key); err == nil && strings.HasPrefix(key, `"`) {
		key = string(text)
	}
	return key, r.skip(":")
}
