package llama

import (
	"bytes"
	"cmp"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/llama/chatform"
)

const (
	maxBody        = 32 << 20
	maxStops       = 16
	maxStopBytes   = 256
	maxInputs      = 2048
	maxMessages    = 8192 // as the hub and the daemon
	maxTemperature = 2
	maxBias        = 100
)

// refusal is an error response.
type refusal struct {
	status  int
	code    string
	message string
	param   string // the invalid member; "" if unknown
}

func (r *refusal) Error() string { return r.message }

// badRequest returns a 400 with a message.
func badRequest(format string, args ...any) *refusal {
	return &refusal{status: 400, code: "invalid_request_error", message: fmt.Sprintf(format, args...)}
}

// badMember returns a 400 with a message about the request member at param.
func badMember(param, format string, args ...any) *refusal {
	r := badRequest(format, args...)
	r.param = param
	return r
}

// tooLong returns the 400 for a prompt that exceeds the context. The code is that of
// llama.cpp's server.
func tooLong(tokens, context int) *refusal {
	return &refusal{status: 400, code: "exceed_context_size_error",
		message: fmt.Sprintf("the request has %d tokens and the context holds %d, the answer included; send less", tokens, context)}
}

// chatRequest contains the supported fields of a chat completions body. Others are
// ignored (spec/api.md#builtin-engine).
type chatRequest struct {
	Model               string            `json:"model"`
	Messages            []chatTurn        `json:"messages"`
	Stream              bool              `json:"stream"`
	StreamOptions       streamOptions     `json:"stream_options"`
	MaxTokens           *int              `json:"max_tokens"`
	MaxCompletionTokens *int              `json:"max_completion_tokens"`
	Temperature         *float64          `json:"temperature"`
	TopP                *float64          `json:"top_p"`
	TopK                *int              `json:"top_k"`
	MinP                *float64          `json:"min_p"`
	Seed                jsontext.Value    `json:"seed"`
	LogitBias           map[token]float64 `json:"logit_bias"`
	PresencePenalty     float64           `json:"presence_penalty"`
	FrequencyPenalty    float64           `json:"frequency_penalty"`
	Stop                jsontext.Value    `json:"stop"`
	N                   *int              `json:"n"`
	Logprobs            bool              `json:"logprobs"`
	TopLogprobs         int               `json:"top_logprobs"`
	ResponseFormat      responseFormat    `json:"response_format"`
	Tools               []jsontext.Value  `json:"tools"`
	ToolChoice          jsontext.Value    `json:"tool_choice"`
	ParallelToolCalls   *bool             `json:"parallel_tool_calls"`
	TemplateKwargs      templateKwargs    `json:"chat_template_kwargs"`
	// CacheSalt identifies the caller, like in vLLM: what was computed for one caller is
	// not reused for others. Without it the caller is the owner of this machine.
	CacheSalt string `json:"cache_salt"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type responseFormat struct {
	Type       string `json:"type"`
	JSONSchema struct {
		Schema jsontext.Value `json:"schema"`
	} `json:"json_schema"`
}

// templateKwargs are the thinking controls. Each template gets those that it takes.
type templateKwargs struct {
	EnableThinking  *bool   `json:"enable_thinking"`
	Thinking        *bool   `json:"thinking"`
	ReasoningEffort *string `json:"reasoning_effort"`
	ThinkingBudget  *int    `json:"thinking_budget"`
}

func (k templateKwargs) values() map[string]any {
	set := map[string]any{}
	setValue(set, "enable_thinking", k.EnableThinking)
	setValue(set, "thinking", k.Thinking)
	setValue(set, "reasoning_effort", k.ReasoningEffort)
	setValue(set, "thinking_budget", k.ThinkingBudget)
	return set
}

func setValue[T any](set map[string]any, name string, value *T) {
	if value != nil {
		set[name] = *value
	}
}

// chatTurn is a message as it was received.
type chatTurn struct {
	Role             string  `json:"role"`
	Content          content `json:"content"`
	ReasoningContent string  `json:"reasoning_content"`
	Reasoning        string  `json:"reasoning"` // another name of it
	ToolCallID       string  `json:"tool_call_id"`
	Name             string  `json:"name"`
	ToolCalls        []struct {
		ID       string `json:"id"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// content is a message's content as text. In JSON it is a string, null, or a list of text
// parts.
type content string

func (c *content) UnmarshalJSON(raw []byte) error {
	switch jsontext.Value(raw).Kind() {
	case 'n':
		*c = ""
		return nil
	case '"':
		return json.Unmarshal(raw, (*string)(c))
	case '[':
	default:
		return badRequest("content must be a string or a list of parts")
	}
	var parts []struct {
		Type    string `json:"type"`
		Text    string `json:"text"`
		Refusal string `json:"refusal"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return err
	}
	var text strings.Builder
	for _, p := range parts {
		switch p.Type {
		case "text", "input_text", "output_text":
			text.WriteString(p.Text)
		case "refusal":
			text.WriteString(p.Refusal)
		case "image_url", "input_image":
			return badRequest("this model does not see images; send text parts")
		default:
			return badRequest("this model takes text parts only")
		}
	}
	*c = content(text.String())
	return nil
}

// decode decodes a body strictly, but allows unknown members.
func decode(body []byte, into any) error {
	err := json.Unmarshal(body, into)
	if err == nil {
		return nil
	}
	var semantic *json.SemanticError
	param := ""
	if errors.As(err, &semantic) {
		param = strings.ReplaceAll(strings.TrimPrefix(string(semantic.JSONPointer), "/"), "/", ".")
	}
	if r, ok := errors.AsType[*refusal](err); ok { // returned by an UnmarshalJSON method
		r.param = param
		return r
	}
	if param != "" {
		return badMember(param, "cannot read the request: %s has the wrong type", semantic.JSONPointer)
	}
	return badRequest("cannot read the request: it is not strict JSON")
}

// chat is a validated chat request.
type chat struct {
	model        string
	caller       string
	conversation chatform.Conversation
	tools        []chatform.Tool // that the model may call
	parallel     bool            // several of them at once
	mustCall     bool            // the answer must be calls
	format       string          // rules for the text of the answer, or ""
	stream       bool
	usage        bool // the stream ends with a usage frame
	limit        int  // tokens of the answer; 0 means the rest of the context
	stops        []string
	sampling     sampling

	wantLogprobs bool
	alternatives int // number of other tokens at each position
}

// parseChat decodes and validates a chat completions body.
func parseChat(body []byte) (*chat, error) {
	var q chatRequest
	if err := decode(body, &q); err != nil {
		return nil, err
	}
	if len(q.Messages) == 0 || len(q.Messages) > maxMessages {
		return nil, badMember("messages", "messages must hold 1 to %d messages", maxMessages)
	}
	if q.N != nil && *q.N != 1 {
		return nil, badMember("n", "n must be 1: this engine gives one answer a request")
	}
	if q.TopLogprobs < 0 || q.TopLogprobs > maxAlternatives {
		return nil, badMember("top_logprobs", "top_logprobs must be from 0 to %d", maxAlternatives)
	}
	c := &chat{
		model:        q.Model,
		caller:       q.CacheSalt,
		stream:       q.Stream,
		parallel:     q.ParallelToolCalls == nil || *q.ParallelToolCalls,
		usage:        q.Stream && q.StreamOptions.IncludeUsage,
		wantLogprobs: q.Logprobs, alternatives: q.TopLogprobs,
	}
	var err error
	if c.conversation, err = conversationOf(q.Messages, q.TemplateKwargs); err != nil {
		return nil, err
	}
	if err = q.parseTools(c); err != nil {
		return nil, err
	}
	if c.format, err = q.format(); err != nil {
		return nil, err
	}
	if c.limit, err = q.answerLimit(); err != nil {
		return nil, err
	}
	if c.stops, err = parseStops(q.Stop); err != nil {
		return nil, err
	}
	if c.sampling, err = q.sampling(); err != nil {
		return nil, err
	}
	return c, nil
}

// conversationOf returns the messages for the model's template, which writes the answer
// next.
func conversationOf(messages []chatTurn, kwargs templateKwargs) (chatform.Conversation, error) {
	c := chatform.Conversation{Variables: kwargs.values(), Answer: true}
	names := map[string]string{} // of the tools that were called, by the call's id
	for i, m := range messages {
		t := chatform.Message{Role: m.Role, Content: string(m.Content)}
		switch m.Role {
		case "system", "user":
		case "developer":
			t.Role = "system"
		case "tool", "function":
			t.Role, t.CallID, t.Name = "tool", m.ToolCallID, cmp.Or(m.Name, names[m.ToolCallID])
		case "assistant":
			t.Reasoning = cmp.Or(m.ReasoningContent, m.Reasoning)
			for _, call := range m.ToolCalls {
				names[call.ID] = call.Function.Name
				t.Calls = append(t.Calls, chatform.Call{ID: call.ID, Name: call.Function.Name, Arguments: call.Function.Arguments})
			}
		default:
			return c, badMember("messages."+strconv.Itoa(i), "messages[%d]: role must be system, developer, user, assistant or tool", i)
		}
		c.Messages = append(c.Messages, t)
	}
	return c, nil
}

// answerLimit returns the maximum number of tokens in the answer, or 0 for the rest of
// the context. In llama.cpp and LM Studio a negative number means the latter.
func (q *chatRequest) answerLimit() (int, error) {
	n := q.MaxCompletionTokens
	if n == nil {
		n = q.MaxTokens
	}
	switch {
	case n == nil || *n < 0:
		return 0, nil
	case *n == 0:
		return 0, badMember("max_tokens", "max_tokens must be at least 1")
	}
	return *n, nil
}

// parseStops decodes stop: null, a string or a list of strings.
func parseStops(v jsontext.Value) ([]string, error) {
	if v.Kind() == '"' {
		v = listOf(v)
	}
	var stops []string
	if len(v) > 0 && json.Unmarshal(v, &stops) != nil {
		return nil, badMember("stop", "stop must be a string or a list of strings")
	}
	if len(stops) > maxStops {
		return nil, badMember("stop", "stop must hold at most %d strings", maxStops)
	}
	for _, s := range stops {
		if s == "" || len(s) > maxStopBytes {
			return nil, badMember("stop", "each stop string must have 1 to %d bytes", maxStopBytes)
		}
	}
	return stops, nil
}

// listOf returns a list that contains only v.
func listOf(v jsontext.Value) jsontext.Value {
	return slices.Concat(jsontext.Value("["), v, jsontext.Value("]"))
}

// sampling validates the sampling parameters.
func (q *chatRequest) sampling() (sampling, error) {
	s := defaultSampling()
	for _, f := range []struct {
		name     string
		value    *float64
		into     *float32
		min, max float64
	}{
		{"temperature", q.Temperature, &s.temperature, 0, maxTemperature},
		{"top_p", q.TopP, &s.topP, 0, 1},
		{"min_p", q.MinP, &s.minP, 0, 1},
		{"presence_penalty", &q.PresencePenalty, &s.presence, -2, 2},
		{"frequency_penalty", &q.FrequencyPenalty, &s.frequency, -2, 2},
	} {
		if f.value == nil {
			continue
		}
		if *f.value < f.min || *f.value > f.max {
			return s, badMember(f.name, "%s must be from %g to %g", f.name, f.min, f.max)
		}
		*f.into = float32(*f.value)
	}
	if q.TopK != nil {
		s.topK = int32(min(max(*q.TopK, 0), math.MaxInt32))
	}
	if kind := q.Seed.Kind(); kind != 0 && kind != 'n' && string(q.Seed) != "-1" { // llama.cpp's value for a random seed
		n, err := strconv.ParseUint(string(q.Seed), 10, 64)
		if err != nil {
			signed, err := strconv.ParseInt(string(q.Seed), 10, 64)
			if n = uint64(signed); err != nil {
				return s, badMember("seed", "seed must be a whole number of 64 bits")
			}
		}
		s.seed = uint32(n) ^ uint32(n>>32)
		if s.seed == math.MaxUint32 {
			s.seed-- // llama.cpp also uses this value for a random seed
		}
	}
	for _, t := range slices.Sorted(maps.Keys(q.LogitBias)) {
		bias := q.LogitBias[t]
		if bias < -maxBias || bias > maxBias {
			return s, badMember("logit_bias."+strconv.Itoa(int(t)), "logit_bias must be from -%d to %[1]d", maxBias)
		}
		if bias == -maxBias { // never: a bias alone could be outweighed by a likely token
			bias = math.Inf(-1)
		}
		s.biases = append(s.biases, logitBias{t, float32(bias)})
	}
	return s, nil
}

// format returns the rules of the grammar for response_format, or "".
func (q *chatRequest) format() (string, error) {
	switch q.ResponseFormat.Type {
	case "", "text":
		return "", nil
	case "json_object":
		return objectRules, nil
	case "json_schema":
		if q.ResponseFormat.JSONSchema.Schema.Kind() == 0 {
			return "", badMember("response_format", "response_format.json_schema.schema is missing")
		}
		rules, err := schemaRules(q.ResponseFormat.JSONSchema.Schema)
		if err != nil {
			return "", badMember("response_format", "response_format: %v", err)
		}
		return rules, nil
	}
	return "", badMember("response_format", "response_format.type must be text, json_object or json_schema")
}

// embeddingsRequest contains the supported fields of an embeddings body.
type embeddingsRequest struct {
	Model          string         `json:"model"`
	Input          jsontext.Value `json:"input"`
	EncodingFormat string         `json:"encoding_format"`
	Dimensions     *int           `json:"dimensions"`
}

// input is an input in an embeddings request: text or tokens.
type input struct {
	text   string
	tokens []token
}

// parseInputs decodes input: a string, a list of strings, a list of tokens or a list of
// lists of tokens.
func parseInputs(v jsontext.Value) ([]input, error) {
	bad := badMember("input", "input must be a string, a list of strings, a list of tokens or a list of lists of tokens, none empty, at most %d", maxInputs)
	if v.Kind() == '"' || firstKind(v) == '0' { // a single input
		v = listOf(v)
	}
	var inputs []input
	if firstKind(v) == '[' {
		var lists [][]token
		if json.Unmarshal(v, &lists) != nil {
			return nil, bad
		}
		for _, list := range lists {
			inputs = append(inputs, input{tokens: list})
		}
	} else {
		var texts []string
		if json.Unmarshal(v, &texts) != nil {
			return nil, bad
		}
		for _, text := range texts {
			inputs = append(inputs, input{text: text})
		}
	}
	empty := func(in input) bool { return in.text == "" && len(in.tokens) == 0 }
	if len(inputs) == 0 || len(inputs) > maxInputs || slices.ContainsFunc(inputs, empty) {
		return nil, bad
	}
	return inputs, nil
}

// firstKind returns the kind of the first element of a list, or 0.
func firstKind(v jsontext.Value) jsontext.Kind {
	d := jsontext.NewDecoder(bytes.NewReader(v))
	if t, err := d.ReadToken(); err != nil || t.Kind() != '[' {
		return 0
	}
	return d.PeekKind()
}
