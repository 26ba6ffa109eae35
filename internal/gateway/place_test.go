package gateway

import (
	"strings"
	"testing"

	"github.com/kith/kith/internal/fleet"
)

// TestOwnPlaceReadsOnce: a place of many parts, which is a machine's word, costs one
// reading of the body, as one of a single part does.
func TestOwnPlaceReadsOnce(t *testing.T) {
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"x"}]}`)
	x := &exchange{call: &Call{Endpoint: fleet.ChatCompletions}}
	costs := func(place string) float64 { return testing.AllocsPerRun(10, func() { x.ownPlace(body, place) }) }
	if one, many := costs("z"), costs(strings.Repeat("z.", 127)+"z"); many > 2*one {
		t.Errorf("128 parts cost %v allocations, one costs %v", many, one)
	}
	for place, want := range map[string]string{
		"messages.0.content.0.text": "messages.0.content", "messages.0.role": "messages.0.role", "messages.1.role": "messages", "tools.0": "", "": "",
	} {
		if got := x.ownPlace(body, place); got != want {
			t.Errorf("%q: %q, want %q", place, got, want)
		}
	}
}
