// Package fleet is the law: members' machines, what they offer, who shares
// with whom, groups, sharing hours, and Route, the one pure function that says
// where a call goes or which refusal it is (decisions 2). It does no I/O, has
// no clock and no randomness of its own: time and the draw are data.
package fleet

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Identifiers are opaque text made by the store; two are equal byte for byte.
type (
	// MemberID names a member of the hub.
	MemberID string
	// MachineID names a member's machine.
	MachineID string
	// GroupID names a group.
	GroupID string
	// ShareID names a share: owner shares with member.
	ShareID string
	// ModelID is a model's id exactly as advertised; no aliases (S1.5).
	ModelID string
)

// MaxModelID is the longest model id taken, in bytes.
const MaxModelID = 256

// Valid reports whether the id may be advertised or asked for: 1 to 256 bytes
// of valid UTF-8, printable, no space at either end.
func (id ModelID) Valid() bool {
	s := string(id)
	if s == "" || len(s) > MaxModelID || !utf8.ValidString(s) || strings.TrimSpace(s) != s {
		return false
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// Family is what kind of work a model does.
type Family uint8

// The families a machine may offer a model for.
const (
	Chat Family = iota
	Embeddings
	Audio
	families // how many there are
)

var familyNames = [families]string{"chat", "embeddings", "audio"}

// String is the family's word on the wire.
func (f Family) String() string { return familyNames[f] }

// ParseFamily is the family of a wire word; unknown words are ignored by readers.
func ParseFamily(word string) (Family, bool) {
	for i, name := range familyNames {
		if name == word {
			return Family(i), true
		}
	}
	return 0, false
}

// Endpoint is one inference route: operation and dialect at once.
type Endpoint uint8

// The inference routes of both surfaces.
const (
	ChatCompletions Endpoint = iota
	EmbeddingsEndpoint
	Transcriptions
	Responses
	Messages
	endpoints
)

var endpointPaths = [endpoints]string{
	"/v1/chat/completions",
	"/v1/embeddings",
	"/v1/audio/transcriptions",
	"/v1/responses",
	"/v1/messages",
}

// Path is the route's path on every hop.
func (e Endpoint) Path() string { return endpointPaths[e] }

// String is the path: it names the endpoint on the wire and in logs.
func (e Endpoint) String() string { return endpointPaths[e] }

// Family is the family a machine must offer the model for to serve the endpoint.
func (e Endpoint) Family() Family {
	switch e {
	case EmbeddingsEndpoint:
		return Embeddings
	case Transcriptions:
		return Audio
	default:
		return Chat
	}
}

// ParseEndpoint is the endpoint of a path; unknown ones are ignored by readers.
func ParseEndpoint(path string) (Endpoint, bool) {
	for i, p := range endpointPaths {
		if p == path {
			return Endpoint(i), true
		}
	}
	return 0, false
}
