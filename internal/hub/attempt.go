package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/tunnel"
)

// parting is how long a broken exchange waits to learn whether its whole line
// has ended: HTTP/2 tells the streams of a connection's end, and a daemon that
// stops resets them, a moment before the line is closed.
const parting = 250 * time.Millisecond

// maxRefusal bounds what is read of an engine's own words.
const maxRefusal = 64 << 10

// outcome is what one attempt came to.
type outcome int

const (
	served      outcome = iota // an answer; the slot goes back when its body is closed
	failed                     // a fault that another machine would not mend
	refusedBusy                // the machine had no room after all
	movedOn                    // gone, unreachable or refusing: another may be tried
	vanished                   // gone while a unary call ran: another may be tried once
)

// try sends the call down the line of the machine on which a slot is held. For
// every outcome but served the slot was given back.
func (h *Hub) try(ctx context.Context, call *gateway.Call, c *held) (*gateway.Answer, outcome, error) {
	line, gone, ok := h.live.Line(c.Machine.ID)
	if !ok || isClosed(gone) {
		h.room.release(c, false)
		return nil, movedOn, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(h.cfg.FirstByte, func() {
		cancel(fault.New(fault.EngineTimeout, "the machine took the call but its engine gave no answer for %s", h.cfg.FirstByte))
	})
	began := time.Now()
	end := func(out outcome) {
		late.Stop()
		cancel(nil)
		if out == refusedBusy {
			h.room.refused(c)
			time.AfterFunc(busyAgain, func() { h.OnMachine(c.Machine.ID) })
			return
		}
		h.room.release(c, out != movedOn)
	}

	endpoint, asked := call.RequestFor(c.Offer.Endpoints)
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: h.ledger.sent})
	r := h.request(traced, call, c.Candidate, endpoint.Path())
	call.Attach(r, asked)
	response, err := line.RoundTrip(r)
	if err != nil {
		out, f := broken(ctx, call, gone, err)
		end(out)
		return nil, out, f
	}
	if response.StatusCode != http.StatusOK {
		c.refused = tunnel.Refusal(response.Header.Get(tunnel.HeaderRefused))
		out, f := refused(response)
		response.Body.Close()
		end(out)
		return nil, out, f
	}
	answer := &body{ReadCloser: response.Body, ctx: ctx, gone: gone, end: func() { end(served) }}
	result := &gateway.Answer{Response: response, Endpoint: endpoint}
	if call.Stream {
		err = answer.peek()
	} else { // so that a machine that vanishes in the middle can be replaced (decisions 2)
		result.Whole, err = call.Hold(h.edge.Spool, answer.ReadCloser, response.ContentLength)
	}
	if err != nil {
		out, f := broken(ctx, call, gone, err)
		answer.Close()
		return nil, out, f
	}
	late.Stop()
	c.Offer.Load.ObserveTTFT(time.Since(began))
	response.Body = answer
	if !call.Stream { // the machine is done: its slot need not wait for the caller to read
		answer.Close()
	}
	return result, served, nil
}

// request is the call as the machine gets it, at the path of an endpoint that it
// speaks, and the headers of decisions 8, without its body yet. Nothing of the
// caller's own headers passes.
func (h *Hub) request(ctx context.Context, call *gateway.Call, c fleet.Candidate, path string) *http.Request {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://machine"+path, nil)
	if err != nil {
		panic(err) // the URL is ours and constant
	}
	r.Header = http.Header{
		tunnel.HeaderCorrelation: {call.ID},
		tunnel.HeaderAttempt:     {fmt.Sprintf("%d %d", call.Trace.Attempts, c.Machine.Generation)},
		tunnel.HeaderCaller:      {c.Class.String() + " " + headerText(call.Caller.Name)},
		"User-Agent":             {""},
	}
	deadline, ok := ctx.Deadline()
	if !ok { // a streamed call's limits begin when a machine took it
		deadline = time.Now().Add(h.cfg.FirstByte + h.cfg.Edge.Limits.Stream)
	}
	// In whole seconds, rounded up: the hub is the first to give up.
	r.Header.Set(tunnel.HeaderDeadline, deadline.Add(time.Second).UTC().Format(time.RFC3339))
	return r
}

// broken says what a failed exchange means: the caller left or a limit passed,
// the machine went away or grants no further stream, or its engine gave the
// call up.
func broken(ctx context.Context, call *gateway.Call, gone <-chan struct{}, err error) (outcome, error) {
	var told *fault.Fault
	switch {
	case ctx.Err() != nil:
		return failed, context.Cause(ctx)
	case errors.As(err, &told):
		return failed, told
	case errors.Is(err, tunnel.ErrFull):
		return refusedBusy, nil
	case !ends(ctx, gone):
		return failed, fault.New(fault.EngineError, "the engine on the machine broke off before it answered").Because(err)
	case call.Stream:
		return movedOn, nil
	default:
		return vanished, nil
	}
}

// ends reports whether the line ends now.
func ends(ctx context.Context, gone <-chan struct{}) bool {
	late := time.NewTimer(parting)
	defer late.Stop()
	select {
	case <-gone:
		return true
	case <-late.C:
	case <-ctx.Done():
	}
	return isClosed(gone)
}

func isClosed(gone <-chan struct{}) bool {
	select {
	case <-gone:
		return true
	default:
		return false
	}
}

// refused reads a status other than 200 (decisions 2, the second table, and 8).
func refused(response *http.Response) (outcome, error) {
	switch reason := tunnel.Refusal(response.Header.Get(tunnel.HeaderRefused)); {
	case reason == tunnel.RefusedBusy:
		return refusedBusy, nil
	case reason != "":
		return movedOn, nil
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxRefusal)) // what came before a break is enough
	f := gateway.EngineFault(response.StatusCode, text)
	if f == nil {
		return movedOn, nil
	}
	return failed, f
}

// body is an answer's bytes on their way from the machine. first was read ahead
// to know that the machine lives; end gives back what the call held.
type body struct {
	io.ReadCloser
	ctx   context.Context
	gone  <-chan struct{}
	first []byte
	end   func()
}

// peek waits for the answer's first bytes: until they are here, another machine
// may be tried.
func (b *body) peek() error {
	buffer := make([]byte, 4<<10)
	n, err := b.ReadCloser.Read(buffer)
	for n == 0 && err == nil {
		n, err = b.ReadCloser.Read(buffer)
	}
	if n == 0 {
		return err
	}
	b.first = buffer[:n]
	return nil
}

// Read gives the bytes read ahead, then the machine's. A break is told as the
// fault it is: the caller's own end, the machine's, or its engine's.
func (b *body) Read(p []byte) (int, error) {
	if len(b.first) > 0 {
		n := copy(p, b.first)
		b.first = b.first[n:]
		return n, nil
	}
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == nil || err == io.EOF:
		return n, err
	case b.ctx.Err() != nil:
		return n, context.Cause(b.ctx)
	case ends(b.ctx, b.gone):
		return n, fault.New(fault.MachineOffline, "the machine went away in the middle of the answer").Because(err)
	default:
		return n, fault.New(fault.EngineError, "the engine broke off in the middle of the answer").Because(err)
	}
}

// Close ends the call at the machine and then gives its slot back, in this
// order, so that the machine hears of the end before it hears of the next call.
func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.end()
	return err
}

// headerText makes a name safe inside a header: a quoted ASCII string where it
// holds anything but letters, digits and "-_.".
func headerText(name string) string {
	for _, c := range name {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' {
			continue
		}
		return strconv.QuoteToASCII(name)
	}
	return name
}
