package dialect

import (
	"bytes"
	"encoding/json/v2"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
)

func TestMessagesGoldens(t *testing.T) {
	goldens(t, "messages", func(t *testing.T, files map[string]string) map[string]string {
		got := map[string]string{}
		if request, ok := files["request.json"]; ok {
			_, chat, err := MessagesToChat([]byte(request))
			assert.OK(t, err)
			if _, err := ReadHead(chat); err != nil {
				t.Errorf("what was written is not taken: %v", err)
			}
			got["chat.json"] = indented(t, chat)
		}
		if answer, ok := files["answer.json"]; ok {
			message, _, err := MessageAnswer(strings.NewReader(answer), "msg_1", "m")
			if err != nil {
				got["message.json"] = err.Error() + "\n"
			} else {
				got["message.json"] = indented(t, message)
			}
		}
		if stream, ok := files["stream.txt"]; ok {
			events, err := translate(stream, len(stream))
			checkEvents(t, events, err == nil)
			for size := 1; size < len(stream); size += stride() {
				pieces, pieceErr := translate(stream, size)
				if pieces != events || (err == nil) != (pieceErr == nil) {
					t.Fatalf("in pieces of %d: %v\n%s", size, pieceErr, pieces)
				}
			}
			if err != nil {
				events += err.Error() + "\n"
			}
			got["events.txt"] = events
		}
		return got
	})
}

// translate feeds a chat stream in pieces of that size and returns the events.
func translate(stream string, size int) (string, error) {
	s := Stream{Events: NewMessageEvents("msg_1", "m")}
	var pending []byte
	var out strings.Builder
	for len(stream) > 0 {
		n := min(size, len(stream))
		pending = append(pending, stream[:n]...)
		stream = stream[n:]
		whole, err := s.Take(pending)
		out.Write(s.Events.Next())
		if err != nil {
			return out.String(), err
		}
		rest := append([]byte(nil), pending[whole:]...)
		clear(pending) // nothing may keep a reference to what was taken
		pending = rest
	}
	if !s.Ended() {
		return out.String(), errors.New("no end mark")
	}
	return out.String(), nil
}

// event is one event as a client reads it.
type event struct {
	Type    string `json:"type"`
	Index   int    `json:"index"`
	Message *struct {
		Usage map[string]int `json:"usage"`
	} `json:"message"`
	Block *struct {
		Type string `json:"type"`
		ID   string `json:"id"`
		Name string `json:"name"`
	} `json:"content_block"`
	Delta *struct {
		Type       string `json:"type"`
		StopReason string `json:"stop_reason"`
	} `json:"delta"`
	Usage map[string]int `json:"usage"`
}

// deltasOf are the deltas that a block may have.
var deltasOf = map[string][]string{
	"text": {"text_delta"}, "tool_use": {"input_json_delta"}, "thinking": {"thinking_delta", "signature_delta"},
}

// checkEvents checks the order of the dialect: message_start, blocks numbered from 0 that
// do not overlap, and at a normal end message_delta and message_stop.
func checkEvents(t *testing.T, text string, whole bool) {
	t.Helper()
	wrong := func(format string, args ...any) { t.Helper(); t.Fatalf(format+"\n%s", append(args, text)...) }
	state, open, next, last := "", "", 0, ""
	for frame := range strings.SplitSeq(strings.TrimSuffix(text, "\n\n"), "\n\n") {
		if text == "" {
			break
		}
		name, data, ok := strings.Cut(frame, "\ndata: ")
		name, named := strings.CutPrefix(name, "event: ")
		var e event
		if err := json.Unmarshal([]byte(data), &e); !ok || !named || err != nil || e.Type != name {
			wrong("frame %q: %v", frame, err)
		}
		switch {
		case state == "" && name == "message_start" && e.Message.Usage["output_tokens"] == 0:
			state = "between"
		case state == "between" && name == "content_block_start" && e.Index == next && deltasOf[e.Block.Type] != nil &&
			(e.Block.Type != "tool_use" || e.Block.ID != "" && e.Block.Name != ""):
			state, open, last = "inside", e.Block.Type, ""
		case state == "inside" && name == "content_block_delta" && e.Index == next && strings.Contains(fmt.Sprint(deltasOf[open]), e.Delta.Type) && last != "signature_delta":
			last = e.Delta.Type
		case state == "inside" && name == "content_block_stop" && e.Index == next && (open == "thinking") == (last == "signature_delta"):
			state, next = "between", next+1
		case state == "between" && name == "message_delta" && e.Delta.StopReason != "" && e.Usage != nil:
			state = "told"
		case state == "told" && name == "message_stop":
			state = "over"
		default:
			wrong("%s in the state %q", name, state)
		}
	}
	if whole != (state == "over") {
		wrong("whole %v, but it ends in the state %q", whole, state)
	}
}

func TestMessagesToChatRefuses(t *testing.T) {
	with := func(members string) string {
		return `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}],` + members + `}`
	}
	says := func(content string) string {
		return `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":` + content + `}]}`
	}
	const (
		picture = `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}`
		turns   = `{"role":"user","content":"x"},{"role":"assistant","content":"y"}`
	)
	for body, want := range map[string][2]string{
		``:   {"", "empty"},
		`[]`: {"", "object"},
		`{"model":"m","max_tokens":1,"messages":[]}`:                                            {"messages", "at least one"},
		`{"model":"m","max_tokens":1}`:                                                          {"messages", "at least one"},
		`{"max_tokens":1,"messages":[{"role":"user","content":"x"}]}`:                           {"model", "model"},
		`{"model":"m","messages":[{"role":"user","content":"x"}]}`:                              {"max_tokens", "how long"},
		`{"model":"m","Model":"n","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`:   {"Model", "case"},
		`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]} {}`:            {"", "follows"},
		`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x","content":"y"}]}`: {"content", "twice"},
		`{"model":"m","max_tokens":1,"messages":[{"role":"system","content":"x"}]}`:             {"messages", "nothing to answer"},
		`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[]}]}`:                {"messages", "nothing to answer"},
		`{"model":"m","max_tokens":1,"messages":[{"role":"tool","content":"x"}]}`:               {"messages.0.role", "user, assistant or system"},
		`{"model":"m","max_tokens":1,"messages":["x"]}`:                                         {"messages.0", "object"},
		`{"model":"m","max_tokens":1,"messages":{}}`:                                            {"messages", "list"},
		`{"model":"m","max_tokens":1,"messages":[{"role":"user"}]}`:                             {"messages.0", "role and a content"},
		`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":{}}]}`:                {"messages.0", "role and a content"},
		`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":1}]}`:                 {"messages.0.content", "string or a list"},
		`{"model":"m","max_tokens":0,"messages":[{"role":"user","content":"x"}]}`:               {"max_tokens", "at least 1"},
		`{"model":"m","max_tokens":1.5,"messages":[{"role":"user","content":"x"}]}`:             {"max_tokens", "whole number"},
		`{"model":"m","max_tokens":"1","messages":[{"role":"user","content":"x"}]}`:             {"max_tokens", "whole number"},
		with(`"stream":1`):    {"stream", "true or false"},
		with(`"STREAM":true`): {"STREAM", "case"},
		with(`"system":[{"type":"image","source":{"type":"url","url":"u"}}]`): {"system", "text blocks"},
		with(`"system":7`):                                                            {"system", "string"},
		with(`"tools":[{"input_schema":{}}]`):                                         {"tools.0", "name"},
		with(`"tools":7`):                                                             {"tools", "list"},
		with(`"tool_choice":{"type":"some"}`):                                         {"tool_choice.type", "auto, any"},
		with(`"tool_choice":"auto"`):                                                  {"tool_choice", "object"},
		with(`"thinking":{"type":"on"}`):                                              {"thinking.type", "enabled"},
		with(`"thinking":true`):                                                       {"thinking", "object"},
		with(`"thinking":{"type":"enabled","budget_tokens":"x"}`):                     {"thinking.budget_tokens", "whole number"},
		with(`"output_config":{"effort":"huge"}`):                                     {"output_config.effort", "minimal"},
		with(`"output_config":{"format":{"schema":[]}}`):                              {"output_config.format.schema", "object"},
		with(`"tools":[{"type":"bash_20250124","name":"bash"}]`):                      {"tools", `"bash_20250124"`},
		with(`"mcp_servers":[{"type":"url","url":"https://mcp.example","name":"x"}]`): {"mcp_servers", `"mcp"`},
		with(`"tools":[{"name":"f","input_schema":{}},{"type":"web_search_20250305","name":"web_search"}],"tool_choice":{"type":"tool","name":"web_search"}`): {"tool_choice", `"web_search_20250305"`},
		says(`[{"type":"video"}]`):         {"messages.0", `"video"`},
		says(`[{"text":"x"}]`):             {"messages.0", `""`},
		says(`["x"]`):                      {"messages.0.content.0", "object"},
		says(`[{"type":"text"}]`):          {"messages.0.content.0", "text as a string"},
		says(`[{"type":"text","text":1}]`): {"messages.0.content.0", "text as a string"},
		says(`[{"type":"image"}]`):         {"messages.0.content.0", "source"},
		says(`[{"type":"image","source":{"type":"file","file_id":"f"}}]`):                                         {"messages.0.content.0", "base64"},
		says(`[{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"JVBERi0="}}]`): {"messages.0.content.0", "text only"},
		says(`[{"type":"tool_use","id":"a","name":"f","input":"x"}]`):                                             {"messages.0.content.0", "input"},
		says(`[{"type":"tool_use","name":"f","input":{}}]`):                                                       {"messages.0.content.0", "id"},
		says(`[{"type":"tool_result","content":"x"}]`):                                                            {"messages.0.content.0", "tool_use_id"},
		says(`[{"type":"tool_result","tool_use_id":"a","is_error":1}]`):                                           {"messages.0.content.0.is_error", "true or false"},
		says(strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth)):                                       {"", "deeper"},
		says(`[` + strings.Repeat(`{"type":"text","text":""},`, maxBlocks) + `{"type":"text","text":""}]`):        {"messages.0.content." + fmt.Sprint(maxBlocks-2), "not taken"},
		says(`[` + strings.Repeat(picture+`,`, MaxPictures) + picture + `]`):                                      {"messages", "holds 257 pictures and no more than 256 are taken"},
		`{"model":"m","max_tokens":1,"messages":[` + strings.Repeat(turns+`,`, MaxMessages/2) + turns + `]}`:      {"messages", "holds 8194 messages and no more than 8192 are taken"},
	} {
		head, chat, err := MessagesToChat([]byte(body))
		var f *fault.Fault
		if !errors.As(err, &f) || f.Code != fault.InvalidRequest || f.Param != want[0] || !strings.Contains(f.Message, want[1]) || chat != nil || head != (Head{}) {
			t.Errorf("%.150s: %v (param %q); want param %q and %q", body, err, f.Param, want[0], want[1])
		}
	}
}

// The translation of each member.
func TestMessagesToChatControls(t *testing.T) {
	const tool = `"tools":[{"name":"f","input_schema":{}}],`
	for members, want := range map[string]string{
		`"stream":true`: `"stream":true,"stream_options":{"include_usage":true}`,
		`"stream":null,"temperature":null,"tools":null,"tool_choice":null,"thinking":null,"output_config":null,"system":null`: `"max_tokens":1,"messages":`,
		`"tool_choice":{"type":"any"}`: `"max_tokens":1,"messages":`, // no choice without tools
		`"tools":[{"type":"bash_20250124","name":"bash"}],"tool_choice":{"type":"none"}`: `"max_tokens":1,"messages":`,
		tool[:len(tool)-2] + `,{"type":"web_search_20250305","name":"web_search"}]`:      `"max_tokens":1,"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"messages":`,
		tool + `"mcp_servers":[{"type":"url","url":"https://mcp.example","name":"x"}]`:   `"max_tokens":1,"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"messages":`,
		`"mcp_servers":[]`: `"max_tokens":1,"messages":`, `"mcp_servers":7`: `"max_tokens":1,"messages":`,
		tool + `"tool_choice":{"type":"auto"}`:                                                                `"tool_choice":"auto"`,
		tool + `"tool_choice":{"type":"any"}`:                                                                 `"tool_choice":"required"`,
		tool + `"tool_choice":{"type":"none"}`:                                                                `"tool_choice":"none"`,
		tool + `"tool_choice":{"type":"tool","name":"f"}`:                                                     `"tool_choice":{"type":"function","function":{"name":"f"}}`,
		tool + `"tool_choice":{"type":"auto","disable_parallel_tool_use":true}`:                               `"tool_choice":"auto","parallel_tool_calls":false`,
		`"thinking":{"type":"adaptive"}`:                                                                      `"content":"x"}]}`,
		`"thinking":{"type":"between_tools"}`:                                                                 `"content":"x"}]}`,
		`"thinking":{"type":"disabled"}`:                                                                      `,"thinking":{"type":"disabled"},"reasoning":{"exclude":true}}`,
		`"thinking":{"type":"enabled","budget_tokens":1024}`:                                                  `,"thinking":{"type":"enabled","budget_tokens":1024}}`,
		`"thinking":{"type":"adaptive","display":"omitted"}`:                                                  `,"reasoning":{"exclude":true}}`,
		`"thinking":{"type":"adaptive","display":"summarized"},"output_config":{"effort":"low"}`:              `"content":"x"}],"reasoning_effort":"low"}`,
		`"thinking":{"type":"disabled"},"output_config":{"effort":"high"}`:                                    `,"thinking":{"type":"disabled"},"reasoning":{"exclude":true}}`,
		`"output_format":{"type":"json_schema","schema":{"type":"object"}}`:                                   `"response_format":{"type":"json_schema","json_schema":{"name":"answer","strict":true,"schema":{"type":"object"}}}`,
		`"metadata":{"user_id":"u"},"grammar":"x","n_predict":5,"cache_prompt":true,"messages2":[{"role":1}]`: `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`,
	} {
		_, chat, err := MessagesToChat([]byte(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}],` + members + `}`))
		assert.That(t, err == nil && strings.Contains(string(chat), want), members, err, chat, "lacks", want)
		if _, err := ReadHead(chat); err != nil {
			t.Errorf("%s: %v", chat, err)
		}
	}
}

func TestCountMessages(t *testing.T) {
	count := func(body string) int64 {
		t.Helper()
		n := assert.Value(CountMessages([]byte(body)))(t)
		if head, err := ReadHead(n.Chat); n.Model != "m" || n.Chat != nil && (err != nil || head.Model != "m" || head.Stream) {
			t.Errorf("%+v %s: %v", n.Head, n.Chat, err)
		}
		return n.Estimate
	}
	short := count(`{"model":"m","messages":[{"role":"user","content":"Hello there"}]}`)
	long := count(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("Hello there ", 100) + `"}]}`)
	assert.That(t, short >= 4 && short <= 12 && long >= 200 && long <= 400, "short", short, "long", long)
	picture := count(`{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + strings.Repeat("A", 100_000) + `"}}]}]}`)
	assert.That(t, picture >= 500 && picture <= 2000, "picture", picture)
	for body, whole := range map[string]bool{
		`{"model":"m","stream":true,"messages":[{"role":"user","content":"Hello"}],"tools":[{"name":"f","input_schema":{}}]}`:                                                 true,
		`{"model":"m","messages":[{"role":"user","content":""}]}`:                                                                                                             false, // empty
		`{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{"type":"url","url":"data:,"}}]}]}]}`: false, // an image
	} {
		if n, err := CountMessages([]byte(body)); err != nil || (n.Chat != nil) != whole {
			t.Errorf("%s: %s, %v", body, n.Chat, err)
		}
		count(body)
	}
	if _, err := CountMessages([]byte(`{"model":"m"}`)); fault.Of(err).Code != fault.InvalidRequest {
		t.Error(err)
	}
}

func TestAppendMessageRefuses(t *testing.T) {
	for answer, says := range map[string]string{
		``:               "not a chat answer",
		`{}`:             "not a chat answer",
		`{"choices":[]}`: "not a chat answer",
		`{"choices":[{"message":{"content":[1]}}]}`: "not a chat answer",
		`{"choices":[{}],"choices":[{}]}`:           "not a chat answer",
		`{"choices":[{}]} {}`:                       "not a chat answer",
		`{"error":{"message":"boom"}}`:              "boom",
		`{"error":"boom","choices":[{}]}`:           "boom",
	} {
		if out, _, err := MessageAnswer(strings.NewReader(answer), "msg_1", "m"); fault.Of(err).Code != fault.EngineError || !strings.Contains(err.Error(), says) || len(out) > 0 {
			t.Errorf("%s: %s, %v", answer, out, err)
		}
	}
}

// FuzzMessagesToChat checks that the translation of every accepted body is as strict and
// has the same head.
func FuzzMessagesToChat(f *testing.F) {
	for _, text := range storied(f, "messages", "request.json") {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		head, chat, err := MessagesToChat(body)
		if err != nil {
			assert.Require(t, fault.Of(err).Code == fault.InvalidRequest, err)
			return
		}
		if _, err := CountMessages(body); err != nil {
			t.Fatalf("taken, but not counted: %v", err)
		}
		again, err := ReadHead(chat)
		if err != nil && !strings.Contains(err.Error(), "deeper") { // a tool's schema is one level deeper
			t.Fatalf("%v\n%s\n%s", err, body, chat)
		}
		if err == nil && (again.Model != head.Model || again.Stream != head.Stream) {
			t.Fatalf("%+v became %+v", head, again)
		}
	})
}

// FuzzEvents checks that any bytes result in ordered events, the same wherever they are
// split, and that the events end normally only after an end mark.
func FuzzEvents(f *testing.F) {
	for _, text := range storied(f, "messages", "stream.txt") {
		f.Add(text, byte(7))
	}
	f.Fuzz(func(t *testing.T, stream string, size byte) {
		whole, err := translate(stream, max(len(stream), 1))
		checkEvents(t, whole, strings.Contains(whole, "event: message_stop\n"))
		assert.Require(t, err != nil || strings.Contains(stream, "[DONE]"), "a good end without an end mark")
		pieces, pieceErr := translate(stream, int(size)+1)
		if strings.Contains(stream, "[DONE]") {
			return // bytes after the end are seen sooner or later
		}
		if pieces != whole || (err == nil) != (pieceErr == nil) {
			t.Fatalf("whole: %v\n%s\nin pieces: %v\n%s", err, whole, pieceErr, pieces)
		}
	})
}

// Compare with BenchmarkStreamChunk, a chunk that is not translated.
func BenchmarkEventsChunk(b *testing.B) {
	s := Stream{Events: NewMessageEvents("msg_1", "m")}
	frame := []byte(chunk)
	b.SetBytes(int64(len(frame)))
	b.ReportAllocs()
	for b.Loop() {
		if n, err := s.Take(frame); err != nil || n != len(frame) || len(s.Events.Next()) == 0 {
			b.Fatal(n, err)
		}
		s.frames, s.bytes = 0, 0
	}
}

func BenchmarkMessagesToChat(b *testing.B) {
	archive := assert.Value(txtar.ParseFile("testdata/messages/agent.txtar"))(b)
	body := bytes.Replace(archive.Files[0].Data, []byte("hello "), bytes.Repeat([]byte("hello "), 16<<10), 1)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := MessagesToChat(body); err != nil {
			b.Fatal(err)
		}
	}
}
