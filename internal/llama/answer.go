package llama

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"net/http"
	"strings"

	"github.com/kith/kith/internal/llama/chatform"
)

// answer holds what is common to all frames of a chat answer.
type answer struct {
	ID      string
	Created int64
	Model   string
}

// usage counts tokens. Cached tokens of the prompt were computed for an earlier call of
// the same caller.
type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
	PromptDetails    struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func newUsage(j *job, tokens int) usage {
	u := usage{PromptTokens: len(j.prompt), CompletionTokens: tokens, TotalTokens: len(j.prompt) + tokens}
	u.PromptDetails.CachedTokens = j.cached
	return u
}

// unary sends the complete answer.
func (a answer) unary(w http.ResponseWriter, j *job) error {
	type message struct {
		Role      string     `json:"role"`
		Content   *string    `json:"content"` // null if there are only calls
		Reasoning string     `json:"reasoning_content,omitzero"`
		ToolCalls []toolCall `json:"tool_calls,omitzero"`
		Refusal   *string    `json:"refusal"`
	}
	type choice struct {
		Index        int       `json:"index"`
		Message      message   `json:"message"`
		Logprobs     *logprobs `json:"logprobs"`
		FinishReason string    `json:"finish_reason"`
		StopReason   string    `json:"stop_reason,omitzero"` // the stop string, like in vLLM
	}
	type completion struct {
		ID      string   `json:"id"`
		Object  string   `json:"object"`
		Created int64    `json:"created"`
		Model   string   `json:"model"`
		Choices []choice `json:"choices"`
		Usage   usage    `json:"usage"`
	}
	var text, reasoning strings.Builder
	var list []logprob
	var calls []toolCall
	for {
		p, err := j.out.take(j.ctx)
		if err != nil {
			return err
		}
		for _, e := range p.events {
			switch e.Kind {
			case chatform.EventReasoning:
				reasoning.WriteString(e.Text)
			case chatform.EventText:
				text.WriteString(e.Text)
			case chatform.EventCall:
				calls = append(calls, newToolCall(e))
			case chatform.EventArguments:
				calls[e.Index].Function.Arguments += e.Text
			}
		}
		list = append(list, p.logprobs...)
		if p.ended {
			said := text.String()
			content := &said
			if said == "" && len(calls) > 0 {
				content = nil
			}
			reply(w, http.StatusOK, completion{
				ID: a.ID, Object: "chat.completion", Created: a.Created, Model: a.Model,
				Choices: []choice{{
					Message:  message{Role: "assistant", Content: content, Reasoning: reasoning.String(), ToolCalls: calls},
					Logprobs: newLogprobs(j.wantLogprobs, list), FinishReason: p.finish.reason, StopReason: p.finish.stop,
				}},
				Usage: newUsage(j, p.tokens),
			})
			return nil
		}
	}
}

// toolCall is a tool call of an answer, or a part of one.
type toolCall struct {
	Index    *int   `json:"index,omitzero"` // in a stream
	ID       string `json:"id,omitzero"`
	Type     string `json:"type,omitzero"`
	Function struct {
		Name      string `json:"name,omitzero"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// newToolCall returns the call that begins. It has the model's own id, if there is one.
func newToolCall(e chatform.Event) toolCall {
	c := toolCall{ID: cmp.Or(e.ID, "call_"+rand.Text()), Type: "function"}
	c.Function.Name = e.Name
	return c
}

// chunk is one frame of a streamed answer.
type chunk struct {
	ID      string         `json:"id"`
	Object  string         `json:"object"`
	Created int64          `json:"created"`
	Model   string         `json:"model"`
	Choices []chunkChoice  `json:"choices"`
	Usage   jsontext.Value `json:"usage,omitzero"` // null or the counts, if requested
}

type chunkChoice struct {
	Index        int       `json:"index"`
	Delta        delta     `json:"delta"`
	Logprobs     *logprobs `json:"logprobs,omitzero"`
	FinishReason *string   `json:"finish_reason"`
	StopReason   string    `json:"stop_reason,omitzero"`
}

type delta struct {
	Role      string  `json:"role,omitzero"`
	Content   *string `json:"content,omitzero"`
	Reasoning string  `json:"reasoning_content,omitzero"`

	ToolCalls []toolCall `json:"tool_calls,omitzero"`
}

// stream sends the answer while it is generated. It sends the status with the first text,
// so that an earlier failure can have an error status.
func (a answer) stream(w http.ResponseWriter, j *job, withUsage bool) {
	var noUsage jsontext.Value
	if withUsage {
		noUsage = jsontext.Value("null")
	}
	f := &frames{w: w, out: http.NewResponseController(w)}
	send := func(c chunkChoice) {
		f.send(chunk{a.ID, "chat.completion.chunk", a.Created, a.Model, []chunkChoice{c}, noUsage})
	}
	for {
		p, err := j.out.take(j.ctx)
		if err != nil {
			f.fail(err)
			return
		}
		if !f.begun {
			empty := ""
			send(chunkChoice{Delta: delta{Role: "assistant", Content: &empty}})
		}
		list := newLogprobs(j.wantLogprobs, p.logprobs)
		for _, e := range p.events {
			switch e.Kind {
			case chatform.EventReasoning:
				send(chunkChoice{Delta: delta{Reasoning: e.Text}})
			case chatform.EventText:
				send(chunkChoice{Delta: delta{Content: &e.Text}, Logprobs: list})
				list = nil
			case chatform.EventCall:
				call := newToolCall(e)
				call.Index = &e.Index
				send(chunkChoice{Delta: delta{ToolCalls: []toolCall{call}}})
			case chatform.EventArguments:
				part := toolCall{Index: &e.Index}
				part.Function.Arguments = e.Text
				send(chunkChoice{Delta: delta{ToolCalls: []toolCall{part}}})
			}
		}
		if list != nil && len(list.Content) > 0 {
			empty := ""
			send(chunkChoice{Delta: delta{Content: &empty}, Logprobs: list})
		}
		if !p.ended {
			continue
		}
		send(chunkChoice{FinishReason: &p.finish.reason, StopReason: p.finish.stop})
		if withUsage {
			counts, err := json.Marshal(newUsage(j, p.tokens))
			if err != nil {
				f.fail(err)
				return
			}
			f.send(chunk{a.ID, "chat.completion.chunk", a.Created, a.Model, []chunkChoice{}, counts})
		}
		f.write([]byte("data: [DONE]\n\n"))
		return
	}
}

// frames writes server-sent events, with one write and flush per event.
type frames struct {
	w     http.ResponseWriter
	out   *http.ResponseController
	begun bool
}

func (f *frames) send(v any) {
	frame := bytes.NewBufferString("data: ")
	if err := json.MarshalWrite(frame, v); err != nil {
		panic(http.ErrAbortHandler) // unreachable: chunks always marshal
	}
	frame.WriteString("\n\n")
	f.write(frame.Bytes())
}

// write sends bytes. If the client disconnected, the request's context ends.
func (f *frames) write(b []byte) {
	if !f.begun {
		f.begun = true
		f.w.Header().Set("Content-Type", "text/event-stream")
		f.w.Header().Set("Cache-Control", "no-cache")
	}
	f.w.Write(b)
	f.out.Flush()
}

// fail sends an error: as a status if nothing was sent yet, otherwise as the last frame.
// After that frame it breaks the connection, so that no client considers the answer
// complete.
func (f *frames) fail(err error) {
	if !f.begun {
		refuse(f.w, err)
		return
	}
	_, body := errorResponse(err)
	f.send(body)
	panic(http.ErrAbortHandler)
}
