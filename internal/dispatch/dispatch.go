// Package dispatch brings a call to a machine and the machine's answer back.
//
// The gateway has identified the caller and read the call. Do returns the answer, or the
// fault that explains why there is none:
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
//  2. Reserve. The scheduler reserves a slot of the first candidate that has one. Waiting
//     calls have priority over a new call.
//  3. Attempt. The call is recorded in the ledger and sent through the machine's
//     tunnel. If the machine is gone, refuses, or vanishes before it has answered, the
//     call is routed again without it, for at most fleet.MaxCandidates machines. A
//     machine that refuses as busy does not count as one of them; it counts as busy until
//     the call joins a queue.
//  4. Wait. The call joins its model's queue in the scheduler. It leaves the queue with a
//     slot, with a refusal (what it waits for is gone), at its deadline, or when the
//     caller disconnects.
//
// When the answer's body is closed, the scheduler grants its slot to the next waiting
// call. The gateway then calls Finished, which records the call.
//
// In parallel to these steps:
//
//   - The registry notifies of changes (OnMachine, OnCommitted, OnChange): waiting calls
//     are routed again, and calls whose key or share ended are ended (revocation.go).
//   - Once a second a tick does the same for what changes with time (Run).
//   - Once a minute the measured speeds of machines are stored and read (RunSpeeds).
//   - Other nodes' calls wait in the same queues, and run on machines here (guests.go).
//
// The number of running and waiting calls of a member is limited (active.go), and so may
// be the number of calls a day of a key (keydays.go).
//
// The rules are those of docs/spec/routing.md: fleet.Route makes the decisions that
// depend on one moment; this package does everything that takes time.
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

// Config configures a Dispatcher. Running, Waiting and Draw may be zero.
type Config struct {
	Limits

	Registry *registry.Registry // the machines, and the line to each
	Ledger   *ledger.Ledger
	Traces   *ledger.Traces
	Spool    *spool.Spool // holds unary answers
	// SaveSpeeds stores measured speeds for restarts and for the other nodes, and Speeds
	// returns the speeds measured at since or later.
	SaveSpeeds func(ctx context.Context, speeds []account.Speed, now time.Time) error
	Speeds     func(ctx context.Context, since time.Time) ([]account.Speed, error)
	// PrefixKey returns the secret of a day for the fingerprints of prompts.
	PrefixKey func(ctx context.Context, day time.Time) ([]byte, error)
	// Revoked returns the fault that ends the caller's calls if the caller's credential
	// is revoked, and nil while it is valid. It fails if the store cannot be read; it is
	// then called again.
	Revoked func(context.Context, fleet.Caller) (*fault.Fault, error)
	// Activity is called when a call reserves or releases a slot, and when it starts or
	// stops waiting. It must not block.
	Activity func()
	// Draw returns random numbers to break ties between machines. The default is
	// rand.Uint64.
	Draw func() uint64
	Log  *slog.Logger
}

// Limits are the limits that SetLimits can change.
type Limits struct {
	// Wait and WaitStream limit how long a unary and a streamed call wait for a
	// machine.
	Wait, WaitStream time.Duration
	// Running and Waiting limit how many calls of one member may run on machines, and
	// wait for one, at the same time; 0 or less: no limit.
	Running, Waiting int
	// FirstByte limits how long a machine may take to send the first byte.
	FirstByte time.Duration
	// Stream limits the total duration of a streamed answer.
	Stream time.Duration
}

// Dispatcher serves the hub's calls on members' machines. It implements gateway.Backend.
// Create it with New, then call Run.
type Dispatcher struct {
	cfg        Config
	limits     atomic.Pointer[Limits]
	scheduler  scheduler
	active     activeCalls
	speeds     speeds
	turns      turns
	days       keyDays
	prefixes   prefix.Memory
	cacheNames cacheNames
	key        atomic.Pointer[prefix.Key]  // for fingerprints; nil: none yet
	changed    atomic.Pointer[time.Time]   // time of the last OnCommitted; nil: none yet
	ending     atomic.Pointer[fault.Fault] // ends every call from now on; nil: none
}

// New returns a Dispatcher. The registry must be set up to notify OnCommitted, OnChange
// and OnMachine.
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

// SetLimits changes the limits for new calls. It does not end calls that run or wait.
func (d *Dispatcher) SetLimits(l Limits) {
	d.limits.Store(&l)
	d.active.setLimits(max(l.Running, 0), max(l.Waiting, 0))
}

// Run routes again, each second, the waiting calls that the passing of time may affect,
// and ends running calls that may have been revoked (endUnconfirmed), until ctx ends.
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

// OnMachine handles a machine that connected, disconnected or changed: calls that wait
// for what it offers are routed again.
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
		if answer == nil { // a refusal or a panic; a slot may still be reserved
			if c.reservation != nil {
				d.scheduler.release(c.reservation, ran)
			}
			unregister()
		}
	}()
	if f := d.ending.Load(); f != nil {
		return nil, f
	}
	// The call's body may have taken minutes to arrive. A change during that time did not
	// end the call, because it was not active yet.
	if changed := d.changed.Load(); changed != nil && !call.Arrived.After(*changed) {
		if d.endRevoked([]*activeCall{c}, time.Now()); ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	if call.Caller.PerDay > 0 {
		release, err := d.reserveDay(call)
		if err != nil {
			return nil, err
		}
		end := unregister
		unregister = func() { release(); end() }
	}
	if err := d.readWork(ctx, c); err != nil {
		return nil, err
	}
	if answer, err = c.run(ctx); err == nil {
		answer.Body = &callBody{answer.Body, unregister}
	}
	return answer, err
}

// EndAll ends every call with fault f, now and in the future. Calls of other nodes end as
// if their machine were gone.
func (d *Dispatcher) EndAll(f *fault.Fault) {
	d.ending.Store(f) // before looking at the calls
	for _, c := range d.active.all() {
		c.cancel(f)
	}
}

// callBody is the body of an answer. Closing it ends the call.
type callBody struct {
	io.ReadCloser
	unregister func()
}

// Close implements io.Closer.
func (b *callBody) Close() error {
	defer b.unregister()
	return b.ReadCloser.Close()
}

// waitLimit returns how long the call may wait for a machine: the operator's limit, or
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
	q := fleet.Query{
		Caller: call.Caller.Member, Reach: call.Caller.Reach, Exclude: call.Caller.Machine,
		Model: call.Model, Family: call.Endpoint.Family(),
	}
	if call.Sealed != nil {
		q.Sealed, q.To, q.Declined = true, call.Sealed.To, call.Sealed.Declined
	}
	return q
}

// route decides using the latest snapshot. It claims the caller's newcomer turns; a turn
// is spent if the first candidate is a newcomer of its group.
func (d *Dispatcher) route(query *fleet.Query) fleet.Decision {
	s := d.scheduler.refresh(query)
	query.Turns = d.turns.claim(query.Caller)
	decision := fleet.Route(s, *query)
	d.turns.giveBack(query.Caller, query.Turns, decision.Candidates)
	query.Turns = nil
	return decision
}

// refresh sets the fields of the query that do not depend on the snapshot (the time, a
// new draw, whether the store could be read) and returns the latest snapshot.
func (d *Dispatcher) refresh(query *fleet.Query) *fleet.Snapshot {
	query.Now = d.cfg.Registry.Now()
	query.Draw = d.cfg.Draw()
	query.Unconfirmed = !d.cfg.Registry.Confirmed(time.Now())
	return d.cfg.Registry.Snapshot()
}
