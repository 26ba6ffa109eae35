package hub

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/limit"
)

const (
	// cacheFor is how long the result of a key look-up is cached, even if the key is
	// unknown. A revocation clears the cache earlier, and takes effect within this time at
	// the latest (spec/api.md#within-5s).
	cacheFor = 5 * time.Second
	// lookUpTimeout limits a look-up, because an older result of the database must not be
	// used to grant anything (spec/routing.md#row-2).
	lookUpTimeout = 5 * time.Second
	// maxCachedKeys limits the cache, which is cleared when it is full.
	maxCachedKeys = 100_000
)

// badKey returns the common fault for a missing, wrong or revoked key.
func (h *Hub) badKey() *fault.Fault { return gateway.RefusedKey(h.cfg.Edge.Base) }

// expiredKey returns the fault for an expired key (spec/api.md#expired-key).
func (h *Hub) expiredKey(k account.Key) *fault.Fault {
	return fault.New(fault.InvalidAPIKey, "the API key expired on %s: create another one at Keys (%s/applications)", api.Moment(k.Expires, time.Time{}), h.cfg.Edge.Base)
}

// keyring caches the callers for credentials.
type keyring struct {
	mu     sync.RWMutex
	byHash map[[32]byte]holder
	age    int // how many times it was cleared
}

// holder is the caller for a credential and how long that is cached, by the clock of this
// process, because the store's clock can be set back. The zero caller is for an unknown
// credential.
type holder struct {
	caller fleet.Caller
	until  time.Time
}

// known reports whether the credential was known at the last look-up.
func (h holder) known() bool { return h.caller.Member != "" }

// get returns the last result for the credential, if there is one, and whether it is
// still valid.
func (k *keyring) get(hash [32]byte) (h holder, age int, holds bool) {
	k.mu.RLock()
	h = k.byHash[hash]
	age = k.age
	k.mu.RUnlock()
	return h, age, time.Now().Before(h.until)
}

// put caches a result, unless the cache was cleared since its age was read: a result from
// before a change must not be cached after it.
func (k *keyring) put(hash [32]byte, h holder, age int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if age != k.age {
		return
	}
	if k.byHash == nil || len(k.byHash) >= maxCachedKeys {
		k.byHash = make(map[[32]byte]holder)
	}
	k.byHash[hash] = h
}

// clear clears the cache: changes of keys and members are rare, and look-ups are cheap.
func (k *keyring) clear() {
	k.mu.Lock()
	clear(k.byHash)
	k.age++
	k.mu.Unlock()
}

// Identify returns the caller for a secret: the member of an API key, or the owner of a
// machine credential. A mistyped secret does not reach the database, because its checksum
// is wrong. Neither does a secret of another region; the cause of its fault is a
// gateway.OtherRegion. If the database does not answer, the fault is CASCADE_EXHAUSTED.
func (h *Hub) Identify(ctx context.Context, secret string) (fleet.Caller, error) {
	parsed, err := credential.Parse(secret)
	if err != nil {
		return fleet.Caller{}, h.badKey()
	}
	if parsed.Region() != h.cfg.Region {
		return fleet.Caller{}, h.otherRegion(parsed)
	}
	hash := parsed.Hash()
	last, age, holds := h.keys.get(hash)
	switch {
	case holds && last.known():
		return last.caller, nil
	case holds:
		return fleet.Caller{}, h.badKey()
	}
	isKnown := func() {}
	if !last.known() { // a known secret is no guess, even if others at the same address are guessing
		if isKnown, err = h.guess(ctx); err != nil {
			return fleet.Caller{}, err
		}
	}
	found, err := h.lookUp(ctx, parsed)
	if errors.Is(err, account.ErrNotFound) {
		h.keys.put(hash, holder{until: time.Now().Add(cacheFor)}, age)
		return fleet.Caller{}, h.badKey()
	}
	isKnown()
	if err != nil {
		return fleet.Caller{}, err
	}
	h.keys.put(hash, found, age)
	return found.caller, nil
}

// otherRegion returns the fault for a secret of another region. Nothing is known about
// the secret except its text (spec/api.md#other-region).
func (h *Hub) otherRegion(secret credential.Secret) error {
	if kind := secret.Kind(); kind != credential.APIKey && kind != credential.MachineKey {
		return h.badKey()
	}
	region := secret.Region()
	next := "use the base URL that was shown with the key"
	if at := h.cfg.Regions[region]; at != nil {
		next = "send it to " + at.String()
	}
	return fault.New(fault.InvalidAPIKey, "the API key is of region %q and this hub serves %q: %s", region, h.cfg.Region, next).
		Because(gateway.OtherRegion(region))
}

// lookUp reads the caller for a secret from the database, and determines how long to
// cache it, at most until the key expires. It returns account.ErrNotFound for an unknown
// secret.
func (h *Hub) lookUp(ctx context.Context, secret credential.Secret) (holder, error) {
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	began, now := time.Now(), h.records.Now()
	until := began.Add(cacheFor)
	switch secret.Kind() {
	case credential.APIKey:
		key, member, err := h.records.KeyByHash(ctx, secret.Hash())
		if err != nil {
			return holder{}, h.unknownOr(err)
		}
		if key.Expired(now) {
			return holder{}, h.expiredKey(key)
		}
		if left := key.Expires.Sub(now); !key.Expires.IsZero() && left < cacheFor {
			until = began.Add(left)
		}
		if key.PerDay > 0 {
			today, err := h.records.DayOfKeys(ctx, member.ID, now)
			if err != nil {
				return holder{}, h.unknownOr(err)
			}
			h.calls.CountKey(key.ID, now, int(today[key.ID]))
		}
		h.ledger.KeyUsed(key.ID)
		reach, _ := fleet.ParseKeyReach(string(key.Reach)) // the store contains no other values
		return holder{fleet.Caller{
			Member: fleet.MemberID(member.ID), Name: member.Name, KeyID: key.ID, Reach: reach, Inference: !key.Manage, PerDay: key.PerDay,
		}, until}, nil
	case credential.MachineKey:
		machine, member, err := h.records.MachineByHash(ctx, secret.Hash())
		if err != nil {
			return holder{}, h.unknownOr(err)
		}
		return holder{fleet.Caller{
			Member: fleet.MemberID(member.ID), Name: member.Name, Machine: fleet.MachineID(machine.ID),
		}, until}, nil
	default:
		return holder{}, h.badKey()
	}
}

// unknownOr returns account.ErrNotFound for an unknown credential, and otherwise the
// fault for a database that does not answer.
func (h *Hub) unknownOr(err error) error {
	if errors.Is(err, account.ErrNotFound) {
		return err
	}
	return fault.New(fault.CascadeExhausted, "the key could not be checked; try again shortly").Because(err)
}

// revoked returns the fault that ends the calls of a caller if the credential was
// revoked, or nil if it is valid. It fails if the database does not answer.
func (h *Hub) revoked(ctx context.Context, caller fleet.Caller) (*fault.Fault, error) {
	var member account.Member
	var err error
	switch {
	case strings.HasPrefix(caller.KeyID, api.SiteKey):
		member, err = h.records.Member(ctx, string(caller.Member))
	case caller.KeyID == "":
		_, err = h.records.ActiveMachine(ctx, string(caller.Machine))
	default:
		_, err = h.records.Key(ctx, caller.KeyID)
	}
	if errors.Is(err, account.ErrNotFound) || member.Disabled {
		return h.badKey(), nil
	}
	return nil, err
}

// A client may look up guessBurst secrets that are not in the database, and then one per
// guessEvery (spec/api.md#limit-guesses). The checksums of these secrets are correct, so
// nothing else shows that they are guesses.
const (
	guessBurst = 100
	guessEvery = 200 * time.Millisecond
)

// clientKey is the context key for the client of a request, a netip.Prefix.
type clientKey struct{}

// withClient returns the request with its client in its context.
func withClient(r *http.Request) *http.Request {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), clientKey{}, limit.Network(from.Addr())))
}

// guess counts a look-up of a secret, or returns a fault if the client made too many
// guesses. The caller must call known if the secret is known or could not be looked up.
func (h *Hub) guess(ctx context.Context) (known func(), err error) {
	client, ok := ctx.Value(clientKey{}).(netip.Prefix)
	if !ok {
		return func() {}, nil
	}
	if wait := h.guesses.Take(client, time.Now()); wait > 0 {
		return nil, fault.New(fault.RateLimitExceeded,
			"too many unknown keys came from this address: at most %d a second, %d at once; correct the key, and wait for Retry-After",
			time.Second/guessEvery, guessBurst).WithRetryAfter(int(wait/time.Second) + 1)
	}
	return func() { h.guesses.Give(client, time.Now()) }, nil
}
