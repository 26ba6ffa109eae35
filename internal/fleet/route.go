package fleet

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/fault"
)

// Verdict is what to do with a call.
type Verdict uint8

// The verdicts.
const (
	Refuse Verdict = iota // Decision.Fault is the reason
	Try                   // Decision.Candidates, best first
	Wait                  // for a free slot or the return of a machine, then route again
)

// String returns a word for the verdict.
func (v Verdict) String() string { return [...]string{"refuse", "try", "wait"}[v] }

// MaxCandidates is the maximum number of machines that a call is tried on
// (spec/routing.md#three-attempts).
const MaxCandidates = 3

// Decision is the result of Route with the counts behind it: the candidates for the call,
// or why it is refused.
type Decision struct {
	Verdict    Verdict
	Row        int          // of spec/routing.md#the-twelve-rows
	Candidates []Candidate  // if the verdict is Try: 1 to MaxCandidates, best first
	Fault      *fault.Fault // if the verdict is Refuse
	Tally      Tally
}

// Route decides where a call goes. It reads the snapshot and the query and nothing
// else. The first rule that applies decides (spec/routing.md#the-twelve-rows):
//
//  1. No machine of the region offers the model: refuse (row-1).
//  2. Reach cannot be confirmed: refuse (row-2).
//  3. A reachable machine is ready: try it, in the order of topCandidates (row-3).
//  4. A reachable machine is busy, and the wait is not over: wait (row-4).
//  5. No reachable machine offers the model: refuse. The code depends on whether an
//     online machine offers it elsewhere, and on whether the caller is shared with
//     (row-5, row-6, row-7).
//  6. Every reachable machine is offline: refuse (row-8).
//  7. Every online machine that is shared with the caller is outside its hours, and
//     no reachable machine would run the call: refuse (row-9).
//  8. No reachable machine would run the call: refuse (row-10).
//  9. Every attempt found its machine gone, or the wait is over: refuse (row-11, row-12).
//
// If a call is sealed for machines of which none is ready, what happens is decided by all
// machines that it could be sealed for. If one of those could take it sooner, the call is
// refused with stale_seal, and Tally.Busy tells whether it could also wait. So is one that
// could be sealed for no reachable machine, although there are some: its daemon knows why
// (spec/sealed.md#routing).
func Route(s *Snapshot, q Query) Decision {
	d := route(s, q)
	if q.To == nil || d.Verdict == Try {
		return d
	}
	q.To = nil
	wide := route(s, q)
	if wide.Verdict == Refuse && wide.Tally.Reachable() == 0 {
		q.Sealed, q.Declined = false, nil
		all, _ := tally(s, &q)
		if all.Reachable() == 0 {
			return wide
		}
	} else if wide.Verdict == Refuse || d.Verdict == Wait && wide.Verdict == Wait {
		return wide
	}
	d.Verdict = Refuse
	d.Fault = fault.New(fault.StaleSeal, "the machines that the call is sealed for cannot take it now, and others could; seal it again")
	return d
}

// route decides where a call goes, of the machines that exist for it.
func route(s *Snapshot, q Query) Decision {
	t, best := tally(s, &q)
	i := 0
	for !rows[i].applies(t) { // the last row always applies
		i++
	}
	r := &rows[i]
	answer := r.chat
	if q.Family != Chat {
		answer = r.others
	}
	d := Decision{Verdict: answer.verdict, Row: r.number, Tally: t}
	switch answer.verdict {
	case Try:
		d.Candidates = best.candidates()
	case Refuse:
		d.Fault = answer.fault(r.number, t, &q)
		if d.Fault.Code == fault.ModelNotFound {
			d.Fault = otherCalls(s, q, d.Fault)
		}
	}
	return d
}

// otherCalls returns f unless a reachable machine offers the model for another family.
// Then it returns a fault that names both: the model id is right but the path is wrong.
func otherCalls(s *Snapshot, q Query, f *fault.Fault) *fault.Fault {
	if offered, ok := OtherFamily(s, q); ok {
		return OtherCalls(q.Model, q.Family, usualEndpoint[offered])
	}
	return f
}

// usualEndpoint is the endpoint to name for each family.
var usualEndpoint = [families]Endpoint{Chat: ChatCompletions, Embeddings: EmbeddingsEndpoint, Audio: Transcriptions}

// OtherFamily returns the family that reachable machines offer the model for, if none
// offers it for that of the query.
func OtherFamily(s *Snapshot, q Query) (Family, bool) {
	asked := q.Family
	found, ok := asked, false
	for q.Family = range families {
		for range Reachable(s, q) {
			if q.Family == asked {
				return asked, false
			}
			found, ok = q.Family, true
			break
		}
	}
	return found, ok
}

// OtherCalls returns the fault for a call of the family asked to a model that is only
// served at endpoint e.
func OtherCalls(model ModelID, asked Family, e Endpoint) *fault.Fault {
	return fault.New(fault.ModelNotFound, "model %q %s: it serves %s calls only, at %s; name another model",
		string(model), asked.Missing(), e.Family(), e.Path())
}

// row is one row of spec/routing.md#the-twelve-rows.
type row struct {
	number  int
	applies func(Tally) bool
	chat    answer // chat, responses, messages
	others  answer // embeddings, audio
}

// rows are the twelve rows in order. Row 1 has its own answer for audio
// (spec/api.md#audio-missing). Rows 8 to 10 apply if no machine would run the call
// (spec/routing.md#rows-8-to-10), so in row 12 only the condition of row 9 can still be
// true, and row 10 provides the answer.
var rows = [...]row{
	{1, func(t Tally) bool { return t.noSpeech }, notFound, noSpeech},
	{1, func(t Tally) bool { return t.kept == 0 }, notFound, notFound},
	{2, func(t Tally) bool { return t.Unconfirmed }, unconfirmed, unconfirmed},
	{3, func(t Tally) bool { return t.Ready > 0 }, try, try},
	{4, func(t Tally) bool { return t.Busy > 0 && !t.Waited }, wait, wait},
	{5, func(t Tally) bool { return t.Reachable() == 0 && t.online == 0 }, notFound, notFound},
	{6, func(t Tally) bool { return t.Reachable() == 0 && !t.SharedWith }, notInCircle, notFound},
	{7, func(t Tally) bool { return t.Reachable() == 0 }, notShared, notFound},
	{8, func(t Tally) bool { return t.Reachable() == t.In(Offline) }, offline, offline},
	{9, func(t Tally) bool { return !t.runnable() && t.allOutsideHours() }, outsideHours, outsideHours},
	{10, func(t Tally) bool { return !t.runnable() || !t.Gone && !t.Waited }, exhausted, exhausted},
	{11, func(t Tally) bool { return t.Gone }, gone, goneExhausted},
	{11, func(t Tally) bool { return t.In(Paused, Spent) == 0 }, full, fullExhausted},
	{12, func(t Tally) bool { return t.allOutsideHours() }, outsideHours, outsideHours},
	{12, func(t Tally) bool { return true }, exhausted, exhausted},
}

// rowNotFound is the first of the rows with model_not_found. It stands for all of them.
const rowNotFound = 1

// ShownRow returns the number of a row as a caller may see it. Rows with the same answer
// have the same number, because their own would reveal what is out of reach: 1 and 5 and,
// except for chat, 6 and 7.
func ShownRow(row int, family Family) int {
	if row == 5 || family != Chat && (row == 6 || row == 7) {
		return rowNotFound
	}
	return row
}

// runnable reports whether a reachable machine can run the call now or soon.
func (t Tally) runnable() bool { return t.In(Ready, Busy, Returning) > 0 }

// allOutsideHours reports whether at least one machine shared with the caller, by a share
// or a group, is online, and all such machines are outside their hours.
func (t Tally) allOutsideHours() bool {
	online, outside := int32(0), int32(0)
	for _, counts := range t.Counts[Shared:] {
		for _, n := range counts[OutsideHours:] {
			online += n
		}
		outside += counts[OutsideHours]
	}
	return online > 0 && online == outside
}

// answer is a cell of the table. The text is for the caller; {model}, {states} and {you}
// are replaced. It does not depend on what is out of reach (spec/routing.md#hidden).
type answer struct {
	verdict Verdict
	code    fault.Code
	text    string
	// instead returns a text for some of the tallies, or ""; nil: there is none.
	instead func(Tally) string
	// noRetry reports that a retry cannot succeed (spec/routing.md#no-retry); nil: it may.
	noRetry func(Tally) bool
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
		text: "no one shares with you and none of your own machines serves model {model}; " +
			"ask someone who runs it to share a machine, or connect one of your own",
	}
	notShared = answer{
		code: fault.CascadeExhausted,
		text: "no machine {you} can use serves model {model}, and waiting does not help; " +
			"ask someone who runs it to share a machine, or connect one of your own",
		noRetry: func(Tally) bool { return true },
	}
	unconfirmed = answer{
		code: fault.CascadeExhausted,
		text: "cannot confirm just now who shares with you, so model {model} was tried nowhere; retry shortly",
	}
	offline = answer{
		code: fault.MachineOffline,
		text: "every machine {you} can use that serves model {model} is offline; it is back when one of them is",
	}
	outsideHours = answer{
		code: fault.OutsideSharingHours,
		text: "every machine shared with you that serves model {model} and is online is outside its sharing hours ({states}); " +
			"retry within them",
		noRetry: func(t Tally) bool { return t.Of(Own) == 0 },
	}
	exhausted = answer{
		code: fault.CascadeExhausted,
		text: "no machine {you} can use takes a call of model {model} just now ({states}); retry later",
		instead: func(t Tally) string {
			switch online := t.Reachable() - t.In(Offline); online {
			case t.In(Spent):
				return "the calls a day that the owners allow on the machines {you} can use for model {model} are used up ({states}); " +
					"the next day begins at 00:00 UTC"
			case t.In(Paused):
				return "each machine {you} can use for model {model} that is online is paused ({states}); retry when its owner resumes it"
			}
			return ""
		},
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

// users describe the caller by the reach of its key or of the call's header.
var users = [...]string{
	Everything:   "you",
	OwnAndShared: "this call (narrowed to your own machines and those shared with you)",
	OwnOnly:      "this call (narrowed to your own machines)",
}

func (c answer) fault(row int, t Tally, q *Query) *fault.Fault {
	f := fault.New(c.code, "%s", c.message(t, q))
	if c.code == fault.InvalidRequest { // also the parameter of model_not_found
		f.Param = "model"
	}
	if t.Waited && row >= 8 { // earlier rows do not depend on a wait
		f = f.AfterWait()
	}
	if c.noRetry != nil && c.noRetry(t) {
		f = f.WithNoRetry()
	}
	return f
}

// message returns the text with its placeholders replaced. Refusals are frequent, so it
// allocates only one string.
func (c answer) message(t Tally, q *Query) string {
	buffer, text := make([]byte, 0, 512), c.text
	if c.instead != nil {
		text = cmp.Or(c.instead(t), text)
	}
	for rest := text; ; {
		before, after, found := strings.Cut(rest, "{")
		buffer = append(buffer, before...)
		if !found {
			return string(buffer)
		}
		var name string
		name, rest, _ = strings.Cut(after, "}")
		switch name {
		case "model":
			buffer = appendQuoted(buffer, q.Model)
		case "states":
			buffer = t.append(buffer)
		case "you":
			buffer = append(buffer, users[q.Reach]...)
		}
	}
}

// appendQuoted appends a model id to a message, quoted and not too long.
func appendQuoted(to []byte, id ModelID) []byte {
	if len(id) > MaxModelID {
		id = id[:MaxModelID] + "…"
	}
	return strconv.AppendQuote(to, string(id))
}

// tally evaluates every reachable machine that offers the model, once. It returns the
// counts and the best of the ready machines.
func tally(s *Snapshot, q *Query) (Tally, topCandidates) {
	w := newWalk(s, q.Caller, q.Reach)
	t := Tally{
		SharedWith:  w.sharedWith(),
		Unconfirmed: q.Unconfirmed,
		Waited:      q.Waited,
		Gone:        q.Gone,
	}
	c, _ := s.models.Get(q.Model)
	c = c.add(s.Machine(q.Exclude), q.Model, -1)
	of := &c.all
	if q.Sealed {
		of = &c.sealed
	}
	t.kept, t.online = of.kept[q.Family], of.online[q.Family]
	t.noSpeech = q.Family == Audio && s.speech == s.Machine(q.Exclude).speech()

	var best topCandidates
	var m1 CandidateState
	w.offering(q, func(m *Machine, o *Offer, access Access) bool {
		if !access.evaluate(&m1, m, o, q) {
			return true
		}
		t.Counts[m1.Class][m1.State]++
		if slices.Contains(q.Avoid, m.ID) {
			return true
		}
		switch m1.State {
		case Ready:
			t.Ready++
			best.add(&m1, q)
		case Busy, Returning:
			t.Busy++
		}
		return true
	})
	return t, best
}

// topCandidates holds the best MaxCandidates of the ready machines, best first.
type topCandidates struct {
	best [MaxCandidates]CandidateState
	n    int
}

func (c *topCandidates) add(m *CandidateState, q *Query) {
	m.rate(q)
	at := c.n
	for at > 0 && compare(m, &c.best[at-1]) < 0 {
		at--
	}
	if at == MaxCandidates {
		return
	}
	c.n = min(c.n+1, MaxCandidates)
	copy(c.best[at+1:c.n], c.best[at:])
	c.best[at] = *m
}

// rate sets what compare compares.
func (c *CandidateState) rate(q *Query) {
	c.roll = mix(q.Draw ^ c.Machine.tieBreaker)
	c.measure = c.expect(q)
	c.turn = c.Class == Grouped && c.Standing < Established && slices.Contains(q.Turns, c.Group.ID)
	c.seconds = spread(c.Expectation.Seconds, c.roll)
}

func (c *topCandidates) candidates() []Candidate {
	out := make([]Candidate, c.n)
	for i := range out {
		out[i] = c.best[i].Candidate
	}
	return out
}

// compare orders the candidates of a call (spec/routing.md#order): by class; in a group,
// established machines before newcomers unless it is a newcomer's turn; then machines to
// be measured; then by expected time, to within a tenth; then by random number. Newcomers
// are ordered by random number only, because they could advertise any number of slots,
// and can send a first byte quickly without doing any work.
func compare(a, b *CandidateState) int {
	if by := cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(a.rank(), b.rank())); by != 0 {
		return by
	}
	if a.rank() == rankProven {
		if a.measure != b.measure {
			if a.measure {
				return -1
			}
			return 1
		}
		if by := cmp.Compare(a.seconds, b.seconds); by != 0 {
			return by
		}
	}
	return cmp.Compare(a.roll, b.roll)
}

// The ranks of machines in one class.
const (
	rankTurn = iota // newcomers at their turn
	rankProven
	rankNewcomer
)

func (c *CandidateState) rank() int {
	switch {
	case c.turn:
		return rankTurn
	case c.Class == Grouped && c.Standing < Established:
		return rankNewcomer
	default:
		return rankProven
	}
}

// mix distributes a number over all 64 bits. It is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
