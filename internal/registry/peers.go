package registry

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/peer"
)

// follower follows one other node of the region.
type follower struct {
	incarnation string
	connected   func() bool
	cancel      context.CancelFunc
}

// followPeers follows the other nodes that the store has, until ctx ends.
func (r *Registry) followPeers(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	following := make(map[string]follower)
	for {
		r.updatePeers(ctx, following, &running)
		select {
		case <-r.polled:
		case <-ctx.Done():
			return
		}
	}
}

// updatePeers follows each node of the region that beats, and stops following those
// that ended or whose name another process took.
func (r *Registry) updatePeers(ctx context.Context, following map[string]follower, running *sync.WaitGroup) {
	nodes := make(map[string]Node)
	var trusted []fleet.Node
	for _, n := range r.Nodes(time.Now()) {
		if n.Region == r.config.Region && n.Name != r.config.Node && n.Pin != "" && n.Address != "" {
			nodes[n.Name] = n
			trusted = append(trusted, n.Node)
		}
	}
	r.config.Peers.Trust(trusted)
	for name, f := range following {
		if n, ok := nodes[name]; !ok || n.Incarnation != f.incarnation || !n.Alive && !f.connected() {
			f.cancel()
			delete(following, name)
		}
	}
	for name, n := range nodes {
		if _, ok := following[name]; ok || !n.Alive {
			continue
		}
		p := r.config.Peers.Peer(n.Node)
		within, cancel := context.WithCancel(ctx)
		following[name] = follower{n.Incarnation, p.IsConnected, cancel}
		running.Go(func() { p.Run(within) })
		running.Go(func() { r.followPeer(within, p) })
	}
}

// followPeer keeps the snapshot up with the machines of another node, until ctx ends.
// They are connected for as long as the node is.
func (r *Registry) followPeer(ctx context.Context, p *peer.Peer) {
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

// pollPeer reads the node's state each second until it is lost.
func (r *Registry) pollPeer(ctx context.Context, p *peer.Peer, lost <-chan struct{}) {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	var after int64
	for {
		next, err := r.readPeer(ctx, p, after)
		if err != nil && ctx.Err() == nil {
			r.config.Log.Warn("cannot read the machines of another hub node; trying again", "node", p.Node.Name, "error", err)
		} else {
			after = next
		}
		select {
		case <-ticker.C:
		case <-lost:
			return
		case <-ctx.Done():
			return
		}
	}
}

// readPeer reads what changed at the node after that sequence number, publishes it and
// returns the number reached.
func (r *Registry) readPeer(ctx context.Context, p *peer.Peer, after int64) (int64, error) {
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
	if err := r.applyState(ctx, p, &st); err != nil {
		return after, err
	}
	return st.Sequence, nil
}
