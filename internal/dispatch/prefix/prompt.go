// Package prefix remembers to which machines a conversation was sent, so that its next
// call can go where the prompt is cached. It keeps no part of a prompt: a prefix is known by a
// fingerprint of 64 bits, made with a secret key and the name of the member who called.
// So prompts of two members cannot be compared, and no fingerprint says what it was made
// of.
package prefix

import (
	"bytes"
	"math"
	"strconv"

	"github.com/minio/highwayhash"
)

// Key is the secret that fingerprints are made with.
type Key [highwayhash.Size]byte

// Mark is one prefix of a prompt: its fingerprint and its length in bytes.
type Mark struct {
	Sum   uint64
	Bytes int
}

// Prompt is what a request to a machine holds of its prompt.
type Prompt struct {
	// Marks are the prefixes that end with a message, shortest first. The tools are in
	// front of the first message, as engines put them.
	Marks []Mark
	Bytes int // of tools and messages
	// MaxTokens is the longest answer that the request allows; 0: it does not say.
	MaxTokens int
}

// maxMarks limits how many prefixes are read of one prompt: the last ones.
const maxMarks = 1024

// Read reads a chat request, which is strict JSON. The scope, of the calling member and
// the model, is part of each fingerprint. A request without messages has no marks.
func Read(key *Key, scope string, body []byte) (p Prompt) {
	var tools span
	var messages []span
	at := space(body, 0)
	if at >= len(body) || body[at] != '{' {
		return p
	}
	for at = space(body, at+1); at < len(body) && body[at] == '"'; {
		name := span{at + 1, end(body, at) - 1}
		from := min(space(body, space(body, name.to+1)+1), len(body)) // behind the colon
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
	sum, _ := highwayhash.New64(key[:]) // it fails for a key of another size
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

// separator is between the parts that are hashed: a byte that is in none of them.
var separator = []byte{0}

// span is a part of a body.
type span struct{ from, to int }

// of returns the part; nothing where a body that is no JSON ends before it.
func (s span) of(body []byte) []byte {
	if s.from > s.to || s.to > len(body) {
		return nil
	}
	return body[s.from:s.to]
}

// elements returns the elements of the list that begins at at, none of another value, and
// the index behind it.
func elements(body []byte, at int) (of []span, to int) {
	if at >= len(body) || body[at] != '[' {
		return nil, end(body, at)
	}
	for at = space(body, at+1); at < len(body) && body[at] != ']'; {
		to := end(body, at)
		if to == at { // no JSON
			break
		}
		of = append(of, span{at, to})
		if at = space(body, to); at < len(body) && body[at] == ',' {
			at = space(body, at+1)
		}
	}
	return of, at + 1
}

// space returns the index of the next byte from at that is no space.
func space(body []byte, at int) int {
	for at < len(body) && (body[at] == ' ' || body[at] == '\n' || body[at] == '\t' || body[at] == '\r') {
		at++
	}
	return at
}

// end returns the index behind the value that begins at at.
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
			if depth < 0 { // behind a number or a word
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

// endOfString returns the index behind the string whose content begins at at.
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
