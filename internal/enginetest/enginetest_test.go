package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
)

const streamed = `{"model":"test-model","stream":true,"messages":[{"role":"user","content":"one two three"}]}`

func post(t *testing.T, ctx context.Context, rt http.RoundTripper, url, body string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", strings.NewReader(body))
	assert.OK(t, err)
	return rt.RoundTrip(req)
}

// The double behaves alike over a socket and without one.
func TestBothWays(t *testing.T) {
	for name, through := range map[string]func(*Engine) (http.RoundTripper, string){
		"in memory": func(e *Engine) (http.RoundTripper, string) { return e.Transport(), "http://anywhere" },
		"socket": func(e *Engine) (http.RoundTripper, string) {
			assert.OK(t, e.Start())
			return &http.Transport{DisableKeepAlives: true}, e.URL()
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			e := New(LlamaCpp, Options{Limit: 1})
			defer e.Close()
			rt, url := through(e)
			all := func(body string) (string, error) {
				resp, err := post(t, ctx, rt, url, body)
				if err != nil {
					return "", err
				}
				defer resp.Body.Close()
				got, err := io.ReadAll(resp.Body)
				return string(got), err
			}
			if got, err := all(streamed); err != nil || strings.Count(got, "data: ") != 6 || !strings.HasSuffix(got, "data: [DONE]\n\n") {
				t.Errorf("%v\n%s", err, got)
			}
			e.Set(Behaviour{Fault: Die})
			if _, err := all(streamed); err == nil {
				t.Error("it did not die before the first byte")
			}
			e.Set(Behaviour{Fault: Die, After: 2})
			if got, err := all(streamed); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(got, "two ") || strings.Contains(got, "three") {
				t.Errorf("died in the middle: %v\n%s", err, got)
			}
			e.Set(Behaviour{Fault: Hang, After: 1})
			resp := assert.Value(post(t, ctx, rt, url, streamed))(t)
			assert.OK(t, e.Wait(ctx, func(c Counts) bool { return c.Running == 1 }))
			if busy, err := post(t, ctx, rt, url, streamed); err != nil || busy.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("over the limit: %v", err)
			}
			resp.Body.Close()
			assert.OK(t, e.Wait(ctx, func(c Counts) bool { return c.Cancelled == 1 }))
			got := e.Counts()
			got.Chunks = 0
			if want := (Counts{Runs: 4, Completed: 1, Cancelled: 1, Failed: 2, Refused: 1}); got != want {
				t.Errorf("counts %+v, want %+v", got, want)
			}
			if last := e.Last(); string(last.Body) != streamed || last.Input != "one two three" || !last.Stream {
				t.Errorf("last call %+v", last)
			}
		})
	}
}

// The pace is virtual in a bubble, and each call may have its own behaviour.
func TestScriptAndPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(Ollama, Options{})
		e.Script(func(c Call) Behaviour {
			if c.Stream {
				return Behaviour{Chunks: 50, First: time.Minute, Interval: 10 * time.Millisecond}
			}
			return Behaviour{Status: http.StatusTooManyRequests}
		})
		begun := time.Now()
		resp, err := post(t, t.Context(), e.Transport(), "http://anywhere", streamed)
		assert.OK(t, err)
		assert.Value(io.Copy(io.Discard, resp.Body))(t)
		assert.Equal(t, time.Since(begun), time.Minute+490*time.Millisecond, "it took")
		resp, err = post(t, t.Context(), e.Transport(), "http://anywhere", strings.Replace(streamed, "true", "false", 1))
		assert.That(t, err == nil && resp.StatusCode == http.StatusTooManyRequests, err)
		resp.Body.Close()
	})
}

// An answer that calls a tool has its text, or none.
func TestTool(t *testing.T) {
	e := New(LlamaCpp, Options{Timing: &Timing{Prefill: 1e9, Decode: 1e9, KeptPrompts: -1}})
	for text, content := range map[string]string{"": "null", "one two": `"one two"`} {
		e.Set(Behaviour{Text: text, Tool: &ToolCall{"call_1", "Read", `{"a":"b"}`}})
		for _, stream := range []string{"true", "false"} {
			resp, err := post(t, t.Context(), e.Transport(), "http://anywhere", strings.Replace(streamed, "true", stream, 1))
			assert.OK(t, err)
			got, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			want := []string{`"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"Read","arguments":"{\"a\":\"b\"}"}}]`, `"finish_reason":"tool_calls"`}
			if stream == "false" {
				want = append(want, `"content":`+content, `"cached_tokens":0`) // it keeps no prompts
			}
			for _, part := range want {
				if err != nil || !strings.Contains(string(got), part) {
					t.Errorf("%q, stream %s: no %s: %v\n%s", text, stream, part, err, got)
				}
			}
			assert.Lacks(t, string(got), "three", "it echoes", got)
		}
	}
}

// A double with a Timing takes the time of what it has to compute, and reports the rest
// as cached.
func TestTiming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(LlamaCpp, Options{Slots: 2, Timing: &Timing{Start: time.Second, Prefill: 100, Decode: 10}})
		e.Set(Behaviour{Text: "one two three"})
		prompt := func(n int, rest string) string {
			return `{"model":"test-model",` + rest + `"messages":[` + strings.TrimSuffix(strings.Repeat(`{"role":"user","content":"`+strings.Repeat("x", 373)+`"},`, n), ",") + `]}`
		}
		for i, step := range []struct {
			body   string
			cached int
		}{
			{prompt(1, ""), 0},
			{prompt(2, ""), 100}, // 400 bytes a message
			{prompt(1, `"cache_prompt":false,`), 0},
			{prompt(2, `"cache_salt":"a",`), 0}, // in the second slot
			{prompt(3, `"cache_salt":"a",`), 200},
			{prompt(3, ""), 200},
			{prompt(1, `"cache_salt":"b",`), 0}, // in place of salt a
			{prompt(1, `"cache_salt":"a",`), 0},
		} {
			began, before := time.Now(), e.Counts()
			resp, err := post(t, t.Context(), e.Transport(), "http://anywhere", step.body)
			assert.OK(t, err)
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			assert.OK(t, err)
			after := e.Counts()
			tokens := after.Prompt - before.Prompt
			if want := fmt.Sprintf(`"cached_tokens":%d}`, step.cached); !strings.Contains(string(text), want) || after.Computed-before.Computed != tokens-step.cached {
				t.Errorf("call %d: want %s: %s %+v", i, want, text, after)
			}
			want := time.Second + time.Duration(tokens-step.cached)*10*time.Millisecond + 200*time.Millisecond
			assert.Equal(t, time.Since(began), want, "call", i, "took")
		}
	})
}
