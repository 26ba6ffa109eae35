package fleet

import (
	"math"
	"slices"
	"time"
)

// Measurement is the measurement of one call that a machine served.
type Measurement struct {
	At         time.Time
	Uncached   int           // prompt tokens that the engine computed
	FirstToken time.Duration // from the request to the first token
	Output     int           // tokens after the first
	Decoding   time.Duration // from the first token to the last
	Running    int           // calls on the machine, including this one
	// Sent is how many tokens of the prompt had been sent to the machine before, Since how
	// many tokens of other prompts were sent to it after that, and Cached how many tokens
	// of the prompt were in the engine's cache, as reported by the engine.
	Sent, Since, Cached int
}

// Measurements are the recent measurements of one model on a machine. A Speed is a pure
// function of them: an outlier drops out after a fixed number of calls, a change of the
// machine shows after half as many, and there is nothing to tune.
type Measurements struct {
	At      time.Time         // time of the newest
	Prompts []PromptSample    // oldest first
	Decode  [levels][]float64 // by concurrency level, oldest first
	Missed  [reaches]float64  // 1 − Speed.HitRates
}

// PromptSample is a sample of the time to the first token.
type PromptSample struct {
	Tokens  float64 // uncached tokens of the prompt
	Seconds float64
}

const (
	maxPrompts = 16 // samples of the time to the first token
	maxDecode  = 8  // samples of decoding per concurrency level
	// minDecoded is the length of the shortest answer used to measure decoding: the first
	// tokens of an answer may arrive in one read.
	minDecoded = 8
	// longestSample bounds a sample, in seconds and in tokens, because a clock may jump.
	longestSample = 3600
	longestPrompt = 10_000_000
)

// Add adds a measurement and drops the oldest one if there are too many.
func (m *Measurements) Add(x Measurement) {
	if x.At.After(m.At) {
		m.At = x.At
	}
	if x.FirstToken > 0 {
		m.Prompts = appendSample(m.Prompts, PromptSample{
			Tokens:  float64(min(max(x.Uncached, 0), longestPrompt)),
			Seconds: min(x.FirstToken.Seconds(), longestSample),
		}, maxPrompts)
	}
	if x.Output >= minDecoded && x.Decoding > 0 {
		at := &m.Decode[level(x.Running)]
		*at = appendSample(*at, min(x.Decoding.Seconds(), longestSample)/float64(x.Output), maxDecode)
	}
	if x.Sent > 0 {
		m.addMiss(reach(x.Since), 1-float64(min(max(x.Cached, 0), x.Sent))/float64(x.Sent))
	}
}

// addMiss adds a cache miss rate, measured after the given amount of other text. A longer
// gap never has a lower miss rate and a shorter gap never a higher one.
func (m *Measurements) addMiss(at int, miss float64) {
	for i := range m.Missed {
		if i >= at && m.Missed[i] < miss || i <= at && m.Missed[i] > miss {
			m.Missed[i] += (miss - m.Missed[i]) / 2
		}
	}
}

// appendSample appends a sample in place and drops the oldest ones above the limit.
func appendSample[E any](to []E, sample E, most int) []E {
	if len(to) < most {
		return append(to, sample)
	}
	copy(to, to[1:])
	to[len(to)-1] = sample
	return to
}

// Speed returns the estimate, or nil if nothing was measured.
//
// Start and Prefill are the line through the samples with the median slope (the Theil-Sen
// estimator). Each sample is paired with every other one, and with an empty prompt that
// takes no time, which determines the slope if all prompts have the same length. Pairs of
// nearly equal length count less. Up to a fifth of the samples may be arbitrarily wrong.
// Least squares would instead follow a single call that arrived while a model was loading
// or the machine was asleep. Decode is the median for each concurrency level.
func (m *Measurements) Speed() *Speed {
	if len(m.Prompts) == 0 {
		return nil
	}
	s := &Speed{Prefill: slope(m.Prompts)}
	for i, missed := range m.Missed {
		s.HitRates[i] = 1 - missed
	}
	var buffer [maxPrompts]float64
	rest := buffer[:0]
	for _, p := range m.Prompts {
		rest = append(rest, p.Seconds-s.Prefill*p.Tokens)
	}
	s.Start = positive(median(rest))
	for i, p := range m.Prompts {
		rest[i] = p.Seconds
	}
	s.FirstToken = median(rest)
	for i, samples := range m.Decode {
		s.Decode[i] = median(append(buffer[:0], samples...))
	}
	// An estimate from few samples is soon due for another measurement.
	s.Measured, s.Due = m.At, m.At.Add(time.Duration(len(m.Prompts))*time.Hour)
	return s
}

// slope returns the slope of the line through the samples, in seconds per token.
func slope(samples []PromptSample) float64 {
	type pair struct{ slope, weight float64 }
	var buffer [maxPrompts * (maxPrompts + 1) / 2]pair
	pairs, total, longest := buffer[:0], 0.0, 0.0
	for _, s := range samples {
		longest = max(longest, s.Tokens)
	}
	add := func(a, b PromptSample) {
		if distance := math.Abs(a.Tokens - b.Tokens); distance > 0 {
			weight := min(distance, longest/8)
			pairs = append(pairs, pair{(a.Seconds - b.Seconds) / (a.Tokens - b.Tokens), weight})
			total += weight
		}
	}
	for i, a := range samples {
		add(a, PromptSample{})
		for _, b := range samples[:i] {
			add(a, b)
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int { // cmp.Compare would check for NaN
		switch {
		case a.slope < b.slope:
			return -1
		case a.slope > b.slope:
			return 1
		}
		return 0
	})
	sum := 0.0
	for _, p := range pairs {
		if sum += p.weight; sum >= total/2 {
			return positive(p.slope)
		}
	}
	return 0
}

// median returns the median, the lower one if the number of values is even, and 0 without
// values. It sorts its argument.
func median(of []float64) float64 {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)
	return of[(len(of)-1)/2]
}

// clone returns a copy that shares nothing.
func (m Measurements) clone() Measurements {
	m.Prompts = slices.Clone(m.Prompts)
	for i := range m.Decode {
		m.Decode[i] = slices.Clone(m.Decode[i])
	}
	return m
}

// valid reports whether measurements from an external source can be used.
func (m *Measurements) valid() bool {
	ok := len(m.Prompts) <= maxPrompts
	for _, missed := range m.Missed {
		ok = ok && missed >= 0 && missed <= 1
	}
	for _, p := range m.Prompts {
		ok = ok && p.Tokens >= 0 && p.Tokens <= longestPrompt && p.Seconds >= 0 && p.Seconds <= longestSample
	}
	for _, samples := range m.Decode {
		ok = ok && len(samples) <= maxDecode
		for _, s := range samples {
			ok = ok && s >= 0 && s <= longestSample
		}
	}
	return ok
}

// TypicalSpeed returns the median of several machines' speeds, for each parameter
// separately, or nil without speeds.
func TypicalSpeed(of []*Speed) *Speed {
	if len(of) == 0 {
		return nil
	}
	values := make([]float64, 0, len(of))
	middle := func(value func(*Speed) float64) float64 {
		values = values[:0]
		for _, s := range of {
			if v := value(s); v > 0 {
				values = append(values, v)
			}
		}
		return median(values)
	}
	out := &Speed{HitRates: allKept}
	out.Start = middle(func(s *Speed) float64 { return s.Start })
	out.Prefill = middle(func(s *Speed) float64 { return s.Prefill })
	out.FirstToken = middle(func(s *Speed) float64 { return s.FirstToken })
	for i := range out.Decode {
		out.Decode[i] = middle(func(s *Speed) float64 { return s.Decode[i] })
	}
	return out
}
