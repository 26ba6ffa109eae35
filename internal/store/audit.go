package store

import (
	"context"
	"strings"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store/internal/query"
)

// recordAct writes the act of the context, if there is one, to the audit log.
func recordAct(ctx context.Context, q *query.Queries) error {
	act := account.ActOf(ctx)
	if act == nil {
		return nil
	}
	return q.InsertAct(ctx, query.InsertActParams{
		ID: act.ID, At: millis(act.At), ByID: act.By, ByName: act.ByName, What: act.What, Subject: validText(act.Subject),
	})
}

// validText replaces what checkText refuses, so that an act with such a subject is
// recorded, too.
func validText(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "\ufffd")
}

// Acts returns one page of the audit log, newest first: up to most acts that match the
// filter, beginning at from.
func (db *DB) Acts(ctx context.Context, from account.Place, f account.ActFilter, most int) ([]account.Act, error) {
	if err := checkText(f.Who, f.What, from.ID); err != nil {
		return nil, db.wrap(err, "read the audit log")
	}
	at, id := pageStart(from)
	rows, err := db.query.Acts(ctx, query.ActsParams{Before: at, BeforeID: id, Since: millis(f.Since), Who: f.Who, What: f.What, Most: int32(most)})
	return convert(rows, act), db.wrap(err, "read the audit log")
}

// ActFields returns the names and the kinds of acts that occur in the audit log, as
// choices for a filter.
func (db *DB) ActFields(ctx context.Context) (who, what []string, err error) {
	rows, err := db.query.ActFields(ctx)
	for _, row := range rows {
		if row.Field == "who" {
			who = append(who, row.Value)
		} else {
			what = append(what, row.Value)
		}
	}
	return who, what, db.wrap(err, "read the audit log")
}

func act(row query.Act) account.Act {
	return account.Act{ID: row.ID, At: timeOf(row.At), By: row.ByID, ByName: row.ByName, What: row.What, Subject: row.Subject}
}
