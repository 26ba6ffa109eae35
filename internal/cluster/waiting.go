package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json/v2"
	"hash/fnv"
	"io"
	"maps"
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
	// holdFor is how long a slot is held for another node's call.
	holdFor = time.Second
	// backOffFor is how long a machine is not offered again to a node that declined it.
	backOffFor = time.Second
	// maxGrant is the maximum size of a grant, in bytes.
	maxGrant = 4 << 10
)

// waiting announces the oldest of a node's waiting calls that are equivalent to routing
// (spec/peers.md#waiting).
type waiting struct {
	ID      int64             `json:"id"` // of this group of calls at their entry
	Member  fleet.MemberID    `json:"member,omitempty"`
	Reach   fleet.KeyReach    `json:"narrow,omitempty"`
	Machine fleet.MachineID   `json:"machine,omitempty"` // the machine whose daemon sent the calls
	Model   fleet.ModelID     `json:"model,omitempty"`
	Family  fleet.Family      `json:"family,omitempty"`
	Avoid   []fleet.MachineID `json:"avoid,omitempty"`
	To      []fleet.Recipient `json:"to,omitempty"`    // of sealed calls
	Calls   []waitingCall     `json:"calls,omitempty"` // oldest first; empty: none are waiting now
}

// waitingCall is one waiting call. Its age, in microseconds, is how long it had been
// waiting when it was announced; that way the clocks of two nodes are never compared.
type waitingCall struct {
	Number int64 `json:"number"` // assigned by its entry
	Age    int64 `json:"age"`
}

// waitingOf returns the announcement of waiting calls as of now.
func waitingOf(w dispatch.Waiting) waiting {
	q := &w.Query
	out := waiting{ID: w.ID, Member: q.Caller, Reach: q.Reach, Machine: q.Exclude, Model: q.Model, Family: q.Family, Avoid: q.Avoid, To: q.To}
	for _, call := range w.Calls {
		out.Calls = append(out.Calls, waitingCall{call.Number, time.Since(call.Arrived).Microseconds()})
	}
	return out
}

func (w *waiting) query() fleet.Query {
	return fleet.Query{Caller: w.Member, Reach: w.Reach, Exclude: w.Machine, Model: w.Model, Family: w.Family, Avoid: w.Avoid, Sealed: w.To != nil, To: w.To}
}

// calls returns the calls with their arrival times by this node's clock.
func (w *waiting) calls(now time.Time) []dispatch.WaitingCall {
	calls := make([]dispatch.WaitingCall, len(w.Calls))
	for i, call := range w.Calls {
		calls[i] = dispatch.WaitingCall{Number: call.Number, Arrived: now.Add(-time.Duration(max(call.Age, 0)) * time.Microsecond)}
	}
	return calls
}

// grants holds slots for other nodes' calls, and the nodes that they are offered to. Each
// node announces its first waiting calls, which wait at all other nodes as guests. That
// way a machine's home grants slots to the calls of all nodes in one common order:
//
//	entry of the call                                home of the machine
//	Waits ── the first calls ──────────────────────▶ applyWaiting ──▶ Guests.Set
//	                                                 Grant: the slot is held, and offered
//	serveGrant ◀───────────────── POST /peer/grant ──┘
//	  └──▶ the request, with Kith-Hold ─────────────▶ redeem: the call has the slot
//
// If the call does not arrive within holdFor, the slot is released: either the answer was
// lost or the node is gone.
type grants struct {
	counts grantCounts

	mu      sync.Mutex
	entries map[string]*entry // by name; only nodes with calls that wait here
	holds   map[string]*dispatch.HeldSlot
}

// entry is another node with calls that wait here as guests.
type entry struct {
	cluster *Cluster
	name    string
	as      *dispatch.Entry

	applying sync.Mutex                 // held while an announcement is applied
	guests   map[int64]*dispatch.Guests // by their id at the other node; guarded by applying

	mu           sync.Mutex
	backOffUntil map[fleet.MachineID]time.Time // when machines that the node declined are offered again
}

// grantCounts counts the slots offered to other nodes.
type grantCounts struct{ offered, taken, gone, declined, lost, expired atomic.Int64 }

// Grants is how many slots this node has offered to other nodes' calls, by result. An offer
// may count as both Taken and Expired.
type Grants struct {
	Offered  int64
	Taken    int64 // accepted: the call's request followed or was to follow
	Gone     int64 // the call was no longer waiting
	Declined int64 // the call is waiting, but not for this machine now
	Lost     int64 // there was no answer
	Expired  int64 // the call's request did not arrive in time
}

// Grants returns the counts of slots offered to other nodes' calls.
func (c *Cluster) Grants() Grants {
	n := &c.grants.counts
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
func (c *Cluster) Rank(entry string, number int64) uint64 {
	self := c.parts.Registry.NodeName()
	if entry == "" {
		entry = self
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(self + " " + entry + " " + strconv.FormatInt(number, 10))) // never fails
	return h.Sum64()
}

// applyWaiting applies another node's announcement of waiting calls. If complete is true,
// it contains all of them, otherwise those that changed.
func (c *Cluster) applyWaiting(node string, complete bool, all []waiting) {
	if !complete && len(all) == 0 {
		return
	}
	e := c.grants.entry(c, node)
	e.applying.Lock()
	defer e.applying.Unlock()
	now := time.Now()
	if complete {
		for id, g := range e.guests {
			if !slices.ContainsFunc(all, func(w waiting) bool { return w.ID == id }) {
				g.Set(nil)
				delete(e.guests, id)
			}
		}
	}
	for i := range all {
		w := &all[i]
		g := e.guests[w.ID]
		if g == nil {
			g = c.parts.Dispatch.NewGuests(e.as, w.query())
			e.guests[w.ID] = g
		}
		g.Set(w.calls(now))
		if len(w.Calls) == 0 {
			delete(e.guests, w.ID)
		}
	}
}

// entry returns the entry with the given name. It creates it if necessary.
func (g *grants) entry(c *Cluster, name string) *entry {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.entries[name]
	if e == nil {
		e = &entry{
			cluster: c, name: name,
			guests: make(map[int64]*dispatch.Guests), backOffUntil: make(map[fleet.MachineID]time.Time),
		}
		e.as = &dispatch.Entry{Name: name, MayGrant: e.mayGrant, Grant: e.grant}
		if g.entries == nil {
			g.entries = make(map[string]*entry)
		}
		g.entries[name] = e
	}
	return e
}

// prune forgets entries that gone reports. None of their calls waits here: the end of a
// node is the end of its calls.
func (g *grants) prune(gone func(node string) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.entries, func(node string, _ *entry) bool { return gone(node) })
}

// mayGrant implements dispatch.Entry.MayGrant.
func (e *entry) mayGrant(machine fleet.MachineID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !time.Now().Before(e.backOffUntil[machine])
}

// grant implements dispatch.Entry.Grant: it holds a slot for a call and offers it to the
// call's entry.
func (e *entry) grant(calls *dispatch.Guests, number int64, slot *dispatch.HeldSlot) {
	hold := e.cluster.grants.hold(slot)
	go e.offer(calls, number, slot, hold)
}

// hold holds a slot under a new name, which it returns.
func (g *grants) hold(slot *dispatch.HeldSlot) (name string) {
	g.counts.offered.Add(1)
	name = rand.Text()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.holds == nil {
		g.holds = make(map[string]*dispatch.HeldSlot)
	}
	g.holds[name] = slot
	return name
}

// redeem returns the slot held under the name. It returns nil if the slot was already
// redeemed or released.
func (g *grants) redeem(name string) *dispatch.HeldSlot {
	if name == "" {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	slot := g.holds[name]
	delete(g.holds, name)
	return slot
}

// offer offers a held slot. The outcomes are:
//  1. Taken: the call's request redeems the slot. If it does not arrive within holdFor
//     of the offer, the slot is released, and the offer counts as expired, too.
//  2. Gone: the slot is released.
//  3. Declined, or there is no answer: the slot is released. The call keeps waiting, and
//     the machine is not offered to its entry again for backOffFor.
func (e *entry) offer(calls *dispatch.Guests, number int64, slot *dispatch.HeldSlot, hold string) {
	g, machine := &e.cluster.grants, slot.Machine
	expires := time.AfterFunc(holdFor, func() {
		if g.redeem(hold) != nil {
			g.counts.expired.Add(1)
			slot.Release()
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), holdFor)
	defer cancel()
	switch e.cluster.send(ctx, e.name, grant{Call: number, Machine: machine.ID, Generation: machine.Generation, Hold: hold}) {
	case http.StatusNoContent:
		g.counts.taken.Add(1)
		return
	case http.StatusGone:
		g.counts.gone.Add(1)
	case http.StatusConflict:
		g.counts.declined.Add(1)
		e.backOff(calls, number, machine.ID)
	default:
		g.counts.lost.Add(1)
		e.backOff(calls, number, machine.ID)
	}
	if expires.Stop() && g.redeem(hold) != nil {
		slot.Release()
	}
}

// backOff makes a call that did not use the machine's slot wait again. The machine is not
// offered to the entry for backOffFor.
func (e *entry) backOff(calls *dispatch.Guests, number int64, machine fleet.MachineID) {
	e.mu.Lock()
	e.backOffUntil[machine] = time.Now().Add(backOffFor)
	e.mu.Unlock()
	time.AfterFunc(backOffFor, func() {
		e.mu.Lock()
		if !time.Now().Before(e.backOffUntil[machine]) {
			delete(e.backOffUntil, machine)
		}
		e.mu.Unlock()
		e.cluster.parts.Dispatch.OnMachine(machine)
	})
	calls.Return(number)
}

// grant offers a held slot to another node's waiting call.
type grant struct {
	Call       int64           `json:"call"` // number of the call at its entry
	Machine    fleet.MachineID `json:"machine"`
	Generation int64           `json:"generation"`
	Hold       string          `json:"hold"` // the name that the call's request must contain
}

// sendGrant offers a held slot to the entry of a waiting call, and returns the status of
// the answer: 204 means that the call's request follows; 410, that the call is no longer
// waiting; 409, that it is waiting, but not for this machine now; 0, that there was no
// answer.
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

// serveGrant accepts a slot that another node offers to a call waiting here.
func (c *Cluster) serveGrant(w http.ResponseWriter, r *http.Request) {
	var g grant
	if err := json.UnmarshalRead(io.LimitReader(r.Body, maxGrant), &g); err != nil {
		http.Error(w, "cannot read the grant: "+err.Error(), http.StatusBadRequest)
		return
	}
	switch taken, waits := c.parts.Dispatch.AcceptGrant(g.Call, g.Machine, g.Generation, g.Hold); {
	case taken:
		w.WriteHeader(http.StatusNoContent)
	case waits:
		w.WriteHeader(http.StatusConflict)
	default:
		w.WriteHeader(http.StatusGone)
	}
}
