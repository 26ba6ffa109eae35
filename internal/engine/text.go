package engine

import (
	"bytes"
	"encoding/json/jsontext"
	"strconv"
	"unicode/utf8"
)

// joiner reads a text that arrives in parts. It joins characters that the engine split
// between two parts (spec/engine-answers.md#characters): an engine that splits its text
// between tokens writes the first surrogate of an emoji, or the first bytes of a
// character, at the end of one part and the rest at the beginning of the next.
type joiner struct {
	held []byte // the beginning of a character, unchanged
}

// replacement is U+FFFD as a JSON escape.
const replacement = `\ufffd`

// take returns a part, a JSON string. It includes what was held before, and excludes what
// the next part may complete. What remains incomplete becomes U+FFFD.
func (t *joiner) take(part jsontext.Value) jsontext.Value {
	if len(t.held) == 0 && utf8.Valid(part) && nextLone(part, 0) < 0 {
		return part
	}
	whole := append([]byte{'"'}, t.held...)
	whole = append(whole, part[1:len(part)-1]...)
	end := len(whole)
	for i := 1; i < utf8.UTFMax && i < end; i++ {
		if c := whole[end-i:]; utf8.RuneStart(c[0]) {
			if !utf8.FullRune(c) {
				end -= i
			}
			break
		}
	}
	if i := trailing(whole[:end]); i >= 0 {
		end = i
	}
	t.held = append(t.held[:0], whole[end:]...)
	return clean(append(whole[:end], '"'))
}

// rest returns U+FFFD as a JSON string if a character is incomplete, otherwise nil.
func (t *joiner) rest() jsontext.Value {
	if len(t.held) == 0 {
		return nil
	}
	t.held = nil
	return jsontext.Value(`"` + replacement + `"`)
}

// clean replaces lone surrogates and invalid UTF-8 in JSON by U+FFFD.
func clean(value jsontext.Value) jsontext.Value {
	if !utf8.Valid(value) {
		value = []byte(string([]rune(string(value))))
	}
	i := nextLone(value, 0)
	if i < 0 {
		return value
	}
	value = bytes.Clone(value)
	for ; i >= 0; i = nextLone(value, i) {
		copy(value[i:], replacement)
	}
	return value
}

// surrogate returns the code of an escape \uD800 to \uDFFF at the start of text, or 0.
func surrogate(text []byte) uint64 {
	if len(text) < len(replacement) || text[0] != '\\' || text[1] != 'u' {
		return 0
	}
	code, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil || code < 0xD800 || code > 0xDFFF {
		return 0
	}
	return code
}

// nextLone returns the index of the first lone surrogate in JSON, starting at from, or
// -1.
func nextLone(text []byte, from int) int {
	for i := from; i < len(text); {
		n := bytes.IndexByte(text[i:], '\\')
		if n < 0 {
			break
		}
		i += n
		switch code := surrogate(text[i:]); {
		case code == 0:
			i += 2
		case code < 0xDC00 && surrogate(text[i+len(replacement):]) >= 0xDC00:
			i += 2 * len(replacement)
		default:
			return i
		}
	}
	return -1
}

// trailing returns the index of a first surrogate at the end of text, or -1.
func trailing(text []byte) int {
	for i := nextLone(text, 0); i >= 0; i = nextLone(text, i+len(replacement)) {
		if i == len(text)-len(replacement) && surrogate(text[i:]) < 0xDC00 {
			return i
		}
	}
	return -1
}
