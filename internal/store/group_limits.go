package store

import (
	"context"
	"encoding/json/v2"
	"fmt"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// PutGroupLimits changes the owner's limits for calls by a group's members and returns
// the new limits; ErrNotFound if the owner is not in the group.
func (db *DB) PutGroupLimits(ctx context.Context, ownerID, groupID string, c account.LimitChange) (l account.Limits, err error) {
	err = db.change(ctx, func(q *query.Queries) ([]fleet.Change, error) {
		to, err := limitColumns(groupID, c)
		if err != nil {
			return nil, err
		}
		to.GroupID, to.OwnerID = groupID, ownerID
		row, err := q.PutGroupLimits(ctx, to)
		l = groupLimits(row)
		return changed(fleet.GroupChanged, groupID), err
	}, "limit the calls of group %q", groupID)
	return l, err
}

// limitColumns validates a change to the limits of the record with that id and returns it
// as columns. A column that is nil does not change.
func limitColumns(id string, c account.LimitChange) (query.PutGroupLimitsParams, error) {
	to := query.PutGroupLimitsParams{Hours: c.Hours, Concurrent: c.Concurrent, PerDay: c.PerDay}
	if err := checkLimits(c.Of(account.Limits{}), id); err != nil || c.Models == nil {
		return to, err
	}
	list, err := json.Marshal(*c.Models)
	to.Models = new(string(list))
	return to, err
}

func groupLimits(row query.GroupLimit) account.Limits {
	return account.Limits{Models: row.Models, Hours: row.Hours, Concurrent: row.Concurrent, PerDay: row.PerDay}
}

// limitsOfGroups holds the owners' limits for groups in the form that routing uses, with
// the number of calls of the day.
type limitsOfGroups map[fleet.GroupID]map[fleet.MemberID]*fleet.Limits

func groupLimitsByOwner(rows []query.GroupLimit, calls []query.GroupDay, today time.Time) (limitsOfGroups, error) {
	type key struct{ group, owner string }
	started := make(map[key]int, len(calls))
	for _, row := range calls {
		started[key{row.GroupID, row.OwnerID}] = int(row.Calls)
	}
	all := make(limitsOfGroups)
	for _, row := range rows {
		l := groupLimits(row)
		if len(l.Models) == 0 && l.Hours == "" && l.Concurrent == 0 && l.PerDay == 0 {
			continue // no limit is left
		}
		made, err := routingLimits(row.GroupID, l, today, started[key{row.GroupID, row.OwnerID}])
		if err != nil {
			return nil, err
		}
		group := fleet.GroupID(row.GroupID)
		if all[group] == nil {
			all[group] = make(map[fleet.MemberID]*fleet.Limits)
		}
		all[group][fleet.MemberID(row.OwnerID)] = &made
	}
	return all, nil
}

// routingLimits returns the limits of a record in the form that routing uses, with the
// number of calls that started today.
func routingLimits(id string, l account.Limits, today time.Time, started int) (fleet.Limits, error) {
	hours, err := fleet.ParseHours(l.Hours, "")
	if err != nil {
		return fleet.Limits{}, fmt.Errorf("cannot read the hours of %s: %w", id, err)
	}
	models := make([]fleet.ModelID, len(l.Models))
	for i, model := range l.Models {
		models[i] = fleet.ModelID(model)
	}
	return fleet.Limits{
		Models: models, Hours: hours, Concurrent: l.Concurrent, PerDay: l.PerDay, Load: fleet.NewLimitLoad(today, started),
	}, nil
}
