// Package limit limits how often an address, a member, a key or a machine may do
// something.
package limit

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Network returns the prefix that addr is counted under. For IPv6 it is the /64 that one
// customer usually has.
func Network(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	prefix, _ := addr.Prefix(bits) // bits is never longer than the address
	return prefix
}

// minPrune is the size below which a Map drops nothing.
const minPrune = 1024

// Map is a map that drops idle values as it grows. The zero Map is empty. It is not safe for
// concurrent use.
type Map[K comparable, V any] struct {
	by    map[K]V
	prune int // drop idle values if there are more values than this
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
		m.prune = 2 * len(m.by) // so that pruning costs each Put a constant share
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

// maxThrottled is the most keys that a Throttle remembers. Above it, all keys are
// forgotten. A client with that many addresses gains more from the addresses than from
// this.
const maxThrottled = 100_000

// Throttle allows each key Burst times, and then once per Every. It is safe for
// concurrent use.
type Throttle[K comparable] struct {
	Every time.Duration
	Burst int

	mu sync.Mutex
	of Map[K, *rate.Limiter]
}

// Take allows the key and returns 0, or returns how long the key must wait.
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

// Give reverts a Take of about the time now.
func (t *Throttle[K]) Give(key K, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if of, ok := t.of.Get(key); ok {
		of.AllowN(now, -1) // CancelAt returns nothing for a reservation that did not wait
	}
}
