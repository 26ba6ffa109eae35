package registry

import (
	"time"
)

// Status is the state of a Registry, for the operator.
type Status struct {
	Online  int // machines that are connected to any node
	Tunnels int // machines that are connected to this node
	// Confirmed is the age of the last confirmation, or negative if there was none.
	Confirmed  time.Duration
	NodesAlive int // including this one; 0 if only one process uses the store
	// ClockAhead is how far this computer's clock is ahead of the store's.
	ClockAhead time.Duration
}

// Status returns the current state.
func (r *Registry) Status(now time.Time) Status {
	s := Status{Confirmed: -1, ClockAhead: r.ClockAhead()}
	if at := r.confirmed.Load(); at != nil {
		s.Confirmed = now.Sub(*at)
	}
	for m := range r.Snapshot().Machines() {
		if m.Online {
			s.Online++
		}
	}
	r.lines.Range(func(_, line any) bool {
		if line.(*connection).home == "" {
			s.Tunnels++
		}
		return true
	})
	for _, n := range r.Nodes(now) {
		if n.Alive {
			s.NodesAlive++
		}
	}
	return s
}

// clockTolerance is how much this computer's clock may differ from the store's.
const clockTolerance = 5 * time.Second

// ClockAhead returns how far this computer's clock is ahead of the store's, which all
// nodes use.
func (r *Registry) ClockAhead() time.Duration { return time.Duration(r.clockAhead.Load()) }

// ClockWrong reports whether this computer's clock differs from the store's by more than a
// few seconds.
func (r *Registry) ClockWrong() bool { return r.ClockAhead().Abs() > clockTolerance }

// seeClock records how far this computer's clock is ahead, and logs when it becomes wrong
// or right.
func (r *Registry) seeClock(ahead time.Duration) {
	was := r.ClockWrong()
	r.clockAhead.Store(int64(ahead))
	switch wrong := r.ClockWrong(); {
	case wrong && !was:
		r.config.Log.Warn("this computer's clock differs from that of the database, which all hubs use: synchronize both, for example with NTP", "ahead", ahead.Round(time.Millisecond))
	case was && !wrong:
		r.config.Log.Info("this computer's clock agrees with the database's again")
	}
}
