package dialect

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// maxWaitingCalls bounds the tool calls that wait for one before them to end.
	maxWaitingCalls = 1024
	// maxWaitingText bounds what those have said so far, in bytes.
	maxWaitingText = 4 << 20
)

// callQueue puts the parts of tool calls in order for dialects in which calls
// never interleave. The parts of one call pass as they come; those of calls that
// begin before it is over wait, and pass once it is: when its arguments are one
// complete JSON object, or when something else comes.
type callQueue struct {
	begun     bool // any call has
	open      bool
	call      openCall // that passes, while open
	arguments nesting  // of that call
	waiting   []waitingCall
	held      int // bytes of what waits
}

// waitingCall is a call whose parts wait: the inside of its arguments' string.
type waitingCall struct {
	openCall
	name, arguments []byte
}

// take takes a part and gives pass what can pass by now, in order. A name begins a
// call, unless it is the name of a call that is known.
func (q *callQueue) take(c *callDelta, pass func(*callDelta) error) error {
	switch later := q.later(c); {
	case q.open && q.call.continues(c):
		q.arguments.read(c.arguments)
		if err := pass(c); err != nil {
			return err
		}
	case later != nil:
		return q.hold(later, c)
	case c.name == nil && q.begun && len(bytes.TrimSpace(unquote(c.arguments))) == 0: // of a call that is over
		return nil
	case c.name == nil:
		return invalidAnswer("parts of tool calls out of order")
	case q.open && !q.arguments.over():
		if len(q.waiting) == maxWaitingCalls {
			return invalidAnswer("too many tool calls at once")
		}
		q.waiting = append(q.waiting, waitingCall{name: bytes.Clone(c.name)})
		later = &q.waiting[len(q.waiting)-1]
		later.begin(c)
		return q.hold(later, c)
	default:
		return q.begin(c, pass)
	}
	for len(q.waiting) > 0 && q.arguments.over() {
		if err := q.next(pass); err != nil {
			return err
		}
	}
	return nil
}

// later is the waiting call that c is a part of; nil: none.
func (q *callQueue) later(c *callDelta) *waitingCall {
	for i := range q.waiting {
		if q.waiting[i].continues(c) {
			return &q.waiting[i]
		}
	}
	return nil
}

// hold keeps a part of a call that waits.
func (q *callQueue) hold(w *waitingCall, c *callDelta) error {
	if q.held += len(c.arguments) + len(c.name); q.held > maxWaitingText {
		return invalidAnswer("parallel tool calls of more than 4 MiB")
	}
	if c.arguments != nil {
		w.arguments = append(w.arguments, c.arguments[1:len(c.arguments)-1]...)
	}
	return nil
}

// begin passes the first part of a call.
func (q *callQueue) begin(c *callDelta, pass func(*callDelta) error) error {
	q.begun, q.open, q.arguments = true, true, nesting{}
	q.call.begin(c)
	q.arguments.read(c.arguments)
	return pass(c)
}

// next passes all that is there of the first call that waits.
func (q *callQueue) next(pass func(*callDelta) error) error {
	w := q.waiting[0]
	q.waiting = q.waiting[1:]
	q.held -= len(w.arguments)
	c := callDelta{index: w.index, name: w.name}
	if len(w.id) > 0 {
		c.id = w.id
	}
	if len(w.arguments) > 0 {
		c.arguments = append(append([]byte{'"'}, w.arguments...), '"')
	}
	return q.begin(&c, pass)
}

// end passes all that waits: no part of these calls may come any more.
func (q *callQueue) end(pass func(*callDelta) error) error {
	for len(q.waiting) > 0 {
		if err := q.next(pass); err != nil {
			return err
		}
	}
	q.open, q.held = false, 0
	return nil
}

// nesting follows the arguments of a call, part by part, to see where the object
// that they are ends.
type nesting struct {
	depth            int
	began            bool
	quoted, escaping bool
}

// over reports whether the object has ended.
func (n *nesting) over() bool { return n.began && n.depth == 0 }

// read reads a part, a JSON string.
func (n *nesting) read(part jsontext.Value) {
	for _, b := range unquote(part) {
		switch {
		case n.escaping:
			n.escaping = false
		case n.quoted && b == '\\':
			n.escaping = true
		case b == '"':
			n.quoted = !n.quoted
		case n.quoted:
		case b == '{', b == '[':
			n.began = true
			n.depth++
		case b == '}', b == ']':
			n.depth--
		}
	}
}
