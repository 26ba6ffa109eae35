package fleet

import (
	"math"
	"math/bits"
	"time"
)

// Speed is how fast a machine runs one model, as the hub measured it: the estimate that
// Measurements.Speed returns. A nil Speed is that of a machine that was not measured.
type Speed struct {
	Start   float64 // seconds to the first token, however short the prompt
	Prefill float64 // further seconds for each token of the prompt that is not cached
	// Decode is the seconds a token of the answer while 1, 2, 4, and 8 or more calls run
	// on the machine; 0: not measured.
	Decode [levels]float64
	// Kept is the part of what was sent to the machine of a prompt before that its engine
	// lately reported to be in its cache, by how much of other prompts was sent to it after
	// that: less than 256 tokens, less than 512, and so on. 0 to 1, never rising.
	Kept [reaches]float64
	// FirstToken is the median of the recent times to the first token, in seconds.
	FirstToken float64
	// Measured is when the last measurement was made, and Due when the machine is to be
	// measured again, although others are faster (spec/routing.md#order-new).
	Measured, Due time.Time
}

// levels is the number of levels of concurrency that decoding is measured at.
const levels = 4

// level returns the level of concurrency of so many running calls.
func level(running int) int {
	switch {
	case running >= 8:
		return 3
	case running >= 4:
		return 2
	case running >= 2:
		return 1
	default:
		return 0
	}
}

// calls returns the lowest number of running calls of a level.
func calls(level int) float64 { return float64(int(1) << level) }

// reaches is the number of amounts of other text that Speed.Kept is measured for, the last
// one 262,144 tokens and more.
const reaches = 12

// reach returns the index in Speed.Kept of so many tokens of other prompts.
func reach(tokens int) int { return min(bits.Len(uint(max(tokens, 0))/256), reaches-1) }

// allKept is the Kept of an engine that forgets nothing.
var allKept = [reaches]float64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}

// DefaultSpeed is the speed of a machine that runs a model which no machine was measured
// at: an ordinary graphics card with a model of 8 billion parameters.
var DefaultSpeed = Speed{Start: 0.3, Prefill: 0.001, Decode: [levels]float64{0.02}, Kept: allKept}

// DecodeAt returns the seconds a token while so many calls run. At a level that was not
// measured it is derived from the nearest one below, else above: from each number of calls
// to its double a token takes a quarter of the single call's time longer, more or less as
// engines do that compute several answers in one batch.
func (s *Speed) DecodeAt(running int) float64 {
	at := level(running)
	if s.Decode[at] > 0 {
		return s.Decode[at]
	}
	for _, step := range [...]int{-1, 1} {
		for i := at + step; i >= 0 && i < levels; i += step {
			if s.Decode[i] > 0 {
				return s.Decode[i] * (3 + calls(at)) / (3 + calls(i))
			}
		}
	}
	return DefaultSpeed.Decode[0] * (3 + calls(at)) / 4
}

// Predict returns how long a call is expected to take in all on a machine of that speed: uncached
// tokens of its prompt are computed, then output tokens are made while running calls,
// this one included, run there.
func Predict(s *Speed, uncached, output, running int) (seconds float64) {
	return s.firstToken(uncached, running) + float64(output)*s.DecodeAt(running)
}

// firstToken returns the seconds to the first token while running calls, this one
// included, run there. For each other call a prompt token takes half as long again: that
// call's prompt or answer is computed in the same batches. Prefill is measured with whatever
// else ran, so that a machine which is always busy is expected to be slower than it is
// (docs/decisions/0015-the-order-by-expected-time.md).
func (s *Speed) firstToken(uncached, running int) float64 {
	return s.Start + float64(uncached)*s.Prefill*(1+float64(running-1)/2)
}

// Work is what a call is expected to demand of a machine. The zero Work is that of a call
// of which nothing is known.
type Work struct {
	Prompt int // tokens
	Output int // tokens of the answer
	// Sent are the machines that got a part of the prompt before.
	Sent []Sent
	// Typical is the speed of a machine that was not measured: the median of the others
	// that run the model. Nil: DefaultSpeed.
	Typical *Speed
}

// Sent is how much of a prompt was sent to a machine before.
type Sent struct {
	Machine uint32 // Machine.Key
	Tokens  int
	Since   int // tokens of other prompts that were sent to it after that
}

// Expectation is what is expected of a call on one machine.
type Expectation struct {
	Seconds float64 // in all
	// Start is how many of the Seconds pass before the first token.
	Start float64
	// Cached is how many tokens of the prompt the machine has in its cache.
	Cached int
	// Measured says that the speed of this machine is known.
	Measured bool
}

// newPrompt is the longest prompt, in tokens that are not cached, that is sent to a machine
// to measure it.
const newPrompt = 2000

// expect sets what is expected of the query's call on a machine. It reports whether the
// machine is to be measured by it.
func (c *CandidateState) expect(q *Query) (measure bool) {
	w, l := &q.Work, c.Offer.Load
	p := c.proof
	if c.Class != Grouped { // evaluate has looked it up for the group
		p = l.proof(Circle{Class: c.Class})
	}
	s := p.Speed()
	e := &c.Expectation
	e.Measured = s != nil
	if s == nil {
		if s = w.Typical; s == nil {
			s = &DefaultSpeed
		}
	}
	e.Cached = 0
	for _, sent := range w.Sent {
		if sent.Machine == uint32(c.Machine.tieBreaker) {
			e.Cached = max(e.Cached, min(int(float64(sent.Tokens)*s.Kept[reach(sent.Since)]), w.Prompt))
		}
	}
	uncached := w.Prompt - e.Cached
	running := max(l.Used(), c.Machine.Load.Used()) + 1
	e.Start = s.firstToken(uncached, running)
	e.Seconds = e.Start + float64(w.Output)*s.DecodeAt(running)
	return uncached <= newPrompt && p.isDue(q.Now)
}

// Key returns a short name of the machine that is the same on every node. Two machines
// may have the same.
func (m *Machine) Key() uint32 { return KeyOf(m.ID) }

// KeyOf returns the Key of the machine of that id.
func KeyOf(id MachineID) uint32 { return uint32(tieBreaker(id)) }

// tie is the most by which the order of two machines ignores that one is faster: a tenth
// (spec/routing.md#order-draw).
const tie = 0.1

// spread returns the seconds that a machine is ordered by: those expected, and up to a
// tenth more, by the draw. So of two machines that are more than a tenth apart the faster one
// is first, and those that are closer share the calls.
func spread(seconds float64, draw uint64) float64 {
	return seconds * (1 + tie*float64(draw>>11)/(1<<53))
}

// isDue reports whether the machine is to be measured at that time.
func (p *proof) isDue(now time.Time) bool {
	if p == nil {
		return true
	}
	retry := retryMeasure << min(max(p.tries.Load()-1, 0), maxDoublings)
	if p.tried.Load() > now.UnixNano()-int64(retry) {
		return false
	}
	s := p.speed.Load()
	return s == nil || s.Due.UnixNano() <= now.UnixNano()
}

const (
	// retryMeasure is how long a machine that was sent a call to be measured is not sent
	// another one for that. It doubles with each call that measured nothing.
	retryMeasure = 10 * time.Minute
	maxDoublings = 6
)

// Trying records that a call of that circle is sent to the machine at that time. It reports
// whether the machine was to be measured. It applies to an offer's Load only, as do the
// methods below.
func (l *Load) Trying(c Circle, now time.Time) (due bool) {
	if due = l.proof(c).isDue(now); due {
		p := l.prove(c)
		p.tried.Store(now.UnixNano())
		p.tries.Add(1)
	}
	return due
}

// Speed returns the estimate of the machine's speed; nil: it was not measured.
func (p *proof) Speed() *Speed {
	if p == nil {
		return nil
	}
	return p.speed.Load()
}

// Speed returns the estimate of the machine's speed for a circle; nil: it was not measured.
func (l *Load) Speed(c Circle) *Speed { return l.proof(c).Speed() }

// LatestSpeed returns the estimate for the circle that was measured last.
func (l *Load) LatestSpeed() (latest *Speed) {
	for _, p := range l.proofs() {
		if s := p.Speed(); s != nil && (latest == nil || s.Measured.After(latest.Measured)) {
			latest = s
		}
	}
	return latest
}

// Measure adds a measurement of one call of that circle.
func (l *Load) Measure(c Circle, m Measurement) {
	p := l.prove(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept.Add(m)
	p.tries.Store(0)
	p.speed.Store(p.kept.Speed())
}

// positive returns x, or 0 if it is negative or no number.
func positive(x float64) float64 {
	if !(x > 0) || math.IsInf(x, 1) {
		return 0
	}
	return x
}
