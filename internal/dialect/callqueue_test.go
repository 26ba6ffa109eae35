package dialect

import (
	"strings"
	"testing"
)

// A call without arguments has no visible end. The calls that wait behind it are passed
// on at the end of the answer, and before text that follows.
func TestCallsBehindOneWithoutArguments(t *testing.T) {
	const calls = `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"first","arguments":""}}]}}]}` + "\n\n" +
		`data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"b","function":{"name":"second","arguments":"{\"x\":1}"}}]}}]}` + "\n\n"
	const end = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}` + "\n\ndata: [DONE]\n\n"
	const text = `data: {"choices":[{"index":0,"delta":{"content":"third"}}]}` + "\n\n"
	for name, events := range map[string]func() *Events{
		"messages":  func() *Events { return NewMessageEvents("msg_1", "m") },
		"responses": answerTo(t, `{"model":"m","input":"x","store":false}`, loader(nil)).Events,
	} {
		for stream, words := range map[string][]string{calls + end: {"first", "second", `1}`}, calls + text + end: {"first", "second", `1}`, "third"}} {
			s := Stream{Events: events()}
			_, err := s.Take([]byte(stream))
			got := string(s.Events.Next())
			rest := got
			for _, word := range words {
				before, after, found := strings.Cut(rest, word)
				if rest = after; !found || err != nil || !s.Ended() {
					t.Errorf("%s: %v, %q does not follow %q in\n%s", name, err, word, before, got)
				}
			}
		}
	}
}
