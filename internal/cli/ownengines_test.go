package cli

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/llama"
)

// TestOwnEnginesStart: the daemon has the built-in engine with all its models from the
// moment that it starts, and no longer once it cannot start.
func TestOwnEnginesStart(t *testing.T) {
	o := newOwnEngines(nil, true, slog.New(slog.DiscardHandler))
	o.files = []modelFile{{ID: "a"}, {ID: "b"}}
	o.supervisor = llama.NewSupervisor(llama.Config{}) // Run would start it
	all := o.all()
	assert.Require(t, len(all) == 1 && all[0].IsStarting(), all)
	want := map[fleet.ModelID]string{"a": "the built-in engine is starting", "b": "the built-in engine is starting"}
	assert.Same(t, all[0].Problems(), want)
	failure := errors.New("it cannot")
	o.failure.Store(&failure)
	if all := o.all(); len(all) > 0 {
		t.Errorf("after its failure: %v", all)
	}
}

// The machine's keys are made once, with mode 0600. The error of a file without
// them names the next step.
func TestSecrets(t *testing.T) {
	var c daemonFile
	c.Daemon.Data = t.TempDir()
	path := filepath.Join(c.Daemon.Data, "secrets.json")
	made := assert.Value(c.secrets())(t)
	assert.Equal(t, assert.Value(c.secrets())(t), made, "read again")
	assert.That(t, llama.IsPromptKey(made.PromptKey) && made.CacheKey != "", made)
	for text, why := range map[string]string{
		"{": "unexpected EOF", `{"prompt_key":"","cache_key":"x"}`: "lacks a key", `{"prompt_key":"` + made.PromptKey + `"}`: "lacks a key",
	} {
		assert.OK(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := c.secrets()
		assert.Fails(t, err, why, text)
		assert.Fails(t, err, "remove it", text)
	}
}
