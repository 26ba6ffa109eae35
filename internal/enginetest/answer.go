package enginetest

import (
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// created is the time in every answer: 21 November 2026.
const created = "1795219200"

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
	out  []byte
}

// inference returns the handler of a route that runs a model, and counts its calls.
func (e *Engine) inference(answer func(*run) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var call Call
		var over bool
		var err error
		if e.kind == Speech {
			call, over, err = readClip(r, e.maxUpload)
		} else {
			call, err = readCall(r)
		}
		if over {
			e.count(func(c *Counts) { c.TooLarge++ })
			e.refuse(w, http.StatusRequestEntityTooLarge, "Maximum content size limit exceeded")
			return
		}
		if err != nil {
			e.refuse(w, http.StatusBadRequest, "the body cannot be read")
			return
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
		result = (&run{e: e, w: w, ctx: r.Context(), call: call, b: script(call)}).do(answer)
	}
}

// errFault is the result of a call that ended by its Fault.
var errFault = fmt.Errorf("a fault that was asked for")

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

// zipped compresses and flushes what is written.
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

// fault applies the Fault.
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
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-r.ctx.Done():
		return r.ctx.Err()
	case <-timer.C:
		return nil
	}
}

// words returns the chunks of the answer's text.
func (r *run) words() []string {
	text := r.b.Text
	if text == "" {
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

func (r *run) tokensIn() int { return len(strings.Fields(r.call.Input)) }

// chat answers POST /v1/chat/completions.
func (r *run) chat() error {
	words := r.words()
	if r.call.Stream && r.b.Fault != Unstreamed {
		return r.stream(words)
	}
	r.w.Header().Set("Content-Type", "application/json")
	if r.b.Answer != "" {
		_, err := io.WriteString(r.w, r.b.Answer)
		return err
	}
	for range words[1:] {
		if err := r.pause(r.b.Interval); err != nil {
			return err
		}
	}
	out := append(r.head("chat.completion"), `,"choices":[{"index":0,"message":{"role":"assistant","content":`...)
	out = quote(out, strings.Join(words, ""))
	if r.b.Reasoning != "" {
		out = quote(append(out, `,"`+r.e.reasoningName()+`":`...), r.b.Reasoning)
	}
	out = append(out, `},"logprobs":null,"finish_reason":"stop"}],"usage":`...)
	out = append(r.usage(out, len(words)), '}')
	switch r.b.Fault {
	case Garbage, Cut:
		out = out[:len(out)/2]
	case Die:
		r.w.Header().Set("Content-Length", strconv.Itoa(len(out)))
		_, _ = r.w.Write(out[:len(out)/2])
		_ = http.NewResponseController(r.w).Flush()
		panic(http.ErrAbortHandler)
	}
	r.e.count(func(c *Counts) { c.Chunks += len(words) })
	_, err := r.w.Write(out)
	return err
}

func (r *run) head(object string) []byte {
	out := append(r.out[:0], `{"id":"chatcmpl-1","object":"`...)
	out = append(out, object...)
	out = append(out, `","created":`+created+`,"model":`...)
	return quote(out, r.call.Model)
}

func (r *run) usage(out []byte, completion int) []byte {
	in := r.tokensIn()
	return fmt.Appendf(out, `{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, in, completion, in+completion)
}

// stream answers a chat call as a stream.
func (r *run) stream(words []string) error {
	r.w.Header().Set("Content-Type", "text/event-stream")
	if r.b.Raw != nil {
		return r.raw()
	}
	prefix := append([]byte("data: "), r.head("chat.completion.chunk")...)
	prefix = append(prefix, `,"choices":[{"index":0,"delta":`...)
	chunk := func(delta, finish string) error {
		r.out = append(append(append(r.out[:0], prefix...), delta...), `,"finish_reason":`...)
		r.out = append(append(r.out, finish...), "}]}\n\n"...)
		return r.flush(r.out)
	}
	if err := chunk(`{"role":"assistant","content":""}`, "null"); err != nil {
		return err
	}
	if r.b.Reasoning != "" {
		delta := string(quote([]byte(`{"`+r.e.reasoningName()+`":`), r.b.Reasoning)) + "}"
		if err := chunk(delta, "null"); err != nil {
			return err
		}
	}
	for i := 0; i < len(words) || r.b.Fault == Endless; i++ {
		if i > 0 {
			if err := r.pause(r.b.Interval); err != nil {
				return err
			}
		}
		if i == r.b.After && r.b.Fault == Garbage {
			if err := r.flush([]byte("data: {\"choices\":[{]}\n\n")); err != nil {
				return err
			}
		}
		if err := chunk(string(quote([]byte(`{"content":`), words[i%len(words)]))+"}", "null"); err != nil {
			return err
		}
		r.e.count(func(c *Counts) { c.Chunks++ })
		if i+1 == r.b.After {
			if err := r.fault(); err != nil {
				return err
			}
		}
	}
	if err := chunk("{}", `"stop"`); err != nil {
		return err
	}
	if r.call.Usage {
		out := append(append([]byte("data: "), r.head("chat.completion.chunk")...), `,"choices":[],"usage":`...)
		if err := r.flush(append(r.usage(out, len(words)), "}\n\n"...)); err != nil {
			return err
		}
	}
	if r.b.Fault == Unmarked {
		return errFault
	}
	return r.flush([]byte("data: [DONE]\n\n"))
}

// raw writes the Behaviour's own bytes.
func (r *run) raw() error {
	for i, raw := range r.b.Raw {
		if i > 0 {
			if err := r.pause(r.b.Interval); err != nil {
				return err
			}
		}
		if err := r.flush([]byte(raw)); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) flush(p []byte) error {
	if _, err := r.w.Write(p); err != nil {
		return err
	}
	return http.NewResponseController(r.w).Flush()
}

// embeddings answers POST /v1/embeddings with vectors derived from the input.
func (r *run) embeddings() error {
	r.w.Header().Set("Content-Type", "application/json")
	if r.b.Answer != "" {
		_, err := io.WriteString(r.w, r.b.Answer)
		return err
	}
	var inputs []jsontext.Value
	if json.Unmarshal([]byte(r.call.Input), &inputs) != nil {
		inputs = []jsontext.Value{jsontext.Value(r.call.Input)}
	}
	out := []byte(`{"object":"list","data":[`)
	for i, input := range inputs {
		if i > 0 {
			out = append(out, ',')
		}
		out = fmt.Appendf(out, `{"object":"embedding","index":%d,"embedding":`, i)
		out = append(r.e.vector(out, input, r.call.Base64), '}')
	}
	out = quote(append(out, `],"model":`...), r.call.Model)
	out = fmt.Appendf(out, `,"usage":{"prompt_tokens":%d,"total_tokens":%[1]d}}`, r.tokensIn())
	_, err := r.w.Write(out)
	return err
}

// vector returns eight numbers derived from the input. LM Studio has no base64.
func (e *Engine) vector(out []byte, input []byte, asBase64 bool) []byte {
	h := fnv.New64a()
	h.Write(input)
	seed := h.Sum64()
	var raw []byte
	var numbers []string
	for i := range 8 {
		x := float32(seed>>(8*i)&0xff) / 256
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
		numbers = append(numbers, strconv.FormatFloat(float64(x), 'g', -1, 32))
	}
	if asBase64 && e.kind != LMStudio {
		return quote(out, base64.StdEncoding.EncodeToString(raw))
	}
	return append(out, "["+strings.Join(numbers, ",")+"]"...)
}

// quote appends s as a JSON string; invalid UTF-8 is replaced.
func quote(out []byte, s string) []byte {
	out, _ = jsontext.AppendQuote(out, s)
	return out
}
