package enginetest

import (
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// created is the time in every answer: 21 November 2026.
const created = 1795219200

// body holds the fields of a request that the double reads.
type body struct {
	Model    string `json:"model"`
	Stream   bool   `json:"stream"`
	Messages []struct {
		Role    string         `json:"role"`
		Content jsontext.Value `json:"content"`
	} `json:"messages"`
	Input    jsontext.Value `json:"input"`
	Encoding string         `json:"encoding_format"`
	Options  struct {
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`
}

func readCall(r *http.Request) (Call, error) {
	c := Call{Path: r.URL.Path, From: r.RemoteAddr, Header: r.Header}
	var err error
	if c.Body, err = io.ReadAll(r.Body); err != nil {
		return c, err
	}
	var b body
	if err := json.Unmarshal(c.Body, &b); err != nil {
		return c, err
	}
	c.Model, c.Stream, c.Usage, c.Base64 = b.Model, b.Stream, b.Options.Usage, b.Encoding == "base64"
	c.hasMessages = b.Messages != nil
	for _, m := range b.Messages {
		if m.Role == "user" {
			c.Input = textOf(m.Content)
		}
	}
	if b.Input != nil {
		c.Input = string(b.Input)
	}
	return c, nil
}

// textOf returns the text of a message's content or of its parts.
func textOf(content jsontext.Value) string {
	var text string
	if json.Unmarshal(content, &text) == nil {
		return text
	}
	var parts []struct {
		Text string `json:"text"`
	}
	_ = json.Unmarshal(content, &parts) // other content has no text
	var all strings.Builder
	for _, p := range parts {
		all.WriteString(p.Text)
	}
	return all.String()
}

// run is a call being answered.
type run struct {
	e    *Engine
	w    http.ResponseWriter
	ctx  context.Context
	call Call
	b    Behaviour
	cost *cost // nil: the call has no Timing
}

// inference returns the handler of a route that runs a model, and counts its calls.
func (e *Engine) inference(answer func(*run) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		read := readCall
		if e.kind == Speech {
			read = e.readClip
		}
		call, err := read(r)
		if errors.Is(err, errTooLarge) {
			e.count(func(c *Counts) { c.TooLarge++ })
			e.refuse(w, http.StatusRequestEntityTooLarge, "Maximum content size limit exceeded")
			return
		}
		if err != nil {
			status := http.StatusBadRequest
			if e.kind == LlamaCpp {
				status = http.StatusInternalServerError
			}
			e.refuse(w, status, "the body cannot be read")
			return
		}
		if n := e.tooLong(call); n > 0 && e.kind == LlamaCpp {
			writeJSON(w, http.StatusBadRequest, object{"error": object{
				"code": 400, "type": "exceed_context_size_error", "message": "the request exceeds the available context size, try increasing it",
				"n_prompt_tokens": n, "n_ctx": e.models[0].ContextLength,
			}})
			return
		}
		if call.Stream {
			closeAfter(r)
		}
		if status, text := e.check(call); status != 0 {
			e.refuse(w, status, text)
			return
		}
		full := false
		var script func(Call) Behaviour
		e.count(func(c *Counts) {
			if full = e.limit > 0 && c.Running >= e.limit; full {
				c.Refused++
				return
			}
			c.Runs++
			c.Running++
			e.last, script = call, e.script
		})
		if full {
			e.refuse(w, http.StatusServiceUnavailable, "server busy, please try again")
			return
		}
		result := errFault // if answer panics
		defer func() {
			e.count(func(c *Counts) {
				c.Running--
				switch {
				case result == nil:
					c.Completed++
				case r.Context().Err() != nil:
					c.Cancelled++
				default:
					c.Failed++
				}
			})
		}()
		run := &run{e: e, w: w, ctx: r.Context(), call: call, b: script(call)}
		if e.timing != nil && call.Path == "/v1/chat/completions" {
			c := e.charge(call.Body)
			e.timing.take(&run.b, c)
			run.cost = &c
		}
		result = run.do(answer)
	}
}

// errFault is the result of a call that ended because of its Fault.
var errFault = errors.New("a fault that was asked for")

func (r *run) do(answer func(*run) error) error {
	if err := r.pause(r.b.First); err != nil {
		return err
	}
	if s := r.b.Status; s != 0 && s != http.StatusOK {
		if r.b.Answer != "" {
			r.w.Header().Set("Content-Type", "application/json")
			r.w.WriteHeader(s)
			_, _ = io.WriteString(r.w, r.b.Answer) // fails only if the caller left
			return errFault
		}
		r.e.refuse(r.w, s, "an error that was asked for")
		return errFault
	}
	if r.b.Fault == Zipped {
		zip := gzip.NewWriter(r.w)
		r.w.Header().Set("Content-Encoding", "gzip")
		r.w = zipped{r.w, zip}
		defer zip.Close()
	}
	if r.b.After == 0 {
		if err := r.fault(); err != nil {
			return err
		}
	}
	return answer(r)
}

// zipped compresses its input and flushes it.
type zipped struct {
	http.ResponseWriter
	zip *gzip.Writer
}

func (z zipped) Write(p []byte) (int, error) { return z.zip.Write(p) }

func (z zipped) FlushError() error {
	if err := z.zip.Flush(); err != nil {
		return err
	}
	return http.NewResponseController(z.ResponseWriter).Flush()
}

func (r *run) fault() error {
	switch r.b.Fault {
	case Hang:
		<-r.ctx.Done()
		return r.ctx.Err()
	case Die:
		panic(http.ErrAbortHandler)
	case Cut:
		return errFault
	default:
		return nil
	}
}

// pause waits for d or the end of the call.
func (r *run) pause(d time.Duration) error {
	if d <= 0 {
		return r.ctx.Err()
	}
	select {
	case <-r.ctx.Done():
		return r.ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// words returns the chunks of the answer's text.
func (r *run) words() []string {
	text := r.b.Text
	if text == "" {
		if r.b.Tool != nil {
			return nil
		}
		text = r.call.Input
	}
	words := strings.SplitAfter(text, " ")
	if r.b.Chunks == 0 {
		return words
	}
	out := make([]string, r.b.Chunks)
	for i := range out {
		out[i] = words[i%len(words)]
	}
	return out
}

// usage returns the tokens of the question, and of an answer of so many words, as JSON.
func (r *run) usage(words int) string {
	if c := r.cost; c != nil {
		return fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`,
			c.tokens, words, c.tokens+words, c.cached)
	}
	in := len(strings.Fields(r.call.Input))
	return fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, in, words, in+words)
}

// The answers of a chat call.
const (
	completion = `{"id":"chatcmpl-1","object":"chat.completion","created":%d,"model":%s,"choices":[{"index":0,` +
		`"message":{"role":"assistant","content":%s%s},"logprobs":null,"finish_reason":%s}],"usage":%s}`
	chunk = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":%d,"model":%s,"choices":[%s]%s}` + "\n\n"
)

// toolFinish is the finish reason of an answer that calls a tool.
const toolFinish = `"tool_calls"`

// json returns the member of a message, or of its delta, that holds the call.
func (c *ToolCall) json() string {
	return `"tool_calls":[{"index":0,"id":` + quote(c.ID) + `,"type":"function","function":{"name":` + quote(c.Name) + `,"arguments":` + quote(c.Input) + `}}]`
}

// chat answers POST /v1/chat/completions.
func (r *run) chat() error {
	words := r.words()
	if r.call.Stream && r.b.Fault != Unstreamed {
		return r.streamChat(words)
	}
	for range max(0, len(words)-1) {
		if err := r.pause(r.b.Interval); err != nil {
			return err
		}
	}
	more, finish := "", `"stop"`
	if r.b.Reasoning != "" {
		more = `,"` + r.e.reasoningName() + `":` + quote(r.b.Reasoning)
	}
	if tool := r.b.Tool; tool != nil {
		more, finish = more+","+tool.json(), toolFinish
	}
	content := "null"
	if words != nil {
		content = quote(strings.Join(words, ""))
	}
	out := fmt.Sprintf(completion, created, quote(r.call.Model), content, more, finish, r.usage(len(words)))
	if r.b.Fault == Die {
		r.w.Header().Set("Content-Length", strconv.Itoa(len(out)))
		_ = r.flush(out[:len(out)/2])
		panic(http.ErrAbortHandler)
	}
	r.e.count(func(c *Counts) { c.Chunks += len(words) })
	return r.unary(out)
}

// unary sends the Behaviour's Answer, or otherwise text, with the Fault applied.
func (r *run) unary(text string) error {
	r.w.Header().Set("Content-Type", "application/json")
	switch {
	case r.b.Answer != "":
		text = r.b.Answer
	case r.b.Fault == Garbage || r.b.Fault == Cut:
		text = text[:len(text)/2]
	}
	_, err := io.WriteString(r.w, text)
	return err
}

func (r *run) unaryJSON(answer object) error {
	text, err := json.Marshal(answer, json.Deterministic(true))
	if err != nil {
		return err
	}
	return r.unary(string(text))
}

// streamChat answers a chat call as a stream.
func (r *run) streamChat(words []string) error {
	model := quote(r.call.Model)
	choice := func(delta, finish string) string {
		return fmt.Sprintf(chunk, created, model, `{"index":0,"delta":{`+delta+`},"finish_reason":`+finish+`}`, "")
	}
	before := []string{choice(`"role":"assistant","content":""`, "null")}
	if r.b.Reasoning != "" {
		before = append(before, choice(`"`+r.e.reasoningName()+`":`+quote(r.b.Reasoning), "null"))
	}
	content := make([]string, len(words))
	for i, word := range words {
		content[i] = choice(`"content":`+quote(word), "null")
	}
	after := []string{choice("", `"stop"`)}
	if tool := r.b.Tool; tool != nil {
		after = []string{choice(tool.json(), "null"), choice("", toolFinish)}
	}
	if r.call.Usage {
		after = append(after, fmt.Sprintf(chunk, created, model, "", `,"usage":`+r.usage(len(words))))
	}
	return r.stream(before, content, append(after, "data: [DONE]\n\n"))
}

// stream sends the frames of a streamed answer, or the Behaviour's Raw frames. The Fault
// applies to the content. The last frame is the end marker.
func (r *run) stream(before, content, after []string) error {
	r.w.Header().Set("Content-Type", "text/event-stream")
	if r.b.Raw != nil {
		before, content, after = nil, r.b.Raw, nil
	}
	if r.b.Fault == Unmarked {
		after = after[:max(0, len(after)-1)]
	}
	if err := r.flush(before...); err != nil {
		return err
	}
	begun := time.Now()
	for i := 0; i < len(content) || r.b.Fault == Endless; i++ {
		if i > 0 {
			due := begun.Add(time.Duration(i) * r.b.Interval)
			if err := r.pause(time.Until(due)); err != nil {
				return err
			}
		}
		if i == r.b.After && r.b.Fault == Garbage {
			if err := r.flush("data: {\"choices\":[{]}\n\n"); err != nil {
				return err
			}
		}
		if err := r.flush(content[i%len(content)]); err != nil {
			return err
		}
		r.e.count(func(c *Counts) { c.Chunks++ })
		if i+1 == r.b.After {
			if err := r.fault(); err != nil {
				return err
			}
		}
	}
	err := r.flush(after...)
	if r.b.Fault == Unmarked {
		return errFault
	}
	return err
}

// flush writes and flushes each of the texts.
func (r *run) flush(texts ...string) error {
	for _, text := range texts {
		if _, err := io.WriteString(r.w, text); err != nil {
			return err
		}
		if err := http.NewResponseController(r.w).Flush(); err != nil {
			return err
		}
	}
	return nil
}

// embeddings answers POST /v1/embeddings with vectors derived from the input.
func (r *run) embeddings() error {
	var inputs []jsontext.Value
	if json.Unmarshal([]byte(r.call.Input), &inputs) != nil {
		inputs = []jsontext.Value{jsontext.Value(r.call.Input)}
	}
	var data []object
	for i, input := range inputs {
		data = append(data, object{"object": "embedding", "index": i, "embedding": r.e.vector(input, r.call.Base64)})
	}
	tokens := len(strings.Fields(r.call.Input))
	return r.unaryJSON(object{
		"object": "list", "data": data, "model": r.call.Model, "usage": object{"prompt_tokens": tokens, "total_tokens": tokens},
	})
}

// vector returns eight numbers derived from the input, or their bytes, which JSON encodes
// as base64. LM Studio does not support base64.
func (e *Engine) vector(input []byte, asBase64 bool) any {
	h := fnv.New64a()
	h.Write(input)
	seed := h.Sum64()
	var raw []byte
	var numbers []float32
	for i := range 8 {
		x := float32(seed>>(8*i)&0xff) / 256
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
		numbers = append(numbers, x)
	}
	if asBase64 && e.kind != LMStudio {
		return raw
	}
	return numbers
}

// quote returns s as a JSON string; invalid UTF-8 is replaced.
func quote(s string) string {
	out, _ := jsontext.AppendQuote(nil, s)
	return string(out)
}
