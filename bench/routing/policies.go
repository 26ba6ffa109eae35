package main

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/kith/kith/internal/dispatch/prefix"
	"github.com/kith/kith/internal/fleet"
)

// policy is a way to choose among the machines that are ready for a call. It is used
// for one run.
type policy struct {
	name      string
	uncaching bool // the engines keep nothing
	// pick chooses among all machines that are ready.
	pick func(n *network, c *call, ready []*machine) *machine
	// query completes what fleet.Route is given, and choose chooses among its candidates,
	// for a policy without pick.
	query  func(*network, *call, *fleet.Query)
	choose func([]fleet.Candidate) fleet.MachineID
	// sent and observe are called when a call begins on a machine and when it is completed;
	// they may be nil.
	sent    func(*network, *machine, *job)
	observe func(*network, *machine, *job)
}

// The names of the policies, in the order of the tables.
const (
	oursName    = "kith"
	beforeName  = "the order of before"
	oracleName  = "oracle"
	asItWasName = "the order of before, engines without caches"
)

// policies make the policies that are compared, one of each for a run.
var policies = []func() *policy{
	func() *policy { return &policy{name: "random", pick: random} },
	roundRobin,
	func() *policy { return &policy{name: "least loaded", pick: leastLoaded} },
	func() *policy { p := before(); p.name, p.uncaching = asItWasName, true; return p },
	before,
	ours,
	func() *policy { return &policy{name: oracleName, pick: oracle} },
}

func random(n *network, _ *call, ready []*machine) *machine { return ready[n.rng.IntN(len(ready))] }

// roundRobin takes the machines in turn.
func roundRobin() *policy {
	last := -1
	return &policy{name: "round robin", pick: func(n *network, _ *call, ready []*machine) *machine {
		for {
			last = (last + 1) % len(n.machines)
			for _, m := range ready {
				if m == n.machines[last] {
					return m
				}
			}
		}
	}}
}

// leastLoaded takes the machine that runs the fewest calls.
func leastLoaded(n *network, _ *call, ready []*machine) *machine {
	return least(n.rng, ready, func(m *machine) float64 { return float64(len(m.jobs)) })
}

// least returns a machine of the lowest value; of several, one at random.
func least(rng *rand.Rand, ready []*machine, value func(*machine) float64) *machine {
	var best *machine
	lowest, ties := 0.0, 0
	for _, m := range ready {
		switch v := value(m); {
		case best == nil || v < lowest:
			best, lowest, ties = m, v, 1
		case v == lowest:
			if ties++; rng.IntN(ties) == 0 {
				best = m
			}
		}
	}
	return best
}

// before is kith's order until November 2026: the part of the slots that is free, then
// the moving average of the time to the first token, with machines that were not measured
// yet first.
func before() *policy {
	ttft := map[*machine]float64{}
	return &policy{
		name: beforeName,
		pick: func(n *network, _ *call, ready []*machine) *machine {
			free := func(m *machine) float64 { return float64(m.slots-len(m.jobs)) / float64(m.slots) }
			most := free(least(n.rng, ready, func(m *machine) float64 { return -free(m) }))
			var freest []*machine
			for _, m := range ready {
				if free(m) == most {
					freest = append(freest, m)
				}
			}
			return least(n.rng, freest, func(m *machine) float64 { return ttft[m] })
		},
		observe: func(_ *network, m *machine, j *job) {
			took := j.first - j.began
			if old, ok := ttft[m]; ok {
				took = old + (took-old)/8
			}
			ttft[m] = took
		},
	}
}

// oracle chooses the machine with the shortest time for the call by what the engines hold
// and by their true speeds, with the calls that they run now.
func oracle(n *network, c *call, ready []*machine) *machine {
	return least(n.rng, ready, func(m *machine) float64 {
		_, cached := m.match(c)
		prompts, answers := m.phases()
		prompt, _ := m.rates(prompts+1, answers)
		running := len(m.jobs) + 1
		return m.start + float64(tokensOf(c.prompt)-cached)/prompt + float64(c.answer.tokens)*float64(running)/m.throughput(running)
	})
}

// product is kith's order: fleet.Route decides, by the speeds that fleet measures and by
// what package prefix remembers. What package dispatch does between these is done here
// with the numbers of the simulation in place of a call's.
type product struct {
	prefixes prefix.Memory
	output   float64               // mean tokens of an answer
	before   map[*job]prefix.Match // what the machine had got of the prompt before
}

func ours() *policy {
	p := &product{output: 250, before: map[*job]prefix.Match{}}
	return &policy{name: oursName, query: p.query, choose: fastest, sent: p.sent, observe: p.observe}
}

// marks returns the fingerprints of the prompt's prefixes: those that end with a message,
// of its member.
func marks(c *call) (marks []prefix.Mark) {
	h := fnv.New64a()
	bytes := 0
	for _, b := range append([]block{{id: uint64(c.session.member)}}, c.prompt...) {
		_ = binary.Write(h, binary.LittleEndian, b.id) // a hash never fails
		if bytes += b.tokens * bytesOfToken; b.tokens > 0 {
			marks = append(marks, prefix.Mark{Sum: h.Sum64(), Bytes: bytes})
		}
	}
	return marks
}

func (p *product) query(n *network, c *call, q *fleet.Query) {
	all := marks(c)
	q.Work = fleet.Work{Prompt: all[len(all)-1].Bytes / bytesOfToken, Output: int(p.output)}
	for _, match := range p.prefixes.Match(all, q.Now) {
		q.Work.Sent = append(q.Work.Sent, fleet.Sent{
			Machine: match.Machine, Tokens: match.Bytes / bytesOfToken, Since: match.Since / bytesOfToken,
		})
	}
	var speeds []*fleet.Speed
	for _, m := range n.machines {
		if s := n.load(m).Speed(circle); s != nil {
			speeds = append(speeds, s)
		}
	}
	q.Work.Typical = fleet.TypicalSpeed(speeds)
}

// circle is that of the members: the machines are shared with all of them.
var circle = fleet.Circle{Class: fleet.Shared}

func fastest(candidates []fleet.Candidate) fleet.MachineID {
	return candidates[0].Machine.ID
}

func (p *product) sent(n *network, m *machine, j *job) {
	n.load(m).Trying(circle, n.clock())
	p.before[j], _, _ = p.prefixes.Sent(marks(j.call), fleet.KeyOf(m.id), n.clock())
}

func (p *product) observe(n *network, m *machine, j *job) {
	c := j.call
	cached := c.cached
	if m.silent {
		cached = 0
	}
	p.output += (float64(c.answer.tokens) - p.output) / 8
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	before := p.before[j]
	n.load(m).Measure(circle, fleet.Measurement{
		At: n.clock(), Uncached: c.tokens - cached, FirstToken: seconds(j.first - j.began),
		Output: c.answer.tokens - 1, Decoding: seconds(c.ended - j.first), Running: j.beside,
		Sent: before.Bytes / bytesOfToken, Since: before.Since / bytesOfToken, Cached: cached,
	})
	delete(p.before, j)
}
