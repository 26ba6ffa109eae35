package registry

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/peer"
)

// follower follows one other node of the region.
type follower struct {
	*peer.Peer
	incarnation string
	cancel      context.CancelFunc
	heard       atomic.Pointer[time.Time] // when it last said something of its state
	calls       atomic.Int64              // that it serves, as it last said
}

// hear records that the node said something of its state.
func (f *follower) hear(st *state) {
	now := time.Now()
	f.heard.Store(&now)
	f.calls.Store(int64(st.Calls))
}

// followPeers follows the other nodes that the store has, until ctx ends.
func (r *Registry) followPeers(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		r.updatePeers(ctx, &running)
		select {
		case <-r.polled:
		case <-ctx.Done():
			return
		}
	}
}

// updatePeers follows each node of the region that beats, and stops following those
// that ended or whose name another process took.
func (r *Registry) updatePeers(ctx context.Context, running *sync.WaitGroup) {
	nodes := make(map[string]Node)
	var trusted []fleet.Node
	for _, n := range r.Nodes(time.Now()) {
		if r.isPeer(n) {
			nodes[n.Name] = n
			trusted = append(trusted, n.Node)
		}
	}
	r.config.Peers.Trust(trusted)
	r.following.Range(func(name, found any) bool {
		f := found.(*follower)
		if n, ok := nodes[name.(string)]; !ok || n.Incarnation != f.incarnation || !n.Alive && !f.IsConnected() {
			f.cancel()
			r.following.Delete(name)
		}
		return true
	})
	for name, n := range nodes {
		if r.follower(name) != nil || !n.Alive {
			continue
		}
		within, cancel := context.WithCancel(ctx)
		f := &follower{Peer: r.config.Peers.Peer(n.Node), incarnation: n.Incarnation, cancel: cancel}
		r.following.Store(name, f)
		running.Go(func() { f.Run(within) })
		running.Go(func() { r.followPeer(within, f) })
	}
}

// follower returns the one of a node; nil if it is not followed.
func (r *Registry) follower(node string) *follower {
	f, _ := r.following.Load(node)
	found, _ := f.(*follower)
	return found
}

// cutOff reports whether a node that is alive has not said anything of its state
// lately: a machine may have moved to it.
func (r *Registry) cutOff(now time.Time) bool {
	return slices.ContainsFunc(r.others(now), func(n Node) bool {
		f := r.follower(n.Name)
		if f == nil {
			return true
		}
		heard := f.heard.Load()
		return heard == nil || now.Sub(*heard) > silentFor
	})
}

// followPeer keeps the snapshot up with the machines of another node, until ctx ends.
// They are connected for as long as the node is.
func (r *Registry) followPeer(ctx context.Context, p *follower) {
	for {
		lost, err := p.Connected(ctx)
		if err != nil {
			return
		}
		r.config.Log.Info("connected to another hub node", "node", p.Node.Name)
		r.pollPeer(ctx, p, lost)
		r.loseNode(p.Node.Name)
		r.config.Log.Info("another hub node is gone", "node", p.Node.Name)
	}
}

const (
	// silentFor is how long no hint may come from a node before its state is read.
	silentFor = time.Second
	// maxWaitingHints is how many hints of a node may wait; more are lost.
	maxWaitingHints = 256
)

// pollPeer takes what the node announces until it is lost. It reads the state each
// second in which no hint came, and where a hint was missed.
func (r *Registry) pollPeer(ctx context.Context, p *follower, lost <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	hints := make(chan *nats.Msg, maxWaitingHints)
	go func() {
		if err := r.hints.follow(ctx, p.Peer, hints, r.pollNow); err != nil {
			r.config.Log.Warn("no hints of another hub node: its state is read each second", "node", p.Node.Name, "error", err)
		}
	}()
	ticker := time.NewTicker(silentFor)
	defer ticker.Stop()
	var after int64
	var heard time.Time
	missed := true
	for {
		if missed || time.Since(heard) >= silentFor {
			next, err := r.readPeer(ctx, p, after)
			if err != nil && ctx.Err() == nil {
				r.config.Log.Warn("cannot read the machines of another hub node; trying again", "node", p.Node.Name, "error", err)
			}
			after, missed = next, false
		}
		select {
		case <-ticker.C:
		case hint := <-hints:
			heard = time.Now()
			after, missed = r.takeHint(ctx, p, hint.Data, after)
		case <-lost:
			return
		case <-ctx.Done():
			return
		}
	}
}

// takeHint publishes what a hint says of the node's state after that sequence number. It
// returns the number reached, and whether an earlier hint was missed.
func (r *Registry) takeHint(ctx context.Context, p *follower, data []byte, after int64) (next int64, missed bool) {
	var hint stateHint
	switch err := json.Unmarshal(data, &hint); {
	case err != nil || hint.Incarnation != p.Node.Pin:
		return after, false
	case hint.State.Sequence <= after:
		p.hear(&hint.State)
		return after, false
	case hint.State.After == 0 || hint.State.After > after:
		return after, true
	}
	if err := r.applyState(ctx, p.Peer, &hint.State); err != nil {
		return after, true
	}
	p.hear(&hint.State)
	return hint.State.Sequence, false
}

// readPeer reads what changed at the node after that sequence number, publishes it and
// returns the number reached.
func (r *Registry) readPeer(ctx context.Context, p *follower, after int64) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, pollWithin)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://peer"+PathState+"?after="+strconv.FormatInt(after, 10), nil)
	if err != nil {
		return after, err
	}
	response, err := p.RoundTrip(request)
	if err != nil {
		return after, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return after, fmt.Errorf("it answered %s", response.Status)
	}
	var st state
	if err := json.UnmarshalRead(response.Body, &st); err != nil {
		return after, fmt.Errorf("cannot read its answer: %w", err)
	}
	if err := r.applyState(ctx, p.Peer, &st); err != nil {
		return after, err
	}
	p.hear(&st)
	return st.Sequence, nil
}
