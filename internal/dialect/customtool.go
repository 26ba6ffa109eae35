package dialect

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
)

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
