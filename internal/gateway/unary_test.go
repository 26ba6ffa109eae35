package gateway

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/spool"
)

// vectors returns an embeddings answer of that many vectors of a thousand numbers.
func vectors(count int) io.Reader {
	vector := `{"object":"embedding","embedding":[` + strings.Repeat("0.0123,", 999) + `1]}`
	parts := []io.Reader{strings.NewReader(`{"object":"list","data":[` + vector)}
	for range count - 1 {
		parts = append(parts, strings.NewReader(","), strings.NewReader(vector))
	}
	return io.MultiReader(append(parts, strings.NewReader(`],"usage":{"prompt_tokens":3,"total_tokens":3}}`))...)
}

// A unary answer is held once, in the spool: checking it and passing it on need no second
// copy.
func TestUnaryAnswerIsHeldOnce(t *testing.T) {
	const count = 2000 // 14 MB
	held := assert.Value(spool.Open(t.TempDir(), spool.Limits{Memory: 4 << 20}))(t)
	var got Outcome
	c := hostedConfig(&backend{do: func(context.Context, *Call) (*Answer, error) {
		a := answer(io.NopCloser(vectors(count)))
		a.Endpoint = fleet.EmbeddingsEndpoint
		return a, nil
	}})
	c.Spool, c.Finished = held, func(_ *Call, o Outcome) { got = o }
	h := New(c)
	w := &counting{bounded: bounded{header: http.Header{}}, spool: held}
	// A garbage collection would empty the pools of buffers, and the number of
	// allocations would depend on it.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	h.ServeHTTP(w, ask("POST", "/v1/embeddings", `{"model":"m","input":"x"}`))
	runtime.ReadMemStats(&after)
	if length, _ := strconv.Atoi(w.header.Get("Content-Length")); w.status != 200 || w.written != length || length < 14e6 || got.TokensIn != 3 {
		t.Fatalf("%d, %d of %d bytes, %+v", w.status, w.written, length, got)
	}
	assert.Equal(t, w.most.Disk, int64(w.written), "bytes are in files while an answer of", w.written, "is passed on")
	if taken := after.TotalAlloc - before.TotalAlloc; taken > 4<<20 {
		t.Errorf("an answer of %d bytes took %d bytes of memory", w.written, taken)
	}
	if use := held.Use(); use.Memory != 0 || use.Disk != 0 {
		t.Errorf("%+v are still held", use)
	}
}

// counting is a ResponseWriter that counts the bytes written and records the most that the spool
// holds during that time.
type counting struct {
	bounded
	spool   *spool.Spool
	written int
	most    spool.Use
}

func (w *counting) Write(p []byte) (int, error) {
	w.written += len(p)
	if use := w.spool.Use(); use.Disk > w.most.Disk {
		w.most = use
	}
	return len(p), nil
}

// A unary answer may have 8 MiB, one of embeddings 64 MiB, and no byte more.
func TestUnaryAnswerLimit(t *testing.T) {
	for path, c := range map[string]struct {
		request, answer string
		limit           int
	}{
		"/v1/chat/completions": {`{"model":"m","messages":[]}`, `{"choices":[{"message":{"content":""}}]}`, 8 << 20},
		"/v1/embeddings":       {`{"model":"m","input":"x"}`, `{"data":[]}`, 64 << 20},
	} {
		for more, status := range map[int]int{0: 200, 1: 502} {
			config := hostedConfig(&backend{do: func(context.Context, *Call) (*Answer, error) {
				return answer(io.NopCloser(padded(c.answer, c.limit+more))), nil
			}})
			config.Spool = files(t)
			w := &bounded{header: http.Header{}}
			New(config).ServeHTTP(w, ask("POST", path, c.request))
			assert.Equal(t, w.status, status, path, more, "bytes more than the limit")
		}
	}
}

// An answer whose engine read much less of the conversation than was sent reports it: in
// a header, or in a comment before its end.
func TestTruncatedPrompt(t *testing.T) {
	const words = `prompt_tokens=515; the engine read only a part of the conversation`
	usage := `"usage":{"prompt_tokens":515,"completion_tokens":1,"total_tokens":516}`
	unary := `{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}],` + usage + `}`
	stream := `data: {"choices":[{"index":0,"delta":{"content":"x"}}]}` + "\n\n" + `data: {"choices":[],` + usage + `}` + "\n\ndata: [DONE]\n\n"
	long, short := strings.Repeat("hello world ", 1000), strings.Repeat("hello world ", 300)
	picture := `[{"type":"text","text":"` + long + `"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]`
	for name, c := range map[string]struct {
		path, body string
		cut        bool
	}{
		"chat":         {"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"` + long + `"}]`, true},
		"messages":     {"/v1/messages", `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"` + long + `"}]`, true},
		"responses":    {"/v1/responses", `{"model":"m","store":false,"input":"` + long + `"`, true},
		"short":        {"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"` + short + `"}]`, false},
		"many tools":   {"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f","description":"` + long + `"}}]`, false},
		"with picture": {"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":` + picture + `}]`, false},
	} {
		header := []string{"Anthropic-Version", "2023-06-01"}
		config := hostedConfig(answers(unary))
		var out Outcome
		config.Finished = func(_ *Call, o Outcome) { out = o }
		w, _ := do(New(config), ask("POST", c.path, c.body+"}", header...))
		if got := w.Header().Get("X-Kith-Truncated"); w.Code != 200 || (got == words) != c.cut || !c.cut && got != "" {
			t.Errorf("%s: %d %q", name, w.Code, got)
		}
		assert.Equal(t, out.Truncated, c.cut, name, "recorded as truncated")
		w, _ = do(New(hostedConfig(answers(stream))), ask("POST", c.path, c.body+`,"stream":true}`, header...))
		if text := w.Body.String(); w.Code != 200 || strings.Contains(text, ": "+words+"\n\n") != c.cut {
			t.Errorf("%s, streamed: %d %s", name, w.Code, text)
		}
	}
}
