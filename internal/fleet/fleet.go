// Package fleet implements the routing rules of docs/spec/routing.md: members' machines
// and the models that they offer, shares, groups, sharing hours, and Route, which decides
// where a call runs or why it is refused. The package does no I/O and uses neither a
// clock nor randomness: the time and the random number are arguments.
package fleet

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Identifiers are opaque strings that the store creates. They are compared byte by byte.
type (
	// MemberID identifies a member of the hub.
	MemberID string
	// MachineID identifies a member's machine.
	MachineID string
	// GroupID identifies a group.
	GroupID string
	// ShareID identifies a share of one member with another.
	ShareID string
	// ModelID is the exact id that a machine advertises (spec/routing.md#model-id).
	ModelID string
)

// MaxModelID is the maximum length of a model id, in bytes.
const MaxModelID = 256

// IsPath reports whether the id is the absolute path of a file, which is how llama-server
// lists a model without an alias. Everyone who can use the model sees it.
func (id ModelID) IsPath() bool {
	return strings.HasPrefix(string(id), "/") || len(id) > 2 && id[1] == ':' && (id[2] == '\\' || id[2] == '/')
}

// Valid reports whether the id may be advertised or requested: 1 to 256 bytes of valid
// UTF-8, printable, without leading or trailing spaces.
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

// Family is the kind of work that a model does.
type Family uint8

// The families of models that a machine can offer.
const (
	Chat Family = iota
	Embeddings
	Audio
	families // number of families
)

var familyNames = [families]string{"chat", "embeddings", "audio"}

// String returns the name of the family in the protocol.
func (f Family) String() string { return familyNames[f] }

// Missing describes a model that does not serve the family, such as "has no embeddings".
func (f Family) Missing() string {
	return [families]string{"does not chat", "has no embeddings", "does not transcribe"}[f]
}

// ParseFamily parses the name of a family in the protocol. Readers ignore unknown names.
func ParseFamily(word string) (Family, bool) {
	for i, name := range familyNames {
		if name == word {
			return Family(i), true
		}
	}
	return 0, false
}

// Endpoint is an inference route, which determines both operation and dialect.
type Endpoint uint8

// The inference routes, local and hosted.
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

// String returns the path, which identifies the endpoint in the protocol and in logs.
func (e Endpoint) String() string { return endpointPaths[e] }

// Family returns the family that a machine must offer a model for in order to serve the
// endpoint.
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

// ParseEndpoint returns the endpoint with the given path. Readers ignore unknown paths.
func ParseEndpoint(path string) (Endpoint, bool) {
	for i, p := range endpointPaths {
		if p == path {
			return Endpoint(i), true
		}
	}
	return 0, false
}
