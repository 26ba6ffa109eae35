package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
)

// Models beyond the limit are left out because of the limit, and only those with bad ids
// because of their ids.
func TestLeftOut(t *testing.T) {
	var models []Model
	for i := range 1000 {
		models = append(models, Model{ID: fleet.ModelID(fmt.Sprint("m", i))})
	}
	const more = "744 models, because an engine can offer 256 at most; have it list fewer"
	const ids = "2 models by their ids: " + idRule
	for _, c := range []struct {
		models []Model
		kept   int
		why    string
	}{
		{models, maxModels, more},
		{append([]Model{{ID: " a"}, {ID: "m0"}}, models...), maxModels, "744 models, because"},
		{[]Model{{ID: " a"}, {ID: "m0"}, {ID: "m0"}}, 1, ids},
		{models[:maxModels], maxModels, ""},
	} {
		kept, why := usable(c.models)
		assert.Equal(t, len(kept), c.kept)
		assert.That(t, strings.HasPrefix(why, c.why) && (why == "") == (c.why == ""), "left out:", why)
	}
}
