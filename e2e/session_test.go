package e2e_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kith/kith/internal/enginetest"
)

// toolTurns is how many tools a session calls.
const toolTurns = 10

// coder NAME MODEL [cold|slow] starts an engine double that takes the time of a machine for
// prompts, and calls a tool until a session has the results of toolTurns. With "cold" it
// keeps no prompts, with "slow" it takes long for them.
func coder(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 2 || len(args) == 3 && (args[2] == "cold" || args[2] == "slow"), "coder NAME MODEL [cold|slow]")
	timing := enginetest.Timing{Start: 50 * time.Millisecond, Prefill: 4000, Decode: 200}
	switch args[len(args)-1] {
	case "cold":
		timing.KeptPrompts = -1
	case "slow":
		timing.Prefill = 100
	}
	e := enginetest.New(enginetest.LlamaCpp, enginetest.Options{
		Models: []enginetest.Model{{ID: args[1], ContextLength: 200_000, Tools: true}}, Slots: 4, Timing: &timing,
	})
	e.Script(readOn)
	ts.Check(e.Start())
	of(ts).doubles[args[0]] = double{e}
	ts.Setenv(args[0], e.URL())
}

// readOn is the answer to one call of a session: the next tool call, or the end.
func readOn(c enginetest.Call) enginetest.Behaviour {
	results := bytes.Count(c.Body, []byte(`"role":"tool"`))
	if results == toolTurns || !bytes.Contains(c.Body, []byte(`"tools":`)) {
		return enginetest.Behaviour{Text: "The test failed for want of a file."}
	}
	return enginetest.Behaviour{Text: "I read the next file.", Tool: &enginetest.ToolCall{
		ID: fmt.Sprintf("call_%d", results), Name: "Read", Input: fmt.Sprintf(`{"file_path":"%d.go"}`, results),
	}}
}

// computed all|third NAME... checks what the doubles together computed of the prompts that they
// got: all of it, or at most a third.
func computed(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) >= 2 && (args[0] == "all" || args[0] == "third"), "computed all|third NAME...")
	var sum enginetest.Counts
	for _, name := range args[1:] {
		c := of(ts).doubles[name].engine.Counts()
		ts.Logf("%s: %d calls, %d of %d tokens computed", name, c.Runs, c.Computed, c.Prompt)
		sum.Prompt, sum.Computed = sum.Prompt+c.Prompt, sum.Computed+c.Computed
	}
	switch {
	case sum.Prompt < 50_000:
		ts.Fatalf("the prompts had only %d tokens", sum.Prompt)
	case args[0] == "all" && sum.Computed != sum.Prompt, args[0] == "third" && 3*sum.Computed > sum.Prompt:
		ts.Fatalf("%d of %d tokens were computed, not %s", sum.Computed, sum.Prompt, args[0])
	}
}

// codingAgent is the claude on every script's PATH: a session of a coding agent in the
// messages dialect, as `kith launch claude` starts it. A script that wants Claude Code
// itself puts its folder in front.
func codingAgent() {
	began := time.Now()
	session := agentSession{Max: 1000, Stream: true, Messages: []agentMessage{{"user", "Find out why the test fails."}}}
	for i, arg := range os.Args[:len(os.Args)-1] {
		if arg == "--model" {
			session.Model = os.Args[i+1]
		}
	}
	session.System = "You are a coding agent. " + sourceText(20_000)
	session.Tools = []any{map[string]any{"name": "Read", "description": sourceText(2000), "input_schema": map[string]string{"type": "object"}}}
	for used := 0; ; used++ {
		tool, id, err := session.turn()
		if err != nil {
			fmt.Fprintln(os.Stderr, "the agent:", err)
			os.Exit(1)
		}
		if tool == nil {
			fmt.Printf("%d tools used\nin %.1f s\n", used, time.Since(began).Seconds())
			fmt.Fprintln(os.Stderr, id)
			return
		}
		session.Messages = append(session.Messages, agentMessage{"user", []agentBlock{{Type: "tool_result", Use: tool.ID, Content: tool.ID + ": " + sourceText(1500)}}})
	}
}

// sourceText returns n bytes of a file.
func sourceText(n int) string { return strings.Repeat("if err != nil { return err }\n", n/29+1)[:n] }

// agentSession is the request of a session's next turn.
type agentSession struct {
	Model    string         `json:"model"`
	Max      int            `json:"max_tokens"`
	Stream   bool           `json:"stream"`
	System   string         `json:"system"`
	Tools    []any          `json:"tools"`
	Messages []agentMessage `json:"messages"`
}

type agentMessage struct {
	Role    string `json:"role"`
	Content any    `json:"content"`
}

type agentBlock struct {
	Type    string          `json:"type"`
	Text    string          `json:"text,omitempty"`
	ID      string          `json:"id,omitempty"`
	Name    string          `json:"name,omitempty"`
	Input   json.RawMessage `json:"input,omitempty"`
	Use     string          `json:"tool_use_id,omitempty"`
	Content string          `json:"content,omitempty"`
}

// turn makes the next call and adds its answer to the session. It returns the tool that
// the answer calls, or nil, and the correlation id.
func (s *agentSession) turn() (tool *agentBlock, id string, err error) {
	body, err := json.Marshal(s)
	if err != nil {
		return nil, "", err
	}
	r, err := http.NewRequest(http.MethodPost, os.Getenv("ANTHROPIC_BASE_URL")+"/v1/messages", bytes.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	r.Header.Set("Authorization", "Bearer "+os.Getenv("ANTHROPIC_AUTH_TOKEN"))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Anthropic-Version", "2023-06-01")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		return nil, "", errors.New(strconv.Itoa(response.StatusCode) + ": " + string(text))
	}
	blocks, err := readBlocks(response.Body)
	if err != nil {
		return nil, "", err
	}
	s.Messages = append(s.Messages, agentMessage{"assistant", blocks})
	for i := range blocks {
		if blocks[i].Type == "tool_use" {
			tool = &blocks[i]
		}
	}
	return tool, response.Header.Get("X-Correlation-Id"), nil
}

// readBlocks reads the events of an answer to their end mark.
func readBlocks(events io.Reader) (blocks []agentBlock, err error) {
	for lines := bufio.NewScanner(events); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var event struct {
			Type  string     `json:"type"`
			Block agentBlock `json:"content_block"`
			Delta struct {
				Text  string `json:"text"`
				Input string `json:"partial_json"`
			} `json:"delta"`
		}
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			return nil, err
		}
		switch event.Type {
		case "content_block_start":
			event.Block.Input = nil // it follows in pieces
			blocks = append(blocks, event.Block)
		case "content_block_delta":
			last := &blocks[len(blocks)-1]
			last.Text += event.Delta.Text
			last.Input = append(last.Input, event.Delta.Input...)
		case "message_stop":
			return blocks, nil
		case "error":
			return nil, errors.New(data)
		}
	}
	return nil, errors.New("the answer has no end mark")
}
