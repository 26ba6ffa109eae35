package cli

import (
	"errors"
	"log/slog"
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
