package dialect

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// However a machine distributes logprobs over an answer, few of them are kept, and
// decoding takes no more memory than their text.
func TestLogprobsAreBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("8 MiB of small values take long under the race detector")
	}
	const sent = 8 << 20
	ask := func() *Response {
		return answerTo(t, `{"model":"m","input":"x","top_logprobs":2,"store":false}`, loader(nil))
	}
	for name, content := range map[string]string{
		"many":         strings.Repeat(`{},`, sent/3) + `{}`,
		"alternatives": `{"top_logprobs":[` + strings.Repeat(`{},`, sent/3) + `{}]}`,
		"bytes":        `{"bytes":[` + strings.Repeat(`1,`, sent/2) + `1]}`,
	} {
		r, answer := ask(), []byte(`{"choices":[{"message":{"content":"x"},"finish_reason":"stop","logprobs":{"content":[`+content+`]}}]}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		assert.Value(r.Unary(bytes.NewReader(answer)))(t)
		runtime.ReadMemStats(&after)
		if taken := after.TotalAlloc - before.TotalAlloc; taken > 12*sent {
			t.Errorf("%s: %d MiB were taken for an answer of 8", name, taken>>20)
		}
		if held := len(r.Finish(done1, false)); held > maxLogprobs+10<<10 || name == "many" && held < maxLogprobs-1<<10 {
			t.Errorf("%s: a response of %d bytes", name, held)
		}
	}
	// In many texts, with reasoning between them.
	part := `data: {"choices":[{"delta":{"content":"x"},"logprobs":{"content":[` + strings.Repeat(`{},`, 30<<10) + `{}]}}]}` + "\n\n" +
		`data: {"choices":[{"delta":{"reasoning_content":"y"}}]}` + "\n\n"
	r := ask()
	s := Stream{Events: r.Events()}
	for range sent / len(part) {
		assert.Equal(t, assert.Value(s.Take([]byte(part)))(t), len(part))
		s.Events.Next()
	}
	assert.That(t, len(r.output) <= maxLogprobs+100<<10, len(r.output), "bytes are held")
}
