package dialect

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"

	"github.com/kith/kith/internal/fault"
)

// MaxInputs is the most texts in one embeddings call.
const MaxInputs = 2048

// ReadEmbeddingsHead is ReadHead for an embeddings call. It also checks the input: a
// text, a list of texts, a list of token numbers or a list of such lists; 1 to MaxInputs
// of them, none empty.
func ReadEmbeddingsHead(body []byte) (Head, error) {
	h := embeddingsReader{headReader: headReader{inputs: MaxTokens}}
	if err := h.read(body, h.field); err != nil {
		return Head{}, err
	}
	if !h.input {
		return Head{}, badInput("is missing: send a text or a list of texts")
	}
	return h.Head, nil
}

type embeddingsReader struct {
	headReader
	input bool // it was present
}

func badInput(rule string, args ...any) error {
	return fault.New(fault.InvalidRequest, "input "+rule, args...).WithParam("input")
}

func (h *embeddingsReader) field(name []byte) error {
	switch string(name) {
	case "input":
		h.input = true
		return h.inputs()
	case "encoding_format":
		value, err := h.dec.ReadValue()
		if s := string(value); err == nil && s != `"float"` && s != `"base64"` && s != "null" {
			err = fault.New(fault.InvalidRequest, "encoding_format must be float or base64").WithParam("encoding_format")
		}
		return err
	case "dimensions":
		value, err := h.dec.ReadValue()
		var n *int
		if err == nil && (json.Unmarshal(value, &n) != nil || n != nil && *n < 1) {
			err = fault.New(fault.InvalidRequest, "dimensions must be a whole number of at least 1").WithParam("dimensions")
		}
		return err
	case "reasoning_effort", "reasoning", "thinking", "chat_template_kwargs": // embeddings have no thinking controls
		return skip(h.dec)
	default:
		return h.member(name)
	}
}

func (h *embeddingsReader) inputs() error {
	switch h.dec.PeekKind() {
	case '"':
		return h.text()
	case '[':
	default:
		return h.refuseNext("must be a text, a list of texts, or lists of token numbers")
	}
	items := 0
	var all jsontext.Kind // kind of the items
	err := Elements(h.dec, func() error {
		kind := h.dec.PeekKind()
		if items++; all == 0 {
			all = kind
		}
		switch {
		case kind != all:
			return badInput("must hold texts only, or token numbers only")
		case kind != '0' && items > MaxInputs:
			return badInput("holds more than %d texts: send them in several calls", MaxInputs)
		}
		switch kind {
		case '"':
			return h.text()
		case '0':
			return h.number()
		case '[':
			return h.numbers()
		}
		return h.refuseNext("must hold texts or token numbers")
	})
	if err == nil && items == 0 {
		return badInput("is an empty list")
	}
	return err
}

// refuseNext skips the next value and returns the fault for it.
func (h *embeddingsReader) refuseNext(rule string) error {
	if err := skip(h.dec); err != nil {
		return err
	}
	return badInput("%s", rule)
}

func (h *embeddingsReader) text() error {
	value, err := h.dec.ReadValue()
	if err == nil && len(value) == len(`""`) {
		return badInput("holds an empty text, of which there is no embedding")
	}
	return err
}

func (h *embeddingsReader) number() error {
	value, err := h.dec.ReadValue()
	if err == nil && (len(value) > 9 || len(bytes.Trim(value, "0123456789")) > 0) {
		return badInput("holds a number that is no token")
	}
	return err
}

func (h *embeddingsReader) numbers() error {
	n := 0
	err := Elements(h.dec, func() error {
		if n++; h.dec.PeekKind() != '0' {
			return h.refuseNext("holds a list of something else than token numbers")
		}
		return h.number()
	})
	if err == nil && n == 0 {
		return badInput("holds an empty list")
	}
	return err
}
