package chatform

import (
	"bytes"
	"encoding/json/jsontext"
	"fmt"
	"iter"
	"path"
	"runtime"
	"slices"
	"strings"
)

// ReaderOptions describe the answer that a Reader reads.
type ReaderOptions struct {
	// Tools are the tools that may be called. Without tools the answer has no calls.
	Tools []Tool
	// Prompt is the end of the prompt, which the template writes after the last message: it
	// may open reasoning or begin a call.
	Prompt string
}

// Tool is a tool that may be called. Parameters is the JSON schema of its arguments.
type Tool struct {
	Name       string
	Parameters jsontext.Value
}

// EventKind is the kind of an Event.
type EventKind uint8

const (
	EventReasoning EventKind = iota // Text is reasoning
	EventText                       // Text is text
	EventCall                       // a call of Name begins
	EventArguments                  // Text is a part of the arguments of the call
)

// Event is a part of an answer.
type Event struct {
	Kind EventKind
	Text string
	// Index counts the calls of the answer, from 0. ID is the model's id of the call, or "".
	Index int
	ID    string
	Name  string
}

const (
	// maxCalls limits the calls of an answer; further ones are text.
	maxCalls = 16
	// maxArguments limits the arguments of a call, in bytes.
	maxArguments = 1 << 20
)

// Reader reads an answer while the model writes it: reasoning, then text, then calls, then
// text. It reports a part as soon as no later text can change what it is. The answer is
// parsed in a coroutine that waits for text in more, so Close must be called.
type Reader struct {
	form  *Form
	tools map[string]schema
	names []string // of tools, longest first

	resume  func() (struct{}, bool)
	wait    func(struct{}) bool
	buf     []byte // the answer from base on
	base    int
	pos     int // what is read of buf
	ended   bool
	cut     bool // the answer ended before the model did
	starved bool // more text was needed than the answer has

	err     error
	events  []Event
	quiet   bool // text is not reported
	held    bool // what was read may be read again: it may be no call
	guess   *guess
	inCall  bool
	trigger int // the offset of the beginning of the calls
	calls   int
	id      string // of the call that begins
	size    int    // of the arguments of the current call
}

// guess is a call within reasoning. It is reasoning, too, if the reasoning ends later.
type guess struct {
	events  []Event
	scanned int  // the offset up to which the end of the reasoning was searched
	refuted bool // the reasoning ends later
}

// NewReader returns a reader of an answer.
func (f *Form) NewReader(o ReaderOptions) *Reader {
	r := &Reader{form: f, tools: map[string]schema{}}
	for _, t := range o.Tools {
		if t.Name != "" {
			r.tools[t.Name] = newSchema(t.Parameters)
			r.names = append(r.names, t.Name)
		}
	}
	slices.SortFunc(r.names, longest)
	r.resume, _ = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if p := recover(); p != nil {
				r.err = newPanicError(p)
			}
		}()
		r.wait = yield
		if read := syntaxes[f.Syntax].read; read != nil {
			read(r, o)
		} else {
			r.answer(o)
		}
	})
	r.resume() // reads the end of the prompt
	return r
}

// Write reads a part of the answer and returns what is certain.
func (r *Reader) Write(text string) []Event {
	r.buf = append(r.buf, text...)
	r.resume()
	return r.take()
}

// Close reads the end of the answer. The reason is its finish_reason.
func (r *Reader) Close(reason string) []Event {
	r.ended, r.cut = true, reason == "length"
	r.resume() // to its end: more does not wait
	return r.take()
}

// Err returns why the rest of the answer cannot be read, or nil. It is a defect of this
// package, which costs one answer and not the process.
func (r *Reader) Err() error { return r.err }

// newPanicError returns a panic as an error, with the place in the code and nothing of the
// answer. It must be called by the function that recovered.
func newPanicError(p any) error {
	var callers [16]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(3, callers[:])]) // without the deferred function
	frame, more := frames.Next()
	for more && strings.HasPrefix(frame.Function, "runtime.") {
		frame, more = frames.Next()
	}
	cause := "panic"
	if err, ok := p.(runtime.Error); ok {
		cause = err.Error()
	}
	return fmt.Errorf("%s at %s:%d", cause, path.Base(frame.File), frame.Line)
}

// InCall reports whether the model writes calls, as far as it is certain.
func (r *Reader) InCall() bool { return r.inCall }

// Trigger returns how many bytes before the end of what was written the calls begin. It is
// more than was written if the prompt begins them.
func (r *Reader) Trigger() int { return r.base + len(r.buf) - r.trigger }

func (r *Reader) take() []Event {
	events := r.events
	r.events = nil
	return events
}

// emit reports an event. Text of the same kind is joined.
func (r *Reader) emit(e Event) {
	to := &r.events
	if r.guess != nil {
		to = &r.guess.events
	}
	if e.Kind != EventCall && (e.Text == "" || r.quiet) {
		return
	}
	if n := len(*to); n > 0 && e.Kind != EventCall && (*to)[n-1].Kind == e.Kind {
		(*to)[n-1].Text += e.Text
		return
	}
	*to = append(*to, e)
}

// beginCall reports a call.
func (r *Reader) beginCall(name, id string) {
	r.emit(Event{Kind: EventCall, Index: r.calls, ID: id, Name: name})
	r.calls++
	r.size = 0
	r.held = false
	r.inCall = r.guess == nil
}

// arguments reports a part of the arguments of the last call.
func (r *Reader) arguments(text string) {
	if r.size += len(text); r.size <= maxArguments {
		r.emit(Event{Kind: EventArguments, Text: text, Index: r.calls - 1})
	}
}

// at returns the offset of what is read next, and back returns to one.
func (r *Reader) at() int         { return r.base + r.pos }
func (r *Reader) back(offset int) { r.pos = offset - r.base }
func (r *Reader) rest() []byte    { return r.buf[r.pos:] }

// discard forgets what was read, unless it may be read again.
func (r *Reader) discard() {
	if r.guess == nil && !r.held && r.pos > 4096 && r.pos > len(r.buf)/2 {
		r.base += r.pos
		r.buf, r.pos = append(r.buf[:0], r.rest()...), 0
	}
}

// more waits for more text. It reports false at the end of the answer.
func (r *Reader) more() bool {
	size := len(r.buf)
	for !r.ended && len(r.buf) == size && !r.refuted() {
		r.wait(struct{}{})
	}
	r.starved = r.ended
	return len(r.buf) > size && !r.refuted()
}

// refuted reports whether the call that is read is reasoning: the reasoning ends later.
func (r *Reader) refuted() bool {
	g := r.guess
	if g == nil || g.refuted {
		return g != nil
	}
	end := r.form.ThinkEnd
	g.refuted = bytes.Contains(r.buf[max(g.scanned-r.base, 0):], []byte(end))
	g.scanned = r.base + max(len(r.buf)-len(end), 0)
	return g.refuted
}

// peek reports whether n bytes can be read.
func (r *Reader) peek(n int) bool {
	for len(r.rest()) < n {
		if !r.more() {
			return false
		}
	}
	return true
}

// white skips white space.
func (r *Reader) white() {
	for {
		r.pos = len(r.buf) - len(bytes.TrimLeft(r.rest(), white))
		if len(r.rest()) > 0 || !r.more() {
			return
		}
	}
}

// has reports whether s is next.
func (r *Reader) has(s string) bool {
	for i := range len(s) {
		if !r.peek(i+1) || r.rest()[i] != s[i] {
			return false
		}
	}
	return true
}

// skip reads s if it is next.
func (r *Reader) skip(s string) bool {
	if !r.has(s) {
		return false
	}
	r.pos += len(s)
	return true
}

// literal reads a literal of the form. White space in it matches any, and none. If the
// literal is not next, nothing is read; short reports that the answer ended within it.
func (r *Reader) literal(literal string) (ok, short bool) {
	start, id := r.at(), ""
	r.white()
	for i := 0; i < len(literal); i++ {
		c := literal[i]
		switch {
		case strings.IndexByte(white, c) >= 0:
			r.white()
		case c <= MarkArguments[0]:
			word := r.word()
			if c == MarkID[0] {
				id = word
			}
		case !r.peek(1):
			r.back(start)
			return false, i > 0
		case r.rest()[0] == c:
			r.pos++
		case strings.IndexByte(white, r.rest()[0]) >= 0 && i > 0 && !(isWord(c) && isWord(literal[i-1])):
			r.white()
			i--
		default:
			r.back(start)
			return false, false
		}
	}
	if id != "" {
		r.id = id
	}
	return true, false
}

// word reads the letters, digits and signs of a name or an id.
func (r *Reader) word() string {
	start := r.at()
	for r.peek(1) && isWord(r.rest()[0]) {
		r.pos++
	}
	return string(r.buf[start-r.base : r.pos])
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_-.:", c) >= 0
}

// until reports text of a kind up to the first of the marks, and reads to the mark. White
// space before the mark is returned and not reported. At the end of the answer which is -1.
func (r *Reader) until(kind EventKind, marks []string) (which int, space string) {
	for {
		s := r.rest()
		at := len(s)
		which = -1
		for i, m := range marks { // the first one, and of two there the longer
			j := bytes.Index(s[:min(at+len(m), len(s))], []byte(m))
			if j >= 0 && (j < at || which >= 0 && len(m) > len(marks[which])) {
				at, which = j, i
			}
		}
		keep := at
		for _, m := range marks {
			if n := partial(s, m); n > 0 && len(s)-n <= keep && !r.ended { // it may become a longer one
				keep, which = len(s)-n, -1
			}
		}
		text := s[:keep]
		if len(marks) > 0 {
			text = bytes.TrimRight(text, white)
		}
		r.emit(Event{Kind: kind, Text: string(text)})
		r.pos += len(text)
		if which >= 0 {
			space = string(s[len(text):at])
			r.pos += len(space)
			return which, space
		}
		r.discard()
		if !r.more() && !r.hasAny(marks) {
			r.emit(Event{Kind: kind, Text: string(r.rest())})
			r.pos = len(r.buf)
			return -1, ""
		}
	}
}

// hasAny reports whether one of the marks follows.
func (r *Reader) hasAny(marks []string) bool {
	return slices.ContainsFunc(marks, func(m string) bool { return bytes.Contains(r.rest(), []byte(m)) })
}

// partial returns the length of the longest end of text that begins mark.
func partial(text []byte, mark string) int {
	for n := min(len(text), len(mark)-1); n > 0; n-- {
		if string(text[len(text)-n:]) == mark[:n] {
			return n
		}
	}
	return 0
}
