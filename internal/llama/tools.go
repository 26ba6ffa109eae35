package llama

import (
	"bytes"
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

// parseTools reads the tools of a chat request: as the model is shown them, and as its calls
// are read. It is shown only those that tool_choice allows.
func (q *chatRequest) parseTools(c *chat) error {
	choice, err := parseToolChoice(q.ToolChoice)
	if err != nil {
		return err
	}
	if len(q.Tools) > maxTools {
		return badMember("tools", "tools must hold at most %d tools", maxTools)
	}
	size := 0
	for i, raw := range q.Tools {
		tool, err := parseTool(i, raw)
		if err != nil {
			return err
		}
		if size += len(tool.Parameters); size > maxToolSchemas {
			return badMember("tools", "tools: their schemas must have at most %d bytes together", maxToolSchemas)
		}
		at := slices.Index(choice.unseen, tool.Name)
		if at >= 0 {
			choice.unseen = slices.Delete(choice.unseen, at, at+1)
		}
		if at >= 0 || choice.all {
			c.conversation.Tools = append(c.conversation.Tools, raw)
			c.tools = append(c.tools, tool)
		}
	}
	if len(choice.unseen) > 0 {
		return badMember("tool_choice", "tool_choice names %q, which is not in tools", choice.unseen[0])
	}
	if c.mustCall = choice.required; c.mustCall && len(c.tools) == 0 {
		return badMember("tool_choice", "tool_choice requires a tool call, and there are no tools")
	}
	return nil
}

// parseTool reads a tool.
func parseTool(i int, raw jsontext.Value) (t chatform.Tool, err error) {
	at := "tools." + strconv.Itoa(i)
	var tool struct {
		Type     string `json:"type"`
		Function struct {
			Name       string         `json:"name"`
			Parameters jsontext.Value `json:"parameters"`
			Strict     bool           `json:"strict"`
		} `json:"function"`
	}
	if json.Unmarshal(raw, &tool) != nil || tool.Type != "function" {
		return t, badMember(at, "tools[%d] must be a tool of the type function", i)
	}
	t = chatform.Tool{Name: tool.Function.Name, Parameters: tool.Function.Parameters}
	if !toolName.MatchString(t.Name) {
		return t, badMember(at+".function.name", "tools[%d].function.name must have 1 to 64 letters, digits, dots, dashes and underscores", i)
	}
	if t.Parameters.Kind() == 'n' {
		t.Parameters = nil
	}
	if len(t.Parameters) == 0 {
		return t, nil
	}
	at += ".function.parameters"
	if len(t.Parameters) > maxToolSchema {
		return t, badMember(at, "tools[%d].function.parameters: a schema must have at most %d bytes", i, maxToolSchema)
	}
	var root struct {
		Type jsontext.Value `json:"type"`
	}
	if json.Unmarshal(t.Parameters, &root) != nil || len(root.Type) > 0 && !bytes.Contains(root.Type, []byte(`"object"`)) {
		return t, badMember(at, "tools[%d].function.parameters must be the schema of an object", i)
	}
	if tool.Function.Strict {
		if _, err := schemaRules(t.Parameters); err != nil {
			return t, badMember(at, "tools[%d].function.parameters cannot be kept strictly: %v; leave out strict, or change the schema", i, err)
		}
	}
	return t, nil
}

// toolChoice is which tools the model may call, and whether it must.
type toolChoice struct {
	all      bool
	unseen   []string // the tools that are named, if not all, until they are found
	required bool
}

func parseToolChoice(v jsontext.Value) (toolChoice, error) {
	invalid := badMember("tool_choice", "tool_choice must be auto, none, required, a function of tools, or allowed_tools")
	switch string(v) {
	case "", "null", `"auto"`:
		return toolChoice{all: true}, nil
	case `"none"`:
		return toolChoice{}, nil
	case `"required"`:
		return toolChoice{all: true, required: true}, nil
	}
	type function struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	var choice struct {
		function
		Type    string `json:"type"`
		Allowed struct {
			Mode  string     `json:"mode"`
			Tools []function `json:"tools"`
		} `json:"allowed_tools"`
	}
	if json.Unmarshal(v, &choice) != nil {
		return toolChoice{}, invalid
	}
	switch {
	case choice.Type == "function":
		return toolChoice{unseen: []string{choice.Function.Name}, required: true}, nil
	case choice.Type == "allowed_tools" && (choice.Allowed.Mode == "auto" || choice.Allowed.Mode == "required"):
		c := toolChoice{required: choice.Allowed.Mode == "required"}
		for _, t := range choice.Allowed.Tools {
			c.unseen = append(c.unseen, t.Function.Name)
		}
		return c, nil
	}
	return toolChoice{}, invalid
}
