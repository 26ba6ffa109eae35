package llama

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nikolalohinski/gonja/v2/builtins"
	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
	"github.com/nikolalohinski/gonja/v2/parser"
)

// The limits for a chat template, which comes from an untrusted model file.
const (
	maxTemplateBytes = 256 << 10
	maxRange         = 10_000 // length of a range
	renderTimeout    = 5 * time.Second
)

// turn is a message with its content as text.
type turn struct{ role, content string }

// chatTemplate converts messages to a prompt, with the model's own Jinja template or with
// one of llama.cpp's built-in templates.
type chatTemplate struct {
	lib      *library
	source   string // the model's own; "" means ChatML
	jinja    *exec.Template
	problem  error // why jinja is nil
	bos, eos string
	timedOut atomic.Bool // jinja exceeded renderTimeout and is no longer used
}

func newChatTemplate(lib *library, source string, v *vocab) *chatTemplate {
	t := &chatTemplate{lib: lib, source: source, bos: v.bos, eos: v.eos}
	t.jinja, t.problem = parseTemplate(source)
	return t
}

// parseTemplate parses a Jinja template that can access only its data: the loader has no
// other files, and the statements that load files are disabled.
func parseTemplate(source string) (t *exec.Template, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("cannot read the model's chat template: %v", p)
		}
	}()
	switch {
	case source == "":
		return nil, errors.New("the model has no chat template")
	case len(source) > maxTemplateBytes:
		return nil, fmt.Errorf("the model's chat template is larger than %d bytes", maxTemplateBytes)
	}
	const name = "/chat"
	loader, err := loaders.NewMemoryLoader(map[string]string{name: source})
	if err != nil {
		return nil, err
	}
	syntax := config.New() // the same as for Hugging Face's chat templates
	syntax.TrimBlocks, syntax.LeftStripBlocks = true, true
	if t, err = exec.NewTemplate(name, syntax, loader, sandbox()); err != nil {
		return nil, fmt.Errorf("cannot read the model's chat template: %s", errorTail(err))
	}
	return t, nil
}

// errorTail returns the end of an error of the template library, which contains the
// cause; before it is the text of the template.
func errorTail(err error) string {
	const enough = 200
	text := err.Error()
	if len(text) > enough {
		text = "… " + strings.ToValidUTF8(text[len(text)-enough:], "")
	}
	return text
}

// sandbox returns a Jinja environment without files, randomness and long ranges.
func sandbox() *exec.Environment {
	statements := map[string]parser.ControlStructureParser{}
	for _, name := range []string{"for", "if", "set", "macro", "call", "with", "do", "break", "continue", "filter", "raw"} {
		if parse, ok := builtins.ControlStructures.Get(name); ok {
			statements[name] = parse
		}
	}
	globals := map[string]any{
		"range":           boundedRange,
		"raise_exception": raiseException,
		"strftime_now":    strftimeNow,
	}
	for _, name := range []string{"namespace", "dict"} {
		if fn, ok := builtins.GlobalFunctions.Get(name); ok {
			globals[name] = fn
		}
	}
	return &exec.Environment{
		Context:           exec.NewContext(globals),
		Filters:           builtins.Filters,
		Tests:             builtins.Tests,
		ControlStructures: exec.NewControlStructureSet(statements),
		Methods:           builtins.Methods,
	}
}

// boundedRange is range([start, ]stop[, step]) with at most maxRange numbers.
func boundedRange(_ *exec.Evaluator, args *exec.VarArgs) ([]int, error) {
	var n [3]int
	for i, arg := range args.Args {
		if i == len(n) || !arg.IsInteger() {
			return nil, errors.New("range takes one to three whole numbers")
		}
		n[i] = arg.Integer()
	}
	start, stop, step := n[0], n[1], n[2]
	switch len(args.Args) {
	case 0:
		return nil, errors.New("range takes one to three whole numbers")
	case 1:
		start, stop, step = 0, n[0], 1
	case 2:
		step = 1
	}
	if step == 0 {
		return nil, errors.New("range cannot step by 0")
	}
	var list []int
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(list) == maxRange {
			return nil, fmt.Errorf("range counts past %d", maxRange)
		}
		list = append(list, i)
	}
	return list, nil
}

// raiseException implements raise_exception(message): the template rejects the messages,
// for instance because their roles do not alternate.
func raiseException(_ *exec.Evaluator, args *exec.VarArgs) (string, error) {
	if len(args.Args) == 0 {
		return "", errors.New("the template refuses the messages")
	}
	return "", errors.New(args.Args[0].String())
}

// strftimeNow implements strftime_now(format): the current time.
func strftimeNow(_ *exec.Evaluator, args *exec.VarArgs) (string, error) {
	if len(args.Args) == 0 {
		return "", errors.New("strftime_now takes a format")
	}
	now := time.Now()
	return strings.NewReplacer(
		"%Y", now.Format("2006"), "%y", now.Format("06"), "%m", now.Format("01"), "%d", now.Format("02"),
		"%B", now.Format("January"), "%b", now.Format("Jan"), "%A", now.Format("Monday"), "%a", now.Format("Mon"),
		"%H", now.Format("15"), "%I", now.Format("03"), "%M", now.Format("04"), "%S", now.Format("05"),
		"%p", now.Format("PM"), "%j", now.Format("002"), "%Z", now.Format("MST"), "%z", now.Format("-0700"), "%%", "%",
	).Replace(args.Args[0].String()), nil
}

// render returns the prompt for the messages, up to the start of the answer. It tries the
// model's own template, then the same with alternating roles, which some templates
// require, then llama.cpp's built-in templates. extra are variables of the template
// (enable_thinking and similar).
func (t *chatTemplate) render(turns []turn, extra map[string]any) (string, error) {
	problem := t.problem
	if t.jinja != nil && !t.timedOut.Load() {
		var prompt string
		for _, form := range [][]turn{turns, alternating(turns)} {
			if prompt, problem = t.renderJinja(form, extra); problem == nil {
				return prompt, nil
			}
			if t.timedOut.Load() {
				break
			}
		}
	}
	if prompt, ok := t.renderBuiltin(turns); ok {
		return prompt, nil
	}
	return "", fmt.Errorf("cannot bring the messages into the model's form: %w", problem)
}

func (t *chatTemplate) renderJinja(turns []turn, extra map[string]any) (string, error) {
	messages, size := make([]any, len(turns)), 0
	for i, m := range turns {
		messages[i] = map[string]any{"role": m.role, "content": m.content}
		size += len(m.content)
	}
	data := map[string]any{
		"messages":              messages,
		"add_generation_prompt": true,
		"bos_token":             t.bos,
		"eos_token":             t.eos,
	}
	maps.Copy(data, extra)

	type result struct {
		err  error
		text string
	}
	done := make(chan result, 1)
	out := &promptWriter{room: 8*size + maxTemplateBytes + 1024*len(turns)}
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- result{err: fmt.Errorf("the chat template failed: %v", p)}
			}
		}()
		if err := t.jinja.Execute(out, exec.NewContext(data)); err != nil {
			done <- result{err: errors.New(errorTail(err))}
			return
		}
		done <- result{text: out.text.String()}
	}()
	deadline := time.NewTimer(renderTimeout)
	defer deadline.Stop()
	select {
	case r := <-done:
		return r.text, r.err
	case <-deadline.C:
		out.stop.Store(true)
		t.timedOut.Store(true)
		return "", fmt.Errorf("the chat template did not end within %v", renderTimeout)
	}
}

// promptWriter collects a prompt and fails if it is too long or was stopped. This ends a
// template that writes endlessly.
type promptWriter struct {
	text strings.Builder
	room int
	stop atomic.Bool
}

func (w *promptWriter) Write(p []byte) (int, error) {
	if w.stop.Load() || len(p) > w.room {
		return 0, errors.New("the chat template writes without end")
	}
	w.room -= len(p)
	return w.text.Write(p)
}

// alternating merges the messages into alternating user and assistant turns. A
// system message becomes part of the following user turn.
func alternating(turns []turn) []turn {
	var out []turn
	for _, m := range turns {
		role := m.role
		if role != "assistant" {
			role = "user"
		}
		if last := len(out) - 1; last >= 0 && out[last].role == role {
			out[last].content += "\n\n" + m.content
			continue
		}
		out = append(out, turn{role, m.content})
	}
	return out
}

// renderBuiltin applies the built-in template that llama.cpp recognizes in the model's
// template. That only works for common families; the default is ChatML.
func (t *chatTemplate) renderBuiltin(turns []turn) (string, bool) {
	source := t.source
	if source == "" {
		source = "chatml"
	}
	if len(source) > maxTemplateBytes || len(turns) == 0 {
		return "", false
	}
	chat, size := make([]chatMessage, len(turns)), 256
	for i, m := range turns {
		chat[i] = chatMessage{role: cBytes(m.role), content: cBytes(m.content)}
		size += 2*(len(m.role)+len(m.content)) + 64
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
