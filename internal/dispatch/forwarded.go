package dispatch

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/registry"
	"github.com/kith/kith/internal/tunnel"
)

// headerAsk is what the home of a machine needs to check a call of another node again
// (spec/peers.md#headers). The machine does not get it.
const headerAsk = "Kith-Ask"

// headerHold names the slot that the home of a machine granted to a call of another node
// (spec/peers.md#grant).
const headerHold = "Kith-Hold"

// askOf returns what is sent of a call to the home of the machine that it is tried on.
// proven reports whether the machine has served a call of its circle here.
func askOf(call *gateway.Call, proven bool) string {
	return url.Values{
		"member": {string(call.Caller.Member)}, "name": {call.Caller.Name}, "key": {call.Caller.KeyID},
		"narrow": {strconv.Itoa(int(call.Caller.Narrow))}, "machine": {string(call.Caller.Machine)},
		"model": {string(call.Model)}, "endpoint": {call.Endpoint.Path()}, "stream": {strconv.FormatBool(call.Stream)},
		"choices": {strconv.Itoa(call.Choices)}, "proven": {strconv.FormatBool(proven)},
	}.Encode()
}

// readAsk returns the call that askOf described.
func readAsk(text string) (call *gateway.Call, proven bool, err error) {
	ask, err := url.ParseQuery(text)
	if err != nil {
		return nil, false, err
	}
	narrow, err := strconv.ParseUint(ask.Get("narrow"), 10, 8)
	if err != nil {
		return nil, false, err
	}
	endpoint, ok := fleet.ParseEndpoint(ask.Get("endpoint"))
	if !ok || ask.Get("member") == "" {
		return nil, false, errors.New("it names no member or no endpoint")
	}
	choices, _ := strconv.Atoi(ask.Get("choices"))
	return &gateway.Call{
		Endpoint: endpoint, Model: fleet.ModelID(ask.Get("model")), Stream: ask.Get("stream") == "true", Choices: choices,
		Caller: gateway.Caller{
			Member: fleet.MemberID(ask.Get("member")), Name: ask.Get("name"), KeyID: ask.Get("key"),
			Narrow: fleet.Narrow(narrow), Machine: fleet.MachineID(ask.Get("machine")),
		},
		Arrived: time.Now(),
	}, ask.Get("proven") == "true", nil
}

// line returns the way to the machine of a candidate. If it is connected to another
// node, requests carry what that node needs to check the call again.
func (d *Dispatcher) line(call *gateway.Call, c fleet.Candidate) (registry.Line, bool) {
	line, ok := d.cfg.Registry.Line(c.Machine.ID)
	if line.Home != "" {
		line.RoundTripper = forwarding{line.RoundTripper, askOf(call, c.Standing > fleet.Unserved)}
	}
	return line, ok
}

// forwarding adds the ask of a call to its requests.
type forwarding struct {
	http.RoundTripper
	ask string
}

// RoundTrip implements http.RoundTripper.
func (f forwarding) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set(headerAsk, f.ask)
	return f.RoundTripper.RoundTrip(r)
}

// ServeForwarded serves a request of another node for a machine whose tunnel ends here.
// The other node has the caller, the ledger and the trace. This one checks everything
// again, by its own snapshot, since it alone knows the machine (spec/peers.md#home):
//
//  1. The machine has no tunnel of that generation here: moved, if it has a newer one
//     at another node, else gone. POST /ended is passed on by whichever tunnel of the
//     machine is here, also one that is kept for the calls on it.
//  2. A message that is no call (POST /control) is passed on.
//  3. The caller does not reach the machine, or that cannot be confirmed: no_reach.
//  4. A count of tokens is passed on, unless a group alone leads to the machine. It uses no
//     slot.
//  5. This attempt of the call was here before, or was asked about: repeated.
//  6. The call was granted a slot that is still held for it: it gets that.
//  7. The machine takes no calls of the caller now: busy or unavailable. Calls that wait
//     get the machine's free slots first. None is left: busy.
//  8. The call is passed on, and its answer back. It ends as soon as the other node
//     ends it, or the caller does not reach the machine any more.
func (d *Dispatcher) ServeForwarded(w http.ResponseWriter, r *http.Request) {
	id, generation, err := registry.Forwarded(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	attempt := r.Header.Get(tunnel.HeaderCorrelation) + " " + r.Header.Get(tunnel.HeaderAttempt)
	if r.URL.Path == tunnel.PathEnded {
		d.repeated.first(attempt, time.Now()) // it may have overtaken the attempt, which does not begin any more
		if line, ok := d.cfg.Registry.Tunnel(id); ok {
			relay(w, line, registry.RelayedRequest(r, headerAsk, headerHold))
			return
		}
	}
	line, ok := d.cfg.Registry.Line(id)
	machine := d.cfg.Registry.Snapshot().Machine(id)
	if !ok || line.Home != "" || machine == nil || machine.Generation != generation {
		registry.Refuse(w, registry.RefusalOfAbsent(machine, generation))
		return
	}
	request := registry.RelayedRequest(r, headerAsk, headerHold)
	if r.URL.Path == tunnel.PathControl {
		relay(w, line, request)
		return
	}
	held := d.scheduler.redeem(r.Header.Get(headerHold))
	defer func() {
		if held != nil {
			d.scheduler.release(held, unused)
		}
	}()
	call, proven, err := readAsk(r.Header.Get(headerAsk))
	if err != nil {
		http.Error(w, "cannot read "+headerAsk+": "+err.Error(), http.StatusBadRequest)
		return
	}
	query := queryOf(call)
	snapshot := d.refresh(&query)
	if machine = snapshot.Machine(id); machine == nil {
		registry.Refuse(w, registry.RefusedGone)
		return
	}
	seen, ok := fleet.StateOf(snapshot, &query, machine)
	if !ok || query.Unconfirmed {
		registry.Refuse(w, registry.RefusedReach)
		return
	}
	if r.URL.Path == tunnel.PathTokenize {
		if seen.Class == fleet.Grouped { // a share has just ended
			registry.Refuse(w, registry.RefusedReach)
			return
		}
		withholdBody(request, seen.Class)
		relay(w, line, request)
		return
	}
	call.ID = r.Header.Get(tunnel.HeaderCorrelation)
	if !d.repeated.first(attempt, time.Now()) {
		registry.Refuse(w, registry.RefusedRepeated)
		return
	}
	if seen.Class == fleet.Grouped && seen.Standing == fleet.Unserved && proven {
		seen.Offer.Load.RaiseStanding(seen.Circle()) // as the other node has seen
		seen, _ = fleet.StateOf(snapshot, &query, machine)
	}
	slot := held
	if slot != nil && slot.Machine.ID == id && slot.model == call.Model {
		held = nil
	} else {
		if reason := refusalOf(seen.State); reason != "" {
			registry.Refuse(w, reason)
			return
		}
		if slot = d.scheduler.take([]fleet.Candidate{seen.Candidate}, call.Model, query.Now); slot == nil {
			registry.Refuse(w, registry.RefusedBusy)
			return
		}
	}
	d.serveForwarded(w, request, call, slot, line)
}

// refusalOf returns why a machine in that state takes no call; empty: it does.
func refusalOf(state fleet.State) registry.Refusal {
	switch state {
	case fleet.Ready:
		return ""
	case fleet.Busy:
		return registry.RefusedBusy
	default:
		return registry.RefusedUnavailable
	}
}

// relay passes on a request that uses no slot, and its answer.
func relay(w http.ResponseWriter, line registry.Line, request *http.Request) {
	response, err := line.RoundTrip(request)
	if err != nil {
		registry.Refuse(w, endOf(request.Context(), line.Gone))
		return
	}
	defer response.Body.Close()
	registry.Relay(w, response, func(int64) registry.Refusal { return endOf(request.Context(), line.Gone) })
}

// endOf returns why an exchange with a machine broke off.
func endOf(ctx context.Context, gone <-chan struct{}) registry.Refusal {
	if awaitTunnelEnd(ctx, gone) {
		return registry.EndedLost
	}
	return registry.EndedBroken
}

// serveForwarded is step 8 of ServeForwarded, with a slot. It is released before the
// other node learns that the answer is complete, so that its next call finds it free.
func (d *Dispatcher) serveForwarded(w http.ResponseWriter, request *http.Request, call *gateway.Call, slot *reservation, line registry.Line) {
	use := unused
	defer func() { d.scheduler.release(slot, use) }()
	d.scheduler.widen(slot, call.Choices)
	c := &activeCall{d: d, call: call, query: queryOf(call)}
	active, unregister := d.active.register(request.Context(), c)
	defer unregister()
	ctx, cancel := context.WithCancelCause(active)
	defer cancel(nil)
	a := &attempt{reservation: slot, call: call, began: time.Now(), cancel: cancel}
	c.attempt.Store(a)
	if !d.mayStart(a) { // OnChange did not see an attempt that was stored after its change
		registry.Refuse(w, registry.RefusedReach)
		return
	}
	// ended reports how an exchange ended. The other node asks the machine whether it runs
	// one that this node ended.
	ended := func() registry.Refusal {
		if request.Context().Err() == nil && ctx.Err() != nil {
			if d.ending.Load() != nil {
				return registry.EndedLost
			}
			return registry.EndedReach
		}
		return endOf(ctx, line.Gone)
	}
	withholdBody(request, slot.Class) // net/http took the Expect of the other node away
	response, err := line.RoundTrip(request.WithContext(ctx))
	switch {
	case errors.Is(err, tunnel.ErrFull):
		use = refusedBusy
		registry.Refuse(w, registry.RefusedBusy)
		return
	case errors.Is(err, tunnel.ErrEnded):
		registry.Refuse(w, registry.RefusedGone)
		return
	case err != nil:
		how := ended()
		use = useOf(call, how, 0)
		registry.Refuse(w, how)
		return
	}
	defer response.Body.Close()
	switch tunnel.RefusalIn(response.Header) {
	case "":
		use = ran
	case tunnel.RefusedBusy:
		use = refusedBusy
	}
	registry.Relay(w, response, func(relayed int64) registry.Refusal {
		how := ended()
		if use == ran {
			use = useOf(call, how, relayed)
		}
		return how
	})
}

// useOf returns how a call of another node that broke off used its slot. A streamed one whose
// machine is gone before the first byte goes to another machine (slotUses).
func useOf(call *gateway.Call, how registry.Refusal, relayed int64) slotUse {
	if how == registry.EndedLost && call.Stream && relayed == 0 {
		return unused
	}
	return ran
}

// rememberFor is how long the attempts of other nodes are remembered, at least.
const rememberFor = time.Minute

// repetitions remembers the attempts that other nodes forwarded, so that no fault on the
// way between two nodes can make one run twice.
type repetitions struct {
	mu          sync.Mutex
	began       time.Time // of now
	now, before map[string]struct{}
}

// first reports whether the attempt was not seen before, and remembers it.
func (s *repetitions) first(attempt string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil || now.Sub(s.began) >= rememberFor {
		s.before, s.now, s.began = s.now, make(map[string]struct{}), now
	}
	_, again := s.now[attempt]
	_, earlier := s.before[attempt]
	s.now[attempt] = struct{}{}
	return !again && !earlier
}
