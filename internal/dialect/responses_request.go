package dialect

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/fault"
)

// ResponsesRequest is a body of the responses dialect as it was read. Resolve loads what it refers to; then Chat is the
// request for a machine, and Answer begins the answer to the caller.
type ResponsesRequest struct {
	request
	inputs []inputItem // as they were sent

	previous string      // previous_response_id; empty: none
	context  []inputItem // of the previous response: its input, then its output

	known   []tool            // all of them, by either name
	allowed *[]jsontext.Value // names, of allowed_tools; nil: all tools are
	echo    echo
	// unstored says that store is false.
	unstored bool
}

// echo is what a response repeats of its request, as values of the body.
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

// responseTool is a tool as a response repeats it.
type responseTool struct {
	Type        string         `json:"type"`
	Name        jsontext.Value `json:"name"`
	Description jsontext.Value `json:"description"`
	Format      jsontext.Value `json:"format,omitzero"`     // of a custom tool
	Parameters  jsontext.Value `json:"parameters,omitzero"` // of a function, as Strict
	Strict      jsontext.Value `json:"strict,omitzero"`
}

// ReadResponses reads a body of the responses dialect, as strictly as ReadHead reads
// one of the chat dialect. Every error is a *fault.Fault.
func ReadResponses(body []byte) (*ResponsesRequest, error) {
	q := &ResponsesRequest{request: request{body: body, turnsMember: "input"}}
	if err := q.read(body, q.member); err != nil {
		return nil, err
	}
	if len(q.inputs) == 0 && q.previous == "" {
		return nil, fault.New(fault.InvalidRequest, "the body holds no input: send a text or a list of items").WithParam("input")
	}
	return q, nil
}

// Stores reports whether the turn is to be kept.
func (q *ResponsesRequest) Stores() bool { return !q.unstored }

// Chat is what was asked as the body of a chat call. Every error is a
// *fault.Fault.
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

// write writes the chat call, whose turns are known.
func (q *ResponsesRequest) write() ([]byte, error) {
	size := len(q.body)
	for i := range q.context {
		size += len(q.context[i].raw)
	}
	return writeChat(q.chosen(), size)
}

// chosen is the request without tools, where none may be called: not every engine knows that choice.
func (q *ResponsesRequest) chosen() *request {
	chosen := q.request
	if chosen.choice.kind == "none" {
		chosen.tools = nil
	}
	return &chosen
}

// member reads one member of the body; those without a meaning here are passed
// over.
func (q *ResponsesRequest) member(name []byte) (err error) {
	e := &q.echo
	switch string(name) {
	case "model":
		return q.model()
	case "stream":
		return q.stream()
	case "input":
		return q.input()
	case "instructions":
		if e.Instructions, err = q.optionalString(); e.Instructions != nil {
			q.system = []block{{kind: textBlock, text: e.Instructions}}
		}
	case "previous_response_id":
		var id jsontext.Value
		if id, err = q.optionalString(); id != nil && string(id) != `""` {
			q.previous, e.PreviousResponse = string(unquote(id)), id
		}
	case "store":
		var store jsontext.Value
		store, err = q.optionalBoolean()
		q.unstored = store.Kind() == 'f'
	case "tools":
		return q.list(func() error { return q.tool(nil) })
	case "tool_choice":
		return q.toolChoice()
	case "parallel_tool_calls":
		e.Parallel, err = q.optionalBoolean()
		q.choice.serial = e.Parallel.Kind() == 'f'
	case "reasoning", "reasoning_effort", "thinking", "chat_template_kwargs":
		return q.control(string(name))
	case "text":
		return q.object(q.textMember)
	case "conversation", "prompt":
		var value jsontext.Value
		if value, err = q.optionalValue(); value != nil {
			return q.refuse("nothing of that kind is kept here; send the input itself, or previous_response_id")
		}
	default:
		return q.setting(name)
	}
	return err
}

// setting reads a member that is carried or repeated as it is.
func (q *ResponsesRequest) setting(name []byte) (err error) {
	e := &q.echo
	switch string(name) {
	case "max_output_tokens":
		e.MaxOutputTokens, err = q.optionalInteger(1)
		q.chat.MaxTokens = e.MaxOutputTokens
	case "max_tool_calls":
		e.MaxToolCalls, err = q.optionalInteger(1)
	case "temperature":
		e.Temperature, err = q.optionalNumber()
		q.chat.Temperature = e.Temperature
	case "top_p":
		e.TopP, err = q.optionalNumber()
		q.chat.TopP = e.TopP
	case "presence_penalty":
		e.Presence, err = q.optionalNumber()
		q.chat.Presence = e.Presence
	case "frequency_penalty":
		e.Frequency, err = q.optionalNumber()
		q.chat.Frequency = e.Frequency
	case "top_logprobs":
		if e.TopLogprobs, err = q.optionalInteger(0); e.TopLogprobs != nil {
			n, _ := strconv.ParseInt(string(e.TopLogprobs), 10, 64)   // it was just read
			if q.alternatives = int(min(n, maxAlternatives)); n > 0 { // some engines take 0 for none at all
				q.chat.Logprobs, q.chat.TopLogprobs = true, jsontext.Value(strconv.Itoa(q.alternatives))
			}
		}
	case "include":
		return q.include()
	case "metadata":
		if e.Metadata, err = q.optionalValue(); err == nil && e.Metadata != nil && e.Metadata.Kind() != '{' {
			err = q.refuse("must be an object")
		}
	case "user":
		e.User, err = q.optionalString()
	case "safety_identifier":
		e.SafetyIdentifier, err = q.optionalString()
	case "prompt_cache_key":
		e.PromptCacheKey, err = q.optionalString()
	case "truncation":
		if e.Truncation, err = q.optionalString(); err == nil && e.Truncation != nil && string(e.Truncation) != `"auto"` && string(e.Truncation) != `"disabled"` {
			err = q.refuse("must be auto or disabled")
		}
	default:
		err = q.other(name)
	}
	return err
}

// control reads one of the thinking controls, which are those of the chat
// dialect.
func (q *ResponsesRequest) control(name string) error {
	value, err := q.optionalValue()
	if err != nil || value == nil {
		return err
	}
	if err := thinkingControls[name](value); err != nil {
		return err
	}
	switch name {
	case "reasoning_effort":
		q.chat.Effort = value
		return nil
	case "thinking":
		q.chat.Thinking = value
		return nil
	case "chat_template_kwargs":
		q.chat.TemplateArguments = value
		return nil
	}
	q.chat.Reasoning = value
	dec := jsontext.NewDecoder(bytes.NewBuffer(value))
	return members(dec, func(name []byte) error {
		value, err := dec.ReadValue()
		if err != nil || value.Kind() != '"' {
			return err
		}
		switch string(name) {
		case "effort":
			q.echo.Reasoning.Effort = bytes.Clone(value)
		case "summary":
			q.echo.Reasoning.Summary = bytes.Clone(value)
		}
		return nil
	})
}

// textMember reads one member of text.
func (q *ResponsesRequest) textMember(name []byte) (err error) {
	switch string(name) {
	case "format":
		return q.readFormat()
	case "verbosity":
		q.echo.Text.Verbosity, err = q.optionalString()
	default:
		err = q.dec.SkipValue()
	}
	return err
}

// include reads what else the caller wants in the answer. Only logprobs are known here.
func (q *ResponsesRequest) include() error {
	if q.dec.PeekKind() != '[' {
		return q.dec.SkipValue()
	}
	return q.list(func() error {
		value, err := q.value()
		q.chat.Logprobs = q.chat.Logprobs || string(value) == `"message.output_text.logprobs"`
		return err
	})
}

// readFormat reads text.format, which is flat in this dialect.
func (q *ResponsesRequest) readFormat() error {
	kind := "text"
	var name, description, schema, strict jsontext.Value
	err := q.object(func(member []byte) (err error) {
		switch string(member) {
		case "type":
			kind, err = q.requiredString()
		case "name":
			name, err = q.optionalString()
		case "description":
			description, err = q.optionalString()
		case "strict":
			strict, err = q.optionalValue()
		case "schema":
			if schema, err = q.optionalValue(); err == nil && schema != nil && schema.Kind() != '{' {
				err = q.refuse("must be an object")
			}
		default:
			err = q.dec.SkipValue()
		}
		return err
	})
	if err != nil {
		return err
	}
	switch kind {
	case "text":
	case "json_object":
		q.chat.Format = &chatFormat{Type: kind}
		q.echo.Text.Format = encode(q.chat.Format)
	case "json_schema":
		if schema == nil {
			return q.refuse("a format of the type json_schema has a schema")
		}
		name = or(name, `"answer"`)
		q.chat.Format = &chatFormat{kind, &chatSchema{name, description, strict, schema}}
		q.echo.Text.Format = encode(struct {
			Type        string         `json:"type"`
			Name        jsontext.Value `json:"name"`
			Description jsontext.Value `json:"description"`
			Schema      jsontext.Value `json:"schema"`
			Strict      jsontext.Value `json:"strict"`
		}{kind, name, description, schema, or(strict, "false")})
	default:
		return q.refuse("the type must be text, json_object or json_schema")
	}
	return nil
}

// tool reads one tool: a function, one of the type custom, or a namespace, which
// holds more of them; what else there is runs at its vendor's alone.
func (q *ResponsesRequest) tool(space jsontext.Value) error {
	var t tool
	var inner []tool
	kind := ""
	before := q.tools
	err := q.object(func(name []byte) (err error) {
		switch string(name) {
		case "type":
			kind, err = q.requiredString()
		case "name":
			t.name, err = q.optionalValue()
		case "description":
			t.description, err = q.optionalValue()
		case "parameters":
			t.schema, err = q.optionalValue()
		case "strict":
			t.strict, err = q.optionalValue()
		case "format":
			t.format, err = q.optionalValue()
		case "tools":
			if space != nil || q.dec.PeekKind() != '[' {
				return q.dec.SkipValue()
			}
			q.tools = nil
			err = q.list(func() error { return q.tool(jsontext.Value(`""`)) }) // its name may come later
			inner, q.tools = q.tools, before
		default:
			err = q.dec.SkipValue()
		}
		return err
	})
	switch {
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
	}
	if kind == "custom" {
		t = customTool(t.name, t.description, t.format)
	}
	t.namespace = space
	q.tools = append(q.tools, t)
	return nil
}

// toolChoice reads tool_choice: a word, a tool, or which tools are allowed.
func (q *ResponsesRequest) toolChoice() error {
	switch q.dec.PeekKind() {
	case 'n':
		return q.dec.SkipValue()
	case '"':
		kind, err := q.requiredString()
		if err != nil {
			return err
		}
		return q.choose(kind)
	}
	var kind, mode string
	var name jsontext.Value
	names := []jsontext.Value{}
	err := q.object(func(member []byte) (err error) {
		switch string(member) {
		case "type":
			kind, err = q.requiredString()
		case "mode":
			mode, err = q.requiredString()
		case "name":
			name, err = q.optionalString()
		case "tools":
			err = q.list(func() error {
				return q.object(func(member []byte) error {
					if string(member) != "name" {
						return q.dec.SkipValue()
					}
					name, err := q.optionalString()
					names = append(names, name)
					return err
				})
			})
		default:
			err = q.dec.SkipValue()
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case (kind == "function" || kind == "custom") && name == nil:
		return q.refuse("a choice of the type %s names it", kind)
	case kind == "function" || kind == "custom":
		q.choice.kind, q.choice.name = "tool", name
		q.allowed = &[]jsontext.Value{name}
		q.echo.ToolChoice = encode(namedTool{kind, name})
	case kind == "allowed_tools":
		if mode == "" {
			mode = "auto"
		}
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

// namedTool names a tool in a choice.
type namedTool struct {
	Type string         `json:"type"`
	Name jsontext.Value `json:"name"`
}

// choose takes a word of tool_choice.
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

// allows reports whether the model may call the tool.
func (q *ResponsesRequest) allows(name []byte) bool {
	if q.allowed == nil {
		return true
	}
	for _, one := range *q.allowed {
		if one.Kind() == '"' && bytes.Equal(unquote(one), name) {
			return true
		}
	}
	return false
}

// nameTools gives each function the name that machines know it by: its own, with
// its namespace in front where that name is taken. What is not allowed the model
// is not shown: few engines know a way to forbid it.
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

// toolNamed is the name by which machines know the tool that its caller calls so.
func (q *ResponsesRequest) toolNamed(name, space jsontext.Value) jsontext.Value {
	for i := range q.known {
		if t := &q.known[i]; bytes.Equal(t.callerName, name) && bytes.Equal(t.namespace, space) {
			return t.name
		}
	}
	return name
}

// called is the tool that a machine calls so, with the name and the namespace by
// which its caller knows it; ok is false where the caller allows no such call.
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

// responseOf is the id of the response that an item of ours belongs to; empty
// for an id that is not of our making. Items are named after their response, so
// that a reference to one is enough to find it.
func responseOf(item string) string {
	_, own, ok := strings.Cut(item, "_")
	own, number, numbered := strings.Cut(own, "_")
	number = strings.TrimPrefix(number, "i")
	if _, err := strconv.ParseUint(number, 10, 31); !ok || !numbered || err != nil || own == "" {
		return ""
	}
	return "resp_" + own
}
