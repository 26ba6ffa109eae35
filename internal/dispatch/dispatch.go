// Package dispatch brings a call to a machine and the machine's answer back.
//
// The gateway identified the caller and read the call. Do returns the answer, or
// the fault that says why there is none:
//
//	            ┌──────────── another machine ────────────┐
//	            ▼                                         │
//	Do ──▶ 1 decide ── Try ──▶ 2 reserve ── slot ──▶ 3 attempt ──▶ answer or fault
//	         │   │                 │                     ▲
//	         │   └─ Wait ──▶ 4 wait ◀── no slot          │
//	         │                 │  └──────── slot ────────┘
//	         ▼                 ▼
//	       fault             fault
//
// The steps are these:
//
//  1. Decide. fleet.Route looks at the registry's snapshot: which machines the caller
//     reaches, what they offer, how busy they are. It returns Try with the candidates,
//     best first, or Wait, or Refuse with the fault.
//  2. Reserve. The scheduler reserves a slot of the first candidate that has one. Calls
//     that wait go before a call that has just come.
//  3. Attempt. The call is recorded in the ledger and sent through the machine's
//     tunnel. If the machine is gone, refuses, or vanishes before it answered, the call
//     is decided again without it, for at most fleet.MaxCandidates machines. A machine
//     that refuses as busy is not one of those; it counts as busy until the call joins
//     a queue.
//  4. Wait. The call joins its model's queue in the scheduler. It leaves with a slot,
//     with a refusal (what it waits for is gone), at its deadline, or when the caller
//     hangs up.
//
// When the answer's body is closed the scheduler grants its slot to the next waiting
// call. The gateway then calls Finished, which records the call.
//
// Three things run alongside. The registry notifies of changes (OnMachine, OnCommitted,
// OnChange): calls that wait are decided again, and calls whose key or share ended are
// ended (revocation.go). A tick each second does the same for what changes with time
// (Run). The number of calls that a member has running and waiting is limited
// (active.go).
//
// The rules are those of docs/spec/routing.md: fleet.Route holds what is decided at one
// moment, this package what takes time.
package dispatch

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/dispatch/prefix"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/ledger"
	"github.com/kith/kith/internal/registry"
	"github.com/kith/kith/internal/spool"
)

// Config is what a Dispatcher works with. Running, Waiting and Draw may be zero.
type Config struct {
	Limits

	Registry *registry.Registry // which machines there are, and the way to each
	Ledger   *ledger.Ledger
	Traces   *ledger.Traces
	Spool    *spool.Spool // holds unary answers
	// SaveSpeeds keeps measured speeds over a restart and for the other nodes, and Speeds
	// returns those measured at since or later.
	SaveSpeeds func(ctx context.Context, speeds []account.Speed, now time.Time) error
	Speeds     func(ctx context.Context, since time.Time) ([]account.Speed, error)
	// PrefixKey returns the secret of that day for fingerprints of prompts.
	PrefixKey func(ctx context.Context, day time.Time) ([]byte, error)
	// Revoked returns the fault that ends the caller's calls if the caller's
	// credential is revoked, and nil while it is valid. It fails if the store does not
	// say; it is called again then.
	Revoked func(context.Context, gateway.Caller) (*fault.Fault, error)
	// Activity is called when a call reserves or releases a slot, and when it begins
	// or ends to wait. It must not block.
	Activity func()
	// Draw returns random numbers that break ties between machines. Default
	// rand.Uint64.
	Draw func() uint64
	Log  *slog.Logger
}

// Limits are the limits that SetLimits can change.
type Limits struct {
	// Wait and WaitStream limit how long a unary and a streamed call wait for a
	// machine.
	Wait, WaitStream time.Duration
	// Running and Waiting limit how many calls of one member run on machines, and
	// wait for one, at the same time; 0 or less: no limit.
	Running, Waiting int
	// FirstByte limits how long a machine takes to its first byte.
	FirstByte time.Duration
	// Stream limits how long a streamed answer takes in all.
	Stream time.Duration
}

// Dispatcher serves the hub's calls on members' machines; it is a gateway.Backend. Make it
// with New, then Run it.
type Dispatcher struct {
	cfg        Config
	limits     atomic.Pointer[Limits]
	scheduler  scheduler
	active     activeCalls
	speeds     speeds
	turns      turns
	prefixes   prefix.Memory
	cacheNames cacheNames
	key        atomic.Pointer[prefix.Key]  // of the fingerprints; nil: none yet
	changed    atomic.Pointer[time.Time]   // of the last OnCommitted; nil: none yet
	ending     atomic.Pointer[fault.Fault] // of every call from now on; nil: none
}

// New returns a Dispatcher. The registry's notifications are to reach OnCommitted,
// OnChange and OnMachine.
func New(cfg Config) *Dispatcher {
	if cfg.Draw == nil {
		cfg.Draw = rand.Uint64
	}
	d := &Dispatcher{cfg: cfg}
	d.speeds.loadOf = d.loadOf
	d.scheduler.refresh, d.scheduler.activity = d.refresh, cfg.Activity
	d.SetLimits(cfg.Limits)
	return d
}

// SetLimits changes the limits of the calls that come from now on. Calls that run or
// wait are not ended.
func (d *Dispatcher) SetLimits(l Limits) {
	d.limits.Store(&l)
	d.active.setMost(max(l.Running, 0), max(l.Waiting, 0))
}

// Run decides again, each second, for the calls that time may have changed
// something for, until ctx ends.
func (d *Dispatcher) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			d.scheduler.tick(d.cfg.Registry.Now())
			d.endUnconfirmed(now)
		case <-ctx.Done():
			return nil
		}
	}
}

// OnMachine takes that a machine connected, disconnected or changed: calls that wait
// for what it offers are decided again.
func (d *Dispatcher) OnMachine(id fleet.MachineID) {
	if machine := d.cfg.Registry.Snapshot().Machine(id); machine != nil {
		d.scheduler.onMachine(machine)
	}
}

// Queued returns how many waiting calls the machine could take.
func (d *Dispatcher) Queued(machine *fleet.Machine) int { return d.scheduler.queued(machine) }

// Do serves a call on a machine that the caller reaches, or returns the fault that
// refuses it.
func (d *Dispatcher) Do(ctx context.Context, call *gateway.Call) (answer *gateway.Answer, err error) {
	c := &activeCall{d: d, call: call, query: queryOf(call), deadline: call.Arrived.Add(d.waitLimit(call))}
	ctx, unregister := d.active.register(ctx, c)
	defer func() {
		if answer == nil { // a refusal, or a panic, which may have left a slot reserved
			if c.slot != nil {
				d.scheduler.release(c.slot, ran)
			}
			unregister()
		}
	}()
	if f := d.ending.Load(); f != nil {
		return nil, f
	}
	// The call's body may have taken minutes to arrive. A change in the meantime did
	// not end it: it was not active yet.
	if changed := d.changed.Load(); changed != nil && !call.Arrived.After(*changed) {
		if d.endRevoked([]*activeCall{c}, time.Now()); ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	if err := d.readWork(ctx, c); err != nil {
		return nil, err
	}
	if answer, err = c.run(ctx); err == nil {
		answer.Body = &callBody{answer.Body, unregister}
	}
	return answer, err
}

// EndAll ends every call with that fault, those to come too. Calls of other nodes end as
// if their machine were gone.
func (d *Dispatcher) EndAll(f *fault.Fault) {
	d.ending.Store(f) // before the calls are looked at
	for _, c := range d.active.all() {
		c.cancel(f)
	}
}

// callBody is an answer's body. Closing it ends the call.
type callBody struct {
	io.ReadCloser
	unregister func()
}

// Close implements io.Closer.
func (b *callBody) Close() error {
	defer b.unregister()
	return b.ReadCloser.Close()
}

// waitLimit is how long the call may wait for a machine: the operator's limit, or
// the caller's own if that is shorter (spec/routing.md#wait-limit).
func (d *Dispatcher) waitLimit(call *gateway.Call) time.Duration {
	limits := d.limits.Load()
	limit := limits.Wait
	if call.Stream {
		limit = limits.WaitStream
	}
	if call.Wait >= 0 {
		limit = min(limit, call.Wait)
	}
	return limit
}

func queryOf(call *gateway.Call) fleet.Query {
	return fleet.Query{
		Caller: call.Caller.Member, Narrow: call.Caller.Narrow, Exclude: call.Caller.Machine,
		Model: call.Model, Family: call.Endpoint.Family(),
	}
}

// route decides on the newest snapshot.
func (d *Dispatcher) route(query *fleet.Query) fleet.Decision {
	s := d.scheduler.refresh(query)
	query.Turns = d.turns.claim(query.Caller)
	decision := fleet.Route(s, *query)
	d.turns.giveBack(query.Caller, query.Turns, decision.Candidates)
	query.Turns = nil
	return decision
}

// refresh sets what the query depends on beside the snapshot (the time, a new draw,
// whether the store could be read) and returns the newest snapshot.
func (d *Dispatcher) refresh(query *fleet.Query) *fleet.Snapshot {
	query.Now = d.cfg.Registry.Now()
	query.Draw = d.cfg.Draw()
	query.Unconfirmed = !d.cfg.Registry.Confirmed(time.Now())
	return d.cfg.Registry.Snapshot()
}
