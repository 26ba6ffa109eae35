package hub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/limit"
	"github.com/kith/kith/internal/tunnel"
)

// gateWait is how long a machine waits at the admission gate (spec/tunnel.md#gate). The
// daemon waits 10 s for an answer.
const gateWait = 4 * time.Second

// acceptTunnel serves GET /tunnel: the machine that dialed is reachable until its tunnel
// ends (spec/tunnel.md). It refuses, in this order:
//
//  1. 503: the hub is shutting down, or too many machines are at the admission gate.
//  2. 421: the credential is of another region.
//  3. 401: the credential is missing, wrong or revoked.
//  4. 409: the daemon was fenced, and the one that replaced it is connected.
//  5. 503: the machine dials too often, its owner has too many machines connected, or
//     the store does not answer.
//
// A panic affects only this request.
func (h *Hub) acceptTunnel(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if v := recover(); v != nil {
			err := fault.Defect(v)
			id := api.Refuse(w, fault.Of(err)) // has no effect if an answer has begun
			h.log.Error("request failed", "id", id, "method", r.Method, "error", err)
		}
	}()
	if h.drain.begun.Load() {
		api.Refuse(w, comeBack(fault.CapacityFull, "this hub is shutting down; come back shortly to reach another one"))
		return
	}
	if !h.admit(r.Context()) {
		api.Refuse(w, comeBack(fault.CapacityFull, "too many machines are connecting at once; come back shortly"))
		return
	}
	leave := sync.OnceFunc(func() { <-h.admitted })
	defer leave()

	machine, err := h.machineOf(r)
	if err != nil {
		if region, ok := errors.AsType[gateway.OtherRegion](err); ok && h.cfg.Regions[string(region)] != nil {
			w.Header().Set(tunnel.HeaderHub, h.cfg.Regions[string(region)].String())
		}
		api.Refuse(w, fault.Of(err))
		return
	}
	if r.Header.Get(tunnel.HeaderYields) != "" && h.live.Attached(fleet.MachineID(machine.ID)) {
		http.Error(w, "another daemon with this machine's credential is connected; give each its own with kith login", http.StatusConflict)
		return
	}
	now := time.Now()
	pace := h.paces.of(machine.ID, now)
	if !pace.dials.AllowN(now, 1) {
		api.Refuse(w, comeBack(fault.CapacityFull, "this machine dials too often; come back after Retry-After"))
		return
	}
	free, ok := h.tunnels.take(machine.OwnerID, machine.ID)
	if !ok {
		api.Refuse(w, comeBack(fault.CapacityFull, "its owner has as many machines connected as one member may; disconnect one, or ask the operator for more ([limits] machines)"))
		return
	}
	open := false
	defer func() {
		if !open {
			free()
		}
	}()
	generation, err := h.records.NextGeneration(r.Context(), machine.ID)
	if err != nil {
		h.log.Error("cannot number a tunnel", "machine", machine.ID, "error", err)
		api.Refuse(w, comeBack(fault.CascadeExhausted, "the service could not take the machine in just now"))
		return
	}
	leave() // a machine that does not read the answer must not hold a place
	line, err := tunnel.Upgrade(w, r, tunnel.UpgradeConfig{Generation: generation, Node: h.cfg.Node, Offers: pace.offers})
	if err != nil {
		h.log.Info("tunnel refused", "machine", machine.ID, "error", err)
		return
	}
	// The tunnel outlives this handler. Returning frees the server's buffers.
	open = true
	machine.Generation = generation
	go h.serveTunnel(context.WithoutCancel(r.Context()), machine, line, free)
}

// admit waits up to gateWait for a place at the admission gate. When a hub node ends, all
// its machines connect to the others within a second, and a machine that is refused comes
// back only after many seconds.
func (h *Hub) admit(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, gateWait)
	defer cancel()
	select {
	case h.admitted <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// serveTunnel keeps the machine reachable until its tunnel ends, and then calls free. A
// panic ends only this tunnel.
func (h *Hub) serveTunnel(ctx context.Context, m account.Machine, line *tunnel.Client, free func()) {
	defer free()
	defer line.Close()
	defer func() {
		if v := recover(); v != nil {
			h.log.Error("tunnel failed", "machine", m.ID, "error", fault.Defect(v))
		}
	}()
	err := h.live.Serve(ctx, m, line)
	h.log.Info("tunnel ended", "machine", m.ID, "name", m.Name, "owner", m.OwnerName, "generation", m.Generation, "reason", err)
}

// Limits for how often a machine may dial and advertise. Further dials are refused with
// 503; further advertisements are read later.
const (
	perSecond = 1
	burst     = 5
)

// pace limits how often one machine dials and advertises.
type pace struct{ dials, offers *rate.Limiter }

// paces holds the pace of each recently seen machine.
type paces struct {
	mu sync.Mutex
	by limit.Map[string, pace] // by the machine's id
}

func (p *paces) of(machine string, now time.Time) pace {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.by.Get(machine); ok {
		return known
	}
	fresh := pace{rate.NewLimiter(perSecond, burst), rate.NewLimiter(perSecond, burst)}
	// A machine that was absent until its limits are restored can be forgotten.
	p.by.Put(machine, fresh, func(known pace) bool {
		return known.dials.TokensAt(now) >= burst && known.offers.TokensAt(now) >= burst
	})
	return fresh
}

// tunnels limits the number of connected machines per member. They do not count towards
// the limits of addresses.
type tunnels struct {
	mu   sync.Mutex
	most int                       // machines per member; 0: no limit
	of   map[string]map[string]int // tunnels by member and machine; without entries of 0
}

func (t *tunnels) setMost(most int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.most = most
}

// take counts a tunnel of a member's machine until free is called. It returns false if
// the member has too many machines connected. A machine that is already connected may
// connect again: its new tunnel replaces the old one.
func (t *tunnels) take(member, machine string) (free func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	machines := t.of[member]
	if t.most > 0 && len(machines) >= t.most && machines[machine] == 0 {
		return nil, false
	}
	if machines == nil {
		machines = map[string]int{}
		t.of[member] = machines
	}
	machines[machine]++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if machines[machine]--; machines[machine] == 0 {
			delete(machines, machine)
		}
		if len(machines) == 0 {
			delete(t.of, member)
		}
	}, true
}

// machineOf returns the machine that the request's credential identifies.
func (h *Hub) machineOf(r *http.Request) (machine account.Machine, err error) {
	text, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	secret, err := credential.Parse(text)
	if !ok || err != nil || secret.Kind() != credential.MachineKey {
		return machine, badMachine()
	}
	if region := secret.Region(); region != h.cfg.Region {
		return machine, h.misdirected(region)
	}
	known, err := h.guess(r.Context())
	if err != nil {
		return machine, err
	}
	machine, _, err = h.records.MachineByHash(r.Context(), secret.Hash())
	if errors.Is(err, account.ErrNotFound) {
		return machine, badMachine()
	}
	known()
	if err != nil {
		err = comeBack(fault.CascadeExhausted, "the service could not check the machine's credential just now").Because(err)
	}
	return machine, err
}

// comeBack returns a 503 for a machine. Retry-After is random, so that machines that were
// refused together do not retry together.
func comeBack(code fault.Code, text string) *fault.Fault {
	return fault.New(code, "%s", text).WithRetryAfter(2 + rand.IntN(4))
}

// misdirected returns the fault for a machine of another region
// (spec/tunnel.md#statuses).
func (h *Hub) misdirected(region string) *fault.Fault {
	next := "sign in at a hub of that region, with kith login --hub"
	if at := h.cfg.Regions[region]; at != nil {
		next = fmt.Sprintf("sign in there with kith login --hub %s", at)
	}
	return fault.New(fault.WrongRegion, "this machine's credential is of region %q and this hub serves %q: %s", region, h.cfg.Region, next).
		Because(gateway.OtherRegion(region))
}

func badMachine() *fault.Fault {
	return fault.New(fault.InvalidAPIKey, "the machine's credential is missing, wrong or revoked; sign in again with kith login")
}
