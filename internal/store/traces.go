package store

import (
	"context"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store/internal/query"
)

// SaveTraces stores call traces in one transaction and drops those older than
// account.TraceLife. It does not change a trace that is stored.
func (db *DB) SaveTraces(ctx context.Context, traces []account.Trace, now time.Time) error {
	texts := make([]string, len(traces))
	for i, s := range traces {
		text, err := json.Marshal(s)
		if err != nil {
			return db.wrap(fmt.Errorf("%w: %w", ErrInvalid, err), "store the trace of call %q", s.CallID)
		}
		texts[i] = string(text)
	}
	err := db.transact(ctx, func(q *query.Queries) error {
		batch := db.flavor.batch(ctx)
		for i, s := range traces {
			if err := q.InsertStory(batch, s.CallID, s.MemberID, millis(s.Started), texts[i]); err != nil {
				return err
			}
		}
		return q.PruneStories(ctx, millis(now.Add(-account.TraceLife)))
	})
	return db.wrap(err, "store %d call traces", len(traces))
}

// Trace returns the member's trace of the call; ErrNotFound if the member has none,
// whether there was such a call or not.
func (db *DB) Trace(ctx context.Context, callID, memberID string) (account.Trace, error) {
	s := account.Trace{MemberID: memberID}
	row, err := db.query.Story(ctx, callID, memberID)
	if err == nil {
		err = json.Unmarshal([]byte(row), &s)
	}
	return s, db.wrap(err, "read the trace of call %q", callID)
}

// TracesOf returns a page of the member's call traces, newest first: up to most
// of them, beginning at from.
func (db *DB) TracesOf(ctx context.Context, memberID string, from account.Place, most int) ([]account.Trace, error) {
	at, id := pageStart(from)
	rows, err := db.query.StoriesOf(ctx, memberID, at, id, int32(most))
	traces := make([]account.Trace, len(rows))
	for i, row := range rows {
		traces[i].MemberID = memberID
		if err == nil {
			err = json.Unmarshal([]byte(row), &traces[i])
		}
	}
	return traces, db.wrap(err, "list the last calls of member %q", memberID)
}
