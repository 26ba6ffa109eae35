package engine

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"math"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// embeddings normalizes an embeddings answer: it has the advertised id and one vector for
// each input, in the order of the inputs and in the requested encoding, whatever the
// engine supports (spec/engine-answers.md#vectors).
func embeddings(body []byte, model fleet.ModelID, want wants) ([]byte, error) {
	type vector struct {
		Object    string         `json:"object"`
		Index     int            `json:"index"`
		Embedding jsontext.Value `json:"embedding"`
	}
	var got struct {
		sentAnswer
		Data []struct {
			Index     jsontext.Value `json:"index"`
			Embedding jsontext.Value `json:"embedding"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &got, lenient); err != nil {
		return nil, notChat("something that is not an embeddings answer", body)
	}
	if err := got.failed(body); err != nil {
		return nil, err
	}
	n := len(got.Data)
	if n != want.inputs {
		return nil, fault.New(fault.EngineError, "the engine gave %d embeddings for %d inputs", n, want.inputs)
	}
	data, placed := make([]vector, n), make([]bool, n)
	for i, d := range got.Data {
		encoded, ok := encodeVector(d.Embedding, want.base64)
		if !ok {
			return nil, fault.New(fault.EngineError, "the engine's embeddings are not lists of numbers")
		}
		data[i] = vector{"embedding", i, encoded}
	}
	// The indexes are only used if each occurs exactly once. Otherwise the order is used.
	byIndex := make([]vector, n)
	for i, d := range got.Data {
		at, ok := count(d.Index)
		if !ok || at >= int64(n) || placed[at] {
			byIndex = data
			break
		}
		placed[at], byIndex[at] = true, vector{"embedding", int(at), data[i].Embedding}
	}
	usage, _ := readUsage(got.Usage)
	type counts struct {
		Prompt int64 `json:"prompt_tokens"`
		Total  int64 `json:"total_tokens"`
	}
	return json.Marshal(struct {
		Object string        `json:"object"`
		Data   []vector      `json:"data"`
		Model  fleet.ModelID `json:"model"`
		Usage  counts        `json:"usage"`
	}{"list", byIndex, model, counts{usage.In, usage.In}})
}

// encodeVector returns a vector either as the base64 of its little-endian 32-bit floats
// or as numbers; ok is false if the input is neither.
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
		numbers, err := json.Marshal(floats) // rejects NaN and infinities
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
	case kind == '[': // if it stays numbers, only the first one is checked
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
	if err := c.bracket(); err != nil {
		return err
	}
	flat := c.dec.PeekKind() == '0' // one input in the form of token numbers
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
	return c.bracket()
}
