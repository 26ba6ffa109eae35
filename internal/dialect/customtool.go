package dialect

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
)

// A tool of the type custom takes one text instead of arguments by a schema.
// Machines are shown a function with one string, and its calls come back as
// those of the custom tool.

// customSchema is the schema of the function that represents a custom tool.
const customSchema = `{"type":"object","properties":{"input":{"type":"string","description":"the complete input of the tool, as plain text"}},"required":["input"],"additionalProperties":false}`

// customTool is the function that represents a custom tool of that name. The
// grammar of its input, if it has one, is added to its description.
func customTool(name, description, format jsontext.Value) tool {
	t := tool{name: name, description: description, format: format, schema: jsontext.Value(customSchema), custom: true}
	var grammar struct {
		Syntax     string   `json:"syntax"`
		Definition string   `json:"definition"`
		Grammar    struct { // as the chat dialect has them
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

// customInput is the input of a custom tool in the arguments of the function that
// represents it; arguments that are no such object are the input themselves.
func customInput(arguments []byte) string {
	var said struct {
		Input *string `json:"input"`
	}
	if json.Unmarshal(arguments, &said) == nil && said.Input != nil {
		return *said.Input
	}
	return string(arguments)
}

// customArguments is the opposite: the arguments of a call with that input, a JSON
// string.
func customArguments(input jsontext.Value) jsontext.Value {
	return encode(struct {
		Input jsontext.Value `json:"input"`
	}{or(input, `""`)})
}
