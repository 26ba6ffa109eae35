package fleet

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// measured returns the Speed after calls that a machine of that start and prefill served,
// with noise of a tenth, where each fifth time is wrong by wrong.
func measured(rng *rand.Rand, start, prefill, wrong float64) *Speed {
	var l Load
	for i := range 40 {
		tokens := rng.IntN(20_000)
		seconds := (start + prefill*float64(tokens)) * (0.9 + 0.2*rng.Float64())
		if i%5 == 0 {
			seconds *= wrong
		}
		l.Measure(Circle{}, Measurement{At: noon, Uncached: tokens, FirstToken: time.Duration(seconds * float64(time.Second))})
	}
	return l.Speed(Circle{})
}

// A fifth of the measurements may be wrong by a factor of 100 either way.
func TestSpeedIsRobust(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 0))
		start, prefill := 0.05+rng.Float64(), 0.0002*math.Pow(100, rng.Float64())
		for _, wrong := range []float64{1, 100, 0.01} {
			s := measured(rng, start, prefill, wrong)
			want, got := start+10_000*prefill, Predict(s, 10_000, 0, 1)
			if got < 0.7*want || got > 1.4*want {
				t.Errorf("seed %d: %v + %v for each token, wrong by %v: %v s are expected of 10,000 tokens, want %v", seed, start, prefill, wrong, got, want)
			}
		}
	}
}

// A machine that changes is known after half a window, and prompts that are all as long
// say what the next one of their kind takes.
func TestSpeedFollows(t *testing.T) {
	var l Load
	for i := range maxPrompts {
		l.Measure(Circle{}, Measurement{At: noon, Uncached: 1000 * i, FirstToken: time.Duration(i+1) * time.Second})
	}
	for i := range 3 * maxPrompts / 4 {
		l.Measure(Circle{}, Measurement{At: noon, Uncached: 1000 * i, FirstToken: time.Duration(i+1) * time.Second / 10})
	}
	if got := Predict(l.Speed(Circle{}), 10_000, 0, 1); got < 0.9 || got > 1.5 {
		t.Errorf("ten times faster since 12 calls: %v s are expected of 10,000 tokens", got)
	}
	var same Load
	for range 3 {
		same.Measure(Circle{}, Measurement{At: noon, Uncached: 500, FirstToken: time.Second})
	}
	if got := Predict(same.Speed(Circle{}), 500, 0, 1); math.Abs(got-1) > 1e-9 {
		t.Errorf("prompts of 500 tokens take a second: %v s are expected", got)
	}
	var alike Load // their differences say nothing of a token
	for i := range 4 {
		alike.Measure(Circle{}, Measurement{At: noon, Uncached: 10_000 + i, FirstToken: 9*time.Second + time.Duration(i)*time.Second/2})
	}
	if got := alike.Speed(Circle{}).Prefill; got < 0.0009 || got > 0.0011 {
		t.Errorf("prompts of 10,000 tokens take 10 s: %v s a token", got)
	}
	alike.Measure(Circle{}, Measurement{At: noon, Uncached: 10_000})
	assert.Equal(t, len(alike.prove(Circle{}).kept.Prompts), 4, "a call without a first token was measured")
	if s := same.Speed(Circle{}); s.FirstToken != 1 || s.Due != noon.Add(3*time.Hour) {
		t.Errorf("%+v", s)
	}
	var empty Measurements
	if empty.Speed() != nil {
		t.Error("nothing was measured")
	}
}

func TestDecodingByConcurrency(t *testing.T) {
	var l Load
	add := func(running, output int, took time.Duration) {
		l.Measure(Circle{}, Measurement{At: noon, FirstToken: 1, Output: output, Decoding: took, Running: running})
	}
	add(1, minDecoded-1, time.Hour) // too short to count
	assert.Equal(t, l.Speed(Circle{}).DecodeAt(1), DefaultSpeed.Decode[0], "measured")
	add(1, 100, 0)
	assert.Equal(t, l.Speed(Circle{}).DecodeAt(1), DefaultSpeed.Decode[0], "of no time")
	var short Load
	if short.Measure(Circle{}, Measurement{At: noon, FirstToken: 1, Output: minDecoded, Decoding: minDecoded * time.Second, Running: 1}); short.Speed(Circle{}).DecodeAt(1) != 1 {
		t.Errorf("the shortest that counts: %v s", short.Speed(Circle{}).DecodeAt(1))
	}
	add(3, 100, 5*time.Second)
	for running, want := range map[int]float64{1: 0.04, 2: 0.05, 3: 0.05, 4: 0.07, 7: 0.07, 8: 0.11, 99: 0.11} {
		if got := l.Speed(Circle{}).DecodeAt(running); math.Abs(got-want) > 1e-9 {
			t.Errorf("with %d at once: %v s a token, want %v", running, got, want)
		}
	}
	add(1, 100, time.Second)
	add(16, 100, 20*time.Second)
	for running, want := range map[int]float64{1: 0.01, 2: 0.05, 4: 0.07, 8: 0.2} {
		if got := l.Speed(Circle{}).DecodeAt(running); math.Abs(got-want) > 1e-9 {
			t.Errorf("with %d at once: %v s a token, want %v", running, got, want)
		}
	}
}

// Calls that run slow a prompt: a faster machine that is busy comes after a free one, for
// a long prompt only.
func TestPromptsShareTheMachine(t *testing.T) {
	fast, slow := &Speed{Prefill: 0.001, Decode: [levels]float64{0.01}}, &Speed{Prefill: 0.0025, Decode: [levels]float64{0.01}}
	for running, want := range map[int]float64{1: 1, 2: 1.5, 3: 2, 5: 3} {
		if got := Predict(fast, 1000, 0, running); math.Abs(got-want) > 1e-9 {
			t.Errorf("%d at once: %v s, want %v", running, got, want)
		}
	}
	if got := Predict(fast, 1000, 200, 1); math.Abs(got-3) > 1e-9 {
		t.Errorf("with an answer of 200 tokens: %v s, want 3", got)
	}
	if Predict(fast, 20_000, 100, 5) < Predict(slow, 20_000, 100, 1) || Predict(fast, 20_000, 100, 3) > Predict(slow, 20_000, 100, 1) {
		t.Error("a machine that runs four calls comes after one 2.5 times slower, and one that runs two before it")
	}
}

// A machine of known speed, on which one to eight calls run at once, is expected to answer in
// the time that it takes: what other calls cost is in the measurements of each level, and is
// not added again. Of prompts that were measured alone it is added once; of others the time
// expected is longer than it takes, never shorter.
func TestSlowdownOfOtherCalls(t *testing.T) {
	const start, prefill = 0.1, 0.001
	decode := [...]float64{0.010, 0.0125, 0.0175, 0.0275} // seconds a token, of 1, 2, 4 and 8 calls
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	first := func(tokens, running int) float64 { return start + prefill*float64(tokens)*(0.5+float64(running)/2) }
	for name, running := range map[string]func(i int) int{
		"always eight": func(int) int { return 8 },
		"always one":   func(int) int { return 1 },
		"one to eight": func(i int) int { return 1 << (i % 4) },
	} {
		var l Load
		for i := range 64 {
			tokens, n := 500+i*7919%10_000, running(i)
			l.Measure(Circle{}, Measurement{
				At: noon, Uncached: tokens, FirstToken: seconds(first(tokens, n)), Output: 100, Decoding: seconds(100 * decode[level(n)]), Running: n,
			})
		}
		for _, n := range []int{1, 2, 4, 8} {
			if got, want := l.Speed(Circle{}).DecodeAt(n), decode[level(n)]; math.Abs(got-want) > 1e-9 {
				t.Errorf("%s measured, %d run: %v s a token are expected, it takes %v", name, n, got, want)
			}
			got, want := Predict(l.Speed(Circle{}), 8000, 0, n), first(8000, n)
			if got < 0.99*want || name == "always one" && got > 1.01*want {
				t.Errorf("%s measured, %d run: %.2f s to the first token are expected, it takes %.2f s", name, n, got, want)
			}
		}
	}
}

// An engine that never reports cached tokens counts as without a cache after a few turns,
// and as with one after it reported some.
func TestKeptFollowsReports(t *testing.T) {
	var l Load
	turn := func(sent, cached int) float64 {
		l.Measure(Circle{}, Measurement{At: noon, FirstToken: 1, Sent: sent, Cached: cached})
		return l.Speed(Circle{}).HitRates[0]
	}
	for i, want := range []struct {
		sent, cached int
		kept         float64
	}{{0, 0, 1}, {1000, 0, 0.5}, {1000, 0, 0.25}, {0, 500, 0.25}, {1000, 1000, 0.625}, {1000, 5000, 0.8125}, {1000, -1, 0.40625}} {
		assert.Equal(t, turn(want.sent, want.cached), want.kept, "turn", i)
	}
}

// An engine that keeps 10,000 tokens is known to: what it keeps after less text of other
// prompts, and what it forgot after more. Single reports that differ change little of that.
func TestKeptByTextSince(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var l Load
		for i := range 200 {
			m := Measurement{At: noon, FirstToken: 1, Sent: 1000, Since: int(300_000 * math.Pow(rng.Float64(), 4))}
			if m.Since < 10_000 {
				m.Cached = m.Sent
			}
			if l.Measure(Circle{}, m); i < 100 {
				continue
			}
			kept := l.Speed(Circle{}).HitRates
			if kept[reach(4095)] < 0.9 || kept[reach(40_000)] > 0.1 {
				t.Fatalf("seed %d, after %d calls: %v", seed, i, kept)
			}
			if !slices.IsSortedFunc(kept[:], func(a, b float64) int { return cmp.Compare(b, a) }) {
				t.Fatalf("seed %d, after %d calls it rises: %v", seed, i, kept)
			}
		}
	}
	for tokens, want := range map[int]int{-1: 0, 0: 0, 255: 0, 256: 1, 511: 1, 512: 2, 262_143: 10, 262_144: 11, math.MaxInt: 11} {
		assert.Equal(t, reach(tokens), want, tokens, "tokens")
	}
}

// Machines within a tenth of each other share the calls; others never change places.
func TestTiesGoByTheDraw(t *testing.T) {
	machine := func(id string, start float64) wMachine {
		return wMachine{id: id, owner: "me", online: true, slots: 1, offers: []wOffer{{model: "m", families: []Family{Chat}, speed: &wSpeed{start: start, dueIn: time.Hour}}}}
	}
	w := &world{now: noon, machines: []wMachine{machine("a", 1), machine("b", 1.05), machine("c", 1.1001), machine("d", 1)}}
	s := w.snapshot(t, rand.New(rand.NewPCG(0, 0)))
	first := map[MachineID]int{}
	for draw := range uint64(1000) {
		got := Route(s, Query{Caller: "me", Model: "m", Now: noon, Draw: mix(draw)}).Candidates
		first[got[0].Machine.ID]++
		if !got[0].Expectation.Measured {
			t.Fatalf("the speed of %s is known", got[0].Machine.ID)
		}
		at := func(id MachineID) int {
			return slices.IndexFunc(got, func(c Candidate) bool { return c.Machine.ID == id })
		}
		if a, c := at("a"), at("c"); c >= 0 && (a < 0 || a > c) {
			t.Fatal("a machine that is more than a tenth slower is first")
		}
	}
	if first["a"] < 350 || first["d"] < 350 || first["b"] < 20 || first["b"] > first["a"]/2 || first["c"] > 0 {
		t.Errorf("first: %v", first)
	}
}

// A machine is sent one call to measure it, and the next one 10 minutes later.
func TestOneCallMeasures(t *testing.T) {
	var l Load
	assert.That(t, l.Trying(Circle{}, noon), "it was not measured")
	if l.Trying(Circle{}, noon.Add(retryMeasure-1)) || !l.Trying(Circle{}, noon.Add(retryMeasure)) {
		t.Error("the call failed: the next one is to come after 10 minutes")
	}
	if again := noon.Add(retryMeasure); l.Trying(Circle{}, again.Add(2*retryMeasure-1)) || !l.Trying(Circle{}, again.Add(2*retryMeasure)) {
		t.Error("two failed: the next one is to come after 20 minutes")
	}
	l.Measure(Circle{}, Measurement{At: noon, FirstToken: time.Second})
	if l.Trying(Circle{}, noon.Add(time.Hour-1)) || !l.Trying(Circle{}, noon.Add(time.Hour)) {
		t.Error("one measurement counts for an hour")
	}
}

// What is read from elsewhere is used if it is younger and can be true.
func TestSetProofs(t *testing.T) {
	var from, to Load
	for i := range 50 {
		from.Measure(Circle{}, Measurement{At: noon.Add(time.Duration(i)), Uncached: i, FirstToken: time.Second, Output: 100, Decoding: time.Second, Running: i % 20, Sent: 10})
	}
	proofs, at := from.Proofs()
	m := proofs[Circle{}].Measurements
	set := func(m Measurements) bool { return to.SetProofs(map[Circle]Proof{{}: {Measurements: m}}) }
	assert.That(t, at == m.At && set(m) && !set(m), "it is younger once")
	assert.Equal(t, *to.Speed(Circle{}), *from.Speed(Circle{}), "became")
	for i, edge := range []func(*Measurements){
		func(m *Measurements) { m.Prompts[3] = PromptSample{} },
		func(m *Measurements) { m.Prompts[3] = PromptSample{longestPrompt, longestSample} },
		func(m *Measurements) { m.Decode[2] = []float64{0, longestSample} },
		func(m *Measurements) { m.Decode[2] = make([]float64, maxDecode) },
		func(m *Measurements) { m.Missed = [reaches]float64{5: 1} },
	} {
		good := m.clone()
		good.At = good.At.Add(time.Duration(i+1) * time.Minute)
		if edge(&good); !set(good) {
			t.Errorf("%d: %+v was not taken", i, good)
		}
	}
	for i, spoil := range []func(*Measurements){
		func(m *Measurements) { m.Prompts[3].Seconds = -1 },
		func(m *Measurements) { m.Prompts[3].Tokens = math.Inf(1) },
		func(m *Measurements) { m.Prompts[3].Seconds = math.NaN() },
		func(m *Measurements) { m.Prompts = append(m.Prompts, m.Prompts...) },
		func(m *Measurements) { m.Prompts[3].Tokens = -1 },
		func(m *Measurements) { m.Prompts[3].Seconds = longestSample + 1 },
		func(m *Measurements) { m.Decode[2][0] = longestSample + 1 },
		func(m *Measurements) { m.Missed[4] = -1 },
		func(m *Measurements) { m.Decode[2][0] = -1 },
		func(m *Measurements) { m.Decode[2] = make([]float64, maxDecode+1) },
		func(m *Measurements) { m.Missed[4] = 2 },
	} {
		bad := m.clone()
		bad.At = bad.At.Add(time.Hour)
		if spoil(&bad); set(bad) {
			t.Errorf("%d: %+v was taken", i, bad)
		}
	}
}

// What is read from elsewhere may make a line that falls, or one of which nothing is known.
func TestPositive(t *testing.T) {
	for x, want := range map[float64]float64{2: 2, 0: 0, -1: 0, math.Inf(1): 0, math.Inf(-1): 0, math.NaN(): 0} {
		assert.Equal(t, positive(x), want, x)
	}
}

func TestTypicalSpeed(t *testing.T) {
	if TypicalSpeed(nil) != nil {
		t.Error("of none")
	}
	got := TypicalSpeed([]*Speed{{Start: 1, Prefill: 3}, {Start: 2, Prefill: 2, Decode: [levels]float64{5}}, {Start: 3, Prefill: 1}})
	if want := (Speed{Start: 2, Prefill: 2, Decode: [levels]float64{5}, HitRates: allKept}); *got != want {
		t.Errorf("%+v, want %+v", *got, want)
	}
}

func BenchmarkMeasure(b *testing.B) {
	var l Load
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l.Measure(Circle{}, Measurement{At: noon, Uncached: i * 7919 % 20_000, FirstToken: time.Duration(i*7919%20_000) * time.Millisecond, Output: 100, Decoding: time.Second, Running: 1})
	}
}
