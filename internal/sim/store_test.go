package sim

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
)

var errDown = errors.New("the database is down")

// trouble is what the hub has with its database.
type trouble struct {
	down atomic.Bool  // it cannot be reached
	slow atomic.Int64 // how long it takes to answer, a time.Duration
	keys atomic.Bool  // only the keys cannot be read
	lags atomic.Bool  // what it records of usage is lost with the next fail-over
	// notifies is whether it notifies of commits; if not, changes are found by polling.
	notifies atomic.Bool
	over     atomic.Bool // it failed over, and the next poll notices
}

// meet is a question to the database: it takes its time or fails.
func (d *trouble) meet(ctx context.Context) error {
	took := time.Duration(d.slow.Load())
	switch {
	case d.down.Load():
		return errDown
	case took == 0:
		return nil
	}
	select {
	case <-time.After(took):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// records is the store as the hub has it.
type records struct {
	*store.DB
	*trouble
}

func (r records) KeyByHash(ctx context.Context, hash [32]byte) (account.Key, account.Member, error) {
	if err := r.meet(ctx); err != nil {
		return account.Key{}, account.Member{}, err
	}
	return r.DB.KeyByHash(ctx, hash)
}

func (r records) Key(ctx context.Context, id string) (account.Key, error) {
	if r.keys.Load() {
		return account.Key{}, errDown
	}
	if err := r.meet(ctx); err != nil {
		return account.Key{}, err
	}
	return r.DB.Key(ctx, id)
}

func (r records) ActiveMachine(ctx context.Context, id string) (account.Machine, error) {
	if err := r.meet(ctx); err != nil {
		return account.Machine{}, err
	}
	return r.DB.ActiveMachine(ctx, id)
}

func (r records) MachineByHash(ctx context.Context, hash [32]byte) (account.Machine, account.Member, error) {
	if err := r.meet(ctx); err != nil {
		return account.Machine{}, account.Member{}, err
	}
	return r.DB.MachineByHash(ctx, hash)
}

func (r records) RecordUsage(ctx context.Context, batch []account.Usage) error {
	if err := r.meet(ctx); err != nil {
		return err
	}
	if r.lags.Load() {
		return nil
	}
	return r.DB.RecordUsage(ctx, batch)
}

func (r records) TouchKeys(ctx context.Context, used map[string]time.Time) error {
	if err := r.meet(ctx); err != nil {
		return err
	}
	return r.DB.TouchKeys(ctx, used)
}

// facts is the store as the registry has it.
type facts struct {
	*store.Facts
	*trouble
}

func (f facts) Poll(ctx context.Context, after account.Position) (account.StoreState, []fleet.Change, error) {
	if err := f.meet(ctx); err != nil {
		return account.StoreState{}, nil, err
	}
	state, changes, err := f.Facts.Poll(ctx, after)
	state.FailedOver = err == nil && f.over.Swap(false)
	return state, changes, err
}

func (f facts) Follow(ctx context.Context, changed func()) {
	f.Facts.Follow(ctx, func() {
		if f.notifies.Load() {
			changed()
		}
	})
}

func (f facts) ActiveMachine(ctx context.Context, id fleet.MachineID) (account.Machine, bool, error) {
	if err := f.meet(ctx); err != nil {
		return account.Machine{}, false, err
	}
	return f.Facts.ActiveMachine(ctx, id)
}

func (f facts) SharesTo(ctx context.Context, member fleet.MemberID) ([]*fleet.Share, error) {
	if err := f.meet(ctx); err != nil {
		return nil, err
	}
	return f.Facts.SharesTo(ctx, member)
}

func (f facts) Group(ctx context.Context, id fleet.GroupID) (*fleet.Group, error) {
	if err := f.meet(ctx); err != nil {
		return nil, err
	}
	return f.Facts.Group(ctx, id)
}

// After a fail-over to a server that lagged behind, the hub writes the last minute's usage
// again (docs/decisions/0008-confirmation.md).
func TestUsageOutlivesFailover(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, _ := w.addBox(1)
		w.trouble.lags.Store(true)
		w.wantServed(w.do(ask{by: ann, model: "m"}), 1)
		time.Sleep(5 * time.Second)
		recorded := func(want int) {
			w.t.Helper()
			records, err := w.db.Usage(w.t.Context())
			w.must(err)
			assert.Equal(w.t, len(records), want, "calls are recorded")
		}
		recorded(0)
		w.trouble.lags.Store(false)
		w.trouble.over.Store(true)
		time.Sleep(5 * time.Second)
		recorded(1)
	})
}
