// Package prefix remembers which machines received a conversation, so that its next call
// can use a machine that has the prompt in its cache. It stores no part of a prompt: a
// prefix is identified by a fingerprint of 64 bits, made with a secret key and the name
// of the calling member. So the prompts of two members cannot be compared, and a
// fingerprint does not reveal its prompt.
package prefix

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"

	"github.com/minio/highwayhash"

	"github.com/kith/kith/internal/dialect"
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

// maxMarks is the maximum number of prefixes of one prompt; if there are more, the last
// ones are used.
const maxMarks = 1024

// Read reads a chat request, which must be strict JSON. The scope, made of the calling
// member and the model, is part of each fingerprint. A request without messages has no
// marks.
func Read(key *Key, scope string, body []byte) (p Prompt) {
	var tools, messages []byte
	for name, value := range dialect.ScanMembers(body) {
		switch string(name) {
		case "messages":
			messages = value
		case "tools":
			tools = value
		case "max_tokens", "max_completion_tokens":
			if n, err := strconv.Atoi(string(value)); err == nil && n > 0 {
				p.MaxTokens = min(n, math.MaxInt32)
			}
		}
	}
	sum, _ := highwayhash.New64(key[:]) // fails only for a key of another size
	add := func(part []byte) {
		sum.Write(part)
		sum.Write(separator)
	}
	add([]byte(scope))
	add(tools)
	p.Bytes = len(tools)
	for message := range dialect.ScanElements(messages) {
		add(message)
		p.Bytes += len(message)
		if len(p.Marks) == 2*maxMarks { // amortized
			p.Marks = append(p.Marks[:0], p.Marks[maxMarks:]...)
		}
		p.Marks = append(p.Marks, Mark{sum.Sum64(), p.Bytes})
	}
	p.Marks = p.Marks[max(0, len(p.Marks)-maxMarks):]
	return p
}

// Rehash returns the marks of a prompt that only their fingerprints under another key are
// known of, each 8 bytes and a length of 2 bytes in the given unit, shortest first. The
// scope is as in Read.
func Rehash(key *Key, scope string, marks []byte, unit int) []Mark {
	list := make([]Mark, 0, len(marks)/markSize)
	for mark := range slices.Chunk(marks, markSize) {
		sum, _ := highwayhash.New64(key[:]) // fails only for a key of another size
		sum.Write([]byte(scope))
		sum.Write(separator)
		sum.Write(mark[:8])
		list = append(list, Mark{sum.Sum64(), int(binary.BigEndian.Uint16(mark[8:])) * unit})
	}
	return list
}

// markSize is the size of a mark for Rehash.
const markSize = 10

// separator separates the hashed parts. None of them contains this byte.
var separator = []byte{0}
