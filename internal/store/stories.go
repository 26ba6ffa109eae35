package store

import (
	"context"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store/internal/query"
)

// SaveStories keeps the stories in one transaction, and drops those older than
// account.TraceLife. A story that is there already stays as it was.
func (db *DB) SaveStories(ctx context.Context, stories []account.Trace, now time.Time) error {
	texts := make([]string, len(stories))
	for i, s := range stories {
		text, err := json.Marshal(s)
		if err != nil {
			return db.told(fmt.Errorf("%w: %w", ErrInvalid, err), "keep the story of call %q", s.CallID)
		}
		texts[i] = string(text)
	}
	err := db.transact(ctx, func(q *query.Queries) error {
		each := db.flavor.batch(ctx)
		for i, s := range stories {
			if err := q.InsertStory(each, s.CallID, s.MemberID, millis(s.Started), texts[i]); err != nil {
				return err
			}
		}
		return q.PruneStories(ctx, millis(now.Add(-account.TraceLife)))
	})
	return db.told(err, "keep %d stories", len(stories))
}

// Story is what the member may know of the call; ErrNotFound where that is
// nothing, whether there was such a call or not.
func (db *DB) Story(ctx context.Context, callID, memberID string) (account.Trace, error) {
	s := account.Trace{MemberID: memberID}
	row, err := db.query.Story(ctx, callID, memberID)
	if err == nil {
		err = json.Unmarshal([]byte(row), &s)
	}
	return s, db.told(err, "read the story of call %q", callID)
}
