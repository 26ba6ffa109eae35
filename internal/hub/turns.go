package hub

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

const (
	// Of each member's turns the newest are kept: so many, of so many bytes in all.
	mostTurns      = 2000
	mostTurnsBytes = 256 << 20
	// turnSweep is how often expired turns are dropped; nobody can read them before
	// that either.
	turnSweep = 10 * time.Minute
)

// turns keeps the turns of the responses dialect, sealed under their responses'
// ids (decisions 5).
type turns struct {
	records Records
	life    time.Duration
	log     *slog.Logger
}

// kept is what the edge keeps turns by; nil: none are kept.
func (t *turns) kept() *gateway.Turns {
	if t.life < 0 {
		return nil
	}
	return &gateway.Turns{Keep: t.keep, Load: t.load, Forget: t.forget}
}

func (t *turns) keep(ctx context.Context, member fleet.MemberID, response string, turn []byte) error {
	now := time.Now()
	return t.records.KeepTurn(ctx, account.Turn{
		Hash: credential.SealName(response), MemberID: string(member), Created: now, Expires: now.Add(t.life),
		Sealed: credential.Seal(response, string(member), turn),
	}, mostTurns, mostTurnsBytes)
}

func (t *turns) load(ctx context.Context, member fleet.MemberID, response string) ([]byte, error) {
	turn, err := t.records.Turn(ctx, credential.SealName(response), string(member), time.Now())
	switch {
	case errors.Is(err, account.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, unread(err)
	}
	return credential.Unseal(response, string(member), turn.Sealed)
}

func (t *turns) forget(ctx context.Context, member fleet.MemberID, response string) (bool, error) {
	err := t.records.ForgetTurn(ctx, credential.SealName(response), string(member), time.Now())
	switch {
	case errors.Is(err, account.ErrNotFound):
		return false, nil
	case err != nil:
		return false, unread(err)
	}
	return true, nil
}

// unread is the fault of a database that cannot be asked.
func unread(err error) error {
	return fault.New(fault.CascadeExhausted, "the service could not look for the kept response just now; try again shortly").Because(err)
}

// run drops expired turns, now and then, until ctx ends.
func (t *turns) run(ctx context.Context) error {
	tick := time.NewTicker(turnSweep)
	defer tick.Stop()
	for {
		if err := t.records.PruneTurns(ctx, time.Now()); err != nil && ctx.Err() == nil {
			t.log.Warn("cannot drop expired turns; it is tried again", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
