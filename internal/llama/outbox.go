package llama

import (
	"context"
	"sync"

	"github.com/kith/kith/internal/llama/chatform"
)

// outbox passes an answer from the runner to the handler that sends it. The runner never
// waits for a slow reader: text accumulates, and the reader takes all of it at once.
type outbox struct {
	wake chan struct{} // contains a value if there is something to take

	mu       sync.Mutex
	events   []chatform.Event
	logprobs []logprob // of the text in events
	tokens   int
	ended    bool
	finish   ending
	err      error
}

// ending is how an answer ended.
type ending struct {
	reason string // its finish_reason
	stop   string // the stop string that ended it, or ""
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

// add appends events and their logprobs. tokens is the current number of tokens in the
// answer.
func (o *outbox) add(events []chatform.Event, logprobs []logprob, tokens int) {
	o.mu.Lock()
	o.events = append(o.events, events...)
	o.logprobs = append(o.logprobs, logprobs...)
	o.tokens = tokens
	o.mu.Unlock()
	if len(events) > 0 || len(logprobs) > 0 {
		o.signal()
	}
}

// count returns the current number of tokens in the answer.
func (o *outbox) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tokens
}

// end ends the answer with finish or with err.
func (o *outbox) end(finish ending, err error) {
	o.mu.Lock()
	o.ended, o.finish, o.err = true, finish, err
	o.mu.Unlock()
	o.signal()
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// part is the text since the last take and, if ended, the end of the answer.
type part struct {
	events   []chatform.Event
	logprobs []logprob
	tokens   int
	ended    bool
	finish   ending
}

// take waits for text, the end of the answer, or the end of ctx.
func (o *outbox) take(ctx context.Context) (part, error) {
	select {
	case <-o.wake:
	case <-ctx.Done():
		return part{}, ctx.Err()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return part{}, o.err
	}
	p := part{events: o.events, logprobs: o.logprobs, tokens: o.tokens, ended: o.ended, finish: o.finish}
	o.events, o.logprobs = nil, nil
	return p, nil
}
