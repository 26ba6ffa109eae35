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
	Manage   bool          `json:"manage"` // it may manage the account; else it is for inference alone
	State    string        `json:"state"`  // "live", "expired" or "revoked"
	Created  time.Time     `json:"created"`
	LastUsed time.Time     `json:"last_used,omitzero"` // to about a minute
	Revoked  time.Time     `json:"revoked,omitzero"`
	Expires  time.Time     `json:"expires,omitzero"` // it is refused from then on; absent: never
	// Calls is how many calls it made in the last 30 days, refused ones too.
	Calls int64 `json:"calls_30_days"`
}

// keyDays is how many days the calls of a key are counted over.
const keyDays = 30

func (a *API) viewKey(k account.Key) Key {
	v := Key{
		ID: k.ID, Name: k.Name, LastFour: k.LastFour, Region: k.Region, BaseURL: a.BaseURL(k.Region), Reach: k.Reach, Manage: k.Manage, State: "live",
		Created: k.Created, LastUsed: k.LastUsed, Revoked: k.Revoked, Expires: k.Expires,
	}
	switch {
	case !k.Revoked.IsZero():
		v.State = "revoked"
	case k.Expired(a.DB.Now()):
		v.State = "expired"
	}
	return v
}

// listKeys lists the caller's keys, revoked and expired ones too, the newest first.
func (a *API) listKeys(ctx context.Context, c Caller, _ None) (List[Key], error) {
	keys, err := a.keysOf(ctx, c.id())
	slices.Reverse(keys)
	return listOf(keys), err
}

// keysOf returns a member's keys, the oldest first, with how much each was used.
func (a *API) keysOf(ctx context.Context, memberID string) ([]Key, error) {
	keys, noKeys := a.DB.Keys(ctx, memberID)
	calls, noCalls := a.DB.CallsOfKeys(ctx, memberID, a.DB.Now().AddDate(0, 0, -keyDays))
	list := views(keys, a.viewKey)
	for i := range list {
		list[i].Calls = calls[list[i].ID]
	}
	return list, cmp.Or(noKeys, noCalls)
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
	if err := a.DB.RevokeOwnKey(ctx, c.id(), in.Key, a.DB.Now().UTC()); err != nil {
		return Revoked{}, NotFound(err, "you have no live key with the id %.80q", in.Key)
	}
	return Revoked{in.Key, "revoked"}, nil
}

// NewKey is an API key to make.
type NewKey struct {
	Member string        `json:"member"` // for the operator: whose key it is
	Name   string        `json:"name,omitzero"`
	Region string        `json:"region,omitzero"` // empty: this hub's
	Reach  account.Reach `json:"reach,omitzero"`  // empty: all
	Manage bool          `json:"manage,omitzero"` // it may manage the account, beside inference
	// Expires is when the key ends: a time from now like "90d" or "12h", or a time as in
	// RFC 3339; empty: never.
	Expires string `json:"expires,omitzero"`
}

// CreateKey makes a key of the caller's, of any region, and returns its secret, which
// is kept nowhere. It is no route: a key or a machine's credential must not be able to
// make itself another one, so only the site makes keys.
func (a *API) CreateKey(ctx context.Context, c Caller, in NewKey) (Key, credential.Secret, error) {
	key, secret, err := a.MintKey(in)
	if err != nil {
		return Key{}, secret, err
	}
	return a.saveKey(ctx, c, key, secret)
}

// RollKey makes a key of the caller's with the name, the region, the reach, the scope and
// the end of a live one, which it does not revoke. The name needs no check, since no one chooses
// it: one that an operator gave may be empty. It is no route, as CreateKey is none.
func (a *API) RollKey(ctx context.Context, c Caller, old Key) (Key, credential.Secret, error) {
	in := NewKey{Name: old.Name, Region: old.Region, Reach: old.Reach, Manage: old.Manage}
	if !old.Expires.IsZero() {
		in.Expires = old.Expires.Format(time.RFC3339Nano)
	}
	key, secret, err := a.mintKey(in)
	if err != nil {
		return Key{}, secret, err
	}
	return a.saveKey(ctx, c, key, secret)
}

// saveKey makes a key the caller's and stores it.
func (a *API) saveKey(ctx context.Context, c Caller, key account.Key, secret credential.Secret) (Key, credential.Secret, error) {
	key.MemberID = c.id()
	if err := a.DB.CreateKey(ctx, key); err != nil {
		return Key{}, secret, err
	}
	a.Log.Info("member act", "member", c.id(), "what", "create a key", "key", key.ID)
	a.Changed(ctx)
	return a.viewKey(key), secret, nil
}

// MintKey makes a key and its secret, without a member.
func (a *API) MintKey(in NewKey) (account.Key, credential.Secret, error) {
	if f := checkLabel(in.Name); f != nil {
		return account.Key{}, credential.Secret{}, f
	}
	return a.mintKey(in)
}

func (a *API) mintKey(in NewKey) (account.Key, credential.Secret, error) {
	region, reach := cmp.Or(in.Region, a.Region), cmp.Or(in.Reach, account.ReachAll)
	if f := a.checkRegion(region); f != nil {
		return account.Key{}, credential.Secret{}, f
	}
	switch reach {
	case account.ReachAll, account.ReachShared, account.ReachOwn:
	default:
		return account.Key{}, credential.Secret{}, fault.New(fault.InvalidRequest, "a key reaches all, shared or own, not %.40q", reach).WithParam("reach")
	}
	now := a.DB.Now().UTC()
	expires, err := keyEnd(in.Expires, now)
	if err != nil {
		return account.Key{}, credential.Secret{}, err
	}
	secret := credential.Mint(credential.APIKey, region)
	return account.Key{
		ID: account.NewID("key_"), Name: in.Name, Region: region, Reach: reach, Manage: in.Manage,
		Hash: secret.Hash(), LastFour: secret.LastFour(), Created: now, Expires: expires,
	}, secret, nil
}

// keyEnd reads when a key made now ends; the zero time is never.
func keyEnd(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	end, err := time.Parse(time.RFC3339, text)
	if err != nil {
		life, err := parseLife(text)
		return now.Add(life).Truncate(time.Millisecond), err
	}
	if !end.After(now) {
		return time.Time{}, fault.New(fault.InvalidRequest, "the key would have expired already: %.40s is past", text).WithParam("expires")
	}
	end = end.UTC().Truncate(time.Millisecond)
	if end.Year() > 9999 { // RFC 3339, and so JSON, has no such year
		return time.Time{}, fault.New(fault.InvalidRequest, "expires is before the year 10000, UTC, not %.40s", text).WithParam("expires")
	}
	return end, nil
}
