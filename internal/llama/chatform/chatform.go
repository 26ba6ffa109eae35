// Package chatform reads a model's chat template: it renders conversations with it,
// derives from renderings how the model writes tool calls, and reads the calls in what
// the model writes. It contains no table of models: all that it needs is in the template.
//
// Templates come from untrusted model files, and the template library limits neither time
// nor memory. So a Renderer runs each in a child process, which it kills and replaces.
package chatform

import (
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"strings"

	"github.com/ardanlabs/jinja"
)

// MaxSource limits a template, in bytes.
const MaxSource = 256 << 10

// Source is a model's chat template with what it refers to.
type Source struct {
	Text string `json:"text"`
	// WithTools is the template for conversations with tools, if the model has a second
	// one; "" means Text.
	WithTools string `json:"with_tools,omitempty"`
	BOS       string `json:"bos"`
	EOS       string `json:"eos"`
	// Control are the texts of the model's control tokens. In a conversation they are
	// text: a file that an agent reads must not end a turn.
	Control []string `json:"control,omitempty"`
}

// Conversation is what a template renders.
type Conversation struct {
	Messages []Message `json:"messages"`
	// Tools are the tools of a chat call, with the members in the caller's order; empty
	// means that the template gets none.
	Tools []jsontext.Value `json:"tools,omitempty"`
	// Variables are further variables of the template, such as enable_thinking.
	Variables map[string]any `json:"variables,omitempty"`
	// Answer ends the prompt with the beginning of the model's answer.
	Answer bool `json:"answer"`
}

// Message is one message of a conversation. Content is text: other content is not
// supported.
type Message struct {
	Role      string `json:"role"`
	Content   string `json:"content"`
	Reasoning string `json:"reasoning,omitempty"` // of an assistant
	Calls     []Call `json:"calls,omitempty"`     // of an assistant
	// CallID and Name are the id of the call that a tool message answers, and the name of
	// its tool.
	CallID string `json:"call_id,omitempty"`
	Name   string `json:"name,omitempty"`
}

// Call is a tool call. Arguments is a JSON object; if it is not, the template gets it as
// text.
type Call struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// template is a compiled template.
type template struct {
	source           Source
	plain, withTools *jinja.Template
	form             *Form // before inspect that of a template that writes all
	control          *hider
}

func compile(s Source) (*template, error) {
	t := &template{source: s, control: newHider(s.Control), form: &Form{WritesCalls: true, ShowsTools: true, Parallel: true, Kind: KindJSON}}
	var err error
	if t.plain, err = compileText(s.Text); err != nil {
		return nil, err
	}
	if t.withTools = t.plain; s.WithTools != "" {
		t.withTools, err = compileText(s.WithTools)
	}
	return t, err
}

// adjacent removes the minus of a tag that directly follows another one. It has no effect
// there, but the library removes the white space before the other one.
var adjacent = strings.NewReplacer(
	"}}{%-", "}}{%", "}}{{-", "}}{{", "}}{#-", "}}{#",
	"%}{%-", "%}{%", "%}{{-", "%}{{", "%}{#-", "%}{#",
	"#}{%-", "#}{%", "#}{{-", "#}{{", "#}{#-", "#}{#",
)

// asJinja returns the text of a template that the library renders as Jinja2 does the
// original: Jinja2 also ignores a line break at its end.
func asJinja(text string) string {
	return adjacent.Replace(strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r"))
}

func compileText(text string) (*jinja.Template, error) {
	switch {
	case text == "":
		return nil, errors.New("the model has no chat template")
	case len(text) > MaxSource:
		return nil, fmt.Errorf("the model's chat template is larger than %d bytes", MaxSource)
	}
	t, err := jinja.Compile(asJinja(text))
	if err != nil {
		return nil, fmt.Errorf("cannot read the model's chat template: %w", err)
	}
	return t, nil
}

// render returns the prompt. In it, control tokens of the conversation are hidden. If the
// template refuses the messages, they are merged so that their roles alternate.
func (t *template) render(c *Conversation) (text string, hidden *hidden, err error) {
	c = t.prepare(c)
	text, hidden, err = t.renderOnce(c)
	if err == nil {
		return text, hidden, nil
	}
	merged := *c
	merged.Messages = alternating(c.Messages)
	if text, hidden, err2 := t.renderOnce(&merged); err2 == nil {
		return text, hidden, nil
	}
	return "", nil, err
}

// tail returns the end of a prompt that the template wrote after the last message.
func (t *template) tail(c *Conversation, prompt string, hidden *hidden) string {
	const enough = 32 // a shorter text may be a part of what the template writes
	last := hidden.hide(strings.TrimSpace(c.Messages[len(c.Messages)-1].Content))
	last = last[max(len(last)-maxLiteral, 0):]
	i := strings.LastIndex(prompt, last)
	if i >= 0 && len(last) >= enough {
		return prompt[i+len(last):]
	}
	without := *c
	without.Answer = false
	text, _, err := t.render(&without)
	if err != nil {
		return ""
	}
	if text == prompt && i >= 0 { // the template always ends with the beginning of an answer
		return prompt[i+len(last):]
	}
	return prompt[head(prompt, text):]
}

// renderOnce returns the prompt for a conversation as it is.
func (t *template) renderOnce(c *Conversation) (text string, hidden *hidden, err error) {
	hidden = t.control.begin(c)
	values, err := t.values(c, hidden)
	if err != nil {
		return "", nil, err
	}
	of := t.plain
	if len(c.Tools) > 0 {
		of = t.withTools
	}
	text, err = of.RenderValues(values)
	return text, hidden, err
}

// values returns the variables of the template.
func (t *template) values(c *Conversation, hidden *hidden) (map[string]jinja.Value, error) {
	messages := make([]jinja.Value, len(c.Messages))
	for i := range c.Messages {
		messages[i] = t.message(&c.Messages[i], hidden)
	}
	values := map[string]jinja.Value{
		"messages":              jinja.NewList(messages),
		"add_generation_prompt": jinja.NewBool(c.Answer),
		"bos_token":             jinja.NewString(t.source.BOS),
		"eos_token":             jinja.NewString(t.source.EOS),
	}
	for name, value := range c.Variables {
		values[name] = jinja.FromGoValue(value)
	}
	if len(c.Tools) > 0 {
		tools := make([]jinja.Value, len(c.Tools))
		for i, tool := range c.Tools {
			var err error
			if tools[i], err = valueOf(tool, hidden.hide); err != nil {
				return nil, err
			}
		}
		values["tools"] = jinja.NewList(tools)
	}
	return values, nil
}

// message returns a message as transformers passes it to templates.
func (t *template) message(m *Message, hidden *hidden) jinja.Value {
	v := jinja.NewDict()
	d := v.AsDict()
	text := func(name, s string) { d.Set(name, jinja.NewString(hidden.hide(s))) }
	text("role", m.Role)
	content := hidden.hide(m.Content)
	if len(m.Calls) > 0 && !t.form.WritesCalls {
		calls := make([]Call, len(m.Calls))
		for i, c := range m.Calls {
			calls[i] = Call{Name: hidden.hide(c.Name), Arguments: hidden.hide(c.Arguments)}
		}
		content = strings.TrimLeft(content+"\n"+t.form.callsAsText(calls), "\n")
	}
	if !t.form.NoContentWithCalls || len(m.Calls) == 0 || m.Reasoning == "" {
		t.content(d, content)
	}
	if m.Reasoning != "" {
		text("reasoning_content", m.Reasoning)
		if t.form.ReasoningName != "" {
			text(t.form.ReasoningName, m.Reasoning)
		}
	}
	if len(m.Calls) > 0 && t.form.WritesCalls {
		calls := make([]jinja.Value, len(m.Calls))
		for i, c := range m.Calls {
			function := object("name", jinja.NewString(hidden.hide(c.Name)), "arguments", t.arguments(c.Arguments, hidden))
			id := jinja.NewString(hidden.hide(t.form.callID(c.ID)))
			calls[i] = object("id", id, "type", jinja.NewString("function"), "function", function)
		}
		d.Set("tool_calls", jinja.NewList(calls))
	}
	if m.Role == "tool" {
		text("tool_call_id", t.form.callID(m.CallID))
		text("name", m.Name)
	}
	return v
}

// content sets the content of a message: text, or a list with it if the template only
// reads lists.
func (t *template) content(d *jinja.Dict, text string) {
	content := jinja.NewString(text)
	if t.form.ContentParts {
		content = jinja.NewList([]jinja.Value{object("type", jinja.NewString("text"), "text", content)})
	}
	d.Set("content", content)
}

// arguments returns the arguments of a call: an object, or text if the template writes
// them as they are.
func (t *template) arguments(text string, hidden *hidden) jinja.Value {
	if !t.form.TextArguments {
		if v, err := valueOf(jsontext.Value(text), hidden.hide); err == nil && v.IsDict() {
			return v
		}
	}
	return jinja.NewString(hidden.hide(text))
}

// object returns a dict of names and values.
func object(members ...any) jinja.Value {
	v := jinja.NewDict()
	for i := 0; i < len(members); i += 2 {
		v.AsDict().Set(members[i].(string), members[i+1].(jinja.Value))
	}
	return v
}
