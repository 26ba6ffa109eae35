package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync"
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

const (
	// headFirst is the longest body that goes to a machine, of the caller's own or
	// shared with the caller, together with the call's head (decisions 2).
	headFirst = 64 << 10
	// acceptWithin is how long a machine may take to admit a call by its head.
	acceptWithin = 10 * time.Second
	// cancelWithin is how long a machine may take to end a call that was cancelled.
	cancelWithin = 2 * time.Second
)

// errSilent is the cause of the end of a call that its machine did not admit in time.
var errSilent = errors.New("the machine neither took nor refused the call in time")

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
	if !ok || isClosed(gone) || !h.stillReaches(call, c) {
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
			return
		}
		h.room.release(c, out != movedOn)
	}

	endpoint, _ := call.Request()
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: h.ledger.RequestSync})
	request, sent := h.request(traced, call, c.Candidate, endpoint.Path())
	if request.Header.Get("Expect") != "" {
		silent := time.AfterFunc(acceptWithin, func() {
			if sent.keep() {
				cancel(errSilent)
			}
		})
		defer silent.Stop()
	}
	response, err := line.RoundTrip(request)
	if err != nil {
		c.prompt = sent.seal()
		out, f := broken(ctx, call, gone, err)
		if out == refusedBusy || context.Cause(ctx) == errSilent {
			h.declined(c, began)
		}
		end(out)
		return nil, out, f
	}
	if response.StatusCode != http.StatusOK {
		c.prompt = sent.seal()
		c.refused = tunnel.RefusalIn(response.Header)
		out, f := refused(response)
		response.Body.Close()
		if out != failed {
			h.declined(c, began)
		}
		end(out)
		return nil, out, f
	}
	c.prompt = true
	answer := &body{ReadCloser: response.Body, ctx: ctx, gone: gone, end: func() { end(served) }}
	result := &gateway.Answer{Response: response, Endpoint: endpoint}
	if call.Stream {
		err = answer.peek()
	} else { // so that a machine that vanishes in the middle can be replaced (decisions 2)
		result.Held, err = call.Hold(h.edge.Spool, answer.ReadCloser, response.ContentLength)
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

// stopped reports whether the machine no longer runs an attempt that was cancelled:
// it reports so, or its line has ended. A call never runs on two machines at once.
func (h *Hub) stopped(ctx context.Context, call *gateway.Call, c *held) bool {
	line, gone, ok := h.live.Line(c.Machine.ID)
	if !ok {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, cancelWithin)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://machine"+tunnel.PathEnded, nil)
	if err != nil {
		panic(err) // the URL is ours and constant
	}
	r.Header = http.Header{tunnel.HeaderCorrelation: {call.ID}, tunnel.HeaderAttempt: {attemptHeader(call, c.Machine)}}
	response, err := line.RoundTrip(r)
	if err != nil {
		return ends(ctx, gone)
	}
	response.Body.Close()
	return response.StatusCode == http.StatusNoContent
}

// declined notes in the machine's record that it did not take a call, sent at that
// time, which by its advertisement it would have taken. That it does not have the
// model after all is no race. When it is no longer left out, those who wait for it
// are looked at again: what the hub knew of it was behind, and what corrects that (a
// call that ends there, an advertisement) may come without a word.
func (h *Hub) declined(c *held, sent time.Time) {
	now := time.Now()
	until := c.Offer.Load.Record(c.Class).Refused(sent, now, c.refused != tunnel.RefusedUnknownModel)
	if until.IsZero() {
		return
	}
	if until.Sub(now) >= time.Second {
		h.log.Info("machine left out", "machine", c.Machine.ID, "model", string(c.model), "refused", string(c.refused), "until", until)
	}
	time.AfterFunc(until.Sub(now), func() { h.OnMachine(c.Machine.ID) })
}

// served notes in the record of the machine on which the call ended that it served
// one, complete. What it may be sent beyond the slot that is free again goes to
// those who wait.
func (h *Hub) served(call *gateway.Call) {
	if len(call.Trace.Tries) == 0 {
		return
	}
	last := call.Trace.Tries[len(call.Trace.Tries)-1]
	if offer := last.Machine.Offer(call.Model); offer != nil && offer.Load.Record(last.Class).Served() {
		h.OnMachine(last.Machine.ID)
	}
}

// request is the call as the machine gets it, at the path of an endpoint that it
// speaks, and the headers of decisions 8. Nothing of the caller's own headers
// passes. The prompt is its body.
func (h *Hub) request(ctx context.Context, call *gateway.Call, c fleet.Candidate, path string) (*http.Request, *prompt) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://machine"+path, nil)
	if err != nil {
		panic(err) // the URL is ours and constant
	}
	r.Header = http.Header{
		tunnel.HeaderCorrelation: {call.ID},
		tunnel.HeaderAttempt:     {attemptHeader(call, c.Machine)},
		tunnel.HeaderCaller:      {c.Class.String() + " " + headerText(call.Caller.Name)},
		tunnel.HeaderModel:       {tunnel.EscapeModel(string(call.Model))},
		"User-Agent":             {""},
	}
	_, asked := call.Request()
	call.Attach(r, asked)
	if c.Class == fleet.Grouped || r.ContentLength > headFirst {
		r.Header.Set("Expect", "100-continue") // the body follows when the daemon has admitted the head
	}
	deadline, ok := ctx.Deadline()
	if !ok { // a streamed call's limits begin when a machine took it
		deadline = time.Now().Add(h.cfg.FirstByte + h.cfg.Edge.Limits.Stream)
	}
	// In whole seconds, rounded up: the hub is the first to give up.
	r.Header.Set(tunnel.HeaderDeadline, deadline.Add(time.Second).UTC().Format(time.RFC3339))
	sent := &prompt{body: r.Body}
	r.Body, r.GetBody = sent, nil
	return r, sent
}

func attemptHeader(call *gateway.Call, machine *fleet.Machine) string {
	return fmt.Sprintf("%d %d", call.Trace.Attempts, machine.Generation)
}

// prompt is the body of a request to a machine. It knows whether any of it was
// given to the machine's line, which the caller is to know (decisions 5).
type prompt struct {
	mu     sync.Mutex
	body   io.ReadCloser
	given  bool
	sealed bool
}

// Read satisfies io.Reader.
func (p *prompt) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sealed {
		return 0, errSealed
	}
	n, err := p.body.Read(b)
	p.given = p.given || n > 0
	return n, err
}

// errSealed ends a body whose request was answered before it was read.
var errSealed = errors.New("the machine answered before it read the request")

// Close satisfies io.Closer.
func (p *prompt) Close() error { return p.body.Close() }

// seal keeps the rest of the body and reports whether any of it was given.
func (p *prompt) seal() (given bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sealed = true
	return p.given
}

// keep keeps the body if none of it was given, and reports whether it did.
func (p *prompt) keep() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.given {
		p.sealed = true
	}
	return !p.given
}

// broken says what a failed exchange means: the caller left or a limit passed,
// the machine went away or grants no further stream, or its engine gave the
// call up.
func broken(ctx context.Context, call *gateway.Call, gone <-chan struct{}, err error) (outcome, error) {
	var told *fault.Fault
	switch {
	case context.Cause(ctx) == errSilent:
		return movedOn, nil
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
	switch reason := tunnel.RefusalIn(response.Header); {
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
