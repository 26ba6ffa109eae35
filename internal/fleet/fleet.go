// Package fleet implements the routing rules of docs/spec/routing.md: members' machines,
// what they offer, shares, groups, sharing hours, and Route, which returns where a call
// runs or why it is refused. The package does no I/O and has no clock and no randomness
// of its own: the time and the random draw are arguments.
package fleet

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Identifiers are opaque text that the store makes; they are compared byte for byte.
type (
	// MemberID names a member of the hub.
	MemberID string
	// MachineID names a member's machine.
	MachineID string
	// GroupID names a group.
	GroupID string
	// ShareID names a share of one member with another.
	ShareID string
	// ModelID is a model's id exactly as advertised (spec/routing.md#model-id).
	ModelID string
)

// MaxModelID is the length of the longest model id, in bytes.
const MaxModelID = 256

// IsPath reports whether the id is the absolute path of a file, as llama-server lists a
// model without an alias. Everyone who reaches the model sees it.
func (id ModelID) IsPath() bool {
	return strings.HasPrefix(string(id), "/") || len(id) > 2 && id[1] == ':' && (id[2] == '\\' || id[2] == '/')
}

// Valid reports whether the id may be advertised or requested: 1 to 256 bytes of
// valid UTF-8, printable, no space at either end.
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

// String returns the family's word on the wire.
func (f Family) String() string { return familyNames[f] }

// ParseFamily returns the family of a word on the wire; readers ignore unknown words.
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

// Path returns the route's path, which is the same on every hop.
func (e Endpoint) Path() string { return endpointPaths[e] }

// String returns the path, which names the endpoint on the wire and in logs.
func (e Endpoint) String() string { return endpointPaths[e] }

// Family returns the family that a machine must offer the model for to serve the endpoint.
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

// ParseEndpoint returns the endpoint of a path; readers ignore unknown paths.
func ParseEndpoint(path string) (Endpoint, bool) {
	for i, p := range endpointPaths {
		if p == path {
			return Endpoint(i), true
		}
	}
	return 0, false
}
