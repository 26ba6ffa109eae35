package main

import (
	"encoding/binary"
	"hash/fnv"
	"time"

	"github.com/kith/kith/internal/dispatch/prefix"
	"github.com/kith/kith/internal/fleet"
)

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
