package account

import (
	"context"
	"time"
)

// Act is an operator's action on the hub, for the audit log.
type Act struct {
	ID      string
	At      time.Time
	By      string // the operator's member id; empty: on the hub's own computer
	ByName  string // the operator's name at that time
	What    string // a description such as "disable a member"
	Subject string // the name or id of the object it changed
}

// ActFilter filters the audit log. Empty fields match every action.
type ActFilter struct {
	Who   string // an operator's name, or OnTheComputer
	What  string // matches Act.What
	Since time.Time
}

// OnTheComputer is the ActFilter.Who for actions on the hub's own computer. No member can
// have this name.
const OnTheComputer = "-"

type actKey struct{}

// Acting returns a context that carries an action: the store's first write transaction
// under it also adds the action to the audit log.
func Acting(ctx context.Context, act *Act) context.Context {
	return context.WithValue(ctx, actKey{}, act)
}

// ActOf returns the context's action, or nil.
func ActOf(ctx context.Context) *Act {
	act, _ := ctx.Value(actKey{}).(*Act)
	return act
}
