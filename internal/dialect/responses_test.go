package dialect

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
)

// Start and end of the responses in the stories.
var began, done1 = time.Unix(1_800_000_000, 0), time.Unix(1_800_000_002, 0)

// loader returns stored turns from the files of a story: turn-ID.json.
func loader(files map[string]string) func(string) ([]byte, error) {
	return func(id string) ([]byte, error) {
		turn, ok := files["turn-"+id+".json"]
		if !ok {
			return nil, nil
		}
		return []byte(turn), nil
	}
}

// asks reads a request of the dialect and starts its answer.
func asks(request string, load func(string) ([]byte, error)) (*ResponsesRequest, []byte, error) {
	q, err := ReadResponses([]byte(request))
	if err != nil {
		return nil, nil, err
	}
	if err := q.Resolve(load); err != nil {
		return nil, nil, err
	}
	chat, err := q.Chat()
	return q, chat, err
}

// answerTo starts the answer to a valid request.
func answerTo(t testing.TB, request string, load func(string) ([]byte, error)) *Response {
	t.Helper()
	q, _, err := asks(request, load)
	assert.OK(t, err)
	return q.Answer("OWN", began, q.Stores())
}

func TestResponsesGoldens(t *testing.T) {
	goldens(t, "responses", func(t *testing.T, files map[string]string) map[string]string {
		got := map[string]string{}
		request, ok := files["request.json"]
		if !ok {
			request = `{"model":"m","input":"x"}`
		}
		q, chat, err := asks(request, loader(files))
		assert.OK(t, err)
		if _, err := ReadHead(chat); err != nil {
			t.Errorf("what was written is not taken: %v\n%s", err, chat)
		}
		got["chat.json"] = indented(t, chat)
		if answer, ok := files["answer.json"]; ok {
			r := q.Answer("OWN", began, q.Stores())
			if _, err := r.Unary(strings.NewReader(answer)); err != nil {
				got["response.json"] = err.Error() + "\n"
			} else {
				turn := r.Turn(done1)
				got["response.json"] = indented(t, r.Finish(done1, turn != nil))
				got["kept.json"] = "nothing\n"
				if turn != nil {
					got["kept.json"] = indented(t, turn)
					checkTurn(t, turn, got["response.json"])
				}
			}
		}
		if stream, ok := files["stream.txt"]; ok {
			events, err := translateResponse(answerTo(t, request, loader(files)), stream, len(stream))
			checkResponseEvents(t, events, err == nil)
			for size := 1; size < len(stream); size += stride() {
				pieces, pieceErr := translateResponse(answerTo(t, request, loader(files)), stream, size)
				if pieces != events || (err == nil) != (pieceErr == nil) {
					t.Fatalf("in pieces of %d: %v\n%s", size, pieceErr, pieces)
				}
			}
			got["events.txt"] = events
		}
		return got
	})
}

// checkTurn checks that a stored turn can be returned and continued.
func checkTurn(t *testing.T, turn []byte, told string) {
	t.Helper()
	object, err := KeptResponse(turn)
	assert.That(t, err == nil && indented(t, object) == told, "kept is not what was told", err, object, told)
	q, chat, err := asks(`{"model":"m","previous_response_id":"resp_OWN","input":"And then?"}`, func(string) ([]byte, error) { return turn, nil })
	assert.That(t, err == nil && bytes.Contains(chat, []byte("And then?")), "cannot go on", err, chat)
	for i := range q.context {
		if item := &q.context[i]; item.id == "" || !bytes.Contains(item.raw, []byte(`"status"`)) || !bytes.Contains(item.raw, []byte(`"type"`)) {
			t.Errorf("an item lacks what every item has: %s", item.raw)
		}
	}
}

// translateResponse feeds a chat stream in pieces of that size and returns the events,
// including those of the end.
func translateResponse(r *Response, stream string, size int) (string, error) {
	s := Stream{Events: r.Events()}
	var pending []byte
	var out strings.Builder
	fail := func(err error) (string, error) {
		out.Write(r.Fail(fault.Of(err), "req_1"))
		return out.String(), err
	}
	for len(stream) > 0 {
		n := min(size, len(stream))
		pending = append(pending, stream[:n]...)
		stream = stream[n:]
		whole, err := s.Take(pending)
		out.Write(s.Events.Next())
		if err != nil {
			return fail(err)
		}
		if whole == 0 && s.line == 0 {
			continue // no line was read, and nothing refers to a part of one
		}
		rest := append([]byte(nil), pending[whole:]...)
		clear(pending) // nothing may keep a reference to what was taken
		pending = rest
	}
	if !s.Ended() {
		return fail(fault.New(fault.EngineError, "no end mark"))
	}
	turn := r.Turn(done1)
	out.Write(r.Finish(done1, turn != nil))
	return out.String(), nil
}

// seenEvent is one event as a client reads it.
type seenEvent struct {
	Type         string      `json:"type"`
	Sequence     int         `json:"sequence_number"`
	OutputIndex  int         `json:"output_index"`
	ContentIndex int         `json:"content_index"`
	ItemID       string      `json:"item_id"`
	Delta        string      `json:"delta"`
	Text         *string     `json:"text"`
	Refusal      *string     `json:"refusal"`
	Arguments    *string     `json:"arguments"`
	Input        *string     `json:"input"`
	Code         string      `json:"code"`
	Item         *seenItem   `json:"item"`
	Part         *seenPart   `json:"part"`
	Error        *seenError  `json:"error"`
	Response     *seenObject `json:"response"`
}

type seenPart struct {
	Type    string `json:"type"`
	Text    string `json:"text"`
	Refusal string `json:"refusal"`
}

type seenItem struct {
	ID        string     `json:"id"`
	Type      string     `json:"type"`
	Status    string     `json:"status"`
	Role      string     `json:"role"`
	CallID    string     `json:"call_id"`
	Name      string     `json:"name"`
	Arguments string     `json:"arguments"`
	Content   []seenPart `json:"content"`
	Summary   []seenPart `json:"summary"`
}

type seenError struct {
	Code          string `json:"code"`
	Message       string `json:"message"`
	Type          string `json:"type"`
	CorrelationID string `json:"correlation_id"`
	Details       *struct {
		Reason string `json:"reason"`
	} `json:"details"`
}

type seenObject struct {
	ID     string     `json:"id"`
	Status string     `json:"status"`
	Output []seenItem `json:"output"`
	Error  *seenError `json:"error"`
	Usage  *struct {
		Total int `json:"total_tokens"`
	} `json:"usage"`
}

// everyMember are the members that Open Responses always requires in a response object.
var everyMember = strings.Fields(`id object created_at completed_at status incomplete_details model previous_response_id instructions output error
	tools tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty top_logprobs temperature reasoning user usage
	max_output_tokens max_tool_calls store background service_tier metadata safety_identifier prompt_cache_key`)

// checkResponseEvents checks the order of the dialect: created, in progress, items that
// do not overlap (each added, filled and done), and one last event with the same items;
// consecutive numbers; the end mark only at a normal end.
func checkResponseEvents(t *testing.T, text string, whole bool) {
	t.Helper()
	wrong := func(format string, args ...any) { t.Helper(); t.Fatalf(format+"\n%s", append(args, text)...) }
	ended := strings.HasSuffix(text, "\n\ndata: [DONE]\n\n")
	if ended != whole {
		wrong("whole %v, but the end mark's presence is %v", whole, ended)
	}
	text = strings.TrimSuffix(text, "data: [DONE]\n\n")
	var finished []seenItem
	var item *seenItem
	var part *seenPart
	said, sequence, last := "", 0, ""
	for frame := range strings.SplitSeq(strings.TrimSuffix(text, "\n\n"), "\n\n") {
		name, data, ok := strings.Cut(frame, "\ndata: ")
		name, named := strings.CutPrefix(name, "event: ")
		var e seenEvent
		if err := json.Unmarshal([]byte(data), &e); !ok || !named || err != nil || e.Type != name || e.Sequence != sequence || strings.ContainsAny(data, "\r\n") {
			wrong("frame %d %q: %v", sequence, frame, err)
		}
		sequence++
		if e.Response != nil {
			checkMembers(t, data)
		}
		here := item != nil && e.ItemID == item.ID && e.OutputIndex == len(finished)
		state := map[bool]string{true: "inside", false: "between"}[item != nil]
		switch {
		case last == "" && name == "response.created" && e.Response.Status == "in_progress",
			last == "response.created" && name == "response.in_progress" && e.Response.Status == "in_progress":
			state = "head"
		case last == "" || last == "response.created":
			wrong("%s comes too early", name)
		case name == "response.output_item.added" && item == nil && e.OutputIndex == len(finished) && e.Item.Status == "in_progress" && e.Item.ID != "":
			item, said = e.Item, ""
			if strings.HasSuffix(item.Type, "_call") && (item.CallID == "" || item.Name == "") {
				wrong("a call without id or name")
			}
		case (name == "response.content_part.added" || name == "response.reasoning_summary_part.added") && here && part == nil && !strings.HasSuffix(item.Type, "_call"):
			part, said = e.Part, ""
		case (name == "response.output_text.delta" || name == "response.reasoning_summary_text.delta") && here && part != nil && part.Type != "refusal",
			name == "response.refusal.delta" && here && part != nil && part.Type == "refusal",
			name == "response.function_call_arguments.delta" && here && item.Type == "function_call",
			name == "response.custom_tool_call_input.delta" && here && item.Type == "custom_tool_call":
			said += e.Delta
		case (name == "response.output_text.done" || name == "response.reasoning_summary_text.done") && here && part != nil && *e.Text == said,
			name == "response.refusal.done" && here && *e.Refusal == said:
		case (name == "response.content_part.done" || name == "response.reasoning_summary_part.done") && here && part != nil && e.Part.Text+e.Part.Refusal == said:
			part = nil
		case name == "response.function_call_arguments.done" && here && *e.Arguments == said:
		case name == "response.custom_tool_call_input.done" && here && *e.Input == said:
		case name == "response.output_item.done" && item != nil && part == nil && e.Item.ID == item.ID:
			finished, item = append(finished, *e.Item), nil
		case (name == "response.completed" || name == "response.incomplete") && item == nil && whole && e.Response.Usage != nil:
			if fmt.Sprint(e.Response.Output) != fmt.Sprint(finished) || "response."+e.Response.Status != name {
				wrong("the response tells other items than the events: %v", e.Response)
			}
			if last := len(finished) - 1; last >= 0 && finished[last].Status != e.Response.Status {
				wrong("the last item is %s, the response %s", finished[last].Status, e.Response.Status)
			}
			state = "over"
		case name == "error" && !whole && e.Code != "" && e.Error.Code == e.Code && e.Error.CorrelationID == "req_1" && e.Error.Details != nil:
		case name == "response.failed" && last == "error" && e.Response.Error.Code != "" && e.Response.Status == "failed":
			state = "over"
		default:
			wrong("%s out of place (%s)", name, state)
		}
		last = name
		if state == "over" {
			last = "over"
		}
	}
	if last != "over" {
		wrong("it ends with %s", last)
	}
}

// checkMembers checks that a response object has every member.
func checkMembers(t *testing.T, event string) {
	t.Helper()
	var e struct {
		Response map[string]jsontext.Value `json:"response"`
	}
	assert.OK(t, json.Unmarshal([]byte(event), &e))
	for _, name := range everyMember {
		if _, ok := e.Response[name]; !ok {
			t.Fatalf("the response lacks %s: %s", name, event)
		}
	}
}

func TestReadResponsesRefuses(t *testing.T) {
	with := func(members string) string { return `{"model":"m","input":"x",` + members + `}` }
	item := func(item string) string { return `{"model":"m","input":[` + item + `]}` }
	for body, want := range map[string][2]string{
		``:                                       {"", "empty"},
		`[]`:                                     {"", "object"},
		`{"model":"m"}`:                          {"input", "no input"},
		`{"model":"m","input":[]}`:               {"input", "no input"},
		`{"model":"m","input":null}`:             {"input", "no input"},
		`{"input":"x"}`:                          {"model", "model"},
		`{"model":"m","input":7}`:                {"input", "a text or a list"},
		`{"model":"m","input":{}}`:               {"input", "a text or a list"},
		`{"model":"m","input":["x"]}`:            {"input.0", "object"},
		`{"model":"m","input":"x"} {}`:           {"", "follows"},
		`{"model":"m","input":"x","input":1}`:    {"input", "twice"},
		`{"model":"m","Model":"n","input":"x"}`:  {"Model", "case"},
		`{"model":"m","input":""}`:               {"input", "nothing to answer"},
		item(`{}`):                               {"input.0", "type"},
		item(`{"role":"user","content":[]}`):     {"input", "nothing to answer"},
		item(`{"role":"critic","content":"x"}`):  {"input.0", "role"},
		item(`{"type":"message","content":"x"}`): {"input.0", "role"},
		item(`{"role":7}`):                       {"input.0.role", "string"},
		item(`{"role":"user","content":[{"type":"input_file","file_id":"f"}]}`):         {"input.0", "input_file"},
		item(`{"role":"user","content":[{"type":"input_image","file_id":"f"}]}`):        {"input.0", "image_url"},
		item(`{"role":"user","content":[{"type":"input_text","text":1}]}`):              {"input.0", "string"},
		item(`{"role":"user","content":["x"]}`):                                         {"input.0", `""`},
		item(`{"type":"function_call","name":"f","arguments":"{}"}`):                    {"input.0", "call_id"},
		item(`{"type":"function_call","call_id":"c","name":"f","arguments":{}}`):        {"input.0", "strings"},
		item(`{"type":"function_call_output","output":"x"}`):                            {"input.0", "call_id"},
		item(`{"type":"item_reference"}`):                                               {"input.0", "id"},
		with(`"stream":1`):                                                              {"stream", "true or false"},
		with(`"store":"no"`):                                                            {"store", "true or false"},
		with(`"instructions":[]`):                                                       {"instructions", "string"},
		with(`"previous_response_id":7`):                                                {"previous_response_id", "string"},
		with(`"max_output_tokens":0`):                                                   {"max_output_tokens", "at least 1"},
		with(`"max_output_tokens":1.5`):                                                 {"max_output_tokens", "whole"},
		with(`"temperature":"hot"`):                                                     {"temperature", "number"},
		with(`"top_p":[]`):                                                              {"top_p", "number"},
		with(`"metadata":[]`):                                                           {"metadata", "object"},
		with(`"tools":{}`):                                                              {"tools", "list"},
		with(`"tools":[{"type":"function"}]`):                                           {"tools.0", "name"},
		with(`"tools":[{"type":"function","name":"f","parameters":"x"}]`):               {"tools.0", "parameters"},
		with(`"tools":[{"type":"namespace","name":"n","tools":[{"type":"function"}]}]`): {"tools.0.tools.0", "name"},
		with(`"tool_choice":"some"`):                                                    {"tool_choice", "auto"},
		with(`"tool_choice":7`):                                                         {"tool_choice", "object"},
		with(`"tool_choice":{"type":"function"}`):                                       {"tool_choice", "names"},
		with(`"tool_choice":{"type":"allowed_tools","mode":"x","tools":[]}`):            {"tool_choice", "auto"},
		with(`"parallel_tool_calls":1`):                                                 {"parallel_tool_calls", "true or false"},
		with(`"reasoning":{"effort":"huge"}`):                                           {"reasoning.effort", "minimal"},
		with(`"reasoning":"high"`):                                                      {"reasoning", "object"},
		with(`"reasoning_effort":"huge"`):                                               {"reasoning_effort", "minimal"},
		with(`"text":7`):                                                                {"text", "object"},
		with(`"text":{"format":{"type":"xml"}}`):                                        {"text.format", "json_schema"},
		with(`"text":{"format":{"type":"json_schema"}}`):                                {"text.format", "schema"},
		with(`"text":{"format":{"type":"json_schema","schema":[]}}`):                    {"text.format.schema", "object"},
		with(`"tools":[{"type":"web_search"},{"type":"code_interpreter"}]`):             {"tools", `"web_search", "code_interpreter"`},
		with(`"tools":[{"type":"mcp","server_label":"x"}],"tool_choice":"required"`):    {"tools", `"mcp"`},
		with(`"tools":[{"type":"function","name":"f"},{"type":"file_search"}],"tool_choice":{"type":"file_search"}`): {"tool_choice", `"file_search"`},
		with(`"tool_choice":{"type":"computer_use_preview"}`):                                                        {"tool_choice", `"computer_use_preview"`},
		with(`"tool_choice":{"type":"custom"}`):                                                                      {"tool_choice", "names"},
		with(`"truncation":"oldest"`):                                                                                {"truncation", "auto or disabled"},
		`{"model":"m","input":[{"type":"custom_tool_call","call_id":"a","name":"c"}]}`:                               {"input.0", "input"},
		with(`"conversation":"conv_1"`):                                                                              {"conversation", "previous_response_id"},
		with(`"prompt":{"id":"p"}`):                                                                                  {"prompt", "kept"},
		`{"model":"m","input":[` + strings.Repeat(`{"type":"x"},`, maxBlocks) + `{"type":"x"}]}`:                     {"input." + fmt.Sprint(maxBlocks-1), "not taken"},
		`{"model":"m","input":[` + strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth) + `]}`:              {"", "deeper"},
	} {
		_, chat, err := asks(body, loader(nil))
		var f *fault.Fault
		if !errors.As(err, &f) || f.Code != fault.InvalidRequest || f.Param != want[0] || !strings.Contains(f.Message, want[1]) || chat != nil {
			t.Errorf("%.150s: %v (param %q); want param %q and %q", body, err, f.Param, want[0], want[1])
		}
	}
}

// Everything that is not stored for the caller has the same code, wherever it is named.
func TestResponsesNotKept(t *testing.T) {
	turn := `{"input":[{"id":"msg_A_i0","type":"message","role":"user","status":"completed","content":[]}],"response":{"output":[]}}`
	load := loader(map[string]string{"turn-resp_A.json": turn})
	for body, param := range map[string]string{
		`{"model":"m","previous_response_id":"resp_B","input":"x"}`:                                      "previous_response_id",
		`{"model":"m","previous_response_id":"","input":"x","max_output_tokens":1}`:                      "",
		`{"model":"m","input":["y",1]}`:                                                                  "other",
		`{"model":"m","input":[{"role":"user","content":"x"},{"type":"item_reference","id":"msg_B_0"}]}`: "input.1.id",
		`{"model":"m","input":[{"type":"item_reference","id":"msg_A_7"}]}`:                               "input.0.id",
		`{"model":"m","input":[{"type":"item_reference","id":"msg_A"}]}`:                                 "input.0.id",
		`{"model":"m","input":[{"type":"item_reference","id":"invalidAnswer"}]}`:                         "input.0.id",
		`{"model":"m","input":[{"id":"msg__0"}]}`:                                                        "input.0.id",
	} {
		_, _, err := asks(body, load)
		switch f := fault.Of(err); {
		case param == "":
			if err != nil {
				t.Errorf("%s: %v", body, err)
			}
		case param == "other":
			assert.Equal(t, f.Code, fault.InvalidRequest, body, err)
		case f.Code != fault.PreviousResponseNotFound || f.Param != param || f.Status() != 400:
			t.Errorf("%s: %v, param %q", body, err, f.Param)
		}
	}
	t.Run("no more than a few turns are opened", func(t *testing.T) {
		var items []string
		for i := range 2 * maxTurns {
			items = append(items, `{"type":"item_reference","id":"msg_`+strconv.Itoa(i)+`_0"}`)
		}
		loads := 0
		_, _, err := asks(`{"model":"m","input":[`+strings.Join(items, ",")+`]}`, func(id string) ([]byte, error) {
			loads++
			own := strings.TrimPrefix(id, "resp_")
			return []byte(`{"input":[],"response":{"output":[{"id":"msg_` + own + `_0","type":"message","role":"assistant","content":"x"}]}}`), nil
		})
		if fault.Of(err).Code != fault.PreviousResponseNotFound || loads != maxTurns {
			t.Errorf("%d loads, %v", loads, err)
		}
	})
	t.Run("a store that is away", func(t *testing.T) {
		away := errors.New("away")
		_, _, err := asks(`{"model":"m","previous_response_id":"resp_A","input":"x"}`, func(string) ([]byte, error) { return nil, away })
		assert.Is(t, err, away)
	})
}

// The translation of each member.
func TestResponsesControls(t *testing.T) {
	const tools = `"tools":[{"type":"function","name":"f","parameters":{}},{"type":"function","name":"g","strict":true,"description":"d"}],`
	const chatF, chatG = `{"type":"function","function":{"name":"f","parameters":{}}}`, `{"type":"function","function":{"name":"g","description":"d","strict":true}}`
	for members, want := range map[string][2]string{
		`"stream":true`:                                                {`"stream":true,"stream_options":{"include_usage":true}`, ``},
		`"max_output_tokens":7`:                                        {`"max_tokens":7`, `"max_output_tokens":7`},
		`"temperature":0.5,"top_p":0.25`:                               {`"temperature":0.5,"top_p":0.25`, `"temperature":0.5,"top_p":0.25`},
		`"presence_penalty":1,"frequency_penalty":-1`:                  {`"presence_penalty":1,"frequency_penalty":-1`, `"presence_penalty":1,"frequency_penalty":-1`},
		`"instructions":"Be brief."`:                                   {`[{"role":"system","content":"Be brief."},{"role":"user"`, `"instructions":"Be brief."`},
		`"reasoning":{"effort":"low","summary":"auto"}`:                {`"reasoning":{"effort":"low","summary":"auto"}`, `"reasoning":{"effort":"low","summary":"auto"}`},
		`"reasoning":null,"text":null,"tools":null,"tool_choice":null`: {`{"model":"m","messages":[{"role":"user","content":"x"}]}`, `"reasoning":{"effort":null,"summary":null}`},
		`"reasoning_effort":"none"`:                                    {`"reasoning_effort":"none"`, ``},
		`"chat_template_kwargs":{"enable_thinking":false}`:             {`"chat_template_kwargs":{"enable_thinking":false}`, ``},
		tools + `"x":1`:                                                {`"tools":[` + chatF + `,` + chatG + `]`, `"tools":[{"type":"function","name":"f","description":null,"parameters":{},"strict":null},{"type":"function","name":"g","description":"d","parameters":null,"strict":true}]`},
		tools + `"tool_choice":"auto"`:                                 {`"tool_choice":"auto"`, `"tool_choice":"auto"`},
		tools + `"tool_choice":"required"`:                             {`"tool_choice":"required"`, `"tool_choice":"required"`},
		tools + `"tool_choice":"none"`:                                 {`{"model":"m","messages":`, `"tool_choice":"none","tools":[{"type":"function","name":"f"`},
		tools + `"tool_choice":{"type":"function","name":"g"}`:         {`"tools":[` + chatG + `],"tool_choice":{"type":"function","function":{"name":"g"}}`, `"tool_choice":{"type":"function","name":"g"}`},
		tools + `"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"g"}]}`: {`"tools":[` + chatG + `],"tool_choice":"required"`, `"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"g"}]}`},
		tools[:len(tools)-2] + `,{"type":"web_search"},{"type":"mcp","server_label":"x"}],"tool_choice":"required"`: {`"tools":[` + chatF + `,` + chatG + `],"tool_choice":"required","messages"`, `"tool_choice":"required"`},
		tools + `"parallel_tool_calls":false`: {`"parallel_tool_calls":false`, `"parallel_tool_calls":false`},
		`"tools":[{"type":"web_search"},{"type":"custom","name":"c","format":{}},{"type":"mcp","tools":[]}],"tool_choice":"required"`:            {`"tools":[{"type":"function","function":{"name":"c","parameters":` + customSchema + `}}],"tool_choice":"required","messages":`, `"tools":[{"type":"custom","name":"c","description":null,"format":{}}]`},
		`"tools":[{"type":"web_search"}],"tool_choice":"none"`:                                                                                   {`{"model":"m","messages":`, `"tools":[]`},
		`"text":{"format":{"type":"json_object"},"verbosity":"low"}`:                                                                             {`"response_format":{"type":"json_object"}`, `"text":{"format":{"type":"json_object"},"verbosity":"low"}`},
		`"text":{"format":{"type":"text"},"verbosity":"odd"}`:                                                                                    {`{"model":"m","messages":`, `"text":{"format":{"type":"text"}}`},
		`"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"},"strict":true}}`:                                           {`"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"object"}}}`, `"text":{"format":{"type":"json_schema","name":"n","description":null,"schema":{"type":"object"},"strict":true}}`},
		`"metadata":{"a":"b"},"user":"u","safety_identifier":"s","prompt_cache_key":"k","truncation":"auto","max_tool_calls":3,"top_logprobs":0`: {`{"model":"m","messages":`, `"truncation":"auto","metadata":{"a":"b"},"user":"u","safety_identifier":"s","prompt_cache_key":"k"`},
		`"background":true,"service_tier":"priority","include":["reasoning.encrypted_content"],"client_metadata":{},"stop":"x","grammar":"y"`:    {`{"model":"m","messages":`, `"service_tier":"default","background":false`},
		`"conversation":null,"prompt":null,"previous_response_id":null,"store":null`:                                                             {`{"model":"m","messages":`, `"store":true`},
		`"top_logprobs":99,"include":["x",7]`:                                                                                                    {`"logprobs":true,"top_logprobs":20,"messages"`, `"top_logprobs":99`},
		`"include":["message.output_text.logprobs"]`:                                                                                             {`"logprobs":true,"messages"`, `"top_logprobs":0`},
		`"include":"message.output_text.logprobs"`:                                                                                               {`{"model":"m","messages":`, `"top_logprobs":0`},
		`"store":false`: {`{"model":"m","messages":`, `"store":false`},
	} {
		q, chat, err := asks(`{"model":"m",`+members+`,"input":"x"}`, loader(nil))
		if err != nil || !strings.Contains(string(chat), want[0]) {
			t.Errorf("%s: %v\n%s\nlacks %s", members, err, chat, want[0])
			continue
		}
		if _, err := ReadHead(chat); err != nil {
			t.Errorf("%s: %v", chat, err)
		}
		object := q.Answer("OWN", began, q.Stores()).Finish(done1, q.Stores())
		assert.Contains(t, string(object), want[1], members, object, "lacks")
		checkMembers(t, `{"response":`+string(object)+`}`)
	}
}

// A tool that the request does not allow is never called, whatever a model generates.
func TestResponsesAllowedTools(t *testing.T) {
	const answer = `{"choices":[{"message":{"tool_calls":[{"id":"c","function":{"name":"\u0066","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}`
	for choice, ok := range map[string]bool{
		`"auto"`:                         true,
		`"required"`:                     true,
		`"none"`:                         false,
		`{"type":"function","name":"f"}`: true,
		`{"type":"function","name":"g"}`: false,
		`{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]}`: true,
		`{"type":"allowed_tools","tools":[{"type":"function","name":"g"}]}`:               false,
		`{"type":"allowed_tools","tools":[]}`:                                             false,
	} {
		r := answerTo(t, `{"model":"m","input":"x","tools":[{"type":"function","name":"f"},{"type":"function","name":"g"}],"tool_choice":`+choice+`}`, loader(nil))
		if _, err := r.Unary(strings.NewReader(answer)); (err == nil) != ok || err != nil && fault.Of(err).Code != fault.EngineError {
			t.Errorf("%s: %v", choice, err)
		}
	}
}

func TestWholeResponseRefuses(t *testing.T) {
	for answer, says := range map[string]string{
		``:                                "not a chat answer",
		`{"choices":[]}`:                  "not a chat answer",
		`{"choices":[{}],"choices":[{}]}`: "not a chat answer",
		`{"choices":[{"message":{"content":[1]}}]}`:                                          "not a chat answer",
		`{"error":{"message":"boom"}}`:                                                       "boom",
		`{"choices":[{"message":{"tool_calls":[{"id":"c"}]}}]}`:                              "out of order",
		`{"choices":[{"message":{"content":"` + strings.Repeat("x", maxAnswerText) + `"}}]}`: "4 MiB",
	} {
		if _, err := answerTo(t, `{"model":"m","input":"x"}`, loader(nil)).Unary(strings.NewReader(answer)); fault.Of(err).Code != fault.EngineError || !strings.Contains(err.Error(), says) {
			t.Errorf("%.100s: %v", answer, err)
		}
	}
}

// A stream that fails before a machine sent anything is still a valid stream.
func TestResponseFailsFromTheStart(t *testing.T) {
	r := answerTo(t, `{"model":"m","stream":true,"input":"x"}`, loader(nil))
	text := string(r.Fail(fault.New(fault.CapacityFull, "all busy").AfterWait(), "req_1"))
	checkResponseEvents(t, text, false)
	if !strings.Contains(text, `"code":"CAPACITY_FULL","message":"all busy","param":"","error":{"code":"CAPACITY_FULL"`) ||
		!strings.Contains(text, `"details":{"reason":"wait_elapsed"}`) || !strings.Contains(text, `"status":"failed","completed_at":null,"error":{"code":"CAPACITY_FULL","message":"all busy"}`) {
		t.Error(text)
	}
}

func TestInputItems(t *testing.T) {
	var items []string
	for i := range 5 {
		items = append(items, fmt.Sprintf(`{"id":"msg_%d"}`, i))
	}
	turn := []byte(`{"input":[` + strings.Join(items, ",") + `],"response":{}}`)
	for _, c := range []struct {
		page InputPage
		want string
	}{
		{InputPage{Limit: 20}, `[4 3 2 1 0] false`},
		{InputPage{Limit: 2}, `[4 3] true`},
		{InputPage{Limit: 2, After: "msg_3"}, `[2 1] true`},
		{InputPage{Limit: 2, After: "msg_1"}, `[0] false`},
		{InputPage{Limit: 2, After: "msg_0"}, `[] false`},
		{InputPage{Limit: 2, After: "no"}, `[] false`},
		{InputPage{Limit: 5, Ascending: true}, `[0 1 2 3 4] false`},
		{InputPage{Limit: 2, After: "msg_1", Ascending: true}, `[2 3] true`},
	} {
		list, err := InputItems(turn, c.page)
		var got struct {
			Object string `json:"object"`
			Data   []struct {
				ID string `json:"id"`
			} `json:"data"`
			First *string `json:"first_id"`
			Last  *string `json:"last_id"`
			More  bool    `json:"has_more"`
		}
		assert.OK(t, errors.Join(err, json.Unmarshal(list, &got)))
		ids := []string{}
		for _, item := range got.Data {
			ids = append(ids, strings.TrimPrefix(item.ID, "msg_"))
		}
		if text := fmt.Sprint(ids, got.More); text != c.want || got.Object != "list" ||
			(got.First == nil) != (len(ids) == 0) || len(ids) > 0 && (*got.First != "msg_"+ids[0] || *got.Last != "msg_"+ids[len(ids)-1]) {
			t.Errorf("%+v: %s", c.page, list)
		}
	}
	for _, bad := range []string{``, `[]`, `{"input":{}}`} {
		if _, err := InputItems([]byte(bad), InputPage{Limit: 1}); err == nil {
			t.Errorf("%q is a turn", bad)
		}
	}
}

// FuzzResponsesRequest checks that the translation of every accepted body is as strict
// and has the same head, and that its turn can be continued.
func FuzzResponsesRequest(f *testing.F) {
	for _, text := range storied(f, "responses", "request.json") {
		f.Add([]byte(text))
	}
	turn := []byte(`{"input":[{"id":"msg_A_i0","type":"message","role":"user","status":"completed","content":[{"type":"input_text","text":"x"}]}],` +
		`"response":{"output":[{"id":"msg_A_0","type":"message","role":"assistant","content":[{"type":"output_text","text":"y"}]}]}}`)
	f.Fuzz(func(t *testing.T, body []byte) {
		q, chat, err := asks(string(body), func(string) ([]byte, error) { return turn, nil })
		if err != nil {
			if code := fault.Of(err).Code; code != fault.InvalidRequest && code != fault.PreviousResponseNotFound {
				t.Fatal(err)
			}
			return
		}
		again, err := ReadHead(chat)
		if err != nil && !strings.Contains(err.Error(), "deeper") { // a tool's schema is one level deeper
			t.Fatalf("%v\n%s\n%s", err, body, chat)
		}
		if err == nil && (again.Model != q.Model || again.Stream != q.Stream) {
			t.Fatalf("%+v became %+v", q.Head, again)
		}
		r := q.Answer("OWN", began, true)
		if _, err := r.Unary(strings.NewReader(`{"choices":[{"message":{"content":"z"},"finish_reason":"stop"}]}`)); err != nil {
			t.Fatal(err)
		}
		kept := r.Turn(done1)
		object, err := KeptResponse(kept)
		assert.Require(t, err == nil && bytes.Equal(object, r.Finish(done1, true)), err, kept, object)
		if _, _, err := asks(`{"model":"m","previous_response_id":"resp_OWN","input":"x"}`, func(string) ([]byte, error) { return kept, nil }); err != nil {
			t.Fatalf("%v\n%s", err, kept)
		}
	})
}

// FuzzResponseEvents checks that any bytes result in ordered events, the same wherever
// they are split, and that the events end normally only after an end mark.
func FuzzResponseEvents(f *testing.F) {
	for _, folder := range []string{"responses", "messages"} {
		for _, text := range storied(f, folder, "stream.txt") {
			f.Add(text, byte(7))
		}
	}
	f.Fuzz(func(t *testing.T, stream string, size byte) {
		begin := func() *Response {
			return answerTo(t, `{"model":"m","input":"x","top_logprobs":1,"tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]}]}`, loader(nil))
		}
		whole, err := translateResponse(begin(), stream, max(len(stream), 1))
		checkResponseEvents(t, whole, err == nil)
		assert.Require(t, err != nil || strings.Contains(stream, "[DONE]"), "a good end without an end mark")
		pieces, pieceErr := translateResponse(begin(), stream, int(size)+1)
		if strings.Contains(stream, "[DONE]") {
			return // bytes after the end are seen sooner or later
		}
		if pieces != whole || (err == nil) != (pieceErr == nil) {
			t.Fatalf("whole: %v\n%s\nin pieces: %v\n%s", err, whole, pieceErr, pieces)
		}
	})
}

// Compare with BenchmarkStreamChunk, a chunk that is not translated.
func BenchmarkResponseChunk(b *testing.B) {
	r := answerTo(b, `{"model":"m","stream":true,"input":"x"}`, loader(nil))
	s := Stream{Events: r.Events()}
	frame := []byte(chunk)
	b.SetBytes(int64(len(frame)))
	b.ReportAllocs()
	for b.Loop() {
		if n, err := s.Take(frame); err != nil || n != len(frame) || len(s.Events.Next()) == 0 {
			b.Fatal(n, err)
		}
		s.frames, s.bytes, r.size, r.item.text = 0, 0, 0, r.item.text[:0]
	}
}

// The body of an agent's call, with and without storing it.
func BenchmarkResponsesToChat(b *testing.B) {
	archive := assert.Value(txtar.ParseFile("testdata/responses/codex.txtar"))(b)
	body := strings.Replace(string(archive.Files[0].Data), "hello ", strings.Repeat("hello ", 16<<10), 1)
	for _, kept := range []bool{false, true} {
		b.Run(map[bool]string{false: "unstored", true: "kept"}[kept], func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				q, _, err := asks(body, loader(nil))
				assert.OK(b, err)
				if turn := q.Answer("OWN", began, kept).Turn(done1); (turn != nil) != kept {
					b.Fatal("kept", kept)
				}
			}
		})
	}
}

// hostileEndings are endings that a machine may send after a valid beginning. None of
// them may pass as a valid answer or make the events invalid.
var hostileEndings = []string{
	"", "data: {\n\n", "data: {}{}\n\n", "data: 1\n\n", "data: null\n\n", "data: []\n\n", "data:\n\n", "<html>\n\n", "event: x\ndata: {}\n\n", "data: {\ndata: }\n\n",
	"data: {\"a\":\"\xff\"}\n\n", `data: {"a":"\ud800"}` + "\n\n", `data: {"a":1,"a":1}` + "\n\n", "data: {\"a\":\r1}\n\n", "data: " + strings.Repeat("y", MaxFrame),
	`data: {"choices":[{"delta":{"content":"` + strings.Repeat("y", MaxFrame) + `"}}]}` + "\n\n", `data: {"error":{"message":"boom"}}` + "\n\n",
	`data: {"error":"boom"}` + "\n\n", `data: {"choices":[{"delta":{"tool_calls":[{}]}}]}` + "\n\n", `data: {"choices":[{"delta":{"tool_calls":[{"index":9,"function":{"arguments":"x"}}]}}]}` + "\n\n",
	`data: {"choices":[{"delta":{"tool_calls":[7,null,"x",[]]}}]}` + "\n\n", `data: {"choices":[{"delta":{"tool_calls":{}}}]}` + "\n\n", `data: {"choices":{}}` + "\n\n", `data: {"choices":[null,1,"x"]}` + "\n\n",
	`data: {"choices":[{"delta":{"content":{"a":1},"reasoning":[],"refusal":7}}]}` + "\n\n", `data: {"choices":[{"delta":null,"finish_reason":7}]}` + "\n\n", `data: {"usage":{"prompt_tokens":-1}}` + "\n\n",
	`data: {"choices":[{"delta":{"tool_calls":[{"index":1e99,"id":7,"function":{"name":"f","arguments":{}}}]}}]}` + "\n\n", "[DONE]\n\n", "data: [DONE]", "data:[DONE] \n\n", ": [DONE]\n\n", "data: \"[DONE]\"\n\n",
}

// Whatever a machine sends, and wherever it stops, the caller reads ordered events that
// end in a failure.
func TestResponsesHostileStreams(t *testing.T) {
	cases := 0
	goldens(t, "responses", func(t *testing.T, files map[string]string) map[string]string {
		stream, _, whole := strings.Cut(files["stream.txt"], done)
		if !whole {
			return nil
		}
		request, ok := files["request.json"]
		if !ok {
			request = `{"model":"m","input":"x"}`
		}
		for _, ending := range hostileEndings {
			events, err := translateResponse(answerTo(t, request, loader(files)), stream+ending, 1000)
			assert.That(t, err != nil, ending, "passes for an end")
			checkResponseEvents(t, events, false)
			cases++
		}
		for cut := 0; cut < len(stream); cut += 3 * stride() {
			events, err := translateResponse(answerTo(t, request, loader(files)), stream[:cut], max(cut, 1))
			assert.That(t, err != nil, "cut after", cut, "bytes it passes for an end")
			checkResponseEvents(t, events, false)
			cases++
		}
		return nil
	})
	assert.That(t, cases >= 250, cases, "cases")
}

// An answer that grows without end is cut off, and its memory stays limited.
func TestResponseStreamBounds(t *testing.T) {
	r := answerTo(t, `{"model":"m","input":"x"}`, loader(nil))
	s := Stream{Events: r.Events()}
	frame := []byte(`data: {"choices":[{"delta":{"content":"` + strings.Repeat("y", 100_000) + `"}}]}` + "\n\n")
	sent := 0
	for {
		n, err := s.Take(frame)
		s.Events.Next()
		if err != nil {
			assert.That(t, fault.Of(err).Code == fault.EngineError && n == 0, n, err)
			break
		}
		if sent += n; sent > 2*maxAnswerText {
			t.Fatal("no end to it")
		}
	}
	if size := cap(r.out) + cap(r.output) + cap(r.item.text); size > 4*maxAnswerText {
		t.Errorf("it holds %d bytes", size)
	}
}

// BenchmarkDelta compares the events that delta writes with the same events written by
// encode.
func BenchmarkDelta(b *testing.B) {
	text := jsontext.Value(`"Hello"`)
	e := &messageEvents{outbox: new(outbox)}
	type textDelta struct {
		Type string         `json:"type"`
		Text jsontext.Value `json:"text"`
	}
	r := answerTo(b, `{"model":"m","stream":true,"input":"x"}`, loader(nil))
	r.streamed = true
	r.open(messageItem, outputItem{})
	for name, write := range map[string]func(){
		"messages": func() { e.delta(`text_delta","text":`, text) },
		"messages encoded": func() {
			e.event("content_block_delta", struct {
				Type  string    `json:"type"`
				Index *int      `json:"index"`
				Delta textDelta `json:"delta"`
			}{"content_block_delta", &e.index, textDelta{"text_delta", text}})
		},
		"responses": func() { r.delta("response.output_text.delta", text, nil) },
		"responses encoded": func() {
			about := r.aboutPart("response.output_text.delta")
			r.event(about.Type, struct {
				responseEvent
				Delta    jsontext.Value `json:"delta"`
				Logprobs jsontext.Value `json:"logprobs"`
			}{about, text, list(nil)})
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				e.out, r.out = e.out[:0], r.out[:0]
				write()
			}
		})
	}
}
