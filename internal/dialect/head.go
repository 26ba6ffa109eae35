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

// Head is what the edge needs from a request body.
type Head struct {
	Model fleet.ModelID // never empty, but may be invalid
	// Stream is false if the member is null.
	Stream bool
	// IncludeUsage is set if the caller requested a usage frame
	// (stream_options.include_usage).
	IncludeUsage bool
	// Text is the number of bytes of the conversation in the body.
	Text int
	// Choices is the number of answers requested (n), at most MaxChoices, each of which
	// occupies a slot; 0: one.
	Choices int
}

// MaxChoices is the most answers that one call may request.
const MaxChoices = 4

// ReadHead reads the head of body, which must be one strict JSON object: UTF-8, no
// duplicate names at any depth, nothing after it, within limits such as MaxDepth, and no
// case variants of model and stream. Nothing passes that another parser could read
// differently. Thinking controls are checked but not kept. Every error is a *fault.Fault
// invalid_request that names the member at fault.
func ReadHead(body []byte) (Head, error) {
	var h headReader
	if err := h.read(body, h.member); err != nil {
		return Head{}, err
	}
	return h.Head, nil
}

// ReadMessagesHead is ReadHead for the messages dialect, which has different thinking
// controls. It does not check the other members.
func ReadMessagesHead(body []byte) (Head, error) {
	var h headReader
	if err := h.read(body, func([]byte) error { return skip(h.dec) }); err != nil {
		return Head{}, err
	}
	return h.Head, nil
}

// ScanHead reads the head of a body that an engine's allow-list checks later. It does not
// check the JSON itself, only its limits, such as MaxDepth: with a long prompt each check
// takes long.
func ScanHead(body []byte) (h Head, err error) {
	if err := (bounds{MaxValues, MaxNames, 0}).scan(body); err != nil {
		return h, err
	}
	for name, value := range ScanMembers(body) {
		switch string(name) {
		case "model":
			if value[0] == '"' && len(value) > 1 {
				h.Model = fleet.ModelID(unquote(value))
			}
		case "stream":
			h.Stream = string(value) == "true"
		case "n":
			h.Choices = choices(value)
		}
	}
	return h, nil
}

// choices returns the number of answers that the member n requests. The engine refuses
// values of other types.
func choices(value jsontext.Value) int {
	var n float64
	if json.Unmarshal(value, &n) != nil {
		return 0
	}
	return int(min(max(n, 1), MaxChoices))
}

// space is the white space that JSON allows between tokens.
const space = " \t\r\n"

// readers are pooled for the buffers of their decoders.
var readers = sync.Pool{New: func() any { return new(reader) }}

type reader struct {
	dec    jsontext.Decoder
	source bytes.Buffer
}

// release returns the reader to the pool without any part of the body. After a large body
// it drops the reader, whose memory has grown with the names.
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
	dec    *jsontext.Decoder // only while read runs
	inputs int               // the most values in the input, counted separately from the others
	forms  bool              // the body uses ChatForms
}

// read reads the body, which must be one strict object that names a model. For each
// member except model and stream it calls member, which reads the value from h.dec. Every
// error is a *fault.Fault.
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
	case "stream_options": // SDKs send it in unusual forms, which are not worth a refusal
		var options struct {
			IncludeUsage bool `json:"include_usage"`
		}
		if json.Unmarshal(value, &options) == nil {
			h.IncludeUsage = options.IncludeUsage
		}
	case "n":
		h.Choices = choices(value)
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

// refusal returns the fault for a reader's error. It names the place where the body is
// not strict JSON, and quotes only the names of members.
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
