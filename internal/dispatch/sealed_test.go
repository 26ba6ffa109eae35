package dispatch

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/tunnel"
)

// Sealed calls wait for the machines that they are sealed for. When another one becomes
// ready, only the first of them is sent back to be sealed for it; when none of theirs is
// left, all are.
func TestSealedCallsWait(t *testing.T) {
	first, second := fleet.SealKey{1}, fleet.SealKey{2}
	r := newScheduler(t, 1)
	machine := func(id fleet.MachineID, online bool, keys ...fleet.SealKey) *fleet.Machine {
		return &fleet.Machine{ID: id, Owner: "ann", Online: online, Slots: 1, Seals: keys, Offers: []fleet.Offer{{ID: "m", Families: fleet.Families(fleet.Chat)}}}
	}
	r.snapshot = r.snapshot.WithMachine(machine("box", true, first)).WithMachine(machine("den", false, second))
	busy := r.newcomer("ann")
	sealed := queryBy("bob")
	sealed.Sealed, sealed.To = true, []fleet.Recipient{{Machine: "box", Key: first}}
	a, b := r.join(sealed, noon), r.join(sealed, noon.Add(1))

	r.snapshot = r.snapshot.WithMachine(machine("den", true)) // another one, without a key
	r.onMachine(r.snapshot.Machine("den"))
	assert.Require(t, got(a).refusal == nil && r.waitCount.Load() == 2, "sealed again for a machine without a key")
	r.snapshot = r.snapshot.WithMachine(machine("den", true, second))
	r.onMachine(r.snapshot.Machine("den"))
	f := got(a).refusal
	assert.Require(t, f != nil && f.Code == fault.StaleSeal && r.waitCount.Load() == 1, "the first one", f)
	assert.Equal(t, f.Status(), 412)

	taken := r.newcomer("ann") // the other machine's slot
	assert.Require(t, taken != nil && taken.Machine.ID == "den", taken)
	r.release(busy, ran)
	granted := got(b).reservation
	assert.Require(t, granted != nil && granted.Machine.ID == "box", "the machine that it is sealed for became free")

	c, d := r.join(sealed, noon), r.join(sealed, noon.Add(1))
	r.snapshot = r.snapshot.WithMachine(machine("box", true, second)) // another key: the daemon was restarted
	r.tick(noon)
	for _, w := range []*waiter{c, d} {
		f := got(w).refusal
		assert.That(t, f != nil && f.Code == fault.StaleSeal, "no machine has the key any more", f)
	}
}

// A machine says of a sealed call only what an engine can cause, and everything else that
// its answer holds is for the daemon that sealed the call.
func TestSealedFaults(t *testing.T) {
	for _, c := range []struct {
		status  int
		header  string
		outcome outcome
		code    fault.Code
	}{
		{400, "invalid_request", failed, fault.InvalidRequest},
		{400, "context_length_exceeded", failed, fault.ContextLengthExceeded},
		{413, "request_too_large", failed, fault.RequestTooLarge},
		{502, "engine_error", failed, fault.EngineError},
		{403, "NOT_IN_CIRCLE", failed, fault.EngineError},
		{502, "engine_error", failed, fault.EngineError},
		{503, "", notTaken, ""},
		{400, "", failed, fault.InvalidRequest},
	} {
		header := http.Header{}
		if c.header != "" {
			header.Set(tunnel.HeaderFault, c.header)
		}
		response := &http.Response{StatusCode: c.status, Header: header, Body: io.NopCloser(strings.NewReader("sealed"))}
		out, err := readNon200(response, true)
		assert.Equal(t, out, c.outcome, c)
		if f := fault.Of(err); c.code != "" {
			assert.That(t, f != nil && f.Code == c.code && (f.Sealed != "") == (c.header != ""), c, f)
		}
	}
	text := &http.Response{StatusCode: 400, Header: http.Header{tunnel.HeaderFault: {"invalid_request"}}, Body: io.NopCloser(strings.NewReader("\x00secret"))}
	_, err := readNon200(text, true)
	assert.Equal(t, fault.Of(err).Sealed, "AHNlY3JldA==")
	_, err = readNon200(&http.Response{StatusCode: 502, Header: http.Header{tunnel.HeaderFault: {"engine_error"}}, Body: http.NoBody}, true)
	assert.Fails(t, err, "changed on its way")
	clear := &http.Response{StatusCode: 400, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(`{"error":{"message":"secret"}}`))}
	_, err = readNon200(clear, true)
	assert.That(t, !strings.Contains(err.Error(), "secret"), err)
}

// A machine that cannot take a call because of its seal has done nothing wrong, unless it
// has read the prompt of a group's member, or the call has no seal.
func TestStaleKeyCounts(t *testing.T) {
	for _, c := range []struct {
		reason        tunnel.Refusal
		class         fleet.Class
		sealed, body  bool
		other, spared bool
	}{
		{tunnel.RefusedStaleKey, fleet.Grouped, true, false, true, true},
		{tunnel.RefusedStaleKey, fleet.Grouped, true, true, true, false},
		{tunnel.RefusedRepeated, fleet.Grouped, true, true, true, false},
		{tunnel.RefusedRepeated, fleet.Shared, true, true, true, true},
		{tunnel.RefusedStaleKey, fleet.Shared, false, false, false, true},
		{tunnel.RefusedBusy, fleet.Shared, true, false, false, true},
	} {
		call := &gateway.Call{}
		if c.sealed {
			call.Sealed = &gateway.Sealed{}
		}
		a := &attempt{call: call, daemonReason: c.reason, gotBody: c.body, reservation: &reservation{Candidate: fleet.Candidate{Class: c.class}}}
		assert.That(t, a.needsOtherSeal() == c.other && a.mayNameState() == c.spared, c)
	}
}
