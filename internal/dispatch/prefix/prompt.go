// Package prefix remembers which machines received a conversation, so that its next call
// can use a machine that has the prompt in its cache. It stores no part of a prompt: a
// prefix is identified by a fingerprint of 64 bits, made with a secret key and the name
// of the calling member. So the prompts of two members cannot be compared, and a
// fingerprint does not reveal its prompt.
package prefix

import (
	"bytes"
	"math"
	"strconv"

	"github.com/minio/highwayhash"
)

// Key is the secret key of fingerprints.
type Key [highwayhash.Size]byte

// Mark is one prefix of a prompt: its fingerprint and its length in bytes.
type Mark struct {
	Sum   uint64
	Bytes int
}

// Prompt is the prompt of a request to a machine.
type Prompt struct {
	// Marks are the prefixes that end with a message, shortest first. The tools precede
	// the first message, as in engines.
	Marks []Mark
	Bytes int // of tools and messages
	// MaxTokens is the limit of the answer in the request; 0: none.
	MaxTokens int
}

// maxMarks is the most prefixes of one prompt; if there are more, the last ones are used.
const maxMarks = 1024

// Read reads a chat request, which must be strict JSON. The scope, made of the calling
// member and the model, is part of each fingerprint. A request without messages has no
// marks.
func Read(key *Key, scope string, body []byte) (p Prompt) {
	var tools span
	var messages []span
	at := space(body, 0)
	if at >= len(body) || body[at] != '{' {
		return p
	}
	for at = space(body, at+1); at < len(body) && body[at] == '"'; {
		name := span{at + 1, end(body, at) - 1}
		from := min(space(body, space(body, name.to+1)+1), len(body)) // after the colon
		var value span
		if string(name.of(body)) == "messages" {
			messages, value.to = elements(body, from)
		} else {
			value = span{from, end(body, from)}
		}
		switch string(name.of(body)) {
		case "tools":
			tools = value
		case "max_tokens", "max_completion_tokens":
			if n, err := strconv.Atoi(string(value.of(body))); err == nil && n > 0 {
				p.MaxTokens = min(n, math.MaxInt32)
			}
		}
		if at = space(body, value.to); at < len(body) && body[at] == ',' {
			at = space(body, at+1)
		}
	}
	sum, _ := highwayhash.New64(key[:]) // fails only for a key of another size
	add := func(part []byte) {
		sum.Write(part)
		sum.Write(separator)
	}
	add([]byte(scope))
	add(tools.of(body))
	p.Bytes = len(tools.of(body))
	first := max(0, len(messages)-maxMarks)
	p.Marks = make([]Mark, 0, len(messages)-first)
	for i, m := range messages {
		add(m.of(body))
		p.Bytes += len(m.of(body))
		if i >= first {
			p.Marks = append(p.Marks, Mark{sum.Sum64(), p.Bytes})
		}
	}
	return p
}

// separator separates the hashed parts. None of them contains this byte.
var separator = []byte{0}

// span is a part of a body.
type span struct{ from, to int }

// of returns the part, or nil if the body ends before it because it is not JSON.
func (s span) of(body []byte) []byte {
	if s.from > s.to || s.to > len(body) {
		return nil
	}
	return body[s.from:s.to]
}

// elements returns the elements of the list that begins at at, and the index after it. A
// value of another type has no elements.
func elements(body []byte, at int) (of []span, to int) {
	if at >= len(body) || body[at] != '[' {
		return nil, end(body, at)
	}
	for at = space(body, at+1); at < len(body) && body[at] != ']'; {
		to := end(body, at)
		if to == at { // not JSON
			break
		}
		of = append(of, span{at, to})
		if at = space(body, to); at < len(body) && body[at] == ',' {
			at = space(body, at+1)
		}
	}
	return of, at + 1
}

// space returns the index of the first byte at or after at that is not white space.
func space(body []byte, at int) int {
	for at < len(body) && (body[at] == ' ' || body[at] == '\n' || body[at] == '\t' || body[at] == '\r') {
		at++
	}
	return at
}

// end returns the index after the value that begins at at.
func end(body []byte, at int) int {
	depth := 0
	for at < len(body) {
		switch body[at] {
		case '"':
			at = endOfString(body, at+1)
			if depth == 0 {
				return at
			}
			continue
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
		at++
	}
	return at
}

// endOfString returns the index after the string whose content begins at at.
func endOfString(body []byte, at int) int {
	for {
		i := bytes.IndexByte(body[at:], '"')
		if i < 0 {
			return len(body)
		}
		i += at
		slashes := i
		for slashes > at && body[slashes-1] == '\\' {
			slashes--
		}
		if at = i + 1; (i-slashes)%2 == 0 {
			return at
		}
	}
}
