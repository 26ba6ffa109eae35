package store

import (
	"context"
	"strings"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store/internal/query"
)

// keepAct writes the act of the context, if there is one, in the transaction of
// what it does.
func keepAct(ctx context.Context, q *query.Queries) error {
	act := account.ActOf(ctx)
	if act == nil {
		return nil
	}
	return q.InsertAct(ctx, query.InsertActParams{
		ID: act.ID, At: millis(act.At), ByID: act.By, ByName: act.ByName, What: act.What, Subject: clean(act.Subject),
	})
}

// clean is text as both databases take it: what an act failed to name is no
// reason not to tell of it.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "\ufffd")
}

// Acts is a page of what operators did, the newest first: at most so many from
// that place on.
func (db *DB) Acts(ctx context.Context, from account.Place, most int) ([]account.Act, error) {
	at, id := beginning(from)
	rows, err := db.query.Acts(ctx, at, id, int32(most))
	return each(rows, act), db.told(err, "read the audit log")
}

func act(row query.Act) account.Act {
	return account.Act{ID: row.ID, At: moment(row.At), By: row.ByID, ByName: row.ByName, What: row.What, Subject: row.Subject}
}
