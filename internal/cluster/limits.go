package cluster

import (
	"sync"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/registry"
)

const (
	// startFor is how long after its start a node assumes that calls on other nodes'
	// machines are already included in the day's counts that it read from the ledger.
	startFor = 30 * time.Second
)

// limitKey identifies the limits of a share, or of an owner for a group.
type limitKey struct {
	Member fleet.MemberID `json:"member,omitempty"` // the member of the share
	Share  fleet.ShareID  `json:"share,omitempty"`
	Group  fleet.GroupID  `json:"group,omitempty"`
	Owner  fleet.MemberID `json:"owner,omitempty"` // the owner of the limits for the group
}

// limitUse is the use of limits by calls on one node's machines (spec/peers.md#limits).
type limitUse struct {
	limitKey
	Running int64 `json:"running"`
	Begun   int64 `json:"begun"` // since the node started
}

// limitsOf returns the key of the limits that apply to the candidate.
func limitsOf(c *fleet.Candidate) limitKey {
	if c.Share != nil {
		return limitKey{Member: c.Share.Member, Share: c.Share.ID}
	}
	return limitKey{Group: c.Group.ID, Owner: c.Machine.Owner}
}

// limits returns the limits for the key, and the members whose calls count against them.
func (k limitKey) limits(s *fleet.Snapshot) (*fleet.Limits, []fleet.MemberID) {
	if k.Share != "" {
		if share := s.ShareOf(k.Member, k.Share); share != nil {
			return &share.Limits, []fleet.MemberID{share.Member}
		}
		return nil, nil
	}
	if g := s.Group(k.Group); g != nil && g.Limits[k.Owner] != nil {
		return g.Limits[k.Owner], g.Members
	}
	return nil, nil
}

// limitUses tracks the use of limits by calls on other nodes' machines.
type limitUses struct {
	mu    sync.Mutex
	nodes map[string]*nodeUse
}

type nodeUse struct {
	incarnation string
	known       map[limitKey]limitUse
	pending     map[limitKey]limitUse // of limits that are not in the snapshot yet
}

// apply counts the use of limits by calls on another node's machines, and returns the
// members whose calls may now be within the limits. The day's counts that this node reads
// when it starts include the calls of the nodes that it finds, as far as they have ended:
// the ledger records a call at its end. So of the Begun calls of such a node, Begun -
// Running are counted already, and those that are running are not.
func (u *limitUses) apply(r *registry.Registry, n *account.Node, uses []limitUse) (room []fleet.MemberID) {
	now, s := r.Now(), r.Snapshot()
	u.mu.Lock()
	defer u.mu.Unlock()
	node := u.nodes[n.Name]
	if node == nil || node.incarnation != n.Incarnation {
		node = &nodeUse{n.Incarnation, make(map[limitKey]limitUse), make(map[limitKey]limitUse)}
		if u.nodes == nil {
			u.nodes = make(map[string]*nodeUse)
		}
		u.nodes[n.Name] = node
		if r.SinceLoaded() < startFor {
			for _, use := range uses {
				node.known[use.limitKey] = limitUse{Begun: use.Begun - use.Running}
			}
		}
	}
	for _, use := range uses {
		node.pending[use.limitKey] = use
	}
	for _, use := range node.pending {
		limits, members := use.limits(s)
		if limits == nil {
			continue
		}
		delete(node.pending, use.limitKey)
		was := node.known[use.limitKey]
		node.known[use.limitKey] = use
		limits.Load.AddOthers(now, use.Running-was.Running, use.Begun-was.Begun)
		if use.Running < was.Running || use.Begun < was.Begun {
			room = append(room, members...)
		}
	}
	return room
}

// lose stops counting calls on the machines of a lost node as running, and returns the
// members whose calls may now be within the limits.
func (u *limitUses) lose(r *registry.Registry, node string) (room []fleet.MemberID) {
	now, s := r.Now(), r.Snapshot()
	u.mu.Lock()
	defer u.mu.Unlock()
	lost := u.nodes[node]
	if lost == nil {
		return nil
	}
	for key, use := range lost.known {
		if limits, members := key.limits(s); limits != nil && use.Running > 0 {
			limits.Load.AddOthers(now, -use.Running, 0)
			room = append(room, members...)
		}
		use.Running = 0
		lost.known[key] = use
	}
	for key, use := range lost.pending {
		use.Running = 0
		lost.pending[key] = use
	}
	return room
}

// pruneLimits forgets deleted limits, and the use of limits by nodes that gone reports.
func (c *Cluster) pruneLimits(gone func(node string) bool) {
	s := c.parts.Registry.Snapshot()
	for _, r := range c.feed.all() {
		if key, ok := r.key.(limitKey); ok {
			if limits, _ := key.limits(s); limits == nil {
				c.feed.removeSilently(key)
			}
		}
	}
	c.uses.mu.Lock()
	defer c.uses.mu.Unlock()
	for name, node := range c.uses.nodes {
		if gone(name) {
			delete(c.uses.nodes, name)
			continue
		}
		for key := range node.known {
			if limits, _ := key.limits(s); limits == nil {
				delete(node.known, key)
			}
		}
		clear(node.pending) // of limits that were gone before they were known here
	}
}
