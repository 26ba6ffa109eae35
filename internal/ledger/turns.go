package ledger

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

const (
	// maxTurns and maxTurnBytes limit the turns of one member. The newest are kept.
	maxTurns     = 2000
	maxTurnBytes = 256 << 20
	// pruneEvery is how often expired turns are deleted. They cannot be read after they
	// expire, even if they are still there.
	pruneEvery = 10 * time.Minute
)

// Turns stores the turns of the responses dialect. Each is sealed under the id of its
// response, and that id is not stored. Create it with NewTurns, then Run it.
type Turns struct {
	store Store
	life  time.Duration
	log   *slog.Logger
}

// NewTurns returns Turns that expire after life.
func NewTurns(store Store, life time.Duration, log *slog.Logger) *Turns {
	return &Turns{store: store, life: life, log: log}
}

// Keep stores a turn under its response's id.
func (t *Turns) Keep(ctx context.Context, member fleet.MemberID, response string, turn []byte) error {
	now := t.store.Now()
	return t.store.KeepTurn(ctx, account.Turn{
		Hash: credential.SealName(response), MemberID: string(member), Created: now, Expires: now.Add(t.life),
		Sealed: credential.Seal(response, string(member), turn),
	}, maxTurns, maxTurnBytes)
}

// Load returns a stored turn, or nil if the member has none with that id. Before it reads
// the turn, it calls room with the turn's size. If room fails, Load returns that error.
func (t *Turns) Load(ctx context.Context, member fleet.MemberID, response string, room func(size int64) error) ([]byte, error) {
	hash := credential.SealName(response)
	var turn account.Turn
	size, err := t.store.TurnSize(ctx, hash, string(member), t.store.Now())
	if err == nil {
		if err := room(size); err != nil {
			return nil, err
		}
		turn, err = t.store.Turn(ctx, hash, string(member), t.store.Now())
	}
	switch {
	case errors.Is(err, account.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, notRead(err)
	}
	return credential.Unseal(response, string(member), turn.Sealed)
}

// Forget deletes a stored turn and reports whether there was one.
func (t *Turns) Forget(ctx context.Context, member fleet.MemberID, response string) (bool, error) {
	err := t.store.ForgetTurn(ctx, credential.SealName(response), string(member), t.store.Now())
	switch {
	case errors.Is(err, account.ErrNotFound):
		return false, nil
	case err != nil:
		return false, notRead(err)
	}
	return true, nil
}

// notRead is the fault for a database that does not respond.
func notRead(err error) error {
	return fault.New(fault.CascadeExhausted, "the service could not look for the kept response just now; try again shortly").Because(err)
}

// Run deletes expired turns until ctx ends.
func (t *Turns) Run(ctx context.Context) error {
	tick := time.NewTicker(pruneEvery)
	defer tick.Stop()
	for {
		if err := t.store.PruneTurns(ctx, t.store.Now()); err != nil && ctx.Err() == nil {
			t.log.Warn("cannot delete expired turns; it is tried again", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
