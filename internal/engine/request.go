package engine

import (
	"bytes"
	"cmp"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// wants are the caller's requirements for the answer that normalizer or Do fulfills.
type wants struct {
	usage    bool // add the chunk with the token counts
	hide     bool // remove the reasoning
	base64   bool // embeddings as base64
	inputs   int  // number of inputs to embed
	streamed bool // the engine was asked for a stream
	effort   bool // reasoning_effort was sent, but the engine may not support its value
}

type member struct{ name, value string }

// maxTokens limits an untrusted max_tokens if the context length is unknown.
const maxTokens = 128 << 10

// request returns the body for the engine. It is written from the parsed values, so that
// kith and the engine cannot interpret it differently. model and stream are those of the
// routed call.
func (e *Engine) request(req *Request, m *Model) ([]byte, wants, error) {
	r := rebuild{
		copier: copier{
			dec:     jsontext.NewDecoder(bytes.NewBuffer(req.Body)),
			out:     make(writer, 0, len(req.Body)+1024), // what is added nearly always fits
			trusted: req.Trusted && req.Endpoint == fleet.ChatCompletions, developer: e.kind.developer,
		},
		req: req, kind: e.kind, model: m,
	}
	if err := r.run(); err != nil {
		return nil, wants{}, refused(err)
	}
	return r.out, r.want, nil
}

// refused returns err as a *fault.Fault.
func refused(err error) error {
	if _, ok := errors.AsType[*fault.Fault](err); ok {
		return err
	}
	if _, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return fault.New(fault.InvalidRequest, "the body is not strict JSON; check quotes, commas and repeated names").Because(err)
	}
	return fault.New(fault.InvalidRequest, "the body ended too early; send one complete JSON object").Because(err)
}

type rebuild struct {
	copier
	req   *Request
	kind  *kind
	model *Model
	want  wants

	think         thinkingSources
	limit         jsontext.Value // max_tokens
	completionMax jsontext.Value // max_completion_tokens
	kwargs        []member       // from chat_template_kwargs, without thinking settings
	tools         bool           // the call has tools
	forTools      []member       // members that matter only with tools, unchanged
	logprobs      bool           // the call requests logprobs
}

func (r *rebuild) run() error {
	if r.dec.PeekKind() != '{' {
		if _, err := r.dec.ReadToken(); err != nil {
			return err
		}
		return fault.New(fault.InvalidRequest, "the body is not a JSON object")
	}
	if err := r.bracket(); err != nil {
		return err
	}
	r.write("model", quoted(string(r.req.Model)))
	for r.dec.PeekKind() != '}' {
		name, err := r.dec.ReadToken()
		if err != nil {
			return err
		}
		if err := r.member(name.String()); err != nil {
			return err
		}
	}
	if r.tokens && r.kind.textOnly {
		return fault.New(fault.InvalidRequest, "input: %s reads text only, not token numbers; send the texts", r.kind.name).WithParam("input")
	}
	if err := r.addOwn(); err != nil {
		return err
	}
	if err := r.bracket(); err != nil {
		return err
	}
	if _, err := r.dec.ReadToken(); err != io.EOF {
		return fault.New(fault.InvalidRequest, "the body holds more than one JSON value")
	}
	return nil
}

// member processes a member of the caller's body. Some are replaced; the others are
// copied, from an untrusted caller only those in the allow-list.
func (r *rebuild) member(name string) error {
	chat := r.req.Endpoint == fleet.ChatCompletions
	r.logprobs = r.logprobs || name == "logprobs" && r.dec.PeekKind() == 't'
	switch {
	case name == "model", chat && name == "stream":
		return r.dec.SkipValue()
	case chat && controlling(name):
		value, err := r.dec.ReadValue()
		if err != nil {
			return err
		}
		return r.control(name, bytes.Clone(value))
	case name == "input" && !chat: // even for a trusted caller, because the inputs are counted
		return embeddingMembers.one(&r.copier, name)
	case name == "encoding_format" && !chat:
		value, err := r.dec.ReadValue()
		if err != nil {
			return err
		}
		r.want.base64 = string(value) == `"base64"`
		if r.want.base64 || string(value) == `"float"` {
			r.write(name, string(value))
		}
		return nil
	case chat && name == "stop":
		return r.stops()
	case chat && (name == "tool_choice" || name == "parallel_tool_calls"): // only with tools; OpenAI's servers refuse them without
		value, err := r.dec.ReadValue()
		r.forTools = append(r.forTools, member{name, string(value)})
		return err
	case chat && (name == "messages" || name == "tools"): // even for a trusted caller, because chat templates are strict
		before := len(r.out)
		err := chatMembers.one(&r.copier, name)
		r.tools = r.tools || name == "tools" && len(r.out) > before
		return err
	case r.req.Trusted:
		r.out.name(name)
		return r.raw()
	case chat:
		return chatMembers.one(&r.copier, name)
	default:
		return embeddingMembers.one(&r.copier, name)
	}
}

// stops writes the stop sequences without empty ones, which would stop an engine at once.
func (r *rebuild) stops() error {
	value, err := r.dec.ReadValue()
	if err != nil {
		return err
	}
	var all []string
	switch value.Kind() {
	case 'n':
		return nil
	case '"':
		all = []string{textIn(value)}
	case '[':
		err = json.Unmarshal(value, &all)
	default:
		err = errors.ErrUnsupported
	}
	if err != nil {
		return r.refuse("this must be a string or a list of strings")
	}
	all = slices.DeleteFunc(all, func(s string) bool { return s == "" })
	switch {
	case len(all) == 0:
		return nil
	case r.req.Trusted:
	case len(all) > maxStops:
		return r.refuse("more than %d are not taken", maxStops)
	case slices.ContainsFunc(all, func(s string) bool { return len(s) > maxStop }):
		return r.refuse("longer than %d bytes is not taken", maxStop)
	}
	text, err := json.Marshal(all)
	if value.Kind() == '"' {
		text, err = json.Marshal(all[0])
	}
	if err == nil {
		r.write("stop", string(text))
	}
	return err
}

// controlling reports whether a member of a chat body affects the members that addOwn
// writes.
func controlling(name string) bool {
	switch name {
	case "stream_options", "max_tokens", "max_completion_tokens", "cache_prompt", "cache_salt":
		return true
	}
	_, thinking := thinkingRank[name]
	return thinking
}

func (r *rebuild) control(name string, value jsontext.Value) error {
	if value.Kind() == 'n' {
		return nil
	}
	value = dialect.Integral(value)
	switch name {
	case "stream_options":
		var options struct {
			Usage bool `json:"include_usage"`
		}
		if err := json.Unmarshal(value, &options); err != nil {
			return fault.New(fault.InvalidRequest, "stream_options must be an object whose include_usage is true or false").WithParam(name)
		}
		r.want.usage = options.Usage
	case "max_tokens", "max_completion_tokens":
		n, _ := strconv.ParseFloat(string(value), 64) // infinite if out of range
		if value.Kind() != '0' || n != math.Trunc(n) {
			return fault.New(fault.InvalidRequest, "%s must be a whole number", name).WithParam(name)
		}
		if n < 0 { // llama.cpp's value for "no limit"
			return nil
		}
		if n < 1 {
			return fault.New(fault.InvalidRequest, "%s must be at least 1; leave it out, or send -1, for the engine's own limit", name).WithParam(name)
		}
		if !r.req.Trusted { // at most the model's context
			most := cmp.Or(max(r.model.ContextLength, 0), maxTokens)
			value = strconv.AppendInt(nil, int64(min(n, float64(most))), 10)
		}
		if name == "max_tokens" {
			r.limit = value
		} else {
			r.completionMax = value
		}
	case "cache_prompt", "cache_salt":
		if r.req.Trusted {
			r.write(name, string(value))
		}
	default:
		return r.think.read(name, value, r)
	}
	return nil
}

// addOwn writes the members that kith sets itself.
func (r *rebuild) addOwn() error {
	if r.req.Endpoint != fleet.ChatCompletions {
		r.want.inputs = r.inputs
		return nil
	}
	for _, m := range r.forTools {
		if value := jsontext.Value(m.value); r.tools && value.Kind() != 'n' {
			if err := r.again(m.name, value, chatMembers[m.name]); err != nil {
				return err
			}
		}
	}
	if r.kind.maxTokensOnly && r.completionMax != nil {
		r.limit, r.completionMax = r.completionMax, nil
	}
	if r.limit != nil {
		r.write("max_tokens", string(r.limit))
	}
	if r.completionMax != nil {
		r.write("max_completion_tokens", string(r.completionMax))
	}
	// llama.cpp does not support streams with both tools and logprobs.
	stream := r.req.Stream || r.kind.streamed && !(r.tools && r.logprobs)
	r.want.streamed = stream
	r.write("stream", strconv.FormatBool(stream))
	if stream {
		r.write("stream_options", `{"include_usage":true}`)
	}
	r.addCache()
	thinking := r.think.merged()
	r.want.hide = thinking.hide
	if thinking.mode == thinkOn && r.kind.noThinkAfterPrefill && prefilled(r.req.Body) {
		thinking = thinking.off()
	}
	say := controls{}
	if r.kind.think != nil {
		say = r.kind.think(thinking, r.model)
	}
	for _, m := range say.members {
		if m.name == "reasoning_effort" && r.kind.effortMayFail {
			if r.req.noEffort {
				continue
			}
			r.want.effort = true
		}
		r.write(m.name, m.value)
	}
	if say.kwargs = append(say.kwargs, r.kwargs...); len(say.kwargs) > 0 {
		r.write("chat_template_kwargs", joined(say.kwargs))
	}
	return nil
}

// prefilled reports whether the last message of a chat body is the beginning of
// the answer.
func prefilled(body []byte) bool {
	var talk struct {
		Messages []struct {
			Role string `json:"role"`
		} `json:"messages"`
	}
	err := json.Unmarshal(body, &talk)
	n := len(talk.Messages)
	return err == nil && n > 0 && talk.Messages[n-1].Role == "assistant"
}

// write adds a member with a valid JSON value.
func (r *rebuild) write(name, value string) {
	r.out.name(name)
	r.out.value([]byte(value))
}

// joined returns the members as a JSON object. If names are equal, the first member is
// used.
func joined(members []member) string {
	object := map[string]jsontext.Value{}
	for _, m := range slices.Backward(members) {
		object[m.name] = jsontext.Value(m.value)
	}
	text, _ := json.Marshal(object, json.Deterministic(true)) // the values are valid JSON
	return string(text)
}

func quoted(s string) string {
	b, _ := jsontext.AppendQuote(nil, s) // the error only reports invalid UTF-8, which becomes U+FFFD
	return string(b)
}

// addCache writes the members that separate the prompt caches of callers
// (spec/security.md#prompt-cache). An engine with salts has a cache for each caller. An
// engine with only cache_prompt has a single cache, which is used for the owner or, with
// SharedCache, for everyone. The owner's calls have neither member: the engine's
// configuration decides whether they use the cache.
func (r *rebuild) addCache() {
	if r.req.Caller == "" {
		return
	}
	if r.kind.salts {
		r.write("cache_salt", quoted(r.req.Caller))
	}
	if r.kind.cachePrompt && !r.req.SharedCache {
		r.write("cache_prompt", "false")
	}
}
