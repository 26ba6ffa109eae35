package dispatch

import (
	"sync"
	"time"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// maxCacheNames is the maximum number of names that are kept.
const maxCacheNames = 10_000

// cacheNames keeps the names of callers' prompt caches (tunnel.CacheName) for one day.
// All calls of a session have the same name, and computing it takes several hashes.
type cacheNames struct {
	mu    sync.Mutex
	day   time.Time
	names map[cacheKey]string
}

// cacheKey identifies a caller at a machine.
type cacheKey struct {
	caller  fleet.MemberID
	machine fleet.MachineID
}

// name returns the name of a caller's cache at a machine.
func (n *cacheNames) name(caller fleet.MemberID, machine fleet.MachineID, now time.Time) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if day := now.UTC().Truncate(24 * time.Hour); day != n.day || len(n.names) >= maxCacheNames {
		n.day, n.names = day, make(map[cacheKey]string)
	}
	key := cacheKey{caller, machine}
	name, ok := n.names[key]
	if !ok {
		name = tunnel.CacheName(string(caller), string(machine), now)
		n.names[key] = name
	}
	return name
}
