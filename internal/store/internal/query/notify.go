package query

import "context"

// Notify notifies the listeners of a channel of PostgreSQL when the transaction commits.
func (q *Queries) Notify(ctx context.Context, channel string) error {
	_, err := q.db.ExecContext(ctx, "SELECT pg_notify($1, '')", channel)
	return err
}
