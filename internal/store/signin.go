package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// SignUp adds a member with a password or an identity, and uses the invite or link in the
// same transaction, so that concurrent calls succeed at most as often as it has uses. A
// call that fails does not use it. ErrExists if the name or the identity is taken; ErrLooksTaken if
// the name looks like another; ErrNotFound if the invite or link is wrong, used up,
// expired or revoked, or the member who made the invite is disabled.
func (db *DB) SignUp(ctx context.Context, s account.SignUp, now time.Time) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		m := s.Member
		if err := checkText(m.ID, m.Name, s.Password); err != nil {
			return nil, err
		}
		if s.Link != nil {
			whose, err := q.UseLink(ctx, s.Link[:], millis(now))
			if err == nil && whose != "" {
				err = sql.ErrNoRows
			}
			if err != nil {
				return nil, err
			}
		}
		if err := insertMember(ctx, q, m); err != nil {
			return nil, err
		}
		changes := changed(fleet.MemberChanged, m.ID)
		if s.Invite != nil {
			share := account.Share{ID: account.NewID("shr_"), MemberID: m.ID, Created: now}
			if _, _, err := useInvite(ctx, q, *s.Invite, share, now); err != nil {
				return nil, err
			}
			changes = append(changes, changed(fleet.SharesChanged, m.ID)...)
		}
		if s.Identity != nil {
			if err := insertIdentity(ctx, q, *s.Identity); err != nil {
				return nil, err
			}
		}
		if s.Password == "" {
			return changes, nil
		}
		return changes, q.PutPassword(ctx, m.ID, s.Password, millis(now))
	}, "sign up %q", s.Member.Name)
}

// Password returns the hash of the member's password; ErrNotFound if there is none.
func (db *DB) Password(ctx context.Context, memberID string) (string, error) {
	hash, err := db.query.Password(ctx, memberID)
	return hash, db.wrap(err, "read the password of member %q", memberID)
}

// SetPassword stores the hash of the member's password, deletes the links that were
// mailed, and ends the member's sessions except keep. If keep is empty, it ends all of
// them.
func (db *DB) SetPassword(ctx context.Context, memberID, hash, keep string, now time.Time) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.SessionsChanged, memberID), setPassword(ctx, q, memberID, hash, keep, now)
	}, "set the password of member %q", memberID)
}

func setPassword(ctx context.Context, q *query.Queries, memberID, hash, keep string, now time.Time) error {
	if err := checkText(hash); err != nil {
		return err
	}
	if err := q.PutPassword(ctx, memberID, hash, millis(now)); err != nil {
		return err
	}
	if err := q.DropMailedLinks(ctx, memberID); err != nil {
		return err
	}
	return q.EndSessionsOf(ctx, memberID, keep)
}

// OperatorCanSignIn reports whether any operator has a password, a passkey or an account
// at an OpenID provider.
func (db *DB) OperatorCanSignIn(ctx context.Context) (bool, error) {
	n, err := db.query.CountOperatorsWhoCanSignIn(ctx)
	return n > 0, db.wrap(err, "look for an operator who can sign in")
}

// PutRecoveryCodes replaces the hashes of the member's recovery codes.
func (db *DB) PutRecoveryCodes(ctx context.Context, memberID string, hashes [][32]byte) error {
	return db.transact(ctx, func(q *query.Queries) error {
		if err := q.DropRecoveryCodes(ctx, memberID); err != nil {
			return err
		}
		for _, hash := range hashes {
			if err := q.InsertRecoveryCode(ctx, memberID, hash[:]); err != nil {
				return err
			}
		}
		return nil
	}, "keep the recovery codes of member %q", memberID)
}

// RecoveryCodes returns the number of codes that the member has left.
func (db *DB) RecoveryCodes(ctx context.Context, memberID string) (int, error) {
	n, err := db.query.RecoveryCodes(ctx, memberID)
	return int(n), db.wrap(err, "count the recovery codes of member %q", memberID)
}

var errDisabled = fmt.Errorf("%w: the member is disabled", ErrInvalid)

// Recover uses a recovery code, sets the password and ends every session of the
// member. ErrNotFound if the code is not the member's; ErrInvalid if it is, and the member
// is disabled.
func (db *DB) Recover(ctx context.Context, memberID string, code [32]byte, hash string, now time.Time) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := oneRow(q.UseRecoveryCode(ctx, memberID, code[:])); err != nil {
			return nil, err
		}
		if _, err := enabledMember(ctx, q, memberID); err != nil {
			return nil, errDisabled
		}
		return changed(fleet.SessionsChanged, memberID), setPassword(ctx, q, memberID, hash, "", now)
	}, "recover the account of member %q", memberID)
}

// CreateLink adds a one-time link. It deletes an earlier link with the same MemberID
// and Mailed.
func (db *DB) CreateLink(ctx context.Context, l account.Link) error {
	return db.transact(ctx, func(q *query.Queries) error {
		if err := q.DropLinks(ctx, l.MemberID, l.Mailed, millis(l.Created)); err != nil {
			return err
		}
		return q.InsertLink(ctx, query.InsertLinkParams{
			Hash: l.Hash[:], MemberID: l.MemberID, Created: millis(l.Created), Expires: millis(l.Expires), Mailed: l.Mailed,
		})
	}, "create a link")
}

// Link returns the link with that hash; ErrNotFound if it is used or expired.
func (db *DB) Link(ctx context.Context, hash [32]byte, now time.Time) (account.Link, error) {
	row, err := db.query.Link(ctx, hash[:], millis(now))
	return account.Link{
		Hash: hash, MemberID: row.MemberID, Created: timeOf(row.Created), Expires: timeOf(row.Expires), Mailed: row.Mailed,
	}, db.wrap(checkHash(err, row.Hash, hash), "read a link")
}

// UseLink uses a member's link. Of concurrent calls one succeeds. ErrNotFound if it
// is wrong, used or expired, or has no member or a disabled one.
func (db *DB) UseLink(ctx context.Context, hash [32]byte, now time.Time) (account.Member, error) {
	var whose query.Member
	err := db.transact(ctx, func(q *query.Queries) error {
		id, err := q.UseLink(ctx, hash[:], millis(now))
		if err != nil {
			return err
		}
		whose, err = enabledMember(ctx, q, id)
		return err
	}, "use a link")
	return member(whose), err
}

// CreateSession adds a session and deletes expired ones.
func (db *DB) CreateSession(ctx context.Context, s account.Session) error {
	return db.transact(ctx, func(q *query.Queries) error {
		if err := q.PruneSessions(ctx, millis(s.Seen)); err != nil {
			return err
		}
		return q.InsertSession(ctx, query.InsertSessionParams{
			ID: s.ID, MemberID: s.MemberID, Data: s.Data, Created: millis(s.Created), Seen: millis(s.Seen), Expires: millis(s.Expires),
		})
	}, "create a session")
}

// TouchSession stores a session's data and when it was last seen. It does not restore a
// session that ended.
func (db *DB) TouchSession(ctx context.Context, s account.Session) error {
	return db.transact(ctx, func(q *query.Queries) error {
		return q.TouchSession(ctx, s.ID, s.Data, millis(s.Seen), millis(s.Expires))
	}, "store a session")
}

// Session returns the live session with that id; ErrNotFound if there is none.
func (db *DB) Session(ctx context.Context, id string, now time.Time) (account.Session, error) {
	if err := checkText(id); err != nil {
		return account.Session{}, db.wrap(sql.ErrNoRows, "read a session")
	}
	row, err := db.query.Session(ctx, id, millis(now))
	return session(row), db.wrap(err, "read a session")
}

// SessionsOf returns every live session of the member, oldest first.
func (db *DB) SessionsOf(ctx context.Context, memberID string, now time.Time) ([]account.Session, error) {
	rows, err := db.query.SessionsOf(ctx, memberID, millis(now))
	return convert(rows, session), db.wrap(err, "list the sessions of member %q", memberID)
}

// EndSession ends the session with that id, if it exists. Every end of a session is
// recorded as a change, which ends the session's event streams.
func (db *DB) EndSession(ctx context.Context, id string) error {
	return db.change(ctx, func(q *query.Queries) (changes []fleet.Change, err error) {
		members, err := q.EndSession(ctx, id)
		for _, member := range members {
			changes = append(changes, changed(fleet.SessionsChanged, member)...)
		}
		return changes, err
	}, "end a session")
}

// EndSessionOf ends a session of the member; ErrNotFound if there is none.
func (db *DB) EndSessionOf(ctx context.Context, memberID, id string) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.SessionsChanged, memberID), oneRow(q.EndSessionOf(ctx, memberID, id))
	}, "end a session of member %q", memberID)
}

// EndSessionsOf ends every session of the member except keep.
func (db *DB) EndSessionsOf(ctx context.Context, memberID, keep string) error {
	return db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.SessionsChanged, memberID), q.EndSessionsOf(ctx, memberID, keep)
	}, "end the sessions of member %q", memberID)
}

func session(row query.Session) account.Session {
	return account.Session{
		ID: row.ID, MemberID: row.MemberID, Data: row.Data,
		Created: timeOf(row.Created), Seen: timeOf(row.Seen), Expires: timeOf(row.Expires),
	}
}
