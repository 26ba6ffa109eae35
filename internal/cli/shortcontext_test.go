package cli

import (
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// qwen8b is Qwen3-8B (Q4_K_M) with that context in tokens, in one slot.
func qwen8b(context int) shortContext {
	return shortContext{model: "Qwen3-8B", context: context, trained: 40_960, weights: 5_027_783_488, each: 147_456}
}

func TestShortContextWarning(t *testing.T) {
	with := func(s shortContext, change func(*shortContext)) shortContext {
		change(&s)
		return s
	}
	for name, test := range map[string]struct {
		known shortContext
		want  string
	}{
		"on another machine": {shortContext{model: "far", context: 8192},
			"far has a context of 8192 tokens; coding agents need 16384; `kith models --account` lists models with more; name one with --model"},
		"memory": {qwen8b(8192),
			"Qwen3-8B has a context of 8192 tokens, since this machine's free memory holds no more; coding agents need 16384; `kith pull qwen3-4b` fetches a smaller model, which has more here"},
		"memory, and nothing smaller": {with(qwen8b(4096), func(s *shortContext) { s.weights = 600_000_000 }),
			"Qwen3-8B has a context of 4096 tokens, since this machine's free memory holds no more; coding agents need 16384; close other programs and restart the daemon"},
		"slots": {with(qwen8b(8192), func(s *shortContext) { s.slots = 4 }),
			"Qwen3-8B has a context of 8192 tokens, since this machine's free memory holds no more for 4 slots; coding agents need 16384; set [engine] slots to 1 in config.toml and restart the daemon"},
		"configured": {with(qwen8b(8192), func(s *shortContext) { s.configured = 8192 }),
			"Qwen3-8B has a context of 8192 tokens, which [engine] context sets; coding agents need 16384; remove it from config.toml and restart the daemon"},
		"trained": {with(qwen8b(8192), func(s *shortContext) { s.trained = 8192 }),
			"Qwen3-8B has a context of 8192 tokens, the length that it was trained on; coding agents need 16384; `kith pull qwen3-4b` fetches a smaller model, which has more here"},
	} {
		assert.Equal(t, test.known.warning(), test.want, name)
	}
}

// A model is named only if it has enough context in the memory that this one takes.
func TestSmallerModel(t *testing.T) {
	for context, want := range map[int]string{4096: "qwen3-4b", 8192: "qwen3-4b"} {
		got := qwen8b(context).smaller()
		assert.Require(t, got != nil, context)
		assert.Equal(t, got.Name, want, context)
	}
	tight := qwen8b(4096) // as large as the next smaller one, and less memory than that needs with more context
	tight.weights = 2_497_280_256 + 1
	got := tight.smaller()
	assert.Require(t, got != nil && got.Name == "qwen3-0.6b", got)
}

// `kith launch` warns of a short context, and names the cause if this machine runs the model.
func TestLaunchShortContext(t *testing.T) {
	handler, _ := double(t, words(`{"data":[{"id":"tiny","availability":"ready","context_length":512},{"id":"other","availability":"ready","context_length":4096},`+
		`{"id":"enough","availability":"ready","context_length":16384},{"id":"unknown","availability":"ready"}]}`))
	server := httptest.NewServer(handler)
	defer server.Close()
	home := t.TempDir()
	t.Setenv("KITH_HOME", home)
	model := assert.Value(filepath.Abs("../llama/data/tiny.gguf"))(t)
	write(t, filepath.Join(home, "config.toml"), "[daemon]\nlisten = \""+strings.TrimPrefix(server.URL, "http://")+"\"\n[engine]\nmodels = [\""+model+"\"]\n")
	fakeAgent(t, "claude")
	for name, want := range map[string]string{
		"tiny":    "warning: tiny has a context of 512 tokens, since this machine's free memory holds no more; coding agents need 16384; close other programs and restart the daemon\n",
		"other":   "warning: other has a context of 4096 tokens; coding agents need 16384; `kith models --account` lists models with more; name one with --model\n",
		"enough":  "",
		"unknown": "",
	} {
		got := kith(t, "", "launch", "claude", "--model", name)
		assert.Equal(t, got.err, want, name)
		assert.Equal(t, got.status, 7, name)
	}
}
