package dialect

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"github.com/kith/kith/internal/fault"
)

// CheckUnary checks a unary answer: it must be one strict JSON object that reports no
// error. It decodes the answer as a stream and returns the usage that the engine
// reported. Errors are *fault.Fault, or those of reading.
func CheckUnary(answer io.Reader) (Usage, error) {
	o := objects.Get().(*object)
	o.dec.Reset(answer)
	defer func() {
		if o.dec.InputOffset() > 1<<20 { // its buffer has grown
			return
		}
		o.usage, o.failure = Usage{}, nil // keep nothing of the answer
		o.dec.Reset(&o.source)
		objects.Put(o)
	}()
	if err := o.scan(); err != nil {
		return Usage{}, err
	}
	if o.failure != nil {
		return Usage{}, errorMember(o.failure)
	}
	return o.usage, nil
}

// objects are checkers of answers, pooled for the buffers of their decoders.
var objects = sync.Pool{New: func() any { return new(object) }}

// object checks one JSON object of an answer and extracts what the edge needs. It is
// reused from chunk to chunk and then does not allocate.
type object struct {
	dec    jsontext.Decoder
	source bytes.Buffer // the chunk that dec reads: an alias of the document

	usage   Usage
	failure jsontext.Value // the error member; nil if absent or null
	content bool           // a choice's delta has text, reasoning or a tool call

	into *delta // receives what the chunk adds; nil: not needed
}

// read checks a chunk. usage is kept from chunk to chunk; failure and content are only
// for this one.
func (o *object) read(document []byte) error {
	o.failure, o.content = nil, false
	if o.into != nil {
		*o.into = delta{document: document, calls: o.into.calls[:0]}
	}
	o.source = *bytes.NewBuffer(document) // parsed in place
	o.dec.Reset(&o.source)
	return o.scan()
}

func (o *object) scan() error {
	return oneObject(&o.dec, func() error { return Members(&o.dec, o.member) })
}

// notJSON returns the fault of an answer that is not valid JSON, or err if reading the
// answer failed.
func notJSON(err error) error {
	if err == nil || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, new(*jsontext.SyntacticError)) {
		return invalidAnswer("broken JSON")
	}
	return err
}

func (o *object) member(name []byte) error {
	switch string(name) {
	case "choices":
		return o.choices()
	case "usage":
		value, err := o.dec.ReadValue()
		if err == nil && value.Kind() == '{' {
			o.usage = readUsage(value)
		}
		return err
	case "error":
		value, err := o.dec.ReadValue()
		if err == nil && value.Kind() != 'n' {
			o.failure = bytes.Clone(value)
		}
		return err
	case "data": // one for each embedding
		return Elements(&o.dec, func() error { return skip(&o.dec) })
	default:
		return skip(&o.dec)
	}
}

func (o *object) choices() error {
	return Elements(&o.dec, func() (err error) {
		if o.dec.PeekKind() != '{' {
			return skip(&o.dec)
		}
		err = Members(&o.dec, o.choice)
		if o.into != nil {
			o.into.done = true
		}
		return err
	})
}

func (o *object) choice(name []byte) error {
	if string(name) == "delta" && o.dec.PeekKind() == '{' {
		return Members(&o.dec, o.delta)
	}
	if o.into == nil {
		return skip(&o.dec)
	}
	value, err := valueIn(o.into.document, &o.dec)
	o.into.choice(name, value)
	return err
}

func (o *object) delta(name []byte) error {
	carries := false
	switch string(name) {
	case "content", "reasoning_content", "reasoning", "refusal", "tool_calls":
		carries = true
	}
	if o.into != nil && string(name) == "tool_calls" && o.dec.PeekKind() == '[' {
		calls, err := o.into.toolCalls(&o.dec)
		o.content = o.content || calls
		return err
	}
	var value jsontext.Value
	var err error
	if o.into == nil {
		value, err = o.dec.ReadValue()
	} else {
		value, err = valueIn(o.into.document, &o.dec)
		o.into.delta(name, value)
	}
	if carries && err == nil && len(value) > len(`""`) && value.Kind() != 'n' {
		o.content = true
	}
	return err
}

// UsageTrailer is the trailer of a streamed answer with the engine's token counts,
// "PROMPT COMPLETION". The daemon requests the counts from its engine for every stream,
// and removes their chunk unless the caller requested it.
const UsageTrailer = "Kith-Usage"

// CachedTrailer is the trailer with Usage.Cached.
const CachedTrailer = "Kith-Cached"

// Trailer returns the usage as the value of a UsageTrailer.
func (u Usage) Trailer() string {
	return strconv.FormatInt(u.In, 10) + " " + strconv.FormatInt(u.Out, 10)
}

// ParseTrailer parses the values of UsageTrailer and CachedTrailer. It returns false if
// the first is missing or malformed.
func ParseTrailer(value, cached string) (Usage, bool) {
	in, out, ok := strings.Cut(value, " ")
	u := Usage{Reported: true}
	var errIn, errOut error
	u.In, errIn = strconv.ParseInt(in, 10, 64)
	u.Out, errOut = strconv.ParseInt(out, 10, 64)
	if n, err := strconv.ParseInt(cached, 10, 64); err == nil {
		u.Cached = min(max(n, 0), u.In)
	}
	return u, ok && errIn == nil && errOut == nil && u.In >= 0 && u.Out >= 0
}

// readUsage parses a usage object. If it is none, or a count is negative or of another
// type, it returns the zero Usage.
func readUsage(value jsontext.Value) Usage {
	var usage struct {
		PromptTokens     int64 `json:"prompt_tokens"`
		CompletionTokens int64 `json:"completion_tokens"`
		PromptDetails    struct {
			CachedTokens int64 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
		CompletionDetails struct {
			ReasoningTokens int64 `json:"reasoning_tokens"`
		} `json:"completion_tokens_details"`
	}
	if value.Kind() != '{' || json.Unmarshal(value, &usage) != nil || min(usage.PromptTokens, usage.CompletionTokens) < 0 {
		return Usage{}
	}
	return Usage{
		In: usage.PromptTokens, Out: usage.CompletionTokens, Reported: true,
		Cached:    min(max(usage.PromptDetails.CachedTokens, 0), usage.PromptTokens),
		Reasoning: min(max(usage.CompletionDetails.ReasoningTokens, 0), usage.CompletionTokens),
	}
}

func invalidAnswer(what string) *fault.Fault {
	return fault.New(fault.EngineError, "the machine's engine sent %s; try again, or another model", what)
}

// callsOutOfOrder returns the fault for a later part of a tool call that does not belong
// to the call before it. In canonical chat a call is complete before anything else begins
// (spec/engine-answers.md#call-order).
func callsOutOfOrder() *fault.Fault { return invalidAnswer("parts of tool calls out of order") }

// maxEngineText is the most bytes of an engine's error message that a caller gets.
const maxEngineText = 300

// reportedError returns engine_error with the engine's message from an error document. If
// the message means that the prompt is too long or the memory is full, it returns the
// fault for that.
func reportedError(document []byte) *fault.Fault {
	if f := ContextExceeded(document); f != nil {
		return f
	}
	if Crowded(document) {
		return fault.New(fault.CapacityFull, "the machine's engine has no memory left beside its other calls; try again")
	}
	text := EngineText(document)
	if text == "" {
		return fault.New(fault.EngineError, "the machine's engine failed on this request")
	}
	return fault.New(fault.EngineError, "the machine's engine failed on this request: %s", text)
}

// errorMember is reportedError for the value of an error member.
func errorMember(member jsontext.Value) *fault.Fault {
	return reportedError(encode(jsonObject{"error": member}))
}

// EngineText returns the code and the message of an engine's error document as one
// printable line of limited length. It omits a code that adds nothing to the status. It
// returns "" if there is neither.
func EngineText(document []byte) string {
	e := readEngineError(document)
	text := e.text
	if e.code != "" && e.code != string(fault.InvalidRequest) && e.code != "invalid_request_error" {
		text = e.code + ": " + text
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
	if len(text) > maxEngineText {
		text = strings.ToValidUTF8(text[:maxEngineText], "") + "…"
	}
	return text
}
