package tunnel

import (
	"maps"
	"net/http"
	"slices"
	"sync"
)

// tunnels holds the open tunnels of a Dialer and their running calls. There is more than
// one tunnel while a machine moves from one hub node to another.
type tunnels struct {
	mu      sync.Mutex
	open    map[*session]struct{}
	ended   map[string]chan struct{} // by callKey of each running call; closed at its end
	changed chan struct{}            // closed when the calls of a replaced tunnel change
}

func callKey(h http.Header) string { return h.Get(HeaderCorrelation) + " " + h.Get(HeaderAttempt) }

func (t *tunnels) add(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.open, t.ended, t.changed = make(map[*session]struct{}), make(map[string]chan struct{}), make(chan struct{})
	}
	t.open[s] = struct{}{}
}

func (t *tunnels) remove(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, s)
	t.notify()
}

func (t *tunnels) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open)
}

func (t *tunnels) serving() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(slices.Collect(maps.Keys(t.open)), func(s *session) bool { return s.acked.isSet() })
}

// notify signals that the calls of a tunnel changed. mu must be held.
func (t *tunnels) notify() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// startCall adds a call to a tunnel. The returned end removes it.
func (t *tunnels) startCall(s *session, h http.Header) (end func()) {
	key, ended := callKey(h), make(chan struct{})
	model := CallModel(h)
	count := func(n int) {
		if s.calls[model] += n; s.calls[model] == 0 {
			delete(s.calls, model)
		}
		if s.moving.isSet() {
			t.notify()
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended[key] = ended
	count(1)
	return func() {
		close(ended)
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.ended[key] == ended {
			delete(t.ended, key)
		}
		count(-1)
	}
}

// callEnded returns a channel that is closed when the call named by the headers has
// ended, on any tunnel. If the call is not running, the channel is closed already.
func (t *tunnels) callEnded(h http.Header) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	ended, ok := t.ended[callKey(h)]
	if !ok {
		ended = make(chan struct{})
		close(ended)
	}
	return ended
}

// addOlderCalls adds the calls of the tunnels that s replaces to the advertisement,
// because the hub does not see the slots that they use on s. The channel is closed when
// these calls change.
func (t *tunnels) addOlderCalls(s *session, ad *Advertisement) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.moving.isSet() {
		return nil
	}
	cloned := false
	for older := range t.open {
		if older == s {
			continue
		}
		for model, n := range older.calls {
			ad.Local += n
			i := slices.IndexFunc(ad.Models, func(m Model) bool { return m.ID == model })
			if i < 0 {
				continue
			}
			if !cloned {
				ad.Models, cloned = slices.Clone(ad.Models), true
			}
			ad.Models[i].Local += n
		}
	}
	return t.changed
}
