package store

import (
	"context"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store/internal/query"
)

// insertMember adds a member; ErrLooksTaken if the name looks like another one.
func insertMember(ctx context.Context, q *query.Queries, m account.Member) error {
	row := query.InsertMemberParams{ID: m.ID, Name: m.Name, Operator: m.Operator, Disabled: m.Disabled, Created: millis(m.Created)}
	if err := q.InsertMember(ctx, row); err != nil {
		return err
	}
	return claim(ctx, q.InsertMemberSkeleton, m.ID, m.Name)
}

// claim inserts the skeletons of a new name; ErrLooksTaken if another name has one of
// them.
func claim(ctx context.Context, insert func(ctx context.Context, skeleton, id string) (int64, error), id, name string) error {
	for _, skeleton := range account.Skeletons(name) {
		if n, err := insert(ctx, skeleton, id); err != nil {
			return err
		} else if n == 0 {
			return account.ErrLooksTaken
		}
	}
	return nil
}
