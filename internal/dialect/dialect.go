// Package dialect reads and writes requests and answers: it reads the head of a request body, checks answers on their
// way to the caller, frame by frame, renders faults in the caller's dialect, and translates between chat, which machines
// get, and the messages and responses dialects (docs/dialects.md). It knows no connection, member or machine. Where
// nothing is to be translated it changes no byte that it passes on, except the text of a machine's SSE comments.
package dialect

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"io"

	"github.com/kith/kith/internal/fleet"
)

// Dialect is the form in which a caller reads faults and listings.
type Dialect uint8

// The dialects of the service (spec/api.md#dialects). Responses has the chat form of faults, except that their param is
// always a string.
const (
	Chat Dialect = iota
	Messages
	Responses
)

// What one call may hold. A machine takes no more from callers other than its owner.
const (
	MaxMessages = 8192
	MaxPictures = 256
)

// VersionHeader names the version header of the messages dialect (spec/api.md#check-version).
const VersionHeader = "Anthropic-Version"

// MaxAnswer is how many bytes a unary answer of an endpoint may have. It is the one limit of such answers: on a machine, and
// at the edge, where the answer is held until it is checked.
func MaxAnswer(endpoint fleet.Endpoint) int64 {
	if endpoint == fleet.EmbeddingsEndpoint {
		return 64 << 20
	}
	return 8 << 20
}

// Usage is what the engine says a call took.
type Usage struct {
	In, Out int64 // tokens
	// Reported is false while the engine has reported no valid usage.
	Reported bool
	// Cached is how many of In the engine had read before.
	Cached int64
	// Reasoning is how many of Out were reasoning.
	Reasoning int64
}

// Members reads the JSON object that comes next in dec and hands each member's
// name, unquoted and valid until the next read, to member, which must read the
// value. The caller has seen that an object comes.
func Members(dec *jsontext.Decoder, member func(name []byte) error) error {
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadValue()
		if err != nil {
			return err
		}
		if err := member(unquote(name)); err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	return err
}

// Elements reads the value that comes next in dec. Where it is a list, element must read each of its elements.
func Elements(dec *jsontext.Decoder, element func() error) error {
	if dec.PeekKind() != '[' {
		return skip(dec)
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != ']' {
		if err := element(); err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	return err
}

// skip skips the value that comes next in dec. It is faster than dec.SkipValue, which
// reads it token by token.
func skip(dec *jsontext.Decoder) error {
	_, err := dec.ReadValue()
	return err
}

// valueIn is the value that comes next in dec, as a part of the document that dec reads.
func valueIn(document []byte, dec *jsontext.Decoder) (jsontext.Value, error) {
	value, err := dec.ReadValue()
	if err != nil {
		return nil, err
	}
	end := dec.InputOffset()
	return document[end-int64(len(value)) : end], nil
}

// readObject reads all of r, which must be one strict JSON object, into v.
func readObject(r io.Reader, v any) error {
	dec := jsontext.NewDecoder(r)
	return oneObject(dec, func() error { return json.UnmarshalDecode(dec, v) })
}

// oneObject has read read the answer in dec, which must be one strict JSON object.
func oneObject(dec *jsontext.Decoder, read func() error) error {
	if dec.PeekKind() != '{' {
		return invalidAnswer("something that is not a JSON object")
	}
	if err := read(); err != nil {
		return notJSON(err)
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		return notJSON(err)
	}
	return nil
}

// unquote is the text of a JSON string that a decoder has already checked; nil for
// nil. It aliases the input unless that holds an escape.
func unquote(quoted jsontext.Value) []byte {
	if len(quoted) == 0 {
		return nil
	}
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	text, _ := jsontext.AppendUnquote(nil, quoted) // checked by the decoder
	return text
}
