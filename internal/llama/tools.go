package llama

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"regexp"
	"slices"
	"strconv"

	"github.com/kith/kith/internal/llama/chatform"
)

// The limits of a request's tools.
const (
	maxTools       = 128
	maxToolSchema  = 64 << 10 // bytes of a tool's parameters
	maxToolSchemas = 1 << 20  // of all
)

var toolName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// parseTools returns the tools of a chat request that the model may call: as it is shown
// them, and as its calls are read. There are none if tool_choice is none.
func (q *chatRequest) parseTools() (shown []jsontext.Value, tools []chatform.Tool, err error) {
	allowed, err := allowedTools(q.ToolChoice)
	if err != nil {
		return nil, nil, err
	}
	if len(q.Tools) > maxTools {
		return nil, nil, badMember("tools", "tools must hold at most %d tools", maxTools)
	}
	size := 0
	for i, raw := range q.Tools {
		at := "tools." + strconv.Itoa(i)
		var tool struct {
			Type     string `json:"type"`
			Function struct {
				Name       string         `json:"name"`
				Parameters jsontext.Value `json:"parameters"`
			} `json:"function"`
		}
		if json.Unmarshal(raw, &tool) != nil || tool.Type != "function" {
			return nil, nil, badMember(at, "tools[%d] must be a tool of the type function", i)
		}
		name := tool.Function.Name
		if !toolName.MatchString(name) {
			return nil, nil, badMember(at+".function.name", "tools[%d].function.name must have 1 to 64 letters, digits, dots, dashes and underscores", i)
		}
		size += len(tool.Function.Parameters)
		if len(tool.Function.Parameters) > maxToolSchema || size > maxToolSchemas {
			return nil, nil, badMember(at+".function.parameters", "tools[%d].function.parameters: a schema must have at most %d bytes, and all together %d", i, maxToolSchema, maxToolSchemas)
		}
		if allowed(name) {
			shown = append(shown, raw)
			tools = append(tools, chatform.Tool{Name: name, Parameters: tool.Function.Parameters})
		}
	}
	return shown, tools, nil
}

// allowedTools returns which tools a tool_choice allows. A choice that requires a call is
// refused.
func allowedTools(choice jsontext.Value) (func(name string) bool, error) {
	all := func(string) bool { return true }
	demands := badMember("tool_choice", "this engine cannot promise a tool call; use tool_choice auto or none")
	switch choice.Kind() {
	case 0, 'n':
		return all, nil
	case '"':
		switch string(choice) {
		case `"auto"`:
			return all, nil
		case `"none"`:
			return func(string) bool { return false }, nil
		}
		return nil, demands
	}
	var named struct {
		Type    string `json:"type"`
		Allowed struct {
			Mode  string `json:"mode"`
			Tools []struct {
				Function struct {
					Name string `json:"name"`
				} `json:"function"`
			} `json:"tools"`
		} `json:"allowed_tools"`
	}
	if json.Unmarshal(choice, &named) != nil || named.Type != "allowed_tools" || named.Allowed.Mode == "required" {
		return nil, demands
	}
	var names []string
	for _, t := range named.Allowed.Tools {
		names = append(names, t.Function.Name)
	}
	return func(name string) bool { return slices.Contains(names, name) }, nil
}
