package store

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store/internal/query"
)

// Email returns the member's e-mail address, and one that is not verified yet;
// ErrNotFound if there is neither.
func (db *DB) Email(ctx context.Context, memberID string) (account.Email, error) {
	row, err := db.query.Email(ctx, memberID)
	return email(row), db.wrap(err, "read the e-mail address of member %q", memberID)
}

// AskEmail records the hash of a link that was mailed to e.Asked, with which the
// member can verify that address. It replaces an earlier link. The member's verified
// address does not change.
func (db *DB) AskEmail(ctx context.Context, e account.Email) error {
	return db.transact(ctx, func(q *query.Queries) error {
		if err := checkText(e.Asked); err != nil {
			return err
		}
		return q.AskEmail(ctx, e.MemberID, e.Asked, e.Hash[:], millis(e.Expires))
	}, "store an e-mail address of member %q", e.MemberID)
}

// VerifyEmail uses the link with that hash. The link's address replaces the member's
// previous one, which is returned (with an empty Address if there was none), and links
// that were mailed to the previous address are deleted. Of concurrent calls one succeeds.
// ErrNotFound if the link belongs to another member, or is used, replaced or expired.
func (db *DB) VerifyEmail(ctx context.Context, memberID string, hash [32]byte, now time.Time) (before account.Email, err error) {
	err = db.transact(ctx, func(q *query.Queries) error {
		row, err := lockEmail(ctx, q, memberID)
		if err = checkHash(err, row.Hash, hash); err != nil {
			return err
		}
		before = email(row)
		// In Go, because lower() depends on the database's configuration.
		if err := oneRow(q.VerifyEmail(ctx, memberID, hash[:], strings.ToLower(row.Asked), millis(now))); err != nil {
			return err
		}
		return q.DropMailedLinks(ctx, memberID)
	}, "verify the e-mail address of member %q", memberID)
	return before, err
}

// RemoveEmail deletes the member's addresses and the links that were mailed to them, and
// returns the addresses. ErrNotFound if there are none.
func (db *DB) RemoveEmail(ctx context.Context, memberID string) (before account.Email, err error) {
	err = db.transact(ctx, func(q *query.Queries) error {
		row, err := lockEmail(ctx, q, memberID)
		if err != nil {
			return err
		}
		before = email(row)
		if err := oneRow(q.DeleteEmail(ctx, memberID)); err != nil {
			return err
		}
		return q.DropMailedLinks(ctx, memberID)
	}, "remove the e-mail address of member %q", memberID)
	return before, err
}

// lockEmail locks the member's row and returns the member's addresses.
func lockEmail(ctx context.Context, q *query.Queries, memberID string) (query.Email, error) {
	if err := oneRow(q.LockMember(ctx, memberID)); err != nil {
		return query.Email{}, err
	}
	return q.Email(ctx, memberID)
}

// EmailsOf returns the verified addresses that are equal to address, ignoring case:
// oldest first, up to most of them.
func (db *DB) EmailsOf(ctx context.Context, address string, most int) ([]account.Email, error) {
	if err := checkText(address); err != nil {
		return nil, db.wrap(err, "look for an e-mail address")
	}
	rows, err := db.query.EmailsOf(ctx, strings.ToLower(address), int32(most))
	if err != nil { // the error may quote the address
		return nil, errors.New("cannot look for an e-mail address in the database")
	}
	return convert(rows, email), nil
}

func email(row query.Email) account.Email {
	return account.Email{
		MemberID: row.MemberID, Address: row.Address, Verified: timeOf(row.Verified), Asked: row.Asked,
		Hash: hashOf(row.Hash), Expires: timeOf(row.Expires),
	}
}
