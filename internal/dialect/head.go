package dialect

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"strings"
	"sync"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// Head is what the edge reads from a request body.
type Head struct {
	Model fleet.ModelID // never empty; perhaps not Valid
	// Stream is false for null.
	Stream bool
	// IncludeUsage says that the caller asked for a usage frame
	// (stream_options.include_usage).
	IncludeUsage bool
	// Text is how many bytes of the body are the conversation.
	Text int
	// Choices is how many answers are asked for at once (n), at most MaxChoices, each
	// of which holds a slot; 0: one.
	Choices int
}

// MaxChoices is how many answers one call may ask for.
const MaxChoices = 4

// ReadHead checks that body is one strict JSON object (UTF-8, no duplicate names
// at any depth, nothing after it, within the bounds of MaxDepth and its like, no
// case variants of model and stream) and reads its head. Thinking controls are checked, not
// kept. Every error is a *fault.Fault invalid_request that names the member at
// fault; what another parser could read differently never passes.
func ReadHead(body []byte) (Head, error) {
	var h headReader
	if err := h.read(body, h.member); err != nil {
		return Head{}, err
	}
	return h.Head, nil
}

// ReadMessagesHead is ReadHead for the messages dialect, which has thinking controls of
// its own: the other members are not checked.
func ReadMessagesHead(body []byte) (Head, error) {
	var h headReader
	if err := h.read(body, func([]byte) error { return skip(h.dec) }); err != nil {
		return Head{}, err
	}
	return h.Head, nil
}

// space is what JSON allows between its tokens.
const space = " \t\r\n"

// readers are kept for their decoders.
var readers = sync.Pool{New: func() any { return new(reader) }}

type reader struct {
	dec    jsontext.Decoder
	source bytes.Buffer
}

// release keeps the reader and nothing of the body. One that has seen a large
// body has grown with its names.
func (r *reader) release(large bool) {
	if large {
		return
	}
	r.source = bytes.Buffer{}
	r.dec.Reset(&r.source)
	readers.Put(r)
}

type headReader struct {
	Head
	dec    *jsontext.Decoder // while read runs
	inputs int               // how many values the input may hold beside all others
	forms  bool              // the body uses ChatForms
}

// read reads the body, one strict object that names a model; member reads each
// of its members but model and stream from h.dec. Every error is a *fault.Fault.
func (h *headReader) read(body []byte, member func(name []byte) error) error {
	if len(bytes.TrimLeft(body, space)) == 0 {
		return fault.New(fault.InvalidRequest, "the body is empty: send a JSON object")
	}
	if err := (bounds{MaxValues, MaxNames, h.inputs}).scan(body); err != nil {
		return err
	}
	r := readers.Get().(*reader)
	defer r.release(len(body) > 1<<20)
	r.source = *bytes.NewBuffer(body) // read in place
	r.dec.Reset(&r.source)
	h.dec = &r.dec
	if kind := h.dec.PeekKind(); kind != '{' && kind != 0 {
		if _, err := h.dec.ReadValue(); err != nil {
			return refusal(err)
		}
		return fault.New(fault.InvalidRequest, "the body must be a JSON object")
	}
	err := Members(h.dec, func(name []byte) error {
		switch string(name) {
		case "model":
			return h.model()
		case "stream":
			return h.stream()
		}
		for _, known := range [...]string{"model", "stream"} {
			if bytes.EqualFold(name, []byte(known)) {
				return fault.New(fault.InvalidRequest, "the body spells %s as %q: names are case-sensitive", known, name).WithParam(string(name))
			}
		}
		return member(name)
	})
	if err != nil {
		return refusal(err)
	}
	if rest := bytes.TrimLeft(body[h.dec.InputOffset():], space); len(rest) > 0 {
		return fault.New(fault.InvalidRequest, "the body is not strict JSON: something follows the object, near byte %d", len(body)-len(rest))
	}
	if h.Model == "" {
		return fault.New(fault.InvalidRequest, "the body names no model: set model to an id that GET /v1/models lists").WithParam("model")
	}
	return nil
}

// member reads one member of a chat body.
func (h *headReader) member(name []byte) error {
	value, err := h.dec.ReadValue()
	if err != nil {
		return err
	}
	switch string(name) {
	case "messages":
		h.Text = len(value)
	case "stream_options": // SDKs send it in odd shapes, and none is worth a refusal
		var options struct {
			IncludeUsage bool `json:"include_usage"`
		}
		if json.Unmarshal(value, &options) == nil {
			h.IncludeUsage = options.IncludeUsage
		}
	case "n": // what is no number is the engine's to refuse
		var n float64
		if json.Unmarshal(value, &n) == nil {
			h.Choices = int(min(max(n, 1), MaxChoices))
		}
	case "reasoning_effort", "reasoning", "thinking", "chat_template_kwargs":
		_, err := ReadThinking(string(name), value)
		return err
	case "functions", "function_call", "tools", "tool_choice", "web_search_options":
		h.forms = h.forms || usesForms(string(name), value)
	}
	return nil
}

func (h *headReader) model() error {
	value, err := h.dec.ReadValue()
	if err != nil {
		return err
	}
	if value.Kind() != '"' {
		return fault.New(fault.InvalidRequest, "model must be a string").WithParam("model")
	}
	h.Model = fleet.ModelID(unquote(value))
	return nil
}

func (h *headReader) stream() error {
	value, err := h.dec.ReadValue()
	if err != nil {
		return err
	}
	switch value.Kind() {
	case 't':
		h.Stream = true
	case 'f', 'n':
	default:
		return fault.New(fault.InvalidRequest, "stream must be true or false").WithParam("stream")
	}
	return nil
}

// refusal is the fault of a reader's error: it says where the body stops being strict JSON, and quotes nothing but a
// member's name.
func refusal(err error) *fault.Fault {
	var f *fault.Fault
	if errors.As(err, &f) {
		return f
	}
	var syntactic *jsontext.SyntacticError
	if !errors.As(err, &syntactic) {
		return fault.New(fault.InvalidRequest, "the body is not strict JSON")
	}
	if errors.Is(err, jsontext.ErrDuplicateName) {
		name := syntactic.JSONPointer.LastToken()
		return fault.New(fault.InvalidRequest, "the body is not strict JSON: the name %q comes twice in one object", name).WithParam(name)
	}
	reason := "it is cut short or malformed"
	switch text := syntactic.Err.Error(); {
	case strings.Contains(text, "UTF-8"):
		reason = "it is not valid UTF-8"
	case strings.Contains(text, "surrogate"), strings.Contains(text, "escape sequence"):
		reason = "a string holds an invalid escape"
	}
	return fault.New(fault.InvalidRequest, "the body is not strict JSON: %s, near byte %d", reason, syntactic.ByteOffset)
}
