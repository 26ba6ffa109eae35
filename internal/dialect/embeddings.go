package dialect

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/fault"
)

// MaxInputs is how many texts one embeddings call may hold.
const MaxInputs = 2048

// ReadEmbeddingsHead is ReadHead for an embeddings call, whose input it checks, too:
// text, a list of texts, a list of token numbers or a list of such lists; 1 to
// MaxInputs of them, none empty.
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

// embeddingsReader reads the head of an embeddings call.
type embeddingsReader struct {
	headReader
	input bool // it was there
}

func badInput(rule string, args ...any) error {
	return fault.New(fault.InvalidRequest, "input "+rule, args...).WithParam("input")
}

// field reads one member of the body.
func (h *embeddingsReader) field(name []byte) error {
	switch string(name) {
	case "input":
		h.input = true
		return h.inputs()
	case "encoding_format":
		value, err := h.dec.ReadValue()
		if err != nil {
			return err
		}
		if s := string(value); s != `"float"` && s != `"base64"` && value.Kind() != 'n' {
			return fault.New(fault.InvalidRequest, "encoding_format must be float or base64").WithParam("encoding_format")
		}
		return nil
	case "dimensions":
		value, err := h.dec.ReadValue()
		if err != nil {
			return err
		}
		var n *int
		if json.Unmarshal(value, &n) != nil || n != nil && *n < 1 {
			return fault.New(fault.InvalidRequest, "dimensions must be a whole number of at least 1").WithParam("dimensions")
		}
		return nil
	case "reasoning_effort", "reasoning", "thinking", "chat_template_kwargs": // no controls here
		return h.dec.SkipValue()
	default:
		return h.member(name)
	}
}

// inputs checks what is to be embedded.
func (h *embeddingsReader) inputs() error {
	switch h.dec.PeekKind() {
	case '"':
		return h.text()
	case '[':
	default:
		if err := h.dec.SkipValue(); err != nil {
			return err
		}
		return badInput("must be a text, a list of texts, or lists of token numbers")
	}
	if _, err := h.dec.ReadToken(); err != nil {
		return err
	}
	items := 0
	var all jsontext.Kind // what the items are
	for h.dec.PeekKind() != ']' {
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
		var err error
		switch kind {
		case '"':
			err = h.text()
		case '0':
			err = h.number()
		case '[':
			err = h.numbers()
		default:
			if err = h.dec.SkipValue(); err == nil {
				err = badInput("must hold texts or token numbers")
			}
		}
		if err != nil {
			return err
		}
	}
	if items == 0 {
		return badInput("is an empty list")
	}
	_, err := h.dec.ReadToken()
	return err
}

// text checks one text.
func (h *embeddingsReader) text() error {
	value, err := h.dec.ReadValue()
	if err == nil && len(value) == len(`""`) {
		return badInput("holds an empty text, of which there is no embedding")
	}
	return err
}

// number checks one token number.
func (h *embeddingsReader) number() error {
	value, err := h.dec.ReadValue()
	if err != nil {
		return err
	}
	for _, b := range value {
		if b < '0' || b > '9' || len(value) > 9 {
			return badInput("holds a number that is no token")
		}
	}
	return nil
}

// numbers checks one list of token numbers.
func (h *embeddingsReader) numbers() error {
	if _, err := h.dec.ReadToken(); err != nil {
		return err
	}
	n := 0
	for ; h.dec.PeekKind() != ']'; n++ {
		if h.dec.PeekKind() != '0' {
			if err := h.dec.SkipValue(); err != nil {
				return err
			}
			return badInput("holds a list of something else than token numbers")
		}
		if err := h.number(); err != nil {
			return err
		}
	}
	if n == 0 {
		return badInput("holds an empty list")
	}
	_, err := h.dec.ReadToken()
	return err
}
