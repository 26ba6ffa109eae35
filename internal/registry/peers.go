package registry

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"encoding/json/v2"
	"github.com/nats-io/nats.go"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/peer"
)

// HasPeers reports whether there may be other nodes.
func (r *Registry) HasPeers() bool { return r.config.Peers != nil }

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
	r.followed.Range(func(name, value any) bool {
		f := value.(*followed)
		if n, ok := nodes[name.(string)]; !ok || n.Incarnation != f.peer.Node.Incarnation || !n.Alive && !f.peer.IsConnected() {
			f.cancel()
			r.followed.Delete(name)
		}
		return true
	})
	for name, n := range nodes {
		if r.followedNode(name) != nil || !n.Alive {
			continue
		}
		p := r.config.Peers.Peer(n.Node)
		within, cancel := context.WithCancel(ctx)
		r.followed.Store(name, &followed{peer: p, cancel: cancel})
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
		r.applyWaiting(p, &waitingState{})
		r.notifyRoom(r.loseUse(p.Node.Name))
		if ctx.Err() == nil { // else this node stops, or the other one began anew
			r.config.Log.Info("another hub node is gone", "node", p.Node.Name)
		}
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
func (r *Registry) pollPeer(ctx context.Context, p *peer.Peer, lost <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	hints := make(chan *nats.Msg, maxWaitingHints)
	go func() {
		if err := r.hints.follow(ctx, p, hints, r.pollNow, map[string]func([]byte){subjectSeen: r.notifySeen, subjectRates: r.notifyRates}); err != nil {
			r.config.Log.Warn("no hints of another hub node: its state is read each second", "node", p.Node.Name, "error", err)
		}
	}()
	ticker := time.NewTicker(silentFor)
	defer ticker.Stop()
	var after sequences
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
			if strings.HasPrefix(strings.TrimPrefix(hint.Subject, r.hints.prefix), subjectWait) {
				after, missed = r.takeWaiting(p, hint.Data, after)
			} else {
				after, missed = r.takeHint(ctx, p, hint.Data, after)
			}
		case <-lost:
			return
		case <-ctx.Done():
			return
		}
	}
}

// sequences is the sequence numbers up to which a node's state is known.
type sequences struct{ state, waiting int64 }

// takeHint publishes what a hint says of the node's state after that sequence number. It
// returns the number reached, and whether an earlier hint was missed.
func (r *Registry) takeHint(ctx context.Context, p *peer.Peer, data []byte, after sequences) (next sequences, missed bool) {
	var hint stateHint
	if err := json.Unmarshal(data, &hint); err != nil || hint.Incarnation != p.Node.Pin {
		return after, false
	}
	missed = hint.State.Waiting.Sequence > after.waiting
	switch st := &hint.State; {
	case st.Sequence <= after.state:
		if st.Sequence == after.state {
			r.hear(p, st)
		}
		return after, missed
	case st.After == 0 || st.After > after.state:
		return after, true
	default:
		if err := r.applyState(ctx, p, st); err != nil {
			return after, true
		}
		r.hear(p, st)
		after.state = st.Sequence
		return after, missed
	}
}

// takeWaiting is takeHint for the calls that wait at the node.
func (r *Registry) takeWaiting(p *peer.Peer, data []byte, after sequences) (next sequences, missed bool) {
	var hint waitingHint
	switch err := json.Unmarshal(data, &hint); {
	case err != nil || hint.Incarnation != p.Node.Pin || hint.Waiting.Sequence <= after.waiting:
		return after, false
	case hint.Waiting.After > after.waiting:
		return after, true
	}
	r.applyWaiting(p, &hint.Waiting)
	after.waiting = hint.Waiting.Sequence
	return after, false
}

// readPeer reads what changed at the node after those sequence numbers, publishes it and
// returns the numbers reached.
func (r *Registry) readPeer(ctx context.Context, p *peer.Peer, after sequences) (sequences, error) {
	ctx, cancel := context.WithTimeout(ctx, pollWithin)
	defer cancel()
	url := fmt.Sprintf("http://peer%s?after=%d&waiting=%d", PathState, after.state, after.waiting)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
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
	r.applyWaiting(p, &st.Waiting)
	after.waiting = st.Waiting.Sequence
	if err := r.applyState(ctx, p, &st); err != nil {
		return after, err
	}
	r.hear(p, &st)
	after.state = st.Sequence
	return after, nil
}
