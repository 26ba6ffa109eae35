package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json/v2"
	"hash/fnv"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/dispatch"
	"github.com/kith/kith/internal/fleet"
)

const (
	// holdFor is how long a slot is held for a call of another node.
	holdFor = time.Second
	// pauseFor is how long a machine is not offered again to a node that declined it.
	pauseFor = time.Second
	// maxGrant is the longest grant, in bytes.
	maxGrant = 4 << 10
)

// waiting is the oldest of the calls that wait at a node and are equal to routing
// (spec/peers.md#waiting).
type waiting struct {
	ID      int64             `json:"id"` // of these calls, at their node
	Member  fleet.MemberID    `json:"member,omitempty"`
	Narrow  fleet.Narrow      `json:"narrow,omitempty"`
	Machine fleet.MachineID   `json:"machine,omitempty"` // whose daemon sent the calls
	Model   fleet.ModelID     `json:"model,omitempty"`
	Family  fleet.Family      `json:"family,omitempty"`
	Avoid   []fleet.MachineID `json:"avoid,omitempty"`
	Calls   []waitingCall     `json:"calls,omitempty"` // oldest first; none: none wait any longer
}

// waitingCall is one call that waits. Its age is how long it had been there, in
// microseconds, when its node announced it: the clocks of two nodes are not compared.
type waitingCall struct {
	Number int64 `json:"number"` // at its node
	Age    int64 `json:"age"`
}

// waitingOf returns waiting calls as they are announced now.
func waitingOf(w dispatch.Waiting) waiting {
	q := &w.Query
	out := waiting{ID: w.ID, Member: q.Caller, Narrow: q.Narrow, Machine: q.Exclude, Model: q.Model, Family: q.Family, Avoid: q.Avoid}
	for _, call := range w.Calls {
		out.Calls = append(out.Calls, waitingCall{call.Number, time.Since(call.Arrived).Microseconds()})
	}
	return out
}

func (w *waiting) query() fleet.Query {
	return fleet.Query{Caller: w.Member, Narrow: w.Narrow, Exclude: w.Machine, Model: w.Model, Family: w.Family, Avoid: w.Avoid}
}

// calls returns the calls with the times at which they came to their node, by the clock of
// this one.
func (w *waiting) calls(now time.Time) []dispatch.WaitingCall {
	calls := make([]dispatch.WaitingCall, len(w.Calls))
	for i, call := range w.Calls {
		calls[i] = dispatch.WaitingCall{Number: call.Number, Arrived: now.Add(-time.Duration(max(call.Age, 0)) * time.Microsecond)}
	}
	return calls
}

// queues orders the calls of several nodes. Each node announces its first waiting calls,
// which wait at all others as guests. So the home of a machine grants its slots to the
// calls of all nodes in one order:
//
//	the call's node                                  home of the machine
//	Waits ── the first calls ──────────────────────▶ take ──▶ Guests.Set
//	                                                 Grant: the slot is held, and offered
//	serveGrant ◀───────────────── POST /peer/grant ──┘
//	  └──▶ the request, with Kith-Hold ─────────────▶ redeem: the call has the slot
//
// A slot whose call does not come within holdFor is free again: the answer was lost, or
// the node is gone.
type queues struct {
	counts grantCounts

	mu    sync.Mutex
	hosts map[string]*host // nodes with calls that wait here, by name
	holds map[string]*dispatch.Slot
}

// host is another node whose calls wait here.
type host struct {
	cluster *Cluster
	name    string
	as      *dispatch.Host

	taking sync.Mutex                 // held while an announcement is taken
	guests map[int64]*dispatch.Guests // by their id there; guarded by taking

	mu     sync.Mutex
	paused map[fleet.MachineID]time.Time // machines that it declined, until when
}

// grantCounts counts the slots that were offered to other nodes.
type grantCounts struct{ offered, taken, gone, declined, lost, expired atomic.Int64 }

// Grants is how many slots this node has offered to calls of other nodes, and what
// resulted.
type Grants struct {
	Offered  int64
	Taken    int64 // the call's request followed, or was to
	Gone     int64 // the call did not wait any longer
	Declined int64 // it waits, and not for this machine now
	Lost     int64 // there was no answer
	Expired  int64 // the call's request did not come in time
}

// Grants returns what this node has offered to calls of other nodes.
func (c *Cluster) Grants() Grants {
	n := &c.queues.counts
	return Grants{n.offered.Load(), n.taken.Load(), n.gone.Load(), n.declined.Load(), n.lost.Load(), n.expired.Load()}
}

// Waits implements dispatch.Others.
func (c *Cluster) Waits(w dispatch.Waiting) {
	if len(w.Calls) > 0 {
		c.feed.set(waitingKey(w.ID), w, true)
	} else {
		c.feed.remove(waitingKey(w.ID), true)
	}
}

// Rank implements dispatch.Others (spec/peers.md#order).
func (c *Cluster) Rank(host string, number int64) uint64 {
	self := c.parts.Registry.NodeName()
	if host == "" {
		host = self
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(self + " " + host + " " + strconv.FormatInt(number, 10))) // it never fails
	return h.Sum64()
}

// takeWaiting takes what another node announced of its waiting calls: all of them if
// complete is true, else those that changed.
func (c *Cluster) takeWaiting(node string, complete bool, all []waiting) {
	if !complete && len(all) == 0 {
		return
	}
	h := c.queues.host(c, node)
	h.taking.Lock()
	defer h.taking.Unlock()
	now := time.Now()
	if complete {
		for id, g := range h.guests {
			if !slices.ContainsFunc(all, func(w waiting) bool { return w.ID == id }) {
				g.Set(nil)
				delete(h.guests, id)
			}
		}
	}
	for i := range all {
		w := &all[i]
		g := h.guests[w.ID]
		if g == nil {
			g = c.parts.Dispatch.NewGuests(h.as, w.query())
			h.guests[w.ID] = g
		}
		g.Set(w.calls(now))
		if len(w.Calls) == 0 {
			delete(h.guests, w.ID)
		}
	}
}

// host returns the host of that name.
func (q *queues) host(c *Cluster, name string) *host {
	q.mu.Lock()
	defer q.mu.Unlock()
	h := q.hosts[name]
	if h == nil {
		h = &host{cluster: c, name: name, guests: make(map[int64]*dispatch.Guests), paused: make(map[fleet.MachineID]time.Time)}
		h.as = &dispatch.Host{Name: name, Takes: h.takes, Grant: h.grant}
		if q.hosts == nil {
			q.hosts = make(map[string]*host)
		}
		q.hosts[name] = h
	}
	return h
}

// takes is dispatch.Host.Takes.
func (h *host) takes(machine fleet.MachineID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !time.Now().Before(h.paused[machine])
}

// grant is dispatch.Host.Grant: it holds a slot for a call, and offers it to the call's
// node.
func (h *host) grant(calls *dispatch.Guests, number int64, slot *dispatch.Slot) {
	hold := h.cluster.queues.hold(slot)
	go h.offer(calls, number, slot, hold)
}

// hold holds a slot under the name that it returns.
func (q *queues) hold(slot *dispatch.Slot) (name string) {
	q.counts.offered.Add(1)
	name = rand.Text()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.holds == nil {
		q.holds = make(map[string]*dispatch.Slot)
	}
	q.holds[name] = slot
	return name
}

// redeem returns the slot that is held under a name, once; nil if it was released.
func (q *queues) redeem(name string) *dispatch.Slot {
	if name == "" {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	slot := q.holds[name]
	delete(q.holds, name)
	return slot
}

// offer offers a held slot. What happens to it, by the outcome:
//
//  1. Taken: the call's request redeems it. If that does not come within holdFor of the
//     offer, the slot is released.
//  2. Gone: the slot is released.
//  3. Declined, or there is no answer: the slot is released. The call waits on, and the
//     machine is not offered to its node again for pauseFor.
func (h *host) offer(calls *dispatch.Guests, number int64, slot *dispatch.Slot, hold string) {
	q, machine := &h.cluster.queues, slot.Machine
	expires := time.AfterFunc(holdFor, func() {
		if q.redeem(hold) != nil {
			q.counts.expired.Add(1)
			slot.Release()
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), holdFor)
	defer cancel()
	switch h.cluster.send(ctx, h.name, grant{Call: number, Machine: machine.ID, Generation: machine.Generation, Hold: hold}) {
	case http.StatusNoContent:
		q.counts.taken.Add(1)
		return
	case http.StatusGone:
		q.counts.gone.Add(1)
	case http.StatusConflict:
		q.counts.declined.Add(1)
		h.pause(calls, number, machine.ID)
	default:
		q.counts.lost.Add(1)
		h.pause(calls, number, machine.ID)
	}
	if expires.Stop() && q.redeem(hold) != nil {
		slot.Release()
	}
}

// pause lets a call wait on that did not take a slot of the machine.
func (h *host) pause(calls *dispatch.Guests, number int64, machine fleet.MachineID) {
	h.mu.Lock()
	h.paused[machine] = time.Now().Add(pauseFor)
	h.mu.Unlock()
	time.AfterFunc(pauseFor, func() {
		h.mu.Lock()
		if !time.Now().Before(h.paused[machine]) {
			delete(h.paused, machine)
		}
		h.mu.Unlock()
		h.cluster.parts.Dispatch.OnMachine(machine)
	})
	calls.Return(number)
}

// grant is a held slot of a machine for one waiting call of another node.
type grant struct {
	Call       int64           `json:"call"` // its number at its node
	Machine    fleet.MachineID `json:"machine"`
	Generation int64           `json:"generation"`
	Hold       string          `json:"hold"` // the call's request names it
}

// sendGrant offers a held slot to the node of a waiting call, and returns the status of
// the answer: 204, the call's request follows; 410, it does not wait any longer; 409, it
// waits, and not for this machine now; 0, there is no answer.
func (c *Cluster) sendGrant(ctx context.Context, node string, g grant) (status int) {
	f := c.followedNode(node)
	if f == nil {
		return 0
	}
	body, err := json.Marshal(g)
	if err != nil {
		return 0
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://peer"+pathGrant, bytes.NewReader(body))
	if err != nil {
		return 0
	}
	response, err := f.peer.RoundTrip(request)
	if err != nil {
		return 0
	}
	response.Body.Close()
	return response.StatusCode
}

// serveGrant takes a slot that another node offers to a call that waits here.
func (c *Cluster) serveGrant(w http.ResponseWriter, r *http.Request) {
	var g grant
	if err := json.UnmarshalRead(io.LimitReader(r.Body, maxGrant), &g); err != nil {
		http.Error(w, "cannot read the grant: "+err.Error(), http.StatusBadRequest)
		return
	}
	switch taken, waits := c.parts.Dispatch.Take(g.Call, g.Machine, g.Generation, g.Hold); {
	case taken:
		w.WriteHeader(http.StatusNoContent)
	case waits:
		w.WriteHeader(http.StatusConflict)
	default:
		w.WriteHeader(http.StatusGone)
	}
}
