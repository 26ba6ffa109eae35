package dialect

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"io"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/fault"
)

// ChatForms are forms of the chat dialect that engines do not support: tools of the type
// custom, a choice of allowed tools, and functions, the predecessor of tools. ChatForms
// translates them to function tools in the request for a machine, and translates the
// answer back.
type ChatForms struct {
	legacy bool            // uses functions and function_call
	custom map[string]bool // names of tools of the type custom
}

// jsonObject is a JSON object whose values are not decoded.
type jsonObject map[string]jsontext.Value

// list returns the elements of a member that is a list, nil for any other member.
func (o jsonObject) list(name string) []jsontext.Value {
	var list []jsontext.Value
	if o[name].Kind() == '[' {
		_ = json.Unmarshal(o[name], &list) // it was decoded before
	}
	return list
}

// ReadChatHead is ReadHead for the chat dialect. If the body uses ChatForms, it also
// returns those and the body translated for machines. Every error is a *fault.Fault; if
// only the forms are at fault, the Head is valid.
func ReadChatHead(body []byte) (Head, *ChatForms, []byte, error) {
	var h headReader
	if err := h.read(body, h.member); err != nil {
		return Head{}, nil, nil, err
	}
	if !h.forms {
		return h.Head, nil, nil, nil
	}
	request, f := jsonObject{}, &ChatForms{custom: map[string]bool{}}
	if err := json.Unmarshal(body, &request); err != nil {
		return h.Head, nil, nil, refusal(err)
	}
	if kind := request["web_search_options"].Kind(); kind != 'n' && kind != 0 { // only the vendor can search
		return h.Head, nil, nil, vendorToolFault("web_search_options", "web search")
	}
	for _, step := range []func(jsonObject) error{f.functions, f.tools, f.choice, f.messages} {
		if err := step(request); err != nil {
			return h.Head, nil, nil, err
		}
	}
	return h.Head, f, encode(request), nil
}

// usesForms reports whether a member of a chat request may use ChatForms.
func usesForms(name string, value jsontext.Value) bool {
	switch name {
	case "functions", "function_call", "web_search_options":
		return value.Kind() != 'n'
	case "tools":
		return value.Kind() == '[' && !onlyFunctions(value)
	case "tool_choice":
		return value.Kind() == '{' && !strings.Contains(string(value), `"function"`) || strings.Contains(string(value), `"allowed_tools"`)
	}
	return false
}

// onlyFunctions reports whether all tools are functions. It returns true for a malformed
// list, which the machine refuses.
func onlyFunctions(tools jsontext.Value) bool {
	var list []struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(tools, &list) != nil {
		return true
	}
	for _, t := range list {
		if t.Type != "function" && t.Type != "" {
			return false
		}
	}
	return true
}

func formFault(param, rule string) error {
	return fault.New(fault.InvalidRequest, "%s: %s", param, rule).WithParam(param)
}

// functions translates functions and function_call to tools and tool_choice. An empty
// list is ignored.
func (f *ChatForms) functions(request jsonObject) error {
	functions, call := request["functions"], request["function_call"]
	list := request.list("functions")
	delete(request, "functions")
	delete(request, "function_call")
	if len(list) > 0 {
		tools := make([]formTool, len(list))
		for i, one := range list {
			if one.Kind() != '{' {
				return formFault("functions."+strconv.Itoa(i), "a function is an object with a name")
			}
			tools[i] = formTool{Type: "function", Function: one}
		}
		request["tools"], f.legacy = encode(tools), true
	} else if functions != nil && functions.Kind() != '[' && functions.Kind() != 'n' {
		return formFault("functions", "must be a list")
	}
	if !f.legacy {
		return nil
	}
	request["parallel_tool_calls"] = jsontext.Value(`false`) // function_call can hold only one call
	switch call.Kind() {
	case '"':
		request["tool_choice"] = call
	case '{':
		request["tool_choice"] = encode(formTool{Type: "function", Function: call})
	}
	return nil
}

// formTool is a tool of the chat dialect, the choice of a tool, or a call.
type formTool struct {
	ID       string         `json:"id,omitzero"`
	Type     string         `json:"type"`
	Function jsontext.Value `json:"function,omitzero"`
	Custom   struct {
		Name        jsontext.Value `json:"name"`
		Description jsontext.Value `json:"description"`
		Format      jsontext.Value `json:"format"`
	} `json:"custom,omitzero"`
}

// name returns the tool's name as a JSON string, or nil if it has none.
func (t *formTool) name() jsontext.Value {
	named := struct {
		Name jsontext.Value `json:"name"`
	}{t.Custom.Name}
	if t.Type == "function" {
		_ = json.Unmarshal(t.Function, &named) // Function may not be an object; it then has no name
	}
	if named.Name.Kind() != '"' {
		return nil
	}
	return named.Name
}

// tools translates tools of the type custom to functions, and refuses tools that only
// their vendor runs.
func (f *ChatForms) tools(request jsonObject) error {
	list := request.list("tools")
	if list == nil {
		return nil
	}
	for i, one := range list {
		var t formTool
		param := "tools." + strconv.Itoa(i)
		switch err := json.Unmarshal(one, &t); {
		case err != nil, t.Type == "function", t.Type == "": // the machine checks these
		case t.Type != "custom":
			return vendorToolFault(param, strconv.Quote(t.Type))
		case t.name() == nil:
			return formFault(param, "a tool of the type custom has a name, which is a string")
		default:
			f.custom[string(unquote(t.name()))] = true
			tool := customTool(t.Custom.Name, t.Custom.Description, t.Custom.Format)
			list[i] = encode(tool.chat())
		}
	}
	request["tools"] = encode(list)
	return nil
}

// choice translates the choice of a custom tool or of allowed tools for engines. With
// allowed tools, all other tools are removed from the request.
func (f *ChatForms) choice(request jsonObject) error {
	var choice struct {
		formTool
		Allowed struct {
			Mode  string     `json:"mode"`
			Tools []formTool `json:"tools"`
		} `json:"allowed_tools"`
	}
	if request["tool_choice"].Kind() != '{' || json.Unmarshal(request["tool_choice"], &choice) != nil {
		return nil // the machine checks it
	}
	switch choice.Type {
	case "function", "", "auto", "none", "required": // the machine checks these
		return nil
	case "custom":
		if choice.name() == nil {
			return formFault("tool_choice", "a choice of the type custom names it")
		}
		request["tool_choice"] = encode(chatTool{Type: "function", Function: chatFunction{Name: choice.name()}})
		return nil
	case "allowed_tools":
	default:
		return vendorToolFault("tool_choice", strconv.Quote(choice.Type))
	}
	if mode := choice.Allowed.Mode; mode != "auto" && mode != "required" {
		return formFault("tool_choice", "the mode of allowed_tools must be auto or required")
	}
	allowed := map[string]bool{}
	for i := range choice.Allowed.Tools {
		allowed[string(choice.Allowed.Tools[i].name())] = true
	}
	var shown []jsontext.Value
	for _, one := range request.list("tools") {
		var t formTool
		if _ = json.Unmarshal(one, &t); allowed[string(t.name())] && t.name() != nil {
			shown = append(shown, one)
		}
	}
	if len(shown) == 0 {
		if choice.Allowed.Mode == "required" {
			return formFault("tool_choice", "none of the allowed tools is among the tools")
		}
		delete(request, "tools")
		delete(request, "tool_choice")
		return nil
	}
	request["tools"], request["tool_choice"] = encode(shown), encode(choice.Allowed.Mode)
	return nil
}

// messages translates earlier function_calls and the results of functions to tool calls
// and their results.
func (f *ChatForms) messages(request jsonObject) error {
	list := request.list("messages")
	if list == nil {
		return nil
	}
	ids := map[string]string{} // of the latest call of each function
	for i, one := range list {
		message := jsonObject{}
		if json.Unmarshal(one, &message) != nil {
			continue
		}
		if call := message["function_call"]; call.Kind() == '{' {
			t := formTool{ID: "call_" + strconv.Itoa(i), Type: "function", Function: call}
			ids[string(t.name())] = t.ID
			message["tool_calls"] = encode([]formTool{t})
		}
		delete(message, "function_call")
		if string(message["role"]) == `"function"` {
			id := ids[string(message["name"])]
			if id == "" {
				return formFault("messages."+strconv.Itoa(i), "a message of the role function follows the function_call of that name")
			}
			message["role"], message["tool_call_id"] = jsontext.Value(`"tool"`), quote(id)
		}
		f.earlierCalls(message)
		list[i] = encode(message)
	}
	request["messages"] = encode(list)
	return nil
}

// earlierCalls translates the custom tool calls in a message to function calls.
func (f *ChatForms) earlierCalls(message jsonObject) {
	var calls []jsonObject
	if json.Unmarshal(message["tool_calls"], &calls) != nil {
		return
	}
	for _, call := range calls {
		var custom struct {
			Name  jsontext.Value `json:"name"`
			Input jsontext.Value `json:"input"`
		}
		if string(call["type"]) != `"custom"` || json.Unmarshal(call["custom"], &custom) != nil || custom.Name == nil {
			continue
		}
		delete(call, "custom")
		call["type"], call["function"] = jsontext.Value(`"function"`), encode(formTarget{
			Name: string(unquote(custom.Name)), Arguments: string(customArguments(custom.Input)),
		})
	}
	message["tool_calls"] = encode(calls)
}

// Answer translates a unary chat answer back to the forms of the request. It checks the
// answer as CheckUnary does. Errors are *fault.Fault.
func (f *ChatForms) Answer(answer io.Reader) ([]byte, Usage, error) {
	document := jsonObject{}
	if err := readObject(answer, &document); err != nil {
		return nil, Usage{}, err
	}
	if failure := document["error"]; failure != nil && failure.Kind() != 'n' {
		return nil, Usage{}, errorMember(failure)
	}
	e := &formEvents{forms: f}
	usage := readUsage(document["usage"])
	out, err := e.rewrite(document, "message", true)
	return out, usage, err
}

// Events returns a translator that writes the chunks of a chat stream in the forms of the
// request.
func (f *ChatForms) Events() *Events {
	out := new(outbox)
	return &Events{outbox: out, writer: &formEvents{outbox: out, forms: f, open: map[int]*customCall{}}}
}

type formEvents struct {
	*outbox
	forms *ChatForms
	open  map[int]*customCall // by choice: the call of a custom tool that is still open
}

// customCall is a call of a custom tool whose arguments are still arriving.
type customCall struct {
	index     *int
	arguments []byte
}

func (e *formEvents) chunk(p *delta) error {
	chunk := jsonObject{}
	if json.Unmarshal(p.document, &chunk) != nil {
		return invalidAnswer("something that is not a chat answer")
	}
	out, err := e.rewrite(chunk, "delta", false)
	if err == nil {
		e.data(out)
	}
	return err
}

func (e *formEvents) end(Usage) error {
	e.raw("data: [DONE]\n\n")
	return nil
}

// formCall is a tool call in an answer, or a part of one.
type formCall struct {
	Index    *int        `json:"index,omitzero"`
	ID       string      `json:"id,omitzero"`
	Type     string      `json:"type,omitzero"`
	Function *formTarget `json:"function,omitzero"`
	Custom   *formInput  `json:"custom,omitzero"`
}

type formTarget struct {
	Name      string `json:"name,omitzero"`
	Arguments string `json:"arguments"`
}

type formInput struct {
	Name  string `json:"name,omitzero"`
	Input string `json:"input"`
}

// rewrite translates an answer or a chunk to the forms of the request. said is the name
// of the choice's member with the model's output.
func (e *formEvents) rewrite(answer jsonObject, said string, whole bool) ([]byte, error) {
	var choices []jsonObject
	if answer["choices"] != nil && json.Unmarshal(answer["choices"], &choices) != nil {
		return nil, invalidAnswer("something that is not a chat answer")
	}
	for at, choice := range choices {
		message := jsonObject{}
		var calls []formCall
		if json.Unmarshal(choice[said], &message) != nil || message["tool_calls"] != nil && json.Unmarshal(message["tool_calls"], &calls) != nil {
			return nil, invalidAnswer("something that is not a chat answer")
		}
		index := at
		if choice["index"].Kind() == '0' {
			_ = json.Unmarshal(choice["index"], &index) // it is a number
		}
		finished := choice["finish_reason"].Kind() == '"'
		if e.forms.legacy {
			legacyCall(choice, message, calls)
		} else if calls = e.customCalls(index, calls, whole, finished); calls != nil {
			message["tool_calls"] = encode(calls)
		} else {
			delete(message, "tool_calls")
		}
		choice[said] = encode(message)
	}
	if choices != nil {
		answer["choices"] = encode(choices)
	}
	return encode(answer), nil
}

// legacyCall moves the first call of a message to function_call.
func legacyCall(choice, message jsonObject, calls []formCall) {
	delete(message, "tool_calls")
	for _, call := range calls {
		if call.Index != nil && *call.Index > 0 || call.Function == nil {
			continue
		}
		message["function_call"] = encode(call.Function)
		break
	}
	if string(choice["finish_reason"]) == `"tool_calls"` {
		choice["finish_reason"] = jsontext.Value(`"function_call"`)
	}
}

// customCalls translates function calls that represent custom tools back. In a stream the
// input is sent in one part, when the next call begins or the choice has finished.
func (e *formEvents) customCalls(choice int, calls []formCall, whole, finished bool) []formCall {
	var out []formCall
	end := func() {
		if open := e.open[choice]; open != nil {
			out = append(out, formCall{Index: open.index, Custom: &formInput{Input: customInput(open.arguments)}})
			delete(e.open, choice)
		}
	}
	for _, call := range calls {
		name, arguments := "", ""
		if call.Function != nil {
			name, arguments = call.Function.Name, call.Function.Arguments
		}
		if name != "" {
			end()
		}
		open := e.open[choice]
		switch {
		case e.forms.custom[name] && whole:
			out = append(out, formCall{Index: call.Index, ID: call.ID, Type: "custom", Custom: &formInput{name, customInput([]byte(arguments))}})
			continue
		case e.forms.custom[name] && len(e.open) < MaxChoices:
			out = append(out, formCall{Index: call.Index, ID: call.ID, Type: "custom", Custom: &formInput{Name: name}})
			open = &customCall{index: call.Index}
			e.open[choice] = open
		case open == nil:
			out = append(out, call)
			continue
		}
		if len(open.arguments)+len(arguments) <= maxAnswerText {
			open.arguments = append(open.arguments, arguments...)
		}
	}
	if finished {
		end()
	}
	return out
}

// A tool of the type custom takes a text instead of arguments with a schema. Machines get
// a function with one string parameter, and its calls are translated back to custom
// calls.

const customSchema = `{"type":"object","properties":{"input":{"type":"string","description":"the complete input of the tool, as plain text"}},"required":["input"],"additionalProperties":false}`

// customTool returns the function that represents a custom tool. If the format of its
// input has a grammar, the grammar is added to the description.
func customTool(name, description, format jsontext.Value) tool {
	t := tool{name: name, description: description, format: format, schema: jsontext.Value(customSchema), custom: true}
	var grammar struct {
		Syntax     string   `json:"syntax"`
		Definition string   `json:"definition"`
		Grammar    struct { // as in the chat dialect
			Syntax     string `json:"syntax"`
			Definition string `json:"definition"`
		} `json:"grammar"`
	}
	if format == nil || json.Unmarshal(format, &grammar) != nil {
		return t
	}
	syntax, definition := grammar.Syntax, grammar.Definition
	if definition == "" {
		syntax, definition = grammar.Grammar.Syntax, grammar.Grammar.Definition
	}
	if definition == "" {
		return t
	}
	said := ""
	if description.Kind() == '"' {
		said = string(unquote(description)) + "\n\n"
	}
	t.callerDescription, t.description = description, quote(said+"The input has to follow this "+syntax+" grammar:\n"+definition)
	return t
}

// customInput returns the input of a custom tool from the arguments of the function that
// represents it. If the arguments are not such an object, they are the input.
func customInput(arguments []byte) string {
	var said struct {
		Input *string `json:"input"`
	}
	if json.Unmarshal(arguments, &said) == nil && said.Input != nil {
		return *said.Input
	}
	return string(arguments)
}

// customArguments returns the arguments for that input as a JSON string. It is the
// inverse of customInput.
func customArguments(input jsontext.Value) jsontext.Value {
	return encode(struct {
		Input jsontext.Value `json:"input"`
	}{or(input, `""`)})
}
