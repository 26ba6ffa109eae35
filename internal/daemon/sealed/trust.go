package sealed

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/seal"
)

// Mode is whether calls to other machines are sealed (spec/sealed.md#modes).
type Mode string

// The modes. The empty Mode is Off.
const (
	Off     Mode = "off"
	Prefer  Mode = "prefer"
	Require Mode = "require"
)

// IsOn reports whether calls are sealed, and opened.
func (m Mode) IsOn() bool { return m == Prefer || m == Require }

// How is how an account key became known.
type How string

// A confirmed key was compared by people: in an invite's link, or as words.
const (
	FirstSeen How = "first seen"
	Confirmed How = "confirmed"
)

// Known is an account key that calls may be sealed for.
type Known struct {
	Fingerprint seal.Fingerprint `json:"fingerprint"`
	Owner       fleet.MemberID   `json:"owner"`
	Name        string           `json:"name"` // of the owner
	How         How              `json:"how"`
	Since       time.Time        `json:"since"`
}

// pin is the account key that a machine was last sealed to.
type pin struct {
	Fingerprint seal.Fingerprint `json:"fingerprint"`
	Owner       fleet.MemberID   `json:"owner"`
	Last        time.Time        `json:"last"` // to the day
}

// book is what a daemon knows of keys.
type book struct {
	account  seal.Fingerprint   // of this daemon's account key
	approved bool               // the account key is on several machines
	member   string             // this daemon's owner
	former   []seal.Fingerprint // account keys of this daemon before that lead to account
	revoked  []seal.Fingerprint // and keys before a Reset
	keys     []Known
	pins     map[fleet.MachineID]pin
}

// known returns the entry of a key, or nil.
func (b *book) known(f seal.Fingerprint) *Known {
	for i := range b.keys {
		if b.keys[i].Fingerprint == f {
			return &b.keys[i]
		}
	}
	return nil
}

// isOwn reports whether a key is this daemon's account key, or was it before.
func (b *book) isOwn(f seal.Fingerprint) bool {
	return f == b.account || slices.Contains(b.former, f) || slices.Contains(b.revoked, f)
}

// pinned reports whether calls for the machine must not be sent without a seal: it, its
// owner or the owner's name was sealed to before.
func (b *book) pinned(m *fleet.SealMachine) bool {
	if _, ok := b.pins[m.ID]; ok {
		return true
	}
	for _, p := range b.pins {
		if p.Owner == m.Owner || m.OwnerName == b.member && b.isOwn(p.Fingerprint) {
			return true
		}
	}
	return slices.ContainsFunc(b.keys, func(k Known) bool { return k.Owner == m.Owner || k.Name == m.OwnerName })
}

// listed is a machine of the hub's list, with its statement.
type listed struct {
	fleet.SealMachine
	statement *seal.Statement // nil: none, or invalid
	invalid   bool            // there is one that cannot be read, or whose signature is wrong
}

// verdict is what a daemon thinks of a machine's key.
type verdict uint8

const (
	none    verdict = iota // it has no key
	silent                 // it has one, and did not show it in time
	bad                    // what it shows is not a key of it
	changed                // another key than was expected
	ok                     // calls may be sealed for it
)

// judgement is the verdict on one machine.
type judgement struct {
	*listed
	verdict verdict
	how     How // of an ok key
	// follows is the name of the member whose key leads to this one, which is not in the book;
	// else empty.
	follows string
	revoked bool // a changed key is the account's from before a reset
	clock   bool // a bad statement is from another time
	pinned  bool // book.pinned
}

// maxSkew is the largest difference between the time of a statement and this computer's.
const maxSkew = 12 * time.Hour

// judge decides whether calls may be sealed for a machine. The first rule of
// spec/sealed.md#judging that applies decides.
func (b *book) judge(m *listed, now time.Time) judgement {
	j := judgement{listed: m, pinned: b.pinned(&m.SealMachine)}
	s := m.statement
	switch { // rule 1
	case s == nil && !m.invalid:
		if len(m.Keys) > 0 {
			j.verdict = silent
		}
		return j
	case m.invalid, s.Machine != string(m.ID):
		j.verdict = bad
		return j
	case s.Made.Sub(now).Abs() > maxSkew:
		j.verdict, j.clock = bad, true
		return j
	}
	f := s.Account.Fingerprint()
	known := b.known(f)
	switch { // rule 2
	case f == b.account:
		j.verdict, j.how = ok, Confirmed
		return j
	case known != nil && known.Owner != m.Owner:
		j.verdict = bad
		return j
	case known != nil:
		j.verdict, j.how = ok, known.How
		return j
	case slices.Contains(b.revoked, f):
		j.verdict, j.revoked = changed, true
		return j
	}
	for _, former := range slices.Backward(s.Former) { // rule 3
		f := former.Former.Fingerprint()
		if f == b.account {
			j.verdict, j.how, j.follows = ok, Confirmed, b.member
			return j
		}
		if k := b.known(f); k != nil && k.Owner == m.Owner {
			j.verdict, j.how, j.follows = ok, k.How, k.Name
			return j
		}
	}
	if b.differs(m, f) { // rule 4
		j.verdict = changed
		return j
	}
	j.verdict, j.how = ok, FirstSeen // rule 5
	return j
}

// differs reports whether something else than the unknown key f was expected of the
// machine.
func (b *book) differs(m *listed, f seal.Fingerprint) bool {
	own := m.Class == fleet.Own.String()
	if p, sealed := b.pins[m.ID]; sealed && p.Fingerprint != f || own && b.approved || !own && m.OwnerName == b.member {
		return true
	}
	return slices.ContainsFunc(b.keys, func(k Known) bool {
		return k.Owner == m.Owner && k.How == Confirmed || k.Owner != m.Owner && k.Name == m.OwnerName
	})
}

// plan is the way of a call.
type plan struct {
	to       []judgement       // it is sealed for these
	declined []fleet.MachineID // it must not be sealed for these
	clear    bool              // it is sent without a seal
	reach    fleet.KeyReach    // and reaches at most this
	noList   bool              // because the hub has no sealed calls
	refusal  *fault.Fault      // otherwise
}

// question is what a plan is made for.
type question struct {
	mode     Mode
	model    fleet.ModelID
	family   fleet.Family
	now, hub time.Time // by this computer's clock, and the hub's
}

// makePlan decides the way of a call among the machines, in the order of the list
// (spec/sealed.md#modes).
func makePlan(q question, all []judgement) (p plan) {
	class, online := bestClass(all)
	inClass := func(j *judgement) bool { return !online || j.isOnline() && j.class() == class }
	best, open := false, true // one of the best class is ok; all of it may be sent the call unsealed
	var rest []judgement      // ok, and of other classes
	for i := range all {
		j := &all[i]
		switch within := inClass(j); {
		case j.verdict != ok || q.mode == Require && j.how != Confirmed:
			p.declined = append(p.declined, j.ID)
		case j.State == fleet.Offline.String():
		case within:
			best, p.to = true, append(p.to, *j)
		default:
			rest = append(rest, *j)
		}
		open = open && (!inClass(j) || j.verdict == none && !j.pinned)
	}
	p.to = append(p.to, rest...)
	p.to = p.to[:min(len(p.to), seal.MaxRecipients)]
	switch {
	case len(p.to) > 0 && (best || q.mode == Require):
		return p
	case q.mode == Prefer && open && len(all) > 0:
		return plan{clear: true, reach: clearReach(all, class)}
	}
	return plan{refusal: q.refuse(all, inClass)}
}

// clearReach returns what a call in clear may reach whose best class is best: no machine of
// another class that is pinned.
func clearReach(all []judgement, best fleet.Class) (reach fleet.KeyReach) {
	for _, j := range all {
		switch class := j.class(); {
		case !j.pinned || class <= best:
		case class == fleet.Shared:
			return fleet.OwnOnly
		default:
			reach = fleet.OwnAndShared
		}
	}
	return reach
}

// class returns the class of the machine. One that this kith does not know is the last.
func (l *listed) class() fleet.Class {
	for c := fleet.Own; c < fleet.Grouped; c++ {
		if l.Class == c.String() {
			return c
		}
	}
	return fleet.Grouped
}

func (l *listed) isOnline() bool {
	return l.State != fleet.Offline.String() && l.State != fleet.Returning.String()
}

// takes reports whether the machine would take the call now, or after other calls.
func (l *listed) takes() bool {
	return l.State == fleet.Ready.String() || l.State == fleet.Busy.String()
}

// bestClass returns the best class of the machines that take calls, else of those that are
// online.
func bestClass(all []judgement) (best fleet.Class, online bool) {
	takes := slices.ContainsFunc(all, func(j judgement) bool { return j.takes() })
	best = fleet.Grouped
	for _, j := range all {
		if j.isOnline() && (j.takes() || !takes) {
			best, online = min(best, j.class()), true
		}
	}
	return best, online
}

// refuse returns the fault if nothing of the call may be sent.
func (q *question) refuse(all []judgement, inClass func(*judgement) bool) *fault.Fault {
	var why []string
	var first [ok + 1]*judgement // the first of each verdict in the best class; at none a pinned one
	var away *judgement          // an offline machine that would do
	for i := range all {
		j := &all[i]
		would := j.verdict == ok && (q.mode == Prefer || j.how == Confirmed) || j.verdict == silent || j.verdict == none && j.pinned
		switch {
		case !j.isOnline():
			if would && (away == nil || j.State == fleet.Returning.String()) {
				away = j
			}
			continue
		case q.mode == Prefer && !inClass(j):
			continue
		}
		if first[j.verdict] == nil && (j.verdict != none || j.pinned) {
			first[j.verdict] = j
		}
		why = append(why, j.reason(len(why) == 0))
	}
	refuse := func(format string, args ...any) *fault.Fault {
		return fault.New(fault.CascadeExhausted, format, args...).WithNoRetry()
	}
	switch j := first[changed]; {
	case j == nil:
	case j.class() == fleet.Own && j.revoked:
		return refuse("%s has the account key from before kith trust reset: run kith trust reset on it, then kith trust for "+
			"its words, then kith trust machine WORDS here, or revoke it on the site if it was stolen; no call goes there "+
			"until then", j.title())
	case j.class() == fleet.Own:
		return refuse("%s does not have the account key of your other machines: run kith trust on it for its words, "+
			"then run kith trust machine WORDS here; no call goes there until then", j.title())
	default:
		return refuse("%s has another key than before: ask %s for the words of kith trust, then run "+
			"kith trust %s WORDS; no call goes there until then", j.title(), j.OwnerName, argument(j.OwnerName))
	}
	if j := first[none]; j != nil {
		return refuse("%s was sealed to until now and the hub shows no key of %s: if it went back to an older kith, "+
			"run kith trust remove %s", j.OwnerName, j.Name, argument(j.OwnerName))
	}
	if j := first[bad]; j != nil && j.clock {
		return q.refuseClock(j, refuse)
	}
	switch {
	case first[silent] != nil:
		return fault.New(codeForNow(q.family), "%s does not show its key, and nothing else that serves %q can be sealed to; "+
			"try again", first[silent].title(), q.model)
	case away != nil && away.State == fleet.Returning.String() && q.family == fleet.Chat:
		return fault.New(codeForNow(q.family), "%s is reconnecting, and nothing else that serves %q can be sealed to; "+
			"try again", away.title(), q.model)
	case away != nil:
		return fault.New(fault.MachineOffline, "%s is offline, and nothing else that serves %q can be sealed to",
			away.title(), q.model)
	case len(why) == 0:
		return refuse("the hub lists no machine that serves %q and can be sealed to; run kith trust", q.model)
	}
	next := "run kith trust"
	if j := first[ok]; j != nil && j.class() == fleet.Own {
		next = "run the line that kith trust prints here on " + j.Name + ", or the one that it prints there here"
	} else if j != nil {
		next = fmt.Sprintf("ask %s for the words of kith trust, then run kith trust %s WORDS", j.OwnerName, argument(j.OwnerName))
	}
	if q.mode == Require {
		next += `, or set [privacy] sealed = "prefer"`
	}
	return refuse("nothing that serves %q can be sealed to: %s; %s", q.model, strings.Join(why, ", "), next)
}

// argument returns a name of the hub's list as one argument of a command that people copy. No
// member's name has a quote.
func argument(name string) string {
	plain := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_.", r) }
	if name != "" && !strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }) {
		return name
	}
	return "'" + strings.ReplaceAll(name, "'", "") + "'"
}

// refuseClock returns the fault of a statement from another time.
func (q *question) refuseClock(j *judgement, refuse func(string, ...any) *fault.Fault) *fault.Fault {
	const layout = "2 Jan 15:04"
	if q.hub.Sub(q.now).Abs() <= maxSkew { // the two agree
		return refuse("the keys of %s are of %s by its clock, and it is %s: ask %s to set the clock of %s",
			j.title(), j.statement.Made.In(q.now.Location()).Format(layout), q.now.Format(layout), j.OwnerName, j.Name)
	}
	return refuse("the keys of %s are not valid by this computer's clock (%s; the hub says %s): set the clock",
		j.title(), q.now.Format(layout), q.hub.In(q.now.Location()).Format(layout))
}

// title names the machine to people.
func (l *listed) title() string { return fmt.Sprintf("%s's %s", l.OwnerName, l.Name) }

// reason returns why the call cannot be sealed for the machine. first reports that no
// other machine was named before it.
func (j *judgement) reason(first bool) string {
	switch {
	case j.verdict == silent:
		return j.title() + " does not show its key"
	case j.verdict == none:
		return j.title() + " has no key (its kith is too old)"
	case j.verdict == bad:
		return j.title() + " has a key that is not valid"
	case j.verdict == changed:
		return j.title() + " has another key than before"
	case first:
		return j.title() + " has a key that you have not compared"
	default:
		return j.title() + " has one that you have not compared"
	}
}
