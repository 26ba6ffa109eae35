package registry

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// What one machine may say of itself; what goes beyond is left out, so that an
// honest daemon of another version stays connected.
const (
	maxModels       = 256
	maxSlots        = 1024
	maxGroups       = 64
	maxCapabilities = 32
	maxWord         = 64 // bytes of a capability's or an engine's name
)

// read is what an advertisement says, as a fleet.Machine without a name. Only
// hours that cannot be read make it useless: nobody may be let in on a guess.
func read(ad tunnel.Advertisement) (*fleet.Machine, error) {
	hours, err := fleet.ParseHours(ad.Hours, ad.Timezone)
	if err != nil {
		return nil, err
	}
	m := &fleet.Machine{Paused: ad.Paused, Hours: hours, Slots: min(max(ad.Slots, 1), maxSlots), Groups: ad.Groups}
	if len(m.Groups) > maxGroups {
		m.Groups = m.Groups[:maxGroups]
	}
	seen := make(map[fleet.ModelID]bool, len(ad.Models))
	for i := range ad.Models {
		offer := readModel(&ad.Models[i])
		if !offer.ID.Valid() || offer.Families == 0 || seen[offer.ID] {
			continue
		}
		seen[offer.ID] = true
		if m.Offers = append(m.Offers, offer); len(m.Offers) == maxModels {
			break
		}
	}
	return m, nil
}

func readModel(model *tunnel.Model) fleet.Offer {
	o := fleet.Offer{
		ID:            fleet.ModelID(model.ID),
		ContextLength: max(model.ContextLength, 0),
		Slots:         min(max(model.Slots, 0), maxSlots),
	}
	for _, word := range model.Families {
		if f, ok := fleet.ParseFamily(word); ok {
			o.Families |= fleet.Families(f)
		}
	}
	for _, path := range model.Endpoints {
		if e, ok := fleet.ParseEndpoint(path); ok {
			o.Endpoints |= fleet.Endpoints(e)
		}
	}
	for _, word := range model.Capabilities {
		if len(word) <= maxWord && len(o.Capabilities) < maxCapabilities {
			o.Capabilities = append(o.Capabilities, word)
		}
	}
	if len(model.Engine) <= maxWord {
		o.Engine = model.Engine
	}
	return o
}

// setLocal writes the slots that others hold into the machine's loads.
func setLocal(m *fleet.Machine, ad tunnel.Advertisement) {
	m.Load.SetLocal(min(max(ad.Local, 0), maxSlots))
	for i := range ad.Models {
		if o := m.Offer(fleet.ModelID(ad.Models[i].ID)); o != nil {
			o.Load.SetLocal(min(max(ad.Models[i].Local, 0), maxSlots))
		}
	}
}

// sameButLoad reports whether two advertisements differ in slots held and free
// at most.
func sameButLoad(a, b tunnel.Advertisement) bool {
	return reflect.DeepEqual(withoutLoad(a), withoutLoad(b))
}

// withoutLoad is the part of an advertisement that is worth keeping.
func withoutLoad(ad tunnel.Advertisement) tunnel.Advertisement {
	ad.Generation, ad.Free, ad.Local = 0, 0, 0
	ad.Models = slices.Clone(ad.Models)
	for i := range ad.Models {
		ad.Models[i].Free, ad.Models[i].Local = 0, 0
	}
	return ad
}

// seenEvery is how often the time a connected machine was last seen is kept:
// often against the 30 days it is needed for, rarely for the store.
const seenEvery = 30 * time.Minute

// keeper writes one machine's last offers to the store: when they change, now
// and then while they do not, and at the end.
type keeper struct {
	facts Facts
	log   *slog.Logger
	id    fleet.MachineID
	timer *time.Timer

	mu    sync.Mutex
	ad    []byte // what is to be kept; nil before the first advertisement
	saved [sha256.Size]byte
	at    time.Time // of the last save
}

func newKeeper(config Config, kept fleet.Kept) *keeper {
	return &keeper{
		facts: config.Facts, log: config.Log, id: kept.ID,
		saved: sha256.Sum256(kept.Advertisement), at: kept.LastSeen,
	}
}

// keep takes an advertisement in, and saves it if it is new.
func (k *keeper) keep(ctx context.Context, ad tunnel.Advertisement) {
	text, err := json.Marshal(withoutLoad(ad))
	if err != nil {
		k.log.Error("cannot write an advertisement for the store", "machine", k.id, "error", err)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ad == nil {
		k.timer = time.AfterFunc(seenEvery, func() { k.seen(ctx) })
	}
	k.ad = text
	if sha256.Sum256(text) != k.saved || time.Since(k.at) >= seenEvery {
		k.save(ctx)
	}
}

// seen saves that the machine is there, and comes again.
func (k *keeper) seen(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.timer == nil {
		return // closed meanwhile
	}
	if time.Since(k.at) >= seenEvery {
		k.save(ctx)
	}
	k.timer.Reset(seenEvery)
}

// close saves when the machine was seen last, unless that was just now.
func (k *keeper) close(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ad == nil {
		return
	}
	k.timer.Stop()
	k.timer = nil
	if time.Since(k.at) >= time.Minute {
		k.save(context.WithoutCancel(ctx)) // the hub's end is when it matters
	}
}

// save writes to the store; what fails is tried again with the next occasion.
func (k *keeper) save(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pollWithin)
	defer cancel()
	now := time.Now()
	if err := k.facts.SaveOffers(ctx, k.id, k.ad, now); err != nil {
		k.log.Warn("cannot keep a machine's offers; trying again later", "machine", k.id, "error", err)
		return
	}
	k.saved, k.at = sha256.Sum256(k.ad), now
}

// readKept is a kept machine as it was advertised last, offline; nil if it never
// was, or in words this hub no longer reads.
func readKept(kept fleet.Kept) (*fleet.Machine, error) {
	if len(kept.Advertisement) == 0 {
		return nil, nil
	}
	var ad tunnel.Advertisement
	if err := json.Unmarshal(kept.Advertisement, &ad); err != nil {
		return nil, fmt.Errorf("cannot read the kept offers of machine %s: %w", kept.ID, err)
	}
	return read(ad)
}
