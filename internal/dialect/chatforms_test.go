package dialect

import (
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
)

const formTalk = `"messages":[{"role":"user","content":"x"}]`

// Forms that engines do not support are sent as function tools.
func TestPeekChatForms(t *testing.T) {
	const f = `{"type":"function","function":{"name":"f"}}`
	custom := `{"type":"function","function":{"name":"c","description":"d","parameters":` + customSchema + `}}`
	for body, wants := range map[string][]string{
		`"functions":[{"name":"f"}],"function_call":"auto"`:                                                                                 {`"tools":[` + f + `]`, `"tool_choice":"auto"`, `"parallel_tool_calls":false`},
		`"functions":[{"name":"f"}],"function_call":{"name":"f"}`:                                                                           {`"tool_choice":{"type":"function","function":{"name":"f"}}`},
		`"tools":[` + f + `,{"type":"custom","custom":{"name":"c","description":"d"}}]`:                                                     {`"tools":[` + f + `,` + custom + `]`},
		`"tools":[{"type":"custom","custom":{"name":"c","description":"d"}}],"tool_choice":{"type":"custom","custom":{"name":"c"}}`:         {`"tool_choice":{"type":"function","function":{"name":"c"}}`},
		`"tools":[{"type":"custom","custom":{"name":"c","format":{"type":"grammar","grammar":{"syntax":"lark","definition":"start: x"}}}}]`: {`"description":"The input has to follow this lark grammar:\nstart: x"`},
		`"tools":[` + f + `,{"type":"function","function":{"name":"g"}}],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"f"}}]}}`: {
			`"tools":[` + f + `]`, `"tool_choice":"required"`},
		`"tools":[` + f + `],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[]}}`: {`{"messages":[{"content":"x","role":"user"}],"model":"m"}`},
	} {
		head, forms, chat, err := ReadChatHead([]byte(`{"model":"m",` + body + `,` + formTalk + `}`))
		if err != nil || forms == nil || head.Model != "m" {
			t.Errorf("%s: %v", body, err)
			continue
		}
		for _, want := range wants {
			assert.Contains(t, string(chat), want, body, chat, "lacks")
		}
		if _, again, _, err := ReadChatHead(chat); again != nil || err != nil {
			t.Errorf("what was written has forms, too: %s %v", chat, err)
		}
	}
	earlier := `{"model":"m","functions":[{"name":"f"}],"messages":[{"role":"user","content":"x"},{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}},{"role":"function","name":"f","content":"y"}]}`
	_, _, chat, err := ReadChatHead([]byte(earlier))
	if want := `{"content":null,"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"},"id":"call_1","type":"function"}]},{"content":"y","name":"f","role":"tool","tool_call_id":"call_1"}`; err != nil || !strings.Contains(string(chat), want) {
		t.Errorf("%v %s lacks\n%s", err, chat, want)
	}
	earlier = `{"model":"m","tools":[{"type":"custom","custom":{"name":"c"}}],"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"custom","custom":{"name":"c","input":"\"i\""}}]},{"role":"tool","tool_call_id":"a","content":"y"}]}`
	_, _, chat, err = ReadChatHead([]byte(earlier))
	if want := `"tool_calls":[{"function":{"name":"c","arguments":"{\"input\":\"\\\"i\\\"\"}"},"id":"a","type":"function"}]`; err != nil || !strings.Contains(string(chat), want) {
		t.Errorf("%v %s lacks\n%s", err, chat, want)
	}
	for _, none := range []string{`"functions":[],"function_call":"auto"`, `"functions":null,"function_call":"none"`, `"functions":[]`} {
		_, forms, chat, err := ReadChatHead([]byte(`{"model":"m",` + none + `,` + formTalk + `}`))
		if want := `{"messages":[{"content":"x","role":"user"}],"model":"m"}`; err != nil || string(chat) != want || forms.legacy {
			t.Errorf("%s: %s, %v, want %s", none, chat, err, want)
		}
	}
	for _, plain := range []string{
		`{"model":"m",` + formTalk + `}`, `{"model":"m","tools":[` + f + `],"tool_choice":{"type":"function","function":{"name":"f"}},` + formTalk + `}`,
		`{"model":"m","functions":null,"function_call":null,"tools":null,` + formTalk + `}`, `{"model":"m","tools":7,` + formTalk + `}`,
		`{"model":"m","web_search_options":null,` + formTalk + `}`,
	} {
		if _, forms, chat, err := ReadChatHead([]byte(plain)); forms != nil || chat != nil || err != nil {
			t.Errorf("%s is rewritten: %s %v", plain, chat, err)
		}
	}
	for body, want := range map[string][2]string{
		`"tools":[` + f + `,{"type":"web_search"}]`:                     {"tools.1", `"web_search"`},
		`"tools":[{"type":"mcp","server_label":"x"}]`:                   {"tools.0", `"mcp"`},
		`"tools":[` + f + `],"tool_choice":{"type":"code_interpreter"}`: {"tool_choice", `"code_interpreter"`},
		`"tools":[{"type":"custom","custom":{}}]`:                       {"tools.0", "name"},
		`"tools":[` + f + `],"tool_choice":{"type":"custom"}`:           {"tool_choice", "names"},
		`"web_search_options":{}`:                                       {"web_search_options", "web search"},
		`"functions":{}`:                                                {"functions", "list"},
		`"functions":["f"]`:                                             {"functions.0", "object"},
		`"tools":[` + f + `],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"some","tools":[]}}`:     {"tool_choice", "auto or required"},
		`"tools":[` + f + `],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[]}}`: {"tool_choice", "none of"},
	} {
		_, _, _, err := ReadChatHead([]byte(`{"model":"m",` + body + `,` + formTalk + `}`))
		if f := fault.Of(err); f == nil || f.Code != fault.InvalidRequest || f.Param != want[0] || !strings.Contains(f.Message, want[1]) {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// Answers are translated back to the forms of the request, unary and streamed, however
// the stream is split.
func TestChatFormsAnswers(t *testing.T) {
	for name, c := range map[string]struct{ request, answer, whole, stream, events string }{
		"functions": {`"functions":[{"name":"f"}]`,
			`{"id":"1","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":2,"completion_tokens":3}}`,
			`{"choices":[{"finish_reason":"function_call","index":0,"message":{"content":null,"function_call":{"name":"f","arguments":"{}"},"role":"assistant"}}],"id":"1","usage":{"prompt_tokens":2,"completion_tokens":3}}`,
			`data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}]}}]}` + "\n\n" +
				`data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}},{"index":1,"id":"b","function":{"name":"f","arguments":"{}"}}]}}]}` + "\n\n" +
				`data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}` + "\n\ndata: [DONE]\n\n",
			`data: {"choices":[{"delta":{"function_call":{"name":"f","arguments":""}},"index":0}]}` + "\n\n" +
				`data: {"choices":[{"delta":{"function_call":{"arguments":"{}"}},"index":0}]}` + "\n\n" +
				`data: {"choices":[{"delta":{},"finish_reason":"function_call","index":0}]}` + "\n\ndata: [DONE]\n\n"},
		"custom": {`"tools":[{"type":"custom","custom":{"name":"c"}},{"type":"function","function":{"name":"f"}}]`,
			`{"choices":[{"index":0,"message":{"content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"c","arguments":"{\"input\":\"i\"}"}},{"id":"b","type":"function","function":{"name":"f","arguments":"{}"}}]}}]}`,
			`{"choices":[{"index":0,"message":{"content":null,"tool_calls":[{"id":"a","type":"custom","custom":{"name":"c","input":"i"}},{"id":"b","type":"function","function":{"name":"f","arguments":"{}"}}]}}]}`,
			`data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}` + "\n\n" +
				`data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"c","arguments":"{\"inp"}}]}}]}` + "\n\n" +
				`data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"ut\":\"i\"}"}}]}}]}` + "\n\n" +
				`data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"b","type":"function","function":{"name":"c","arguments":"plain"}}]}}]}` + "\n\n" +
				`data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}` + "\n\n" +
				`data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3}}` + "\n\ndata: [DONE]\n\n",
			`data: {"choices":[{"delta":{"content":"Hi"},"index":0}]}` + "\n\n" +
				`data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","type":"custom","custom":{"name":"c","input":""}}]},"index":0}]}` + "\n\n" +
				`data: {"choices":[{"delta":{},"index":0}]}` + "\n\n" +
				`data: {"choices":[{"delta":{"tool_calls":[{"index":0,"custom":{"input":"i"}},{"index":1,"id":"b","type":"custom","custom":{"name":"c","input":""}}]},"index":0}]}` + "\n\n" +
				`data: {"choices":[{"delta":{"tool_calls":[{"index":1,"custom":{"input":"plain"}}]},"finish_reason":"tool_calls","index":0}]}` + "\n\n" +
				`data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3}}` + "\n\ndata: [DONE]\n\n"},
	} {
		_, forms, _, err := ReadChatHead([]byte(`{"model":"m",` + c.request + `,` + formTalk + `}`))
		assert.Require(t, err == nil && forms != nil, name, err)
		if whole, _, err := forms.Answer(strings.NewReader(c.answer)); err != nil || string(whole) != c.whole {
			t.Errorf("%s: %v\n got %s\nwant %s", name, err, whole, c.whole)
		}
		for size := 1; size <= len(c.stream); size += stride() {
			s := Stream{Events: forms.Events()}
			var out strings.Builder
			for rest, pending := c.stream, []byte(nil); len(rest) > 0; {
				n := min(size, len(rest))
				pending, rest = append(pending, rest[:n]...), rest[n:]
				taken, err := s.Take(pending)
				assert.OK(t, err, name)
				pending = pending[taken:]
				out.Write(s.Events.Next())
			}
			if out.String() != c.events || !s.Ended() {
				t.Fatalf("%s, in pieces of %d:\n got %s\nwant %s", name, size, out.String(), c.events)
			}
		}
	}
	_, forms, _, _ := ReadChatHead([]byte(`{"model":"m","functions":[{"name":"f"}],` + formTalk + `}`))
	for _, answer := range []string{`{"error":{"message":"x"}}`, `[]`, `{"choices":{}}`, `{"choices":[{"message":7}]}`} {
		if _, _, err := forms.Answer(strings.NewReader(answer)); fault.Of(err) == nil || fault.Of(err).Code != fault.EngineError {
			t.Errorf("%s: %v", answer, err)
		}
	}
}
