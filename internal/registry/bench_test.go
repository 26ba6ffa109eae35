package registry

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// BenchmarkStateChange measures publishing one machine's new advertisement among 100,000
// machines.
func BenchmarkStateChange(b *testing.B) {
	const machines = 100_000
	r := New(Config{Node: "hub", Region: "home", Facts: newFacts(), Log: slog.New(slog.DiscardHandler)})
	r.write(func(s *fleet.Snapshot) (*fleet.Snapshot, []fleet.MachineID) {
		for i := range machines {
			id := fleet.MachineID(fmt.Sprintf("m%06d", i))
			m, _, err := accept(offering("llama", fmt.Sprintf("own-%d", i%1000)))
			if err != nil {
				b.Fatal(err)
			}
			e := &entry{stored: account.Machine{ID: string(id), OwnerID: fmt.Sprintf("p%05d", i/4)}}
			e.name(m)
			r.entries[id] = e
			s = s.WithMachine(m)
		}
		return s, nil
	})
	line := new(tunnel.Client)
	const id = "m050000"
	r.attach(account.Machine{ID: id, OwnerID: "p12500", Generation: 1}, line)
	for name, change := range map[string]func(*tunnel.Advertisement, int){
		"paused": func(ad *tunnel.Advertisement, i int) { ad.Paused = i%2 == 0 },
		"models": func(ad *tunnel.Advertisement, i int) { ad.Models[1].ID = fmt.Sprintf("own-%d", i%2) },
	} {
		b.Run(name, func(b *testing.B) {
			ad := offering("llama", "own-0")
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				change(&ad, i)
				m, _, err := accept(ad)
				if err != nil {
					b.Fatal(err)
				}
				if !r.advertise(id, line, m, ad) {
					b.Fatal("not the machine's line")
				}
			}
		})
	}
	b.Run("slots", func(b *testing.B) {
		ad := offering("llama", "own-0")
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			ad.Local = i % 2
			r.advertise(id, line, nil, ad)
		}
	})
}
