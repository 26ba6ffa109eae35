package main

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/kith/kith/internal/fleet"
)

// call is one call of a session.
type call struct {
	session *session
	turn    int
	prompt  []block
	answer  block
	arrived float64
	since   float64 // when it was decided, the last time
	waited  float64 // for a slot
	first   float64 // when its first token came; 0: not yet
	ended   float64

	tokens, cached int // of the prompt, on the machine that answered
	restarts       int // how often its machine died
}

// job is a call on a machine.
type job struct {
	call   *call
	began  float64
	first  float64 // when its first token came; 0: not yet
	beside int     // calls on the machine then, with this one
	pace   float64 // of this call beside the machine's mean
	// What is left: seconds, tokens of the prompt, tokens of the answer.
	start, prompt, answer float64
}

// sequence is what an engine keeps of a prompt and its answer.
type sequence struct {
	member int
	blocks []block
	used   float64 // when its call ended
}

// machine is a machine's engine: its calls share its speed, and it keeps what it
// computed.
type machine struct {
	*profile
	id        fleet.MachineID
	uncaching bool // it keeps nothing
	online    bool
	jobs      []*job
	kept      []*sequence // of no running call
	at        float64     // up to when jobs are computed
	rng       *rand.Rand
}

// The share of the machine's time that prompts get while answers are generated.
const prefillShare = 0.5

// common returns how many tokens two prompts have in common at their beginning.
func common(a, b []block) (tokens int) {
	for i := range min(len(a), len(b)) {
		if a[i].id != b[i].id {
			break
		}
		tokens += a[i].tokens
	}
	return tokens
}

// match returns the kept sequence of the call's member with the longest common prefix,
// and its length. No member's call uses what another member's computed.
func (m *machine) match(c *call) (best *sequence, tokens int) {
	for _, s := range m.kept {
		if n := common(s.blocks, c.prompt); s.member == c.session.member && n > tokens {
			best, tokens = s, n
		}
	}
	return best, tokens
}

// begin starts a call, which uses the sequence that matches best. In a slot that
// sequence is lost, and the one that was used longest ago is if none matches.
func (m *machine) begin(now float64, c *call) *job {
	m.advance(now)
	j := &job{call: c, began: now, start: m.start, answer: float64(c.answer.tokens)}
	j.pace = math.Exp(0.1 * m.rng.NormFloat64())
	if m.rng.IntN(50) == 0 {
		j.pace /= 2 // something else runs there
	}
	c.tokens = tokensOf(c.prompt)
	reused, n := m.match(c)
	c.cached = min(n, c.tokens-1) // the last token is always computed
	if m.pool == 0 {
		if reused == nil && len(m.kept)+len(m.jobs) >= m.slots {
			reused = m.oldest()
		}
		m.forget(reused)
	}
	j.prompt = float64(c.tokens - c.cached)
	m.jobs = append(m.jobs, j)
	return j
}

// end takes a completed call off the machine, which keeps its sequence.
func (m *machine) end(now float64, j *job) {
	m.jobs = slices.DeleteFunc(m.jobs, func(other *job) bool { return other == j })
	if m.uncaching {
		return
	}
	m.kept = append(m.kept, &sequence{j.call.session.member, append(j.call.prompt[:len(j.call.prompt):len(j.call.prompt)], j.call.answer), now})
	if m.pool == 0 {
		return
	}
	// A longer prompt of the same conversation contains what was kept of it.
	last := m.kept[len(m.kept)-1]
	total := 0
	for _, s := range slices.Clone(m.kept) {
		if s != last && common(s.blocks, last.blocks) == tokensOf(s.blocks) && s.member == last.member {
			m.forget(s)
			continue
		}
		total += tokensOf(s.blocks)
	}
	for total > m.pool {
		s := m.oldest()
		total -= tokensOf(s.blocks)
		m.forget(s)
	}
}

// oldest returns the kept sequence that was used longest ago, or nil if there is none.
func (m *machine) oldest() *sequence {
	if len(m.kept) == 0 {
		return nil
	}
	return slices.MinFunc(m.kept, func(a, b *sequence) int { return cmp.Compare(a.used, b.used) })
}

func (m *machine) forget(s *sequence) {
	m.kept = slices.DeleteFunc(m.kept, func(other *sequence) bool { return other == s })
}

// die ends the machine's calls and returns them; it keeps nothing.
func (m *machine) die(now float64) []*job {
	m.advance(now)
	lost := m.jobs
	m.jobs, m.kept, m.online = nil, nil, false
	return lost
}

// rates returns the tokens a second of a call's prompt and of a call's answer, with so
// many calls of each.
func (m *machine) rates(prompts, answers int) (prompt, answer float64) {
	share := 1.0
	if answers > 0 {
		share = prefillShare
	}
	prompt = m.prefill * share / float64(max(1, prompts))
	share = 1
	if prompts > 0 {
		share = 1 - prefillShare
	}
	answer = m.throughput(max(1, answers)) * share / float64(max(1, answers))
	return prompt, answer
}

// phases counts the calls whose prompts and whose answers the machine computes now.
func (m *machine) phases() (prompts, answers int) {
	for _, j := range m.jobs {
		switch {
		case j.start > 0:
		case j.prompt > 0:
			prompts++
		default:
			answers++
		}
	}
	return prompts, answers
}

// due returns when the next of its calls changes its phase; infinite if it has none.
func (m *machine) due() float64 {
	at := math.Inf(1)
	prompt, answer := m.rates(m.phases())
	for _, j := range m.jobs {
		left := j.start
		if left <= 0 && j.prompt > 0 {
			left = j.prompt / (prompt * j.pace)
		} else if left <= 0 {
			left = j.answer / (answer * j.pace)
		}
		at = min(at, m.at+left)
	}
	return at
}

// nearly is the part of a token, or of a second, that counts as nothing.
const nearly = 1e-6

// advance computes the calls up to now, before which no call changes its phase.
func (m *machine) advance(now float64) (done []*job) {
	passed := now - m.at
	prompt, answer := m.rates(m.phases())
	m.at = now
	for _, j := range m.jobs {
		switch {
		case j.start > 0:
			if j.start -= passed; j.start < nearly {
				j.start = 0
			}
		case j.prompt > 0:
			if j.prompt -= passed * prompt * j.pace; j.prompt < nearly {
				j.prompt = 0
			}
		default:
			if j.answer -= passed * answer * j.pace; j.answer < nearly {
				done = append(done, j)
			}
		}
		if j.start == 0 && j.prompt == 0 && j.first == 0 {
			j.first, j.beside = now, len(m.jobs)
			if j.call.first == 0 { // not one that was lost
				j.call.first = now
			}
		}
	}
	return done
}
