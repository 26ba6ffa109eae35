package chatform

import (
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// errNoCalls: the template does not write tool calls.
var errNoCalls = errors.New("it writes no tool calls")

// inspect derives the template's form. It fails if the template cannot render a
// conversation.
func (t *template) inspect() error {
	p := &probe{template: t}
	t.form = &Form{WritesCalls: true}
	if err := p.begin(); err != nil {
		t.form = &Form{WritesCalls: true, ShowsTools: true, Problem: "the chat template cannot be used"}
		return fmt.Errorf("cannot use the model's chat template: %w", err)
	}
	common := *t.form
	name, err := t.syntax(), error(nil)
	if name == "" || syntaxes[name].derived {
		err = p.derive()
	}
	if name != "" && (err != nil || !syntaxes[name].derived) {
		err = nil
		*t.form = common
		p.fixed(name)
	}
	switch {
	case errors.Is(err, errNoCalls):
		marked := *t.form
		*t.form = defaultForm()
		t.form.adopt(&marked)
	case err != nil:
		marked := *t.form
		*t.form = common
		t.form.adopt(&marked)
		t.form.Problem = "cannot read how the chat template writes tool calls: " + err.Error()
	}
	p.deriveThinking()
	return nil
}

// fixed sets the form to that of a syntax.
func (p *probe) fixed(name string) {
	f := p.form
	f.Syntax = name
	plain, one := p.plain(), ""
	reasoned := p.conventions()
	syntaxes[name].set(f)
	one, err := p.calls(probeArguments)
	f.WritesCalls = err == nil && strings.Contains(one, toolA) && strings.Contains(one, valueB)
	if !f.WritesCalls {
		one = ""
	}
	p.marks(plain, reasoned, one)
	syntaxes[name].set(f)
}

// plain returns an answer in text.
func (p *probe) plain() string {
	text, err := p.answer(Message{Content: probeText})
	if err != nil || !strings.Contains(text, probeText) {
		return probeText
	}
	return text
}

// adopt takes the marks of reasoning and text, and what the template expects of
// conversations without calls.
func (f *Form) adopt(from *Form) {
	f.ThinkBegin, f.ThinkEnd = from.ThinkBegin, from.ThinkEnd
	f.ContentBegin, f.ContentEnd, f.TurnEnd = from.ContentBegin, from.ContentEnd, from.TurnEnd
	f.ContentParts, f.ReasoningName = from.ContentParts, from.ReasoningName
}

// begin renders the prompt for a user's message, with tools if the template can.
func (p *probe) begin() (err error) {
	for _, p.tools = range [][]jsontext.Value{probeTools, nil} {
		for _, p.form.ContentParts = range []bool{false, true} {
			var text string
			text, err = p.render(true)
			if err == nil && strings.Contains(text, probeUser) {
				p.form.ShowsTools = strings.Contains(text, toolA) && strings.Contains(text, toolB)
				p.start = afterUser(text)
				return nil
			}
		}
	}
	if err == nil {
		err = errors.New("it leaves out the message")
	}
	return err
}

// conventions finds out what the template expects of calls and of reasoning. It returns
// what follows the user's message if there is reasoning, or "" if the template drops it.
func (p *probe) conventions() (reasoned string) {
	call := []Call{{idA, toolA, `{"` + argA + `":"` + valueA + `"}`}}
	result := Message{Role: "tool", Content: probeResult, CallID: idA, Name: toolA}
	if _, err := p.answer(Message{Calls: call}); err == nil {
		long := []Call{{longID, toolA, call[0].Arguments}}
		_, err = p.answer(Message{Calls: long})
		p.form.ShortIDs = err != nil
	}
	for _, name := range []string{"", "thinking", "reasoning"} {
		p.form.ReasoningName = name
		for _, m := range []Message{{Content: probeText}, {Calls: call}} {
			m.Role, m.Reasoning = "assistant", probeReasoning
			messages := []Message{m}
			for range 2 {
				text, err := p.render(false, messages...)
				if err == nil && strings.Contains(text, probeReasoning) {
					_, err = p.answer(Message{Reasoning: probeReasoning, Calls: call})
					_, withContent := p.answer(Message{Content: probeText, Reasoning: probeReasoning, Calls: call})
					p.form.NoContentWithCalls = err == nil && withContent != nil
					return afterUser(text)
				}
				messages = append(messages, result)
			}
		}
	}
	p.form.ReasoningName = ""
	return ""
}

// reasoningMarks are the marks of reasoning that models use whose templates drop it.
var reasoningMarks = [][2]string{
	{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}, {"<|START_THINKING|>", "<|END_THINKING|>"},
	{"<seed:think>", "</seed:think>"}, {"<mm:think>", "</mm:think>"}, {"<thinking>", "</thinking>"},
	{"<|channel>thought", "<channel|>"}, {"<|begin_of_thought|>", "<|end_of_thought|>"},
	{"<|inner_prefix|>", "<|inner_suffix|>"}, {"<reasoning>", "</reasoning>"}, {"<|thought_start|>", "<|thought_end|>"},
}

// marks derives the marks of reasoning and text. plain is an answer in text, one an answer
// with a call, reasoned the end of a conversation with reasoning; each may be "".
func (p *probe) marks(plain, reasoned, one string) {
	f := p.form
	before, after, _ := strings.Cut(plain, probeText)
	p.thinkMarks(reasoned, before)
	for _, mark := range []string{f.ThinkBegin, f.ThinkEnd} {
		if i := strings.LastIndex(before, mark); mark != "" && i >= 0 {
			before = before[i+len(mark):]
		}
	}
	if _, call, found := strings.Cut(one, f.ThinkEnd); found && f.ThinkEnd != "" { // what begins text and calls alike
		if shared := before[:head(before, call)]; strings.Trim(shared, white) != "" && shared != before {
			f.ThinkEnd, before = f.ThinkEnd+shared, before[len(shared):]
		}
	}
	f.ContentBegin = strings.Trim(before, white)
	p.endMarks(after, one)
	for _, mark := range []*string{&f.ThinkBegin, &f.ThinkEnd, &f.ContentBegin, &f.ContentEnd, &f.TurnEnd, &f.CallTurnEnd} {
		if len(*mark) > maxLiteral {
			*mark = ""
		}
	}
}

// thinkMarks derives the marks of reasoning. before is what is before the text of an answer
// without reasoning.
func (p *probe) thinkMarks(reasoned, before string) {
	f := p.form
	shared := head(reasoned, p.start)
	begin, rest, found := strings.Cut(reasoned[shared:], probeReasoning)
	if !found {
		i := slices.IndexFunc(reasoningMarks, func(m [2]string) bool {
			return strings.Contains(p.source.Text, m[0]) || strings.Contains(p.source.Text, m[1])
		})
		if i >= 0 {
			f.ThinkBegin, f.ThinkEnd = reasoningMarks[i][0], reasoningMarks[i][1]
		}
		return
	}
	end, _, _ := strings.Cut(rest, probeText)
	text, ok := strings.CutSuffix(end, before)
	if text = strings.Trim(text, white); ok && text != "" && strings.Trim(before, white) != "" {
		f.ThinkEnd = text
	} else {
		f.ThinkEnd = firstUnit(end)
	}
	if f.ThinkBegin = strings.Trim(begin, white); f.ThinkBegin != "" {
		return
	}
	// The prompt has it: after what it shares with earlier answers, or at its end.
	if f.ThinkBegin = strings.Trim(p.start[shared:], white); f.ThinkBegin == "" || strings.Contains(f.ThinkBegin, f.ThinkEnd) {
		f.ThinkBegin = lastUnit(p.start[:shared])
	}
}

// endMarks derives the marks after text, and at the end of an answer. after is what is
// after the text of an answer.
func (p *probe) endMarks(after, one string) {
	f := p.form
	common := after
	if one != "" {
		common = after[len(after)-tail(after, one):]
	}
	f.TurnEnd = firstUnit(common)
	switch eos := p.source.EOS; {
	case f.TurnEnd != "":
		f.ContentEnd = strings.Trim(strings.TrimSuffix(after, common), white)
	case strings.Trim(after, white) != "": // an answer with calls ends in another way
		f.TurnEnd = firstUnit(after)
		if end := lastUnit(one); end != f.TurnEnd {
			f.CallTurnEnd = end
		}
	case eos != "" && strings.HasSuffix(strings.TrimRight(one, white), eos):
		f.CallTurnEnd = eos
	}
}
