package chatform

import (
	"bytes"
	"slices"
	"strings"
)

// answer reads an answer in a form that its literals describe.
func (r *Reader) answer(o ReaderOptions) {
	if !r.begunCall(o.Prompt) && r.beginsReasoning(o.Prompt) {
		r.reasoning()
	}
	r.text()
}

// begunCall reads calls that the end of the prompt begins. If the answer does not go on
// with one, nothing is read.
func (r *Reader) begunCall(prompt string) bool {
	f := r.form
	if len(r.names) == 0 {
		return false
	}
	if i := strings.LastIndex(prompt, f.ThinkEnd); f.ThinkEnd != "" && i >= 0 {
		prompt = prompt[i+len(f.ThinkEnd):]
	}
	for _, t := range f.triggers() {
		i := strings.Index(prompt, t.text)
		if !t.certain || i < 0 || !f.begins(prompt[i:]) {
			continue
		}
		r.buf = append([]byte(prompt[i:]), r.buf...)
		r.base = -len(prompt[i:])
		if r.readCalls(false) {
			r.white()
			return true
		}
		r.back(0)
		return false
	}
	return false
}

// beginsReasoning reports whether the answer begins with reasoning, whose mark is written
// by the prompt or the model.
func (r *Reader) beginsReasoning(prompt string) bool {
	f := r.form
	if f.ThinkEnd == "" {
		return false
	}
	if f.opensReasoning(prompt) {
		return true
	}
	start := r.at()
	r.white()
	if f.ThinkBegin != "" && r.skip(f.ThinkBegin) {
		return true
	}
	if r.skip(f.ThinkEnd) { // without reasoning
		r.newlines()
		return false
	}
	r.back(start)
	return false
}

// opensReasoning reports whether the end of a prompt begins reasoning.
func (f *Form) opensReasoning(prompt string) bool {
	return f.ThinkBegin != "" && strings.LastIndex(prompt, f.ThinkBegin) > strings.LastIndex(prompt, f.ThinkEnd)
}

// Reasoning returns the marks around the reasoning that an answer begins with after the end
// of a prompt. begin is "" if the prompt has it, else the answer may do without reasoning.
// Both are "" if there can be none.
func (f *Form) Reasoning(prompt string) (begin, end string) {
	switch {
	case f.ThinkEnd == "" || f.opensReasoning(prompt):
		return "", f.ThinkEnd
	case f.ThinkBegin == "" || strings.Contains(prompt, f.ThinkEnd):
		return "", ""
	}
	return f.ThinkBegin, f.ThinkEnd
}

// begins reports whether the end of a prompt begins a call.
func (f *Form) begins(end string) bool {
	short := func(s string) string { return strings.NewReplacer(" ", "", "\n", "", "\t", "", "\r", "").Replace(s) }
	end = short(end)
	for _, literal := range []string{f.head(), strings.TrimPrefix(f.head(), f.Begin)} {
		if literal = short(beforeMarks(literal)); strings.HasPrefix(end, literal) || strings.HasPrefix(literal, end) {
			return true
		}
	}
	return false
}

// newlines skips line breaks.
func (r *Reader) newlines() {
	for r.peek(1) && (r.rest()[0] == '\n' || r.rest()[0] == '\r') {
		r.pos++
	}
}

// reasoning reads reasoning up to its end.
func (r *Reader) reasoning() {
	r.newlines()
	f := r.form
	marks := []string{f.ThinkEnd}
	if strings.ContainsAny(f.ContentBegin, "<[") {
		marks = append(marks, f.ContentBegin) // text begins although reasoning has not ended
	}
	first := len(marks) // mark of calls
	if len(r.names) > 0 {
		for _, t := range f.triggers() {
			if t.certain {
				marks = append(marks, t.text)
			}
		}
	}
	for {
		which, space := r.until(EventReasoning, marks)
		if which == 0 {
			r.pos += len(f.ThinkEnd)
			r.newlines()
		}
		if which < first || r.guessCalls() {
			return
		}
		r.emit(Event{Kind: EventReasoning, Text: space + marks[which]})
		r.pos += len(marks[which])
	}
}

// guessCalls reads calls within reasoning. They are calls if the reasoning does not end
// after them: some models call tools without ending it. Else nothing is read.
func (r *Reader) guessCalls() bool {
	start, calls := r.at(), r.calls
	r.guess = &guess{scanned: start}
	if r.readCalls(true) {
		after := r.at()
		for r.white(); r.more(); r.pos = len(r.buf) {
		}
		rest := len(bytes.Trim(r.buf[after-r.base:], white))
		r.back(after)
		if g := r.guess; !r.refuted() && !(r.cut && rest > 0) {
			r.guess = nil
			r.events = append(r.events, g.events...)
			return true
		}
	}
	r.guess, r.calls = nil, calls
	r.back(start)
	return false
}

// text reads text and calls.
func (r *Reader) text() {
	f := r.form
	if f.ContentBegin != "" {
		r.literal(f.ContentBegin)
	}
	var triggers []trigger
	if len(r.names) > 0 {
		triggers = f.triggers()
		if len(triggers) == 0 && f.Tools() { // a call begins the answer
			start := r.at()
			if r.white(); r.has("{") && r.readCalls(false) {
				r.white()
			} else {
				r.back(start)
			}
		}
	}
	var marks []string
	for _, t := range triggers {
		marks = append(marks, t.text)
	}
	for _, m := range append([]string{f.ContentEnd, f.TurnEnd, f.CallTurnEnd}, syntaxes[f.Syntax].within...) {
		if m != "" && !slices.Contains(marks, m) {
			marks = append(marks, m)
		}
	}
	for {
		which, space := r.until(EventText, marks)
		if which < 0 {
			return
		}
		if which < len(triggers) {
			if r.calls < maxCalls && r.readCalls(triggers[which].certain) {
				r.white()
				continue
			}
			if r.cut && r.starved && triggers[which].certain {
				return // nothing is known of the call
			}
		} else if slices.Contains(syntaxes[f.Syntax].within, marks[which]) {
			if r.pos += len(marks[which]); marks[which] == f.ThinkBegin {
				r.reasoning()
			}
			continue
		} else if r.skipEnd(marks[which]) {
			continue
		}
		r.emit(Event{Kind: EventText, Text: space + marks[which]})
		r.pos += len(marks[which])
	}
}

// skipEnd reads a mark after text if the text ends there.
func (r *Reader) skipEnd(mark string) bool {
	start := r.at()
	r.pos += len(mark)
	if mark == r.form.ContentEnd {
		return true
	}
	if r.white(); len(r.rest()) == 0 {
		return true
	}
	r.back(start)
	return false
}
