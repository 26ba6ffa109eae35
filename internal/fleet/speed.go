package fleet

import (
	"math"
	"math/bits"
	"time"
)

// Speed is how fast a machine runs one model: the estimate of Measurements.Speed. A nil
// Speed is that of a machine that was not measured.
type Speed struct {
	Start   float64 // seconds to the first token, independent of the prompt's length
	Prefill float64 // additional seconds for each uncached token of the prompt
	// Decode is the time per token of the answer, in seconds, with 1, 2, 4, and 8 or more
	// calls running on the machine; 0: not measured.
	Decode [levels]float64
	// HitRates are the cache hit rates for a prompt that was sent to the machine before, by
	// the number of tokens of other prompts sent since: less than 256, less than 512, and
	// so on. The rates are between 0 and 1 and do not increase.
	HitRates [reaches]float64
	// FirstToken is the median of the recent times to the first token, in seconds.
	FirstToken float64
	// Measured is the time of the last measurement, and Due when the machine is to be
	// measured again even if others are faster (spec/routing.md#order-new).
	Measured, Due time.Time
}

// levels is the number of concurrency levels of the decoding measurements.
const levels = 4

// level returns the concurrency level for the given number of running calls.
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

// calls returns the lowest number of running calls in a level.
func calls(level int) float64 { return float64(int(1) << level) }

// reaches is the number of intervals of Speed.HitRates. The last one begins at 262,144
// tokens.
const reaches = 12

// reach returns the index in Speed.HitRates for the given number of tokens of other prompts.
func reach(tokens int) int { return min(bits.Len(uint(max(tokens, 0))/256), reaches-1) }

// allKept are the HitRates of an engine that never evicts anything.
var allKept = [reaches]float64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}

// DefaultSpeed is the speed of a machine if no machine was measured with the model: an
// ordinary graphics card and a model with 8 billion parameters.
var DefaultSpeed = Speed{Start: 0.3, Prefill: 0.001, Decode: [levels]float64{0.02}, HitRates: allKept}

// DecodeAt returns the seconds per token while the given number of calls are running. A
// level without measurements is derived from the nearest level below, or else above: each
// doubling of the number of calls adds a quarter of the time that a token takes with a
// single call. This is about how engines behave that compute several answers in one
// batch.
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

// Predict returns the expected total duration of a call on a machine with this speed. The
// machine computes the uncached tokens of the prompt and then the output tokens. running
// is the number of running calls, including this one.
func Predict(s *Speed, uncached, output, running int) (seconds float64) {
	return s.firstToken(uncached, running) + float64(output)*s.DecodeAt(running)
}

// firstToken returns the seconds to the first token. running is the number of running
// calls, including this one. Each other call adds half of a prompt token's time, because
// its prompt or answer is computed in the same batches. Prefill is measured together with
// whatever else was running, so the estimate is too high for a machine that is always
// busy (docs/decisions/0015-the-order-by-expected-time.md).
func (s *Speed) firstToken(uncached, running int) float64 {
	return s.Start + float64(uncached)*s.Prefill*(1+float64(running-1)/2)
}

// Work is the expected work of a call. In the zero Work nothing is known about the call.
type Work struct {
	Prompt int // tokens
	Output int // tokens of the answer
	// Sent are the machines that received a part of the prompt before.
	Sent []Sent
	// Typical is the speed of a machine that was not measured: the median of the other
	// machines that run the model. Nil: DefaultSpeed.
	Typical *Speed
}

// Sent is how much of a prompt was sent to a machine before.
type Sent struct {
	Machine uint32 // Machine.Key
	Tokens  int
	Since   int // tokens of other prompts sent to it after that
}

// Expectation is the estimate for a call on one machine.
type Expectation struct {
	Seconds float64 // total
	// Start is the part of Seconds before the first token.
	Start float64
	// Cached is how many tokens of the prompt are expected in the machine's cache.
	Cached int
	// Measured reports that the speed of this machine was measured.
	Measured bool
}

// newPrompt is the longest prompt, in uncached tokens, that is used to measure a machine.
const newPrompt = 2000

// expect sets the Expectation for the query's call on the machine. It reports whether the
// call would serve to measure the machine.
func (c *CandidateState) expect(q *Query) (measure bool) {
	w, l := &q.Work, c.Offer.Load
	p := c.proof
	if c.Class != Grouped { // for Grouped, evaluate has already set it
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
			e.Cached = max(e.Cached, min(int(float64(sent.Tokens)*s.HitRates[reach(sent.Since)]), w.Prompt))
		}
	}
	uncached := w.Prompt - e.Cached
	running := max(l.Used(), c.Machine.Load.Used()) + 1
	e.Start = s.firstToken(uncached, running)
	e.Seconds = e.Start + float64(w.Output)*s.DecodeAt(running)
	return uncached <= newPrompt && p.isDue(q.Now)
}

// Key returns a short identifier of the machine that is the same on every node. It is not
// unique.
func (m *Machine) Key() uint32 { return KeyOf(m.ID) }

// KeyOf returns the Key of the machine with the given id.
func KeyOf(id MachineID) uint32 { return uint32(tieBreaker(id)) }

// tie is the largest relative difference in speed that the order of two machines ignores:
// a tenth (spec/routing.md#order-draw).
const tie = 0.1

// spread returns the time that determines a machine's place in the order: the expected
// time plus up to a tenth, depending on the random number. If two machines differ by more
// than a tenth, the faster one always comes first; otherwise they share the calls.
func spread(seconds float64, draw uint64) float64 {
	return seconds * (1 + tie*float64(draw>>11)/(1<<53))
}

// isDue reports whether the machine is to be measured at time now.
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
	// retryMeasure is how long to wait, after a call was sent to a machine to measure it,
	// before another one is. It doubles with each call without a measurement.
	retryMeasure = 10 * time.Minute
	maxDoublings = 6
)

// Trying records that a call of the given circle is sent to the machine. It reports
// whether the machine was due for a measurement. Only an offer's Load uses it and the
// methods below.
func (l *Load) Trying(c Circle, now time.Time) (due bool) {
	if due = l.proof(c).isDue(now); due {
		p := l.prove(c)
		p.tried.Store(now.UnixNano())
		p.tries.Add(1)
	}
	return due
}

// Speed returns the estimate of the machine's speed, or nil if it was not measured.
func (p *proof) Speed() *Speed {
	if p == nil {
		return nil
	}
	return p.speed.Load()
}

// Speed returns the estimate of the machine's speed for a circle, or nil if it was not
// measured.
func (l *Load) Speed(c Circle) *Speed { return l.proof(c).Speed() }

// LatestSpeed returns the most recently measured estimate of any circle.
func (l *Load) LatestSpeed() (latest *Speed) {
	for _, p := range l.proofs() {
		if s := p.Speed(); s != nil && (latest == nil || s.Measured.After(latest.Measured)) {
			latest = s
		}
	}
	return latest
}

// Measure adds the measurement of a call of the given circle.
func (l *Load) Measure(c Circle, m Measurement) {
	p := l.prove(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept.Add(m)
	p.tries.Store(0)
	p.speed.Store(p.kept.Speed())
}

// positive returns x, or 0 if x is negative or NaN.
func positive(x float64) float64 {
	if !(x > 0) || math.IsInf(x, 1) {
		return 0
	}
	return x
}
