package dispatch

import (
	"bufio"
	"context"
	"encoding/base64"
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
	// maxWithHead is the maximum size of a body that is sent together with the call's head, to a
	// machine that belongs to the caller or is shared with the caller.
	maxWithHead = 64 << 10
	// admitTimeout limits how long a machine may take to admit a call after its head.
	admitTimeout = 10 * time.Second
	// cancelTimeout limits how long a machine may take to end a cancelled call.
	cancelTimeout = 2 * time.Second
	// homeTimeout limits how long a call that lost its link to another node waits for the
	// end of its attempt. A dead link is detected within 5 s.
	homeTimeout = 6 * time.Second
	// askAgain is the time between two requests of awaitStopped.
	askAgain = 50 * time.Millisecond
	// maxEngineText limits how much of an engine's error message is read.
	maxEngineText = 64 << 10
)

// errNotAdmitted is the cause when an attempt ends because its machine did not admit it
// in time.
var errNotAdmitted = errors.New("the machine did not respond to the call in time")

// attempt is a call on one machine.
type attempt struct {
	*reservation
	call         *gateway.Call
	line         registry.Line // used to send it
	began        time.Time
	cancel       context.CancelCauseFunc // ends the attempt, not the call
	daemonReason tunnel.Refusal          // why the daemon refused the call, if it gave a reason
	gotBody      bool                    // the machine received some of the request's body
	running      int                     // number of calls on the machine when it began to answer
	had          prefix.Match            // what the machine had received of the prompt before
}

// outcome is how an attempt ended.
type outcome int

const (
	answered    outcome = iota // the slot is released when the answer's body is closed
	failed                     // with a fault that is final: no other machine is tried
	busy                       // the machine had no free slot after all
	unsent                     // its tunnel had ended before the call was sent: like busy
	notTaken                   // gone, unreachable or refusing: another machine may be tried
	notAdmitted                // neither accepted nor refused in time: like notTaken
	revoked                    // out of the caller's reach before it answered, and stopped: like notTaken
	vanished                   // gone while a unary call ran: another machine may be tried once
)

// slotUses maps the outcome of an attempt to the use of its reservation.
var slotUses = [...]slotUse{
	answered: ran, failed: ran, revoked: ran, vanished: ran, busy: refusedBusy, unsent: unused, notTaken: unused, notAdmitted: unused,
}

// send posts the call through the tunnel of the attempt's machine. For every outcome
// except answered, it has released the reservation.
//
//  1. A machine that is disconnected, or now out of the caller's reach, gets no
//     request.
//  2. The head is sent. The body is sent with it or after the daemon has admitted the
//     head (spec/routing.md#head-first). A daemon that refuses the head does not get
//     the body.
//  3. Status 200: send waits for the first bytes of a streamed answer, and reads a unary
//     answer to its end. Until then another machine may still replace this one.
//  4. Any other status is a refusal by the daemon or a fault of the engine (readNon200).
//     No response at all means that the tunnel or the engine has failed (classifyBreak).
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
		cancel(fault.New(fault.EngineTimeout, "the machine accepted the call, but its engine sent no answer for %s", firstByte))
	})
	finish := func(out outcome) {
		firstByteTimer.Stop()
		cancel(nil)
		d.scheduler.release(a.reservation, slotUses[out])
	}

	endpoint, _ := a.call.Request()
	path := endpoint.Path()
	if a.call.Sealed != nil {
		path = tunnel.PathSealed
	}
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: d.cfg.Ledger.RequestSync})
	request, body := d.request(traced, a.call, a.Candidate, path)
	admitTimer := time.AfterFunc(admitTimeout, func() {
		if request.Header.Get("Expect") != "" && body.stopIfUnread() {
			cancel(errNotAdmitted)
		}
	})
	response, err := line.RoundTrip(request)
	admitTimer.Stop() // a machine that answers has accepted the call, whether or not it read the body
	if err != nil {
		a.gotBody = body.stop() && !errors.Is(err, ErrRefused) && !errors.Is(err, ErrNotTaken)
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
		out, f := readNon200(response, a.call.Sealed != nil)
		response.Body.Close()
		if out != failed && !(a.needsOtherSeal() && a.mayNameState()) {
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
		response.Body.Close() // the machine must learn of the end before it gets the next call
		finish(out)
		return nil, out, f
	}
	firstByteTimer.Stop()
	a.running = max(a.Offer.Load.Used(), a.Machine.Load.Used())
	response.Body = answer
	if !a.call.Stream { // the machine is done, so its slot does not wait for a slow caller
		answer.Close()
	}
	return result, answered, nil
}

// afterBreak returns the outcome of a failed exchange. If the attempt may still run on the
// machine, it waits at most 2 s (6 s after a lost link) for its end; after a lost link the
// call goes on regardless. If the machine's home node ended the attempt, because the caller
// no longer reaches the machine, and the machine does not confirm the end, the attempt
// fails.
//
// When several links to a node die, they are detected one after the other, so an attempt
// whose link was lost may still run (spec/peers.md#link-lost). If the attempt is
// cancelled during the wait, runOn asks again.
func (d *Dispatcher) afterBreak(ctx context.Context, a *attempt, err error) (outcome, error) {
	out, f := classifyBreak(ctx, a.call, a.line, err)
	stopped := true
	switch {
	case errors.Is(err, ErrLost):
		d.awaitStopped(ctx, a, homeTimeout)
	case out == revoked:
		stopped = d.awaitStopped(ctx, a, cancelTimeout)
	}
	switch {
	case out != notTaken && out != vanished && out != revoked, stopped && ctx.Err() == nil:
		return out, f
	case ctx.Err() != nil: // this node has ended the attempt as well
		return failed, context.Cause(ctx)
	default:
		return failed, d.unreached(ctx, a.call)
	}
}

// hasStopped reports whether the machine no longer runs a cancelled attempt
// (spec/routing.md#one-attempt).
func (d *Dispatcher) hasStopped(ctx context.Context, a *attempt) bool {
	return d.awaitStopped(ctx, a, cancelTimeout)
}

// awaitStopped waits, for at most within, until the machine no longer runs an attempt. It
// asks the daemon, which responds when the attempt has ended; after an error it asks again
// every 50 ms. It returns true when the daemon responds so, or when the attempt's tunnel
// has ended.
//
//  1. It asks through the machine's current line. The daemon also answers for calls of
//     its earlier tunnels.
//  2. If there is none, it asks through the line of the attempt, whose tunnel may be kept
//     open for its calls.
//  3. If the link to the machine's node is lost, the machine may still be running: it asks
//     through another link, unless the node is gone.
func (d *Dispatcher) awaitStopped(ctx context.Context, a *attempt, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for ctx.Err() == nil {
		line, ok := d.line(a.call, a.Candidate, "")
		if !ok {
			line = a.line
		}
		stopped, err := askStopped(ctx, line, a)
		lost := errors.Is(err, ErrLost)
		switch {
		case err == nil:
			return stopped
		case errors.Is(err, ErrRefused), lost && !ok, !lost && line.Ended(ctx):
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

// leaveOut records that the machine refused a call that it should have accepted according
// to its advertisement (spec/routing.md#left-out). RefusedUnknownModel cannot come from a
// stale advertisement, so it leaves the machine out for the full time. No notification
// marks the end of that time, so when a timer ends, the calls that wait for the machine are
// routed again.
func (d *Dispatcher) leaveOut(a *attempt) {
	now := d.cfg.Registry.Now()
	namesState := false
	switch a.daemonReason {
	case tunnel.RefusedBusy, tunnel.RefusedPaused, tunnel.RefusedHours, tunnel.RefusedSpent:
		namesState = a.mayNameState()
	}
	until := a.Offer.Load.Refused(fleet.Refusal{
		Class: a.Class, Sent: now.Add(-time.Since(a.began)), Received: now,
		Race: a.daemonReason != tunnel.RefusedUnknownModel, NamesState: namesState,
	})
	if until.IsZero() {
		return
	}
	if until.Sub(now) >= time.Second {
		d.cfg.Log.Info("machine left out", "machine", a.Machine.ID, "model", string(a.model), "refused", string(a.daemonReason), "until", until)
	}
	time.AfterFunc(until.Sub(now), func() { d.OnMachine(a.Machine.ID) })
}

// recordServed records that the machine of the last attempt served the call. That may
// lift a limit (left out, unproven); the slots that this frees are granted to waiting
// calls.
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

// mayNameState reports whether the daemon's reason is no strike against the machine. If it
// always were, a hostile machine of a group could read prompt after prompt.
func (a *attempt) mayNameState() bool { return a.Class != fleet.Grouped || !a.gotBody }

// needsOtherSeal reports whether the machine refused a sealed call because of its seal
// (spec/sealed.md#stale-key).
func (a *attempt) needsOtherSeal() bool {
	return a.call.Sealed != nil && (a.daemonReason == tunnel.RefusedStaleKey || a.daemonReason == tunnel.RefusedRepeated)
}

func newRequest(ctx context.Context, path string) *http.Request {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://machine"+path, nil)
	if err != nil {
		panic(err) // the URL is a constant
	}
	return r
}

// request returns the request to the machine, and its body. None of the caller's own
// headers are passed on. If the machine is reached through a group or the body is long,
// the body is sent only after the daemon has admitted the head.
func (d *Dispatcher) request(ctx context.Context, call *gateway.Call, c fleet.Candidate, path string) (*http.Request, *requestBody) {
	r := newRequest(ctx, path)
	r.Header = http.Header{
		tunnel.HeaderCorrelation: {call.ID},
		tunnel.HeaderAttempt:     {attemptHeader(call, c.Machine)},
		tunnel.HeaderCaller:      {c.Class.String() + " " + headerText(call.Caller.Name)},
		tunnel.HeaderCache:       {d.cacheNames.name(call.Caller.Member, c.Machine.ID, d.cfg.Registry.Now())},
		tunnel.HeaderModel:       {tunnel.EscapeModel(string(call.Model))},
		"User-Agent":             {""},
	}
	if call.Sealed != nil {
		r.Header.Set(tunnel.HeaderSealed, call.Sealed.Head)
		r.Header.Set(tunnel.HeaderSealKey, call.Sealed.Key(c.Machine.ID, c.Machine.Seals))
	}
	_, content := call.Request()
	call.Attach(r, content)
	ExpectContinue(r, c.Class)
	deadline, ok := ctx.Deadline()
	if !ok { // the limits of a streamed call start when a machine accepts it
		limits := d.limits.Load()
		deadline = time.Now().Add(limits.FirstByte + limits.Stream)
	}
	// In whole seconds, rounded up, so that the hub gives up first.
	r.Header.Set(tunnel.HeaderDeadline, d.cfg.Registry.Now().Add(time.Until(deadline)+time.Second).UTC().Format(time.RFC3339))
	body := &requestBody{body: r.Body}
	r.Body, r.GetBody = body, nil
	return r, body
}

// ExpectContinue delays the body of a request until the daemon has admitted its head, if
// that is required (spec/routing.md#head-first).
func ExpectContinue(r *http.Request, class fleet.Class) {
	if class == fleet.Grouped || r.ContentLength > maxWithHead {
		r.Header.Set("Expect", "100-continue")
	}
}

func attemptHeader(call *gateway.Call, machine *fleet.Machine) string {
	return fmt.Sprintf("%d %d", call.Trace.Attempts, machine.Generation)
}

// classifyBreak returns the outcome of a failed exchange: the caller disconnected or a
// limit was exceeded, the machine disconnected or accepts no further stream, or its engine
// failed. It may wait as Line.Ended does.
func classifyBreak(ctx context.Context, call *gateway.Call, line registry.Line, err error) (outcome, error) {
	var f *fault.Fault
	switch {
	case context.Cause(ctx) == errNotAdmitted:
		return notAdmitted, nil
	case ctx.Err() != nil:
		return failed, context.Cause(ctx)
	case errors.As(err, &f):
		return failed, f
	case errors.Is(err, tunnel.ErrFull), errors.Is(err, ErrRefused):
		return busy, nil
	case errors.Is(err, tunnel.ErrEnded):
		return unsent, nil
	case errors.Is(err, ErrNotTaken):
		return notTaken, nil
	case errors.Is(err, ErrUnreached):
		return revoked, nil
	case !errors.Is(err, ErrLost) && !line.Ended(ctx):
		return failed, fault.New(fault.EngineError, "the engine on the machine failed before it answered").Because(err)
	case call.Stream:
		return notTaken, nil
	default:
		return vanished, nil
	}
}

// readNon200 returns the outcome for a status other than 200. If the call is sealed, so is
// what the engine says, and its code is in a header.
func readNon200(response *http.Response, sealed bool) (outcome, error) {
	switch reason := tunnel.RefusalIn(response.Header); {
	case reason == tunnel.RefusedBusy:
		return busy, nil
	case reason != "":
		return notTaken, nil
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxEngineText)) // a partial message is enough
	if code := fault.Code(response.Header.Get(tunnel.HeaderFault)); sealed && code != "" {
		return failed, sealedFault(code, text)
	}
	if sealed { // nothing that is not sealed may be from the engine
		text = nil
	}
	f := gateway.EngineFault(response.StatusCode, text)
	if f == nil {
		return notTaken, nil
	}
	return failed, f
}

// sealedFault returns the fault of an engine's error in a sealed call. A machine can set only
// the codes that an engine can cause (gateway.EngineFault).
func sealedFault(code fault.Code, text []byte) *fault.Fault {
	switch code {
	case fault.InvalidRequest, fault.ContextLengthExceeded, fault.RequestTooLarge:
	default:
		code = fault.EngineError
	}
	if len(text) == 0 { // without the call's key it cannot seal the error
		return fault.New(fault.EngineError, "the machine could not open the call: it was changed on its way")
	}
	f := fault.New(code, "the machine refused the sealed call; only the daemon that sealed it can read why")
	return f.WithSealed(base64.StdEncoding.EncodeToString(text))
}
