// Package dialect reads and writes requests and answers. It reads the head of a request
// body, checks answers on their way to the caller frame by frame, renders faults in the
// caller's dialect, and translates between chat, which machines get, and the messages and
// responses dialects (docs/dialects.md). It knows no connections, members or machines.
// Without a translation it passes on every byte unchanged, except the text of a machine's
// SSE comments.
package dialect

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"io"

	"github.com/kith/kith/internal/fleet"
)

// Dialect is the format of faults and listings for a caller.
type Dialect uint8

// The dialects of the service (spec/api.md#dialects). Responses has the faults of chat,
// except that their param is always a string.
const (
	Chat Dialect = iota
	Messages
	Responses
)

// Limits of one call. A machine accepts no more from callers other than its owner.
const (
	MaxMessages = 8192
	MaxPictures = 256
)

// VersionHeader names the version header of the messages dialect (spec/api.md#check-version).
const VersionHeader = "Anthropic-Version"

// MaxAnswer returns the most bytes of a unary answer of an endpoint. The same limit
// applies on a machine and at the edge, which holds the answer until it is checked.
func MaxAnswer(endpoint fleet.Endpoint) int64 {
	if endpoint == fleet.EmbeddingsEndpoint {
		return 64 << 20
	}
	return 8 << 20
}

// Usage is the number of tokens of a call, as the engine reports it.
type Usage struct {
	In, Out int64 // tokens
	// Reported is set once the engine has reported a valid usage.
	Reported bool
	// Cached is how many tokens of In came from the engine's cache.
	Cached int64
	// Reasoning is how many tokens of Out were reasoning.
	Reasoning int64
}

// Members reads the next value of dec, which the caller has checked to be an object. For
// each member it calls member with the name, unquoted and valid until the next read;
// member must read the value.
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

// Elements reads the next value of dec. If it is a list, it calls element for each
// element, which element must read.
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

// skip skips the next value of dec. It is faster than dec.SkipValue, which reads token by
// token.
func skip(dec *jsontext.Decoder) error {
	_, err := dec.ReadValue()
	return err
}

// valueIn returns the next value of dec as a slice of document, which dec reads.
func valueIn(document []byte, dec *jsontext.Decoder) (jsontext.Value, error) {
	value, err := dec.ReadValue()
	if err != nil {
		return nil, err
	}
	end := dec.InputOffset()
	return document[end-int64(len(value)) : end], nil
}

// readObject decodes r, which must contain one strict JSON object, into v.
func readObject(r io.Reader, v any) error {
	dec := jsontext.NewDecoder(r)
	return oneObject(dec, func() error { return json.UnmarshalDecode(dec, v) })
}

// oneObject calls read to decode dec, which must contain one strict JSON object.
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

// unquote returns the text of a JSON string that a decoder has already checked, nil for
// nil. It aliases the input unless the string has an escape.
func unquote(quoted jsontext.Value) []byte {
	if len(quoted) == 0 {
		return nil
	}
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	text, _ := jsontext.AppendUnquote(nil, quoted) // the decoder has checked it
	return text
}

// encoding are the options for writing JSON. All values were checked when they were read:
// duplicate names are not checked again, strings are written as they were read, and
// invalid UTF-8 in a Go string becomes U+FFFD.
var encoding = json.JoinOptions(json.Deterministic(true), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true), jsontext.PreserveRawStrings(true))

// encode returns v as JSON. Its type must be one of this package.
func encode(v any) []byte {
	text, err := json.Marshal(v, encoding)
	if err != nil {
		panic(err) // its values were read as JSON
	}
	return text
}

func quote(text string) jsontext.Value {
	quoted, _ := jsontext.AppendQuote(nil, text) // the error only reports invalid UTF-8, which becomes U+FFFD
	return quoted
}

// text returns the text of a JSON string, "" for nil.
func text(quoted jsontext.Value) string { return string(unquote(quoted)) }

// or returns value, or the default if value is nil.
func or(value jsontext.Value, standard string) jsontext.Value {
	if value == nil {
		return jsontext.Value(standard)
	}
	return value
}
