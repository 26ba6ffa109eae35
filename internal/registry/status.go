package registry

import (
	"slices"
	"time"
)

// Status is how a Registry is, for the operator.
type Status struct {
	Online  int // machines that are connected to any node
	Tunnels int // machines that are connected to this one
	// Confirmed is the age of the last confirmation; negative: there was none yet.
	Confirmed  time.Duration
	NodesAlive int // this one included; 0 where one process has the store to itself
	// ClockAhead is by how much this computer's clock is ahead of the store's.
	ClockAhead time.Duration
}

// Status returns the present state.
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

// clockTolerance is by how much this computer's clock may differ from the store's.
const clockTolerance = 5 * time.Second

// ClockAhead returns by how much this computer's clock is ahead of the store's, which all
// nodes use.
func (r *Registry) ClockAhead() time.Duration { return time.Duration(r.clockAhead.Load()) }

// ClockWrong reports whether this computer's clock differs from the store's by more than a
// few seconds.
func (r *Registry) ClockWrong() bool { return r.ClockAhead().Abs() > clockTolerance }

// seeClock takes by how much this computer's clock is ahead, and logs when that begins or
// ceases to be wrong.
func (r *Registry) seeClock(ahead time.Duration) {
	was := r.ClockWrong()
	r.clockAhead.Store(int64(ahead))
	switch wrong := r.ClockWrong(); {
	case wrong && !was:
		r.config.Log.Warn("this computer's clock differs from the database's, which all hubs use: synchronize both computers, as with NTP", "ahead", ahead.Round(time.Millisecond))
	case was && !wrong:
		r.config.Log.Info("this computer's clock agrees with the database's again")
	}
}

// cutOff reports whether the state of a node that is alive was not received lately: a
// machine may have moved to that node.
func (r *Registry) cutOff(now time.Time) bool {
	return slices.ContainsFunc(r.Peers(now), func(n Node) bool {
		heard := r.heard(n.Name)
		return n.Alive && (heard.IsZero() || now.Sub(heard) > silentFor)
	})
}

// silentFor is how long nothing may come from a node before the store is read for newer
// tunnels of the machines here.
const silentFor = time.Second

// heard returns when the state of another node was last received; the zero time: never.
func (r *Registry) heard(node string) time.Time {
	if r.others == nil {
		return time.Time{}
	}
	return r.others.Heard(node)
}
