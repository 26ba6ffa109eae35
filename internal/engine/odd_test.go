package engine

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/dialect"
)

// chunk returns a frame with one choice.
func chunk(delta, finish string) string {
	return `data: {"choices":[{"index":0,"delta":` + delta + `,"finish_reason":` + finish + `}]}` + "\n\n"
}

// called returns a frame with parts of tool calls.
func called(parts ...string) string {
	return chunk(`{"tool_calls":[`+strings.Join(parts, ",")+`]}`, "null")
}

// answerOf is an answer as a strict client joins it.
type answerOf struct {
	Text, Thought, Finish string
	Calls                 []string // NAME ARGUMENTS
}

// canonical is the shape of canonical chat, streamed or not.
type canonical struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	Choices []struct {
		Index   int              `json:"index"`
		Delta   canonicalMessage `json:"delta"`
		Message canonicalMessage `json:"message"`
		Finish  *string          `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
		Total      int64 `json:"total_tokens"`
	} `json:"usage"`
	Error jsontext.Value `json:"error"`
}

type canonicalMessage struct {
	Role      *string `json:"role"`
	Content   *string `json:"content"`
	Thought   *string `json:"reasoning_content"`
	Reasoning *string `json:"reasoning"`
	Calls     []struct {
		Index    *int   `json:"index"`
		ID       string `json:"id"`
		Type     string `json:"type"`
		Function struct {
			Name      *string `json:"name"`
			Arguments *string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// readCanonical joins the first choice of a stream as a strict client does. broken says
// which rule of spec/engine-answers.md the stream breaks; failed is the error frame.
func readCanonical(frames []byte) (a answerOf, failed, broken string) {
	type state struct {
		role, finished bool
		ids            map[string]bool
		call           int
		between        bool // something else came after the last part of a call
	}
	states := map[int]*state{}
	ids, model, done := "", "", false
	for event := range strings.SplitSeq(string(frames), "\n\n") {
		if event == "" {
			continue
		}
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok || strings.ContainsAny(data, "\r\n") || done || failed != "" {
			return a, failed, "an event that is not one line of data, or after the end: " + event
		}
		if data == "[DONE]" {
			done = true
			continue
		}
		var c canonical
		if err := json.Unmarshal([]byte(data), &c); err != nil { // strict: names once, UTF-8
			return a, failed, err.Error() + ": " + data
		}
		if c.Error != nil {
			failed = string(c.Error)
			continue
		}
		if c.Choices == nil || len(c.Choices) > 1 || c.Object != "chat.completion.chunk" || c.ID == "" || ids != "" && c.ID != ids || c.Created == 0 || c.Model != "m" || model != "" && model != c.Model {
			return a, failed, "head: " + data
		}
		ids, model = c.ID, c.Model
		if len(c.Choices) == 0 && (c.Usage == nil || c.Usage.Total != c.Usage.Prompt+c.Usage.Completion) {
			return a, failed, "no choice and no usage: " + data
		}
		for _, choice := range c.Choices {
			s := states[choice.Index]
			if s == nil {
				s = &state{ids: map[string]bool{}, call: -1}
				states[choice.Index] = s
			}
			d := choice.Delta
			if (d.Role != nil) == s.role || s.finished {
				return a, failed, "role or finish: " + data
			}
			s.role = true
			if cmpText(d.Thought) != cmpText(d.Reasoning) {
				return a, failed, "reasoning: " + data
			}
			for i, call := range d.Calls {
				switch first := call.ID != ""; {
				case call.Index == nil || call.Function.Arguments == nil:
					return a, failed, "a call without index or arguments: " + data
				case first && (s.ids[call.ID] || call.Type != "function" || call.Function.Name == nil || *call.Function.Name == "" || *call.Index != s.call+1):
					return a, failed, "the first part of a call: " + data
				case !first && (call.Type != "" || call.Function.Name != nil || *call.Index != s.call || s.between):
					return a, failed, "a later part of a call: " + data
				case first:
					s.call = *call.Index
					s.ids[call.ID] = true
					if choice.Index == 0 {
						a.Calls = append(a.Calls, *call.Function.Name+" ")
					}
				}
				s.between = false
				if choice.Index == 0 {
					a.Calls[len(a.Calls)-1] += *d.Calls[i].Function.Arguments
				}
			}
			s.between = s.between || len(d.Calls) == 0 && (d.Content != nil || d.Thought != nil)
			if choice.Finish != nil {
				switch *choice.Finish {
				case "stop", "length", "tool_calls", "content_filter":
				default:
					return a, failed, "finish reason: " + data
				}
				s.finished = true
			}
			if choice.Index == 0 {
				a.Text += cmpText(d.Content)
				a.Thought += cmpText(d.Thought)
				if choice.Finish != nil {
					a.Finish = *choice.Finish
				}
			}
		}
	}
	for _, s := range states {
		if done && !s.finished {
			return a, failed, "an end without a finish reason"
		}
	}
	if done && len(states) == 0 {
		return a, failed, "an end without a choice"
	}
	return a, failed, ""
}

func cmpText(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// unaryOf returns what a unary call makes of the engine's bytes.
func unaryOf(in string) (a answerOf, document []byte, err error) {
	norm := newNormalizer(&Request{Model: "m"}, wants{})
	if err = norm.read([]byte(in)); err == nil {
		err = norm.finish()
	}
	if err != nil {
		return a, nil, err
	}
	var c canonical
	if err := json.Unmarshal(norm.out, &c); err != nil {
		return a, norm.out, err
	}
	message := c.Choices[0].Message
	a = answerOf{Text: cmpText(message.Content), Thought: cmpText(message.Thought), Finish: cmpText(c.Choices[0].Finish)}
	for _, call := range message.Calls {
		a.Calls = append(a.Calls, *call.Function.Name+" "+*call.Function.Arguments)
	}
	return a, norm.out, nil
}

// checkAnswer checks that an engine's stream means want, streamed in any pieces and
// joined for a unary call.
func checkAnswer(t *testing.T, in string, want answerOf) {
	t.Helper()
	for way, src := range map[string]io.Reader{"whole": strings.NewReader(in), "byte by byte": iotest.OneByteReader(strings.NewReader(in))} {
		out, err := io.ReadAll(streamOf(src, wants{usage: true}))
		got, failed, broken := readCanonical(out)
		assert.Require(t, err == nil && failed == "" && broken == "", way, err, failed, broken, out)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s: -want +got\n%s\n%s", way, diff, out)
		}
	}
	got, document, err := unaryOf(in)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Fatalf("unary: %v -want +got\n%s\n%s", err, diff, document)
	}
}

const doneMark = "data: [DONE]\n\n"

// Streams that break a rule of the dialect, as engines send them.
func TestOddStreams(t *testing.T) {
	end := chunk(`{}`, `"stop"`) + doneMark
	hello := answerOf{Text: "Hello", Finish: "stop"}
	for name, c := range map[string]struct {
		in   string
		want answerOf
	}{
		"the role in every chunk":       {chunk(`{"role":"assistant","content":"Hel"}`, `null`) + chunk(`{"role":"assistant","content":"lo"}`, `null`) + chunk(`{"role":"assistant"}`, `"stop"`) + doneMark, hello},
		"no role":                       {chunk(`{"content":"Hello"}`, `null`) + end, hello},
		"an empty object":               {"data: {}\n\n" + chunk(`{"content":"Hello"}`, `null`) + "data: {\"id\":\"x\"}\n\n" + end, hello},
		"choices null":                  {`data: {"id":"x","choices":null}` + "\n\n" + chunk(`{"content":"Hello"}`, `null`) + end, hello},
		"no choices first, as filters":  {`data: {"id":"","choices":[],"prompt_filter_results":[]}` + "\n\n" + chunk(`{"content":"Hello"}`, `null`) + end, hello},
		"usage without choices":         {chunk(`{"content":"Hello"}`, `null`) + chunk(`{}`, `"stop"`) + `data: {"usage":{"input_tokens":"5","output_tokens":3.0}}` + "\n\n" + doneMark, hello},
		"a delta that is null":          {chunk(`null`, `null`) + chunk(`{"content":"Hello"}`, `null`) + end, hello},
		"no delta":                      {`data: {"choices":[{"index":0}]}` + "\n\n" + chunk(`{"content":"Hello"}`, `null`) + end, hello},
		"a message for the delta":       {`data: {"choices":[{"message":{"role":"assistant","content":"Hello"}}]}` + "\n\n" + end, hello},
		"an index of another type":      {`data: {"choices":[{"index":"0","delta":{"content":"Hel"}}]}` + "\n\n" + `data: {"choices":[{"index":0.0,"delta":{"content":"lo"}}]}` + "\n\n" + end, hello},
		"created with a fraction":       {`data: {"id":"x","created":1700000000.5,"choices":[{"index":0,"delta":{"content":"Hello"}}]}` + "\n\n" + end, hello},
		"a choice numbered 1":           {`data: {"choices":[{"index":1,"delta":{"content":"Hello"}}]}` + "\n\n" + `data: {"choices":[{"index":1,"delta":{},"finish_reason":"stop"}]}` + "\n\n" + doneMark, hello},
		"an id that is a number":        {`data: {"id":7,"choices":[{"index":0,"delta":{"content":"Hello"}}]}` + "\n\n" + end, hello},
		"content as parts":              {chunk(`{"content":[{"type":"text","text":"Hel"}]}`, `null`) + chunk(`{"content":["lo"]}`, `null`) + end, hello},
		"thinking as parts":             {chunk(`{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]}]}`, `null`) + chunk(`{"content":[{"type":"thinking","thinking":"!"},{"type":"text","text":"Hello"}]}`, `null`) + end, answerOf{Text: "Hello", Thought: "hm!", Finish: "stop"}},
		"reasoning beside content":      {chunk(`{"reasoning":"hm","content":"Hel"}`, `null`) + chunk(`{"content":"lo"}`, `null`) + end, answerOf{Text: "Hello", Thought: "hm", Finish: "stop"}},
		"thinking by Ollama's name":     {chunk(`{"thinking":"hm"}`, `null`) + chunk(`{"content":"Hello"}`, `null`) + end, answerOf{Text: "Hello", Thought: "hm", Finish: "stop"}},
		"no finish reason":              {chunk(`{"content":"Hello"}`, `null`) + doneMark, hello},
		"an empty finish reason":        {chunk(`{"content":"Hel"}`, `""`) + chunk(`{"content":"lo"}`, `""`) + end, hello},
		"two finish reasons":            {chunk(`{"content":"Hello"}`, `"length"`) + end, answerOf{Text: "Hello", Finish: "length"}},
		"the finish reason with text":   {chunk(`{"content":"Hello"}`, `"stop"`) + doneMark, hello},
		"tool_calls without any":        {chunk(`{"content":"Hello","tool_calls":[]}`, `null`) + chunk(`{"tool_calls":null}`, `"tool_calls"`) + doneMark, hello},
		"line separators":               {chunk("{\"content\":\"a\u2028b\u0085c\"}", `null`) + end, answerOf{Text: "a\u2028b\u0085c", Finish: "stop"}},
		"an error that is none":         {`data: {"error":null,"choices":[{"index":0,"delta":{"content":"Hello"}}]}` + "\n\n" + end, hello},
		"more after the end":            {chunk(`{"content":"Hello"}`, `null`) + end + chunk(`{"content":"!"}`, `null`), hello},
		"empty":                         {end, answerOf{Finish: "stop"}},
		"a last event without its line": {strings.TrimSuffix(chunk(`{"content":"Hello"}`, `null`)+end, "\n\n"), hello},
	} {
		t.Run(name, func(t *testing.T) { checkAnswer(t, c.in, c.want) })
	}
}

// Tool calls as engines send them.
func TestOddCalls(t *testing.T) {
	end := chunk(`{}`, `"tool_calls"`) + doneMark
	calls := func(calls ...string) answerOf { return answerOf{Finish: "tool_calls", Calls: calls} }
	one, two := calls(`f {"a":1}`), calls(`f {"a":1}`, `g {"b":2}`)
	part := func(head, name, arguments string) string {
		function := `"arguments":` + quoted(arguments)
		if name != "" {
			function = `"name":"` + name + `",` + function
		}
		return `{` + head + `"function":{` + function + `}}`
	}
	for name, c := range map[string]struct {
		in   string
		want answerOf
	}{
		"in one part":                        {called(part(`"index":0,"id":"x",`, "f", `{"a":1}`)) + end, one},
		"in pieces":                          {called(part(`"index":0,"id":"x",`, "f", ``)) + called(part(`"index":0,`, "", `{"a"`)) + called(part(`"index":0,`, "", `:1`)) + called(part(`"index":0,`, "", `}`)) + end, one},
		"another id in every part":           {called(part(`"index":0,"id":"A",`, "f", ``)) + called(part(`"index":0,"id":"B",`, "", `{"a"`)) + called(part(`"index":0,"id":"C",`, "", `:1}`)) + end, one},
		"another id and the name again":      {called(part(`"index":0,"id":"A",`, "f", `{"a"`)) + called(part(`"index":0,"id":"B",`, "f", `:1}`)) + end, one},
		"one id for two calls":               {called(part(`"index":0,"id":"x",`, "f", `{"a":1}`)) + called(part(`"index":1,"id":"x",`, "g", `{"b":2}`)) + end, two},
		"one id for two calls, in pieces":    {called(part(`"index":0,"id":"x",`, "f", `{"a"`)) + called(part(`"index":0,"id":"x",`, "", `:1}`)) + called(part(`"index":1,"id":"x",`, "g", `{"b"`)) + called(part(`"index":1,"id":"x",`, "", `:2}`)) + end, two},
		"one id and number for two calls":    {called(part(`"index":0,"id":"x",`, "f", `{"a":1}`)) + called(part(`"index":0,"id":"x",`, "g", `{"b":2}`)) + end, two},
		"no ids, all numbered 0":             {called(part(`"index":0,`, "f", `{"a":1}`)) + called(part(`"index":0,`, "g", `{"b":2}`)) + end, two},
		"no ids and numbers":                 {called(part(``, "f", `{"a":1}`)) + called(part(``, "g", `{"b":2}`)) + end, two},
		"no ids and numbers, one function":   {called(part(``, "f", `{"a":1}`), part(``, "f", `{"a":2}`)) + chunk(`{}`, `"stop"`) + doneMark, calls(`f {"a":1}`, `f {"a":2}`)},
		"no ids and numbers, equal":          {called(part(``, "f", `{}`), part(``, "f", `{}`)) + end, calls(`f {}`, `f {}`)},
		"a call again at the next number":    {called(part(`"index":0,"id":"x",`, "f", `{"a":1}`)) + called(part(`"index":1,"id":"x",`, "f", `{"a":1}`)) + end, one},
		"the last chunk has all again":       {called(part(`"index":0,"id":"x",`, "f", ``)) + called(part(`"index":0,`, "", `{"a"`)) + called(part(`"index":0,`, "", `:1}`)) + chunk(`{"tool_calls":[`+part(`"index":0,"id":"x",`, "f", `{"a":1}`)+`]}`, `"tool_calls"`) + doneMark, one},
		"the same without an id":             {called(part(`"index":0,`, "f", `{"a":1}`)) + chunk(`{"tool_calls":[`+part(`"index":0,`, "f", `{"a":1}`)+`]}`, `"tool_calls"`) + doneMark, one},
		"cumulative":                         {called(part(`"index":0,"id":"x",`, "f", `{`)) + called(part(`"index":0,"id":"x",`, "f", `{"a"`)) + called(part(`"index":0,"id":"x",`, "f", `{"a":1}`)) + end, one},
		"cumulative and closed each time":    {called(part(`"index":0,"id":"x",`, "f", `{}`)) + called(part(`"index":0,"id":"x",`, "", `{"a":0}`)) + called(part(`"index":0,"id":"x",`, "", `{"a":1}`)) + end, one},
		"pieces that look cumulative":        {called(part(`"index":0,"id":"x",`, "f", `{"a":`)) + called(part(`"index":0,`, "", `{"a":1}}`)) + end, calls(`f {"a":{"a":1}}`)},
		"arguments as an object":             {called(`{"index":0,"id":"x","function":{"name":"f","arguments":{"a":1}}}`) + end, one},
		"no arguments":                       {called(`{"index":0,"id":"x","function":{"name":"f"}}`) + end, calls(`f {}`)},
		"empty arguments":                    {called(part(`"index":0,"id":"x",`, "f", ``)) + called(part(`"index":1,"id":"y",`, "g", ` `)) + end, calls(`f {}`, `g {}`)},
		"null arguments":                     {called(part(`"index":0,"id":"x",`, "f", `null`)) + called(`{"index":1,"id":"y","function":{"name":"g","arguments":null}}`) + end, calls(`f {}`, `g {}`)},
		"space before and after":             {called(part(`"index":0,"id":"x",`, "f", "\n ")) + called(part(`"index":0,`, "", `{"a":1}`)) + called(part(`"index":0,`, "", "\n")) + end, calls("f \n " + `{"a":1}`)},
		"the calls as one object":            {chunk(`{"tool_calls":`+part(`"id":"x",`, "f", `{"a":1}`)+`}`, `null`) + end, one},
		"the older form":                     {chunk(`{"function_call":{"name":"f","arguments":"{\"a\""}}`, `null`) + chunk(`{"function_call":{"arguments":":1}"}}`, `null`) + chunk(`{}`, `"function_call"`) + doneMark, one},
		"the name in its own part":           {called(`{"index":0,"id":"x","type":"function"}`) + called(part(`"index":0,`, "f", ``)) + called(part(`"index":0,`, "", `{"a":1}`)) + end, one},
		"text before, in the same chunk":     {chunk(`{"content":"On it.","tool_calls":[`+part(`"index":0,"id":"x",`, "f", `{"a":1}`)+`]}`, `null`) + end, answerOf{Text: "On it.", Finish: "tool_calls", Calls: one.Calls}},
		"text within the arguments":          {called(part(`"index":0,"id":"x",`, "f", `{"a"`)) + chunk(`{"content":"Now.","tool_calls":[`+part(`"index":0,`, "", `:`)+`]}`, `null`) + called(part(`"index":0,`, "", `1}`)) + end, answerOf{Text: "Now.", Finish: "tool_calls", Calls: one.Calls}},
		"space within the arguments":         {called(part(`"index":0,"id":"x",`, "f", `{"a"`)) + chunk(`{"content":"\n","tool_calls":[`+part(`"index":0,`, "", `:1}`)+`]}`, `null`) + end, one},
		"space between two calls":            {called(part(`"index":0,"id":"x",`, "f", `{"a":1}`)) + chunk(`{"content":"\n"}`, `null`) + called(part(`"index":1,"id":"y",`, "g", `{"b":2}`)) + end, two},
		"text between two calls":             {called(part(`"index":0,"id":"x",`, "f", `{"a":1}`)) + chunk(`{"content":"And "}`, `null`) + chunk(`{"content":"on."}`, `null`) + called(part(`"index":1,"id":"y",`, "g", `{"b":2}`)) + end, answerOf{Text: "And on.", Finish: "tool_calls", Calls: two.Calls}},
		"reasoning within the arguments":     {called(part(`"index":0,"id":"x",`, "f", `{"a"`)) + chunk(`{"reasoning":"hm"}`, `null`) + called(part(`"index":0,`, "", `:1}`)) + end, answerOf{Thought: "hm", Finish: "tool_calls", Calls: one.Calls}},
		"interleaved":                        {called(part(`"index":0,"id":"x",`, "f", ``), part(`"index":1,"id":"y",`, "g", ``)) + called(part(`"index":1,`, "", `{"b":`)) + called(part(`"index":0,`, "", `{"a":1}`), part(`"index":1,`, "", `2}`)) + end, two},
		"cut at the limit":                   {called(part(`"index":0,"id":"x",`, "f", `{"a"`)) + chunk(`{}`, `"length"`) + doneMark, answerOf{Finish: "length", Calls: []string{`f {"a"`}}},
		"tool_calls, then stop":              {called(part(`"index":0,"id":"x",`, "f", `{"a":1}`)) + chunk(`{}`, `"tool_calls"`) + chunk(`{}`, `"stop"`) + doneMark, one},
		"an id over the limit":               {called(part(`"index":0,"id":"`+strings.Repeat("x", maxCallID+1)+`",`, "f", `{"a":1}`)) + end, one},
		"an empty part":                      {called(`{"index":0}`, `{"index":0,"id":"","function":{"name":"","arguments":""}}`) + chunk(`{"content":"Hi"}`, `"stop"`) + doneMark, answerOf{Text: "Hi", Finish: "stop"}},
		"a number that grows with each part": {called(part(`"index":0,"id":"x",`, "f", `{"a"`)) + called(part(`"index":1,`, "", `:1}`)) + end, one},
	} {
		t.Run(name, func(t *testing.T) { checkAnswer(t, c.in, c.want) })
	}
}

// What is no answer ends in an error that has the engine's own words.
func TestOddErrors(t *testing.T) {
	hello := chunk(`{"content":"Hello"}`, `null`)
	for name, c := range map[string]struct{ in, has string }{
		"an error":              {hello + `data: {"error":{"message":"boom","code":500}}` + "\n\n" + doneMark, "boom"},
		"an error as text":      {hello + `data: {"error":"boom"}` + "\n\n" + doneMark, "boom"},
		"an object error":       {`data: {"object":"error","message":"boom","code":400}` + "\n\n" + doneMark, "boom"},
		"a detail":              {hello + `data: {"detail":"boom"}` + "\n\n" + doneMark, "boom"},
		"a message":             {hello + `data: {"message":"boom"}` + "\n\n", "boom"},
		"an event named error":  {hello + "event: error\ndata: {\"reason\":\"boom\"}\n\n" + doneMark, "boom"},
		"the same as text":      {hello + "event: error\ndata: boom\n\n" + doneMark, "boom"},
		"the same as a string":  {hello + "event: error\ndata: \"boom\"\n\n" + doneMark, "boom"},
		"a line named error":    {hello + `error: {"code":500,"message":"boom"}` + "\n\n", "boom"},
		"an error of a choice":  {`data: {"choices":[{"index":0,"delta":{"content":"a"},"error":{"message":"boom"},"finish_reason":"error"}]}` + "\n\n" + doneMark, "boom"},
		"broken JSON":           {hello + "data: {\"choices\":boom\n\n" + doneMark, "boom"},
		"a list":                {hello + "data: [\"boom\"]\n\n" + doneMark, "boom"},
		"content as a number":   {chunk(`{"content":7.25}`, `null`) + doneMark, "7.25"},
		"content as an object":  {chunk(`{"content":{"boom":1}}`, `null`) + doneMark, "boom"},
		"calls as text":         {chunk(`{"tool_calls":"boom"}`, `null`) + doneMark, "boom"},
		"a call without a name": {called(`{"index":0,"id":"x","function":{"arguments":"{\"a\":1}"}}`) + chunk(`{}`, `"stop"`) + doneMark, "without a name"},
		"other arguments later": {called(`{"index":0,"id":"x","function":{"name":"f","arguments":"{\"a\":1}"}}`) + chunk(`{}`, `"tool_calls"`) + called(`{"index":0,"id":"x","function":{"arguments":"{\"b\":1}"}}`) + doneMark, "more after the arguments"},
		"a choice too many":     {`data: {"choices":[` + strings.Repeat(`{"delta":{}},`, 64) + `{"delta":{}}]}` + "\n\n" + doneMark, "64"},
		"no choice":             {doneMark, "without a choice"},
		"a page":                {"<html>\n<h1>boom</h1>\n\n", "boom"},
	} {
		out, err := io.ReadAll(streamOf(strings.NewReader(c.in), wants{}))
		_, failed, broken := readCanonical(out)
		if err != nil || broken != "" || !strings.Contains(failed, c.has) || strings.Contains(string(out), "[DONE]") {
			t.Errorf("%s: %v, %s\n%s", name, err, broken, out)
		}
		var check dialect.Stream
		if _, err := check.Take(out); err == nil || check.Ended() {
			t.Errorf("%s: the edge passes it: %v", name, err)
		}
		if _, document, err := unaryOf(c.in); err == nil || !strings.Contains(err.Error(), c.has) {
			t.Errorf("%s, unary: %v %s", name, err, document)
		}
	}
}

func TestFinishReasons(t *testing.T) {
	for word, want := range map[string]string{
		"stop": "stop", "STOP": "stop", "eos": "stop", "eos_token": "stop", "EOS": "stop", "eot": "stop", "end": "stop", "end_turn": "stop", "stop_sequence": "stop", "complete": "stop",
		"done": "stop", "FINISH_REASON_STOP": "stop", "length": "length", "max_tokens": "length", "MAX_TOKENS": "length", "max_length": "length", "limit": "length",
		"content_filter": "content_filter", "SAFETY": "content_filter", "refusal": "content_filter", "tool_use": "stop", "function_call": "stop",
		"abort": "", "error": "", "cancelled": "", "failed": "", "timeout": "", "insufficient_system_resource": "", "banana": "",
	} {
		out, err := io.ReadAll(streamOf(strings.NewReader(chunk(`{"content":"a"}`, `"`+word+`"`)+doneMark), wants{}))
		got, failed, broken := readCanonical(out)
		if err != nil || broken != "" || got.Finish != want || (want == "") != strings.Contains(failed, word) {
			t.Errorf("%s: %v, %s, %q, %q", word, err, broken, got.Finish, failed)
		}
	}
}

// A document and a stream give the same answer, to a unary call and to a streamed one.
func TestBothWays(t *testing.T) {
	const call = `"tool_calls":[{"index":0,"id":"x","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]`
	document := ` {"id":"a","object":"chat.completion","created":7.0,"model":"/models/x.gguf","choices":[{"message":{"role":"assistant","content":[{"type":"text","text":"Hi"}],"reasoning":"hm",` + call + `},"logprobs":{"content":[{"token":"Hi"}]},"finish_reason":null}],"usage":{"prompt_tokens":2,"completion_tokens":"3"},"timings":{"x":1.5}}`
	stream := "\ufeff" + strings.Join([]string{
		`data: {"id":"a","created":7.0,"model":"/models/x.gguf","choices":[{"index":0,"delta":{"role":"assistant","reasoning":"hm"}}]}`,
		`data: {"id":"a","choices":[{"index":0,"delta":{"content":"H"},"logprobs":{"content":[{"token":"Hi"}]}}]}`,
		`data: {"id":"a","choices":[{"index":0,"delta":{"content":"i"}}]}`,
		`data: {"id":"a","choices":[{"index":0,"delta":{` + call + `},"finish_reason":""}]}`,
		`data: {"id":"a","choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3.0},"timings":{"x":1.5}}`,
		`data: [DONE]`, ``}, "\n\n")
	want := answerOf{Text: "Hi", Thought: "hm", Finish: "tool_calls", Calls: []string{`f {"a":1}`}}
	checkAnswer(t, document, want)
	checkAnswer(t, stream, want)
	_, one, _ := unaryOf(document)
	_, other, _ := unaryOf(stream)
	assert.Same(t, string(other), string(one), "-document +stream")
	for _, has := range []string{`"model":"m"`, `"created":7,`, `"logprobs":{"content":[{"token":"Hi"}],"refusal":null}`, `"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}`, `"timings":{"x":1.5}`} {
		assert.That(t, bytes.Contains(one, []byte(has)), has, "is not in", one)
	}
}

// An answer that is joined for a unary call is bounded as one document is.
func TestJoinedAnswerTooLong(t *testing.T) {
	for name, delta := range map[string]string{
		"text": `{"content":"` + strings.Repeat("x", 200<<10) + `"}`, "reasoning": `{"reasoning":"` + strings.Repeat("x", 200<<10) + `"}`, "other members": `{"x":"` + strings.Repeat("x", 200<<10) + `"}`,
	} {
		_, document, err := unaryOf(strings.Repeat(chunk(delta, `null`), 60) + doneMark)
		assert.Fails(t, err, "larger than 8 MiB", name, len(document), "bytes")
	}
}

// Whatever an engine sends, what leaves is canonical chat up to its last frame, the same
// in any pieces, and never a good end of something that was none.
func FuzzCanonical(f *testing.F) {
	for _, g := range golden(f) {
		f.Add([]byte(g["in"]), uint16(7), false)
	}
	f.Add([]byte(called(`{"id":"x","function":{"name":"f","arguments":"{\"a\""}}`, `{"id":"x","index":1,"function":{"name":"f","arguments":"{}"}}`)+chunk(`{"content":" "}`, `"stop"`)+doneMark), uint16(20), true)
	f.Add([]byte(`{"choices":[{"message":{"content":"a","tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]}}],"usage":{"input_tokens":1}}`), uint16(9), true)
	f.Fuzz(func(t *testing.T, in []byte, cut uint16, hide bool) {
		at := int(cut) % (len(in) + 1)
		want := wants{usage: true, hide: hide}
		whole, err := io.ReadAll(streamOf(bytes.NewReader(in), want))
		parts, err2 := io.ReadAll(streamOf(&chunked{[][]byte{in[:at:at], in[at:]}}, want))
		if fmt.Sprint(err) != fmt.Sprint(err2) || !bytes.Equal(whole, parts) {
			t.Fatalf("cut at %d: %q %v, else %q %v", at, parts, err2, whole, err)
		}
		a, failed, broken := readCanonical(whole)
		assert.Require(t, broken == "", broken, in, whole)
		assert.Require(t, !hide || a.Thought == "", "reasoning that was to be hidden", whole)
		var check dialect.Stream
		if n, err := check.Take(whole); (err != nil) != (failed != "") || err == nil && n != len(whole) {
			t.Fatalf("the edge: %d of %d, %v\n%q", n, len(whole), err, whole)
		}
		unary, document, err := unaryOf(string(in))
		if err == nil && !hide && check.Ended() {
			unary.Text, a.Text = strings.TrimSpace(unary.Text), strings.TrimSpace(a.Text) // space that waits for a call
			if diff := cmp.Diff(a, unary); diff != "" {
				t.Fatalf("unary: %s\n%s\n%s", diff, whole, document)
			}
		}
		assert.Require(t, (err == nil) == check.Ended(), "unary", err, "streamed", whole)
	})
}
