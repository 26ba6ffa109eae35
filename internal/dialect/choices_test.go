package dialect

import (
	"fmt"
	"testing"
)

// n is the number of answers that a call requests, within the limit for engines.
func TestChoices(t *testing.T) {
	for n, want := range map[string]int{"1": 1, "2": 2, "4": 4, "5": 4, "1e9": 4, "0": 1, "-3": 1, "2.0": 2, "null": 1, `"3"`: 0, "[]": 0} {
		head, err := ReadHead(fmt.Appendf(nil, `{"model":"m","n":%s}`, n))
		if err != nil || head.Choices != want {
			t.Errorf("n %s: %d, %v; want %d", n, head.Choices, err, want)
		}
	}
	if head, err := ReadHead([]byte(`{"model":"m","x":{"n":3}}`)); err != nil || head.Choices != 0 {
		t.Errorf("no n: %d, %v", head.Choices, err)
	}
}
