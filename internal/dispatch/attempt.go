package dispatch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"time"

	"github.com/kith/kith/internal/dispatch/prefix"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/registry"
	"github.com/kith/kith/internal/tunnel"
)

const (
	// maxWithHead is the longest body that is sent together with the call's head, to
	// a machine of the caller's own or shared with the caller.
	maxWithHead = 64 << 10
	// admitTimeout limits how long a machine takes to admit a call by its head.
	admitTimeout = 10 * time.Second
	// cancelTimeout limits how long a machine takes to end a cancelled call.
	cancelTimeout = 2 * time.Second
	// homeTimeout limits how long a call whose link to another node was lost waits for the
	// end of its attempt: a link that loses everything is found within 5 s.
	homeTimeout = 6 * time.Second
	// askAgain is how long awaitStopped waits between two questions.
	askAgain = 50 * time.Millisecond
	// maxEngineText limits what is read of an engine's own message.
	maxEngineText = 64 << 10
)

// errNotAdmitted is the cause of the end of an attempt that its machine did not
// admit in time.
var errNotAdmitted = errors.New("the machine neither took nor refused the call in time")

// attempt is a call on one machine.
type attempt struct {
	*reservation
	call         *gateway.Call
	line         registry.Line // by which it was sent
	began        time.Time
	cancel       context.CancelCauseFunc // ends the attempt, not the call
	daemonReason tunnel.Refusal          // why the daemon did not take the call, if it said so
	gotBody      bool                    // the machine was given some of the request's body
	running      int                     // calls on the machine when it began to answer
	sent         prefix.Match            // what was sent to the machine of the prompt before
}

// outcome is how an attempt ended.
type outcome int

const (
	answered    outcome = iota // the slot is released when the answer's body is closed
	failed                     // with a fault that holds for every machine
	busy                       // the machine had no slot after all
	unsent                     // its tunnel had ended before the call was sent: as busy
	notTaken                   // gone, unreachable or refusing: another may be tried
	notAdmitted                // neither taken nor refused in time: as notTaken
	revoked                    // out of the caller's reach before it answered, and idle: as notTaken
	vanished                   // gone while a unary call ran: another may be tried once
)

// slotUses is how an attempt used its reservation, by outcome.
var slotUses = [...]slotUse{
	answered: ran, failed: ran, revoked: ran, vanished: ran, busy: refusedBusy, unsent: unused, notTaken: unused, notAdmitted: unused,
}

// send posts the call through the tunnel of the attempt's machine. For every outcome
// but answered the reservation was released.
//
//  1. A machine that is disconnected, or out of the caller's reach by now, gets no
//     request.
//  2. The head is sent, and the body with it or once the daemon admitted the head
//     (spec/routing.md#head-first). A daemon that refuses the head has not seen the
//     body.
//  3. Status 200: of a streamed answer the first bytes are awaited, a unary answer
//     is read to its end. Until then another machine may still replace this one.
//  4. Any other status is the daemon's refusal or the engine's own fault (readNon200);
//     no response at all is the end of the tunnel, or the engine's (classifyBreak).
func (d *Dispatcher) send(ctx context.Context, a *attempt) (*gateway.Answer, outcome, error) {
	line, ok := d.line(a.call, a.Candidate, a.hold)
	if !ok || line.HasEnded() {
		d.scheduler.release(a.reservation, unused)
		return nil, unsent, nil
	}
	a.line = line
	if !d.mayStart(a) {
		d.scheduler.release(a.reservation, unused)
		return nil, revoked, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	firstByte := d.limits.Load().FirstByte
	firstByteTimer := time.AfterFunc(firstByte, func() {
		cancel(fault.New(fault.EngineTimeout, "the machine took the call but its engine gave no answer for %s", firstByte))
	})
	finish := func(out outcome) {
		firstByteTimer.Stop()
		cancel(nil)
		d.scheduler.release(a.reservation, slotUses[out])
	}

	endpoint, _ := a.call.Request()
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: d.cfg.Ledger.RequestSync})
	request, body := d.request(traced, a.call, a.Candidate, endpoint.Path())
	admitTimer := time.AfterFunc(admitTimeout, func() {
		if request.Header.Get("Expect") != "" && body.withhold() {
			cancel(errNotAdmitted)
		}
	})
	response, err := line.RoundTrip(request)
	admitTimer.Stop() // a machine that answers took the call, whether or not it read the body
	if err != nil {
		a.gotBody = body.stop() && !errors.Is(err, registry.ErrRefused) && !errors.Is(err, registry.ErrNotTaken)
		out, f := d.afterBreak(ctx, a, err)
		if errors.Is(err, tunnel.ErrFull) || out == notAdmitted {
			d.leaveOut(a)
		}
		finish(out)
		return nil, out, f
	}
	if response.StatusCode != http.StatusOK {
		a.gotBody = body.stop()
		a.daemonReason = tunnel.RefusalIn(response.Header)
		out, f := readNon200(response)
		response.Body.Close()
		if out != failed {
			d.leaveOut(a)
		}
		finish(out)
		return nil, out, f
	}
	a.gotBody = true
	answer := &answerBody{
		Closer: response.Body, in: response.Body, ctx: ctx, line: line, mayRun: d.mayRun, finish: func() { finish(answered) },
		unreached: func(ctx context.Context) error { return d.unreached(ctx, a.call) },
	}
	result := &gateway.Answer{Response: response, Endpoint: endpoint}
	if a.call.Stream {
		ahead := bufio.NewReaderSize(response.Body, 4<<10)
		_, err = ahead.Peek(1)
		answer.in = ahead
	} else {
		result.Held, err = a.call.Hold(d.cfg.Spool, response.Body, response.ContentLength)
		if err == nil && !d.mayRun() {
			err = errUnconfirmed
		}
	}
	if err != nil {
		out, f := d.afterBreak(ctx, a, err)
		response.Body.Close() // the machine learns of the end before it gets the next call
		finish(out)
		return nil, out, f
	}
	firstByteTimer.Stop()
	a.running = max(a.Offer.Load.Used(), a.Machine.Load.Used())
	response.Body = answer
	if !a.call.Stream { // the machine is done: its slot does not wait for the caller to read
		answer.Close()
	}
	return result, answered, nil
}

// afterBreak returns what a failed exchange means, once the machine no longer runs the
// attempt where another one may be tried. One that its home ended, because the caller
// does not reach the machine any more, fails if the machine does not confirm its end.
//
// Of several links to a home that lose everything one is found to be lost after the
// other, so an attempt whose link ended may still run (spec/peers.md#link-lost). If it
// is to end meanwhile, runOn asks again.
func (d *Dispatcher) afterBreak(ctx context.Context, a *attempt, err error) (outcome, error) {
	out, f := classifyBreak(ctx, a.call, a.line, err)
	stopped := true
	switch {
	case errors.Is(err, registry.ErrLost):
		d.awaitStopped(ctx, a, homeTimeout)
	case out == revoked:
		stopped = d.awaitStopped(ctx, a, cancelTimeout)
	}
	switch {
	case out != notTaken && out != vanished && out != revoked, stopped && ctx.Err() == nil:
		return out, f
	case ctx.Err() != nil: // this node ends the attempt, too
		return failed, context.Cause(ctx)
	default:
		return failed, d.unreached(ctx, a.call)
	}
}

// hasStopped reports whether the machine no longer runs an attempt that was cancelled
// (spec/routing.md#one-attempt).
func (d *Dispatcher) hasStopped(ctx context.Context, a *attempt) bool {
	return d.awaitStopped(ctx, a, cancelTimeout)
}

// awaitStopped asks, for so long, whether the machine still runs an attempt. It reports
// true once the daemon says that it does not, or the tunnel of the attempt has ended.
//
//  1. The machine is asked by the way that it has now, by which its daemon answers for
//     calls of its earlier tunnels, too.
//  2. It has none: by that of the attempt. Its tunnel may be kept for the calls on it.
//  3. The link to its node is lost, which says nothing of the machine: by another link,
//     unless the node is gone.
func (d *Dispatcher) awaitStopped(ctx context.Context, a *attempt, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for ctx.Err() == nil {
		line, ok := d.line(a.call, a.Candidate, "")
		if !ok {
			line = a.line
		}
		stopped, err := askStopped(ctx, line, a)
		lost := errors.Is(err, registry.ErrLost)
		switch {
		case err == nil:
			return stopped
		case errors.Is(err, registry.ErrRefused), lost && !ok, !lost && line.Ended(ctx):
			return true
		}
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
		}
	}
	return false
}

func askStopped(ctx context.Context, line registry.Line, a *attempt) (stopped bool, err error) {
	r := newRequest(ctx, tunnel.PathEnded)
	r.Header = http.Header{tunnel.HeaderCorrelation: {a.call.ID}, tunnel.HeaderAttempt: {attemptHeader(a.call, a.Machine)}}
	response, err := line.RoundTrip(r)
	if err != nil {
		return false, err
	}
	response.Body.Close()
	return response.StatusCode == http.StatusNoContent, nil
}

// leaveOut records that the machine did not take a call which by its
// advertisement it would have taken (spec/routing.md#left-out). RefusedUnknownModel
// cannot be a stale advertisement, so it leaves the machine out for the full time.
// Nothing notifies the hub when the time is over, so a timer decides again for the calls
// that wait for the machine.
func (d *Dispatcher) leaveOut(a *attempt) {
	now := d.cfg.Registry.Now()
	news := false
	switch a.daemonReason {
	case tunnel.RefusedBusy, tunnel.RefusedPaused, tunnel.RefusedHours, tunnel.RefusedSpent:
		news = a.Class != fleet.Grouped || !a.gotBody // a trap could read prompt after prompt
	}
	until := a.Offer.Load.Refused(a.Class, now.Add(-time.Since(a.began)), now, a.daemonReason != tunnel.RefusedUnknownModel, news)
	if until.IsZero() {
		return
	}
	if until.Sub(now) >= time.Second {
		d.cfg.Log.Info("machine left out", "machine", a.Machine.ID, "model", string(a.model), "refused", string(a.daemonReason), "until", until)
	}
	time.AfterFunc(until.Sub(now), func() { d.OnMachine(a.Machine.ID) })
}

// recordServed records that the machine on which the call ended served it. That may lift
// a limit (left out, unproven); the slots that this frees go to waiting calls.
func (d *Dispatcher) recordServed(call *gateway.Call) {
	if len(call.Trace.Tries) == 0 {
		return
	}
	last := call.Trace.Tries[len(call.Trace.Tries)-1]
	offer := last.Machine.Offer(call.Model)
	if offer == nil {
		return
	}
	more := offer.Load.Served(last.Class)
	snapshot := d.cfg.Registry.Snapshot()
	if g := snapshot.Group(last.Circle.Group); last.Class == fleet.Grouped && g != nil {
		more = offer.Load.ServedGroup(snapshot, g, last.Machine.Owner, call.Caller.Member, d.cfg.Registry.Now()) || more
		d.speeds.mark(speedKey{last.Machine.ID, call.Model})
	}
	if more {
		d.OnMachine(last.Machine.ID)
	}
}

func newRequest(ctx context.Context, path string) *http.Request {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://machine"+path, nil)
	if err != nil {
		panic(err) // the URL is a constant
	}
	return r
}

// request returns the call as the machine gets it, and its body. None of the
// caller's own headers passes. The body follows the head once the daemon admitted
// that, if the machine is reached through a group or the body is long.
func (d *Dispatcher) request(ctx context.Context, call *gateway.Call, c fleet.Candidate, path string) (*http.Request, *requestBody) {
	r := newRequest(ctx, path)
	r.Header = http.Header{
		tunnel.HeaderCorrelation: {call.ID},
		tunnel.HeaderAttempt:     {attemptHeader(call, c.Machine)},
		tunnel.HeaderCaller:      {c.Class.String() + " " + headerText(call.Caller.Name)},
		tunnel.HeaderCache:       {d.cacheNames.of(call.Caller.Member, c.Machine.ID, d.cfg.Registry.Now())},
		tunnel.HeaderModel:       {tunnel.EscapeModel(string(call.Model))},
		"User-Agent":             {""},
	}
	_, content := call.Request()
	call.Attach(r, content)
	WithholdBody(r, c.Class)
	deadline, ok := ctx.Deadline()
	if !ok { // the limits of a streamed call begin when a machine took it
		limits := d.limits.Load()
		deadline = time.Now().Add(limits.FirstByte + limits.Stream)
	}
	// In whole seconds, rounded up: the hub is the first to give up.
	r.Header.Set(tunnel.HeaderDeadline, d.cfg.Registry.Now().Add(time.Until(deadline)+time.Second).UTC().Format(time.RFC3339))
	body := &requestBody{body: r.Body}
	r.Body, r.GetBody = body, nil
	return r, body
}

// WithholdBody makes the body of a request follow its head once the daemon admitted that
// (spec/routing.md#head-first).
func WithholdBody(r *http.Request, class fleet.Class) {
	if class == fleet.Grouped || r.ContentLength > maxWithHead {
		r.Header.Set("Expect", "100-continue")
	}
}

func attemptHeader(call *gateway.Call, machine *fleet.Machine) string {
	return fmt.Sprintf("%d %d", call.Trace.Attempts, machine.Generation)
}

// classifyBreak returns what a failed exchange means: the caller hung up or a limit passed,
// the machine disconnected or takes no further stream, or its engine broke off. It may
// wait as Line.Ended does.
func classifyBreak(ctx context.Context, call *gateway.Call, line registry.Line, err error) (outcome, error) {
	var f *fault.Fault
	switch {
	case context.Cause(ctx) == errNotAdmitted:
		return notAdmitted, nil
	case ctx.Err() != nil:
		return failed, context.Cause(ctx)
	case errors.As(err, &f):
		return failed, f
	case errors.Is(err, tunnel.ErrFull), errors.Is(err, registry.ErrRefused):
		return busy, nil
	case errors.Is(err, tunnel.ErrEnded):
		return unsent, nil
	case errors.Is(err, registry.ErrNotTaken):
		return notTaken, nil
	case errors.Is(err, registry.ErrUnreached):
		return revoked, nil
	case !errors.Is(err, registry.ErrLost) && !line.Ended(ctx):
		return failed, fault.New(fault.EngineError, "the engine on the machine broke off before it answered").Because(err)
	case call.Stream:
		return notTaken, nil
	default:
		return vanished, nil
	}
}

// readNon200 returns what a status other than 200 means.
func readNon200(response *http.Response) (outcome, error) {
	switch reason := tunnel.RefusalIn(response.Header); {
	case reason == tunnel.RefusedBusy:
		return busy, nil
	case reason != "":
		return notTaken, nil
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxEngineText)) // what came before a break is enough
	f := gateway.EngineFault(response.StatusCode, text)
	if f == nil {
		return notTaken, nil
	}
	return failed, f
}
