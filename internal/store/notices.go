package store

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store/internal/query"
)

const (
	// mostNoted limits the number of machines, or keys, in one pass.
	mostNoted = 10_000
	// clockWrong is how far in the future a pass must be for its clock to count as wrong.
	clockWrong = 10 * time.Minute
)

// ClaimNoticePass reports whether the caller should make the next pass that creates
// notices: in each interval one node of the database does. first is the time of the very
// first pass; nothing from before it is mailed.
func (db *DB) ClaimNoticePass(ctx context.Context, now time.Time, every time.Duration) (first time.Time, claimed bool, err error) {
	err = db.transact(ctx, func(q *query.Queries) error {
		n, err := q.ClaimNoticePass(ctx, millis(now), millis(now.Add(-every)), millis(now.Add(clockWrong)))
		if err != nil || n == 0 {
			return err
		}
		claimed = true
		began, err := q.FirstNoticePass(ctx)
		first = timeOf(began)
		return err
	}, "begin a pass over the notices")
	return first, claimed && err == nil, err
}

// AddNotices stores new notices, at most account.NoticesADay for one member, and deletes
// those that are older than account.NoticeLife.
func (db *DB) AddNotices(ctx context.Context, notices []account.Notice, now time.Time) error {
	return db.transact(ctx, func(q *query.Queries) error {
		for _, n := range notices {
			if err := checkText(n.Text); err != nil {
				return err
			}
			_, err := q.AddNotice(ctx, query.AddNoticeParams{
				Member: n.MemberID, Kind: string(n.Kind), Subject: n.Subject, Occasion: millis(n.Occasion), At: millis(now), Text: n.Text,
				Since: millis(now.AddDate(0, 0, -1)), Most: account.NoticesADay,
			})
			if err != nil {
				return err
			}
		}
		return q.PruneNotices(ctx, millis(now.Add(-account.NoticeLife)))
	}, "store %d notices", len(notices))
}

// Notices returns the member's notices after since and up to until, newest first, up to
// most of them. It does not include invitations and joins.
func (db *DB) Notices(ctx context.Context, memberID string, since, until time.Time, most int) ([]account.Notice, error) {
	rows, err := db.query.Notices(ctx, memberID, millis(since), millis(until), int32(most))
	return convert(rows, func(row query.NoticesRow) account.Notice {
		return account.Notice{
			MemberID: row.MemberID, Kind: account.NoticeKind(row.Kind), Subject: row.Subject, Occasion: timeOf(row.Occasion), At: timeOf(row.At), Text: row.Text, New: row.Unseen,
		}
	}), db.wrap(err, "list the notices of member %q", memberID)
}

// SeeNotices records that the member has seen the notices and joins up to a time.
func (db *DB) SeeNotices(ctx context.Context, memberID string, until time.Time) error {
	return db.transact(ctx, func(q *query.Queries) error {
		if err := q.SeeNotices(ctx, memberID, millis(until)); err != nil {
			return err
		}
		return q.SeeJoins(ctx, millis(until), memberID)
	}, "record what member %q has seen", memberID)
}

// CountNotices returns the number of the member's invitations, and of notices and joins
// that the member has not seen, without the kinds that are switched off.
func (db *DB) CountNotices(ctx context.Context, memberID string, now time.Time) (int, error) {
	n, err := db.query.CountNotices(ctx, memberID, millis(now), millis(now.Add(-account.JoinLife)))
	off := kinds(n.OffSite)
	if slices.Contains(off, account.NoticeInvited) {
		n.Invitations = 0
	}
	if slices.Contains(off, account.NoticeJoined) {
		n.Joins = 0
	}
	return int(n.Notices + n.Invitations + n.Joins), db.wrap(err, "count the notices of member %q", memberID)
}

// NoticeChoices returns which kinds of notices the member does not want.
func (db *DB) NoticeChoices(ctx context.Context, memberID string) (account.NoticeChoices, error) {
	row, err := db.query.NoticeMember(ctx, memberID)
	if errors.Is(err, sql.ErrNoRows) {
		return account.NoticeChoices{}, nil
	}
	return account.NoticeChoices{OffSite: kinds(row.OffSite), OffMail: kinds(row.OffMail)}, db.wrap(err, "read what member %q is notified of", memberID)
}

// SetNoticeChoices stores which kinds of notices the member does not want.
func (db *DB) SetNoticeChoices(ctx context.Context, memberID string, c account.NoticeChoices) error {
	return db.transact(ctx, func(q *query.Queries) error {
		return q.PutNoticeChoices(ctx, memberID, kindsText(c.OffSite), kindsText(c.OffMail))
	}, "store what member %q is notified of", memberID)
}

// kindsText is the inverse of kinds. Each kind has a space on both sides, because queries
// search for that.
func kindsText(list []account.NoticeKind) string {
	if len(list) == 0 {
		return ""
	}
	return " " + strings.Join(convert(list, func(k account.NoticeKind) string { return string(k) }), " ") + " "
}

func kinds(text string) []account.NoticeKind {
	return convert(strings.Fields(text), func(k string) account.NoticeKind { return account.NoticeKind(k) })
}

// MachinesOffline returns machines that were last seen between the two times and whose
// owners have no notice about it yet.
func (db *DB) MachinesOffline(ctx context.Context, since, until time.Time) ([]account.OfflineMachine, error) {
	rows, err := db.query.MachinesOffline(ctx, millis(since), millis(until), string(account.NoticeOffline), mostNoted)
	return convert(rows, func(row query.MachinesOfflineRow) account.OfflineMachine {
		return account.OfflineMachine{ID: row.ID, Name: row.Name, OwnerID: row.OwnerID, LastSeen: timeOf(row.LastSeen)}
	}), db.wrap(err, "list machines that are offline")
}

// KeysEnding returns keys that expire between the two times, were created for longer than
// that, and whose members have no notice about it yet.
func (db *DB) KeysEnding(ctx context.Context, since, until time.Time) ([]account.EndingKey, error) {
	rows, err := db.query.KeysEnding(ctx, millis(since), millis(until), string(account.NoticeEnding), mostNoted)
	return convert(rows, func(row query.KeysEndingRow) account.EndingKey {
		return account.EndingKey{ID: row.ID, Name: row.Name, LastFour: row.LastFour, MemberID: row.MemberID, Expires: timeOf(row.Expires)}
	}), db.wrap(err, "list keys that end soon")
}

// SpentLimits returns the daily limits that are used up on the day of now and whose
// owners, or members for keys, have no notice about it yet. Calls are counted as for
// routing.
func (db *DB) SpentLimits(ctx context.Context, now time.Time) (spent []account.SpentLimit, err error) {
	day := millis(dayOf(now))
	shares, err := db.query.DayOfLimitedShares(ctx, day, string(account.NoticeSpent))
	if err != nil {
		return nil, db.wrap(err, "count the day's calls of limited shares")
	}
	var calls int64
	for i, row := range shares {
		if i == 0 || shares[i-1].ID != row.ID {
			calls = 0
		}
		before := calls
		if len(row.Models) == 0 || slices.Contains(row.Models, row.Model) {
			calls += row.Calls
		}
		if most := int64(row.PerDay); before < most && calls >= most {
			spent = append(spent, account.SpentLimit{
				ShareID: row.ID, MemberID: row.MemberID, Member: row.Member, OwnerID: row.OwnerID, Owner: row.Owner, PerDay: row.PerDay,
			})
		}
	}
	groups, err := db.query.SpentGroupLimits(ctx, day, string(account.NoticeSpent))
	for _, row := range groups {
		spent = append(spent, account.SpentLimit{GroupID: row.GroupID, Group: row.Name, OwnerID: row.OwnerID, PerDay: row.PerDay})
	}
	if err != nil {
		return nil, db.wrap(err, "count the day's calls of limited groups")
	}
	keys, err := db.query.SpentKeys(ctx, day, string(account.NoticeSpent))
	for _, row := range keys {
		spent = append(spent, account.SpentLimit{KeyID: row.ID, Key: row.Name, LastFour: row.LastFour, OwnerID: row.MemberID, PerDay: row.PerDay})
	}
	return spent, db.wrap(err, "count the day's calls of limited keys")
}

// OperatorsSince returns the ids of the operators whose accounts existed at that time.
func (db *DB) OperatorsSince(ctx context.Context, at time.Time) ([]string, error) {
	ids, err := db.query.OperatorsSince(ctx, millis(at))
	return ids, db.wrap(err, "list the operators")
}

// MembersToMail returns members with something new between since and until who may be
// mailed now, up to most of them.
func (db *DB) MembersToMail(ctx context.Context, now, since, until time.Time, most int) ([]account.NewsFor, error) {
	rows, err := db.query.MembersToMail(ctx, millis(now), millis(since), millis(until), int32(most))
	return convert(rows, func(row query.MembersToMailRow) account.NewsFor {
		return account.NewsFor{
			Member: account.Member{ID: row.ID, Name: row.Name}, Address: row.Address,
			Since: timeOf(max(row.Mailed, row.Verified, millis(since))), Off: kinds(row.OffMail),
		}
	}), db.wrap(err, "list the members to be mailed")
}

// ClaimMail reports whether the caller should mail the member now. No other call is
// allowed to until next.
func (db *DB) ClaimMail(ctx context.Context, memberID string, now, next time.Time) (claimed bool, err error) {
	err = db.transact(ctx, func(q *query.Queries) error {
		n, err := q.ClaimMail(ctx, memberID, millis(next), millis(now))
		claimed = n > 0
		return err
	}, "begin to mail member %q", memberID)
	return claimed && err == nil, err
}

// SetMailed records that the member got everything up to a time, and when the next mail
// may be sent.
func (db *DB) SetMailed(ctx context.Context, memberID string, until, next time.Time) error {
	return db.transact(ctx, func(q *query.Queries) error {
		return q.SetMailed(ctx, memberID, millis(until), millis(next))
	}, "record what member %q was mailed", memberID)
}

// JoinsToMail returns joins between the two times by other members to the member's
// groups, if the group reaches a machine of the member, up to most of them. Groups with
// more than account.SmallGroup members are left out.
func (db *DB) JoinsToMail(ctx context.Context, memberID string, since, until time.Time, most int) ([]account.GroupJoin, error) {
	rows, err := db.query.JoinsToMail(ctx, query.JoinsToMailParams{
		Member: memberID, Since: millis(since), Until: millis(until), Small: account.SmallGroup, Most: int32(most),
	})
	return convert(rows, func(row query.JoinsToMailRow) account.GroupJoin {
		return account.GroupJoin{Group: row.GroupName, Member: row.MemberName, At: timeOf(row.At), New: true}
	}), db.wrap(err, "list the new members of the groups of member %q", memberID)
}
