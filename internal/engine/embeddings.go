package engine

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"math"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/fault"
)

// embeddings normalizes an embeddings answer: the advertised id, one vector for
// each input in the order of the inputs, in the requested encoding, whatever the
// engine supports. An answer that is none passes unchanged, and the gateway
// refuses it.
func (m *normalizer) embeddings(body []byte) ([]byte, error) {
	var got struct {
		Data []struct {
			Index     *int           `json:"index"`
			Embedding jsontext.Value `json:"embedding"`
		} `json:"data"`
		Usage jsontext.Value `json:"usage"`
		Error jsontext.Value `json:"error"`
	}
	if err := json.Unmarshal(body, &got); err != nil || got.Error != nil && got.Error.Kind() != 'n' {
		return body, nil
	}
	if len(got.Data) != m.want.inputs {
		return nil, fault.New(fault.EngineError, "the engine gave %d embeddings for %d inputs", len(got.Data), m.want.inputs)
	}
	type vector struct {
		Object    string         `json:"object"`
		Index     int            `json:"index"`
		Embedding jsontext.Value `json:"embedding"`
	}
	answer := struct {
		Object string         `json:"object"`
		Data   []vector       `json:"data"`
		Model  jsontext.Value `json:"model"`
		Usage  jsontext.Value `json:"usage"`
	}{"list", make([]vector, len(got.Data)), m.model, got.Usage}
	for i, d := range got.Data {
		if d.Index != nil {
			i = *d.Index
		}
		if i < 0 || i >= len(answer.Data) || answer.Data[i].Object != "" {
			return nil, fault.New(fault.EngineError, "the engine does not say which embedding is whose")
		}
		encoded, ok := encodeVector(d.Embedding, m.want.base64)
		if !ok {
			return nil, fault.New(fault.EngineError, "the engine's embeddings are no lists of numbers")
		}
		answer.Data[i] = vector{"embedding", i, encoded}
	}
	if got.Usage.Kind() != '{' {
		answer.Usage = jsontext.Value(`{"prompt_tokens":0,"total_tokens":0}`)
	}
	return json.Marshal(answer)
}

// encodeVector returns a vector as the base64 of its little-endian 32-bit floats,
// or as numbers; ok is false if it is neither.
func encodeVector(vector jsontext.Value, asBase64 bool) (_ jsontext.Value, ok bool) {
	switch kind := vector.Kind(); {
	case kind == '"':
		raw, err := base64.StdEncoding.DecodeString(textIn(vector))
		if err != nil || len(raw) == 0 || len(raw)%4 != 0 {
			return nil, false
		}
		if asBase64 {
			return vector, true
		}
		floats := make([]float32, len(raw)/4)
		for i := range floats {
			floats[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
		numbers, err := json.Marshal(floats) // refuses NaN and infinities
		return numbers, err == nil
	case kind == '[' && asBase64:
		var floats []float64
		if json.Unmarshal(vector, &floats) != nil || len(floats) == 0 {
			return nil, false
		}
		raw := make([]byte, 0, 4*len(floats))
		for _, x := range floats {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(x)))
		}
		encoded, err := json.Marshal(raw) // base64
		return encoded, err == nil
	case kind == '[': // numbers for numbers: only the first is checked
		first := bytes.TrimLeft(vector[1:], " \t\r\n")[0]
		return vector, first == '-' || first >= '0' && first <= '9'
	}
	return nil, false
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
			return c.refuse("more than %d are not taken", most)
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
