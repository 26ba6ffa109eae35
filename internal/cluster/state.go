package cluster

import (
	"context"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/kith/kith/internal/dispatch"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/registry"
)

const (
	// readEvery is how often a reader of the state gets changed loads, and repeatEvery how
	// often it gets a line without changes.
	readEvery   = 50 * time.Millisecond
	repeatEvery = 500 * time.Millisecond
	// wakeEvery is the minimum time between two lines.
	wakeEvery = time.Millisecond
	// silentFor is how long a node may send no line before its state is read again with a
	// new request. The pause before that grows from minReread to maxReread as long as no
	// line can be applied: the first line of each request has the node's complete state.
	silentFor = 2 * time.Second
	minReread = 100 * time.Millisecond
	maxReread = 2 * time.Second
	// ratesEvery is how often the callers' use of rates is sent.
	ratesEvery = 100 * time.Millisecond
)

// stateLine is a line of a node's state. It holds what changed since the previous line.
// The first line is complete, and so is a line for a reader that is too far behind:
// everything that it does not contain no longer exists.
type stateLine struct {
	Complete bool                   `json:"complete,omitzero"`
	Machines []registry.Announced   `json:"machines,omitempty"`
	Left     []fleet.MachineID      `json:"left,omitempty"`
	Loads    []registry.MachineLoad `json:"loads,omitempty"`
	Waiting  []waiting              `json:"waiting,omitempty"`
	Limits   []limitUse             `json:"limits,omitempty"`
	Seen     [][]byte               `json:"seen,omitempty"`  // prompts, encoded by package prefix
	Rates    [][]gateway.Taken      `json:"rates,omitempty"` // callers' use of rates
	Calls    int                    `json:"calls,omitzero"`  // calls that the node serves
}

// The keys of the feed's records, and its messages.
type (
	machineKey fleet.MachineID
	loadKey    fleet.MachineID
	waitingKey int64
	seen       []byte
	rates      []gateway.Taken
)

// Connected implements registry.Others.
func (c *Cluster) Connected(m *registry.Announced) {
	c.feed.set(machineKey(m.ID), m, false)
	c.feed.set(loadKey(m.ID), m, false)
}

// LoadChanged implements registry.Others.
func (c *Cluster) LoadChanged(id fleet.MachineID) { c.feed.changed(loadKey(id)) }

// Disconnected implements registry.Others.
func (c *Cluster) Disconnected(id fleet.MachineID) {
	c.feed.removeSilently(loadKey(id))
	c.feed.remove(machineKey(id), false)
}

// Sent implements dispatch.Others.
func (c *Cluster) Sent(prompt []byte) { c.feed.send(seen(prompt)) }

// Used implements dispatch.Others.
func (c *Cluster) Used(by *fleet.Candidate) {
	if !by.Machine.Remote {
		c.feed.changed(loadKey(by.Machine.ID))
	}
	if by.Limits.Counts() {
		c.feed.set(limitsOf(by), by.Limits.Load, true)
	}
}

// KeyCounted implements dispatch.Others.
func (c *Cluster) KeyCounted(key string) { c.uses.countKey(c, key) }

// KeyUsed implements dispatch.Others.
func (c *Cluster) KeyUsed(key string, load *fleet.LimitLoad) {
	c.feed.set(limitKey{Key: key}, load, true)
}

// sendRates sends the callers' use of rates at this node, until ctx ends
// (spec/peers.md#rates).
func (c *Cluster) sendRates(ctx context.Context) {
	ticker := time.NewTicker(ratesEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if taken := c.parts.Edge.Taken(); len(taken) > 0 {
				c.feed.send(rates(taken))
			}
		}
	}
}

// lineAfter returns a line with the changes after the given sequence number, and the new
// sequence number.
func (c *Cluster) lineAfter(reached int64) (l stateLine, sequence int64) {
	records, sequence, complete := c.feed.after(reached)
	l = stateLine{Complete: complete, Calls: c.parts.Calls()}
	s := c.parts.Registry.Snapshot()
	whole := make(map[fleet.MachineID]bool) // machines that are included completely
	for _, r := range records {
		switch key := r.key.(type) {
		case machineKey:
			m, ok := r.value.(*registry.Announced)
			if !ok {
				l.Left = append(l.Left, fleet.MachineID(key))
				continue
			}
			announced := *m
			announced.Load = loadOf(s, m)
			l.Machines = append(l.Machines, announced)
			whole[m.ID] = true
		case loadKey:
			if m := r.value.(*registry.Announced); !whole[m.ID] {
				l.Loads = append(l.Loads, loadOf(s, m))
			}
		case waitingKey:
			w, _ := r.value.(dispatch.Waiting)
			w.ID = int64(key)
			l.Waiting = append(l.Waiting, waitingOf(w))
		case limitKey:
			if load, ok := r.value.(*fleet.LimitLoad); ok {
				running, begun := load.Use()
				l.Limits = append(l.Limits, limitUse{key, running, begun})
			}
		default:
			switch message := r.value.(type) {
			case seen:
				l.Seen = append(l.Seen, message)
			case rates:
				l.Rates = append(l.Rates, message)
			}
		}
	}
	return l, sequence
}

// loadOf returns the load of a machine that is connected to this node.
func loadOf(s *fleet.Snapshot, a *registry.Announced) registry.MachineLoad {
	l := registry.MachineLoad{ID: a.ID, Models: make([]int, len(a.Advertisement.Models))}
	m := s.Machine(a.ID)
	if m == nil {
		return l
	}
	l.Used = m.Load.Used()
	for i := range a.Advertisement.Models {
		if o := m.Offer(fleet.ModelID(a.Advertisement.Models[i].ID)); o != nil {
			l.Models[i] = o.Load.Used()
		}
	}
	return l
}

// serveState sends this node's state to another one, line by line, until the request ends
// (spec/peers.md#state).
func (c *Cluster) serveState(w http.ResponseWriter, r *http.Request) {
	woken, done := c.feed.open()
	defer done()
	ticker := time.NewTicker(readEvery)
	defer ticker.Stop()
	w.Header().Set("Content-Type", "application/jsonl")
	controller := http.NewResponseController(w)
	var reached int64
	for c.mesh.trusts(r.TLS) {
		var next stateLine
		next, reached = c.lineAfter(reached)
		err := json.MarshalWrite(w, next)
		if err == nil {
			_, err = io.WriteString(w, "\n")
		}
		if err != nil || controller.Flush() != nil {
			return // the reader is gone
		}
		if !c.awaitChange(r.Context(), reached, woken, ticker.C) {
			return
		}
	}
}

// awaitChange waits until the next line is due for a reader at the given sequence number.
// It returns false if ctx has ended.
func (c *Cluster) awaitChange(ctx context.Context, reached int64, woken <-chan struct{}, tick <-chan time.Time) bool {
	written := time.Now()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-woken:
			time.Sleep(wakeEvery - time.Since(written))
			return true
		case now := <-tick:
			if c.feed.changedAfter(reached) || now.Sub(written) >= repeatEvery {
				return true
			}
		}
	}
}

// follow applies the state that another node announces, until ctx ends. That node's
// machines count as connected as long as the node is.
func (c *Cluster) follow(ctx context.Context, f *followed) {
	name := f.peer.node.Name
	for {
		lost, err := f.peer.awaitLink(ctx)
		if err != nil {
			return
		}
		c.config.Log.Info("connected to another hub node", "node", name)
		c.readStates(ctx, f, lost)
		c.parts.Registry.LoseNode(name)
		c.applyWaiting(name, true, nil)
		c.parts.Dispatch.OnLimitsFreed(c.uses.lose(c, name))
		if ctx.Err() == nil { // otherwise this node is stopping or the other one restarted
			c.config.Log.Info("another hub node is gone", "node", name)
		}
	}
}

// readStates reads a node's state, repeating failed requests, until the node is lost or
// ctx ends.
func (c *Cluster) readStates(ctx context.Context, f *followed, lost <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		select {
		case <-lost:
		case <-ctx.Done():
		}
	}()
	wait := minReread
	for {
		heard := f.heard.Load()
		err := c.readState(ctx, f)
		if ctx.Err() != nil {
			return
		}
		if f.heard.Load() != heard {
			wait = minReread
		}
		c.config.Log.Warn("cannot read the state of another hub node; trying again", "node", f.peer.node.Name, "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, maxReread)
	}
}

// readState reads a node's state with one request, until the request fails.
func (c *Cluster) readState(ctx context.Context, f *followed) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(silentFor, func() { cancel(fmt.Errorf("it sent nothing for %v", silentFor)) })
	defer silent.Stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://peer"+pathState, nil)
	if err != nil {
		return err
	}
	response, err := f.peer.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("unexpected status %s", response.Status)
	}
	lines := jsontext.NewDecoder(response.Body)
	for {
		var l stateLine
		if err := json.UnmarshalDecode(lines, &l); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}
		silent.Reset(silentFor)
		if err := c.applyLine(ctx, f, &l); err != nil {
			return err
		}
	}
}

// applyLine applies a line of another node's state.
func (c *Cluster) applyLine(ctx context.Context, f *followed, l *stateLine) error {
	now, node := time.Now(), &f.peer.node
	if room := c.uses.apply(c, node, l.Limits); len(room) > 0 {
		c.parts.Dispatch.OnLimitsFreed(room)
	}
	c.applyWaiting(node.Name, l.Complete, l.Waiting)
	for _, prompt := range l.Seen {
		c.parts.Dispatch.OnSeen(prompt)
	}
	for _, taken := range l.Rates {
		c.parts.Edge.ApplyTaken(taken)
	}
	if l.Complete || len(l.Machines)+len(l.Left)+len(l.Loads) > 0 {
		err := c.parts.Registry.ApplyState(ctx, node.Name, &registry.NodeState{
			Complete: l.Complete, Machines: l.Machines, Left: l.Left, Loads: l.Loads,
			Way: func(m *registry.Announced) http.RoundTripper { return &way{c, f.peer, m.ID, m.Generation} },
		})
		if err != nil {
			return err
		}
	}
	f.heard.Store(&now)
	f.calls.Store(int64(l.Calls))
	return nil
}
