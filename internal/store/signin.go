package store

import (
	"context"
	"database/sql"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// SignUp adds a member with a password or an identity, and takes what lets it in with the same
// transaction: of any number who sign up by one invite or link at once, no more
// succeed than it has uses, and one that fails leaves it as it was. ErrExists if
// the name or the identity is taken; ErrNotFound if the invite or link is wrong, used up,
// expired, revoked or, an invite, of a disabled member.
func (db *DB) SignUp(ctx context.Context, s account.SignUp, now time.Time) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		m := s.Member
		if err := text(m.ID, m.Name, s.Password); err != nil {
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
		row := query.InsertMemberParams{ID: m.ID, Name: m.Name, Operator: m.Operator, Disabled: m.Disabled, Created: millis(m.Created)}
		if err := q.InsertMember(ctx, row); err != nil {
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
	})
	return db.told(err, "sign up %q", s.Member.Name)
}

// Password is the hash of the member's password; ErrNotFound if there is none.
func (db *DB) Password(ctx context.Context, memberID string) (string, error) {
	hash, err := db.query.Password(ctx, memberID)
	return hash, db.told(err, "read the password of member %q", memberID)
}

// SetPassword gives the member a password, by its hash, and ends all of the
// member's sessions but the one to keep (empty: all of them), and the links that
// were mailed.
func (db *DB) SetPassword(ctx context.Context, memberID, hash, keep string, now time.Time) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.SessionsChanged, memberID), setPassword(ctx, q, memberID, hash, keep, now)
	})
	return db.told(err, "set the password of member %q", memberID)
}

func setPassword(ctx context.Context, q *query.Queries, memberID, hash, keep string, now time.Time) error {
	if err := text(hash); err != nil {
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

// OperatorCanSignIn reports whether a member who is an operator has a password, a
// passkey or an account at an OpenID provider.
func (db *DB) OperatorCanSignIn(ctx context.Context) (bool, error) {
	n, err := db.query.OperatorsWithWayIn(ctx)
	return n > 0, db.told(err, "look for an operator who can sign in")
}

// PutRecoveryCodes gives the member these codes, by their hashes, in place of
// those there are.
func (db *DB) PutRecoveryCodes(ctx context.Context, memberID string, hashes [][32]byte) error {
	err := db.transact(ctx, func(q *query.Queries) error {
		if err := q.DropRecoveryCodes(ctx, memberID); err != nil {
			return err
		}
		for _, hash := range hashes {
			if err := q.InsertRecoveryCode(ctx, memberID, hash[:]); err != nil {
				return err
			}
		}
		return nil
	})
	return db.told(err, "keep the recovery codes of member %q", memberID)
}

// RecoveryCodes is how many codes the member has left.
func (db *DB) RecoveryCodes(ctx context.Context, memberID string) (int, error) {
	n, err := db.query.RecoveryCodes(ctx, memberID)
	return int(n), db.told(err, "count the recovery codes of member %q", memberID)
}

// Recover uses a recovery code up, sets the password and ends every session of
// the member, all or nothing. ErrNotFound if the code is not the member's.
func (db *DB) Recover(ctx context.Context, memberID string, code [32]byte, hash string, now time.Time) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		if err := one(q.UseRecoveryCode(ctx, memberID, code[:])); err != nil {
			return nil, err
		}
		return changed(fleet.SessionsChanged, memberID), setPassword(ctx, q, memberID, hash, "", now)
	})
	return db.told(err, "recover the account of member %q", memberID)
}

// CreateLink adds a one-time link; an earlier one of the same member, or of
// nobody, stops working, if both were mailed or neither was.
func (db *DB) CreateLink(ctx context.Context, l account.Link) error {
	err := db.transact(ctx, func(q *query.Queries) error {
		if err := q.DropLinks(ctx, l.MemberID, l.Mailed, millis(l.Created)); err != nil {
			return err
		}
		return q.InsertLink(ctx, query.InsertLinkParams{
			Hash: l.Hash[:], MemberID: l.MemberID, Created: millis(l.Created), Expires: millis(l.Expires), Mailed: l.Mailed,
		})
	})
	return db.told(err, "create a link")
}

// Link is the link with that hash while it works, else ErrNotFound.
func (db *DB) Link(ctx context.Context, hash [32]byte, now time.Time) (account.Link, error) {
	row, err := db.query.Link(ctx, hash[:], millis(now))
	if err == nil && !sameHash(row.Hash, hash) {
		err = sql.ErrNoRows
	}
	return account.Link{
		Hash: hash, MemberID: row.MemberID, Created: moment(row.Created), Expires: moment(row.Expires), Mailed: row.Mailed,
	}, db.told(err, "read a link")
}

// UseLink uses up a member's link: of any number who use it at once, one
// succeeds. ErrNotFound if it is wrong, used, expired, of nobody or of a
// disabled member.
func (db *DB) UseLink(ctx context.Context, hash [32]byte, now time.Time) (account.Member, error) {
	var whose query.Member
	err := db.transact(ctx, func(q *query.Queries) error {
		id, err := q.UseLink(ctx, hash[:], millis(now))
		if err != nil {
			return err
		}
		if whose, err = q.MemberByID(ctx, id); err == nil && whose.Disabled {
			err = sql.ErrNoRows
		}
		return err
	})
	return member(whose), db.told(err, "use a link")
}

// CreateSession adds a session, and drops those that expired.
func (db *DB) CreateSession(ctx context.Context, s account.Session) error {
	err := db.transact(ctx, func(q *query.Queries) error {
		if err := q.PruneSessions(ctx, millis(s.Seen)); err != nil {
			return err
		}
		return q.InsertSession(ctx, query.InsertSessionParams{
			ID: s.ID, MemberID: s.MemberID, Data: s.Data, Created: millis(s.Created), Seen: millis(s.Seen), Expires: millis(s.Expires),
		})
	})
	return db.told(err, "create a session")
}

// TouchSession keeps a session's data, and when it was seen. One that ended
// meanwhile stays ended.
func (db *DB) TouchSession(ctx context.Context, s account.Session) error {
	err := db.transact(ctx, func(q *query.Queries) error {
		return q.TouchSession(ctx, s.ID, s.Data, millis(s.Seen), millis(s.Expires))
	})
	return db.told(err, "keep a session")
}

// Session is the live session with that id, else ErrNotFound.
func (db *DB) Session(ctx context.Context, id string, now time.Time) (account.Session, error) {
	if err := text(id); err != nil {
		return account.Session{}, db.told(sql.ErrNoRows, "read a session")
	}
	row, err := db.query.Session(ctx, id, millis(now))
	return session(row), db.told(err, "read a session")
}

// SessionsOf is every live session of the member, the first first.
func (db *DB) SessionsOf(ctx context.Context, memberID string, now time.Time) ([]account.Session, error) {
	rows, err := db.query.SessionsOf(ctx, memberID, millis(now))
	return each(rows, session), db.told(err, "list the sessions of member %q", memberID)
}

// EndSession ends a session, whoever's; none is none to end. As with every end of
// a session, what runs by one is told of it as a change.
func (db *DB) EndSession(ctx context.Context, id string) error {
	err := db.change(ctx, func(q *query.Queries) (changes []fleet.Change, err error) {
		members, err := q.EndSession(ctx, id)
		for _, member := range members {
			changes = append(changes, changed(fleet.SessionsChanged, member)...)
		}
		return changes, err
	})
	return db.told(err, "end a session")
}

// EndSessionOf ends a session of the member's; ErrNotFound if there is none.
func (db *DB) EndSessionOf(ctx context.Context, memberID, id string) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.SessionsChanged, memberID), one(q.EndSessionOf(ctx, memberID, id))
	})
	return db.told(err, "end a session of member %q", memberID)
}

// EndSessionsOf ends every session of the member but the one to keep.
func (db *DB) EndSessionsOf(ctx context.Context, memberID, keep string) error {
	err := db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		return changed(fleet.SessionsChanged, memberID), q.EndSessionsOf(ctx, memberID, keep)
	})
	return db.told(err, "end the sessions of member %q", memberID)
}

func session(row query.Session) account.Session {
	return account.Session{
		ID: row.ID, MemberID: row.MemberID, Data: row.Data,
		Created: moment(row.Created), Seen: moment(row.Seen), Expires: moment(row.Expires),
	}
}
