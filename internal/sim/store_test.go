package sim

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
)

var errDown = errors.New("the database is down")

// records is the store as the hub has it: it can be down.
type records struct {
	*store.DB
	down *atomic.Bool
}

func (r records) KeyByHash(ctx context.Context, hash [32]byte) (account.Key, account.Member, error) {
	if r.down.Load() {
		return account.Key{}, account.Member{}, errDown
	}
	return r.DB.KeyByHash(ctx, hash)
}

func (r records) MachineByHash(ctx context.Context, hash [32]byte) (account.Machine, account.Member, error) {
	if r.down.Load() {
		return account.Machine{}, account.Member{}, errDown
	}
	return r.DB.MachineByHash(ctx, hash)
}

func (r records) RecordUsage(ctx context.Context, batch []account.Usage) error {
	if r.down.Load() {
		return errDown
	}
	return r.DB.RecordUsage(ctx, batch)
}

func (r records) TouchKeys(ctx context.Context, used map[string]time.Time) error {
	if r.down.Load() {
		return errDown
	}
	return r.DB.TouchKeys(ctx, used)
}

// facts is the store as the registry has it.
type facts struct {
	*store.Facts
	down *atomic.Bool
}

func (f facts) Changes(ctx context.Context, after int64) (int64, []fleet.Change, error) {
	if f.down.Load() {
		return 0, nil, errDown
	}
	return f.Facts.Changes(ctx, after)
}

func (f facts) KeptMachine(ctx context.Context, id fleet.MachineID) (fleet.Kept, bool, error) {
	if f.down.Load() {
		return fleet.Kept{}, false, errDown
	}
	return f.Facts.KeptMachine(ctx, id)
}
