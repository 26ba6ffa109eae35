package api

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// Key is an API key as shown to its member.
type Key struct {
	ID       string        `json:"id"`
	Name     string        `json:"name"`
	LastFour string        `json:"last_four"`
	Region   string        `json:"region"`
	BaseURL  string        `json:"base_url,omitzero"` // base URL of the region, for programs; absent: unknown
	Reach    account.Reach `json:"reach"`
	Manage   bool          `json:"manage"` // can manage the account; otherwise only for inference
	State    string        `json:"state"`  // "live", "expired" or "revoked"
	Created  time.Time     `json:"created"`
	LastUsed time.Time     `json:"last_used,omitzero"` // accurate to about a minute
	Revoked  time.Time     `json:"revoked,omitzero"`
	Expires  time.Time     `json:"expires,omitzero"` // when it stops working; absent: never
	// Calls is the number of calls in the last 30 days, including refused ones.
	Calls  int64 `json:"calls_30_days"`
	PerDay int   `json:"per_day,omitzero"` // calls that it may make per UTC day; absent: no limit
	// Today is the number of calls of the UTC day that count for PerDay: those that run, and
	// those that ran on a machine.
	Today int64 `json:"calls_today"`
}

// Spent reports whether the calls of the day are used up.
func (k Key) Spent() bool { return k.PerDay > 0 && k.Today >= int64(k.PerDay) }

// keyDays is the number of days of Key.Calls.
const keyDays = 30

func (a *API) viewKey(k account.Key) Key {
	v := Key{
		ID: k.ID, Name: k.Name, LastFour: k.LastFour, Region: k.Region, BaseURL: a.BaseURL(k.Region), Reach: k.Reach, Manage: k.Manage, State: "live",
		Created: k.Created, LastUsed: k.LastUsed, Revoked: k.Revoked, Expires: k.Expires, PerDay: k.PerDay,
	}
	switch {
	case !k.Revoked.IsZero():
		v.State = "revoked"
	case k.Expired(a.DB.Now()):
		v.State = "expired"
	}
	return v
}

// listKeys lists the caller's keys, including revoked and expired ones, newest first.
func (a *API) listKeys(ctx context.Context, c fleet.Caller, _ None) (List[Key], error) {
	keys, err := a.keysOf(ctx, string(c.Member))
	slices.Reverse(keys)
	return listOf(keys), err
}

// keysOf returns a member's keys with their numbers of calls, oldest first.
func (a *API) keysOf(ctx context.Context, memberID string) ([]Key, error) {
	now := a.DB.Now()
	keys, noKeys := a.DB.Keys(ctx, memberID)
	calls, noCalls := a.DB.CallsOfKeys(ctx, memberID, now.AddDate(0, 0, -keyDays))
	today, noToday := a.DB.DayOfKeys(ctx, memberID, now)
	list := views(keys, a.viewKey)
	for i := range list {
		k := &list[i]
		k.Calls, k.Today = calls[k.ID], today[k.ID]
		if load := a.KeyLoad(k.ID); load != nil {
			k.Today = max(k.Today, int64(load.Started(now)))
		}
	}
	return list, cmp.Or(noKeys, noCalls, noToday)
}

// KeyID identifies a key.
type KeyID struct {
	Key string `json:"-" path:"key"`
}

// Revoked is the result of revoking a key or an invite.
type Revoked struct {
	ID    string `json:"id"`
	State string `json:"state"`
}

// revokeKey revokes a key. It is refused everywhere within 5 s.
func (a *API) revokeKey(ctx context.Context, c fleet.Caller, in KeyID) (Revoked, error) {
	if err := a.DB.RevokeOwnKey(ctx, string(c.Member), in.Key, a.DB.Now().UTC()); err != nil {
		return Revoked{}, NotFound(err, "you have no active key with the id %.80q", in.Key)
	}
	return Revoked{in.Key, "revoked"}, nil
}

// KeyLimit is a change of a key's calls a day.
type KeyLimit struct {
	Key string `json:"-" path:"key"`
	// PerDay is how many calls the key may make per UTC day; null or 0: no limit.
	PerDay Given[int] `json:"per_day"`
}

// limitKey sets the calls a day of a key, and returns the key.
func (a *API) limitKey(ctx context.Context, c fleet.Caller, in KeyLimit) (Key, error) {
	to := in.PerDay.change()
	if to == nil {
		return Key{}, fault.New(fault.InvalidRequest, "per_day is missing: name the calls a day of the key, or null for no limit").WithParam("per_day")
	}
	if f := checkKeyDay(*to); f != nil {
		return Key{}, f
	}
	if err := a.DB.LimitOwnKey(ctx, string(c.Member), in.Key, *to); err != nil {
		return Key{}, NotFound(err, "you have no active key with the id %.80q", in.Key)
	}
	keys, err := a.keysOf(ctx, string(c.Member))
	if i := slices.IndexFunc(keys, func(k Key) bool { return k.ID == in.Key }); i >= 0 {
		return keys[i], nil
	}
	return Key{}, err
}

// checkKeyDay returns a fault unless a key may have that many calls a day; 0 is no limit.
func checkKeyDay(perDay int) *fault.Fault {
	if perDay < 0 || perDay > MaxLimit {
		return fault.New(fault.InvalidRequest, "per_day is how many calls a key may make in a day, 1 to %d, or 0 for no limit; to let it make none, revoke it", MaxLimit).WithParam("per_day")
	}
	return nil
}

// NewKey is an API key to create.
type NewKey struct {
	Member string        `json:"member"` // the owner's name, for the operator's route
	Name   string        `json:"name,omitzero"`
	Region string        `json:"region,omitzero"` // empty: this hub's
	Reach  account.Reach `json:"reach,omitzero"`  // empty: all
	Manage bool          `json:"manage,omitzero"` // can manage the account, in addition to inference
	// Expires is when the key expires, either from now like "90d" or "12h", or a time as
	// in RFC 3339; empty: never.
	Expires string `json:"expires,omitzero"`
	PerDay  int    `json:"per_day,omitzero"` // calls per UTC day; 0: no limit
}

// CreateKey creates a key for the caller, in any region, and returns its secret, which is
// not stored. It is not a route: a key or a machine's credential must not be able to
// create further keys, so only the site can.
func (a *API) CreateKey(ctx context.Context, c fleet.Caller, in NewKey) (Key, credential.Secret, error) {
	key, secret, err := a.MintKey(in)
	if err != nil {
		return Key{}, secret, err
	}
	return a.saveKey(ctx, c, key, secret)
}

// RollKey creates a key with the name, region, reach, scope, expiry and limit of an
// existing one, which it does not revoke. The name is not validated, because no one chooses it
// here; a key created by the operator may have an empty name. Like CreateKey it is not a
// route.
func (a *API) RollKey(ctx context.Context, c fleet.Caller, old Key) (Key, credential.Secret, error) {
	in := NewKey{Name: old.Name, Region: old.Region, Reach: old.Reach, Manage: old.Manage, PerDay: old.PerDay}
	if !old.Expires.IsZero() {
		in.Expires = old.Expires.Format(time.RFC3339Nano)
	}
	key, secret, err := a.mintKey(in)
	if err != nil {
		return Key{}, secret, err
	}
	return a.saveKey(ctx, c, key, secret)
}

// saveKey assigns a key to the caller and stores it.
func (a *API) saveKey(ctx context.Context, c fleet.Caller, key account.Key, secret credential.Secret) (Key, credential.Secret, error) {
	key.MemberID = string(c.Member)
	if err := a.DB.CreateKey(ctx, key); err != nil {
		return Key{}, secret, err
	}
	a.Log.Info("member act", "member", string(c.Member), "what", "create a key", "key", key.ID)
	a.Changed(ctx)
	return a.viewKey(key), secret, nil
}

// MintKey creates a key and its secret, without a member.
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
	if f := checkKeyDay(in.PerDay); f != nil {
		return account.Key{}, credential.Secret{}, f
	}
	now := a.DB.Now().UTC()
	expires, err := keyEnd(in.Expires, now)
	if err != nil {
		return account.Key{}, credential.Secret{}, err
	}
	secret := credential.Mint(credential.APIKey, region)
	return account.Key{
		ID: account.NewID("key_"), Name: in.Name, Region: region, Reach: reach, Manage: in.Manage,
		Hash: secret.Hash(), LastFour: secret.LastFour(), Created: now, Expires: expires, PerDay: in.PerDay,
	}, secret, nil
}

// keyEnd parses when a key expires that is created now; the zero time means never.
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
	if end.Year() > 9999 { // such a year is not valid in RFC 3339, and so in JSON
		return time.Time{}, fault.New(fault.InvalidRequest, "expires is before the year 10000, UTC, not %.40s", text).WithParam("expires")
	}
	return end, nil
}
