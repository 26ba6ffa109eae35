package engine

import (
	"encoding/json/v2"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/kith/kith/internal/assert"
)

// said returns the texts of a canonical stream: content, reasoning and arguments of
// each choice.
func said(t *testing.T, frames []byte) (out [2]struct{ content, thought, arguments string }) {
	t.Helper()
	for line := range strings.Lines(string(frames)) {
		var chunk struct {
			Choices []struct {
				Index int `json:"index"`
				Delta struct {
					Content string `json:"content"`
					Thought string `json:"reasoning_content"`
					Calls   []struct {
						Function struct {
							Arguments string `json:"arguments"`
						} `json:"function"`
					} `json:"tool_calls"`
				} `json:"delta"`
			} `json:"choices"`
		}
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: {")
		if !ok {
			continue
		}
		assert.OK(t, json.Unmarshal([]byte("{"+data), &chunk))
		for _, c := range chunk.Choices {
			out[c.Index].content += c.Delta.Content
			out[c.Index].thought += c.Delta.Thought
			for _, call := range c.Delta.Calls {
				out[c.Index].arguments += call.Function.Arguments
			}
		}
	}
	return out
}

// A character that is cut in two by an engine, as an escape or as bytes, is joined
// with the next text of the same place. Alone it becomes U+FFFD.
func TestCharactersAreJoined(t *testing.T) {
	delta := func(choice, delta string) string {
		return `data: {"choices":[{"index":` + choice + `,"delta":` + delta + `,"finish_reason":null}]}` + "\n\n"
	}
	text := func(parts ...string) (frames string) {
		for _, part := range parts {
			frames += delta("0", `{"content":"`+part+`"}`)
		}
		return frames
	}
	const end = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	const done = "data: [DONE]\n\n"
	call := func(text string) string {
		return delta("0", `{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"`+text+`"}}]}`)
	}
	type texts = struct{ content, thought, arguments string }
	for name, test := range map[string]struct {
		in            string
		first, second texts
	}{
		"two chunks":        {text(`a\ud83d`, `\ude00b`) + end, texts{content: "a😀b"}, texts{}},
		"capitals":          {text(`\uD83D`, `\uDE00`) + end, texts{content: "😀"}, texts{}},
		"pairs pass":        {text(`\ud83d\ude00`, `\\ud83d`) + end, texts{content: `😀\ud83d`}, texts{}},
		"after a backslash": {text(`\\\ud83d`, `\ude00`) + end, texts{content: `\😀`}, texts{}},
		"one after another": {text(`\ud83d`, `\ude00\ud83d`, `\ude01`) + end, texts{content: "😀😁"}, texts{}},
		"through a pause":   {text(`\ud83d`, ``, `\ude00`) + end, texts{content: "😀"}, texts{}},
		"not continued":     {text(`\ud83d`, `b`) + end, texts{content: "\ufffdb"}, texts{}},
		"in the middle":     {text(`\ude00a\ud83db`) + end, texts{content: "\ufffda\ufffdb"}, texts{}},
		"before the end":    {text(`a\ud83d`) + end, texts{content: "a\ufffd"}, texts{}},
		"before the mark":   {text(`a\ud83d`), texts{content: "a\ufffd"}, texts{}},
		"bytes":             {text("a\xf0\x9f", "\x98\x80b") + end, texts{content: "a😀b"}, texts{}},
		"one byte each":     {text("\xe2", "\x82", "\xac") + end, texts{content: "€"}, texts{}},
		"bytes alone":       {text("a\xf0\x9f", "b", "\x98") + end, texts{content: "a\ufffd\ufffdb\ufffd"}, texts{}},
		"of two choices": {delta("0", `{"content":"\ud83d"}`) + delta("1", `{"content":"\ud83d"}`) + delta("0", `{"content":"\ude00"}`) + delta("1", `{"content":"\ude01"}`),
			texts{content: "😀"}, texts{content: "😁"}},
		"thoughts":  {delta("0", `{"reasoning":"\ud83d"}`) + delta("0", `{"reasoning":"\ude00"}`), texts{thought: "😀"}, texts{}},
		"arguments": {call(`{\"a\":\"\ud83d`) + call(`\ude00\"}`), texts{arguments: `{"a":"😀"}`}, texts{}},
	} {
		for way, src := range map[string]io.Reader{"whole": strings.NewReader(test.in + done), "byte by byte": iotest.OneByteReader(strings.NewReader(test.in + done))} {
			got, err := io.ReadAll(streamOf(src, wants{}))
			if texts := said(t, got); err != nil || texts[0] != test.first || texts[1] != test.second {
				t.Errorf("%s, %s: %v\n%s", name, way, err, got)
			}
		}
	}
}
