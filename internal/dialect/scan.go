package dialect

import (
	"bytes"
	"iter"
)

// ScanMembers returns the members of the JSON object at the start of body, whose values
// it finds without parsing them. body must be strict JSON, checked by ReadHead before or
// by an engine's allow-list afterwards; of anything else it returns arbitrary parts.
func ScanMembers(body []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		at := spaceEnd(body, 0)
		if at >= len(body) || body[at] != '{' {
			return
		}
		for at = spaceEnd(body, at+1); at < len(body) && body[at] == '"'; {
			name := body[at:min(stringEnd(body, at+1)+1, len(body))]
			at = min(spaceEnd(body, spaceEnd(body, at+len(name))+1), len(body)) // after the colon
			end := valueEnd(body, at)
			if len(name) < 2 || end == at || !yield(unquote(name), body[at:end]) {
				return
			}
			if at = spaceEnd(body, end); at < len(body) && body[at] == ',' {
				at = spaceEnd(body, at+1)
			}
		}
	}
}

// ScanElements returns the elements of the JSON list at the start of list, as ScanMembers
// does. A value of another type has none.
func ScanElements(list []byte) iter.Seq[[]byte] {
	return func(yield func(value []byte) bool) {
		if len(list) == 0 || list[0] != '[' {
			return
		}
		for at := spaceEnd(list, 1); at < len(list) && list[at] != ']'; {
			end := valueEnd(list, at)
			if end == at || !yield(list[at:end]) {
				return
			}
			if at = spaceEnd(list, end); at < len(list) && list[at] == ',' {
				at = spaceEnd(list, at+1)
			}
		}
	}
}

// spaceEnd returns the index of the first byte at or after at that is not white space.
func spaceEnd(body []byte, at int) int {
	for at < len(body) && (body[at] == ' ' || body[at] == '\n' || body[at] == '\t' || body[at] == '\r') {
		at++
	}
	return at
}

// valueEnd returns the index after the value that begins at at.
func valueEnd(body []byte, at int) int {
	for depth := 0; at < len(body); at++ {
		switch body[at] {
		case '"':
			if at = stringEnd(body, at+1); depth == 0 {
				return min(at+1, len(body))
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return at + 1
			}
			if depth < 0 { // after a number or a word
				return at
			}
		case ',', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return at
			}
		}
	}
	return min(at, len(body))
}

// stringEnd returns the index of the closing quote of the string whose text begins at i,
// or the body's length.
func stringEnd(body []byte, i int) int {
	for from := i; ; i++ {
		quote := bytes.IndexByte(body[i:], '"')
		if quote < 0 {
			return len(body)
		}
		i += quote
		escaped := false
		for j := i - 1; j >= from && body[j] == '\\'; j-- {
			escaped = !escaped
		}
		if !escaped {
			return i
		}
	}
}
