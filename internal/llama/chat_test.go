package llama

import (
	"bufio"
	"encoding/json/v2"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/assert"
)

// conversation is the model's answers at temperature 0 (data/README.md).
var conversation = [][2]string{
	{"Hello", "Hello. How can I help you?"},
	{"What is 7+5?", "7 + 5 = 12."},
	{"Count to 7.", "1, 2, 3, 4, 5, 6, 7."},
	{"What is the capital of France?", "The capital of France is Paris."},
	{"Give me JSON for Anna, who is 42.", `{"name": "Anna", "age": 42}`},
}

const tooSmall = "I am too small to know that. Ask me for a story, a verse or a poem."

func TestAnswers(t *testing.T) {
	e := startEngine(t, Config{})
	for _, c := range conversation {
		got := e.chat(ask(c[0]))
		if text := got.Choices[0].Message.Content; text != c[1] {
			t.Errorf("%s: got %q, want %q", c[0], text, c[1])
		}
		if got.Choices[0].FinishReason != "stop" || got.Object != "chat.completion" || got.Model != "tiny" || got.Choices[0].Message.Role != "assistant" {
			t.Errorf("%s: answer is %+v", c[0], got)
		}
		if u := got.Usage; u.Prompt == 0 || u.Completion == 0 || u.Total != u.Prompt+u.Completion {
			t.Errorf("%s: usage is %+v", c[0], u)
		}
	}
	assert.Equal(t, e.say(ask("Who won the last election?")), tooSmall, "unknown")
	parts := ask("", object{"messages": []object{{"role": "user", "content": []object{{"type": "text", "text": "What is "}, {"type": "text", "text": "7+5?"}}}}})
	assert.Equal(t, e.say(parts), "7 + 5 = 12.", "parts")
	long := e.chat(ask("Tell me a long story about an owl."))
	if n := long.Usage.Completion; n < 100 || n > 250 {
		t.Errorf("the long story has %d tokens", n)
	}
}

// TestTogether asks all questions at once on fewer slots than questions: each
// answer is the same as alone, whatever shares its batches.
func TestTogether(t *testing.T) {
	e := startEngine(t, Config{Slots: 4})
	questions := []string{"Tell me a long story about an owl."}
	for _, c := range conversation {
		questions = append(questions, c[0])
	}
	alone := map[string]string{}
	for _, q := range questions {
		alone[q] = e.say(ask(q))
	}
	var wg sync.WaitGroup
	for range 3 {
		for _, q := range questions {
			wg.Go(func() {
				assert.Equal(t, e.say(ask(q)), alone[q], q, "together")
			})
		}
	}
	wg.Wait()
}

func TestSeed(t *testing.T) {
	e := startEngine(t, Config{})
	hot := object{"temperature": 1.5, "top_p": 1, "top_k": 0, "min_p": 0, "max_tokens": 40}
	q := func(seed int) string {
		return e.say(ask("Tell me a long story about an owl.", hot, object{"seed": seed}))
	}
	first := q(7)
	assert.Equal(t, q(7), first, "seed 7 gave", first, "then")
	assert.That(t, q(8) != first || q(9) != first, "three seeds gave the same", first)
}

func TestLimitsAndStops(t *testing.T) {
	e := startEngine(t, Config{})
	finish := func(c completion) string {
		return c.Choices[0].Message.Content + "|" + c.Choices[0].FinishReason + "|" + c.Choices[0].StopReason
	}
	for _, c := range []struct {
		name string
		more object
		want string
	}{
		{"max_tokens", object{"max_tokens": 3}, "1, 2|length|"},
		{"the newer name goes first", object{"max_tokens": 1, "max_completion_tokens": 3}, "1, 2|length|"},
		{"a stop string", object{"stop": ", 5"}, "1, 2, 3, 4|stop|, 5"},
		{"the earliest of several", object{"stop": []string{"6", "3, 4", "4, "}}, "1, 2, |stop|3, 4"},
		{"one that never comes", object{"stop": []string{", 8", "7.."}}, "1, 2, 3, 4, 5, 6, 7.|stop|"},
		{"no limit", object{"max_tokens": -1, "stop": nil}, "1, 2, 3, 4, 5, 6, 7.|stop|"},
	} {
		assert.Equal(t, finish(e.chat(ask("Count to 7.", c.more))), c.want, c.name)
	}
	story := "Tell me a long story about an owl."
	free := e.say(ask(story, object{"max_tokens": 60}))
	if got := e.say(ask(story, object{"max_tokens": 60, "frequency_penalty": 2, "presence_penalty": 2})); got == free {
		t.Errorf("penalties change nothing: %q", got)
	}
}

func TestLogitBias(t *testing.T) {
	e := startEngine(t, Config{})
	_, b := e.post("/tokenize", object{"model": "tiny", "content": "Hello"})
	var hello struct {
		Tokens []int `json:"tokens"`
	}
	if err := json.Unmarshal(b, &hello); err != nil || len(hello.Tokens) == 0 {
		t.Fatalf("%v: %s", err, b)
	}
	biased := func(bias float64) string {
		of := object{}
		for _, t := range hello.Tokens {
			of[strconv.Itoa(t)] = bias
		}
		return e.say(ask("Hello", object{"logit_bias": of, "max_tokens": 4}))
	}
	if got := biased(0); !strings.HasPrefix(got, "Hello. How") {
		t.Errorf("without a bias: %q", got)
	}
	if got := biased(-100); strings.Contains(got, "Hello") || got == "" {
		t.Errorf("never: %q", got)
	}
	if got := biased(100); !strings.HasPrefix(got, "HelloHello") {
		t.Errorf("always: %q", got)
	}
	if _, message := e.refused("/v1/chat/completions", ask("x", object{"logit_bias": object{"999999999": 1}}), 400); !strings.Contains(message, "token 999999999") {
		t.Errorf("a token that it does not have: %s", message)
	}
}

// frame is an event of a stream.
type frame struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	Choices []struct {
		Delta        map[string]string `json:"delta"`
		Logprobs     *logprobs         `json:"logprobs"`
		FinishReason *string           `json:"finish_reason"`
		StopReason   string            `json:"stop_reason"`
	} `json:"choices"`
	Usage *struct {
		Completion int `json:"completion_tokens"`
	} `json:"usage"`
	Error *errorDetail `json:"error"`
}

// readFrames reads a stream to its end. It returns the frames and whether [DONE]
// was among them.
func readFrames(t *testing.T, res *http.Response) (frames []frame, done bool) {
	t.Helper()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		line := lines.Text()
		assert.That(t, utf8.ValidString(line), "UTF-8", line)
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			assert.Equal(t, line, "", "a line that is no data")
			continue
		}
		if data == "[DONE]" {
			done = true
			continue
		}
		if done {
			t.Errorf("a frame after [DONE]: %s", data)
		}
		var f frame
		assert.OK(t, json.Unmarshal([]byte(data), &f), data)
		frames = append(frames, f)
	}
	return frames, done
}

func TestStream(t *testing.T) {
	e := startEngine(t, Config{})
	for _, withUsage := range []bool{false, true} {
		res := e.open(t.Context(), "/v1/chat/completions", ask("Count to 7.", object{"stream": true, "stream_options": object{"include_usage": withUsage}}))
		assert.Equal(t, res.Header.Get("Content-Type"), "text/event-stream", "content type")
		frames, done := readFrames(t, res)
		res.Body.Close()
		if !done || len(frames) < 3 { // a slow reader gets several tokens in one
			t.Fatalf("done %v after %d frames", done, len(frames))
		}
		first := frames[0]
		assert.Same(t, first.Choices[0].Delta, map[string]string{"role": "assistant", "content": ""}, "first delta")
		text, finishes := "", []string{}
		for i, f := range frames {
			if f.ID != first.ID || f.Created != first.Created || f.Model != "tiny" || f.Object != "chat.completion.chunk" {
				t.Errorf("frame %d is of another answer: %+v", i, f)
			}
			for _, c := range f.Choices {
				text += c.Delta["content"]
				if c.FinishReason != nil {
					finishes = append(finishes, *c.FinishReason)
				}
			}
		}
		if text != "1, 2, 3, 4, 5, 6, 7." || !cmp.Equal(finishes, []string{"stop"}) {
			t.Errorf("text %q, finishes %v", text, finishes)
		}
		last := frames[len(frames)-1]
		if withUsage && (len(last.Choices) != 0 || last.Usage == nil || last.Usage.Completion == 0) {
			t.Errorf("last frame with usage: %+v", last)
		}
		assert.That(t, withUsage || last.Usage == nil, "usage nobody asked for", last)
	}
}

// TestLogprobs checks the logprob of each token and the most likely tokens at its
// position. A token of which a stop string removes a part has none.
func TestLogprobs(t *testing.T) {
	e := startEngine(t, Config{})
	check := func(name, text string, list []logprob, alternatives int) {
		t.Helper()
		said := ""
		for _, l := range list {
			said += l.Token
			sum := 0.0
			for i, top := range l.Top {
				sum += math.Exp(top.Logprob)
				if i > 0 && top.Logprob > l.Top[i-1].Logprob || top.Top != nil {
					t.Errorf("%s: %q: alternatives %+v", name, l.Token, l.Top)
				}
			}
			if l.Logprob > 0 || len(l.Top) != alternatives || sum > 1.0001 || len(l.Bytes) != len(l.Token) {
				t.Errorf("%s: %+v", name, l)
			}
			if alternatives > 0 && (l.Top[0].Token != l.Token || l.Top[0].Logprob != l.Logprob) { // it is the likeliest that is said
				t.Errorf("%s: said %q, likeliest %q", name, l.Token, l.Top[0].Token)
			}
		}
		assert.Equal(t, said, text, name, "logprobs of", "the answer")
	}
	for name, more := range map[string]object{
		"none other": {"logprobs": true},
		"three":      {"logprobs": true, "top_logprobs": 3},
		"stopped":    {"logprobs": true, "top_logprobs": 20, "stop": ", 5"},
	} {
		alternatives, _ := more["top_logprobs"].(int)
		choice := e.chat(ask("Count to 7.", more)).Choices[0]
		assert.Require(t, choice.Logprobs != nil, name, "none")
		check(name, choice.Message.Content, choice.Logprobs.Content, alternatives)
		res := e.open(t.Context(), "/v1/chat/completions", ask("Count to 7.", more, object{"stream": true}))
		frames, done := readFrames(t, res)
		res.Body.Close()
		text, stop, list := "", "", []logprob{}
		for _, f := range frames {
			text += f.Choices[0].Delta["content"]
			stop += f.Choices[0].StopReason
			if f.Choices[0].Logprobs != nil {
				list = append(list, f.Choices[0].Logprobs.Content...)
			}
		}
		if want, _ := more["stop"].(string); !done || text != choice.Message.Content || stop != want || choice.StopReason != want {
			t.Errorf("%s: streamed %q, stopped by %q", name, text, stop)
		}
		check(name+", streamed", text, list, alternatives)
	}
	if choice := e.chat(ask("Count to 7.", object{"top_logprobs": 3})).Choices[0]; choice.Logprobs != nil {
		t.Errorf("logprobs that nobody asked for: %+v", choice.Logprobs)
	}
}

// TestNoiseIsUTF8 makes the random model write random bytes.
func TestNoiseIsUTF8(t *testing.T) {
	e := startEngine(t, Config{})
	for seed := range 5 {
		res := e.open(t.Context(), "/v1/chat/completions", ask("x", object{"model": "random", "temperature": 2, "top_k": 0, "min_p": 0, "top_p": 1, "seed": seed, "max_tokens": 100, "stream": true}))
		if _, done := readFrames(t, res); !done {
			t.Error("no [DONE]")
		}
		res.Body.Close()
	}
}

func TestJSONMode(t *testing.T) {
	e := startEngine(t, Config{})
	schema := object{
		"type": "object",
		"properties": object{
			"name":  object{"type": "string", "maxLength": 12},
			"age":   object{"type": "integer"},
			"mood":  object{"enum": []string{"glad", "sad"}},
			"likes": object{"type": "array", "items": object{"type": "string", "maxLength": 8}, "minItems": 1, "maxItems": 2},
		},
		"required": []string{"name", "age", "mood"},
	}
	for _, model := range []string{"tiny", "random"} {
		for seed := range 4 {
			q := ask("Give me JSON for Anna, who is 42.", object{
				"model": model, "temperature": 1, "seed": seed, "max_tokens": 300,
				"response_format": object{"type": "json_schema", "json_schema": object{"name": "person", "schema": schema}},
			})
			c := e.chat(q)
			if c.Choices[0].FinishReason != "stop" {
				continue // a number may go on for long: cut off, as asked
			}
			var got struct {
				Name  *string  `json:"name"`
				Age   *int     `json:"age"`
				Mood  string   `json:"mood"`
				Likes []string `json:"likes"`
			}
			text := c.Choices[0].Message.Content
			if err := json.Unmarshal([]byte(text), &got); err != nil || got.Name == nil || got.Age == nil || (got.Mood != "glad" && got.Mood != "sad") || len(got.Likes) > 2 {
				t.Errorf("%s, seed %d: %v: %s", model, seed, err, text)
			}
		}
	}
	if got, want := e.say(ask("Give me JSON for Anna, who is 42.", object{"response_format": object{"type": "json_object"}})), conversation[4][1]; got != want {
		t.Errorf("json_object: got %q, want %q", got, want)
	}
}

func TestRefusals(t *testing.T) {
	e := startEngine(t, Config{Slots: 2, Context: 256})
	for _, c := range []struct {
		name   string
		body   any
		status int
		code   string
		says   string
	}{
		{"not JSON", `{"model":`, 400, "invalid_request_error", "not strict JSON"},
		{"a name twice", `{"model":"tiny","model":"tiny","messages":[]}`, 400, "invalid_request_error", "not strict JSON"},
		{"wrong type", ask("x", object{"max_tokens": "ten"}), 400, "invalid_request_error", "/max_tokens"},
		{"no messages", ask("x", object{"messages": []object{}}), 400, "invalid_request_error", "messages"},
		{"unknown model", ask("x", object{"model": "gpt-4"}), 404, "model_not_found", "no such model"},
		{"an image", ask("x", object{"messages": []object{{"role": "user", "content": []object{{"type": "image_url", "image_url": object{"url": "data:,"}}}}}}), 400, "invalid_request_error", "does not see images"},
		{"too many alternatives", ask("x", object{"logprobs": true, "top_logprobs": 21}), 400, "invalid_request_error", "top_logprobs must be from 0 to 20"},
		{"no tokens", ask("x", object{"max_tokens": 0}), 400, "invalid_request_error", "max_tokens must be at least 1"},
		{"several answers", ask("x", object{"n": 2}), 400, "invalid_request_error", "n must be 1"},
		{"a required tool", ask("x", object{"tool_choice": "required"}), 400, "invalid_request_error", "tool"},
		{"a named tool", ask("x", object{"tool_choice": object{"type": "function", "function": object{"name": "f"}}}), 400, "invalid_request_error", "tool"},
		{"too hot", ask("x", object{"temperature": 3}), 400, "invalid_request_error", "temperature"},
		{"an empty stop", ask("x", object{"stop": ""}), 400, "invalid_request_error", "stop string"},
		{"a schema that leads nowhere", ask("x", object{"response_format": object{"type": "json_schema", "json_schema": object{"schema": object{"$ref": "#"}}}}), 400, "invalid_request_error", "infinitely recursive"},
		{"over the context", ask(strings.Repeat("All that glitters is not gold. ", 200)), 400, "exceed_context_size_error", "context holds 256"},
		{"far over the context", ask(strings.Repeat("All that glitters is not gold. ", 20000)), 400, "exceed_context_size_error", "context holds 256"},
	} {
		code, message := e.refused("/v1/chat/completions", c.body, c.status)
		assert.That(t, code == c.code && strings.Contains(message, c.says), c.name, code, message)
	}
	if got := e.say(ask("Hello", object{"tools": []object{{"type": "function", "function": object{"name": "read"}}}, "tool_choice": "none", "anything": 1})); got != conversation[0][1] {
		t.Errorf("tools with none: %q", got)
	}
	full := e.chat(ask("Tell me a long story about an owl.", object{"model": "random", "temperature": 1, "seed": 1}))
	if u := full.Usage; full.Choices[0].FinishReason == "length" && u.Total != 257 && u.Total != 256 {
		t.Errorf("at the end of the context: %+v", u)
	}
}

// TestNothingShared alternates two conversations on one slot: neither depends on
// what the slot held before.
func TestNothingShared(t *testing.T) {
	e := startEngine(t, Config{Slots: 1})
	secret := ask("What is the capital of France?")
	plain := e.say(ask("Hello"))
	for range 3 {
		e.say(secret)
		assert.Equal(t, e.say(ask("Hello")), plain, "after another's turns")
	}
}

func TestTokenize(t *testing.T) {
	e := startEngine(t, Config{})
	count := func(body object) int {
		t.Helper()
		status, b := e.post("/tokenize", body)
		var got struct {
			Tokens []int `json:"tokens"`
		}
		if err := json.Unmarshal(b, &got); err != nil || status != 200 {
			t.Fatalf("status %d: %v: %s", status, err, b)
		}
		return len(got.Tokens)
	}
	if n := count(object{"model": "tiny", "content": ""}); n > 1 {
		t.Errorf("nothing has %d tokens", n)
	}
	turns := []object{{"role": "user", "content": "Count to 7."}}
	if n, want := count(object{"model": "tiny", "messages": turns}), e.chat(ask("Count to 7.")).Usage.Prompt; n != want {
		t.Errorf("counted %d tokens, used %d", n, want)
	}
	more := object{"chat_template_kwargs": object{"enable_thinking": true}, "tools": []object{}, "max_tokens": 3, "stream": false}
	asked := ask("Count to 7.", more)
	assert.Equal(t, count(asked), e.chat(asked).Usage.Prompt, "with switches counted", "tokens, used")
	if text, turns := count(object{"model": "tiny", "content": "Count to 7."}), count(object{"model": "tiny", "messages": turns}); text == 0 || text >= turns {
		t.Errorf("text has %d tokens, in its form %d", text, turns)
	}
}

func TestListAndHealth(t *testing.T) {
	whole := assert.Value(os.ReadFile("data/tiny.gguf"))(t)
	cut := filepath.Join(t.TempDir(), "cut.gguf")
	assert.OK(t, os.WriteFile(cut, whole[:len(whole)/2], 0o600))
	e := startEngine(t, Config{Slots: 3, Models: append([]ModelFile{{ID: "gone", Path: "data/none.gguf"}, {ID: "text", Path: "data/README.md"}, {ID: "cut", Path: cut}}, testModels...)})
	want := []Model{
		{ID: "tiny", ContextLength: 1024, Slots: 3, Chat: true, Embeddings: true, Tools: true, DefaultTools: true, Dimensions: 128},
		{ID: "random", ContextLength: 1024, Slots: 3, Chat: true, Embeddings: true, Tools: true, DefaultTools: true, Dimensions: e.Models()[1].Dimensions},
	}
	assert.Same(t, e.Models(), want)
	if p := e.Problems(); len(p) != 3 || !strings.Contains(p["cut"], "incomplete") || !strings.Contains(p["gone"], "cannot read") || !strings.Contains(p["text"], "GGUF") {
		t.Errorf("problems: %v", p)
	}
	for path, says := range map[string]string{"/health": `"ok"`, "/v1/models": `"id":"tiny"`} {
		res := assert.Value(e.client.Get("http://engine" + path))(t)
		var b strings.Builder
		fmt.Fprint(&b, res.StatusCode, " ")
		lines := bufio.NewScanner(res.Body)
		for lines.Scan() {
			b.WriteString(lines.Text())
		}
		res.Body.Close()
		if got := b.String(); !strings.HasPrefix(got, "200 ") || !strings.Contains(got, says) {
			t.Errorf("%s: %s", path, got)
		}
	}
}
