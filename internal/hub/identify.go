package hub

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// keyFresh is how long a key that was looked up is believed without asking
// again; a revocation is pushed sooner and holds by then at the latest
// (decisions 7).
const keyFresh = 5 * time.Second

// lookUpWithin is how long a look-up may take: nothing is granted from what the
// database said longer ago (decisions 2, row 2).
const lookUpWithin = 5 * time.Second

// maxCachedKeys bounds the cache; past it the cache starts afresh.
const maxCachedKeys = 100_000

// badKey is the one message for a key that is missing, wrong or revoked, so
// that an answer never tells which (decisions 4).
func badKey() *fault.Fault {
	return fault.New(fault.InvalidAPIKey, "the API key is missing, wrong or revoked; make one at /applications and send it as Authorization: Bearer")
}

// keyring remembers which caller a credential's hash names.
type keyring struct {
	mu     sync.RWMutex
	byHash map[[32]byte]holder
	age    int // how often all was forgotten
}

// holder is who a credential belongs to, and until when that may be believed.
type holder struct {
	caller gateway.Caller
	until  time.Time
}

func (k *keyring) get(hash [32]byte, now time.Time) (_ gateway.Caller, age int, ok bool) {
	k.mu.RLock()
	h, ok := k.byHash[hash]
	age = k.age
	k.mu.RUnlock()
	return h.caller, age, ok && now.Before(h.until)
}

// put remembers what was looked up when the keyring was of that age: what was
// looked up before a change is not believed after it.
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

// forget drops everything: changes to keys and members are rare, and a look-up
// is cheap.
func (k *keyring) forget() {
	k.mu.Lock()
	clear(k.byHash)
	k.age++
	k.mu.Unlock()
}

// Identify says who presents secret: the member of an API key, or the owner of
// a machine credential (decisions 5, 7). A mistyped secret never reaches the
// database: prefix and checksum are looked at first. When the database cannot
// be asked the fault is CASCADE_EXHAUSTED, never a guess.
func (h *Hub) Identify(ctx context.Context, secret string) (gateway.Caller, error) {
	parsed, err := credential.Parse(secret)
	if err != nil || parsed.Region() != h.cfg.Region {
		return gateway.Caller{}, badKey()
	}
	now := time.Now()
	hash := parsed.Hash()
	caller, age, ok := h.keys.get(hash, now)
	if ok {
		return caller, nil
	}
	if caller, err = h.lookUp(ctx, parsed); err != nil {
		return gateway.Caller{}, err
	}
	h.keys.put(hash, holder{caller, now.Add(keyFresh)}, age)
	return caller, nil
}

func (h *Hub) lookUp(ctx context.Context, secret credential.Secret) (gateway.Caller, error) {
	ctx, cancel := context.WithTimeout(ctx, lookUpWithin)
	defer cancel()
	switch secret.Kind() {
	case credential.APIKey:
		key, member, err := h.records.KeyByHash(ctx, secret.Hash())
		if err != nil {
			return gateway.Caller{}, h.unknownOr(err)
		}
		h.ledger.KeyUsed(key.ID)
		return gateway.Caller{
			Member: fleet.MemberID(member.ID), Name: member.Name, KeyID: key.ID, Narrow: narrowing(key.Reach),
		}, nil
	case credential.MachineKey:
		machine, member, err := h.records.MachineByHash(ctx, secret.Hash())
		if err != nil {
			return gateway.Caller{}, h.unknownOr(err)
		}
		return gateway.Caller{
			Member: fleet.MemberID(member.ID), Name: member.Name, Machine: fleet.MachineID(machine.ID),
		}, nil
	default:
		return gateway.Caller{}, badKey()
	}
}

// unknownOr tells a credential nobody has from a database that cannot be asked.
func (h *Hub) unknownOr(err error) error {
	if errors.Is(err, account.ErrNotFound) {
		return badKey()
	}
	return fault.New(fault.CascadeExhausted, "the service could not check the key just now; try again shortly").Because(err)
}

func narrowing(reach account.Reach) fleet.Narrow {
	switch reach {
	case account.ReachOwn:
		return fleet.OwnOnly
	case account.ReachShared:
		return fleet.OwnAndShared
	default:
		return fleet.Everything
	}
}
