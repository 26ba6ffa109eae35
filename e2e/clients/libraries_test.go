package clients_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// libraries is the network on which every library sees the same list: ada's
// machine has the small model of the built-in engine, and an engine double that
// calls tools and breaks streams; another of hers is paused; eve reaches
// nothing; on a hub beside it a key may call once a second.
type libraries struct {
	*staged
	engine  *enginetest.Engine
	limited *staged
}

// What asks the double for what it does, and the model that is paused.
const (
	askTool   = "What does the file say?"
	askBroken = "break"
	paused    = "paused"
)

// What the double answers to askTool, as one chunk each, and together.
const (
	chunk      = `data: {"id":"chatcmpl-7","object":"chat.completion.chunk","created":1795219200,"model":"test-model","choices":[`
	toolChunks = chunk + `{"index":0,"delta":{"role":"assistant","reasoning":"A file."},"finish_reason":null}]}

` + chunk + `{"index":0,"delta":{"content":"I look."},"finish_reason":null}]}

` + chunk + `{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"read","arguments":""}}]},"finish_reason":null}]}

` + chunk + `{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"path\":\"a b.txt\"}"}}]},"finish_reason":null}]}

` + chunk + `{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

` + chunk + `],"usage":{"prompt_tokens":11,"completion_tokens":7,"total_tokens":18}}

data: [DONE]

`
	toolAnswer = `{"id":"chatcmpl-7","object":"chat.completion","created":1795219200,"model":"test-model",
		"choices":[{"index":0,"message":{"role":"assistant","reasoning":"A file.","content":"I look.",
		"tool_calls":[{"id":"call_1","type":"function","function":{"name":"read","arguments":"{\"path\":\"a b.txt\"}"}}]},"finish_reason":"tool_calls"}],
		"usage":{"prompt_tokens":11,"completion_tokens":7,"total_tokens":18}}`
)

func startLibraries(t *testing.T) *libraries {
	engine := enginetest.New(enginetest.VLLM, enginetest.Options{})
	assert.OK(t, engine.Start())
	t.Cleanup(func() { engine.Close() })
	engine.Script(func(c enginetest.Call) enginetest.Behaviour {
		switch {
		case strings.Contains(string(c.Body), `"role":"tool"`):
			return enginetest.Behaviour{Text: "The file says hello."}
		case strings.Contains(c.Input, askBroken):
			return enginetest.Behaviour{Text: "one two three four", Fault: enginetest.Die, After: 2}
		default:
			return enginetest.Behaviour{Raw: []string{toolChunks}, Answer: toolAnswer}
		}
	})
	n := &libraries{staged: startNetwork(t, ""), engine: engine, limited: startNetwork(t, "[ratelimit]\nrps = 1\nburst = 1\n")}
	n.member("eve")
	tiny := assert.Value(filepath.Abs("../../internal/llama/data/tiny.gguf"))(t)
	n.daemon("box", fmt.Sprintf("[engine]\nmodels = [%q]\n[discovery]\nenabled = false\nendpoints = [%q]\n[share]\nslots = 8\n", tiny, engine.URL()))
	away := n.machine(paused, "")
	for _, model := range []string{"tiny", "test-model", paused} {
		n.eventually("ada", model, "")
	}
	n.curl(away.home, "/pause")
	n.eventually("ada", paused, "CASCADE_EXHAUSTED")
	return n
}

// refusal is what a caller with that key is refused when it asks there for
// that model.
type refusal struct {
	status      int
	code, kind  string // kind is the messages dialect's type
	hub, key    string
	model, text string
}

func (n *libraries) refusals() []refusal {
	ada, eve := n.keys["ada"], n.keys["eve"]
	return []refusal{
		{401, "invalid_api_key", "authentication_error", n.hub, "kith_wrong", "tiny", "hi"},
		{404, "model_not_found", "not_found_error", n.hub, ada, "gpt-4o", "hi"},
		{403, "NOT_IN_CIRCLE", "permission_error", n.hub, eve, "tiny", "hi"},
		{413, "request_too_large", "request_too_large", n.hub, ada, "tiny", strings.Repeat("x", 33<<20)},
		{429, "rate_limit_exceeded", "rate_limit_error", n.limited.hub, n.limited.keys["ada"], "tiny", "hi"},
		{503, "CASCADE_EXHAUSTED", "api_error", n.hub, ada, paused, "hi"},
	}
}

// refused asks, streamed and not, for each refusal.
func (n *libraries) refused(t *testing.T, ask func(r refusal, streamed bool) error, check func(*testing.T, refusal, error)) {
	for _, r := range n.refusals() {
		for _, streamed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d %s/streamed=%t", r.status, r.code, streamed), func(t *testing.T) {
				err := ask(r, streamed)
				for tries := 0; r.status == 429 && tries < 5 && err != nil && strings.Contains(err.Error(), "404"); tries++ {
					err = ask(r, streamed) // the bucket was full
				}
				check(t, r, err)
			})
		}
	}
}

// TestLibraries drives the official libraries, each through the same list:
// models, unary, stream, tools, usage, embeddings, what each refusal becomes,
// and a stream that breaks.
func TestLibraries(t *testing.T) {
	t.Parallel()
	n := startLibraries(t)
	t.Run("openai-go", n.openAI)
	t.Run("openai-go, responses", n.openAIResponses)
	t.Run("anthropic-sdk-go", n.anthropic)
	t.Run("javascript", n.javaScript)
	t.Run("page", n.page)
}

// javaScript runs node's own tests, one file a library; what they say is what
// this test says.
func (n *libraries) javaScript(t *testing.T) {
	if _, err := os.Stat("node_modules"); err != nil {
		t.Fatalf("cannot find the libraries: %v; run scripts/setup-test.sh, or make test", err)
	}
	files, err := filepath.Glob("node/*.test.mjs")
	assert.Require(t, err == nil && len(files) != 0, "no tests in node", err)
	where, err := json.Marshal(map[string]any{
		"base": n.hub, "keys": n.keys,
		"limited": map[string]string{"base": n.limited.hub, "key": n.limited.keys["ada"]},
	})
	assert.OK(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", append([]string{"--test", "--test-reporter=spec", "--test-timeout=60000"}, files...)...)
	cmd.Env = append(os.Environ(), "KITH_E2E="+string(where))
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	assert.OK(t, cmd.Run(), "node --test")
}
