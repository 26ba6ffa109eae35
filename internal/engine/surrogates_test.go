package engine

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// Half an emoji at the end of a text is joined with the next text of the same
// place. Alone it becomes U+FFFD.
func TestSurrogatesAreJoined(t *testing.T) {
	delta := func(choice, delta string) string {
		return `data: {"id":"a","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":` + choice + `,"delta":` + delta + `,"finish_reason":null}]}` + "\n\n"
	}
	text := func(text string) string { return delta("0", `{"content":"`+text+`"}`) }
	const end = `data: {"id":"a","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	// The chunk that kith adds for a surrogate that stays alone.
	const alone = `data: {"object":"chat.completion.chunk","created":7,"choices":[{"index":0,"delta":{"content":"\ufffd"},"finish_reason":null}],"id":"a","model":"m"}` + "\n\n"
	const done = "data: [DONE]\n\n"
	arguments := func(call, text string) string {
		return delta("0", `{"tool_calls":[{"index":`+call+`,"function":{"arguments":"`+text+`"}}]}`)
	}
	for name, test := range map[string]struct{ in, want string }{
		"two chunks":        {text(`a\ud83d`) + text(`\ude00b`) + end + done, text(`a`) + text(`\ud83d\ude00b`) + end + done},
		"later":             {text(`a`) + text(`b`) + text(`c\ud83d`) + text(`\ude00d`) + end + done, text(`a`) + text(`b`) + text(`c`) + text(`\ud83d\ude00d`) + end + done},
		"capitals":          {text(`\uD83D`) + text(`\uDE00`) + end + done, text(``) + text(`\uD83D\uDE00`) + end + done},
		"pairs pass":        {text(`\ud83d\ude00`) + text(`\\ud83d`) + end + done, text(`\ud83d\ude00`) + text(`\\ud83d`) + end + done},
		"after a backslash": {text(`\\\ud83d`) + text(`\ude00`) + end + done, text(`\\`) + text(`\ud83d\ude00`) + end + done},
		"one after another": {text(`\ud83d`) + text(`\ude00\ud83d`) + text(`\ude01`) + end + done, text(``) + text(`\ud83d\ude00`) + text(`\ud83d\ude01`) + end + done},
		"through a pause":   {text(`\ud83d`) + text(``) + text(`\ude00`) + end + done, text(``) + text(``) + text(`\ud83d\ude00`) + end + done},
		"not continued":     {text(`\ud83d`) + text(`b`) + end + done, text(``) + text(`\ufffdb`) + end + done},
		"in the middle":     {text(`\ude00a\ud83db`) + end + done, text(`\ufffda\ufffdb`) + end + done},
		"before the end":    {text(`a\ud83d`) + end + done, text(`a`) + alone + end + done},
		"before the mark":   {text(`a\ud83d`) + done, text(`a`) + alone + done},
		"broken off":        {text(`a\ud83d`), text(`a`) + alone},
		"of two choices": {delta("0", `{"content":"\ud83d"}`) + delta("1", `{"content":"\ud83d"}`) + delta("0", `{"content":"\ude00"}`) + delta("1", `{"content":"\ude01"}`) + done,
			delta("0", `{"content":""}`) + delta("1", `{"content":""}`) + delta("0", `{"content":"\ud83d\ude00"}`) + delta("1", `{"content":"\ud83d\ude01"}`) + done},
		"thoughts": {delta("0", `{"reasoning_content":"\ud83d"}`) + delta("0", `{"reasoning_content":"\ude00"}`) + done,
			delta("0", `{"reasoning_content":"","reasoning":""}`) + delta("0", `{"reasoning_content":"\ud83d\ude00","reasoning":"\ud83d\ude00"}`) + done},
		"arguments": {
			delta("0", `{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"\ud83d"}}]}`) + arguments("0", `\ude00`) + done,
			delta("0", `{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":""}}]}`) + arguments("0", `\ud83d\ude00`) + done},
	} {
		for way, src := range map[string]io.Reader{"whole": strings.NewReader(test.in), "byte by byte": iotest.OneByteReader(strings.NewReader(test.in))} {
			got, err := io.ReadAll(streamOf(src, wants{}))
			if err != nil || string(got) != test.want {
				t.Errorf("%s, %s: %v\n%s\nwant\n%s", name, way, err, got, test.want)
			}
		}
	}
	if got := string(replaceSurrogates([]byte(`{"a":["\ud83d","\ud83d\ude00\ude00"],"\\ud83d":1}`))); got != `{"a":["\ufffd","\ud83d\ude00\ufffd"],"\\ud83d":1}` {
		t.Error(got)
	}
}
