package dialect

import (
	"encoding/json/jsontext"
	"fmt"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
)

// objectOf returns a JSON object of n members whose names begin with prefix.
func objectOf(n int, prefix string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"%s%d":0`, prefix, i)
	}
	return "{" + strings.TrimPrefix(b.String(), ",") + "}"
}

// zeros returns n numbers as the elements of a list.
func zeros(n int) string { return strings.TrimSuffix(strings.Repeat("0,", n), ",") }

// TestPeekBounds: decoding values of a few bytes takes many times their length, so their
// number is limited. A body just within the limit passes.
func TestPeekBounds(t *testing.T) {
	const head = `{"model":"m",`
	text := `"` + strings.Repeat(`,{[:\"`, 200_000) + `"` // in a string nothing counts
	for _, c := range []struct {
		name, body   string
		within       string
		param, words string
	}{
		{"names", head + `"metadata":` + objectOf(10_001, "n") + `}`, head + `"metadata":` + objectOf(10_000, "n") + `}`, "metadata", "10000 names"},
		{"names at the top", head + objectOf(10_000, "n")[1:], head + objectOf(9_999, "n")[1:], "", "10000 names"},
		{"names in lists", head + `"a":[[` + objectOf(10_001, "n") + `]]}`, head + `"a":[` + objectOf(9_000, "n") + `,` + objectOf(9_000, "n") + `]}`, "a", "10000 names"},
		{"numbers", head + `"x":1,"y":[` + zeros(200_000) + `]}`, head + `"y":[` + zeros(199_997) + `]}`, "y", "200000 values"},
		{"lists", head + `"y":[` + strings.TrimSuffix(strings.Repeat(`[],`, 200_000), ",") + `]}`, head + `"y":` + text + `}`, "y", "200000 values"},
		{"objects", head + `"y":[` + strings.TrimSuffix(strings.Repeat(`{"a":1},`, 100_001), ",") + `]}`, head + `"y":[` + strings.TrimSuffix(strings.Repeat(`{"a":1},`, 99_998), ",") + `]}`, "y", "200000 values"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ReadHead([]byte(c.body))
			f := fault.Of(err)
			if err == nil || f.Code != fault.InvalidRequest || f.Param != c.param || !strings.Contains(f.Message, c.words) {
				t.Errorf("got %v (param %q)", err, f.Param)
			}
			if _, err := ReadHead([]byte(c.within)); err != nil {
				t.Errorf("just within: %v", err)
			}
			assert.Fails(t, assert.Err(MessagesToChat([]byte(c.body))), c.words, "the messages dialect")
			assert.Fails(t, assert.Err(ReadResponses([]byte(c.body))), c.words, "the responses dialect")
		})
	}
}

// TestEmbeddingsBounds: there may be ten times as many token numbers, but only in the
// input.
func TestEmbeddingsBounds(t *testing.T) {
	body := func(n int) []byte { return []byte(`{"model":"m","input":[[` + zeros(n) + `]]}`) }
	if _, err := ReadEmbeddingsHead(body(1_999_999)); err != nil {
		t.Error(err)
	}
	for _, refused := range [][]byte{body(2_000_000), []byte(`{"model":"m","other":[` + zeros(200_000) + `],"input":"x"}`)} {
		assert.Fails(t, assert.Err(ReadEmbeddingsHead(refused)), "000 values")
	}
	if _, err := ReadHead(body(200_000)); err == nil {
		t.Error("a chat call may not have as many")
	}
}

// FuzzShape: the pass over the bytes counts the same as a decoder does.
func FuzzShape(f *testing.F) {
	for _, seed := range []string{`{}`, `{"a":[1,2,{"b":{},"c":[]}],"\"":"[{,"}`, ` { "a" : [ ] , "b" : [ [ ] , { } ] } `, `{"a":"\\"}`, `[1,2]`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !jsontext.Value(text).IsValid() || tooDeep(text) {
			return
		}
		values, names := count(t, text)
		for _, limits := range []bounds{{values: values, names: names}, {values: values - 1, names: names}, {values: values, names: names - 1}} {
			s := limits
			if err := s.scan([]byte(text)); limits.values > 0 && limits.names >= 0 && (err == nil) != (limits.values == values && limits.names == names) {
				t.Errorf("%q has %d values and %d names at most in one object; of %+v: %v", text, values, names, limits, err)
			}
		}
	})
}

func tooDeep(text string) bool {
	s := bounds{values: len(text), names: len(text)}
	err := s.scan([]byte(text))
	return err != nil && strings.Contains(err.Error(), "deeper")
}

// count returns the number of values in a text and the most names in one object.
func count(t *testing.T, text string) (values, names int) {
	dec := jsontext.NewDecoder(strings.NewReader(text))
	for {
		token, err := dec.ReadToken()
		if err != nil {
			return values, names
		}
		kind, length := dec.StackIndex(dec.StackDepth())
		switch token.Kind() {
		case '}', ']':
			continue
		case '{', '[': // the decoder's stack is that of the contents
			values++
			continue
		}
		if kind == '{' && length%2 == 1 { // a name
			names = max(names, int(length+1)/2)
			continue
		}
		values++
	}
}
