package dispatch

import (
	"math"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/dispatch/prefix"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// served returns a call of 4,000 bytes that machine desk answered.
func served(load *fleet.Load, stream bool, took time.Duration) *gateway.Call {
	desk := &fleet.Machine{ID: "desk", Name: "desk", Offers: []fleet.Offer{{ID: "m", Load: load}}}
	return &gateway.Call{Model: "m", Stream: stream, Trace: gateway.Trace{Prompt: 4000, Tries: []gateway.Attempt{
		{Machine: desk, After: time.Second, Took: took, Began: true, Running: 1, Sent: 1200, Since: 8000},
	}}}
}

func TestMeasurementsOfCalls(t *testing.T) {
	streamed := gateway.Outcome{
		TokensIn: 1000, TokensOut: 101, Reported: true, Cached: 400, Frames: 101,
		FirstToken: 3 * time.Second, LastToken: 5 * time.Second,
	}
	for _, c := range []struct {
		name   string
		change func(*gateway.Outcome, *gateway.Call)
		want   fleet.Measurement
	}{
		{"streamed", func(*gateway.Outcome, *gateway.Call) {},
			fleet.Measurement{Uncached: 600, FirstToken: 2 * time.Second, Output: 100, Decoding: 2 * time.Second}},
		{"no usage", func(o *gateway.Outcome, _ *gateway.Call) { o.TokensIn, o.Cached, o.Reported = 0, 0, false },
			fleet.Measurement{Uncached: 1000, FirstToken: 2 * time.Second, Output: 100, Decoding: 2 * time.Second}},
		{"more tokens than its frames can hold", func(o *gateway.Outcome, _ *gateway.Call) { o.TokensOut = 100_000 },
			fleet.Measurement{Uncached: 600, FirstToken: 2 * time.Second, Output: 403, Decoding: 2 * time.Second}},
		{"more cached than the prompt has", func(o *gateway.Outcome, _ *gateway.Call) { o.Cached = 5000 },
			fleet.Measurement{FirstToken: 2 * time.Second, Output: 100, Decoding: 2 * time.Second}},
		{"a slow caller", func(o *gateway.Outcome, _ *gateway.Call) { o.Blocked = time.Second },
			fleet.Measurement{Uncached: 600, FirstToken: 2 * time.Second, Output: 100}},
		{"no frame with content", func(o *gateway.Outcome, _ *gateway.Call) { o.Frames, o.FirstByte = 0, 4*time.Second },
			fleet.Measurement{Uncached: 600, FirstToken: 3 * time.Second}},
		// Assumed are 0.3 s + 0.6 s for the prompt and 2 s for 100 tokens; it took ten
		// times as long.
		{"not streamed", func(o *gateway.Outcome, call *gateway.Call) { o.TokensOut, call.Stream = 100, false },
			fleet.Measurement{Uncached: 600, FirstToken: 9 * time.Second, Output: 100, Decoding: 20 * time.Second}},
	} {
		call, out := served(nil, true, 29*time.Second), streamed
		c.change(&out, call)
		got := measurementOf(call, &call.Trace.Tries[0], out, &fleet.DefaultSpeed)
		c.want.Running, c.want.Sent, c.want.Since, c.want.Cached = 1, 300, 2000, int(out.Cached)
		if d := got.FirstToken - c.want.FirstToken; d.Abs() < time.Millisecond {
			got.FirstToken = c.want.FirstToken
		}
		if d := got.Decoding - c.want.Decoding; d.Abs() < time.Millisecond {
			got.Decoding = c.want.Decoding
		}
		assert.Equal(t, got, c.want, c.name)
	}
}

// Measurements of a model are used for its next calls: bytes for each token, the length
// of answers, and a typical machine.
func TestWorkFollowsCalls(t *testing.T) {
	var load fleet.Load
	s := speeds{loadOf: func(fleet.MachineID, fleet.ModelID) *fleet.Load { return &load }}
	p := prefix.Prompt{Bytes: 4000}
	before := s.work("m", &p, []prefix.Match{{Machine: 7, Bytes: 2000, Since: 400}})
	if before.Prompt != 1000 || before.Output != 250 || before.Typical != nil || len(before.Sent) != 1 || before.Sent[0] != (fleet.Sent{Machine: 7, Tokens: 500, Since: 100}) {
		t.Errorf("before the first call: %+v", before)
	}
	for range 100 {
		s.measure(served(&load, true, 0), gateway.Outcome{
			TokensIn: 2000, TokensOut: 50, Reported: true, Frames: 50, FirstToken: 3 * time.Second, LastToken: 4 * time.Second,
		}, time.Now())
	}
	after := s.work("m", &p, nil)
	if after.Prompt < 1990 || after.Prompt > 2000 || after.Output < 50 || after.Output > 51 || after.Typical == nil || math.Abs(fleet.Predict(after.Typical, 2000, 0, 1)-2) > 1e-6 {
		t.Errorf("after 100 calls: %+v, typical %+v", after, after.Typical)
	}
	assert.That(t, load.Speed(fleet.Circle{}) != nil && len(s.changed) == 1, "the machine's speed is not known")
	p.MaxTokens = 7
	if w := s.work("m", &p, nil); w.Output != 7 {
		t.Errorf("at most 7 tokens: %+v", w)
	}
	if w := s.work("another", &p, nil); w.Typical != nil || w.Prompt != 1000 {
		t.Errorf("another model: %+v", w)
	}
	for _, call := range []*gateway.Call{{}, {Choices: 2, Trace: served(&load, true, 0).Trace}} {
		s.measure(call, gateway.Outcome{}, time.Now()) // nothing is measured
	}
	for i := range 3 * maxTypical {
		s.model("m").learn(provenTo{machine: fleet.MachineID(group(i))}, load.Speed(fleet.Circle{}))
	}
	assert.Equal(t, len(s.model("m").machines), maxTypical, "machines are remembered")
}

// In a group, a call does not count as a measurement if the answer has only a few tokens
// or came much faster than from any machine. By a share, it counts.
func TestImplausibleCallsAreNotMeasured(t *testing.T) {
	loads := map[fleet.MachineID]*fleet.Load{"slow": {}}
	s := speeds{loadOf: func(id fleet.MachineID, _ fleet.ModelID) *fleet.Load { return loads[id] }}
	group := fleet.Circle{Class: fleet.Grouped, Group: "g"}
	serve := func(id fleet.MachineID, circle fleet.Circle, tokens int64, took time.Duration) {
		call := served(loads[id], true, 0)
		try := &call.Trace.Tries[0]
		try.Machine = &fleet.Machine{ID: id, Offers: try.Machine.Offers}
		try.Class, try.Circle, try.After = circle.Class, circle, 0
		s.measure(call, gateway.Outcome{
			TokensIn: 1000, TokensOut: tokens, Reported: true, Frames: int(tokens), FirstToken: took / 2, LastToken: took,
		}, time.Now())
	}
	serve("slow", fleet.Circle{}, 100, time.Millisecond) // ignored in the group
	serve("slow", group, 100, 9*time.Second)
	for _, c := range []struct {
		circle fleet.Circle
		tokens int64
		took   time.Duration
		want   bool
	}{
		{group, minMeasured - 1, 9 * time.Second, false},
		{group, 100, 2 * time.Second, false},
		{group, minMeasured, 9 * time.Second, true},
		{group, 100, 4 * time.Second, true},
		{fleet.Circle{Class: fleet.Shared}, 3, time.Second, true},
		{fleet.Circle{}, 100, time.Second, true},
	} {
		loads["desk"] = new(fleet.Load)
		if serve("desk", c.circle, c.tokens, c.took); (loads["desk"].Speed(c.circle) != nil) != c.want {
			t.Errorf("%d tokens in %v to %v: measured %v, want %v", c.tokens, c.took, c.circle, !c.want, c.want)
		}
		delete(s.model("m").machines, provenTo{"desk", c.circle})
	}
}

func TestOrderText(t *testing.T) {
	candidate := func(name string, class fleet.Class, e fleet.Expectation) fleet.Candidate {
		return fleet.Candidate{Machine: &fleet.Machine{Name: name}, Offer: &fleet.Offer{Load: new(fleet.Load)}, Class: class, Expectation: e}
	}
	known := func(seconds float64, cached int) fleet.Expectation {
		return fleet.Expectation{Seconds: seconds, Cached: cached, Measured: true}
	}
	desk := candidate("desk", fleet.Own, known(0.42, 18_200))
	for want, second := range map[string]fleet.Candidate{
		"": {},
		"desk before attic: 18,200 of 19,000 prompt tokens are cached there, 0.4 s against 31 s expected": candidate("attic", fleet.Own, known(31.2, 0)),
		"desk before attic: 0.4 s against 17 min expected":                                                candidate("attic", fleet.Own, known(1000, 18_200)),
		"desk before attic: 0.4 s against 0.4 s expected, which counts as equal":                          candidate("attic", fleet.Own, known(0.39, 18_200)),
		"desk before attic: own machines come before shared ones":                                         candidate("attic", fleet.Shared, known(0.1, 0)),
		"desk before attic: it is to be measured again":                                                   candidate("attic", fleet.Own, known(0.1, 0)),
	} {
		assert.Equal(t, orderText(&gateway.Decision{Best: desk, Second: second, Prompt: 19_000}), want)
	}
	fresh := candidate("fresh", fleet.Own, fleet.Expectation{Seconds: 5})
	if got := orderText(&gateway.Decision{Best: fresh, Second: desk}); got != "fresh before desk: it was not measured yet" {
		t.Errorf("%q", got)
	}
	ours, theirs := candidate("ours", fleet.Grouped, known(9, 0)), candidate("theirs", fleet.Grouped, known(1, 0))
	if got := orderText(&gateway.Decision{Best: ours, Second: theirs}); got != "ours before theirs: theirs has served no member of the group yet" {
		t.Errorf("%q", got)
	}
	s := fleet.NewSnapshot().WithGroup(&fleet.Group{ID: "g", Members: []fleet.MemberID{"ann", "bob", "cat", "dan"}})
	theirs.Group = s.Group("g")
	for range 7 {
		theirs.Offer.Load.ServedGroup(s, theirs.Group, "ann", "bob", time.Now())
	}
	const new = "theirs is new in the group, where it served 7 of 20 calls, of 1 member"
	assert.Equal(t, orderText(&gateway.Decision{Best: ours, Second: theirs}), "ours before theirs: "+new)
	ours.Standing = fleet.Established
	if got := orderText(&gateway.Decision{Best: theirs, Second: ours}); got != "theirs before ours: one call in ten goes to a newcomer of the group, and "+new {
		t.Errorf("%q", got)
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		assert.Equal(t, group(n), want, n, "is written")
	}
}
