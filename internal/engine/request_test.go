package engine

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// sent returns the body that an engine of the kind receives for body, or the error.
func sent(t *testing.T, kind enginetest.Kind, req Request) (string, error) {
	t.Helper()
	var got string
	var failed error
	synctest.Test(t, func(t *testing.T) {
		double := enginetest.New(kind, enginetest.Options{
			Models:    []enginetest.Model{{ID: "m", Thinking: true}, {ID: "e", Embeddings: true}},
			Behaviour: enginetest.Behaviour{Text: "yes"},
		})
		f := finder(t, Config{Endpoints: []string{"http://127.0.0.1:1"}, Transport: double.Transport()})
		e := f.Engines()[0]
		if req.Model == "" {
			req.Model = "m"
		}
		resp, err := e.Do(t.Context(), req)
		if err != nil {
			failed = err
			return
		}
		resp.Body.Close()
		got = string(double.Last().Body)
	})
	return got, failed
}

// unstreamed returns the body of a unary call with the stream taken back that kinds of
// llama.cpp are asked for.
func unstreamed(body string) string {
	return strings.Replace(body, `"stream":true,"stream_options":{"include_usage":true}`, `"stream":false`, 1)
}

// A unary call asks kinds of llama.cpp for a stream, except one with tools and
// logprobs.
func TestUnaryIsStreamed(t *testing.T) {
	for _, c := range []struct {
		kind    enginetest.Kind
		members string
		want    bool
	}{
		{enginetest.LlamaCpp, ``, true}, {enginetest.VLLM, ``, false}, {enginetest.Ollama, ``, false},
		{enginetest.LlamaCpp, `"logprobs":true`, true}, {enginetest.LlamaCpp, `"tools":[{"type":"function","function":{"name":"f"}}]`, true},
		{enginetest.LlamaCpp, `"logprobs":true,"tools":[{"type":"function","function":{"name":"f"}}]`, false},
	} {
		for _, trusted := range []bool{true, false} {
			got, err := sent(t, c.kind, Request{Body: chatBody(c.members), Trusted: trusted})
			assert.That(t, err == nil && (unstreamed(got) != got) == c.want, c.kind, c.members, got, err)
		}
	}
}

// value decodes JSON, for comparisons without regard to order.
func value(t *testing.T, text string) any {
	t.Helper()
	var v any
	assert.OK(t, json.Unmarshal([]byte(text), &v), text)
	return v
}

func chatBody(members string) []byte {
	if members != "" {
		members = "," + members
	}
	return []byte(`{"model":"m","messages":[{"role":"user","content":"hi"}]` + members + `}`)
}

// killers are members that control or break engines. None may reach one.
var killers = []string{
	`"n_predict":-1`, `"n_discard":-5`, `"n_keep":-1`, `"grammar":"root ::= ((((\"a\"))))"`, `"grammar_lazy":true`, `"json_schema":{"pattern":"(a+)+"}`,
	`"id_slot":0`, `"slot_id":1`, `"cache_prompt":true`, `"session":"a"`, `"n_cache_reuse":256`, `"samplers":["x"]`, `"mirostat":2`,
	`"lora":[{"id":0,"scale":9}]`, `"speculative.n_max":999999`, `"t_max_predict_ms":1`, `"return_tokens":true`, `"post_sampling_probs":true`,
	`"chat_template":"{{ x }}"`, `"chat_template_kwargs":{"tools":"{{ x }}","chat_template":"y"}`, `"add_generation_prompt":false`, `"reasoning_format":"none"`,
	`"guided_json":"{}"`, `"guided_regex":"(a+)+$"`, `"guided_grammar":"x"`, `"guided_decoding_backend":"x"`, `"structured_outputs":{"regex":"a"}`,
	`"prompt_logprobs":100000`, `"logits_processors":["os.system"]`, `"mm_processor_kwargs":{"a":1}`, `"kv_transfer_params":{"remote_host":"10.0.0.1"}`,
	`"documents":[{"title":"x"}]`, `"cache_salt":"mine"`, `"priority":-100`, `"request_id":"x"`, `"return_token_ids":true`, `"best_of":50`, `"use_beam_search":true`,
	`"options":{"num_ctx":99999999}`, `"keep_alive":-1`, `"format":"json"`, `"template":"x"`, `"raw":true`, `"images":["/etc/passwd"]`, `"draft_model":"x"`, `"ttl":1`,
	`"image_data":[{"data":"x"}]`, `"user":"somebody"`, `"metadata":{"a":"b"}`, `"store":true`, `"prediction":{"content":"x"}`, `"ignore_eos":true`, `"min_tokens":1000000`,
	`"web_search_options":{}`, `"audio":{"voice":"x"}`, `"modalities":["audio"]`, `"continue_final_message":true`, `"input_suffix":"x"`, `"plugins":["x"]`,
}

func TestKillersNeverArrive(t *testing.T) {
	for _, kind := range []enginetest.Kind{enginetest.LlamaCpp, enginetest.Ollama, enginetest.LMStudio, enginetest.VLLM, enginetest.Plain} {
		got, err := sent(t, kind, Request{Body: chatBody(strings.Join(killers, ","))})
		assert.OK(t, err, kind)
		if diff := cmp.Diff(value(t, `{"model":"m","stream":false,"messages":[{"role":"user","content":"hi"}]}`), value(t, unstreamed(got))); diff != "" {
			t.Errorf("%s: -want +got\n%s", kind, diff)
		}
	}
	got, err := sent(t, enginetest.LlamaCpp, Request{Endpoint: fleet.EmbeddingsEndpoint, Model: "e", Body: []byte(`{"model":"e","input":"x","content":"y","embd_normalize":9,"user":"u"}`)})
	assert.That(t, err == nil && got == `{"model":"e","input":"x"}`, "embeddings", got, err)
}

// Allowed members of an untrusted caller arrive, clamped.
func TestAllowed(t *testing.T) {
	png := `data:image/png;base64,iVBORw0KGgo=`
	for name, test := range map[string]struct{ body, want string }{
		"sampling":    {`"temperature":0.7,"top_p":0.9,"top_k":40,"min_p":0.05,"seed":7,"stop":["a","b"],"n":1`, `"temperature":0.7,"top_p":0.9,"top_k":40,"min_p":0.05,"seed":7,"stop":["a","b"],"n":1`},
		"clamped":     {`"temperature":1e999,"top_p":-4,"n":4,"max_tokens":1e30,"top_logprobs":99`, `"temperature":2,"top_p":0,"n":4,"max_tokens":4096,"top_logprobs":20`},
		"no limit":    {`"max_tokens":-1,"max_completion_tokens":-1e300`, ``},
		"seed":        {`"seed":2147483647`, `"seed":2147483647`},
		"long seed":   {`"seed":2147483648`, `"seed":1607638789`},
		"least seed":  {`"seed":-9223372036854775808`, `"seed":1073741824`},
		"seed below":  {`"seed":-1`, `"seed":820265763`},
		"endless":     {`"seed":1e40`, `"seed":1133279051`},
		"null":        {`"temperature":null,"tools":null,"max_tokens":null,"stream_options":null`, ``},
		"bias":        {`"logit_bias":{"17":-100,"4":1e9}`, `"logit_bias":{"17":-100,"4":100}`},
		"tools":       {`"tools":[{"type":"function","function":{"name":"grep","parameters":{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"pattern":{"type":"string","pattern":"(a+)+"}},"required":["pattern"]},"x":1},"y":2}],"tool_choice":"auto"`, `"tools":[{"type":"function","function":{"name":"grep","parameters":{"type":"object","properties":{"pattern":{"type":"string"}},"required":["pattern"]}}}],"tool_choice":"auto"`},
		"schema":      {`"response_format":{"type":"json_schema","json_schema":{"name":"s","strict":true,"schema":{"type":"array","maxItems":1000000000,"minItems":2,"items":{"$ref":"#/$defs/a"},"$defs":{"a":{"enum":[{"pattern":"x"}]}}}}}`, `"response_format":{"type":"json_schema","json_schema":{"name":"s","strict":true,"schema":{"type":"array","minItems":2,"items":{"$ref":"#/$defs/a"},"$defs":{"a":{"enum":[{"pattern":"x"}]}}}}}`},
		"named tool":  {`"tool_choice":{"type":"function","function":{"name":"f","z":1},"y":2},"tools":[{"type":"function","function":{"name":"f"}}]`, `"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"f"}}`},
		"both limits": {`"max_tokens":5,"max_completion_tokens":6`, `"max_tokens":5,"max_completion_tokens":6`},
	} {
		got, err := sent(t, enginetest.LlamaCpp, Request{Body: chatBody(test.body)})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if test.want != "" {
			test.want = "," + test.want
		}
		want := `{"model":"m","stream":false,"messages":[{"role":"user","content":"hi"}]` + test.want + `}`
		assert.Same(t, value(t, unstreamed(got)), value(t, want), name, "-want +got")
	}
	messages := `[{"role":"system","content":"s","cache_control":{}},
		{"role":"user","content":[{"type":"text","text":"a","x":1},{"type":"image_url","image_url":{"url":"` + png + `","detail":"low","y":2}},{"type":"image_url","image_url":"` + png + `"}],"images":["/etc/passwd"]},
		{"role":"assistant","content":null,"reasoning_content":"r","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"c","content":"t"}]`
	want := `[{"role":"system","content":"s"},
		{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"` + png + `","detail":"low"}},{"type":"image_url","image_url":{"url":"` + png + `"}}]},
		{"role":"assistant","content":null,"reasoning_content":"r","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"c","content":"t"}]`
	got, err := sent(t, enginetest.VLLM, Request{Body: []byte(`{"model":"m","messages":` + messages + `}`)})
	assert.OK(t, err)
	if diff := cmp.Diff(value(t, `{"model":"m","stream":false,"messages":`+want+`}`), value(t, unstreamed(got))); diff != "" {
		t.Errorf("messages: -want +got\n%s", diff)
	}
}

// What chat templates and engines fail on is rewritten, in trusted calls, too.
func TestTidied(t *testing.T) {
	earlier := func(call string) string {
		return `"messages":[{"role":"assistant","tool_calls":[` + call + `]},{"role":"tool","tool_call_id":"c","content":"r"}]`
	}
	call := func(arguments string) string {
		return `{"id":"c","type":"function","function":{"name":"f","arguments":` + arguments + `}}`
	}
	picture := func(url, detail string) string {
		return `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + url + `"` + detail + `}}]}]`
	}
	const png = "data:image/png;base64,AAA+/w=="
	long := strings.Repeat("x", maxCallID)
	for body, want := range map[string]string{
		`"messages":[{"role":"developer","content":"a"},{"role":"user","content":"b"}]`: `"messages":[{"role":"system","content":"a"},{"role":"user","content":"b"}]`,
		`"messages":[],"tools":[],"tool_choice":"auto"`:                                 `"messages":[]`,
		`"messages":[],"tool_choice":"required","tools":[ ]`:                            `"messages":[]`,
		`"messages":[],"tool_choice":null,"tools":null`:                                 `"messages":[]`,
		`"messages":[],"tools":[],"parallel_tool_calls":false`:                          `"messages":[]`,
		`"messages":[],"parallel_tool_calls":true,"tools":null`:                         `"messages":[]`,
		`"messages":[{"role":"assistant","content":"b","tool_calls":[]}]`:               `"messages":[{"role":"assistant","content":"b"}]`,
		earlier(call(`""`)):            earlier(call(`"{}"`)),
		earlier(call(`null`)):          earlier(call(`"{}"`)),
		earlier(call(`"null"`)):        earlier(call(`"{}"`)),
		earlier(call(`" {\"a\":1} "`)): earlier(call(`"{\"a\":1}"`)),
		earlier(call(`{"a":1}`)):       earlier(call(`"{\"a\":1}"`)),
		earlier(call(`"{"`)):           earlier(call(`"{\"_raw\":\"{\"}"`)),
		earlier(call(`"[1]"`)):         earlier(call(`"{\"_raw\":\"[1]\"}"`)),
		strings.ReplaceAll(earlier(call(`"{}"`)), `"c"`, `"`+long+`"`):          strings.ReplaceAll(earlier(call(`"{}"`)), `"c"`, `"`+long+`"`),
		`"messages":[{"role":"tool","tool_call_id":"c","content":{"temp":21}}]`: `"messages":[{"role":"tool","tool_call_id":"c","content":"{\"temp\":21}"}]`,
		`"messages":[],"stop":""`:                                   `"messages":[]`,
		`"messages":[],"stop":[""]`:                                 `"messages":[]`,
		`"messages":[],"stop":[]`:                                   `"messages":[]`,
		`"messages":[],"stop":["a",""]`:                             `"messages":[],"stop":["a"]`,
		`"messages":[],"stop":"a"`:                                  `"messages":[],"stop":"a"`,
		`"messages":[],"max_tokens":4096.0`:                         `"messages":[],"max_tokens":4096`,
		`"messages":[],"max_tokens":4.096e3`:                        `"messages":[],"max_tokens":4096`,
		picture("data:image/PNG;base64,AAA+/w==", ``):               picture(png, ``),
		picture("DATA:image/png;charset=utf-8;base64,AAA+/w==", ``): picture(png, ``),
		picture(`data:image/png;base64,AA\nA+\r\n/w==\n`, ``):       picture(png, ``),
		picture("data:image/png;base64,AAA-_w", ``):                 picture(png, ``),
		picture(png, `,"detail":"original"`):                        picture(png, `,"detail":"high"`),
		picture(png, `,"detail":"ultra"`):                           picture(png, `,"detail":"auto"`),
	} {
		for _, trusted := range []bool{false, true} {
			got, err := sent(t, enginetest.VLLM, Request{Body: []byte(`{"model":"m",` + body + `}`), Trusted: trusted})
			if err != nil {
				t.Errorf("%.100s: %v", body, err)
			} else if diff := cmp.Diff(value(t, `{"model":"m","stream":false,`+want+`}`), value(t, got)); diff != "" {
				t.Errorf("%.100s, trusted %v: -want +got\n%.500s", body, trusted, diff)
			}
		}
	}
	// Whole numbers, however they are written.
	for body, want := range map[string]string{`"n":2.0`: `"n":2`, `"seed":7.0`: `"seed":7`, `"top_k":40.0`: `"top_k":40`} {
		got, err := sent(t, enginetest.VLLM, Request{Body: chatBody(body)})
		if err != nil || !strings.Contains(got, want+",") && !strings.Contains(got, want+"}") {
			t.Errorf("%s: %s %v", body, got, err)
		}
	}
	// What the owner sends is otherwise as it was.
	mine := `"messages":[{"role":"narrator","content":[{"type":"video_url","video_url":{"url":"http://x"}}],"x":1}],"tools":[{"type":"web","function":{"name":"f","parameters":{"pattern":"a","deep":[[[[]]]]}},"y":2}]`
	got, err := sent(t, enginetest.VLLM, Request{Body: []byte(`{"model":"m",` + mine + `}`), Trusted: true})
	assert.That(t, err == nil && strings.Contains(got, mine), got, err)
}

// A value that must not be passed on is refused with 400 and its path.
func TestRefused(t *testing.T) {
	part := func(p string) string { return `"messages":[{"role":"user","content":[` + p + `]}]` }
	image := func(url string) string { return part(`{"type":"image_url","image_url":{"url":"` + url + `"}}`) }
	const at = "messages.0.content.0"
	tools := func(schema string) string {
		return `"tools":[{"type":"function","function":{"name":"f","parameters":` + schema + `}}]`
	}
	for body, param := range map[string]string{
		image("http://169.254.169.254/latest"):                                          at + ".image_url.url",
		image("https://example.com/a.png"):                                              at + ".image_url.url",
		image("file:///etc/passwd"):                                                     at + ".image_url.url",
		image("/etc/passwd"):                                                            at + ".image_url.url",
		image("data:image/svg+xml;base64,PHN2Zz4="):                                     at + ".image_url.url",
		image("data:video/jpeg;base64,AAAA,AAAA"):                                       at + ".image_url.url",
		image("data:image/png;base64,AAAA,AAAA"):                                        at + ".image_url.url",
		image("data:image/png;base64,http://10.0.0.1/"):                                 at + ".image_url.url",
		part(`{"type":"image_url","image_url":"http:x"}`):                               at + ".image_url",
		part(`{"type":"video_url","video_url":{"url":"http://x"}}`):                     at + ".type",
		part(`{"type":"file","file":{"file_id":"x"}}`):                                  at + ".type",
		part(`{"type":"input_audio","input_audio":{"data":"http://x","format":"wav"}}`): at + ".input_audio.data",
		part(`{"type":"text","text":{"a":1}}`):                                          at + ".text",
		part(strings.Repeat(`{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}},`, maxMedia) + `{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}`): "messages.0.content.256.image_url.url",
		`"messages":"hi"`: "messages",
		`"messages":[{"role":"root","content":"x"}]`:           "messages.0.role",
		`"temperature":"hot"`:                                  "temperature",
		`"stop":"` + strings.Repeat("x", maxStop+1) + `"`:      "stop",
		`"stop":[` + strings.Repeat(`"x",`, maxStops) + `"x"]`: "stop",
		`"messages":[` + strings.Repeat(`{"role":"user","content":"x"},`, maxMessages) + `{"role":"user","content":"x"}]`: "messages",
		`"logit_bias":{"-1":1}`:                                                      "logit_bias.-1",
		tools(`{"$ref":"http://10.0.0.1/schema"}`):                                   "tools.0.function.parameters.$ref",
		tools(`{"$ref":"file:///etc/passwd"}`):                                       "tools.0.function.parameters.$ref",
		tools(`{"properties":{"100%s":{"$ref":"http://x"}}}`):                        "tools.0.function.parameters.properties.100%s.$ref",
		tools(`{"const":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`): "tools.0.function.parameters.const",
		tools(`{"enum":["` + strings.Repeat("x", 1<<20) + `"]}`):                     "tools.0.function.parameters.enum",
		`"max_tokens":"many"`:                                                        "max_tokens",
		`"max_tokens":0`:                                                             "max_tokens",
		`"max_tokens":3.5`:                                                           "max_tokens",
		`"top_logprobs":1.5`:                                                         "top_logprobs",
		`"max_completion_tokens":0.5`:                                                "max_completion_tokens",
		`"n":5`:                                                                      "n",
		`"n":0`:                                                                      "n",
		`"n":1e40`:                                                                   "n",
		`"reasoning_effort":"enormous"`:                                              "reasoning_effort",
		`"thinking":"yes"`:                                                           "thinking",
		`"stream_options":{"include_usage":1}`:                                       "stream_options",
	} {
		if !strings.HasPrefix(body, `"messages"`) {
			body = `"messages":[],` + body
		}
		_, err := sent(t, enginetest.VLLM, Request{Body: []byte(`{"model":"m",` + body + `}`)})
		f, ok := errors.AsType[*fault.Fault](err)
		if !ok || f.Code != fault.InvalidRequest || f.Param != param || strings.Contains(f.Message, "%!") {
			t.Errorf("%.120s: %v (param %q)", body, err, f.Param)
		}
	}
	deep := strings.Repeat(`{"items":`, 40) + `{}` + strings.Repeat(`}`, 40)
	wide := `{"anyOf":[` + strings.Repeat(`{},`, maxSchemaNodes) + `{}]}`
	for _, body := range []string{
		string(chatBody(tools(deep))), string(chatBody(tools(wide))), `[]`, `"x"`, `{`, ``, `{"model":"m"}{}`, `{"model":"m"} x`,
		`{"model":"m","model":"n"}`, `{"model":"m","messages":[{"role":"user","role":"user"}]}`, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}",
		`{"model":"m","messages":[{"role":"user","content":"\ud800"}]}`,
	} {
		_, err := sent(t, enginetest.VLLM, Request{Body: []byte(body)})
		if f, ok := errors.AsType[*fault.Fault](err); !ok || f.Code != fault.InvalidRequest {
			t.Errorf("%.80s: %v", body, err)
		}
	}
}

// Pictures and messages are taken up to a number, and an excess is refused with it.
func TestTooMany(t *testing.T) {
	const picture, said = `{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}},`, `{"role":"user","content":"x"},`
	list := func(n int, of string) string { return `[` + strings.TrimSuffix(strings.Repeat(of, n), ",") + `]` }
	for says, messages := range map[string]func(excess int) string{
		"more than 256 pictures": func(excess int) string { return `[{"role":"user","content":` + list(256+excess, picture) + `}]` },
		"more than 8192 are":     func(excess int) string { return list(8192+excess, said) },
	} {
		for excess, refused := range []bool{false, true} {
			_, err := sent(t, enginetest.VLLM, Request{Body: []byte(`{"model":"m","messages":` + messages(excess) + `}`)})
			if (err != nil) != refused || refused && !strings.Contains(err.Error(), says) {
				t.Errorf("%d more: %v, want %q", excess, err, says)
			}
		}
	}
}

// The owner's own call is passed on completely, except where the kind differs.
func TestTrusted(t *testing.T) {
	for _, test := range []struct {
		kind       enginetest.Kind
		body, want string
	}{
		{enginetest.LlamaCpp, `"grammar":"root ::= \"a\"","n_predict":5,"cache_prompt":true,"max_completion_tokens":9`, `"grammar":"root ::= \"a\"","n_predict":5,"cache_prompt":true,"max_completion_tokens":9`},
		{enginetest.Ollama, `"max_completion_tokens":9,"max_tokens":3,"temperature":9`, `"max_tokens":9,"temperature":9`},
		{enginetest.LlamaCpp, `"chat_template_kwargs":{"enable_thinking":false,"mine":1}`, `"thinking_budget_tokens":0,"chat_template_kwargs":{"enable_thinking":false,"mine":1}`},
		{enginetest.VLLM, `"thinking_token_budget":5,"max_tokens":-1`, `"thinking_token_budget":5,"chat_template_kwargs":{"enable_thinking":true,"thinking":true}`},
	} {
		got := assert.Value(sent(t, test.kind, Request{Body: chatBody(test.body), Trusted: true}))(t)
		want := `{"model":"m","stream":false,"messages":[{"role":"user","content":"hi"}],` + test.want + `}`
		assert.Same(t, value(t, unstreamed(got)), value(t, want), test.kind, test.body, "-want +got")
	}
}

// Thinking controls in every form, for every kind.
func TestThinking(t *testing.T) {
	on := func(more string) string { return `"chat_template_kwargs":{"enable_thinking":true` + more + `}` }
	both := `"chat_template_kwargs":{"enable_thinking":true,"thinking":true}`
	off := `"thinking_budget_tokens":0,"chat_template_kwargs":{"enable_thinking":false}`
	offBoth := `"reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":false,"thinking":false}`
	effort := func(e string) string { return `"reasoning_effort":"` + e + `"` }
	for _, test := range []struct{ said, llama, ollama, lmstudio, vllm string }{
		{``, ``, ``, ``, ``},
		{`"reasoning_effort":null`, ``, ``, ``, ``},
		{effort("none"), off, effort("none"), effort("none"), offBoth},
		{effort("high"), on(`,` + effort("high")), effort("high"), effort("high"), effort("high") + `,` + both},
		{effort("xhigh"), on(`,` + effort("high")), effort("high"), effort("high"), effort("high") + `,` + both},
		{effort("minimal"), on(`,` + effort("low")), effort("low"), effort("low"), effort("low") + `,` + both},
		{`"reasoning":{"effort":"medium","summary":"auto"}`, on(`,` + effort("medium")), effort("medium"), effort("medium"), effort("medium") + `,` + both},
		{`"reasoning":{"max_tokens":5000}`, on(``) + `,"thinking_budget_tokens":5000`, effort("medium"), effort("medium"), both + `,"thinking_token_budget":5000`},
		{`"reasoning":{"enabled":false}`, off, effort("none"), effort("none"), offBoth},
		{`"thinking":{"type":"enabled","budget_tokens":1024}`, on(``) + `,"thinking_budget_tokens":1024`, effort("low"), effort("low"), both + `,"thinking_token_budget":1024`},
		{`"thinking":{"type":"disabled"}`, off, effort("none"), effort("none"), offBoth},
		{`"thinking":{"type":"adaptive"}`, ``, ``, ``, ``},
		{`"thinking":{"budget_tokens":1024}`, on(``) + `,"thinking_budget_tokens":1024`, effort("low"), effort("low"), both + `,"thinking_token_budget":1024`},
		{`"thinking":{}`, ``, ``, ``, ``},
		{effort("max"), on(`,` + effort("high")), effort("high"), effort("high"), effort("high") + `,` + both},
		{`"reasoning":{"exclude":true}`, ``, ``, ``, ``},
		{`"reasoning":{"effort":null,"max_tokens":null,"enabled":null},"thinking":null,"chat_template_kwargs":null`, ``, ``, ``, ``},
		{`"chat_template_kwargs":{"thinking":true,"reasoning_effort":"low","thinking_budget":100}`, on(`,`+effort("low")) + `,"thinking_budget_tokens":100`, effort("low"), effort("low"), effort("low") + `,` + both + `,"thinking_token_budget":100`},
		{`"thinking_budget_tokens":-1`, ``, ``, ``, ``},
		{`"include_reasoning":false`, ``, ``, ``, ``},
		{`"thinking":true`, on(``), ``, ``, both},
		{`"chat_template_kwargs":{"enable_thinking":false,"evil":"{{x}}"}`, off, effort("none"), effort("none"), offBoth},
		{`"think":false`, off, effort("none"), effort("none"), offBoth},
		{`"thinking_budget":0`, off, effort("none"), effort("none"), offBoth},
		{`"chat_template_kwargs":{"enable_thinking":false},` + effort("low"), on(`,` + effort("low")), effort("low"), effort("low"), effort("low") + `,` + both},
		{`"thinking":true,` + effort("none"), off, effort("none"), effort("none"), offBoth},
	} {
		for kind, want := range map[enginetest.Kind]string{enginetest.LlamaCpp: test.llama, enginetest.Ollama: test.ollama, enginetest.LMStudio: test.lmstudio, enginetest.VLLM: test.vllm} {
			got, err := sent(t, kind, Request{Body: chatBody(test.said)})
			if err != nil {
				t.Errorf("%s %s: %v", kind, test.said, err)
				continue
			}
			if want != "" {
				want = "," + want
			}
			if diff := cmp.Diff(value(t, `{"model":"m","stream":false,"messages":[{"role":"user","content":"hi"}]`+want+`}`), value(t, unstreamed(got))); diff != "" {
				t.Errorf("%s %s: -want +got\n%s", kind, test.said, diff)
			}
		}
	}
}

// toBuiltin returns the body that the built-in engine gets for a call.
func toBuiltin(t *testing.T, body []byte) (got string) {
	t.Helper()
	double := enginetest.New(enginetest.VLLM, enginetest.Options{Models: []enginetest.Model{{ID: "m"}}, Behaviour: enginetest.Behaviour{Text: "yes"}})
	synctest.Test(t, func(t *testing.T) {
		e := Builtin("kith", double.Transport(), BuiltinState{Models: []Model{chatModel("m", 0)}})
		assert.Value(e.Do(t.Context(), Request{Model: "m", Body: body}))(t).Body.Close()
		got = string(double.Last().Body)
	})
	return got
}

// The built-in engine gets all thinking controls as variables, since the chat template of
// the model decides: a budget, too, and the effort nearest to it.
func TestThinkingBuiltin(t *testing.T) {
	for said, want := range map[string]string{
		``:                                         ``,
		`"thinking":{"type":"adaptive"}`:           ``,
		`"reasoning_effort":"none"`:                `"enable_thinking":false`,
		`"thinking":{"type":"disabled"}`:           `"enable_thinking":false`,
		`"thinking":true`:                          `"enable_thinking":true`,
		`"reasoning_effort":"max"`:                 `"enable_thinking":true,"reasoning_effort":"max"`,
		`"reasoning":{"effort":"minimal"}`:         `"enable_thinking":true,"reasoning_effort":"minimal"`,
		`"reasoning":{"max_tokens":5000}`:          `"enable_thinking":true,"reasoning_effort":"medium","thinking_budget":5000`,
		`"thinking":{"budget_tokens":1024}`:        `"enable_thinking":true,"reasoning_effort":"low","thinking_budget":1024`,
		`"chat_template_kwargs":{"thinking":true}`: `"enable_thinking":true`,
	} {
		if want != "" {
			want = `,"chat_template_kwargs":{` + want + `}`
		}
		want = `{"model":"m","stream":false,"messages":[{"role":"user","content":"hi"}]` + want + `}`
		assert.Same(t, value(t, toBuiltin(t, chatBody(said))), value(t, want), said, "-want +got")
	}
}

// Two callers never share a prompt cache: an engine with salts gets one for each, and
// one without gets cache_prompt false for all but the owner, or with SharedCache for no
// one. The owner's own settings are passed on.
func TestCachesApart(t *testing.T) {
	type cache struct {
		Salt   string `json:"cache_salt"`
		Prompt *bool  `json:"cache_prompt"`
	}
	of := func(kind enginetest.Kind, r Request) cache {
		t.Helper()
		if r.Body == nil {
			r.Body = chatBody("")
		}
		got := assert.Value(sent(t, kind, r))(t)
		var b cache
		assert.OK(t, json.Unmarshal([]byte(got), &b))
		return b
	}
	for _, test := range []struct {
		kind          enginetest.Kind
		salts, single bool
	}{
		{enginetest.VLLM, true, false}, {enginetest.SGLang, true, false}, {enginetest.Docker, true, true}, {enginetest.LlamaSwap, true, true},
		{enginetest.LlamaCpp, false, true}, {enginetest.Jan, false, true},
		{enginetest.Ollama, false, false}, {enginetest.LMStudio, false, false},
	} {
		own, ann, again, bob := of(test.kind, Request{}), of(test.kind, Request{Caller: "ann"}), of(test.kind, Request{Caller: "ann"}), of(test.kind, Request{Caller: "bob"})
		assert.That(t, own.Salt == "" && own.Prompt == nil, test.kind, "the owner", own)
		if test.salts != (ann.Salt != "") || ann.Salt != again.Salt || test.salts && ann.Salt == bob.Salt {
			t.Errorf("%s: salts %q %q %q", test.kind, ann.Salt, again.Salt, bob.Salt)
		}
		assert.Equal(t, (ann.Prompt != nil && !*ann.Prompt), test.single, test.kind, "cache_prompt", ann.Prompt)
		if shared := of(test.kind, Request{Caller: "ann", SharedCache: true}); shared.Prompt != nil || shared.Salt != ann.Salt {
			t.Errorf("%s, one cache for all: %+v", test.kind, shared)
		}
	}
	asked := of(enginetest.LlamaCpp, Request{Caller: "ann", Body: chatBody(`"cache_prompt":true,"cache_salt":"x"`)})
	if asked.Prompt == nil || *asked.Prompt || asked.Salt != "" {
		t.Errorf("another caller's own members: %+v", asked)
	}
	asked = of(enginetest.LlamaCpp, Request{Trusted: true, Body: chatBody(`"cache_prompt":false,"cache_salt":"x"`)})
	assert.That(t, asked.Prompt != nil && !*asked.Prompt && asked.Salt == "x", "the owner's own members", asked)
}

// A stream always requests the token counts. A unary call has no stream options.
func TestStreamOptions(t *testing.T) {
	got, err := sent(t, enginetest.VLLM, Request{Stream: true, Body: chatBody(`"stream":true,"stream_options":{"include_usage":false,"continuous_usage_stats":true}`)})
	if err != nil || !strings.HasSuffix(got, `"stream_options":{"include_usage":true}}`) || !strings.Contains(got, `"stream":true`) {
		t.Errorf("%s %v", got, err)
	}
	if got, err = sent(t, enginetest.VLLM, Request{Body: chatBody(`"stream":true,"stream_options":{"include_usage":true}`)}); err != nil || strings.Contains(got, "stream_options") || !strings.Contains(got, `"stream":false`) {
		t.Errorf("%s %v", got, err)
	}
}

// Whatever an untrusted caller sends, the engine receives one strict JSON object of
// known members, without an address except that of an image.
func FuzzRequest(f *testing.F) {
	for _, k := range killers {
		f.Add(chatBody(k))
	}
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}],"tools":[{"type":"function","function":{"parameters":{"items":[{"$ref":"#"}]}}}]}`))
	e := &Engine{kind: kinds[0], models: []Model{chatModel("m", 100)}}
	allowed := map[string]bool{"model": true, "stream": true, "stream_options": true, "max_tokens": true, "max_completion_tokens": true, "chat_template_kwargs": true, "thinking_budget_tokens": true}
	for name := range chatMembers {
		allowed[name] = true
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		out, _, err := e.request(&Request{Model: "m", Body: body}, &e.models[0])
		if err != nil {
			if _, ok := errors.AsType[*fault.Fault](err); !ok {
				t.Fatalf("not a fault: %v", err)
			}
			return
		}
		var got map[string]jsontext.Value
		assert.OK(t, json.Unmarshal(out, &got), out)
		for name := range got {
			assert.Require(t, allowed[name], name, "arrived")
		}
	})
}

// A model that is not known to think gets no thinking setting, not even "off":
// some engines refuse that.
func TestThinkingOfModelsThatDoNot(t *testing.T) {
	for _, said := range []string{`"reasoning_effort":"high"`, `"reasoning_effort":"none"`, `"thinking":true`} {
		for _, kind := range []enginetest.Kind{enginetest.Ollama, enginetest.LMStudio} {
			synctest.Test(t, func(t *testing.T) {
				double := enginetest.New(kind, enginetest.Options{Models: []enginetest.Model{{ID: "m"}}})
				f := finder(t, Config{Endpoints: []string{"http://127.0.0.1:1"}, Transport: double.Transport()})
				resp := assert.Value(f.Engines()[0].Do(t.Context(), Request{Model: "m", Body: chatBody(said)}))(t)
				resp.Body.Close()
				if body := string(double.Last().Body); strings.Contains(body, "think") || strings.Contains(body, "reason") {
					t.Errorf("%s %s: %s", kind, said, body)
				}
			})
		}
	}
}

// If the caller began the answer, llama.cpp is not asked to think, because it
// refuses both in one call.
func TestNoThinkingBehindABegunAnswer(t *testing.T) {
	begun := []byte(`{"model":"m","messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"Well,"}],"reasoning_effort":"high"}`)
	got, err := sent(t, enginetest.LlamaCpp, Request{Body: begun})
	assert.That(t, err == nil && strings.Contains(got, `"enable_thinking":false`), got, err)
	if got, err = sent(t, enginetest.VLLM, Request{Body: begun}); err != nil || !strings.Contains(got, `"enable_thinking":true`) {
		t.Errorf("%s %v", got, err)
	}
}

// An older vLLM that refuses the effort gets the call once more without it.
func TestOlderVLLM(t *testing.T) {
	for refusals, status := range map[int]int{0: 200, 1: 200, 2: 400} {
		synctest.Test(t, func(t *testing.T) {
			double := enginetest.New(enginetest.VLLM, enginetest.Options{Models: []enginetest.Model{{ID: "m"}}})
			f := finder(t, Config{Endpoints: []string{"http://127.0.0.1:1"}, Transport: double.Transport()})
			left := refusals
			double.Script(func(c enginetest.Call) enginetest.Behaviour {
				if told := strings.Contains(string(c.Body), `"reasoning_effort":"none"`); told != (double.Counts().Runs == 1) {
					t.Errorf("run %d: %s", double.Counts().Runs, c.Body)
				}
				if left--; left >= 0 {
					return enginetest.Behaviour{Status: 400}
				}
				return enginetest.Behaviour{}
			})
			resp, err := f.Engines()[0].Do(t.Context(), Request{Model: "m", Body: chatBody(`"reasoning_effort":"none"`)})
			assert.OK(t, err)
			resp.Body.Close()
			if resp.StatusCode != status || double.Counts().Runs != min(refusals, 1)+1 {
				t.Errorf("%d refusals: status %d after %d runs", refusals, resp.StatusCode, double.Counts().Runs)
			}
		})
	}
}
