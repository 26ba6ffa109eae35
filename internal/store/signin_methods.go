package store

import (
	"context"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// AddPasskey adds a passkey of a member; ErrExists if the credential is in use.
func (db *DB) AddPasskey(ctx context.Context, p account.Passkey) error {
	return db.transact(ctx, func(q *query.Queries) error {
		if err := checkText(p.ID, p.Name); err != nil {
			return err
		}
		return q.InsertPasskey(ctx, query.InsertPasskeyParams{
			ID: p.ID, MemberID: p.MemberID, Name: p.Name, Credential: p.Credential, PublicKey: p.PublicKey,
			Synced: p.Synced, Signs: p.Signs, Created: millis(p.Created), Used: millis(p.Used),
		})
	}, "add a passkey of member %q", p.MemberID)
}

// Passkeys returns every passkey of the member, oldest first.
func (db *DB) Passkeys(ctx context.Context, memberID string) ([]account.Passkey, error) {
	if err := checkText(memberID); err != nil {
		return nil, db.wrap(err, "list passkeys")
	}
	rows, err := db.query.PasskeysOf(ctx, memberID)
	return convert(rows, passkey), db.wrap(err, "list the passkeys of member %q", memberID)
}

// UsePasskey records a sign-in with a passkey whose authenticator's counter is now signs.
// ErrNotFound if there is no such passkey, or signs is not greater than the recorded
// counter, so that of concurrent calls with the same assertion one succeeds. For an
// authenticator without a counter signs is 0.
func (db *DB) UsePasskey(ctx context.Context, id string, signs int64, now time.Time) error {
	return db.transact(ctx, func(q *query.Queries) error {
		return oneRow(q.UsePasskey(ctx, id, signs, millis(now)))
	}, "use passkey %q", id)
}

// RemovePasskey deletes a passkey of the member and ends the member's sessions except
// keep. ErrNotFound if the passkey is not the member's, ErrLastWay if it is the member's
// only sign-in method.
func (db *DB) RemovePasskey(ctx context.Context, memberID, id, keep string) error {
	return db.removeSignInMethod(ctx, memberID, id, keep, (*query.Queries).DeletePasskey, "remove passkey %q")
}

// AddIdentity adds a member's account at a provider; ErrExists if it belongs to a member
// already.
func (db *DB) AddIdentity(ctx context.Context, i account.Identity) error {
	return db.transact(ctx, func(q *query.Queries) error { return insertIdentity(ctx, q, i) },
		"bind an identity to member %q", i.MemberID)
}

func insertIdentity(ctx context.Context, q *query.Queries, i account.Identity) error {
	if err := checkText(i.ID, i.Issuer, i.Subject, i.Shown); err != nil {
		return err
	}
	return q.InsertIdentity(ctx, query.InsertIdentityParams{
		ID: i.ID, MemberID: i.MemberID, Issuer: i.Issuer, Subject: i.Subject, Shown: i.Shown, Created: millis(i.Created),
	})
}

// Identity returns the identity of a provider's account; ErrNotFound if there is none.
func (db *DB) Identity(ctx context.Context, issuer, subject string) (account.Identity, error) {
	if err := checkText(issuer, subject); err != nil {
		return account.Identity{}, db.wrap(err, "read an identity")
	}
	row, err := db.query.Identity(ctx, issuer, subject)
	return identity(row), db.wrap(err, "read an identity of %q", issuer)
}

// Identities returns every identity of the member, oldest first.
func (db *DB) Identities(ctx context.Context, memberID string) ([]account.Identity, error) {
	rows, err := db.query.IdentitiesOf(ctx, memberID)
	return convert(rows, identity), db.wrap(err, "list the identities of member %q", memberID)
}

// RemoveIdentity deletes an identity of the member, as RemovePasskey does.
func (db *DB) RemoveIdentity(ctx context.Context, memberID, id, keep string) error {
	return db.removeSignInMethod(ctx, memberID, id, keep, (*query.Queries).DeleteIdentity, "remove identity %q")
}

// removeSignInMethod deletes one of a member's sign-in methods, unless it is the
// last, and ends the sessions that may have used it.
func (db *DB) removeSignInMethod(
	ctx context.Context, memberID, id, keep string,
	remove func(q *query.Queries, ctx context.Context, memberID, id string) (int64, error), what string,
) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := oneRow(q.LockMember(ctx, memberID)); err != nil {
			return nil, err
		}
		if err := oneRow(remove(q, ctx, memberID, id)); err != nil {
			return nil, err
		}
		left, err := q.CountSignInMethods(ctx, memberID)
		if err == nil && left == 0 {
			err = account.ErrLastWay
		}
		if err != nil {
			return nil, err
		}
		return changed(fleet.SessionsChanged, memberID), q.EndSessionsOf(ctx, memberID, keep)
	}, what, id)
}

// BeginCeremony stores a ceremony and deletes expired ones.
func (db *DB) BeginCeremony(ctx context.Context, c account.Ceremony, now time.Time) error {
	return db.transact(ctx, func(q *query.Queries) error {
		if err := q.PruneCeremonies(ctx, millis(now)); err != nil {
			return err
		}
		return q.InsertCeremony(ctx, query.InsertCeremonyParams{
			Hash: c.Hash[:], Kind: string(c.Kind), MemberID: c.MemberID, Data: c.Data, Expires: millis(c.Expires),
		})
	}, "store a sign-in (%s)", c.Kind)
}

// TakeCeremony deletes and returns the ceremony with that hash and kind. Of concurrent
// calls one succeeds. ErrNotFound if there is none or it has expired.
func (db *DB) TakeCeremony(ctx context.Context, hash [32]byte, kind account.CeremonyKind, now time.Time) (account.Ceremony, error) {
	var row query.Ceremony
	err := db.transact(ctx, func(q *query.Queries) (err error) {
		row, err = q.TakeCeremony(ctx, hash[:], string(kind), millis(now))
		return err
	}, "take up a sign-in (%s)", kind)
	return account.Ceremony{
		Hash: hash, Kind: kind, MemberID: row.MemberID, Data: row.Data, Expires: timeOf(row.Expires),
	}, err
}

func passkey(row query.Passkey) account.Passkey {
	return account.Passkey{
		ID: row.ID, MemberID: row.MemberID, Name: row.Name, Credential: row.Credential, PublicKey: row.PublicKey,
		Synced: row.Synced, Signs: row.Signs, Created: timeOf(row.Created), Used: timeOf(row.Used),
	}
}

func identity(row query.Identity) account.Identity {
	return account.Identity{
		ID: row.ID, MemberID: row.MemberID, Issuer: row.Issuer, Subject: row.Subject, Shown: row.Shown, Created: timeOf(row.Created),
	}
}
