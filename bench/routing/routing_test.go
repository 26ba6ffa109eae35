package main

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"
)

// TestSameSeedSameFigures runs the comparison twice.
func TestSameSeedSameFigures(t *testing.T) {
	compare := func() (string, []byte) {
		results := measure([]*trace{newTrace(7)}, 2, 7)
		return report(results), plot(results)
	}
	text, picture := compare()
	again, pictureAgain := compare()
	if text != again || !bytes.Equal(picture, pictureAgain) {
		t.Errorf("two runs of one seed differ:\n%s\n%s", text, again)
	}
}

// TestEveryPolicyServesTheTrace checks that every call of the trace ends once, and that
// its times are in order.
func TestEveryPolicyServesTheTrace(t *testing.T) {
	trace := newTrace(3)
	for _, policy := range policies {
		p := policy()
		calls := run(trace, 2, 3, p)
		if len(calls) != trace.calls {
			t.Errorf("%s: %d of %d calls ended", p.name, len(calls), trace.calls)
		}
		seen := map[uint64]bool{}
		restarts := 0
		for _, c := range calls {
			if seen[c.answer.id] {
				t.Errorf("%s: a call ended twice", p.name)
			}
			seen[c.answer.id] = true
			restarts += c.restarts
			if c.first <= c.arrived || c.ended <= c.first || c.cached >= c.tokens || p.uncaching && c.cached > 0 {
				t.Errorf("%s: %+v", p.name, c)
			}
		}
		if restarts == 0 {
			t.Errorf("%s: the machine that dies ran nothing", p.name)
		}
	}
}

// TestOracleIsBest checks the order of the policies that the figures are for.
func TestOracleIsBest(t *testing.T) {
	trace := newTrace(5)
	mean := func(p *policy) float64 {
		r := result{calls: run(trace, 1.2, 5, p)}
		return r.figures().mean
	}
	best := mean(&policy{pick: oracle})
	for _, policy := range policies {
		p := policy()
		if p.name != oracleName && mean(p) < best {
			t.Errorf("%s is faster than the oracle", p.name)
		}
	}
}

// engineOf returns an idle engine of a profile whose calls have exactly its speed.
func engineOf(p profile) *machine {
	m := &machine{profile: &p, rng: rand.New(rand.NewPCG(1, 1))}
	return m
}

// TestEngineTakesTheTimeOfItsProfile runs one call alone: start, prompt and answer.
func TestEngineTakesTheTimeOfItsProfile(t *testing.T) {
	m := engineOf(profile{slots: 1, start: 1, prefill: 100, decode: 10})
	c := &call{session: new(session), prompt: []block{{1, 300}}, answer: block{2, 50}}
	m.begin(0, c)
	pace := m.jobs[0].pace
	var done []*job
	for len(done) == 0 {
		done = m.advance(m.due())
	}
	if want := 1 + 300/(100*pace); math.Abs(c.first-want) > 1e-6 {
		t.Errorf("the first token came after %g s, want %g", c.first, want)
	}
	if want := c.first + 50/(10*pace); math.Abs(m.at-want) > 1e-6 {
		t.Errorf("the call took %g s, want %g", m.at, want)
	}
}

// TestEngineKeepsPrefixes checks what a slot and a pool keep, of which member.
func TestEngineKeepsPrefixes(t *testing.T) {
	for _, pool := range []int{0, 1000} {
		m := engineOf(profile{slots: 1, start: 1, prefill: 100, decode: 10, pool: pool})
		serve := func(member int, prompt ...block) int {
			c := &call{session: &session{member: member}, prompt: prompt, answer: block{uint64(100 + len(prompt)), 10}}
			m.begin(m.at, c)
			for {
				if done := m.advance(m.due()); len(done) > 0 {
					m.end(m.at, done[0])
					return c.cached
				}
			}
		}
		system, question, other := block{1, 100}, block{2, 30}, block{3, 40}
		for i, step := range []struct {
			member int
			prompt []block
			want   int
			pooled int // with a pool
		}{
			{0, []block{system, question}, 0, 0},
			{0, []block{system, question, {102, 10}, other}, 140, 140}, // prompt and answer of before
			{1, []block{system, question}, 0, 0},                       // another member
			{0, []block{system, question, {102, 10}, other, {104, 10}, question}, 0, 190},
			{0, []block{system, other}, 100, 100},
		} {
			want := step.want
			if pool > 0 {
				want = step.pooled
			}
			if got := serve(step.member, step.prompt...); got != want {
				t.Errorf("pool %d, call %d: %d tokens from the cache, want %d", pool, i, got, want)
			}
		}
	}
}

// TestOrderKnowsWhatEnginesKeep checks that near the machines' capacity, where engines forget
// prompts all the time, calls take little longer than with the oracle, which knows what each
// engine keeps.
func TestOrderKnowsWhatEnginesKeep(t *testing.T) {
	mean, best, cached, most := 0.0, 0.0, 0.0, 0.0
	for seed := range uint64(6) {
		trace := newTrace(seed)
		kith, perfect := result{calls: run(trace, 2.1, seed, ours())}, result{calls: run(trace, 2.1, seed, &policy{pick: oracle})}
		mean, best = mean+kith.figures().mean, best+perfect.figures().mean
		cached, most = cached+kith.figures().cached, most+perfect.figures().cached
	}
	if mean > 1.5*best || cached < 0.965*most {
		t.Errorf("a call takes %.2f times as long as with the oracle, %.2f times as many tokens are cached", mean/best, cached/most)
	}
}
