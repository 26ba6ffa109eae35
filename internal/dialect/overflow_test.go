package dialect

import (
	"os"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
)

// A prompt that exceeds the context is recognized in the text of each engine, in a body,
// in a unary answer and in a stream. Agents shorten their conversation when they read the
// message (spec/routing.md#engine-too-long).
func TestContextLengthExceeded(t *testing.T) {
	text := assert.Value(os.ReadFile("testdata/overflow.txt"))(t)
	engines := 0
	for line := range strings.Lines(string(text)) {
		row := strings.SplitN(strings.TrimSuffix(line, "\n"), " | ", 4)
		if len(row) != 4 || row[0][0] == '#' {
			continue
		}
		engines++
		name, body := row[0], row[3]
		want := "prompt is too long for the model's context"
		if numbers := strings.Split(row[2], " > "); len(numbers) == 2 {
			want = "prompt is too long: " + numbers[0] + " tokens > " + numbers[1] + " maximum"
		}
		check := func(where string, err error) {
			t.Helper()
			f, _ := err.(*fault.Fault)
			if f == nil || f.Code != "context_length_exceeded" || f.Status() != 400 || !strings.HasPrefix(f.Message, want) {
				t.Errorf("%s, %s: %v, want %q", name, where, f, want)
			}
		}
		check("in a body", ContextExceeded([]byte(body)))
		if !strings.Contains(body, `"error":`) && !strings.Contains(body, `"error": `) { // it has a status
			continue
		}
		_, err := CheckUnary(strings.NewReader(body))
		check("in an answer", err)
		var s Stream
		_, err = s.Take([]byte("data: " + body + "\n\n"))
		check("in a stream", err)
	}
	assert.That(t, engines >= 20, "only", engines, "rows were read")
}

// Calls that together fill the memory mean busy, not too long.
func TestCrowded(t *testing.T) {
	const text = `{"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}`
	var s Stream
	if _, err := s.Take([]byte("data: " + text + "\n\n")); fault.Of(err).Code != fault.CapacityFull {
		t.Errorf("streamed: %v", err)
	}
	if _, err := CheckUnary(strings.NewReader(text)); fault.Of(err).Code != fault.CapacityFull {
		t.Errorf("unary: %v", err)
	}
}

// Other errors are not changed.
func TestNoContextLengthExceeded(t *testing.T) {
	for _, body := range []string{
		`{"error":{"message":"max_tokens must be at least 1, got -186."}}`,
		`{"error":{"message":"the model's context is warm"}}`,
		`{"error":{"message":"max_tokens is too large: 99999. This model supports at most 4096 completion tokens"}}`,
		`{"error":{"message":"max_tokens exceeds the maximum"}}`,
		`{"error":{"message":"messages: at least one is needed"}}`,
		`{"error":{"message":"too many requests"}}`,
		`{"error":{"message":"out of memory","n_prompt_tokens":9,"n_ctx":8}}`,
		`{"error":{}}`,
	} {
		_, err := CheckUnary(strings.NewReader(body))
		if f := fault.Of(err); f == nil || f.Code != fault.EngineError {
			t.Errorf("%s: %v", body, f)
		}
	}
}
