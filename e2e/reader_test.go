package e2e_test

import (
	"encoding/json"
	"regexp"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kith/kith/internal/enginetest"
)

// reader NAME MODEL FILE starts an engine double at $NAME with a context long
// enough for a coding agent: it reads FILE by whichever tool the agent has for
// that, then says the word after "password" in what the tool gave.
func reader(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 3, "reader NAME MODEL FILE")
	e := enginetest.New(enginetest.VLLM, enginetest.Options{Models: []enginetest.Model{{ID: args[1], ContextLength: 200_000, Tools: true}}})
	file := ts.MkAbs(args[2])
	e.Script(func(c enginetest.Call) enginetest.Behaviour { return readAndTell(c, file) })
	ts.Check(e.Start())
	of(ts).doubles[args[0]] = double{e}
	ts.Setenv(args[0], e.URL())
}

// readTools are the coding agents' tools that can read a file, and their inputs.
var readTools = map[string]func(file string) map[string]string{
	"Read":         func(file string) map[string]string { return map[string]string{"file_path": file} },    // Claude Code
	"read":         func(file string) map[string]string { return map[string]string{"filePath": file} },     // opencode
	"exec_command": func(file string) map[string]string { return map[string]string{"cmd": "cat " + file} }, // Codex
}

var password = regexp.MustCompile(`password is (\w+)`)

// readAndTell is the answer to one call: the tool call, or what the tool gave.
func readAndTell(c enginetest.Call, file string) enginetest.Behaviour {
	var asked struct {
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
		Tools []struct {
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(c.Body, &asked); err != nil {
		return enginetest.Behaviour{Status: 400}
	}
	for _, m := range asked.Messages {
		if word := password.FindSubmatch(m.Content); m.Role == "tool" && word != nil {
			return enginetest.Behaviour{Text: "It is " + string(word[1]) + "."}
		}
	}
	for _, tool := range asked.Tools {
		if input, ok := readTools[tool.Function.Name]; ok {
			return callTool(tool.Function.Name, input(file))
		}
	}
	return enginetest.Behaviour{Text: "Passwords"} // an aside without tools, for a title
}

// callTool is an answer that calls the tool.
func callTool(name string, input map[string]string) enginetest.Behaviour {
	text, _ := json.Marshal(input) // of strings
	return enginetest.Behaviour{Tool: &enginetest.ToolCall{ID: "call_read", Name: name, Input: string(text)}}
}
