package dialect

import (
	"bytes"

	"github.com/kith/kith/internal/fault"
)

// Limits of a request body: decoding a value of one or two bytes takes many times that
// memory (spec/security.md#bombs).
const (
	// MaxDepth is the deepest nesting (spec/api.md#strict-json).
	MaxDepth = 64
	// MaxNames is the most names in one object.
	MaxNames = 10_000
	// MaxValues is the most values in the body. The values of an embeddings call's input,
	// which may be token numbers, are counted separately, up to MaxTokens.
	MaxValues = 200_000
	MaxTokens = 2_000_000
)

// bounds are the most values and names in a body, and the most values in its input. If
// inputs is 0, the values of the input are counted with the others.
type bounds struct{ values, names, inputs int }

// scan counts the body's levels, names and values in one pass over its bytes, before it
// is decoded. It is exact for valid JSON; the decoder refuses the rest later. Three fast
// counts avoid the pass for nearly every body.
func (s bounds) scan(body []byte) error {
	opened := bytes.Count(body, []byte("{")) + bytes.Count(body, []byte("["))
	if opened <= MaxDepth && opened+bytes.Count(body, []byte(",")) < min(s.names, s.values) {
		return nil
	}
	var (
		names  [MaxDepth + 1]int // so far in the open object at each depth; -1: a list is open there
		depth  int
		last   []byte // last string at the top level
		member []byte // member of the top level, quoted
		values = 1
		inputs = 0
	)
	for i := 0; i < len(body); i++ {
		found := false // a value, not a name
		switch body[i] {
		case '{', '[':
			if depth++; depth > MaxDepth {
				return fault.New(fault.InvalidRequest, "cannot read the body: it nests deeper than %d levels", MaxDepth)
			}
			if names[depth] = 0; body[i] == '[' {
				names[depth] = -1
				i = spaceEnd(body, i+1) - 1
				found = i+1 < len(body) && body[i+1] != ']'
			}
		case '}', ']':
			depth = max(depth-1, 0)
		case '"':
			end := stringEnd(body, i+1)
			if depth == 1 {
				last = body[i:min(end+1, len(body))]
			}
			i = end
		case ',':
			found = names[depth] < 0
		case ':':
			found = true
			if depth == 1 {
				member = last
			}
			if names[depth]++; names[depth] > s.names {
				return s.tooMany(depth, member, "an object of it holds more than %d names", s.names)
			}
		}
		switch {
		case !found:
		case s.inputs > 0 && depth > 1 && string(member) == `"input"`:
			if inputs++; inputs > s.inputs {
				return s.tooMany(depth, member, "it holds more than %d values", s.inputs)
			}
		default:
			if values++; values > s.values {
				return s.tooMany(depth, member, "it holds more than %d values", s.values)
			}
		}
	}
	return nil
}

// tooMany returns the fault for a limit that was exceeded at that depth, in that member
// of the top level.
func (s bounds) tooMany(depth int, member []byte, rule string, bound int) error {
	f := fault.New(fault.InvalidRequest, "cannot read the body: "+rule, bound)
	if depth > 1 && len(member) > 2 && len(member) < 64 {
		f = f.WithParam(string(member[1 : len(member)-1]))
	}
	return f
}
