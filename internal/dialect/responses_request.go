package dialect

import (
	"bytes"
	"cmp"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/fault"
)

// ResponsesRequest is a decoded body of the responses dialect. Resolve loads what it
// refers to; then Chat returns the request for a machine, and Answer starts the answer to
// the caller.
type ResponsesRequest struct {
	request
	inputs []inputItem // as received

	previous string      // previous_response_id; empty: none
	context  []inputItem // of the previous response: its input, then its output

	known   []tool            // all tools, with both names
	allowed *[]jsontext.Value // the names of allowed_tools; nil: all tools
	echo    echo
	store   jsontext.Value
}

// echo has the members of the request that a response repeats.
type echo struct {
	Instructions     jsontext.Value `json:"instructions"`
	PreviousResponse jsontext.Value `json:"previous_response_id"`
	MaxOutputTokens  jsontext.Value `json:"max_output_tokens"`
	MaxToolCalls     jsontext.Value `json:"max_tool_calls"`
	Temperature      jsontext.Value `json:"temperature"`
	TopP             jsontext.Value `json:"top_p"`
	Presence         jsontext.Value `json:"presence_penalty"`
	Frequency        jsontext.Value `json:"frequency_penalty"`
	TopLogprobs      jsontext.Value `json:"top_logprobs"`
	Parallel         jsontext.Value `json:"parallel_tool_calls"`
	ToolChoice       jsontext.Value `json:"tool_choice"`
	Tools            []responseTool `json:"tools"`
	Text             struct {
		Format    jsontext.Value `json:"format"`
		Verbosity jsontext.Value `json:"verbosity,omitzero"`
	} `json:"text"`
	Reasoning struct {
		Effort  jsontext.Value `json:"effort"`
		Summary jsontext.Value `json:"summary"`
	} `json:"reasoning"`
	Truncation       jsontext.Value `json:"truncation"`
	Metadata         jsontext.Value `json:"metadata"`
	User             jsontext.Value `json:"user"`
	SafetyIdentifier jsontext.Value `json:"safety_identifier"`
	PromptCacheKey   jsontext.Value `json:"prompt_cache_key"`
	ServiceTier      string         `json:"service_tier"`
	Background       bool           `json:"background"`
}

// responseTool is a tool as repeated in a response.
type responseTool struct {
	Type        string         `json:"type"`
	Name        jsontext.Value `json:"name"`
	Description jsontext.Value `json:"description"`
	Format      jsontext.Value `json:"format,omitzero"`     // of a custom tool
	Parameters  jsontext.Value `json:"parameters,omitzero"` // of a function, like Strict
	Strict      jsontext.Value `json:"strict,omitzero"`
}

// ReadResponses decodes a body of the responses dialect, as strictly as ReadHead does for
// the chat dialect. Every error is a *fault.Fault.
func ReadResponses(body []byte) (*ResponsesRequest, error) {
	q := &ResponsesRequest{request: request{body: body, turnsMember: "input"}}
	if err := q.read(body, q.member); err != nil {
		return nil, err
	}
	q.conclude()
	if len(q.inputs) == 0 && q.previous == "" {
		return nil, fault.New(fault.InvalidRequest, "the body holds no input: send a text or a list of items").WithParam("input")
	}
	return q, nil
}

// Stores reports whether to store the turn.
func (q *ResponsesRequest) Stores() bool { return q.store.Kind() != 'f' }

// Chat translates the request to the body of a chat call. Every error is a *fault.Fault.
func (q *ResponsesRequest) Chat() ([]byte, error) {
	if err := q.runnable(); err != nil {
		return nil, err
	}
	q.nameTools()
	for _, items := range [...][]inputItem{q.context, q.inputs} {
		for i := range items {
			if items[i].kind != referenceItem {
				q.turns = append(q.turns, q.turnOf(&items[i]))
			}
		}
	}
	return q.write()
}

func (q *ResponsesRequest) write() ([]byte, error) {
	size := len(q.body)
	for i := range q.context {
		size += len(q.context[i].raw)
	}
	chosen := q.request
	if chosen.choice.kind == "none" { // some engines do not support that choice
		chosen.tools = nil
	}
	return writeChat(&chosen, size)
}

var truncationWord = optional(oneOf("must be auto or disabled", "auto", "disabled"))

// member reads one member of the body; it skips members that are not supported.
func (q *ResponsesRequest) member(name []byte) (err error) {
	e := &q.echo
	switch string(name) {
	case "input":
		begin := q.dec.InputOffset()
		err := q.input()
		q.Text = int(q.dec.InputOffset() - begin)
		return err
	case "tools":
		return q.list(func() error { return q.tool(nil) })
	case "tool_choice":
		return q.toolChoice()
	case "reasoning", "reasoning_effort", "thinking", "chat_template_kwargs":
		return q.control(string(name))
	case "text":
		return q.object(func(name []byte) error {
			if string(name) == "format" {
				return q.readFormat()
			}
			return q.field(name, []field{{"verbosity", aString, &e.Text.Verbosity}})
		})
	case "include":
		return q.include()
	case "conversation", "prompt":
		if q.dec.PeekKind() != 'n' {
			return q.refuseNext("nothing of that kind is kept here; send the input itself, or previous_response_id")
		}
	}
	return q.field(name, []field{
		{"instructions", aString, &e.Instructions},
		{"previous_response_id", aString, &e.PreviousResponse},
		{"store", aBoolean, &q.store},
		{"parallel_tool_calls", aBoolean, &e.Parallel},
		{"max_output_tokens", aCount, &e.MaxOutputTokens},
		{"max_tool_calls", aCount, &e.MaxToolCalls},
		{"temperature", aNumber, &e.Temperature},
		{"top_p", aNumber, &e.TopP},
		{"presence_penalty", aNumber, &e.Presence},
		{"frequency_penalty", aNumber, &e.Frequency},
		{"top_logprobs", anInteger, &e.TopLogprobs},
		{"metadata", anObject, &e.Metadata},
		{"user", aString, &e.User},
		{"safety_identifier", aString, &e.SafetyIdentifier},
		{"prompt_cache_key", aString, &e.PromptCacheKey},
		{"truncation", truncationWord, &e.Truncation},
	})
}

// conclude sets the members of the chat call from those of the body.
func (q *ResponsesRequest) conclude() {
	e := &q.echo
	if e.Instructions != nil {
		q.system = []block{{kind: textBlock, text: e.Instructions}}
	}
	if q.previous = text(e.PreviousResponse); q.previous == "" {
		e.PreviousResponse = nil
	}
	q.choice.serial = e.Parallel.Kind() == 'f'
	q.chat.MaxTokens, q.chat.Temperature, q.chat.TopP = e.MaxOutputTokens, e.Temperature, e.TopP
	q.chat.Presence, q.chat.Frequency = e.Presence, e.Frequency
	n, _ := strconv.ParseInt(string(e.TopLogprobs), 10, 64)   // a number, or absent
	if q.alternatives = int(min(n, maxAlternatives)); n > 0 { // some engines interpret 0 as no logprobs at all
		q.chat.Logprobs, q.chat.TopLogprobs = true, jsontext.Value(strconv.Itoa(q.alternatives))
	}
}

// control reads one of the thinking controls, which are the same as in the chat dialect.
func (q *ResponsesRequest) control(name string) error {
	value, err := q.value()
	if err != nil || value.Kind() == 'n' {
		return err
	}
	if _, err := ReadThinking(name, value); err != nil {
		return err
	}
	switch name {
	case "reasoning_effort":
		q.chat.Effort = value
	case "thinking":
		q.chat.Thinking = value
	case "chat_template_kwargs":
		q.chat.TemplateArguments = value
	default:
		q.chat.Reasoning = value
		repeated := &q.echo.Reasoning
		_ = json.Unmarshal(value, repeated) // an object, as was just checked
		if repeated.Summary.Kind() != '"' {
			repeated.Summary = nil
		}
	}
	return nil
}

// include reads the list of additional data for the answer. Only logprobs are supported.
func (q *ResponsesRequest) include() error {
	if q.dec.PeekKind() != '[' {
		return skip(q.dec)
	}
	return q.list(func() error {
		value, err := q.value()
		q.chat.Logprobs = q.chat.Logprobs || string(value) == `"message.output_text.logprobs"`
		return err
	})
}

// readFormat reads text.format, which is not nested in this dialect.
func (q *ResponsesRequest) readFormat() error {
	var f struct{ kind, name, description, schema, strict jsontext.Value }
	err := q.fields(field{"type", requiredString, &f.kind}, field{"name", aString, &f.name}, field{"description", aString, &f.description},
		field{"strict", anything, &f.strict}, field{"schema", anObject, &f.schema})
	if err != nil {
		return err
	}
	switch kind := text(f.kind); kind {
	case "", "text":
	case "json_object":
		q.chat.Format = &chatFormat{Type: kind}
		q.echo.Text.Format = encode(q.chat.Format)
	case "json_schema":
		if f.schema == nil {
			return q.refuse("a format of the type json_schema has a schema")
		}
		f.name = or(f.name, `"answer"`)
		q.chat.Format = &chatFormat{kind, &chatSchema{f.name, f.description, f.strict, f.schema}}
		q.echo.Text.Format = encode(struct {
			Type        string         `json:"type"`
			Name        jsontext.Value `json:"name"`
			Description jsontext.Value `json:"description"`
			Schema      jsontext.Value `json:"schema"`
			Strict      jsontext.Value `json:"strict"`
		}{kind, f.name, f.description, f.schema, or(f.strict, "false")})
	default:
		return q.refuse("the type must be text, json_object or json_schema")
	}
	return nil
}

// tool reads one tool: a function, a custom tool, or a namespace, which contains more
// tools. Tools of other types run only at their vendor.
func (q *ResponsesRequest) tool(space jsontext.Value) error {
	var t tool
	var inner []tool
	var kindValue jsontext.Value
	err := q.object(func(name []byte) error {
		if string(name) == "tools" && space == nil && q.dec.PeekKind() == '[' {
			before := q.tools
			q.tools = nil
			// The name of the namespace may come later.
			err := q.list(func() error { return q.tool(jsontext.Value(`""`)) })
			inner, q.tools = q.tools, before
			return err
		}
		return q.field(name, []field{
			{"type", requiredString, &kindValue},
			{"name", anything, &t.name},
			{"description", anything, &t.description},
			{"parameters", anything, &t.schema},
			{"strict", anything, &t.strict},
			{"format", anything, &t.format},
		})
	})
	switch kind := text(kindValue); {
	case err != nil:
		return err
	case kind == "namespace" && t.name.Kind() == '"':
		for i := range inner {
			inner[i].namespace = t.name
		}
		q.tools = append(q.tools, inner...)
		return nil
	case kind != "function" && kind != "custom":
		q.vendorTools = append(q.vendorTools, strconv.Quote(kind))
		return nil
	case t.name.Kind() != '"':
		return q.refuse("a tool has a name, which is a string")
	case t.schema != nil && t.schema.Kind() != '{':
		return q.refuse("a tool's parameters are an object")
	case kind == "custom":
		t = customTool(t.name, t.description, t.format)
	}
	t.namespace = space
	q.tools = append(q.tools, t)
	return nil
}

// toolChoice reads tool_choice: a word, a tool, or a list of allowed tools.
func (q *ResponsesRequest) toolChoice() error {
	if q.dec.PeekKind() == '"' {
		kind, err := q.value()
		if err != nil {
			return err
		}
		return q.choose(text(kind))
	}
	var kindValue, mode, name jsontext.Value
	names := []jsontext.Value{}
	present := q.dec.PeekKind() != 'n'
	err := q.object(func(member []byte) error {
		if string(member) == "tools" {
			return q.list(func() error {
				return q.object(func(member []byte) error {
					if string(member) == "name" {
						names = append(names, nil)
						return q.field(member, []field{{"name", aString, &names[len(names)-1]}})
					}
					return skip(q.dec)
				})
			})
		}
		return q.field(member, []field{{"type", requiredString, &kindValue}, {"mode", requiredString, &mode}, {"name", aString, &name}})
	})
	switch kind := text(kindValue); {
	case err != nil || !present:
		return err
	case (kind == "function" || kind == "custom") && name == nil:
		return q.refuse("a choice of the type %s names it", kind)
	case kind == "function" || kind == "custom":
		q.choice.kind, q.choice.name = "tool", name
		q.allowed = &[]jsontext.Value{name}
		q.echo.ToolChoice = encode(namedTool{kind, name})
	case kind == "allowed_tools":
		mode := cmp.Or(text(mode), "auto")
		if err := q.choose(mode); err != nil {
			return err
		}
		q.allowed = &names
		tools := make([]namedTool, len(names))
		for i, name := range names {
			tools[i] = namedTool{"function", name}
		}
		q.echo.ToolChoice = encode(struct {
			Type  string      `json:"type"`
			Mode  string      `json:"mode"`
			Tools []namedTool `json:"tools"`
		}{kind, mode, tools})
	default:
		q.choice.vendorType = strconv.Quote(kind)
		q.vendorTools = append(q.vendorTools, q.choice.vendorType)
	}
	return nil
}

type namedTool struct {
	Type string         `json:"type"`
	Name jsontext.Value `json:"name"`
}

// choose handles a tool_choice that is a word.
func (q *ResponsesRequest) choose(kind string) error {
	switch kind {
	case "auto", "none":
		q.choice.kind = kind
	case "required":
		q.choice.kind = "any"
	default:
		return q.refuse("must be auto, none, required or an object")
	}
	if kind == "none" {
		q.allowed = &[]jsontext.Value{}
	}
	q.echo.ToolChoice = jsontext.Value(`"` + kind + `"`)
	return nil
}

func (q *ResponsesRequest) allows(name []byte) bool {
	return q.allowed == nil || slices.ContainsFunc(*q.allowed, func(one jsontext.Value) bool {
		return one.Kind() == '"' && bytes.Equal(unquote(one), name)
	})
}

// nameTools gives each function the name for machines: its own, prefixed with its
// namespace if another tool has the same name. Tools that are not allowed are removed,
// because few engines have a way to forbid a tool.
func (q *ResponsesRequest) nameTools() {
	shown := q.tools[:0:0]
	taken := make(map[string]bool, len(q.tools))
	for i := range q.tools {
		t := &q.tools[i]
		name := string(unquote(t.name))
		if t.namespace != nil && taken[name] {
			name = string(unquote(t.namespace)) + "__" + name
		}
		taken[name] = true
		t.callerName, t.name = t.name, quote(name)
		if q.allows(unquote(t.callerName)) {
			shown = append(shown, *t)
		}
	}
	q.known, q.tools = q.tools, shown
}

// toolNamed returns the name for machines of a tool with this name and namespace.
func (q *ResponsesRequest) toolNamed(name, space jsontext.Value) jsontext.Value {
	for i := range q.known {
		if t := &q.known[i]; bytes.Equal(t.callerName, name) && bytes.Equal(t.namespace, space) {
			return t.name
		}
	}
	return name
}

// called returns the tool with this name for machines, including the caller's name and
// namespace. ok is false if the request does not allow a call of this tool.
func (q *ResponsesRequest) called(name jsontext.Value) (called tool, ok bool) {
	plain := unquote(name)
	called = tool{callerName: name}
	for i := range q.known {
		if t := &q.known[i]; bytes.Equal(unquote(t.name), plain) {
			called = *t
			break
		}
	}
	return called, q.allows(unquote(called.callerName))
}

// responseOf returns the id of the response that an item belongs to, or "" if this
// package did not make the item's id. An item's id contains the id of its response, so
// that a reference is enough to find it.
func responseOf(item string) string {
	_, own, ok := strings.Cut(item, "_")
	own, number, numbered := strings.Cut(own, "_")
	number = strings.TrimPrefix(number, "i")
	if _, err := strconv.ParseUint(number, 10, 31); !ok || !numbered || err != nil || own == "" {
		return ""
	}
	return "resp_" + own
}
