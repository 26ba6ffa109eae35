package store

import (
	"context"
	"database/sql"
	"encoding/json/v2"
	"errors"
	"fmt"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store/internal/query"
)

// SaveTraces stores call traces in one transaction and deletes those older than
// account.TraceLife. It does not change a trace that is already stored.
func (db *DB) SaveTraces(ctx context.Context, traces []account.Trace, now time.Time) error {
	texts := make([]string, len(traces))
	for i, s := range traces {
		text, err := json.Marshal(s)
		if err != nil {
			return db.wrap(fmt.Errorf("%w: %w", ErrInvalid, err), "store the trace of call %q", s.CallID)
		}
		texts[i] = string(text)
	}
	return db.transact(ctx, func(q *query.Queries) error {
		batch := db.flavor.batch(ctx)
		for i, s := range traces {
			if err := q.InsertStory(batch, s.CallID, s.MemberID, millis(s.Started), texts[i]); err != nil {
				return err
			}
		}
		return q.PruneStories(ctx, millis(now.Add(-account.TraceLife)))
	}, "store %d call traces", len(traces))
}

// Trace returns the member's trace of the call; ErrNotFound if the member has none,
// whether the call exists or not. If the call was cut short by a crash of its hub, or
// ended within the last second, its trace is built from its usage record.
func (db *DB) Trace(ctx context.Context, callID, memberID string) (account.Trace, error) {
	s := account.Trace{MemberID: memberID}
	row, err := db.query.Story(ctx, callID, memberID)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		var u query.UsageOfCallRow
		if u, err = db.query.UsageOfCall(ctx, callID, memberID, millis(db.Now().Add(-account.TraceLife))); err == nil {
			s = traceOfUsage(callID, memberID, u)
		}
	case err == nil:
		err = json.Unmarshal([]byte(row), &s)
	}
	return s, db.wrap(err, "read the trace of call %q", callID)
}

// traceOfUsage builds a trace from a call's usage record, which has neither decisions nor
// any attempt before the last one.
func traceOfUsage(callID, memberID string, u query.UsageOfCallRow) account.Trace {
	s := account.Trace{
		CallID: callID, MemberID: memberID, Started: timeOf(u.Started), Mine: u.MemberID == memberID, Caller: u.Caller,
		Model: u.Model, Endpoint: u.Endpoint, Stream: u.Stream, Status: int(u.Status), Code: u.Code,
		TookMS: u.DurationUs / 1000, WaitedMS: u.WaitedUs / 1000, TokensIn: u.TokensIn, TokensOut: u.TokensOut,
		Tries: []account.Attempt{},
	}
	if s.Mine {
		s.KeyID = u.KeyID
	}
	if u.Machine == "" {
		return s
	}
	try := account.Attempt{Machine: u.Machine, Owner: u.Owner, Via: "shared", AfterMS: s.WaitedMS, TookMS: max(0, s.TookMS-s.WaitedMS), Outcome: "answered", Prompt: true}
	switch {
	case u.Owner == u.Caller:
		try.Via = "own"
	case u.GroupID != "":
		try.Via = "group"
	}
	switch u.Code {
	case "":
	case account.Interrupted:
		try.Outcome = "was running it when the hub stopped"
	case account.Cancelled:
		try.Outcome = "was running it when the caller left"
	default:
		try.Outcome = "ended it with " + u.Code
	}
	s.Tries = append(s.Tries, try)
	return s
}

// TracesOf returns one page of the member's call traces, newest first: up to most traces,
// beginning at from.
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
