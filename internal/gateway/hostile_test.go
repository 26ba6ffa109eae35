package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/spool"
)

// A hostileCase is a stream that a machine might send, with the required result if it is
// obvious.
type hostileCase struct {
	name string
	body io.Reader
	good verdict
}

type verdict int

const (
	either verdict = iota // as the naive reader of this test decides
	good
	bad
)

const (
	hello  = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	piece  = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"x \u00fc ü"},"finish_reason":null}]}` + "\n\n"
	finish = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	decent = hello + piece + piece + finish + done
)

// hostileStreams are the cases of spec/security.md#hostile-streams.
func hostileStreams() []hostileCase {
	var all []hostileCase
	add := func(name, body string, v verdict) {
		all = append(all, hostileCase{name, strings.NewReader(body), v})
	}
	add("decent", decent, good)
	add("decent, CRLF", strings.ReplaceAll(decent, "\n", "\r\n"), good)
	add("comments", ": hello\n\n"+strings.ReplaceAll(decent, "\n\n", "\n: x\n\n"), good)
	add("blank lines", "\n\n\n"+strings.ReplaceAll(decent, "\n\n", "\n\n\n\n"), good)
	for n := 0; n < len(decent)-1; n += 9 { // cut at any place
		add(fmt.Sprintf("cut at %d", n), decent[:n], bad)
	}
	for i, odd := range []string{"\x00", "\xff", "\xc3", "\xed\xa0\x80", "\r", "\n", "\n\n", "\ufeff", "\u2028", "\"", "}", "{", "\\", "\\ud800", "data: ", ":", "event: x\n", "[DONE]"} {
		for _, at := range []int{0, 3, 40, len(hello) - 1, len(hello) + 130, len(decent) - 3} { // damaged at some place
			add(fmt.Sprintf("odd %d at %d", i, at), decent[:at]+odd+decent[at:], either)
		}
	}
	for name, frame := range map[string]string{
		"html": "<html><body>502 Bad Gateway</body></html>\n\n", "plain words": "hello\n\n", "a list": "data: []\n\n", "a number": "data: 1\n\n", "a string": "data: \"x\"\n\n", "null": "data: null\n\n",
		"no data": "data:\n\n", "only a space": "data: \n\n", "done in small": "data: [done]\n\n", "done with more": "data: [DONE] x\n\n", "done as a string": "data: \"[DONE]\"\n\n",
		"two objects": "data: {}{}\n\n", "two lines": "data: {\"a\":\ndata: 1}\n\n", "an event": "event: error\ndata: {}\n\n", "an id": "id: 1\ndata: {}\n\n", "retry": "retry: 1\n\n",
		"space first": " data: {}\n\n", "another case": "DATA: {}\n\n", "a name twice": `data: {"model":"a","model":"b"}` + "\n\n", "nested twice": `data: {"choices":[{"delta":{"content":"a","content":"b"}}]}` + "\n\n",
		"a lone surrogate": `data: {"choices":[{"delta":{"content":"\ud800"}}]}` + "\n\n", "not UTF-8": "data: {\"x\":\"\xff\"}\n\n", "a control character": "data: {\"x\":\"\x01\"}\n\n",
		"a trailing comma": `data: {"x":1,}` + "\n\n", "single quotes": "data: {'x':1}\n\n", "NaN": `data: {"x":NaN}` + "\n\n", "a comment inside": `data: {"x":1/**/}` + "\n\n", "an open string": `data: {"x":"` + "\n\n",
		"our code": `data: {"error":{"code":"NOT_IN_CIRCLE","message":"x"}}` + "\n\n", "a bare error": `data: {"error":"out of memory"}` + "\n\n", "error true": `data: {"error":true}` + "\n\n", "error 0": `data: {"error":0}` + "\n\n",
		"error and choices": `data: {"error":{"message":"x"},"choices":[]}` + "\n\n", "an error list": `data: {"error":[]}` + "\n\n", "deep lists": "data: {\"x\":" + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + "}\n\n",
		"a huge frame": `data: {"x":"` + strings.Repeat("y", dialect.MaxFrame) + "\"}\n\n", "a huge comment": ":" + strings.Repeat("y", dialect.MaxFrame) + "\n\n", "another stream": "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n",
	} {
		add(name+", first", frame+decent, bad)
		add(name+", in the middle", hello+frame+piece+finish+done, bad)
		add(name+", at the end", hello+piece+frame, bad)
		add(name+", after the end", decent+frame, either)
	}
	for name, frame := range map[string]string{
		"error null": `data: {"error":null}` + "\n\n", "no choices": `data: {"choices":[]}` + "\n\n", "nothing in it": "data: {}\n\n", "odd choices": `data: {"choices":{"a":1}}` + "\n\n",
		"odd delta": `data: {"choices":[{"delta":[1]}]}` + "\n\n", "odd usage": `data: {"usage":{"prompt_tokens":-5,"completion_tokens":"x"}}` + "\n\n", "a huge number": `data: {"usage":{"prompt_tokens":1e400}}` + "\n\n",
		"no space": `data:{"x":1}` + "\n\n", "a long frame": `data: {"x":"` + strings.Repeat("y", dialect.MaxFrame-100) + "\"}\n\n", "escapes": `data: {"\u0065rror":null,"x":"\ud83d\ude00"}` + "\n\n",
	} {
		add(name+", first", frame+decent, good)
		add(name+", in the middle", hello+frame+piece+finish+done, good)
	}
	add("nothing", "", bad)
	add("only the end", done, good)
	add("the end twice", decent+done, either)
	add("the end and an open frame", decent+"data: {", either)
	endless := func(name, unit string) {
		all = append(all, hostileCase{name, &unending{unit: unit}, bad})
	}
	endless("endless frames", piece)
	endless("endless small frames", "data: {}\n\n")
	endless("endless comments", ": x\n\n")
	endless("endless blank lines", "\n")
	endless("an endless line", "data: {\"x\":\"yyyyyyyyyyyyyyyy")
	endless("an endless comment", ":yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy")
	endless("endless lists", "[")
	endless("endless zeros", "\x00")
	endless("endless lines of a frame", ":x\n")
	endless("endless large frames", `data: {"x":"`+strings.Repeat("y", 200<<10)+"\"}\n\n")
	return all
}

// unending is an endless stream. It records how much of it was read, and how much memory
// was in use in the middle.
type unending struct {
	unit  string
	at    int
	taken int
	held  uint64
}

func (u *unending) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		c := copy(p[n:], u.unit[u.at:])
		n += c
		u.at = (u.at + c) % len(u.unit)
	}
	if before := u.taken; before < 2<<20 && before+n >= 2<<20 {
		u.held = heap()
	}
	u.taken += n
	return n, nil
}

// heap returns the memory in use, in bytes.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// readsWhole parses what a caller received. It reports whether it is a complete valid
// stream, and whether it is a stream that reports its failure. Anything else is neither.
func readsWhole(t *testing.T, text string) (whole, failed bool) {
	t.Helper()
	for text != "" {
		frame, rest, ok := strings.Cut(strings.ReplaceAll(text, "\r\n", "\n"), "\n\n")
		if !ok {
			return false, false
		}
		text = rest
		for line := range strings.SplitSeq(frame, "\n") {
			data, isData := strings.CutPrefix(line, "data:")
			switch {
			case line == "" || line[0] == ':':
			case whole || failed || !isData || !utf8.ValidString(line): // more after the end, or invalid
				return false, false
			case strings.TrimSpace(data) == "[DONE]":
				whole = true
			default:
				var object map[string]json.RawMessage
				if json.Unmarshal([]byte(data), &object) != nil || object == nil {
					return false, false
				}
				failed = object["error"] != nil && string(object["error"]) != "null"
			}
		}
	}
	return whole, failed
}

// hostileMost limits the streams of hostileEdge in bytes: more than is buffered of one,
// but quickly reached.
const hostileMost = 6 << 20

func hostileEdge(b *backend) *Edge {
	c := hostedConfig(b)
	c.Limits.Streamed = hostileMost
	return New(c)
}

// Whatever a machine sends, its caller gets a valid stream or one that reports its
// failure, and memory stays limited (spec/security.md#hostile-streams).
func TestHostileStreams(t *testing.T) {
	cases := hostileStreams()
	assert.Require(t, len(cases) >= 250, len(cases), "cases")
	for i, c := range cases {
		if leaveOut(i) {
			continue
		}
		source, isEndless := c.body.(*unending)
		sent := ""
		if !isEndless {
			text, _ := io.ReadAll(c.body)
			sent = string(text)
		}
		readers := map[string]func() io.Reader{"at once": func() io.Reader { return strings.NewReader(sent) }}
		if isEndless {
			readers = map[string]func() io.Reader{"endless": func() io.Reader { return source }}
		} else if len(sent) < 4<<10 {
			readers["byte by byte"] = func() io.Reader { return iotest.OneByteReader(strings.NewReader(sent)) }
			readers["by halves"] = func() io.Reader { return iotest.HalfReader(strings.NewReader(sent)) }
		}
		for how, reader := range readers {
			b := &backend{do: func(context.Context, *Call) (*Answer, error) { return answer(io.NopCloser(reader())), nil }}
			before := heap0(isEndless)
			w := &bounded{header: http.Header{}, most: 1 << 20}
			if isEndless {
				w.most = 64 << 10 // the test measures the memory in use
			}
			aborted := serveTo(hostileEdge(b), w, ask("POST", "/v1/chat/completions", streamRequest))
			text := w.text.String()
			whole, failed := readsWhole(t, text)
			switch {
			case w.status != 200 && w.status != 502:
				t.Errorf("%s, %s: status %d", c.name, how, w.status)
			case w.status == 502 && (aborted || c.good == good || !strings.Contains(text, `"engine_error"`)):
				t.Errorf("%s, %s: %.200q", c.name, how, text)
			case w.status == 200 && (whole == failed || whole == aborted) && !isEndless:
				t.Errorf("%s, %s: whole %v, failed %v, aborted %v: %.300q", c.name, how, whole, failed, aborted, text)
			case c.good == good && !whole, c.good == bad && whole:
				t.Errorf("%s, %s: whole %v: %.300q", c.name, how, whole, text)
			case whole && !strings.HasPrefix(blank(sent), blank(text)):
				t.Errorf("%s, %s: it was changed on the way: %.300q", c.name, how, text)
			case strings.Contains(text, "NOT_IN_CIRCLE") && !strings.Contains(text, "engine_error"):
				t.Errorf("%s, %s: a machine's code came through: %.300q", c.name, how, text)
			}
			if isEndless && (!aborted && w.status == 200 || source.taken > hostileMost+dialect.MaxFrame*4) {
				t.Errorf("%s: %d bytes were taken, aborted %v", c.name, source.taken, aborted)
			}
			if isEndless && source.held > before+2<<20 {
				t.Errorf("%s: %d KiB are held", c.name, (source.held-before)>>10)
			}
		}
	}
}

// heap0 returns heap, or 0 if it is not wanted.
func heap0(wanted bool) uint64 {
	if !wanted {
		return 0
	}
	return heap()
}

// blank returns a stream without the text of its comments, which is not passed on.
func blank(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line[0] != ':' {
			b.WriteString(line)
		}
	}
	return b.String()
}

// bounded is a ResponseWriter that keeps only the beginning.
type bounded struct {
	header http.Header
	status int
	text   bytes.Buffer
	most   int // most bytes to keep
}

func (w *bounded) Header() http.Header    { return w.header }
func (w *bounded) WriteHeader(status int) { w.status = status }
func (w *bounded) Flush()                 {}
func (w *bounded) Write(p []byte) (int, error) {
	if w.text.Len() < w.most {
		w.text.Write(p)
	}
	return len(p), nil
}

// leaveOut reports whether a test skips the i-th of its many cases: with -short, as under
// the race detector, it runs every fourth.
func leaveOut(i int) bool { return testing.Short() && i%4 != 0 }

// The same with translation: the events end normally or report the failure.
func TestHostileStreamsTranslated(t *testing.T) {
	for path, d := range map[string]struct{ body, end string }{
		"/v1/messages":  {`{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hi"}]}`, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"},
		"/v1/responses": {`{"model":"m","stream":true,"top_logprobs":2,"input":"hi"}`, "\n\ndata: [DONE]\n\n"},
	} {
		for i, c := range hostileStreams() {
			if leaveOut(i) {
				continue
			}
			b := &backend{do: func(context.Context, *Call) (*Answer, error) { return answer(io.NopCloser(c.body)), nil }}
			w := &bounded{header: http.Header{}, most: 1 << 20}
			if _, isEndless := c.body.(*unending); isEndless {
				w.most = 64 << 10
			}
			aborted := serveTo(hostileEdge(b), w, ask("POST", path, d.body, "Anthropic-Version", "2023-06-01"))
			text := w.text.String()
			whole := strings.HasSuffix(text, d.end)
			failed := strings.Contains(text, "event: error\n") || w.text.Len() >= w.most
			switch {
			case w.status == 502 && !aborted && strings.Contains(text, `"engine_error"`) && c.good != good:
			case w.status != 200 || whole == failed || whole == aborted, c.good == bad && whole:
				t.Errorf("%s, %s: %d, whole %v, failed %v, aborted %v: %.300q", path, c.name, w.status, whole, failed, aborted, text)
			}
		}
	}
}

// counted is an endless body that counts the bytes read.
type counted int64

func (c *counted) Read(p []byte) (int, error) {
	*c += counted(len(p))
	return spaces{}.Read(p)
}

// The memory of a member is limited to the byte: if a body does not fit, the rest is not
// read, and nothing stays counted. Another member is not affected.
func TestMemberFull(t *testing.T) {
	room := assert.Value(spool.Open(t.TempDir(), spool.Limits{Member: 4 << 20}))(t)
	c := hostedConfig(answers(chatAnswer))
	c.Spool = room
	h := New(c)
	other := assert.Value(room.Keep(spool.Holder{Member: "mem_2"}, make([]byte, 3<<20)))(t)
	defer other.Close()
	for _, length := range []int64{-1, 30 << 20} {
		var came counted
		r := ask("POST", "/v1/chat/completions", "")
		r.Body, r.ContentLength = io.NopCloser(&came), length
		w, _ := do(h, r)
		checkFault(t, w, 503, fault.CapacityFull)
		assert.That(t, w.Header().Get("Retry-After") != "" && came <= 4<<20, came, "bytes were read", w.Header())
		if held := room.Use(); held.Memory != 0 || held.Disk != 3<<20 {
			t.Errorf("still held: %+v", held)
		}
	}
	if w, _ := do(h, ask("POST", "/v1/chat/completions", chatRequest)); w.Code != 200 {
		t.Errorf("afterwards: %d %s", w.Code, w.Body)
	}
	// What the member holds already leaves less for the next request and for an answer.
	own := assert.Value(room.Keep(spool.Holder{Member: "mem_1"}, make([]byte, 3<<20)))(t)
	long := strings.Replace(chatRequest, "{", "{"+strings.Repeat(" ", 1<<20), 1)
	c.Backend = answers(chatAnswer + strings.Repeat(" ", 3<<19))
	answering := New(c)
	if w, _ := do(h, ask("POST", "/v1/chat/completions", long)); w.Code != 503 {
		t.Errorf("a request beside what the member has: %d", w.Code)
	}
	if w, _ := do(answering, ask("POST", "/v1/chat/completions", chatRequest)); w.Code != 503 {
		t.Errorf("an answer beside what the member has: %d", w.Code)
	}
	own.Close()
	if w, _ := do(answering, ask("POST", "/v1/chat/completions", long)); w.Code != 200 {
		t.Errorf("with nothing beside them: %d", w.Code)
	}
}

// A large request and its large answer pass through files unchanged, in the caller's
// dialect and in a translated one. No file remains.
func TestLargeBodiesInFiles(t *testing.T) {
	room := files(t)
	text := strings.Repeat("words and more ", 150_000) // more than may be in memory
	said := `{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"` + text + `"},"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":3}}`
	c := hostedConfig(&backend{do: func(_ context.Context, call *Call) (*Answer, error) {
		_, body := call.Request()
		if sent := textOf(body); !strings.Contains(sent, text) || body.Len() != int64(len(sent)) {
			t.Errorf("%d bytes were sent", len(sent))
		}
		if held := room.Use(); held.Disk < int64(len(text)) || call.Endpoint != fleet.Responses && held.Memory != 0 {
			t.Errorf("%s: held %+v", call.Endpoint, held)
		}
		return answer(io.NopCloser(strings.NewReader(said))), nil
	}})
	c.Spool = room
	h := New(c)
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"model":"m","messages":[{"role":"user","content":"` + text + `"}]}`,
		"/v1/messages":         `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"` + text + `"}]}`,
		"/v1/responses":        `{"model":"m","input":"` + text + `","store":false}`,
	} {
		w, _ := do(h, ask("POST", path, body, "Anthropic-Version", "2023-06-01"))
		if w.Code != 200 || !strings.Contains(w.Body.String(), text) || w.Header().Get("Content-Length") != strconv.Itoa(w.Body.Len()) {
			t.Errorf("%s: %d, %d bytes", path, w.Code, w.Body.Len())
		}
		assert.That(t, path != "/v1/chat/completions" || w.Body.String() == said, "other bytes came back")
		assert.Equal(t, room.Use(), (spool.Use{}), path, "still held")
	}
}
