package llama

import (
	"context"
	"sync"
)

// outbox carries one answer from a model's loop to the handler that sends it.
// The loop never waits for a slow reader: text gathers here, and the reader
// takes all of it at once.
type outbox struct {
	wake chan struct{} // holds a token while there is something to take

	mu     sync.Mutex
	text   []byte
	likely []logprob // of the text
	tokens int
	ended  bool
	finish ending
	err    error
}

// ending is how an answer ended.
type ending struct {
	reason string // its finish_reason
	stop   string // the stop string that did it; empty: none did
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

// add appends text and its logprobs, if they are asked for; tokens is how many
// the answer has so far.
func (o *outbox) add(text string, likely []logprob, tokens int) {
	o.mu.Lock()
	o.text = append(o.text, text...)
	o.likely = append(o.likely, likely...)
	o.tokens = tokens
	o.mu.Unlock()
	if text != "" || len(likely) > 0 {
		o.signal()
	}
}

// end closes the answer: finish is how it ended, or err is why it failed.
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

// part is what take returns: text since the last one and, once the answer is
// over, how it ended.
type part struct {
	text   string
	likely []logprob
	tokens int
	ended  bool
	finish ending
}

// take waits for more of the answer, its end, or the client's leaving.
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
	p := part{text: string(o.text), likely: o.likely, tokens: o.tokens, ended: o.ended, finish: o.finish}
	o.text, o.likely = o.text[:0], nil
	return p, nil
}
