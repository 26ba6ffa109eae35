package dispatch

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// A machine's count is used if it is plausible, and no more of its answer is read than a
// count needs.
func TestCounted(t *testing.T) {
	for text, want := range map[string]int64{
		`{"tokens":7}`: 7, `{"tokens":2147483647,"more":[]}`: 1<<31 - 1,
		`{"tokens":0}`: 0, `{"tokens":-7}`: 0, `{"tokens":2147483648}`: 0, `{"tokens":1e99}`: 0, `{"tokens":"7"}`: 0,
		`{}`: 0, `[7]`: 0, ``: 0, `{"tokens":7}{"tokens":8}`: 0, `{"tokens":7,"x":"` + strings.Repeat("x", maxCount) + `"}`: 0,
	} {
		left := strings.NewReader(text)
		got := readCount(&http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(left)})
		if got != want || len(text)-left.Len() > maxCount {
			t.Errorf("%.50s: %d, %d bytes read", text, got, len(text)-left.Len())
		}
	}
	if got := readCount(&http.Response{StatusCode: http.StatusServiceUnavailable, Body: io.NopCloser(strings.NewReader(`{"tokens":7}`))}); got != 0 {
		t.Errorf("a refusal counts %d", got)
	}
}
