package llama

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kith/kith/internal/llama/chatform"
)

// chatTemplate converts messages to a prompt, with the model's own Jinja template or with
// one of llama.cpp's built-in templates.
type chatTemplate struct {
	lib     *library
	source  string             // the model's own; "" means ChatML
	digest  string             // the beginning of its SHA-256
	own     *chatform.Template // nil if it cannot be used
	problem error              // why own is nil
}

// newChatTemplate opens the template of a model in the renderer.
func newChatTemplate(ctx context.Context, lib *library, renderer *chatform.Renderer, source chatform.Source) *chatTemplate {
	t := &chatTemplate{lib: lib, source: source.Text, digest: fmt.Sprintf("%.6x", sha256.Sum256([]byte(source.Text)))}
	t.own, t.problem = renderer.Open(ctx, source)
	if t.problem != nil {
		t.own = nil
	}
	return t
}

// render returns the prompt for a conversation, up to the start of the answer. It tries
// the model's own template, then llama.cpp's built-in templates, which cannot show tools.
func (t *chatTemplate) render(ctx context.Context, c *chatform.Conversation) (chatform.Prompt, error) {
	problem := t.problem
	if t.own != nil {
		prompt, err := t.own.Render(ctx, c)
		if err == nil || ctx.Err() != nil {
			return prompt, err
		}
		if len(c.Tools) > 0 {
			return prompt, fmt.Errorf("cannot show the tools to the model: %w", err)
		}
		problem = err
	}
	if prompt, ok := t.renderBuiltin(c.Messages); ok {
		return chatform.Prompt{Pieces: []chatform.Piece{{Text: prompt}}}, nil
	}
	return chatform.Prompt{}, fmt.Errorf("cannot bring the messages into the model's form: %w", problem)
}

// form returns how the model writes its answers.
func (t *chatTemplate) form() *chatform.Form {
	if t.own == nil {
		return &chatform.Form{Problem: t.problem.Error()}
	}
	return t.own.Form
}

// renderBuiltin applies the built-in template that llama.cpp recognizes in the model's
// template. That only works for common families; the default is ChatML. It knows roles
// and texts only.
func (t *chatTemplate) renderBuiltin(messages []chatform.Message) (string, bool) {
	source := t.source
	if source == "" {
		source = "chatml"
	}
	if len(source) > chatform.MaxSource || len(messages) == 0 {
		return "", false
	}
	chat, size := make([]chatMessage, len(messages)), 256
	for i, m := range messages {
		chat[i] = chatMessage{role: cBytes(m.Role), content: cBytes(m.Content)}
		size += 2*(len(m.Role)+len(m.Content)) + 64
	}
	for range 2 {
		buf := make([]byte, size)
		n := t.lib.llama_chat_apply_template(source, &chat[0], uintptr(len(chat)), true, &buf[0], int32(len(buf)))
		if n < 0 {
			return "", false
		}
		if int(n) <= len(buf) {
			return string(buf[:n]), true
		}
		size = int(n)
	}
	return "", false
}

// cBytes returns s as a NUL-terminated string, cut at the first NUL.
func cBytes(s string) *byte {
	s, _, _ = strings.Cut(s, "\x00")
	return &append([]byte(s), 0)[0]
}

// templateSource returns the chat templates of a model.
func templateSource(lib *library, m cModel, v *vocab) chatform.Source {
	return chatform.Source{
		Text:      lib.llama_model_chat_template(m, nil),
		WithTools: lib.llama_model_chat_template(m, cBytes("tool_use")),
		BOS:       v.bos,
		EOS:       v.eos,
		Control:   slices.Collect(maps.Values(maps.Collect(v.control()))),
	}
}

// markTokens returns the control tokens that are, or are in, a mark of the model's answers:
// their texts are needed to read an answer.
func markTokens(v *vocab, f *chatform.Form) map[token]bool {
	marks := f.Literals()
	found := map[token]bool{}
	for t, text := range v.control() {
		if text != "" && slices.ContainsFunc(marks, func(mark string) bool { return strings.Contains(mark, text) }) {
			found[t] = true
		}
	}
	return found
}
