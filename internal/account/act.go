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
	Subject string // whom or what it concerned, by name or id
}

type actKey struct{}

// Acting gives what is done with the context to the audit log: the first write
// transaction of the store that commits under it keeps the act with it.
func Acting(ctx context.Context, act *Act) context.Context {
	return context.WithValue(ctx, actKey{}, act)
}

// ActOf is the act that the context was given; nil for none.
func ActOf(ctx context.Context) *Act {
	act, _ := ctx.Value(actKey{}).(*Act)
	return act
}
