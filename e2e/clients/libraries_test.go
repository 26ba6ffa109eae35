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

// places is where the members call, all on one kind of surface. The one of limited may be
// called once a second.
type places struct{ ada, eve, limited surface }

// places are at the hubs.
func (n *libraries) places() places {
	return places{n.atHub("ada"), n.atHub("eve"), n.limited.atHub("ada")}
}

// remotes are at daemons without an engine, one a member.
func (n *libraries) remotes() places {
	return places{n.remote("ada"), n.remote("eve"), n.limited.remote("ada")}
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

// refusal is what a caller is refused when it asks there for that model.
type refusal struct {
	status      int
	code, kind  string // kind is the messages dialect's type
	at          surface
	model, text string
}

func (p places) refusals() []refusal {
	all := []refusal{
		{404, "model_not_found", "not_found_error", p.ada, "gpt-4o", "hi"},
		{403, "NOT_IN_CIRCLE", "permission_error", p.eve, "tiny", "hi"},
		{413, "request_too_large", "request_too_large", p.ada, "tiny", strings.Repeat("x", 33<<20)},
		{429, "rate_limit_exceeded", "rate_limit_error", p.limited, "tiny", "hi"},
		{503, "CASCADE_EXHAUSTED", "api_error", p.ada, paused, "hi"},
	}
	if !p.ada.sealed { // a daemon takes every key
		wrong := p.ada
		wrong.key = "kith_wrong"
		all = append(all, refusal{401, "invalid_api_key", "authentication_error", wrong, "tiny", "hi"})
	}
	return all
}

// refused asks, streamed and not, for each refusal.
func (p places) refused(t *testing.T, ask func(r refusal, streamed bool) error, check func(*testing.T, refusal, error)) {
	for _, r := range p.refusals() {
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
// and a stream that breaks; at the hub, and sealed by daemons whose models are all on
// another machine. The responses dialect is not sealed.
func TestLibraries(t *testing.T) {
	t.Parallel()
	n := startLibraries(t)
	for name, at := range map[string]places{"hub": n.places(), "sealed": n.remotes()} {
		t.Run(name+"/openai-go", func(t *testing.T) { n.openAI(t, at) })
		t.Run(name+"/anthropic-sdk-go", func(t *testing.T) { n.anthropic(t, at) })
		t.Run(name+"/javascript", func(t *testing.T) { n.javaScript(t, at) })
	}
	t.Run("openai-go, responses", n.openAIResponses)
	t.Run("page", n.page)
}

// javaScript runs node's own tests, one file a library; what they say is what
// this test says.
func (n *libraries) javaScript(t *testing.T, at places) {
	if _, err := os.Stat("node_modules"); err != nil {
		t.Fatalf("cannot find the libraries: %v; run scripts/setup-test.sh, or make test", err)
	}
	files, err := filepath.Glob("node/*.test.mjs")
	assert.Require(t, err == nil && len(files) != 0, "no tests in node", err)
	where, err := json.Marshal(map[string]any{
		"ada": at.ada.place(), "eve": at.eve.place(), "limited": at.limited.place(), "sealed": at.ada.sealed,
	})
	assert.OK(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", append([]string{"--test", "--test-reporter=spec", "--test-timeout=60000"}, files...)...)
	cmd.Env = append(os.Environ(), "KITH_E2E="+string(where))
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	assert.OK(t, cmd.Run(), "node --test")
}
