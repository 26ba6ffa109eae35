package registry

import (
	"net/http"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

var (
	modelFacts   = fleet.ModelFacts{Architecture: "qwen3", Parameters: 8_190_735_360, Quantization: "Q4_K_M", Size: 5_225_388_164}
	machineFacts = &fleet.MachineFacts{
		System: "Debian GNU/Linux 12 (bookworm)", Arch: "amd64", CPU: "AMD Ryzen 9", Cores: 32, Memory: 64 << 30,
		GPUs: []fleet.GPU{{Name: "NVIDIA L4", Memory: 23 << 30}}, Engines: []fleet.EngineVersion{{Kind: "ollama", Version: "0.32.9"}}, Kith: "1.2.0",
	}
)

// What a machine advertises of itself and its models is in the snapshot while it is
// connected, while it is offline, and after the hub's restart. A change of it is published.
func TestFactsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts("m")
		n := newNode(t, f)
		ad := offering("llama")
		ad.Models[0].ModelFacts, ad.Facts = modelFacts, machineFacts
		d := n.connect(t, "m", ad)
		check := func(r *Registry, online bool, gpus int) {
			t.Helper()
			time.Sleep(saveEvery + time.Second)
			synctest.Wait()
			m := r.Snapshot().Machine("m")
			assert.That(t, m.Online == online && m.Facts.CPU == "AMD Ryzen 9" && len(m.Facts.GPUs) == gpus && m.Offers[0].Facts == modelFacts, m)
		}
		check(n.Registry, true, 1)
		d.change(func(ad *tunnel.Advertisement) {
			more := *ad.Facts
			more.GPUs = slices.Repeat(more.GPUs, 2)
			ad.Facts = &more
		})
		check(n.Registry, true, 2)
		d.stop()
		check(n.Registry, false, 2)
		check(newNode(t, f).Registry, false, 2)
	})
}

// Another hub node has the same facts, whether the owner shows them is its own knowledge of
// the store, and hostile values do not pass its end either.
func TestFactsOfAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts("m", "old")
		shown := f.kept["m"]
		shown.ShowsClass = true
		f.kept["m"] = shown
		n := newNode(t, f)
		ad := offering("llama")
		ad.Models[0].ModelFacts, ad.Facts = modelFacts, machineFacts
		ad.Models = append(ad.Models, tunnel.Model{ID: "odd", Families: []string{"chat"}, ModelFacts: fleet.ModelFacts{Architecture: "\x1b[2J", Size: -1}})
		assert.OK(t, n.ApplyState(t.Context(), "b", &NodeState{
			Machines: []Announced{{ID: "m", Generation: 1, Advertisement: ad}, {ID: "old", Generation: 1, Advertisement: offering("llama")}},
			Way:      func(*Announced) http.RoundTripper { return nil },
		}))
		m, old := n.Snapshot().Machine("m"), n.Snapshot().Machine("old")
		assert.That(t, m.Remote && m.ShowsClass && reflect.DeepEqual(m.Facts, machineFacts), m)
		assert.That(t, m.Offers[0].Facts == modelFacts && m.Offers[1].Facts == fleet.ModelFacts{}, m.Offers)
		assert.That(t, old.Facts == nil && !old.ShowsClass && old.Offers[0].Facts == fleet.ModelFacts{}, "an older daemon", old)
	})
}

// A stored advertisement of an older hub has no facts.
func TestOldStoredOffers(t *testing.T) {
	m := assert.Value(restore(account.Machine{Offers: []byte(`{"slots":1,"models":[{"id":"llama","families":["chat"]}]}`)}))(t)
	assert.That(t, m.Facts == nil && m.Offers[0].Facts == fleet.ModelFacts{}, m)
}
