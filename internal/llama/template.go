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

// A template comes with the model file, from whoever made that.
const (
	maxTemplateBytes = 256 << 10
	maxRange         = 10_000 // numbers a template may count through at once
	renderTime       = 5 * time.Second
)

// turn is one message of a talk, its content flattened to text.
type turn struct{ role, content string }

// chatTemplate turns a talk into the prompt its model was trained on: by the
// model's own Jinja template, else by llama.cpp's list of well-known ones.
type chatTemplate struct {
	lib      *library
	source   string // the model's own; "" means ChatML
	jinja    *exec.Template
	problem  error // why jinja is nil
	bos, eos string
	broken   atomic.Bool // jinja did not end in renderTime: not used again
}

func newChatTemplate(lib *library, source string, v *vocab) *chatTemplate {
	t := &chatTemplate{lib: lib, source: source, bos: v.bos, eos: v.eos}
	t.jinja, t.problem = parseTemplate(source)
	return t
}

// parseTemplate reads a Jinja template that can reach nothing but its data:
// its loader holds no other file and the statements that load one are gone.
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
	syntax := config.New() // as Hugging Face sets Jinja up for chat templates
	syntax.TrimBlocks, syntax.LeftStripBlocks = true, true
	if t, err = exec.NewTemplate(name, syntax, loader, sandbox()); err != nil {
		return nil, fmt.Errorf("cannot read the model's chat template: %s", lastWords(err))
	}
	return t, nil
}

// lastWords is the end of an error of the template library: the cause stands
// there, after the whole template's text.
func lastWords(err error) string {
	const enough = 200
	text := err.Error()
	if len(text) > enough {
		text = "… " + strings.ToValidUTF8(text[len(text)-enough:], "")
	}
	return text
}

// sandbox is Jinja's environment without files, randomness or endless counting.
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

// boundedRange is range([start, ]stop[, step]) of at most maxRange numbers.
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

// raiseException is how a template refuses a talk, for instance one whose
// roles do not alternate.
func raiseException(_ *exec.Evaluator, args *exec.VarArgs) (string, error) {
	if len(args.Args) == 0 {
		return "", errors.New("the template refuses the messages")
	}
	return "", errors.New(args.Args[0].String())
}

// strftimeNow is today's date in the form a template asks for.
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

// render is the prompt for a talk, up to where the assistant begins to speak.
// What is tried, in order: the model's own template; the same with the talk in
// the strict form some templates insist on; llama.cpp's well-known templates.
// extra are the template's own switches (enable_thinking and its kin).
func (t *chatTemplate) render(talk []turn, extra map[string]any) (string, error) {
	problem := t.problem
	if t.jinja != nil && !t.broken.Load() {
		var prompt string
		for _, form := range [][]turn{talk, strict(talk)} {
			if prompt, problem = t.renderJinja(form, extra); problem == nil {
				return prompt, nil
			}
			if t.broken.Load() {
				break
			}
		}
	}
	if prompt, ok := t.renderKnown(talk); ok {
		return prompt, nil
	}
	return "", fmt.Errorf("cannot bring the messages into the model's form: %w", problem)
}

func (t *chatTemplate) renderJinja(talk []turn, extra map[string]any) (string, error) {
	messages, size := make([]any, len(talk)), 0
	for i, m := range talk {
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
	out := &promptWriter{room: 8*size + maxTemplateBytes + 1024*len(talk)}
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- result{err: fmt.Errorf("the chat template failed: %v", p)}
			}
		}()
		if err := t.jinja.Execute(out, exec.NewContext(data)); err != nil {
			done <- result{err: errors.New(lastWords(err))}
			return
		}
		done <- result{text: out.text.String()}
	}()
	deadline := time.NewTimer(renderTime)
	defer deadline.Stop()
	select {
	case r := <-done:
		return r.text, r.err
	case <-deadline.C:
		out.stop.Store(true)
		t.broken.Store(true)
		return "", fmt.Errorf("the chat template did not end within %v", renderTime)
	}
}

// promptWriter gathers a prompt and fails once it is too long or given up, so
// that a template that writes for ever ends.
type promptWriter struct {
	text strings.Builder
	room int
	stop atomic.Bool
}

// Write satisfies io.Writer.
func (w *promptWriter) Write(p []byte) (int, error) {
	if w.stop.Load() || len(p) > w.room {
		return 0, errors.New("the chat template writes without end")
	}
	w.room -= len(p)
	return w.text.Write(p)
}

// strict is the talk with only user and assistant turns, one after the other:
// what the system says becomes part of the user turn that follows it.
func strict(talk []turn) []turn {
	var out []turn
	for _, m := range talk {
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

// renderKnown lets llama.cpp recognise the template by its looks; it does so
// for the common families only. A model without any is spoken to in ChatML.
func (t *chatTemplate) renderKnown(talk []turn) (string, bool) {
	source := t.source
	if source == "" {
		source = "chatml"
	}
	if len(source) > maxTemplateBytes || len(talk) == 0 {
		return "", false
	}
	chat, size := make([]chatMessage, len(talk)), 256
	for i, m := range talk {
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

// cBytes is s as a NUL-terminated string, cut at a NUL of its own.
func cBytes(s string) *byte {
	s, _, _ = strings.Cut(s, "\x00")
	return &append([]byte(s), 0)[0]
}
