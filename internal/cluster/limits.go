package cluster

import (
	"maps"
	"sync"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
)

const (
	// startFor is how long after its start a node assumes that calls on other nodes'
	// machines are already included in the day's counts that it read from the ledger.
	startFor = 30 * time.Second
)

// limitKey identifies the limits of a share, of an owner for a group, or of a key.
type limitKey struct {
	Member fleet.MemberID `json:"member,omitempty"` // the member of the share
	Share  fleet.ShareID  `json:"share,omitempty"`
	Group  fleet.GroupID  `json:"group,omitempty"`
	Owner  fleet.MemberID `json:"owner,omitempty"` // the owner of the limits for the group
	Key    string         `json:"key,omitempty"`   // a key's id
}

// limitUse is the use of limits by calls on one node's machines, or of a key by the calls
// that one node received (spec/peers.md#limits).
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

// loadOfLimits returns the load of the limits, nil if they are not known here, and the
// members whose waiting calls may be within them once there is room.
func (c *Cluster) loadOfLimits(k limitKey) (*fleet.LimitLoad, []fleet.MemberID) {
	s := c.parts.Registry.Snapshot()
	switch {
	case k.Key != "":
		return c.parts.Dispatch.KeyLoad(k.Key), nil // no call waits for room
	case k.Share != "":
		if share := s.ShareOf(k.Member, k.Share); share != nil {
			return share.Load, []fleet.MemberID{share.Member}
		}
	default:
		if g := s.Group(k.Group); g != nil && g.Limits[k.Owner] != nil {
			return g.Limits[k.Owner].Load, g.Members
		}
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
	pending     map[limitKey]limitUse // of limits that are not known here yet
}

// apply counts the use of limits by calls on another node's machines, and returns the
// members whose calls may now be within the limits. The day's counts that this node reads
// when it starts include the calls of the nodes that it finds, as far as they have ended:
// the ledger records a call at its end. So of the Begun calls of such a node, Begun -
// Running are counted already, and those that are running are not. The same holds for
// each key, whose count is read at its first call here.
func (u *limitUses) apply(c *Cluster, n *account.Node, uses []limitUse) (room []fleet.MemberID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	node := u.nodes[n.Name]
	if node == nil || node.incarnation != n.Incarnation {
		node = &nodeUse{n.Incarnation, make(map[limitKey]limitUse), make(map[limitKey]limitUse)}
		if u.nodes == nil {
			u.nodes = make(map[string]*nodeUse)
		}
		u.nodes[n.Name] = node
		if c.parts.Registry.SinceLoaded() < startFor {
			for _, use := range uses {
				node.known[use.limitKey] = limitUse{Begun: use.Begun - use.Running}
			}
		}
	}
	for _, use := range uses {
		node.pending[use.limitKey] = use
	}
	for _, use := range node.pending {
		room = append(room, node.count(c, use)...)
	}
	return room
}

// count counts a pending use of limits if these are known here, and returns the members
// whose calls may now be within them.
func (n *nodeUse) count(c *Cluster, use limitUse) (room []fleet.MemberID) {
	load, members := c.loadOfLimits(use.limitKey)
	if load == nil {
		if use.Key != "" {
			n.known[use.limitKey] = limitUse{Begun: use.Begun - use.Running}
		}
		return nil
	}
	delete(n.pending, use.limitKey)
	was := n.known[use.limitKey]
	n.known[use.limitKey] = use
	load.AddOthers(c.parts.Registry.Now(), use.Running-was.Running, use.Begun-was.Begun)
	if use.Running < was.Running || use.Begun < was.Begun {
		room = members
	}
	return room
}

// countKey counts the pending uses of a key, which has its load from now on.
func (u *limitUses) countKey(c *Cluster, key string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, node := range u.nodes {
		if use, ok := node.pending[limitKey{Key: key}]; ok {
			node.count(c, use)
		}
	}
}

// lose stops counting calls on the machines of a lost node as running, and returns the
// members whose calls may now be within the limits.
func (u *limitUses) lose(c *Cluster, node string) (room []fleet.MemberID) {
	now := c.parts.Registry.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	lost := u.nodes[node]
	if lost == nil {
		return nil
	}
	for key, use := range lost.known {
		if load, members := c.loadOfLimits(key); load != nil && use.Running > 0 {
			load.AddOthers(now, -use.Running, 0)
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
// What a node has of a key is kept as long as the key's count there.
func (c *Cluster) pruneLimits(gone func(node string) bool) {
	deleted := func(key limitKey) bool {
		load, _ := c.loadOfLimits(key)
		return load == nil && key.Key == ""
	}
	for _, r := range c.feed.all() {
		if key, ok := r.key.(limitKey); ok && deleted(key) {
			c.feed.removeSilently(key)
		}
	}
	c.uses.mu.Lock()
	defer c.uses.mu.Unlock()
	for name, node := range c.uses.nodes {
		if gone(name) {
			delete(c.uses.nodes, name)
			continue
		}
		maps.DeleteFunc(node.known, func(key limitKey, _ limitUse) bool { return deleted(key) })
		maps.DeleteFunc(node.pending, func(key limitKey, _ limitUse) bool { return deleted(key) }) // before they were known here
	}
}
