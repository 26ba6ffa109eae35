package main

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kith/kith/internal/fleet"
)

const modelID = "8b-q4"

// began is the start date of every run.
var began = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// network is one run: the machines of the profiles, shared with every member, under
// the calls of a trace. Which machines are ready, and that a call waits if none is, is
// fleet.Route's decision; waiting calls get freed slots in the order of their arrival.
type network struct {
	now      float64 // seconds since began
	snapshot *fleet.Snapshot
	machines []*machine
	policy   *policy
	rng      *rand.Rand // of the policy
	arrivals arrivals
	waiting  []*call
	calls    []*call // those that ended
}

// arrivals are the calls to come, the next one first.
type arrivals []*call

func (a arrivals) Len() int           { return len(a) }
func (a arrivals) Less(i, j int) bool { return a[i].arrived < a[j].arrived }
func (a arrivals) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *arrivals) Push(c any)        { *a = append(*a, c.(*call)) }
func (a *arrivals) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// outage is when a machine dies and comes back, as fractions of the time during which
// sessions arrive.
var outage = struct {
	machine  int
	from, to float64
}{machine: 1, from: 0.4, to: 0.5}

func memberID(n int) fleet.MemberID { return fleet.MemberID(fmt.Sprintf("mem_%02d", n)) }

// run simulates the trace, with so many calls a second, and returns its calls.
func run(t *trace, rate float64, seed uint64, p *policy) []*call {
	n := &network{snapshot: fleet.NewSnapshot(), policy: p, rng: rand.New(rand.NewPCG(seed, 2))}
	const owner = "mem_owner"
	for i := range profiles {
		m := &machine{
			profile: &profiles[i], id: fleet.MachineID(fmt.Sprintf("mch_%02d", i)), online: true,
			uncaching: p.uncaching, rng: rand.New(rand.NewPCG(seed, uint64(100+i))),
		}
		n.machines = append(n.machines, m)
		n.setOnline(m, owner, true)
	}
	for i := range members {
		share := &fleet.Share{ID: fleet.ShareID(fmt.Sprintf("shr_%02d", i)), Owner: owner, Member: memberID(i)}
		n.snapshot = n.snapshot.WithShares(memberID(i), []*fleet.Share{share})
	}
	spacing := float64(t.calls) / float64(len(t.sessions)) / rate // seconds between sessions, mean
	for i := range t.sessions {
		s := &t.sessions[i]
		heap.Push(&n.arrivals, &call{
			session: s, arrived: s.arrives * spacing, answer: s.turns[0].answer, prompt: []block{s.system, s.turns[0].adds},
		})
	}
	length := t.sessions[len(t.sessions)-1].arrives * spacing
	changes := []float64{outage.from * length, outage.to * length}
	for len(n.calls) < t.calls {
		change, arrival := math.Inf(1), math.Inf(1)
		if len(changes) > 0 {
			change = changes[0]
		}
		if len(n.arrivals) > 0 {
			arrival = n.arrivals[0].arrived
		}
		due, next := math.Inf(1), (*machine)(nil)
		for _, m := range n.machines {
			if at := m.due(); at < due {
				due, next = at, m
			}
		}
		switch n.now = min(change, arrival, due); n.now {
		case change:
			changes = changes[1:]
			n.outage(n.machines[outage.machine], owner)
		case arrival:
			n.arrive(heap.Pop(&n.arrivals).(*call))
		default:
			for _, j := range next.advance(n.now) {
				n.complete(next, j)
			}
		}
	}
	return n.calls
}

// clock returns the date.
func (n *network) clock() time.Time { return began.Add(time.Duration(n.now * float64(time.Second))) }

func (n *network) machine(id fleet.MachineID) *machine {
	return n.machines[slices.IndexFunc(n.machines, func(m *machine) bool { return m.id == id })]
}

// load returns what fleet keeps of the machine and its model.
func (n *network) load(m *machine) *fleet.Load { return n.snapshot.Machine(m.id).Offer(modelID).Load }

// setOnline puts the machine into the snapshot, online or about to return.
func (n *network) setOnline(m *machine, owner fleet.MemberID, online bool) {
	m.online = online
	next := &fleet.Machine{
		ID: m.id, Owner: owner, Name: m.name, Online: online, Slots: m.slots,
		Offers: []fleet.Offer{{ID: modelID, Families: fleet.Families(fleet.Chat), Slots: m.slots}},
	}
	if !online {
		next.ReturningUntil = n.clock().Add(time.Hour)
	}
	n.snapshot = n.snapshot.WithMachine(next)
}

// outage ends a machine's connection, or begins it again. Its calls are called again.
func (n *network) outage(m *machine, owner fleet.MemberID) {
	if !m.online {
		m.advance(n.now)
		n.setOnline(m, owner, true)
		n.grant(m)
		return
	}
	for _, j := range m.die(n.now) {
		n.snapshot.Machine(m.id).Release(modelID)
		j.call.restarts++
		defer n.arrive(j.call) // the machine is offline by then
	}
	n.setOnline(m, owner, false)
}

// arrive routes a call: to a machine, or to the line of those that wait.
func (n *network) arrive(c *call) {
	c.since = n.now
	q := fleet.Query{Caller: memberID(c.session.member), Model: modelID, Family: fleet.Chat, Now: n.clock(), Draw: n.rng.Uint64()}
	if n.policy.query != nil {
		n.policy.query(n, c, &q)
	}
	d := fleet.Route(n.snapshot, q)
	switch d.Verdict {
	case fleet.Wait:
		n.waiting = append(n.waiting, c)
		slices.SortStableFunc(n.waiting, func(a, b *call) int { return int(math.Copysign(1, a.arrived-b.arrived)) })
	case fleet.Try:
		if n.policy.pick == nil {
			n.start(n.machine(n.policy.choose(d.Candidates)), c)
			return
		}
		var ready []*machine
		for _, m := range n.machines {
			seen, ok := fleet.StateOf(n.snapshot, &q, n.snapshot.Machine(m.id))
			if ok && seen.State == fleet.Ready {
				ready = append(ready, m)
			}
		}
		n.start(n.policy.pick(n, c, ready), c)
	case fleet.Refuse:
		panic(d.Fault) // a machine is always online
	}
}

// start begins a call on a machine that has a free slot.
func (n *network) start(m *machine, c *call) {
	if !n.snapshot.Machine(m.id).Reserve(modelID, false) {
		panic("no slot is free at " + m.name)
	}
	c.waited += n.now - c.since
	j := m.begin(n.now, c)
	if n.policy.sent != nil {
		n.policy.sent(n, m, j)
	}
}

// complete ends a call, grants its slot, and lets the session go on.
func (n *network) complete(m *machine, j *job) {
	c := j.call
	m.end(n.now, j)
	c.ended = n.now
	n.calls = append(n.calls, c)
	if n.policy.observe != nil {
		n.policy.observe(n, m, j)
	}
	n.snapshot.Machine(m.id).Release(modelID)
	n.grant(m)
	s := c.session
	if next := c.turn + 1; next < len(s.turns) {
		prompt := append(c.prompt[:len(c.prompt):len(c.prompt)], c.answer, s.turns[next].adds)
		heap.Push(&n.arrivals, &call{session: s, turn: next, prompt: prompt, answer: s.turns[next].answer, arrived: n.now + s.turns[c.turn].think})
	}
}

// grant gives the machine's free slots to the calls that wait.
func (n *network) grant(m *machine) {
	for len(n.waiting) > 0 && n.snapshot.Machine(m.id).FreeSlots() > 0 {
		c := n.waiting[0]
		n.waiting = n.waiting[1:]
		n.start(m, c)
	}
}
