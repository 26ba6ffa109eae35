package engine

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"math"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/fault"
)

// embeddings normalizes an embeddings answer: the advertised id, one vector for
// each input in the order of the inputs, in the requested encoding, whatever the
// engine supports. An answer that is none passes unchanged, and the gateway
// refuses it.
func (m *normalizer) embeddings(body []byte) ([]byte, error) {
	var told struct {
		Data []struct {
			Index     *int           `json:"index"`
			Embedding jsontext.Value `json:"embedding"`
		} `json:"data"`
		Usage jsontext.Value `json:"usage"`
		Error jsontext.Value `json:"error"`
	}
	if err := json.Unmarshal(body, &told); err != nil || told.Error != nil && told.Error.Kind() != 'n' {
		return body, nil
	}
	if len(told.Data) != m.want.inputs {
		return nil, fault.New(fault.EngineError, "the engine gave %d embeddings for %d inputs", len(told.Data), m.want.inputs)
	}
	order := make([]int, len(told.Data))
	for i, d := range told.Data {
		order[i] = i
		if d.Index != nil {
			order[i] = *d.Index
		}
	}
	places := make([]int, len(order))
	for i := range places {
		places[i] = i
	}
	slices.SortFunc(places, func(a, b int) int { return cmp.Compare(order[a], order[b]) })
	out := append(make([]byte, 0, len(body)), `{"object":"list","data":[`...)
	for i, at := range places {
		if order[at] != i {
			return nil, fault.New(fault.EngineError, "the engine does not say which embedding is whose")
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, `{"object":"embedding","index":`...)
		out = strconv.AppendInt(out, int64(i), 10)
		out = append(out, `,"embedding":`...)
		var ok bool
		if out, ok = encodeVector(out, told.Data[at].Embedding, m.want.base64); !ok {
			return nil, fault.New(fault.EngineError, "the engine's embeddings are no lists of numbers")
		}
		out = append(out, '}')
	}
	out = append(append(append(out, `],`...), m.exact...), `,"usage":`...)
	if told.Usage.Kind() == '{' {
		return append(append(out, told.Usage...), '}'), nil
	}
	return append(out, `{"prompt_tokens":0,"total_tokens":0}}`...), nil
}

// encodeVector returns a vector as the base64 of its little-endian 32-bit floats,
// or as numbers; ok is false if it is neither.
func encodeVector(out []byte, vector jsontext.Value, asBase64 bool) (_ []byte, ok bool) {
	switch kind := vector.Kind(); {
	case kind == '"' && asBase64:
		raw, err := base64.StdEncoding.DecodeString(textIn(vector))
		return append(out, vector...), err == nil && len(raw) > 0 && len(raw)%4 == 0
	case kind == '"':
		raw, err := base64.StdEncoding.DecodeString(textIn(vector))
		if err != nil || len(raw) == 0 || len(raw)%4 != 0 {
			return out, false
		}
		for i := 0; i < len(raw); i += 4 {
			x := float64(math.Float32frombits(binary.LittleEndian.Uint32(raw[i:])))
			if math.IsNaN(x) || math.IsInf(x, 0) { // JSON has no such numbers
				return out, false
			}
			out = strconv.AppendFloat(append(out, separator(i)), x, 'g', -1, 32)
		}
		return append(out, ']'), true
	case kind == '[' && asBase64:
		var numbers []float64
		if json.Unmarshal(vector, &numbers) != nil || len(numbers) == 0 {
			return out, false
		}
		raw := make([]byte, 0, 4*len(numbers))
		for _, x := range numbers {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(x)))
		}
		return append(base64.StdEncoding.AppendEncode(append(out, '"'), raw), '"'), true
	case kind == '[': // numbers for numbers: only the first is checked
		inside := bytes.TrimLeft(vector[1:], " \t\r\n")
		return append(out, vector...), inside[0] == '-' || inside[0] >= '0' && inside[0] <= '9'
	}
	return out, false
}

func separator(i int) byte {
	if i == 0 {
		return '['
	}
	return ','
}

// input copies the inputs of an embeddings call and counts them.
func (c *copier) input() error {
	if c.dec.PeekKind() == '"' {
		c.inputs = 1
		return text(0).put(c)
	}
	tokens := integer(0, math.MaxInt32)
	one, most := either(text(0), list(maxInputTokens, tokens)), maxInputs
	if err := c.token(); err != nil {
		return err
	}
	flat := c.dec.PeekKind() == '0' // one input as token numbers
	if flat {
		one, most = tokens, maxInputTokens
	}
	for n := 0; c.dec.PeekKind() != ']'; n++ {
		if n == most {
			return c.refuse("more than %d are not spooled", most)
		}
		c.tokens = c.tokens || c.dec.PeekKind() != '"'
		if err := one.put(c); err != nil {
			return err
		}
		c.inputs++
	}
	if flat {
		c.inputs = 1
	}
	return c.token()
}
