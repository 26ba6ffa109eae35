package fleet

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/fault"
)

// Verdict is what becomes of a call.
type Verdict uint8

// The verdicts.
const (
	Refuse Verdict = iota // with Decision.Fault
	Try                   // Decision.Candidates, best first
	Wait                  // for a slot, or a machine's return, and ask again
)

// String is the verdict as a person reads it.
func (v Verdict) String() string { return [...]string{"refuse", "try", "wait"}[v] }

// MaxCandidates is how many machines a call may be tried on (decisions 2).
const MaxCandidates = 3

// Decision is where a call goes, or why nowhere, and what that was decided from.
type Decision struct {
	Verdict    Verdict
	Row        int          // of the table in decisions 2
	Candidates []Candidate  // when the verdict is Try: 1 to MaxCandidates, best first
	Fault      *fault.Fault // when the verdict is Refuse
	Survey     Survey
}

// Route decides where a call goes: decisions 2, whole. It reads the snapshot
// and the ask, and nothing else.
func Route(s *Snapshot, a Ask) Decision {
	v, best := survey(s, &a)
	i := 0
	for !rows[i].when(v) { // the last one's holds always
		i++
	}
	r := &rows[i]
	answer := r.chat
	if a.Family != Chat {
		answer = r.rest
	}
	d := Decision{Verdict: answer.verdict, Row: r.number, Survey: v}
	switch answer.verdict {
	case Try:
		d.Candidates = best.candidates()
	case Refuse:
		d.Fault = answer.fault(r.number, v, &a)
	}
	return d
}

// row is one row of decisions 2: the first whose condition holds decides.
type row struct {
	number int
	when   func(Survey) bool
	chat   answer // chat, responses, messages
	rest   answer // embeddings, audio
}

// rows are in the order of decisions 2, after the 400 of decisions 4 for audio where no
// machine offers any. Two things the table leaves to reading:
//
// Rows 8 to 10 speak of machines of which none would run the call. Where one
// would, but the wait for it is over or the attempt at it failed, rows 11 and 12
// decide, however the others are.
//
// Row 12 looks at rows 8 to 10 again: with a machine that would run the call,
// only row 9 can hold there, and row 10 gives what row 12 ends in.
var rows = [...]row{
	{1, func(v Survey) bool { return v.silent }, notFound, noSpeech},
	{1, func(v Survey) bool { return v.kept == 0 }, notFound, notFound},
	{2, func(v Survey) bool { return v.Unconfirmed }, unconfirmed, unconfirmed},
	{3, func(v Survey) bool { return v.Ready > 0 }, try, try},
	{4, func(v Survey) bool { return v.Busy > 0 && !v.Waited }, wait, wait},
	{5, func(v Survey) bool { return v.Reachable() == 0 && v.online == 0 }, notFound, notFound},
	{6, func(v Survey) bool { return v.Reachable() == 0 && !v.SomebodyShares }, notInCircle, notFound},
	{7, func(v Survey) bool { return v.Reachable() == 0 }, notShared, notFound},
	{8, func(v Survey) bool { return v.Reachable() == v.In(Offline) }, offline, offline},
	{9, func(v Survey) bool { return !v.alive() && v.closed() }, closed, closed},
	{10, func(v Survey) bool { return !v.alive() || !v.Gone && !v.Waited }, exhausted, exhausted},
	{11, func(v Survey) bool { return v.Gone }, gone, goneExhausted},
	{11, func(v Survey) bool { return v.In(Paused, Spent) == 0 }, full, fullExhausted},
	{12, func(v Survey) bool { return v.closed() }, closed, closed},
	{12, func(v Survey) bool { return true }, exhausted, exhausted},
}

// alive reports whether some reachable machine would run the call, now or soon.
func (v Survey) alive() bool { return v.In(Ready, Busy, Returning) > 0 }

// closed reports whether some machine shared with the caller, by a share or a
// group, is online and every such one is outside its hours.
func (v Survey) closed() bool {
	online, outside := int32(0), int32(0)
	for _, counts := range v.Counts[Shared:] {
		for _, n := range counts[OutsideHours:] {
			online += n
		}
		outside += counts[OutsideHours]
	}
	return online > 0 && online == outside
}

// answer is one cell of the table. Its text is for the caller: {model}, {states}
// and {you} are filled in. Nothing in it differs with what is out of reach.
type answer struct {
	verdict Verdict
	code    fault.Code
	text    string
	// hopeless says when repeating the call cannot help (decisions 4); nil: never.
	hopeless func(Survey) bool
}

var (
	try  = answer{verdict: Try}
	wait = answer{verdict: Wait}

	notFound = answer{
		code: fault.ModelNotFound,
		text: "no machine {you} can use serves model {model}; send the id exactly as GET /v1/models lists it",
	}
	noSpeech = answer{
		code: fault.InvalidRequest,
		text: "no speech model is available: no machine of this region offers any; " +
			"connect one whose owner configured an engine for speech ([audio] in its config.toml)",
	}
	notInCircle = answer{
		code: fault.NotInCircle,
		text: "nobody shares with you and none of your own machines serves model {model}; " +
			"ask someone who runs it to share a machine, or connect one of your own",
	}
	notShared = answer{
		code: fault.CascadeExhausted,
		text: "no machine {you} can use serves model {model}, and waiting does not help; " +
			"ask someone who runs it to share a machine, or connect one of your own",
		hopeless: func(Survey) bool { return true },
	}
	unconfirmed = answer{
		code: fault.CascadeExhausted,
		text: "cannot confirm just now who shares with you, so model {model} was tried nowhere; retry shortly",
	}
	offline = answer{
		code: fault.MachineOffline,
		text: "every machine {you} can use that serves model {model} is offline; it is back when one of them is",
	}
	closed = answer{
		code: fault.OutsideSharingHours,
		text: "every machine shared with you that serves model {model} and is online is outside its sharing hours ({states}); " +
			"retry within them",
		hopeless: func(v Survey) bool { return v.Of(Own) == 0 },
	}
	exhausted = answer{
		code: fault.CascadeExhausted,
		text: "no machine {you} can use takes a call of model {model} just now ({states}); retry later",
	}
	full = answer{
		code: fault.CapacityFull,
		text: "no machine that serves model {model} had a free slot before the wait was over ({states}); retry shortly",
	}
	gone = answer{
		code: fault.CapacityFull,
		text: "every machine that was to run model {model} became unavailable before it started ({states}); retry shortly",
	}
	fullExhausted = answer{code: fault.CascadeExhausted, text: full.text}
	goneExhausted = answer{code: fault.CascadeExhausted, text: gone.text}
)

// users says who could not use a machine: the caller, by a narrowed key or not.
var users = [...]string{
	Everything:   "you",
	OwnAndShared: "this key (narrowed to your own machines and those shared with you)",
	OwnOnly:      "this key (narrowed to your own machines)",
}

func (c answer) fault(row int, v Survey, a *Ask) *fault.Fault {
	text := strings.NewReplacer("{model}", quote(a.Model), "{states}", v.String(), "{you}", users[a.Narrow]).Replace(c.text)
	f := fault.New(c.code, "%s", text)
	if c.code == fault.InvalidRequest { // of the model, as model_not_found
		f = f.WithParam("model")
	}
	if v.Waited && row >= 8 { // before, it is not the wait that failed the call
		f = f.AfterWait()
	}
	if c.hopeless != nil && c.hopeless(v) {
		f = f.WithNoRetry()
	}
	return f
}

// quote is a model's id as a message may carry it: what a stranger typed, but
// printable and not too long.
func quote(id ModelID) string {
	if len(id) > MaxModelID {
		id = id[:MaxModelID] + "…"
	}
	return strconv.Quote(string(id))
}

// survey looks at every reachable machine that offers the model, once.
func survey(s *Snapshot, a *Ask) (Survey, podium) {
	w := newWalk(s, a.Caller, a.Narrow)
	v := Survey{
		SomebodyShares: w.somebodyShares(),
		Unconfirmed:    a.Unconfirmed,
		Waited:         a.Waited,
		Gone:           a.Gone,
	}
	c, _ := s.models.Get(a.Model)
	c = c.add(s.Machine(a.Exclude), a.Model, -1)
	v.kept, v.online = c.kept[a.Family], c.online[a.Family]
	v.silent = a.Family == Audio && s.speech == s.Machine(a.Exclude).speech()

	best := podium{draw: a.Draw}
	var m Sighting
	w.offering(a, func(machine *Machine, o *Offer, st Standing) bool {
		if !st.sight(&m, machine, o, a.Now, a.Owed) {
			return true
		}
		v.Counts[m.Class][m.State]++
		if slices.Contains(a.Avoid, machine.ID) {
			return true
		}
		switch m.State {
		case Ready:
			v.Ready++
			best.enter(&m)
		case Busy, Returning:
			v.Busy++
		}
		return true
	})
	return v, best
}

// podium keeps the best of the ready machines, best first.
type podium struct {
	draw   uint64
	places [MaxCandidates]Sighting
	taken  int
}

func (p *podium) enter(m *Sighting) {
	at := p.taken
	for at > 0 && p.compare(m, &p.places[at-1]) < 0 {
		at--
	}
	if at == MaxCandidates {
		return
	}
	p.taken = min(p.taken+1, MaxCandidates)
	copy(p.places[at+1:p.taken], p.places[at:])
	p.places[at] = *m
}

func (p *podium) candidates() []Candidate {
	out := make([]Candidate, p.taken)
	for i := range out {
		out[i] = p.places[i].Candidate
	}
	return out
}

// compare orders attempts: class, in a group those that have served before those
// that have not; then free slots relative to total, recent time to first token (a
// machine not measured yet goes first, and so gets measured), draw. Of machines of
// a group that have not served only the draw decides: slots are their own word, and
// a first byte is quickly sent.
func (p *podium) compare(a, b *Sighting) int {
	if by := cmp.Compare(a.Class, b.Class); by != 0 {
		return by
	}
	switch proven, other := a.Offer.Load.proven(a.Class), b.Offer.Load.proven(b.Class); {
	case proven && !other:
		return -1
	case other && !proven:
		return 1
	case proven:
		if by := cmp.Compare(b.free*a.total, a.free*b.total); by != 0 {
			return by
		}
		if by := cmp.Compare(a.Offer.Load.TTFT(), b.Offer.Load.TTFT()); by != 0 {
			return by
		}
	}
	return cmp.Compare(mix(p.draw^a.Machine.mark), mix(p.draw^b.Machine.mark))
}

// mix spreads a number over all 64 bits (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
