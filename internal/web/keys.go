package web

import (
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
)

// Key is an API key as its member is told of it.
type Key struct {
	ID       string        `json:"id"`
	Name     string        `json:"name"`
	LastFour string        `json:"last_four"`
	Region   string        `json:"region"`
	Reach    account.Reach `json:"reach"`
	State    string        `json:"state"` // "live" or "revoked"
	Created  time.Time     `json:"created"`
	LastUsed time.Time     `json:"last_used,omitzero"` // to about a minute
	Revoked  time.Time     `json:"revoked,omitzero"`
}

func viewKey(k account.Key) Key {
	v := Key{k.ID, k.Name, k.LastFour, k.Region, k.Reach, "live", k.Created, k.LastUsed, k.Revoked}
	if !k.Revoked.IsZero() {
		v.State = "revoked"
	}
	return v
}

// listKeys is GET /api/keys: the caller's own, revoked ones too, the newest
// first.
func (a *API) listKeys(r *request) (any, error) {
	keys, err := a.Accounts.Keys(r.Context(), r.me)
	views := make([]Key, len(keys))
	for i, k := range keys {
		views[len(keys)-1-i] = viewKey(k)
	}
	return listOf(views), err
}

// revoked says that what had the id is worth nothing any more.
type revoked struct {
	ID    string `json:"id"`
	State string `json:"state"`
}

// revokeKey is DELETE /api/keys/{key}: it is refused everywhere within 5 s.
func (a *API) revokeKey(r *request) (any, error) {
	id := r.values["key"]
	if err := a.Accounts.RevokeOwnKey(r.Context(), r.me, id, time.Now().UTC()); err != nil {
		return nil, notFound(err, "you have no live key with the id %.80q", id)
	}
	return revoked{id, "revoked"}, nil
}

// newKey mints a key that a member asks for: its secret is told once. Only the
// site makes keys: what holds a key or a machine's credential must not be able
// to make itself another.
func newKey(region, name string, reach account.Reach) (account.Key, credential.Secret, error) {
	switch reach {
	case account.ReachAll, account.ReachShared, account.ReachOwn:
	default:
		return account.Key{}, credential.Secret{}, fault.New(fault.InvalidRequest, "a key reaches all, shared or own, not %.40q", reach).WithParam("reach")
	}
	if f := checkLabel(name); f != nil {
		return account.Key{}, credential.Secret{}, f
	}
	secret := credential.Mint(credential.APIKey, region)
	return account.Key{
		ID: account.NewID("key_"), Name: name, Region: region, Reach: reach,
		Hash: secret.Hash(), LastFour: secret.LastFour(), Created: time.Now().UTC(),
	}, secret, nil
}
