package main

import (
	"math"
	"math/rand/v2"
)

// block is a message of a prompt. Prompts with the same blocks at their beginning have a
// common prefix.
type block struct {
	id     uint64
	tokens int
}

func tokensOf(blocks []block) (n int) {
	for _, b := range blocks {
		n += b.tokens
	}
	return n
}

// turn is one call of a session.
type turn struct {
	adds   block   // what the prompt has beside the prompt and the answer of the turn before
	answer block   // what the machine generates
	think  float64 // seconds from the answer to the next turn
}

// session is a conversation of a member: of an agent, or a single question.
type session struct {
	arrives float64 // in units of the mean time between two sessions
	member  int
	system  block
	turns   []turn
}

// trace is a list of sessions, the same for every policy.
type trace struct {
	sessions []session
	calls    int
}

// Shape of a trace. A token is four bytes of text.
const (
	members        = 12
	agentSessions  = 120
	questions      = 360
	maxPrompt      = 32_768  // tokens; an agent's session ends before it
	leastSystem    = 6 << 10 // bytes, with the tools
	mostSystem     = 30 << 10
	leastTurns     = 8
	mostTurns      = 40
	bytesOfToken   = 4
	shareOfPauses  = 0.1 // turns after which a person thinks, not a tool runs
	secondsOfTool  = 4.0
	secondsOfPause = 60.0
)

// newTrace returns the trace of a seed. Each member has an agent whose system prompt
// and tools are the same in all of the member's sessions.
func newTrace(seed uint64) *trace {
	rng := rand.New(rand.NewPCG(seed, 1))
	id := uint64(0)
	message := func(tokens float64) block {
		id++
		return block{id, max(1, int(tokens))}
	}
	lognormal := func(median, sigma float64) float64 { return median * math.Exp(sigma*rng.NormFloat64()) }
	agents := make([]block, members)
	for i := range agents {
		agents[i] = message((leastSystem + rng.Float64()*(mostSystem-leastSystem)) / bytesOfToken)
	}
	t := new(trace)
	for range agentSessions {
		s := session{member: rng.IntN(members)}
		s.system = agents[s.member]
		size := s.system.tokens
		for range leastTurns + rng.IntN(mostTurns-leastTurns+1) {
			next := turn{
				adds:   message(min(lognormal(400, 1), 6000)), // a tool's result or a request
				answer: message(min(lognormal(150, 0.7), 1500)),
				think:  rng.ExpFloat64() * secondsOfTool,
			}
			if rng.Float64() < shareOfPauses {
				next.think = rng.ExpFloat64() * secondsOfPause
			}
			if size += next.adds.tokens + next.answer.tokens; size > maxPrompt {
				break
			}
			s.turns = append(s.turns, next)
		}
		t.sessions = append(t.sessions, s)
	}
	for range questions {
		t.sessions = append(t.sessions, session{
			member: rng.IntN(members), system: message(50),
			turns: []turn{{adds: message(min(lognormal(300, 1), 8000)), answer: message(min(lognormal(300, 0.7), 2000))}},
		})
	}
	rng.Shuffle(len(t.sessions), func(i, j int) { t.sessions[i], t.sessions[j] = t.sessions[j], t.sessions[i] })
	at := 0.0
	for i := range t.sessions {
		s := &t.sessions[i]
		at += rng.ExpFloat64()
		s.arrives = at
		t.calls += len(s.turns)
	}
	return t
}
