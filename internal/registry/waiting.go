package registry

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"encoding/json/v2"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/peer"
)

// PathGrant is where a node takes the slots that other nodes grant to its waiting calls
// (spec/peers.md#grant).
const PathGrant = "/peer/grant"

// Waiting is the oldest of the calls that wait at a node and are equal to routing
// (spec/peers.md#waiting).
type Waiting struct {
	ID      int64             `json:"id"` // of these calls, at their node
	Member  fleet.MemberID    `json:"member,omitempty"`
	Narrow  fleet.Narrow      `json:"narrow,omitempty"`
	Machine fleet.MachineID   `json:"machine,omitempty"` // whose daemon sent the calls
	Model   fleet.ModelID     `json:"model,omitempty"`
	Family  fleet.Family      `json:"family,omitempty"`
	Avoid   []fleet.MachineID `json:"avoid,omitempty"`
	Calls   []WaitingCall     `json:"calls,omitempty"` // oldest first; none: none wait any more
}

// WaitingCall is one call that waits.
type WaitingCall struct {
	Number int64 `json:"number"` // at its node
	// Age is how long it had been there, in microseconds, when its node announced it: the
	// clocks of two nodes are not compared.
	Age     int64     `json:"age"`
	Arrived time.Time `json:"-"` // by this node's clock
}

// limitKey names the limits of a share, or of an owner for a group.
type limitKey struct {
	Member fleet.MemberID `json:"member,omitempty"` // to whom the share is
	Share  fleet.ShareID  `json:"share,omitempty"`
	Group  fleet.GroupID  `json:"group,omitempty"`
	Owner  fleet.MemberID `json:"owner,omitempty"` // whose limits for the group
}

// limitUse is what the calls on a node's machines use of limits (spec/peers.md#limits).
type limitUse struct {
	limitKey
	Running int64 `json:"running"`
	Begun   int64 `json:"begun"` // since the node began

	changed int64 // the sequence number of the last change
}

// waitingState is the calls that wait at a node, and what calls on its machines use of
// limits. With an After it holds what changed since that sequence number; else it is
// complete.
type waitingState struct {
	After    int64      `json:"after,omitzero"`
	Sequence int64      `json:"sequence"`
	Calls    []Waiting  `json:"calls,omitempty"`
	Limits   []limitUse `json:"limits,omitempty"`
}

// waitingAnnouncer holds what this node announces of its waiting calls, and of the limits
// that calls on its machines use.
type waitingAnnouncer struct {
	woken chan struct{} // one notice of changes to announce

	mu      sync.Mutex
	changes changeLog[int64] // what was removed are groups of calls that no longer wait
	groups  map[int64]*announcedWaiting
	limits  map[limitKey]limitUse
}

type announcedWaiting struct {
	Waiting
	changed int64 // the sequence number of the last change
}

// announce announces waiting calls, or that none of these wait any more.
func (a *waitingAnnouncer) announce(w Waiting) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(w.Calls) > 0 {
		if a.groups == nil {
			a.groups = make(map[int64]*announcedWaiting)
		}
		a.groups[w.ID] = &announcedWaiting{w, a.changes.next()}
	} else {
		delete(a.groups, w.ID)
		a.changes.remove(w.ID)
	}
	a.wake()
}

// wake makes a change be published. Needs mu.
func (a *waitingAnnouncer) wake() {
	select {
	case a.woken <- struct{}{}:
	default:
	}
}

// announceUse announces what is used of limits now.
func (a *waitingAnnouncer) announceUse(key limitKey, load *fleet.LimitLoad) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.limits == nil {
		a.limits = make(map[limitKey]limitUse)
	}
	running, begun := load.Use()
	a.limits[key] = limitUse{key, running, begun, a.changes.next()}
	a.wake()
}

// state returns what changed after that sequence number, or everything for 0 and for a
// number that is too old or of another process.
func (a *waitingAnnouncer) state(after int64, now time.Time) waitingState {
	a.mu.Lock()
	defer a.mu.Unlock()
	after = a.changes.start(after)
	out := waitingState{After: after, Sequence: a.changes.sequence}
	if after == a.changes.sequence {
		return out
	}
	for _, w := range a.groups {
		if w.changed > after {
			group := w.Waiting
			group.Calls = slices.Clone(group.Calls)
			for i := range group.Calls {
				group.Calls[i].Age = now.Sub(group.Calls[i].Arrived).Microseconds()
			}
			out.Calls = append(out.Calls, group)
		}
	}
	for _, id := range a.changes.removedAfter(after) {
		out.Calls = append(out.Calls, Waiting{ID: id})
	}
	slices.SortFunc(out.Calls, func(a, b Waiting) int { return cmp.Compare(a.ID, b.ID) })
	for _, use := range a.limits {
		if use.changed > after {
			out.Limits = append(out.Limits, use)
		}
	}
	slices.SortFunc(out.Limits, func(a, b limitUse) int { return cmp.Compare(a.changed, b.changed) })
	return out
}

// NodeName returns this node's name.
func (r *Registry) NodeName() string { return r.config.Node }

// AnnounceWaiting announces calls that wait at this node to the others.
func (r *Registry) AnnounceWaiting(w Waiting) { r.waiting.announce(w) }

// AnnounceUse announces what calls on this node's machines use now of the limits by which
// a machine is reached.
func (r *Registry) AnnounceUse(c *fleet.Candidate) {
	if c.Share != nil {
		r.waiting.announceUse(limitKey{Member: c.Share.Member, Share: c.Share.ID}, c.Limits.Load)
	} else {
		r.waiting.announceUse(limitKey{Group: c.Group.ID, Owner: c.Machine.Owner}, c.Limits.Load)
	}
}

// nodeUse is what is known of the limits that calls on another node's machines use.
type nodeUse struct {
	incarnation string
	known       map[limitKey]limitUse
}

// applyUse counts what calls on another node's machines use of limits, and returns the
// members whose calls may have room under them now. What was used before this node had
// read the day's calls from the ledger is in those: of the nodes that it finds when it
// starts only later calls count.
func (r *Registry) applyUse(p *peer.Peer, uses []limitUse) (room []fleet.MemberID) {
	now, s := r.Now(), r.Snapshot()
	r.mu.Lock()
	defer r.mu.Unlock()
	node := r.uses[p.Node.Name]
	if node == nil || node.incarnation != p.Node.Incarnation {
		node = &nodeUse{p.Node.Incarnation, make(map[limitKey]limitUse)}
		r.uses[p.Node.Name] = node
		if time.Since(r.loaded) < returnAfterStart {
			for _, use := range uses {
				node.known[use.limitKey] = limitUse{Begun: use.Begun - use.Running}
			}
		}
	}
	for _, use := range uses {
		limits, members := limitsOf(s, use.limitKey)
		if limits == nil {
			continue
		}
		was := node.known[use.limitKey]
		node.known[use.limitKey] = use
		limits.Load.AddOthers(now, use.Running-was.Running, use.Begun-was.Begun)
		if use.Running < was.Running || use.Begun < was.Begun {
			room = append(room, members...)
		}
	}
	return room
}

// loseUse counts the calls on the machines of a node that is gone no longer as running.
func (r *Registry) loseUse(node string) (room []fleet.MemberID) {
	now, s := r.Now(), r.Snapshot()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.uses[node] == nil {
		return nil
	}
	for key, use := range r.uses[node].known {
		if limits, members := limitsOf(s, key); limits != nil && use.Running > 0 {
			limits.Load.AddOthers(now, -use.Running, 0)
			room = append(room, members...)
		}
		use.Running = 0
		r.uses[node].known[key] = use
	}
	return room
}

// limitsOf returns the limits of that key, and the members whose calls count against them.
func limitsOf(s *fleet.Snapshot, key limitKey) (*fleet.Limits, []fleet.MemberID) {
	if key.Share != "" {
		if share := s.ShareOf(key.Member, key.Share); share != nil {
			return &share.Limits, []fleet.MemberID{share.Member}
		}
		return nil, nil
	}
	if g := s.Group(key.Group); g != nil && g.Limits[key.Owner] != nil {
		return g.Limits[key.Owner], g.Members
	}
	return nil, nil
}

func (r *Registry) notifyRoom(room []fleet.MemberID) {
	if r.observer.Room != nil && len(room) > 0 && !r.stopped.Load() {
		r.observer.Room(room)
	}
}

// applyWaiting passes on what another node announced of its waiting calls.
func (r *Registry) applyWaiting(p *peer.Peer, st *waitingState) {
	node, now := p.Node.Name, time.Now()
	r.notifyRoom(r.applyUse(p, st.Limits))
	for i := range st.Calls {
		for j := range st.Calls[i].Calls {
			call := &st.Calls[i].Calls[j]
			call.Arrived = now.Add(-time.Duration(max(call.Age, 0)) * time.Microsecond)
		}
	}
	if r.observer.Waiting != nil && (st.After == 0 || len(st.Calls) > 0) {
		r.observer.Waiting(node, st.After == 0, st.Calls)
	}
}

// Grant is a held slot of a machine for one waiting call of another node.
type Grant struct {
	Call       int64           `json:"call"` // its number at its node
	Machine    fleet.MachineID `json:"machine"`
	Generation int64           `json:"generation"`
	Hold       string          `json:"hold"` // the call's request names it
}

// GrantOutcome is what a node did with a grant.
type GrantOutcome int

// The outcomes of a grant, and the statuses of their answers.
const (
	GrantTaken    = GrantOutcome(http.StatusNoContent) // the call's request follows
	GrantGone     = GrantOutcome(http.StatusGone)      // the call does not wait any more
	GrantDeclined = GrantOutcome(http.StatusConflict)  // the call waits, and not for this machine now
	GrantLost     = GrantOutcome(0)                    // there is no answer
)

// SendGrant offers a held slot to the node of a waiting call.
func (r *Registry) SendGrant(ctx context.Context, node string, g Grant) GrantOutcome {
	f := r.followedNode(node)
	if f == nil {
		return GrantLost
	}
	body, err := json.Marshal(g)
	if err != nil {
		return GrantLost
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://peer"+PathGrant, bytes.NewReader(body))
	if err != nil {
		return GrantLost
	}
	response, err := f.peer.RoundTrip(request)
	if err != nil {
		return GrantLost
	}
	response.Body.Close()
	switch outcome := GrantOutcome(response.StatusCode); outcome {
	case GrantTaken, GrantGone, GrantDeclined:
		return outcome
	default:
		return GrantLost
	}
}

// ReadGrant reads the grant of another node.
func ReadGrant(r *http.Request) (g Grant, err error) {
	if err := json.UnmarshalRead(io.LimitReader(r.Body, maxGrant), &g); err != nil {
		return g, fmt.Errorf("cannot read the grant: %w", err)
	}
	return g, nil
}

// maxGrant is the longest grant, in bytes.
const maxGrant = 4 << 10
