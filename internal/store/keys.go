package store

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// CreateKey adds an API key; ErrNotFound if there is no such member.
func (db *DB) CreateKey(ctx context.Context, k account.Key) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.KeyChanged, k.ID), insertKey(ctx, q, k)
	}, "create key %q", k.Name)
}

// KeyByHash returns the key whose secret has that SHA-256, and its member; ErrNotFound if
// there is none, it is revoked, or its member is disabled. The key may have expired.
func (db *DB) KeyByHash(ctx context.Context, hash [32]byte) (account.Key, account.Member, error) {
	row, err := db.query.KeyByHash(ctx, hash[:])
	return key(row.Key), member(row.Member), db.wrap(checkHash(err, row.Key.Hash, hash), "read a key by its hash")
}

// Key returns one key; ErrNotFound if it is revoked or its member is disabled. It may have
// expired.
func (db *DB) Key(ctx context.Context, id string) (account.Key, error) {
	row, err := db.query.Key(ctx, id)
	return key(row), db.wrap(err, "read key %q", id)
}

// Keys returns every key of the member, oldest first. Revoked ones are included.
func (db *DB) Keys(ctx context.Context, memberID string) ([]account.Key, error) {
	rows, err := db.query.Keys(ctx, memberID)
	return convert(rows, key), db.wrap(err, "list the keys of member %q", memberID)
}

// RevokeKey revokes a key; ErrNotFound if it is not live.
func (db *DB) RevokeKey(ctx context.Context, id string, now time.Time) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.KeyChanged, id), oneRow(q.RevokeKey(ctx, id, millis(now)))
	}, "revoke key %q", id)
}

// RevokeOwnKey revokes a key of the member; ErrNotFound if it is not live or is
// another member's.
func (db *DB) RevokeOwnKey(ctx context.Context, memberID, id string, now time.Time) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.KeyChanged, id), oneRow(q.RevokeOwnKey(ctx, id, memberID, millis(now)))
	}, "revoke key %q of member %q", id, memberID)
}

// LimitOwnKey sets how many calls a day a key of the member may make, 0 for no limit;
// ErrNotFound if it is not live or is another member's.
func (db *DB) LimitOwnKey(ctx context.Context, memberID, id string, perDay int) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.KeyChanged, id), oneRow(q.LimitOwnKey(ctx, id, memberID, perDay))
	}, "limit key %q of member %q", id, memberID)
}

// TouchKeys records when keys were last used, by id. It ignores a time before the
// recorded one and an unknown id.
func (db *DB) TouchKeys(ctx context.Context, used map[string]time.Time) error {
	return db.transact(ctx, func(q *query.Queries) error {
		// Sorted by id, so that two hubs that write the same keys do not deadlock.
		for _, id := range slices.Sorted(maps.Keys(used)) {
			if err := q.TouchKey(ctx, id, millis(used[id])); err != nil {
				return err
			}
		}
		return nil
	}, "record the use of %d keys", len(used))
}

func insertKey(ctx context.Context, q *query.Queries, k account.Key) error {
	if err := checkText(k.ID, k.Name, k.Region, k.LastFour); err != nil {
		return err
	}
	return q.InsertKey(ctx, query.InsertKeyParams{
		ID: k.ID, MemberID: k.MemberID, Name: k.Name, Region: k.Region, Reach: string(k.Reach),
		Hash: k.Hash[:], LastFour: k.LastFour,
		Created: millis(k.Created), LastUsed: millis(k.LastUsed), Revoked: millis(k.Revoked), Expires: millis(k.Expires), Manage: k.Manage,
		PerDay: k.PerDay,
	})
}

func key(row query.Key) account.Key {
	return account.Key{
		ID: row.ID, MemberID: row.MemberID, Name: row.Name, Region: row.Region, Reach: account.Reach(row.Reach),
		Hash: hashOf(row.Hash), LastFour: row.LastFour,
		Created: timeOf(row.Created), LastUsed: timeOf(row.LastUsed), Revoked: timeOf(row.Revoked), Expires: timeOf(row.Expires), Manage: row.Manage,
		PerDay: row.PerDay,
	}
}
