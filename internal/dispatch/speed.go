package dispatch

import (
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kith/kith/internal/dispatch/prefix"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

const (
	// bytesPerToken is the assumed number of bytes of a request for each token of its
	// prompt, and outputTokens the assumed length of an answer in tokens, until a call of
	// the model was measured.
	bytesPerToken = 4.0
	outputTokens  = 250.0
	// maxTypical is the maximum number of machines in the median that is the typical speed
	// of a model.
	maxTypical = 64
	// minMeasured is the minimum number of tokens of an answer that is measured in a group.
	// maxFaster is how many times as fast as the fastest machine of the group a
	// measurement may be.
	minMeasured = 16
	maxFaster   = 3
	// maxModels is the maximum number of models whose average calls are remembered.
	maxModels = 10_000
)

// speeds holds what was measured of models on all machines together, and which
// measurements of machines are to be stored. What was measured of a machine is in its
// fleet.Load.
type speeds struct {
	// loadOf returns the Load of a model on a machine, nil if the machine does not offer
	// it.
	loadOf func(fleet.MachineID, fleet.ModelID) *fleet.Load

	mu      sync.Mutex
	models  map[fleet.ModelID]*modelSpeed
	changed map[speedKey]struct{}
}

// speedKey identifies a model on a machine.
type speedKey struct {
	machine fleet.MachineID
	model   fleet.ModelID
}

// modelSpeed is what is known of a model: running averages of the bytes of a request for
// each token of its prompt and of the tokens of an answer, and the speed of a typical
// machine.
type modelSpeed struct {
	bytesPerToken, output float64
	machines              map[provenTo]*fleet.Speed
	typical               *fleet.Speed
	learned               int // number of measurements
}

// provenTo is a machine and a circle of callers whose calls have measured its speed.
type provenTo struct {
	machine fleet.MachineID
	circle  fleet.Circle
}

// model returns what is known of a model. mu must be held.
func (s *speeds) model(model fleet.ModelID) *modelSpeed {
	m := s.models[model]
	if m == nil {
		m = &modelSpeed{bytesPerToken: bytesPerToken, output: outputTokens, machines: make(map[provenTo]*fleet.Speed)}
		if s.models == nil || len(s.models) >= maxModels {
			s.models = make(map[fleet.ModelID]*modelSpeed)
		}
		s.models[model] = m
	}
	return m
}

// work returns the expected work of a call of a model with that prompt.
func (s *speeds) work(model fleet.ModelID, p *prefix.Prompt, matches []prefix.Match) fleet.Work {
	s.mu.Lock()
	m := *s.model(model)
	s.mu.Unlock()
	w := fleet.Work{Prompt: int(float64(p.Bytes) / m.bytesPerToken), Output: int(m.output), Typical: m.typical}
	if p.MaxTokens > 0 {
		w.Output = min(w.Output, p.MaxTokens)
	}
	if len(matches) > 0 {
		w.Sent = make([]fleet.Sent, len(matches))
	}
	for i, match := range matches {
		w.Sent[i] = fleet.Sent{
			Machine: match.Machine, Tokens: int(float64(match.Bytes) / m.bytesPerToken), Since: int(float64(match.Since) / m.bytesPerToken),
		}
	}
	return w
}

// measure measures the machine of a served call.
func (s *speeds) measure(call *gateway.Call, out gateway.Outcome, now time.Time) {
	tries := call.Trace.Tries
	if len(tries) == 0 || call.Choices > 1 {
		return
	}
	last := &tries[len(tries)-1]
	load := s.loadOf(last.Machine.ID, call.Model)
	if last.Began && load != nil && s.measureOn(load, call, last, out, now) {
		s.mark(speedKey{last.Machine.ID, call.Model})
	}
}

// measureOn is measure with the load of the machine's offer. It reports whether the
// measurement was used.
func (s *speeds) measureOn(load *fleet.Load, call *gateway.Call, last *gateway.Attempt, out gateway.Outcome, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.model(call.Model)
	measurement := measurementOf(call, last, out, m.estimate(load.Speed(last.Circle)))
	if out.Reported && out.TokensIn > 0 && call.Trace.Prompt > 0 {
		ratio := float64(call.Trace.Prompt) / float64(out.TokensIn)
		m.bytesPerToken += (min(max(ratio, 1), 16) - m.bytesPerToken) / 8
	}
	if out.TokensOut > 0 {
		m.output += (float64(out.TokensOut) - m.output) / 8
	}
	if last.Class == fleet.Grouped && call.Endpoint.Family() == fleet.Chat {
		if !m.plausible(last.Circle, out.TokensOut, measurement) {
			return false
		}
	}
	measurement.At = now
	load.Measure(last.Circle, measurement)
	m.learn(provenTo{last.Machine.ID, last.Circle}, load.Speed(last.Circle))
	return true
}

// learn updates the typical speed of a model with the measured speed of a machine.
func (s *speeds) learn(model fleet.ModelID, id provenTo, speed *fleet.Speed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.model(model).learn(id, speed)
}

// plausible reports whether to use the measurement of a call in a group. A machine that
// wants to attract prompts may answer at once, with one word or with text that no engine
// generated (spec/routing.md#plausible). It is compared only with machines measured in
// the same group: those of other circles may be decoys of the same owner.
func (m *modelSpeed) plausible(group fleet.Circle, tokens int64, x fleet.Measurement) bool {
	if x.Decoding == 0 { // the caller's connection was slower than the machine
		x.Output = 0
	}
	fastest := 0.0
	for id, s := range m.machines {
		if took := fleet.Predict(s, x.Uncached, x.Output, x.Running); id.circle == group && (fastest == 0 || took < fastest) {
			fastest = took
		}
	}
	return tokens >= minMeasured && maxFaster*(x.FirstToken+x.Decoding).Seconds() >= fastest
}

// estimate returns the speed to assume for a machine: the measured one, if any, else the
// typical one.
func (m *modelSpeed) estimate(measured *fleet.Speed) *fleet.Speed {
	if measured != nil {
		return measured
	}
	if m.typical != nil {
		return m.typical
	}
	return &fleet.DefaultSpeed
}

// learn updates the typical speed of the model with the speed of one machine.
func (m *modelSpeed) learn(id provenTo, speed *fleet.Speed) {
	if speed == nil {
		return
	}
	if _, known := m.machines[id]; !known && len(m.machines) >= maxTypical {
		for other := range m.machines { // any one
			delete(m.machines, other)
			break
		}
	}
	m.machines[id] = speed
	if m.learned++; m.learned > 16 && m.learned%16 != 0 { // one call changes little
		return
	}
	m.typical = fleet.TypicalSpeed(slices.AppendSeq(make([]*fleet.Speed, 0, len(m.machines)), maps.Values(m.machines)))
}

// measurementOf returns what a call shows about the machine that served it, by the hub's
// clock (spec/routing.md#measured). The token counts are the engine's, limited to what
// the gateway found possible. If an answer is not streamed, only its total time is known;
// it is divided in the proportion of the assumed speed. Decoding is not measured if the
// caller's connection slowed it down.
func measurementOf(call *gateway.Call, last *gateway.Attempt, out gateway.Outcome, assumed *fleet.Speed) fleet.Measurement {
	prompt := out.TokensIn
	if !out.Reported || prompt == 0 {
		prompt = int64(float64(call.Trace.Prompt) / bytesPerToken)
	}
	x := fleet.Measurement{
		Uncached: int(prompt - min(out.Cached, prompt)), Running: last.Running,
		Cached: int(out.Cached),
	}
	if call.Trace.Prompt > 0 {
		tokens := float64(prompt) / float64(call.Trace.Prompt) // tokens for each byte
		x.Sent, x.Since = int(float64(last.Sent)*tokens), int(float64(last.Since)*tokens)
	}
	if call.Stream && out.Frames > 0 {
		x.FirstToken = out.FirstToken - last.After
		x.Decoding = out.LastToken - out.FirstToken
		// A frame may contain several tokens, but not any number.
		x.Output = int(min(out.TokensOut, int64(4*out.Frames))) - 1
		if out.Blocked > x.Decoding/4 {
			x.Decoding = 0
		}
		return x
	}
	if call.Stream {
		x.FirstToken = out.FirstByte - last.After
		return x
	}
	x.Output = int(out.TokensOut)
	all := fleet.Predict(assumed, x.Uncached, x.Output, x.Running)
	start := fleet.Predict(assumed, x.Uncached, 0, x.Running)
	if all <= 0 {
		start, all = 1, 1
	}
	x.FirstToken = time.Duration(float64(last.Took) * start / all)
	x.Decoding = last.Took - x.FirstToken
	return x
}

// loadOf returns the Load of a model on a machine.
func (d *Dispatcher) loadOf(machine fleet.MachineID, model fleet.ModelID) *fleet.Load {
	if o := d.cfg.Registry.Snapshot().Machine(machine).Offer(model); o != nil {
		return o.Load
	}
	return nil
}

// readWork reads the expected work of a call from its body.
func (d *Dispatcher) readWork(ctx context.Context, c *activeCall) error {
	_, content := c.call.Request()
	if content == nil { // a transcription
		return nil
	}
	var matches []prefix.Match
	if sealed := c.call.Sealed; sealed != nil {
		scope := string(c.call.Caller.Member) + " " + string(c.call.Caller.Machine) + " " + string(c.call.Model)
		c.prompt = prefix.Prompt{Marks: prefix.Rehash(d.prefixKey(), scope, sealed.Marks, gateway.MarkStep), Bytes: sealed.Prompt}
		matches = d.prefixes.Match(c.prompt.Marks, time.Now())
	} else if c.query.Family == fleet.Chat {
		scope := string(c.call.Caller.Member) + " " + string(c.call.Model)
		err := content.View(ctx, func(body []byte) error {
			c.prompt = prefix.Read(d.prefixKey(), scope, body)
			return nil
		})
		if err != nil {
			return err
		}
		matches = d.prefixes.Match(c.prompt.Marks, time.Now())
	} else {
		c.prompt.Bytes = int(content.Len())
	}
	c.query.Work = d.speeds.work(c.call.Model, &c.prompt, matches)
	if c.query.Family != fleet.Chat {
		c.query.Work.Output = 0
	}
	c.call.Trace.Prompt = c.prompt.Bytes
	return nil
}

// remember records here and at the other nodes that a machine has the prompt of a call in
// its cache.
func (d *Dispatcher) remember(c *activeCall, a *attempt) {
	before, seen, ok := d.prefixes.Sent(c.prompt.Marks, a.Machine.Key(), time.Now())
	if a.had = before; ok && d.scheduler.others != nil {
		d.scheduler.others.Sent(seen.Encode())
	}
}

// OnSeen records a prompt that another node sent to a machine.
func (d *Dispatcher) OnSeen(data []byte) {
	if seen, ok := prefix.ParseSeen(data); ok {
		d.prefixes.Add(seen, time.Now())
	}
}

// newPrefixKey returns a random key for the fingerprints of prompts.
func newPrefixKey() *prefix.Key {
	var key prefix.Key
	_, _ = rand.Read(key[:]) // it never fails
	return &key
}

// prefixKey returns the key of the day.
func (d *Dispatcher) prefixKey() *prefix.Key {
	if key := d.key.Load(); key != nil {
		return key
	}
	d.key.CompareAndSwap(nil, newPrefixKey())
	return d.key.Load()
}
