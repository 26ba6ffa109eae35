package engine

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// wants is what the caller asked of the answer that the engine is not told, or
// told otherwise.
type wants struct {
	usage  bool // the chunk with the token counts
	hide   bool // no reasoning
	base64 bool // embeddings as base64
	inputs int  // to embed
	effort bool // the engine was told one, in a word that it may not know
}

// A member of a JSON object, its value as raw JSON.
type member struct{ name, value string }

// mostTokens bounds a stranger's max_tokens where the context is not known.
const mostTokens = 128 << 10

// request makes the body the engine is sent. It is written anew from the
// parsed value, so that nobody can show the hub one meaning and the engine
// another; model and stream are those that were routed.
func (e *Engine) request(req *Request, m *Model) ([]byte, wants, error) {
	out := bytes.NewBuffer(make([]byte, 0, len(req.Body)+256))
	r := rebuild{
		copier: copier{
			dec: jsontext.NewDecoder(bytes.NewBuffer(req.Body)),
			enc: jsontext.NewEncoder(out, jsontext.PreserveRawStrings(true)),
		},
		req: req, kind: e.kind, model: m,
	}
	if err := r.run(); err != nil {
		return nil, wants{}, refused(err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), r.want, nil
}

// refused is err as a fault the caller can be told.
func refused(err error) error {
	if _, ok := errors.AsType[*fault.Fault](err); ok {
		return err
	}
	if _, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return fault.New(fault.InvalidRequest, "the body is not strict JSON; check quotes, commas and repeated names").Because(err)
	}
	return fault.New(fault.InvalidRequest, "the body ended too early; send one whole JSON object").Because(err)
}

// rebuild is one body on its way.
type rebuild struct {
	copier
	req   *Request
	kind  *kind
	model *Model
	want  wants

	think         thinkingSources
	limit         jsontext.Value // max_tokens
	completionMax jsontext.Value // max_completion_tokens
	kwargs        []member       // of chat_template_kwargs that are no thinking controls
}

func (r *rebuild) run() error {
	if r.dec.PeekKind() != '{' {
		if _, err := r.dec.ReadToken(); err != nil {
			return err
		}
		return fault.New(fault.InvalidRequest, "the body is not a JSON object")
	}
	if err := r.token(); err != nil {
		return err
	}
	r.write("model", quoted(string(r.req.Model)))
	if r.req.Endpoint == fleet.ChatCompletions {
		r.write("stream", strconv.FormatBool(r.req.Stream))
	}
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
	r.ours()
	if err := r.token(); err != nil {
		return err
	}
	if _, err := r.dec.ReadToken(); err != io.EOF {
		return fault.New(fault.InvalidRequest, "the body holds more than one JSON value")
	}
	return nil
}

// member takes one member of the caller's: some are answered by us, the rest
// is carried, from a stranger only what the allow-list has.
func (r *rebuild) member(name string) error {
	chat := r.req.Endpoint == fleet.ChatCompletions
	switch {
	case name == "model", chat && name == "stream":
		return r.dec.SkipValue()
	case chat && controlling(name):
		value, err := r.dec.ReadValue()
		if err != nil {
			return err
		}
		return r.control(name, bytes.Clone(value))
	case name == "input" && !chat: // counted, whoever sent it
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
	case r.req.Trusted:
		if err := r.enc.WriteToken(jsontext.String(name)); err != nil {
			return err
		}
		value, err := r.dec.ReadValue()
		if err != nil {
			return err
		}
		return r.enc.WriteValue(value)
	case chat:
		return chatMembers.one(&r.copier, name)
	default:
		return embeddingMembers.one(&r.copier, name)
	}
}

// controlling reports whether a member of a chat body steers what we ourselves
// write to the engine.
func controlling(name string) bool {
	switch name {
	case "stream_options", "max_tokens", "max_completion_tokens", "cache_prompt", "cache_salt":
		return true
	}
	_, thinking := thinkingRank[name]
	return thinking
}

// control reads such a member.
func (r *rebuild) control(name string, value jsontext.Value) error {
	if value.Kind() == 'n' {
		return nil
	}
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
		if value.Kind() != '0' {
			return fault.New(fault.InvalidRequest, "%s must be a whole number", name).WithParam(name)
		}
		n, _ := strconv.ParseFloat(string(value), 64) // out of range is infinite
		if n < 0 {                                    // the engine's own limit, as llama.cpp's users write it
			return nil
		}
		if n < 1 {
			return fault.New(fault.InvalidRequest, "%s must be at least 1; leave it out, or send -1, for the engine's own limit", name).WithParam(name)
		}
		if !r.req.Trusted {
			value = r.clampLimit(n)
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

// clampLimit keeps a stranger's limit inside what the model can say at all.
func (r *rebuild) clampLimit(limit float64) jsontext.Value {
	most := mostTokens
	if r.model.ContextLength > 0 {
		most = r.model.ContextLength
	}
	return strconv.AppendInt(nil, int64(min(limit, float64(most))), 10)
}

// ours writes the members that we answer for.
func (r *rebuild) ours() {
	if r.req.Endpoint != fleet.ChatCompletions {
		r.want.inputs = r.inputs
		return
	}
	if r.kind.oneLimit && r.completionMax != nil {
		r.limit, r.completionMax = r.completionMax, nil
	}
	if r.limit != nil {
		r.write("max_tokens", string(r.limit))
	}
	if r.completionMax != nil {
		r.write("max_completion_tokens", string(r.completionMax))
	}
	if r.req.Stream {
		r.write("stream_options", `{"include_usage":true}`)
	}
	if !r.req.Trusted && r.req.Caller != "" && r.kind.apart != nil {
		for _, m := range r.kind.apart(r.req.Caller) {
			r.write(m.name, m.value)
		}
	}
	thinking := r.think.merged()
	r.want.hide = thinking.hide
	if thinking.mode == thinkOn && r.kind.begins && begun(r.req.Body) {
		thinking = thinking.off()
	}
	say := controls{}
	if r.kind.think != nil {
		say = r.kind.think(thinking, r.model)
	}
	for _, m := range say.members {
		if m.name == "reasoning_effort" && r.kind.effortLate {
			if r.req.plainly {
				continue
			}
			r.want.effort = true
		}
		r.write(m.name, m.value)
	}
	if say.kwargs = append(say.kwargs, r.kwargs...); len(say.kwargs) > 0 {
		r.write("chat_template_kwargs", joined(say.kwargs))
	}
}

// begun reports whether the body of a chat call ends with the beginning of its
// answer.
func begun(body []byte) bool {
	var talk struct {
		Messages []struct {
			Role string `json:"role"`
		} `json:"messages"`
	}
	n := 0
	if json.Unmarshal(body, &talk) == nil {
		n = len(talk.Messages)
	}
	return n > 0 && talk.Messages[n-1].Role == "assistant"
}

// write adds a member whose value is ours and therefore good JSON; the encoder
// keeps the first error for the end of the object.
func (r *rebuild) write(name, value string) {
	if err := r.enc.WriteToken(jsontext.String(name)); err == nil {
		_ = r.enc.WriteValue(jsontext.Value(value))
	}
}

// joined is the members as one JSON object, the first of a name winning.
func joined(members []member) string {
	var b strings.Builder
	seen := map[string]bool{}
	for _, m := range members {
		if seen[m.name] {
			continue
		}
		sep := byte(',')
		if len(seen) == 0 {
			sep = '{'
		}
		seen[m.name] = true
		b.WriteByte(sep)
		b.WriteString(quoted(m.name))
		b.WriteByte(':')
		b.WriteString(m.value)
	}
	b.WriteByte('}')
	return b.String()
}

// quoted is s as a JSON string.
func quoted(s string) string {
	b, err := jsontext.AppendQuote(nil, s)
	if err != nil { // not UTF-8, which no valid id is; the quote is mended
		return string(b)
	}
	return string(b)
}

// noPromptCache has llama.cpp read the whole prompt anew: it cannot keep
// callers apart, and a prompt it has read before is answered 17 times sooner.
func noPromptCache(string) []member { return []member{{"cache_prompt", "false"}} }

// saltKey makes cache salts that mean nothing outside this process.
var saltKey = rand.Text()

// cacheSalt gives each caller a cache of its own in vLLM.
func cacheSalt(caller string) []member {
	mac := hmac.New(sha256.New, []byte(saltKey))
	mac.Write([]byte(caller))
	return []member{{"cache_salt", quoted(hex.EncodeToString(mac.Sum(nil)[:16]))}}
}
