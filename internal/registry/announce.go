package registry

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"encoding/json/v2"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// PathState is where a node serves its state to the other nodes (spec/peers.md#state).
const PathState = "/peer/state"

// state is what a node announces: the machines whose tunnels end there, and how busy
// they are. With an After it holds what changed since that sequence number; else it is
// complete, and a machine that is not in it is not connected there.
type state struct {
	After    int64             `json:"after,omitzero"`
	Sequence int64             `json:"sequence"`
	Machines []announced       `json:"machines,omitempty"`
	Left     []fleet.MachineID `json:"left,omitempty"`
	Loads    []machineLoad     `json:"loads,omitempty"`
	Calls    int               `json:"calls,omitzero"` // that the node serves, for people to read
	// Waiting is in answers to GET /peer/state.
	Waiting waitingState `json:"waiting,omitzero"`
}

// announced is one machine in a state.
type announced struct {
	ID            fleet.MachineID      `json:"id"`
	Generation    int64                `json:"generation"`
	Instance      string               `json:"instance,omitempty"` // of the daemon's process
	Advertisement tunnel.Advertisement `json:"advertisement"`      // as this node accepted it
	Load          machineLoad          `json:"load"`

	changed, loaded int64 // the sequence numbers of the last changes
}

// machineLoad is how many slots of a machine are in use, by any node or the machine itself, and
// how many of each model in the order of its advertisement.
type machineLoad struct {
	ID     fleet.MachineID `json:"id"`
	Used   int             `json:"used"`
	Models []int           `json:"models,omitempty"`
}

// loadOf returns the load of a machine that advertised ad.
func loadOf(m *fleet.Machine, ad *tunnel.Advertisement) machineLoad {
	l := machineLoad{ID: m.ID, Used: m.Load.Used(), Models: make([]int, len(ad.Models))}
	for i := range ad.Models {
		if o := m.Offer(fleet.ModelID(ad.Models[i].ID)); o != nil {
			l.Models[i] = o.Load.Used()
		}
	}
	return l
}

// announcer holds what this node announces of its machines.
type announcer struct {
	mu       sync.Mutex
	changes  changeLog[fleet.MachineID] // what was removed are machines that disconnected
	machines map[fleet.MachineID]*announced
}

// changeLog numbers the changes of what a node announces, and remembers the last
// removals. A reader that is further behind gets the complete state.
type changeLog[K any] struct {
	sequence int64        // of the last change
	removed  []removal[K] // oldest first
	since    int64        // removals up to this number are not all known any more
}

type removal[K any] struct {
	key K
	at  int64 // its sequence number
}

// maxRemovals is how many removals a changeLog remembers.
const maxRemovals = 4096

// next returns the sequence number of a change.
func (l *changeLog[K]) next() int64 {
	l.sequence++
	return l.sequence
}

// remove records a removal.
func (l *changeLog[K]) remove(key K) {
	l.removed = append(l.removed, removal[K]{key, l.next()})
	if n := len(l.removed) - maxRemovals; n > 0 {
		l.since = l.removed[n-1].at
		l.removed = slices.Delete(l.removed, 0, n)
	}
}

// start returns the sequence number after which a reader gets the changes: that which it
// has reached; or 0 if it is too old or of another process, and the reader gets everything.
func (l *changeLog[K]) start(reached int64) int64 {
	if reached < l.since || reached > l.sequence {
		return 0
	}
	return reached
}

// removedAfter returns the keys that were removed after a sequence number; none for 0,
// because the complete state lacks them.
func (l *changeLog[K]) removedAfter(after int64) (keys []K) {
	for _, r := range l.removed {
		if after > 0 && r.at > after {
			keys = append(keys, r.key)
		}
	}
	return keys
}

// add announces a machine, or its new advertisement.
func (a *announcer) add(id fleet.MachineID, generation int64, instance string, ad tunnel.Advertisement) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.machines == nil {
		a.machines = make(map[fleet.MachineID]*announced)
	}
	a.machines[id] = &announced{ID: id, Generation: generation, Instance: instance, Advertisement: withoutLoad(ad), changed: a.changes.next()}
}

// remove announces that a machine disconnected.
func (a *announcer) remove(id fleet.MachineID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.machines[id] == nil {
		return
	}
	delete(a.machines, id)
	a.changes.remove(id)
}

// state returns what changed after that sequence number, or everything for 0 and for a
// number that is too old or of another process.
func (a *announcer) state(after int64, s *fleet.Snapshot) state {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.observe(s)
	after = a.changes.start(after)
	out := state{After: after, Sequence: a.changes.sequence}
	for _, m := range a.machines {
		switch {
		case m.changed > after:
			out.Machines = append(out.Machines, *m)
		case m.loaded > after:
			out.Loads = append(out.Loads, m.Load)
		}
	}
	for _, id := range a.changes.removedAfter(after) {
		if a.machines[id] == nil { // else it connected again
			out.Left = append(out.Left, id)
		}
	}
	slices.SortFunc(out.Machines, func(a, b announced) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(out.Loads, func(a, b machineLoad) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// observe records the loads of the machines that changed. Needs mu.
func (a *announcer) observe(s *fleet.Snapshot) {
	next := a.changes.sequence + 1 // of all these changes
	for id, m := range a.machines {
		live := s.Machine(id)
		if live == nil {
			continue
		}
		if l := loadOf(live, &m.Advertisement); l.Used != m.Load.Used || !slices.Equal(l.Models, m.Load.Models) {
			m.Load, m.loaded, a.changes.sequence = l, next, next
		}
	}
}

const (
	// announceEvery is how often changes of this node's state are published, and
	// repeatEvery how often a state that does not change.
	announceEvery = 50 * time.Millisecond
	repeatEvery   = 500 * time.Millisecond
	// waitingEvery is how often changes of the waiting calls are published, at most.
	waitingEvery = time.Millisecond
)

// stateHint is what a node publishes of its state. Its incarnation is its pin. The state
// has no waiting calls, but the sequence number of the last that were published.
type stateHint struct {
	Incarnation string `json:"incarnation"`
	State       state  `json:"state"`
}

// waitingHint is what a node publishes of its waiting calls.
type waitingHint struct {
	Incarnation string       `json:"incarnation"`
	Waiting     waitingState `json:"waiting"`
}

// announce publishes what changes of this node's state, until ctx ends.
func (r *Registry) announce(ctx context.Context) {
	ticker := time.NewTicker(announceEvery)
	defer ticker.Stop()
	last, published := r.announcer.state(0, r.Snapshot()).Sequence, time.Now()
	var waiting int64
	pin := r.config.Peers.Pin()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			st := r.announcer.state(last, r.Snapshot())
			if st.Sequence == last {
				if now.Sub(published) < repeatEvery {
					continue
				}
				st = state{After: last, Sequence: last}
			}
			st.Waiting = waitingState{After: waiting, Sequence: waiting}
			st.Calls = r.calls()
			r.hints.publishState(r.config.Node, stateHint{pin, st})
			last, published = st.Sequence, now
		case <-r.waiting.woken:
			st := r.waiting.state(waiting, time.Now())
			r.hints.publish(subjectWait+r.config.Node, waitingHint{pin, st})
			waiting = st.Sequence
			time.Sleep(waitingEvery)
		}
	}
}

// ServeState serves this node's state to another node (spec/peers.md#state).
func (r *Registry) ServeState(w http.ResponseWriter, request *http.Request) {
	after, _ := strconv.ParseInt(request.FormValue("after"), 10, 64)
	waiting, _ := strconv.ParseInt(request.FormValue("waiting"), 10, 64)
	st := r.announcer.state(after, r.Snapshot())
	st.Waiting = r.waiting.state(waiting, time.Now())
	w.Header().Set("Content-Type", "application/json")
	st.Calls = r.calls()
	_ = json.MarshalWrite(w, st) // an error means that the reader is gone
}

func (r *Registry) calls() int {
	if r.observer.Calls == nil {
		return 0
	}
	return r.observer.Calls()
}

// PublishSeen sends the other nodes which machine got a prompt, as the prefix package
// writes that. One that is lost costs a computed prompt at most.
func (r *Registry) PublishSeen(seen []byte) {
	r.publishRaw(subjectSeen, seen)
}

// PublishRates sends the other nodes what callers took of their rates at this one. What is
// lost is not counted there.
func (r *Registry) PublishRates(taken []byte) {
	r.publishRaw(subjectRates, taken)
}

func (r *Registry) publishRaw(subject string, data []byte) {
	if conn := r.hints.conn.Load(); conn != nil && r.config.Peers != nil {
		_ = conn.Publish(r.hints.prefix+subject+r.config.Node, data)
	}
}

func (r *Registry) notifySeen(data []byte) {
	if r.observer.Seen != nil && !r.stopped.Load() {
		r.observer.Seen(data)
	}
}

func (r *Registry) notifyRates(data []byte) {
	if r.observer.Rates != nil && !r.stopped.Load() {
		r.observer.Rates(data)
	}
}
