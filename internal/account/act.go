package account

import (
	"context"
	"time"
)

// Act is something that an operator did to the hub, for the audit log.
type Act struct {
	ID      string
	At      time.Time
	By      string // the operator's member id; empty: on the hub's own computer
	ByName  string // the operator's name then
	What    string // in words, as "disable a member"
	Subject string // the name or id of what it changed
}

// ActFilter narrows the audit log. What is empty does not narrow it.
type ActFilter struct {
	Who   string // an operator's name, or OnTheComputer
	What  string // as Act.What
	Since time.Time
}

// OnTheComputer is ActFilter.Who for what was done on the hub's own computer. No member
// has it for a name.
const OnTheComputer = "-"

type actKey struct{}

// Acting returns a context whose first committed write transaction of the store adds
// the act to the audit log.
func Acting(ctx context.Context, act *Act) context.Context {
	return context.WithValue(ctx, actKey{}, act)
}

// ActOf returns the act of the context; nil: none.
func ActOf(ctx context.Context) *Act {
	act, _ := ctx.Value(actKey{}).(*Act)
	return act
}
