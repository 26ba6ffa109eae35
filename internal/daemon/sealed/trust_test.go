package sealed

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/seal"
)

// noon is the time of the tables.
var noon = time.Date(2026, 5, 3, 12, 5, 0, 0, time.UTC)

func accountOf(seed byte) *seal.Account { return seal.NewAccount([32]byte{seed}) }

func printOf(seed byte) seal.Fingerprint { return accountOf(seed).Key().Fingerprint() }

// shows is a machine of the list, ready, that shows the account key of a seed.
func shows(id, owner, class string, seed byte, former ...byte) listed {
	l := listed{SealMachine: fleet.SealMachine{
		ID: fleet.MachineID(id), Name: "of " + id, Owner: fleet.MemberID("id of " + owner), OwnerName: owner,
		Class: class, State: fleet.Ready.String(),
	}}
	if seed == 0 {
		return l
	}
	s := &seal.Statement{Made: noon, Machine: id, Account: accountOf(seed).Key(), KeyID: seal.KeyID{seed, id[0]}}
	for _, f := range former {
		s.Former = append(s.Former, seal.Succession{Former: accountOf(f).Key()}) // ParseStatement checked it
	}
	l.statement = s
	return l
}

func (l listed) in(state fleet.State) listed {
	l.State = state.String()
	return l
}

// bookOf returns a book of the member cy, who has the key 1, with the keys of others.
func bookOf(keys ...Known) *book {
	return &book{account: printOf(1), member: "cy", keys: keys, pins: map[fleet.MachineID]pin{}}
}

func known(seed byte, owner string, how How) Known {
	return Known{printOf(seed), fleet.MemberID("id of " + owner), owner, how, noon}
}

func (b *book) sealedTo(id, owner string, seed byte) *book {
	b.pins[fleet.MachineID(id)] = pin{printOf(seed), fleet.MemberID("id of " + owner), noon}
	return b
}

// Each rule of spec/sealed.md#judging decides, the first that applies.
func TestJudge(t *testing.T) {
	ada := shows("m", "ada", "shared", 2)
	with := func(l listed, change func(*listed)) listed {
		if l.statement != nil {
			s := *l.statement
			l.statement = &s
		}
		change(&l)
		return l
	}
	made := func(at time.Duration) listed {
		return with(ada, func(l *listed) { l.statement.Made = noon.Add(at) })
	}
	approved := bookOf()
	approved.approved = true
	for name, c := range map[string]struct {
		book    *book
		machine listed
		want    verdict
		how     How
	}{
		"1: no statement":                         {bookOf(), shows("m", "ada", "shared", 0), none, ""},
		"1: no statement of a known owner":        {bookOf(known(2, "ada", Confirmed)), shows("m", "ada", "shared", 0), none, ""},
		"1: a wrong signature":                    {bookOf(), with(shows("m", "ada", "shared", 0), func(l *listed) { l.invalid = true }), bad, ""},
		"1: of another machine":                   {bookOf(), with(ada, func(l *listed) { l.statement.Machine = "n" }), bad, ""},
		"1: of another machine, its own key":      {bookOf(), with(shows("m", "cy", "own", 1), func(l *listed) { l.statement.Machine = "n" }), bad, ""},
		"1: made 12 h ago":                        {bookOf(), made(-12 * time.Hour), ok, FirstSeen},
		"1: made more than 12 h ago":              {bookOf(), made(-12*time.Hour - time.Second), bad, ""},
		"1: made in more than 12 h":               {bookOf(), made(12*time.Hour + time.Second), bad, ""},
		"1: a known key, too old":                 {bookOf(known(2, "ada", Confirmed)), made(-13 * time.Hour), bad, ""},
		"2: the account's own key":                {bookOf(), shows("m", "cy", "own", 1), ok, Confirmed},
		"2: own, of a machine with another key":   {bookOf().sealedTo("m", "cy", 9), shows("m", "cy", "own", 1), ok, Confirmed},
		"2: a known key":                          {bookOf(known(2, "ada", FirstSeen)), ada, ok, FirstSeen},
		"2: a confirmed key":                      {bookOf(known(2, "ada", Confirmed)), ada, ok, Confirmed},
		"2: known, beside a confirmed one":        {bookOf(known(3, "ada", Confirmed), known(2, "ada", FirstSeen)), ada, ok, FirstSeen},
		"2: known, the machine had another":       {bookOf(known(2, "ada", FirstSeen)).sealedTo("m", "ada", 3), ada, ok, FirstSeen},
		"2: a known key of another owner":         {bookOf(known(2, "eve", Confirmed)), ada, bad, ""},
		"3: follows a confirmed key":              {bookOf(known(3, "ada", Confirmed)), shows("m", "ada", "shared", 2, 3), ok, Confirmed},
		"3: follows a key first seen":             {bookOf(known(3, "ada", FirstSeen)).sealedTo("m", "ada", 3), shows("m", "ada", "shared", 2, 3), ok, FirstSeen},
		"3: follows over several keys":            {bookOf(known(4, "ada", Confirmed)), shows("m", "ada", "shared", 2, 4, 3), ok, Confirmed},
		"3: follows my own key":                   {bookOf(), shows("m", "cy", "own", 2, 1), ok, Confirmed},
		"3: follows a key of another owner":       {bookOf(known(3, "eve", Confirmed), known(4, "ada", Confirmed)), shows("m", "ada", "shared", 2, 3), changed, ""},
		"4: sealed to under another key":          {bookOf().sealedTo("m", "ada", 3), ada, changed, ""},
		"4: the owner has a confirmed key":        {bookOf(known(3, "ada", Confirmed)), ada, changed, ""},
		"4: my own, I approved one":               {approved, shows("m", "cy", "own", 2), changed, ""},
		"4: another id has the name":              {bookOf(Known{printOf(3), "x", "ada", FirstSeen, noon}), ada, changed, ""},
		"4: another member with my name":          {bookOf(), shows("m", "cy", "shared", 2), changed, ""},
		"5: first seen":                           {bookOf(), ada, ok, FirstSeen},
		"5: my own, none was approved":            {bookOf(), shows("m", "cy", "own", 2), ok, FirstSeen},
		"5: a second key, the other first seen":   {bookOf(known(3, "ada", FirstSeen)), ada, ok, FirstSeen},
		"5: another machine of the owner changed": {bookOf().sealedTo("n", "ada", 3), ada, ok, FirstSeen},
	} {
		j := c.book.judge(&c.machine, noon)
		assert.That(t, j.verdict == c.want && j.how == c.how, name, j.verdict, j.how)
		assert.Equal(t, j.follows != "", strings.HasPrefix(name, "3") && c.want == ok, name)
	}
}

// named is the machine with another name of its owner.
func named(l listed, owner string) listed {
	l.OwnerName = owner
	return l
}

// Each row of spec/sealed.md#modes, and each refusal.
func TestPlan(t *testing.T) {
	old := func(id, owner, class string) listed { return shows(id, owner, class, 0) }
	attic := shows("attic", "ada", "shared", 2)
	const s, d, refused = "sealed", "clear", "refused"
	many := make([]listed, 12)
	for i := range many {
		many[i] = shows(string(rune('a'+i)), "ada", "shared", 2)
	}
	late := attic
	lateStatement := *attic.statement
	lateStatement.Made = noon.Add(14 * 24 * time.Hour)
	late.statement = &lateStatement
	for name, c := range map[string]struct {
		mode     Mode
		book     *book
		machines []listed
		want     string // and then the machines, or a part of the message
		code     fault.Code
	}{
		"sealed for the best class":             {Prefer, bookOf(), []listed{attic}, s + " attic", ""},
		"sealed, a lower class too":             {Prefer, bookOf(), []listed{attic, shows("g", "bob", "group", 3)}, s + " attic g", ""},
		"the best class first":                  {Prefer, bookOf(), []listed{shows("g", "bob", "group", 3), attic}, s + " attic g", ""},
		"one of the best class is enough":       {Prefer, bookOf(), []listed{old("o", "bob", "shared"), attic}, s + " attic", ""},
		"at most 8":                             {Prefer, bookOf(), many, s + " a b c d e f g h", ""},
		"an offline one is not sealed for":      {Prefer, bookOf(), []listed{attic, shows("g", "ada", "shared", 2).in(fleet.Offline)}, s + " attic", ""},
		"a returning one is":                    {Prefer, bookOf(), []listed{attic, shows("g", "ada", "shared", 2).in(fleet.Returning)}, s + " attic g", ""},
		"old, never sealed to":                  {Prefer, bookOf(), []listed{old("o", "bob", "shared"), shows("g", "ada", "group", 2)}, d, ""},
		"an old one that cannot take it":        {Prefer, bookOf(), []listed{old("o", "cy", "own").in(fleet.Paused), attic}, s + " attic", ""},
		"only paused ones":                      {Prefer, bookOf(), []listed{old("o", "cy", "own").in(fleet.Paused), attic.in(fleet.Paused)}, d, ""},
		"an old one that is offline":            {Prefer, bookOf(), []listed{old("o", "cy", "own").in(fleet.Offline), attic}, s + " attic", ""},
		"only old ones that are offline":        {Prefer, bookOf(), []listed{old("o", "cy", "own").in(fleet.Offline)}, d, ""},
		"old, its owner confirmed":              {Prefer, bookOf(known(2, "ada", Confirmed)), []listed{old("attic", "ada", "shared")}, refused + " ada was sealed to until now and the hub shows no key of of attic: if it went back to an older kith, run kith trust remove ada", fault.CascadeExhausted},
		"old, its owner first seen":             {Prefer, bookOf(known(2, "ada", FirstSeen)), []listed{old("n", "ada", "shared")}, refused + " ada was sealed to until now", fault.CascadeExhausted},
		"old, itself sealed to":                 {Prefer, bookOf().sealedTo("o", "cy", 1), []listed{old("o", "cy", "own")}, refused + " cy was sealed to until now", fault.CascadeExhausted},
		"old, of a new member with the name":    {Prefer, bookOf(known(2, "ada", FirstSeen)), []listed{func() listed { l := old("n", "ada", "shared"); l.Owner = "x"; return l }()}, refused + " ada was sealed", fault.CascadeExhausted},
		"old, of a new id with my name":         {Prefer, bookOf().sealedTo("o", "cy", 1), []listed{named(old("n", "x", "own"), "cy")}, refused + " cy was sealed to until now", fault.CascadeExhausted},
		"old, of my name, never sealed to":      {Prefer, bookOf().sealedTo("a", "ada", 2), []listed{old("n", "cy", "own")}, d, ""},
		"a name of two words":                   {Prefer, bookOf(known(3, "Ada L", Confirmed)), []listed{shows("attic", "Ada L", "shared", 2)}, refused + " Ada L's of attic has another key than before: ask Ada L for the words of kith trust, then run kith trust 'Ada L' WORDS; no call goes there until then", fault.CascadeExhausted},
		"a name that is a command":              {Prefer, bookOf(known(2, "$(x)", FirstSeen)), []listed{old("n", "$(x)", "shared")}, refused + " $(x) was sealed to until now and the hub shows no key of of n: if it went back to an older kith, run kith trust remove '$(x)'", fault.CascadeExhausted},
		"old, a lower class is pinned":          {Prefer, bookOf(known(2, "ada", FirstSeen)), []listed{old("o", "cy", "own"), attic}, d + ", reaches own", ""},
		"old, the lowest class is pinned":       {Prefer, bookOf(known(4, "eve", Confirmed)), []listed{old("o", "bob", "shared"), shows("den", "eve", "group", 4)}, d + ", reaches shared", ""},
		"old, a lower class is not pinned":      {Prefer, bookOf(), []listed{old("o", "cy", "own"), attic}, d, ""},
		"changed":                               {Prefer, bookOf(known(3, "ada", Confirmed)), []listed{attic}, refused + " ada's of attic has another key than before: ask ada for the words of kith trust, then run kith trust ada WORDS; no call goes there until then", fault.CascadeExhausted},
		"my own, not approved":                  {Prefer, func() *book { b := bookOf(); b.approved = true; return b }(), []listed{shows("tower", "cy", "own", 2)}, refused + " cy's of tower does not have the account key of your other machines: run kith trust on it", fault.CascadeExhausted},
		"my own, from before a reset":           {Prefer, func() *book { b := bookOf(); b.revoked = []seal.Fingerprint{printOf(2)}; return b }(), []listed{shows("tower", "cy", "own", 2)}, refused + " cy's of tower has the account key from before kith trust reset: run kith trust reset on it, then kith trust for its words, then kith trust machine WORDS here, or revoke it on the site if it was stolen", fault.CascadeExhausted},
		"changed, a lower class is ok":          {Prefer, bookOf(known(3, "ada", Confirmed)), []listed{attic, shows("g", "bob", "group", 4)}, refused + " ada's of attic has another key", fault.CascadeExhausted},
		"changed, beside an ok one":             {Prefer, bookOf(known(3, "ada", Confirmed)), []listed{attic, shows("b", "bob", "shared", 4)}, s + " b", ""},
		"bad beside old":                        {Prefer, bookOf(known(2, "eve", FirstSeen)), []listed{attic, old("o", "bob", "shared")}, refused + ` nothing that serves "llama3" can be sealed to: ada's of attic has a key that is not valid, bob's of o has no key (its kith is too old); run kith trust`, fault.CascadeExhausted},
		"the clock":                             {Prefer, bookOf(), []listed{late}, refused + " the keys of ada's of attic are not valid by this computer's clock (3 May 12:05; the hub says 17 May 12:05): set the clock", fault.CascadeExhausted},
		"no machine":                            {Prefer, bookOf(), nil, refused + " the hub lists no machine", fault.CascadeExhausted},
		"require: confirmed":                    {Require, bookOf(known(2, "ada", Confirmed)), []listed{attic}, s + " attic", ""},
		"require: my own":                       {Require, bookOf(), []listed{shows("m", "cy", "own", 1)}, s + " m", ""},
		"require: of any class":                 {Require, bookOf(known(2, "ada", Confirmed)), []listed{old("o", "cy", "own"), attic}, s + " attic", ""},
		"require: not those first seen":         {Require, bookOf(known(2, "ada", Confirmed)), []listed{attic, shows("b", "bob", "shared", 4)}, s + " attic", ""},
		"require: nothing compared":             {Require, bookOf(), []listed{old("desk", "bob", "shared"), shows("den", "eve", "group", 4)}, refused + ` nothing that serves "llama3" can be sealed to: bob's of desk has no key (its kith is too old), eve's of den has one that you have not compared; ask eve for the words of kith trust, then run kith trust eve WORDS, or set [privacy] sealed = "prefer"`, fault.CascadeExhausted},
		"require: my own, not compared":         {Require, bookOf(), []listed{shows("tower", "cy", "own", 2), shows("den", "eve", "group", 4)}, refused + ` nothing that serves "llama3" can be sealed to: cy's of tower has a key that you have not compared, eve's of den has one that you have not compared; run the line that kith trust prints here on of tower, or the one that it prints there here, or set [privacy] sealed = "prefer"`, fault.CascadeExhausted},
		"require: the confirmed one is away":    {Require, bookOf(known(2, "ada", Confirmed)), []listed{old("desk", "bob", "shared"), old("attic", "ada", "shared").in(fleet.Offline)}, refused + " ada's of attic is offline", fault.MachineOffline},
		"require: the confirmed one reconnects": {Require, bookOf(known(2, "ada", Confirmed)), []listed{old("attic", "ada", "shared").in(fleet.Returning)}, refused + " ada's of attic is reconnecting", fault.CapacityFull},
	} {
		all, _ := (&Keyring{account: accountOf(1), own: accountKeys{login: login{Member: "cy"}, Approved: c.book.approved, Revoked: c.book.revoked}, trust: trusted{Keys: c.book.keys, Machines: c.book.pins}, seen: map[seal.Fingerprint]Known{}}).judge(c.machines, noon)
		p := makePlan(question{c.mode, "llama3", fleet.Chat, noon, noon.Add(14 * 24 * time.Hour)}, all)
		got, code := refused, fault.Code("")
		switch {
		case p.clear:
			if got = d; p.reach != fleet.Everything {
				got += ", reaches " + p.reach.String()
			}
		case p.refusal != nil:
			got, code = refused+" "+p.refusal.Message, p.refusal.Code
			assert.That(t, p.refusal.NoRetry == (code == fault.CascadeExhausted), name, "retry")
		default:
			got = s
			for _, j := range p.to {
				got += " " + string(j.ID)
			}
			for _, l := range c.machines {
				to := slices.ContainsFunc(p.to, func(j judgement) bool { return j.ID == l.ID })
				assert.That(t, !to || !slices.Contains(p.declined, l.ID), name, l.ID)
			}
		}
		assert.That(t, strings.HasPrefix(got, c.want) && code == c.code && (c.want != d && c.want != s || got == c.want), name, got, code)
	}
}

// Whatever a hub lists, no call to a member that was sealed to before is sent in clear, none
// is sealed for a key in place of a confirmed one, and none for a key from before a reset.
func TestNoHistoryUnseals(t *testing.T) {
	classes := []string{"own", "shared", "group"}
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 1))
		k := &Keyring{home: t.TempDir(), account: accountOf(1), own: accountKeys{login: login{Member: "cy"}},
			trust: trusted{Machines: map[fleet.MachineID]pin{}}, seen: map[seal.Fingerprint]Known{}}
		good := map[fleet.MemberID][]seal.Fingerprint{} // a confirmed key, and those that it or the own key leads to
		sealedTo, confirmed := map[fleet.MemberID]bool{}, map[fleet.MemberID]bool{}
		own, sealedToOwn, revoked := printOf(1), false, map[seal.Fingerprint]bool{}
		for range 40 {
			var machines []listed
			for i := range 1 + random.IntN(5) {
				owner := fmt.Sprint("member", random.IntN(4))
				if random.IntN(8) == 0 {
					owner = "cy"
				}
				var former []byte
				for range random.IntN(8) / 6 {
					former = append(former, byte(1+random.IntN(14)))
				}
				l := shows(fmt.Sprint(i, random.IntN(6)), owner, classes[random.IntN(3)], byte(random.IntN(8)), former...)
				if random.IntN(8) == 0 {
					l.Owner = fleet.MemberID(fmt.Sprint("id of member", random.IntN(4)))
				}
				machines = append(machines, l.in(fleet.State(random.IntN(7))))
			}
			if random.IntN(10) == 0 {
				owner := random.IntN(4)
				f := printOf(byte(10 + owner))
				id := fleet.MemberID(fmt.Sprint("id of member", owner))
				before := k.Keys()
				if k.Confirm(id, fmt.Sprint("member", owner), f) == nil { // else the hub listed an own machine as a member's
					for _, key := range before {
						if key.Name == fmt.Sprint("member", owner) { // another member had that name
							delete(sealedTo, key.Owner)
						}
					}
					good[id] = append(good[id], f)
					sealedTo[id], confirmed[id] = true, true
				}
			}
			if random.IntN(60) == 0 {
				revoked[own] = true
				for _, key := range k.Keys() {
					revoked[key.Fingerprint] = revoked[key.Fingerprint] || key.Name == "cy"
				}
				assert.OK(t, k.Reset())
				own = k.Fingerprint()
			}
			leads := func(l listed) bool { // a good key to that of the machine
				return slices.ContainsFunc(l.statement.Former, func(s seal.Succession) bool {
					f := s.Former.Fingerprint()
					return f == own || slices.Contains(good[l.Owner], f)
				})
			}
			for range len(machines) { // in whatever order they are listed
				for _, l := range machines {
					if l.statement != nil && leads(l) {
						good[l.Owner] = append(good[l.Owner], l.statement.Account.Fingerprint())
					}
				}
			}
			mode := Prefer
			if random.IntN(3) == 0 {
				mode = Require
			}
			p, err := k.plan(question{mode, "m", fleet.Chat, noon, noon}, machines)
			assert.OK(t, err)
			outcomes := 0
			for _, is := range []bool{p.clear, p.refusal != nil, len(p.to) > 0} {
				if is {
					outcomes++
				}
			}
			assert.Require(t, outcomes == 1, "not one outcome", seed)
			assert.Require(t, !p.clear || mode == Prefer, "in clear under require", seed)
			if p.clear {
				all, _ := k.judge(machines, noon)
				class, online := bestClass(all)
				for _, l := range machines {
					best := !online || l.isOnline() && l.class() == class
					assert.Require(t, !best || l.statement == nil, "seed", seed, "sends in clear what", l.ID, "could open")
					within := l.isOnline() && l.class() >= class && l.class() <= fleet.Grouped-fleet.Class(p.reach)
					was := sealedTo[l.Owner] || sealedToOwn && l.OwnerName == "cy"
					assert.Require(t, !best && !within || !was, "seed", seed, "sends in clear for", l.Owner)
				}
			}
			for _, j := range p.to {
				f := j.statement.Account.Fingerprint()
				if confirmed[j.Owner] && f != own {
					assert.Require(t, slices.Contains(good[j.Owner], f), "seed", seed, "a key in place of a confirmed one")
				}
				assert.Require(t, !revoked[f], "seed", seed, "a key from before a reset")
				if f == own { // whoever's the hub calls that machine
					sealedToOwn = true
				} else {
					sealedTo[j.Owner] = true
				}
			}
			assert.OK(t, k.sealed(p.to, noon))
		}
	}
}
