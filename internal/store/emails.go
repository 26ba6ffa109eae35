package store

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store/internal/query"
)

// Email is the member's e-mail address, and one that waits to be proved;
// ErrNotFound if there is neither.
func (db *DB) Email(ctx context.Context, memberID string) (account.Email, error) {
	row, err := db.query.Email(ctx, memberID)
	return email(row), db.told(err, "read the e-mail address of member %q", memberID)
}

// AskEmail notes that a link was mailed to e.Asked, by its hash, for the member to
// prove an address with; an earlier one stops working. Until then the address of
// before counts.
func (db *DB) AskEmail(ctx context.Context, e account.Email) error {
	err := db.transact(ctx, func(q *query.Queries) error {
		if err := text(e.Asked); err != nil {
			return err
		}
		return q.AskEmail(ctx, e.MemberID, e.Asked, e.Hash[:], millis(e.Expires))
	})
	return db.told(err, "keep an e-mail address of member %q", e.MemberID)
}

// VerifyEmail uses up the link of that hash: its address takes the place of the
// one of before, which is told (Address empty: there was none), and ends the links
// that were mailed there. Of any number who use it at once, one succeeds.
// ErrNotFound if it is not the member's, was used, replaced or expired.
func (db *DB) VerifyEmail(ctx context.Context, memberID string, hash [32]byte, now time.Time) (before account.Email, err error) {
	err = db.transact(ctx, func(q *query.Queries) error {
		row, err := lockEmail(ctx, q, memberID)
		if err != nil {
			return err
		}
		if !sameHash(row.Hash, hash) {
			return sql.ErrNoRows
		}
		before = email(row)
		// Lower case by Go: what the databases call so depends on where they run.
		if err := one(q.VerifyEmail(ctx, memberID, hash[:], strings.ToLower(row.Asked), millis(now))); err != nil {
			return err
		}
		return q.DropMailedLinks(ctx, memberID)
	})
	return before, db.told(err, "verify the e-mail address of member %q", memberID)
}

// RemoveEmail forgets the member's addresses, which are told, and ends the links
// that were mailed there. ErrNotFound if there are none.
func (db *DB) RemoveEmail(ctx context.Context, memberID string) (before account.Email, err error) {
	err = db.transact(ctx, func(q *query.Queries) error {
		row, err := lockEmail(ctx, q, memberID)
		if err != nil {
			return err
		}
		before = email(row)
		if err := one(q.DeleteEmail(ctx, memberID)); err != nil {
			return err
		}
		return q.DropMailedLinks(ctx, memberID)
	})
	return before, db.told(err, "remove the e-mail address of member %q", memberID)
}

// lockEmail is the member's row, which nobody else changes in the meantime.
func lockEmail(ctx context.Context, q *query.Queries, memberID string) (query.Email, error) {
	if err := one(q.LockMember(ctx, memberID)); err != nil {
		return query.Email{}, err
	}
	return q.Email(ctx, memberID)
}

// EmailsOf is up to most addresses that count and are that one, whatever its
// case, the first first.
func (db *DB) EmailsOf(ctx context.Context, address string, most int) ([]account.Email, error) {
	if err := text(address); err != nil {
		return nil, db.told(err, "look for an e-mail address")
	}
	rows, err := db.query.EmailsOf(ctx, strings.ToLower(address), int32(most))
	if err != nil {
		// Its text may quote what was looked for.
		return nil, errors.New("cannot look for an e-mail address in the database")
	}
	return each(rows, email), nil
}

func email(row query.Email) account.Email {
	e := account.Email{
		MemberID: row.MemberID, Address: row.Address, Verified: moment(row.Verified), Asked: row.Asked, Expires: moment(row.Expires),
	}
	copy(e.Hash[:], row.Hash)
	return e
}
