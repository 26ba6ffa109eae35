package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store/internal/query"
)

// StartNode adds this process to the nodes that share a PostgreSQL database. It replaces
// an earlier process with the same name, whose next beat fails. From then on each Poll of
// Facts is a beat of this node. On SQLite, which only one process at a time can open,
// StartNode does nothing. It must be called before Facts are used.
func (db *DB) StartNode(ctx context.Context, n account.Node) error {
	if db.flavor.primary == nil {
		return nil
	}
	err := db.transact(ctx, func(q *query.Queries) error {
		if err := checkText(n.Name, n.Incarnation, n.Region, n.Address, n.Pin, n.Version, n.State); err != nil {
			return err
		}
		return q.StartNode(ctx, query.StartNodeParams{
			Name: n.Name, Incarnation: n.Incarnation, Region: n.Region, Address: n.Address, Pin: n.Pin,
			Version: n.Version, State: n.State, Started: millis(n.Started),
		})
	}, "start node %q", n.Name)
	if err == nil {
		db.node = n
	}
	return err
}

// beat increments this node's beat and returns the nodes and what changed after the
// position, in one transaction. The result is only valid after the commit: a server that
// was replaced as the primary still answers reads, but cannot commit without its
// synchronous standby. beat returns account.ErrReplaced if the node's row no longer exists.
func (db *DB) beat(ctx context.Context, after account.Position) (state account.StoreState, changes []fleet.Change, err error) {
	var behind error // does not keep the beat from being committed
	failedOver, err := db.flavor.primary.confirm(ctx, func(q *query.Queries) error {
		n, err := q.Beat(ctx, db.node.Name, db.node.Incarnation)
		if err == nil && n == 0 {
			return fmt.Errorf("%w: give each hub a different name with hub.node; if the database was restored, start this one again", account.ErrReplaced)
		}
		if err != nil {
			return err
		}
		state.Position, changes, err = changesAfter(ctx, q, after)
		if errors.Is(err, ErrBehind) {
			behind = err
			return nil
		}
		if err != nil {
			return err
		}
		nodes, err := q.Nodes(ctx)
		state.Nodes = convert(nodes, node)
		return err
	})
	state.ClockAhead, state.FailedOver = db.clockAhead(), failedOver
	if err == nil {
		err = behind
	}
	if err != nil {
		return account.StoreState{}, nil, db.wrap(err, "confirm the state of node %q", db.node.Name)
	}
	return state, changes, nil
}

// SetNodeState sets the state of a node, which all nodes read with their next beat;
// ErrNotFound if there is no such node, as always on SQLite.
func (db *DB) SetNodeState(ctx context.Context, name, state string) error {
	if db.flavor.primary == nil {
		return db.wrap(ErrNotFound, "set the state of node %q", name)
	}
	return db.wrap(oneRow(db.query.SetNodeState(ctx, name, state)), "set the state of node %q", name)
}

// EndNode removes this process from the nodes when it shuts down normally. Poll fails
// from then on.
func (db *DB) EndNode(ctx context.Context) error {
	if db.node.Name == "" {
		return nil
	}
	return db.wrap(db.query.EndNode(ctx, db.node.Name, db.node.Incarnation), "end node %q", db.node.Name)
}

// RemoveNode removes a node that ended without removing itself, unless its row changed
// since it was read.
func (f *Facts) RemoveNode(ctx context.Context, n account.Node) error {
	return f.db.wrap(f.db.query.RemoveNode(ctx, n.Name, n.Incarnation, n.Beat), "remove node %q", n.Name)
}

// Generations returns the number of the newest tunnel of each machine. On SQLite, where
// no other node can have a newer one, it returns none.
func (f *Facts) Generations(ctx context.Context, ids []fleet.MachineID) (map[fleet.MachineID]int64, error) {
	if f.db.flavor.primary == nil {
		return nil, nil
	}
	rows, err := f.db.reads().QueryContext(ctx, "SELECT id, generation FROM machines WHERE id IN (SELECT unnest(cast($1 AS text[])))",
		convert(ids, func(id fleet.MachineID) string { return string(id) }))
	newest := make(map[fleet.MachineID]int64, len(ids))
	var id fleet.MachineID
	var generation int64
	err = scan(rows, err, func() { newest[id] = generation }, &id, &generation)
	return newest, f.db.wrap(err, "read the tunnels' numbers")
}

func node(row query.Node) account.Node {
	return account.Node{
		Name: row.Name, Incarnation: row.Incarnation, Region: row.Region, Address: row.Address, Pin: row.Pin,
		Version: row.Version, State: row.State, Beat: row.Beat, Started: timeOf(row.Started),
	}
}
