package registry

import (
	"context"
	"encoding/json/v2"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// manyFacts is a store that creates its machines when they are read, so that their memory
// belongs to the reader.
type manyFacts struct {
	*facts
	machines int
}

func (f manyFacts) stored(i int) account.Machine {
	text, _ := json.Marshal(f.offering(i))
	return account.Machine{
		ID: fmt.Sprintf("mch_01a20459-ecc3-72c1-865d-%012d", i), OwnerID: fmt.Sprintf("mem_01a20459-e2be-716f-a526-%012d", i/4),
		OwnerName: fmt.Sprintf("owner%d", i/4), Name: fmt.Sprintf("box%d", i),
		Offers: text, LastSeen: time.Now(),
	}
}

func (f manyFacts) offering(i int) tunnel.Advertisement {
	ad := offering("llama", fmt.Sprintf("own-%d", i%1000))
	ad.Name, ad.Version = fmt.Sprintf("box%d", i), tunnel.Version
	return ad
}

func (f manyFacts) ActiveMachines(context.Context, time.Time) ([]account.Machine, error) {
	out := make([]account.Machine, f.machines)
	for i := range out {
		out[i] = f.stored(i)
	}
	return out, nil
}

// BenchmarkAnnounced measures a node that starts beside two others with 50,000 machines
// each. It reads the stored records of these machines and the nodes' complete states.
// Each machine has two models, one of them unique. MB is the memory that the registry
// uses afterwards.
func BenchmarkAnnounced(b *testing.B) {
	const machines = 100_000
	store := manyFacts{newFacts(), machines}
	var states [2][]byte
	for home := range states {
		var st NodeState
		for i := home; i < machines; i += len(states) {
			st.Machines = append(st.Machines, Announced{ID: fleet.MachineID(store.stored(i).ID), Generation: 1, Advertisement: store.offering(i), Load: MachineLoad{Models: make([]int, 2)}})
		}
		text, err := json.Marshal(st.Machines)
		if err != nil {
			b.Fatal(err)
		}
		states[home] = text
	}
	var took time.Duration
	var held uint64
	for b.Loop() {
		before := inUse()
		began := time.Now()
		r := New(Config{Node: "a", Region: "eu", Facts: store, Log: slog.New(slog.DiscardHandler)})
		if err := r.readAll(b.Context(), time.Time{}); err != nil {
			b.Fatal(err)
		}
		for home, text := range states {
			st := NodeState{Complete: true, Way: func(*Announced) http.RoundTripper { return http.DefaultTransport }}
			if err := json.Unmarshal(text, &st.Machines); err != nil {
				b.Fatal(err)
			}
			if err := r.ApplyState(b.Context(), fmt.Sprint("peer", home), &st); err != nil {
				b.Fatal(err)
			}
		}
		took += time.Since(began)
		held += inUse() - before
		n := 0
		for m := range r.Snapshot().Machines() {
			if m.Online {
				n++
			}
		}
		if n != machines {
			b.Fatalf("%d machines are connected", n)
		}
		runtime.KeepAlive(r)
	}
	b.ReportMetric(float64(held)/float64(b.N)/1e6, "MB")
	b.ReportMetric(took.Seconds()/float64(b.N), "s")
}

// inUse returns the bytes on the heap after a collection.
func inUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
