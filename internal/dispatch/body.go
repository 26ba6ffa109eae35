package dispatch

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/registry"
)

// requestBody is the body of a request to a machine. It records whether any of it was
// passed to the tunnel, because the caller is informed of every machine that received
// some.
type requestBody struct {
	mu      sync.Mutex
	body    io.ReadCloser
	given   bool
	stopped bool
}

// errStopped ends a body whose request was answered before the body was read.
var errStopped = errors.New("the machine answered before it read the request")

// Read implements io.Reader.
func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return 0, errStopped
	}
	n, err := b.body.Read(p)
	b.given = b.given || n > 0
	return n, err
}

// Close implements io.Closer.
func (b *requestBody) Close() error { return b.body.Close() }

// stop ends the body and reports whether any of it was passed to the tunnel.
func (b *requestBody) stop() (given bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	return b.given
}

// stopIfUnread ends the body if none of it was passed to the tunnel, and reports whether
// it did.
func (b *requestBody) stopIfUnread() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = b.stopped || !b.given
	return !b.given
}

// answerBody is the body of a machine's answer. Closing it ends the call at the machine
// and then releases its slot, in this order, so that the machine learns of the end before
// it gets the next call.
type answerBody struct {
	io.Closer
	in     io.Reader
	ctx    context.Context
	line   registry.Line
	mayRun func() bool // Dispatcher.mayRun
	finish func()
	// unreached returns why the machine's home node ended the answer.
	unreached func(context.Context) error
}

// Read implements io.Reader. The error of an incomplete answer names who ended it: the
// caller, the machine or its engine.
func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.in.Read(p)
	switch {
	case !b.mayRun(): // the process was suspended, and endUnconfirmed has not run yet
		return 0, errUnconfirmed
	case b.ctx.Err() != nil: // the transport may still have buffered bytes if the caller reads slowly
		return 0, context.Cause(b.ctx)
	case err == nil || err == io.EOF:
		return n, err
	case errors.Is(err, ErrUnreached):
		return n, b.unreached(b.ctx)
	case errors.Is(err, ErrLost), b.line.Ended(b.ctx):
		return n, fault.New(fault.MachineOffline, "the machine disconnected during the answer").Because(err)
	default:
		return n, fault.New(fault.EngineError, "the engine failed during the answer").Because(err)
	}
}

// Close implements io.Closer.
func (b *answerBody) Close() error {
	err := b.Closer.Close()
	b.finish()
	return err
}
