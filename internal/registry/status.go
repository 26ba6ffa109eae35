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
	s := Status{Hinted: r.Hinted(), Confirmed: -1, Forwards: r.forwards.counts()}
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

// followed is another node that this one follows.
type followed struct {
	peer  *peer.Peer
	heard atomic.Pointer[time.Time] // when its state was last learned; nil: not yet
}

// hear records that the state of a node was learned now.
func (r *Registry) hear(p *peer.Peer) {
	if value, ok := r.followed.Load(p.Node.Name); ok {
		now := time.Now()
		value.(*followed).heard.Store(&now)
	}
}

// Ends of forwarded requests beside the refusals and ends that a home reports.
const (
	forwardCancelled Refusal = "cancelled" // this node ended it
	forwardLinkLost  Refusal = "link_lost" // the link to the home ended
	forwardOther     Refusal = "other"
)

// forwardEnds is every way in which a forwarded request ends.
var forwardEnds = [...]Refusal{
	endedComplete, RefusedBusy, RefusedGone, RefusedReach, RefusedUnavailable, RefusedRepeated,
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

// forwardError is how a forwarded request ended that failed with err without a word of
// the home.
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
