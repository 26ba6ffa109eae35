package registry

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/peer"
)

// Status is how a Registry is, for the operator.
type Status struct {
	Online  int  // machines that are connected to any node
	Tunnels int  // machines that are connected to this one
	Hinted  bool // this node sends and receives hints
	// Confirmed is the age of the last confirmation; negative: there was none yet.
	Confirmed  time.Duration
	NodesAlive int // this one included; 0 where one process has the store to itself
	// ClockAhead is by how much this computer's clock is ahead of the store's.
	ClockAhead time.Duration
	Peers      []PeerStatus
	// Forwards is how many requests to machines at other nodes ended in each way.
	Forwards map[string]uint64
}

// PeerStatus is another node of the region, as this one sees it.
type PeerStatus struct {
	Name      string
	Connected bool
	// Heard is the age of what is known of the node's machines; negative: nothing is.
	Heard time.Duration
}

// Status returns the present state.
func (r *Registry) Status(now time.Time) Status {
	s := Status{Hinted: r.Hinted(), Confirmed: -1, ClockAhead: r.ClockAhead(), Forwards: r.forwards.counts()}
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
	r.followed.Range(func(_, value any) bool {
		f := value.(*followed)
		p := PeerStatus{Name: f.peer.Node.Name, Connected: f.peer.IsConnected(), Heard: -1}
		if at := f.heard.Load(); at != nil {
			p.Heard = now.Sub(*at)
		}
		s.Peers = append(s.Peers, p)
		return true
	})
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

// followed is another node whose state this one reads.
type followed struct {
	peer   *peer.Peer
	cancel context.CancelFunc        // stops following it
	heard  atomic.Pointer[time.Time] // when its state was last received; nil: not yet
	calls  atomic.Int64              // that it serves, by that state
}

// hear records that the state of a node was received now.
func (r *Registry) hear(p *peer.Peer, st *state) {
	if f := r.followedNode(p.Node.Name); f != nil {
		now := time.Now()
		f.heard.Store(&now)
		f.calls.Store(int64(st.Calls))
	}
}

// followedNode returns the other node of that name; nil if this one does not follow it.
func (r *Registry) followedNode(name string) *followed {
	value, _ := r.followed.Load(name)
	f, _ := value.(*followed)
	return f
}

// cutOff reports whether the state of a node that is alive was not received lately: a
// machine may have moved to that node.
func (r *Registry) cutOff(now time.Time) bool {
	return slices.ContainsFunc(r.others(now), func(n Node) bool {
		f := r.followedNode(n.Name)
		if f == nil {
			return true
		}
		heard := f.heard.Load()
		return heard == nil || now.Sub(*heard) > silentFor
	})
}

// Ends of forwarded requests beside the refusals and ends that a home reports.
const (
	forwardCancelled Refusal = "cancelled" // this node ended it
	forwardLinkLost  Refusal = "link_lost" // the link to the home ended
	forwardOther     Refusal = "other"
)

// forwardEnds is every way in which a forwarded request ends.
var forwardEnds = [...]Refusal{
	endedComplete, RefusedBusy, RefusedGone, RefusedMoved, RefusedReach, RefusedUnavailable, RefusedRepeated,
	EndedLost, EndedBroken, EndedReach, forwardCancelled, forwardLinkLost, forwardOther,
}

// forwardCounts counts the ends of forwarded requests.
type forwardCounts [len(forwardEnds)]atomic.Uint64

func (c *forwardCounts) add(end Refusal) {
	at := slices.Index(forwardEnds[:], end)
	if at < 0 {
		at = len(forwardEnds) - 1
	}
	c[at].Add(1)
}

func (c *forwardCounts) counts() map[string]uint64 {
	counts := make(map[string]uint64, len(forwardEnds))
	for i, end := range forwardEnds {
		counts[string(end)] = c[i].Load()
	}
	return counts
}

// forwardError returns how a forwarded request ended that failed with err, and not by a
// refusal of the home.
func forwardError(ctx context.Context, err error) Refusal {
	switch {
	case ctx.Err() != nil:
		return forwardCancelled
	case errors.Is(err, peer.ErrLost):
		return forwardLinkLost
	default:
		return forwardOther
	}
}
