package registry

import (
	"context"
	"crypto/sha256"
	"encoding/json/v2"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// Limits of an advertisement. Anything beyond them is dropped, so that an honest daemon
// of another version can stay connected.
const (
	maxModels = 256
	maxSlots  = 1024
	maxGroups = 64
	maxWords  = 32   // number of families, of endpoints and of capabilities of a model
	maxWord   = 64   // bytes of each of these, and of an engine's name
	maxName   = 256  // bytes of a group's or the machine's name
	maxHours  = 4096 // bytes of the hours and their time zone
)

// accept returns an advertisement as a fleet.Machine without a name, and the part of it
// that was accepted. It fails only if the hours cannot be parsed, because a call could
// then run outside of them. Hours in a time zone that this hub does not know count as
// closed.
func accept(ad tunnel.Advertisement) (*fleet.Machine, tunnel.Advertisement, error) {
	if len(ad.Hours)+len(ad.Timezone) > maxHours {
		return nil, ad, fmt.Errorf("its hours are longer than %d bytes", maxHours)
	}
	if !printable(ad.Timezone) {
		ad.Timezone = ""
	}
	if len(ad.Name) > maxName || !printable(ad.Name) {
		ad.Name = ""
	}
	hours, err := fleet.AdvertisedHours(ad.Hours, ad.Timezone)
	if err != nil {
		return nil, ad, err
	}
	ad.Groups = short(ad.Groups, maxName, maxGroups)
	ad.Seals = ad.Seals[:min(len(ad.Seals), tunnel.MaxSeals)]
	if ad.Facts != nil {
		facts := ad.Facts.Checked()
		ad.Facts = &facts
	}
	m := &fleet.Machine{
		Paused: ad.Paused, PausedUntil: ad.PausedUntil, Hours: hours, Slots: min(max(ad.Slots, 1), maxSlots),
		Groups: ad.Groups, Seals: ad.Seals, Facts: ad.Facts,
	}
	seen := make(map[fleet.ModelID]bool)
	models := ad.Models
	ad.Models = nil
	for i := range models {
		offer, model := acceptModel(models[i])
		if !offer.ID.Valid() || offer.Families == 0 || seen[offer.ID] {
			continue
		}
		seen[offer.ID] = true
		ad.Models = append(ad.Models, model)
		if m.Offers = append(m.Offers, offer); len(m.Offers) == maxModels {
			break
		}
	}
	return m, ad, nil
}

// acceptModel returns an advertised model as an offer, and the part of it that was
// accepted.
func acceptModel(model tunnel.Model) (fleet.Offer, tunnel.Model) {
	model.Families = short(model.Families, maxWord, maxWords)
	model.Endpoints = short(model.Endpoints, maxWord, maxWords)
	model.Capabilities = short(model.Capabilities, maxWord, maxWords)
	if len(model.Engine) > maxWord || !printable(model.Engine) {
		model.Engine = ""
	}
	model.ModelFacts = model.ModelFacts.Checked()
	o := fleet.Offer{
		ID:            fleet.ModelID(model.ID),
		ContextLength: max(model.ContextLength, 0),
		Slots:         min(max(model.Slots, 0), maxSlots),
		Capabilities:  model.Capabilities,
		Engine:        model.Engine,
		Facts:         model.ModelFacts,
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
	return o, model
}

// short returns the first n of the words that are printable and at most size bytes long.
// It returns nil for nil, which differs from an empty list.
func short(words []string, size, n int) []string {
	words = slices.DeleteFunc(slices.Clone(words), func(word string) bool { return len(word) > size || !printable(word) })
	return words[:min(len(words), n)]
}

// printable reports whether a terminal shows the whole text: it has no control
// characters, and none that change the direction of text. Members read what other
// members' machines advertise.
func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// setLocal sets the number of slots in use by calls that did not come through the hub, for
// a machine of this node (setUsed does it for the others).
func setLocal(m *fleet.Machine, ad tunnel.Advertisement) {
	m.Load.SetLocal(min(max(ad.Local, 0), maxSlots))
	for i := range ad.Models {
		if o := m.Offer(fleet.ModelID(ad.Models[i].ID)); o != nil {
			o.Load.SetLocal(min(max(ad.Models[i].Local, 0), maxSlots))
		}
	}
}

// sameButLoad reports whether two advertisements are equal apart from the slots in use
// and free.
func sameButLoad(a, b tunnel.Advertisement) bool {
	return reflect.DeepEqual(withoutLoad(a), withoutLoad(b))
}

// withoutLoad returns the part of an advertisement that is stored.
func withoutLoad(ad tunnel.Advertisement) tunnel.Advertisement {
	ad.Generation, ad.Free, ad.Local = 0, 0, 0
	ad.Models = slices.Clone(ad.Models)
	for i := range ad.Models {
		ad.Models[i].Free, ad.Models[i].Local = 0, 0
	}
	return ad
}

const (
	// saveEvery is the minimum interval between two saves of one machine, however often
	// it advertises.
	saveEvery = 5 * time.Second
	// seenEvery is the interval between saves of the time when a connected machine was
	// last seen.
	seenEvery = 30 * time.Minute
)

// offerSaver saves one machine's last offers to the store: soon after they change, every
// seenEvery, and at the end of its tunnel.
type offerSaver struct {
	facts Facts
	log   *slog.Logger
	id    fleet.MachineID
	// replaced reports, after the end of this saver's tunnel, whether the machine has
	// another tunnel. The saver of that one saves newer offers.
	replaced func() bool

	mu     sync.Mutex
	ad     []byte // to be saved; nil before the first advertisement
	saved  [sha256.Size]byte
	at     time.Time // of the last save
	timer  *time.Timer
	closed bool
}

func (r *Registry) newOfferSaver(stored account.Machine) *offerSaver {
	id := fleet.MachineID(stored.ID)
	return &offerSaver{
		facts: r.config.Facts, log: r.config.Log, id: id, replaced: func() bool { return r.Attached(id) },
		saved: sha256.Sum256(stored.Offers), at: stored.LastSeen,
	}
}

// schedule schedules an advertisement to be saved.
func (s *offerSaver) schedule(ctx context.Context, ad tunnel.Advertisement) {
	text, err := json.Marshal(withoutLoad(ad))
	if err != nil {
		s.log.Error("cannot write an advertisement for the store", "machine", s.id, "error", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ad == nil {
		// WithoutCancel, so that the last save is done when the hub stops.
		s.timer = time.AfterFunc(seenEvery, func() { s.due(context.WithoutCancel(ctx)) })
	}
	s.ad = text
	s.saveIfDue(ctx)
}

// due is called by the timer.
func (s *offerSaver) due(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed && s.replaced() {
		return
	}
	s.saveIfDue(ctx)
}

// saveIfDue saves new offers if the last save was at least saveEvery ago, and unchanged
// ones after seenEvery. It sets the timer for the next save. A failed save is retried,
// unless the tunnel has ended.
func (s *offerSaver) saveIfDue(ctx context.Context) {
	wait := seenEvery - s.facts.Now().Sub(s.at)
	if s.isNew() {
		wait = saveEvery - s.facts.Now().Sub(s.at)
	}
	if wait <= 0 {
		wait = seenEvery
		if !s.save(ctx) {
			wait = saveEvery
		}
		if s.closed {
			return
		}
	}
	s.timer.Reset(wait)
}

// close saves new offers as soon as they are due. If there are none, it saves when the
// machine was last seen, unless that was saved within the last minute.
func (s *offerSaver) close(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ad == nil {
		return
	}
	s.closed = true
	s.timer.Stop()
	if s.isNew() {
		s.saveIfDue(context.WithoutCancel(ctx))
	} else if s.facts.Now().Sub(s.at) >= time.Minute {
		s.save(context.WithoutCancel(ctx))
	}
}

// isNew reports whether the offers differ from the saved ones.
func (s *offerSaver) isNew() bool { return sha256.Sum256(s.ad) != s.saved }

// save writes to the store and reports whether that succeeded.
func (s *offerSaver) save(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, pollWithin)
	defer cancel()
	now := s.facts.Now()
	if err := s.facts.SaveOffers(ctx, s.id, s.ad, now); err != nil {
		s.log.Warn("cannot save a machine's offers; trying again later", "machine", s.id, "error", err)
		return false
	}
	s.saved, s.at = sha256.Sum256(s.ad), now
	return true
}

// restore returns a stored machine as it last advertised itself, offline, or nil if it
// never did.
func restore(stored account.Machine) (*fleet.Machine, error) {
	if len(stored.Offers) == 0 {
		return nil, nil
	}
	var ad tunnel.Advertisement
	if err := json.Unmarshal(stored.Offers, &ad); err != nil {
		return nil, fmt.Errorf("cannot read the stored offers of machine %s: %w", stored.ID, err)
	}
	m, _, err := accept(ad)
	return m, err
}
