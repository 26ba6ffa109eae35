package dialect

import (
	"fmt"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// n is the number of answers that a call requests, within the limit for engines.
func TestChoices(t *testing.T) {
	for n, want := range map[string]int{"1": 1, "2": 2, "4": 4, "5": 4, "1e9": 4, "0": 1, "-3": 1, "2.0": 2, "null": 1, `"3"`: 0, "[]": 0} {
		assert.Equal(t, assert.Value(ReadHead(fmt.Appendf(nil, `{"model":"m","n":%s}`, n)))(t).Choices, want, "n", n)
	}
	assert.Equal(t, assert.Value(ReadHead([]byte(`{"model":"m","x":{"n":3}}`)))(t).Choices, 0, "no n")
}
