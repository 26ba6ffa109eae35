package fleet

import (
	"fmt"
	"testing"
	"time"
)

// region is the design size: 100,000 machines of as many owners, each with
// five models; every hundredth has "popular". The caller reaches 200 of those.
func region(b *testing.B, reach func(s *Snapshot, owners []MemberID) *Snapshot) *Snapshot {
	b.Helper()
	const machines, popular, mine = 100_000, 1_000, 200
	s := NewSnapshot()
	var owners []MemberID
	for i := range machines {
		owner := MemberID(fmt.Sprintf("mem_%08d-0000-7000-8000-%012d", i%977, i))
		m := &Machine{
			ID: MachineID(fmt.Sprintf("mch_%08d-0000-7000-8000-%012d", i%991, i)), Owner: owner,
			Online: true, Slots: 4,
		}
		for j := range 5 {
			m.Offers = append(m.Offers, Offer{ID: ModelID(fmt.Sprintf("org/model-%d-%d", j, i%1000)), Families: Families(Chat), Slots: 2})
		}
		if i%(machines/popular) == 0 {
			m.Offers = append(m.Offers, Offer{ID: "popular", Families: Families(Chat), Slots: 2})
			if len(owners) < mine {
				owners = append(owners, owner)
			}
		}
		s = s.WithMachine(m)
	}
	return reach(s, owners)
}

func byShares(s *Snapshot, owners []MemberID) *Snapshot {
	var shares []*Share
	for i, owner := range owners {
		shares = append(shares, &Share{ID: ShareID(fmt.Sprint("shr_", i)), Owner: owner, Member: "caller"})
	}
	return s.WithShares("caller", shares)
}

func byGroup(s *Snapshot, owners []MemberID) *Snapshot {
	return s.WithGroup(&Group{ID: "grp_1", Open: true, Members: append([]MemberID{"caller"}, owners...)})
}

// byOpenGroup is a group of 50,000, with all 1,000 of the popular model.
func byOpenGroup(s *Snapshot, _ []MemberID) *Snapshot {
	members := []MemberID{"caller"}
	n := 0
	for m := range s.Machines() {
		if n++; n%2 == 1 {
			members = append(members, m.Owner)
		}
	}
	return s.WithGroup(&Group{ID: "grp_open", Open: true, Members: members})
}

// conversation is a call that several machines may have in their caches.
var conversation = Query{Caller: "caller", Model: "popular", Work: Work{Prompt: 20_000, Output: 250, Sent: []Sent{
	{Machine: 1, Tokens: 19_000}, {Machine: 2, Tokens: 17_000}, {Machine: 3, Tokens: 15_000}, {Machine: 4, Tokens: 4_000},
	{Machine: 5, Tokens: 4_000}, {Machine: 6, Tokens: 4_000}, {Machine: 7, Tokens: 4_000}, {Machine: 8, Tokens: 4_000},
}}}

// measuredShares is byShares, where the speeds of the machines are known.
func measuredShares(s *Snapshot, owners []MemberID) *Snapshot {
	i := 0
	for m := range s.Machines() {
		if o := m.Offer("popular"); o != nil {
			i++
			o.Load.Measure(Circle{}, Measurement{At: time.Now(), Uncached: 1000, FirstToken: time.Duration(1+i*7919%100) * time.Second / 10, Output: 100, Decoding: time.Second, Running: 1})
		}
	}
	return byShares(s, owners)
}

func BenchmarkRoute100k(b *testing.B) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name  string
		reach func(*Snapshot, []MemberID) *Snapshot
		ask   Query
		want  Verdict
	}{
		{"200 by shares", byShares, Query{Caller: "caller", Model: "popular"}, Try},
		{"200 by shares, measured", measuredShares, conversation, Try},
		{"200 by a group", byGroup, Query{Caller: "caller", Model: "popular"}, Try},
		{"1000 of an open group of 50000", byOpenGroup, Query{Caller: "caller", Model: "popular"}, Try},
		{"refused, of 200 by shares", byShares, Query{Caller: "caller", Model: "missing"}, Refuse},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := region(b, c.reach)
			c.ask.Now = now
			b.ReportAllocs()
			for b.Loop() {
				c.ask.Draw++
				if d := Route(s, c.ask); d.Verdict != c.want {
					b.Fatal(d.Verdict, d.Tally)
				}
			}
		})
	}
}

func BenchmarkStateChange100k(b *testing.B) {
	s := byOpenGroup(region(b, byShares), nil)
	var machines []*Machine
	for m := range s.Machines() {
		machines = append(machines, m)
	}
	for _, c := range []struct {
		name   string
		change func(*Machine)
	}{
		{"pause", func(m *Machine) { m.Paused = !m.Paused }},
		{"offline and back", func(m *Machine) { m.Online = !m.Online }},
		{"another model", func(m *Machine) {
			offers := append([]Offer(nil), m.Offers...)
			offers[0] = Offer{ID: offers[0].ID + "x", Families: Families(Chat)}
			m.Offers = offers
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			s, i := s, 0
			for b.Loop() {
				i++
				m := *s.Machine(machines[i*7919%len(machines)].ID)
				c.change(&m)
				s = s.WithMachine(&m)
			}
		})
	}
}

func BenchmarkJoinOpenGroup(b *testing.B) {
	s := byOpenGroup(region(b, byShares), nil)
	c, _ := s.groups.Get("grp_open")
	members := c.ids
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s = s.WithGroup(&Group{ID: "grp_open", Members: append([]MemberID{MemberID(fmt.Sprint("new", i))}, members...)})
	}
}
