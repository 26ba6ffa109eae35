package store

import (
	"context"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// AddPasskey gives a member a passkey; ErrExists if the credential is somebody's
// already.
func (db *DB) AddPasskey(ctx context.Context, p account.Passkey) error {
	err := db.transact(ctx, func(q *query.Queries) error {
		if err := text(p.ID, p.Name); err != nil {
			return err
		}
		return q.InsertPasskey(ctx, query.InsertPasskeyParams{
			ID: p.ID, MemberID: p.MemberID, Name: p.Name, Credential: p.Credential, PublicKey: p.PublicKey,
			Synced: p.Synced, Signs: p.Signs, Created: millis(p.Created), Used: millis(p.Used),
		})
	})
	return db.told(err, "add a passkey of member %q", p.MemberID)
}

// Passkeys is every passkey of the member, the first first.
func (db *DB) Passkeys(ctx context.Context, memberID string) ([]account.Passkey, error) {
	if err := text(memberID); err != nil {
		return nil, db.told(err, "list passkeys")
	}
	rows, err := db.query.PasskeysOf(ctx, memberID)
	return each(rows, passkey), db.told(err, "list the passkeys of member %q", memberID)
}

// UsePasskey notes a sign-in by a passkey whose authenticator now counts signs.
// ErrNotFound if there is no such passkey, or its counter stands there already or
// further: of any number who bring the same answer of a counting authenticator at
// once, one succeeds.
func (db *DB) UsePasskey(ctx context.Context, id string, signs int64, now time.Time) error {
	err := db.transact(ctx, func(q *query.Queries) error {
		return one(q.UsePasskey(ctx, id, signs, millis(now)))
	})
	return db.told(err, "use passkey %q", id)
}

// RemovePasskey takes a passkey from its member, and ends all of the member's
// sessions but the one to keep. ErrNotFound if it is not the member's, ErrLastWay
// if it is the only way in.
func (db *DB) RemovePasskey(ctx context.Context, memberID, id, keep string) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.SessionsChanged, memberID), shut(ctx, q, memberID, keep, func() (int64, error) {
			return q.DeletePasskey(ctx, memberID, id)
		})
	})
	return db.told(err, "remove passkey %q", id)
}

// AddIdentity binds an account at a provider to a member; ErrExists if it is bound.
func (db *DB) AddIdentity(ctx context.Context, i account.Identity) error {
	err := db.transact(ctx, func(q *query.Queries) error { return insertIdentity(ctx, q, i) })
	return db.told(err, "bind an identity to member %q", i.MemberID)
}

func insertIdentity(ctx context.Context, q *query.Queries, i account.Identity) error {
	if err := text(i.ID, i.Issuer, i.Subject, i.Shown); err != nil {
		return err
	}
	return q.InsertIdentity(ctx, query.InsertIdentityParams{
		ID: i.ID, MemberID: i.MemberID, Issuer: i.Issuer, Subject: i.Subject, Shown: i.Shown, Created: millis(i.Created),
	})
}

// Identity is what the provider's account is bound to; ErrNotFound if to nobody.
func (db *DB) Identity(ctx context.Context, issuer, subject string) (account.Identity, error) {
	if err := text(issuer, subject); err != nil {
		return account.Identity{}, db.told(err, "read an identity")
	}
	row, err := db.query.Identity(ctx, issuer, subject)
	return identity(row), db.told(err, "read an identity of %q", issuer)
}

// Identities is every identity of the member, the first first.
func (db *DB) Identities(ctx context.Context, memberID string) ([]account.Identity, error) {
	rows, err := db.query.IdentitiesOf(ctx, memberID)
	return each(rows, identity), db.told(err, "list the identities of member %q", memberID)
}

// RemoveIdentity is RemovePasskey for an identity.
func (db *DB) RemoveIdentity(ctx context.Context, memberID, id, keep string) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.SessionsChanged, memberID), shut(ctx, q, memberID, keep, func() (int64, error) {
			return q.DeleteIdentity(ctx, memberID, id)
		})
	})
	return db.told(err, "remove identity %q", id)
}

// shut takes one of a member's ways in, unless it is the last, and ends the
// sessions that may have come by it.
func shut(ctx context.Context, q *query.Queries, memberID, keep string, remove func() (int64, error)) error {
	if err := one(q.LockMember(ctx, memberID)); err != nil {
		return err
	}
	if err := one(remove()); err != nil {
		return err
	}
	left, err := q.WaysIn(ctx, memberID)
	if err == nil && left == 0 {
		err = account.ErrLastWay
	}
	if err != nil {
		return err
	}
	return q.EndSessionsOf(ctx, memberID, keep)
}

// BeginCeremony remembers a ceremony until it is taken or expires, and drops those
// that expired.
func (db *DB) BeginCeremony(ctx context.Context, c account.Ceremony, now time.Time) error {
	err := db.transact(ctx, func(q *query.Queries) error {
		if err := q.PruneCeremonies(ctx, millis(now)); err != nil {
			return err
		}
		return q.InsertCeremony(ctx, query.InsertCeremonyParams{
			Hash: c.Hash[:], Kind: string(c.Kind), MemberID: c.MemberID, Data: c.Data, Expires: millis(c.Expires),
		})
	})
	return db.told(err, "remember a sign-in (%s)", c.Kind)
}

// TakeCeremony is the ceremony of that hash and kind, which is forgotten with it:
// of any number who take it at once, one succeeds. ErrNotFound if there is none
// or it expired.
func (db *DB) TakeCeremony(ctx context.Context, hash [32]byte, kind account.CeremonyKind, now time.Time) (account.Ceremony, error) {
	var row query.Ceremony
	err := db.transact(ctx, func(q *query.Queries) (err error) {
		row, err = q.TakeCeremony(ctx, hash[:], string(kind), millis(now))
		return err
	})
	return account.Ceremony{
		Hash: hash, Kind: kind, MemberID: row.MemberID, Data: row.Data, Expires: moment(row.Expires),
	}, db.told(err, "take up a sign-in (%s)", kind)
}

func passkey(row query.Passkey) account.Passkey {
	return account.Passkey{
		ID: row.ID, MemberID: row.MemberID, Name: row.Name, Credential: row.Credential, PublicKey: row.PublicKey,
		Synced: row.Synced, Signs: row.Signs, Created: moment(row.Created), Used: moment(row.Used),
	}
}

func identity(row query.Identity) account.Identity {
	return account.Identity{
		ID: row.ID, MemberID: row.MemberID, Issuer: row.Issuer, Subject: row.Subject, Shown: row.Shown, Created: moment(row.Created),
	}
}
