package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kith/kith/internal/dispatch"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/registry"
	"github.com/kith/kith/internal/tunnel"
)

// The headers of forwarded requests (spec/peers.md#headers). They are not passed on to
// the machine. The home removes them from a machine's answer.
const (
	headerMachine = "Kith-Machine"      // "ID GENERATION" of the machine
	headerAsk     = "Kith-Ask"          // the home's input for checking the call again
	headerHold    = "Kith-Hold"         // names the slot that the home reserved
	headerRefused = "Kith-Home-Refused" // on a 503 from the home: the refusal
	headerEnded   = "Kith-Home-Ended"   // trailer: how the machine's answer ended
)

// end is how a forwarded request ended: its home refused it, or served it to an end.
type end string

// The ends that a home reports: refusals, and those of requests that it forwarded
// (spec/peers.md#refusals).
const (
	refusedBusy        end = "busy"        // no free slot
	refusedGone        end = "gone"        // the machine has no tunnel of that generation at this node
	refusedMoved       end = "moved"       // the machine has a newer tunnel at another node
	refusedReach       end = "no_reach"    // the caller may not use the machine, or that cannot be confirmed
	refusedUnavailable end = "unavailable" // paused, outside its hours, or its owner's limits are used up
	refusedRepeated    end = "repeated"    // this attempt of the call has already arrived

	endedLost     end = "lost"    // the machine's tunnel ended
	endedBroken   end = "broken"  // the engine aborted its answer
	endedReach    end = "revoked" // the caller may no longer use the machine
	endedComplete end = "complete"
)

// err returns the error for the node that sent the request.
func (e end) err() error {
	switch e {
	case refusedBusy, refusedGone, refusedMoved, refusedReach, refusedUnavailable:
		return fmt.Errorf("%w: %s", dispatch.ErrRefused, string(e))
	case endedLost:
		return dispatch.ErrLost
	case endedReach:
		return dispatch.ErrUnreached
	case endedBroken:
		return errors.New("the machine closed the stream")
	default:
		return fmt.Errorf("%w: %s", dispatch.ErrNotTaken, string(e))
	}
}

// Describe implements dispatch.Others.
func (c *Cluster) Describe(r *http.Request, call *gateway.Call, served bool, hold string) {
	r.Header.Set(headerAsk, url.Values{
		"member": {string(call.Caller.Member)}, "name": {call.Caller.Name}, "key": {call.Caller.KeyID},
		"narrow": {strconv.Itoa(int(call.Caller.Reach))}, "machine": {string(call.Caller.Machine)},
		"model": {string(call.Model)}, "endpoint": {call.Endpoint.Path()}, "stream": {strconv.FormatBool(call.Stream)},
		"choices": {strconv.Itoa(call.Choices)}, "proven": {strconv.FormatBool(served)},
	}.Encode())
	if hold != "" {
		r.Header.Set(headerHold, hold)
	}
}

// readAsk parses the call that Describe encoded.
func readAsk(text string) (call *gateway.Call, served bool, err error) {
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
		Caller: fleet.Caller{
			Member: fleet.MemberID(ask.Get("member")), Name: ask.Get("name"), KeyID: ask.Get("key"),
			Reach: fleet.KeyReach(narrow), Machine: fleet.MachineID(ask.Get("machine")),
		},
		Arrived: time.Now(),
	}, ask.Get("proven") == "true", nil
}

// forwardedTo returns the machine that a forwarded request is for, and the generation of
// its tunnel.
func forwardedTo(r *http.Request) (id fleet.MachineID, generation int64, err error) {
	name, number, _ := strings.Cut(r.Header.Get(headerMachine), " ")
	generation, err = strconv.ParseInt(number, 10, 64)
	if err != nil || name == "" {
		return "", 0, fmt.Errorf("%s does not name a machine: %q", headerMachine, r.Header.Get(headerMachine))
	}
	return fleet.MachineID(name), generation, nil
}

// ServeForwarded serves another node's request for a machine whose tunnel ends at this
// node. The other node handles the caller, the ledger and the trace. This node checks the
// call again in its own snapshot, because only it knows the machine's current state
// (spec/peers.md#home):
//
//  1. The machine has no tunnel of that generation here: moved, if it has a newer one at
//     another node, else gone. POST /ended is forwarded through any tunnel of the
//     machine that is here, even one that is only kept for its running calls.
//  2. A message that is not a call (/control, /seal) is forwarded.
//  3. The caller may not use the machine, or that cannot be confirmed: no_reach.
//  4. A request to count tokens is forwarded unless the caller reaches the machine only
//     through a group. It uses no slot.
//  5. This attempt of the call has arrived before, or /ended was called for it:
//     repeated.
//  6. A slot is still held for the call: it uses that slot.
//  7. The machine accepts no calls of the caller now: busy or unavailable. Waiting calls
//     get its free slots first; if none is left: busy.
//  8. The call is forwarded, and its answer returned. It ends early if the other node
//     ends it, or if the caller may no longer use the machine.
func (c *Cluster) ServeForwarded(w http.ResponseWriter, r *http.Request) {
	id, generation, err := forwardedTo(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	attempt := r.Header.Get(tunnel.HeaderCorrelation) + " " + r.Header.Get(tunnel.HeaderAttempt)
	request := toMachine(r)
	if r.URL.Path == tunnel.PathEnded {
		c.repeated.first(attempt, time.Now()) // /ended may have overtaken the attempt, which then must not start
		if line, ok := c.parts.Registry.Tunnel(id); ok {
			relayRequest(w, line, request)
			return
		}
	}
	line, ok := c.parts.Registry.Line(id)
	machine := c.parts.Registry.Snapshot().Machine(id)
	if !ok || line.Home != "" || machine == nil || machine.Generation != generation {
		refuse(w, refusalOfAbsent(machine, generation))
		return
	}
	if r.URL.Path == tunnel.PathControl || r.URL.Path == tunnel.PathSeal {
		relayRequest(w, line, request)
		return
	}
	held := c.grants.redeem(r.Header.Get(headerHold))
	defer func() {
		if held != nil {
			held.Release()
		}
	}()
	call, served, err := readAsk(r.Header.Get(headerAsk))
	if err != nil {
		http.Error(w, "cannot read "+headerAsk+": "+err.Error(), http.StatusBadRequest)
		return
	}
	class, why := c.parts.Dispatch.Reach(call, id)
	if why != dispatch.NoReason {
		refuse(w, refusalOf(why))
		return
	}
	if r.URL.Path == tunnel.PathTokenize {
		if class == fleet.Grouped { // the share has just ended
			refuse(w, refusedReach)
			return
		}
		dispatch.ExpectContinue(request, class)
		relayRequest(w, line, request)
		return
	}
	call.ID = r.Header.Get(tunnel.HeaderCorrelation)
	if !c.repeated.first(attempt, time.Now()) {
		refuse(w, refusedRepeated)
		return
	}
	visit, why := c.parts.Dispatch.Admit(call, id, held, served)
	held = nil // now owned by the visit, or released
	if why != dispatch.NoReason {
		refuse(w, refusalOf(why))
		return
	}
	c.serveVisit(w, request, visit, line)
}

// serveVisit implements step 8 of ServeForwarded. It releases the slot before the other
// node learns that the answer is complete, so that the node's next call finds the slot
// free.
func (c *Cluster) serveVisit(w http.ResponseWriter, request *http.Request, visit *dispatch.Visit, line registry.Line) {
	var used, full bool // what finish is called with
	ctx, finish, ok := visit.Begin(request.Context())
	defer func() { finish(used, full) }()
	if !ok {
		refuse(w, refusedReach)
		return
	}
	// ended reports how the exchange ended. If the other node ended it, that node asks the
	// machine whether the call is still running.
	ended := func() end {
		switch {
		case request.Context().Err() != nil || ctx.Err() == nil:
			return endOfLine(ctx, line)
		case c.parts.Dispatch.Ending():
			return endedLost
		default:
			return endedReach
		}
	}
	dispatch.ExpectContinue(request, visit.Class) // net/http removed the other node's Expect header
	response, err := line.RoundTrip(request.WithContext(ctx))
	switch {
	case errors.Is(err, tunnel.ErrFull):
		full = true
		refuse(w, refusedBusy)
		return
	case errors.Is(err, tunnel.ErrEnded):
		refuse(w, refusedGone)
		return
	case err != nil:
		how := ended()
		used = !visit.IsRetried(how == endedLost, 0)
		refuse(w, how)
		return
	}
	switch tunnel.RefusalIn(response.Header) {
	case "":
		used = true
	case tunnel.RefusedBusy:
		full = true
	}
	defer response.Body.Close()
	relay(w, response, func(relayed int64) end {
		how := ended()
		used = used && !visit.IsRetried(how == endedLost, relayed)
		return how
	})
}

// refusalOf returns the refusal for a reason of dispatch.
func refusalOf(why dispatch.Reason) end {
	switch why {
	case dispatch.Unknown:
		return refusedGone
	case dispatch.Unreached:
		return refusedReach
	case dispatch.Full:
		return refusedBusy
	default:
		return refusedUnavailable
	}
}

// refusalOfAbsent returns the refusal for a tunnel generation that is not at this node.
func refusalOfAbsent(m *fleet.Machine, generation int64) end {
	if m != nil && m.Online && m.Generation > generation {
		return refusedMoved
	}
	return refusedGone
}

// refuse responds to another node with a refusal.
func refuse(w http.ResponseWriter, reason end) {
	w.Header().Set(headerRefused, string(reason))
	w.WriteHeader(http.StatusServiceUnavailable)
}

// relayRequest forwards a request that uses no slot, and returns its answer.
func relayRequest(w http.ResponseWriter, line registry.Line, request *http.Request) {
	response, err := line.RoundTrip(request)
	if err != nil {
		refuse(w, endOfLine(request.Context(), line))
		return
	}
	defer response.Body.Close()
	relay(w, response, func(int64) end { return endOfLine(request.Context(), line) })
}

// endOfLine returns why an exchange with a machine was interrupted.
func endOfLine(ctx context.Context, line registry.Line) end {
	if line.Ended(ctx) {
		return endedLost
	}
	return endedBroken
}

// relay copies a machine's answer to the node that forwarded the request. It calls ended
// with the number of bytes to find out how an incomplete answer ended.
func relay(w http.ResponseWriter, response *http.Response, ended func(relayed int64) end) {
	header := w.Header()
	for name, values := range response.Header {
		switch name {
		case headerRefused, headerEnded, "Trailer", "Connection":
		default:
			header[name] = values
		}
	}
	header.Set("Trailer", headerEnded)
	w.WriteHeader(response.StatusCode)
	controller := http.NewResponseController(w)
	buffer := make([]byte, 16<<10)
	how, relayed := endedComplete, int64(0)
	for {
		n, err := response.Body.Read(buffer)
		if relayed += int64(n); n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return // the other node ended the call or is gone
			}
			if err := controller.Flush(); err != nil {
				return
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			how = ended(relayed)
			break
		}
	}
	header.Set(headerEnded, string(how))
}

// toMachine returns another node's request in the form that the machine gets.
func toMachine(r *http.Request) *http.Request {
	out := r.WithContext(r.Context())
	url := *r.URL
	url.Scheme, url.Host, url.RawQuery = "http", "machine", ""
	out.URL, out.Host, out.RequestURI, out.TLS = &url, "", "", nil
	out.Header = r.Header.Clone()
	for _, name := range []string{headerMachine, headerAsk, headerHold} {
		out.Header.Del(name)
	}
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header.Set("User-Agent", "")
	}
	return out
}

// rememberFor is how long attempts of other nodes are remembered, at least.
const rememberFor = time.Minute

// repetitions remembers the attempts that other nodes forwarded, so that a fault between
// two nodes cannot make an attempt run twice.
type repetitions struct {
	mu                sync.Mutex
	began             time.Time // when current was started
	current, previous map[string]struct{}
}

// first reports whether the attempt is new, and remembers it.
func (s *repetitions) first(attempt string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil || now.Sub(s.began) >= rememberFor {
		s.previous, s.current, s.began = s.current, make(map[string]struct{}), now
	}
	_, again := s.current[attempt]
	_, earlier := s.previous[attempt]
	s.current[attempt] = struct{}{}
	return !again && !earlier
}
