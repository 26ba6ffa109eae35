// Package limit bounds how often an address, a member, a key or a machine may do something.
package limit

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Network returns the prefix that addr is counted under: of IPv6 the /64 that one customer has.
func Network(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	prefix, _ := addr.Prefix(bits) // no address has fewer bits
	return prefix
}

// minPrune is the number of entries of a Map below which it drops none.
const minPrune = 1024

// Map is a map that drops idle values as it grows. The zero Map is empty. It is not safe for
// concurrent use.
type Map[K comparable, V any] struct {
	by    map[K]V
	prune int // drop idle values when there are more than that
}

// Get returns the value of a key; ok is false if there is none.
func (m *Map[K, V]) Get(key K) (value V, ok bool) {
	value, ok = m.by[key]
	return value, ok
}

// Put sets the value of a key, and drops idle values if there are many.
func (m *Map[K, V]) Put(key K, value V, idle func(V) bool) {
	if len(m.by) > max(m.prune, minPrune) {
		maps.DeleteFunc(m.by, func(_ K, v V) bool { return idle(v) })
		m.prune = 2 * len(m.by) // so that a Put pays for a constant share of it
	}
	if m.by == nil {
		m.by = make(map[K]V)
	}
	m.by[key] = value
}

// Len returns the number of keys.
func (m *Map[K, V]) Len() int { return len(m.by) }

// Clear drops everything.
func (m *Map[K, V]) Clear() { *m = Map[K, V]{} }

// maxThrottled limits the keys that a Throttle remembers. Beyond it all are forgotten: a client
// with that many addresses gains less by it than by the addresses.
const maxThrottled = 100_000

// Throttle lets each key through Burst times, and then once every Every. It is safe for
// concurrent use.
type Throttle[K comparable] struct {
	Every time.Duration
	Burst int

	mu sync.Mutex
	of Map[K, *rate.Limiter]
}

// Take lets the key through and returns 0, or returns how long it has to wait.
func (t *Throttle[K]) Take(key K, now time.Time) (wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of, ok := t.of.Get(key)
	if !ok {
		if t.of.Len() >= maxThrottled {
			t.of.Clear()
		}
		of = rate.NewLimiter(rate.Every(t.Every), t.Burst)
		t.of.Put(key, of, func(of *rate.Limiter) bool { return of.TokensAt(now) >= float64(t.Burst) })
	}
	r := of.ReserveN(now, 1)
	if wait = r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
	}
	return wait
}

// Give takes back what a Take counted at about now.
func (t *Throttle[K]) Give(key K, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if of, ok := t.of.Get(key); ok {
		of.AllowN(now, -1) // CancelAt gives nothing back for a reservation that did not wait
	}
}
