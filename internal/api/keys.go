package api

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
)

// Key is an API key as its member sees it.
type Key struct {
	ID       string        `json:"id"`
	Name     string        `json:"name"`
	LastFour string        `json:"last_four"`
	Region   string        `json:"region"`
	BaseURL  string        `json:"base_url,omitzero"` // of the region, for programs; absent: not known here
	Reach    account.Reach `json:"reach"`
	State    string        `json:"state"` // "live" or "revoked"
	Created  time.Time     `json:"created"`
	LastUsed time.Time     `json:"last_used,omitzero"` // to about a minute
	Revoked  time.Time     `json:"revoked,omitzero"`
}

func (a *API) viewKey(k account.Key) Key {
	v := Key{k.ID, k.Name, k.LastFour, k.Region, a.BaseURL(k.Region), k.Reach, "live", k.Created, k.LastUsed, k.Revoked}
	if !k.Revoked.IsZero() {
		v.State = "revoked"
	}
	return v
}

// listKeys lists the caller's keys, revoked ones too, the newest first.
func (a *API) listKeys(ctx context.Context, c Caller, _ None) (List[Key], error) {
	keys, err := a.DB.Keys(ctx, c.id())
	slices.Reverse(keys)
	return listOf(views(keys, a.viewKey)), err
}

// KeyID names a key.
type KeyID struct {
	Key string `json:"-" path:"key"`
}

// Revoked says that what had the id is refused from now on.
type Revoked struct {
	ID    string `json:"id"`
	State string `json:"state"`
}

// revokeKey ends a key: it is refused everywhere within 5 s.
func (a *API) revokeKey(ctx context.Context, c Caller, in KeyID) (Revoked, error) {
	if err := a.DB.RevokeOwnKey(ctx, c.id(), in.Key, time.Now().UTC()); err != nil {
		return Revoked{}, NotFound(err, "you have no live key with the id %.80q", in.Key)
	}
	return Revoked{in.Key, "revoked"}, nil
}

// CreateKey makes a key of the caller's, of any region, and returns its secret, which
// is kept nowhere. It is no route: a key or a machine's credential must not be able to
// make itself another one, so only the site makes keys.
func (a *API) CreateKey(ctx context.Context, c Caller, region, name string, reach account.Reach) (Key, credential.Secret, error) {
	key, secret, err := a.MintKey(region, name, reach)
	if err != nil {
		return Key{}, secret, err
	}
	key.MemberID = c.id()
	if err := a.DB.CreateKey(ctx, key); err != nil {
		return Key{}, secret, err
	}
	a.Log.Info("member act", "member", c.id(), "what", "create a key", "key", key.ID)
	a.Changed()
	return a.viewKey(key), secret, nil
}

// MintKey makes a key and its secret, without a member. An empty region is this hub's.
func (a *API) MintKey(region, name string, reach account.Reach) (account.Key, credential.Secret, error) {
	if f := checkLabel(name); f != nil {
		return account.Key{}, credential.Secret{}, f
	}
	return a.mintKey(region, name, reach)
}

func (a *API) mintKey(region, name string, reach account.Reach) (account.Key, credential.Secret, error) {
	region = cmp.Or(region, a.Region)
	if f := a.checkRegion(region); f != nil {
		return account.Key{}, credential.Secret{}, f
	}
	switch reach {
	case account.ReachAll, account.ReachShared, account.ReachOwn:
	default:
		return account.Key{}, credential.Secret{}, fault.New(fault.InvalidRequest, "a key reaches all, shared or own, not %.40q", reach).WithParam("reach")
	}
	secret := credential.Mint(credential.APIKey, region)
	return account.Key{
		ID: account.NewID("key_"), Name: name, Region: region, Reach: reach,
		Hash: secret.Hash(), LastFour: secret.LastFour(), Created: time.Now().UTC(),
	}, secret, nil
}
