package dispatch

import (
	"math"
	"sync"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// keyDays counts the calls of the day of the keys that have a limit
// (spec/api.md#key-day). A key stays in it until the process ends, because other nodes
// count its calls by how many have begun here since the start.
type keyDays struct {
	mu    sync.Mutex
	byKey map[string]*fleet.LimitLoad
}

// of returns the count of a key, or nil if there is none.
func (k *keyDays) of(key string) *fleet.LimitLoad {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.byKey[key]
}

// add returns the count of a key, and whether it is new. A new one begins with today.
func (k *keyDays) add(key string, now time.Time, today int) (load *fleet.LimitLoad, isNew bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if load = k.byKey[key]; load != nil {
		return load, false
	}
	if k.byKey == nil {
		k.byKey = make(map[string]*fleet.LimitLoad)
	}
	load = fleet.NewLimitLoad(now, today)
	k.byKey[key] = load
	return load, true
}

// CountKey counts the calls of a key from now on, and returns the count. today is how many
// of its calls of the UTC day of now have ended, according to the database: at least so many
// are counted. It must be called before the first call of a key with a limit; later calls
// include what this node missed.
func (d *Dispatcher) CountKey(key string, now time.Time, today int) *fleet.LimitLoad {
	load, isNew := d.days.add(key, now, today)
	if others := d.scheduler.others; isNew && others != nil {
		others.KeyCounted(key)
	}
	load.Raise(now, today)
	return load
}

// KeyLoad returns the count of a key's calls, or nil if it was not counted here yet.
func (d *Dispatcher) KeyLoad(key string) *fleet.LimitLoad { return d.days.of(key) }

// reserveDay counts a call against the calls of the day of its key, or returns the fault
// if they are used up. A call that ran on no machine by the time of release is not counted.
func (d *Dispatcher) reserveDay(call *gateway.Call) (release func(), err error) {
	key, now := call.Caller.KeyID, d.cfg.Registry.Now()
	limits := fleet.Limits{PerDay: call.Caller.PerDay, Load: d.CountKey(key, now, 0)}
	if !limits.Reserve(now) {
		return nil, dayUsedUp(limits.PerDay, now)
	}
	d.notifyKeyUsed(key, limits.Load)
	return sync.OnceFunc(func() {
		limits.Release(call.Trace.Machine != "", now)
		d.notifyKeyUsed(key, limits.Load)
	}), nil
}

func (d *Dispatcher) notifyKeyUsed(key string, load *fleet.LimitLoad) {
	if others := d.scheduler.others; others != nil {
		others.KeyUsed(key, load)
	}
}

// dayUsedUp returns the fault for a key that has no call left today. Retry-After has a
// maximum that is usually much shorter than the rest of the day, so it asks clients not
// to retry.
func dayUsedUp(perDay int, now time.Time) *fault.Fault {
	calls := "this key's " + group(perDay) + " calls of the day are used up"
	if perDay == 1 {
		calls = "this key's call of the day is used up"
	}
	left := now.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour).Sub(now)
	return fault.New(fault.RateLimitExceeded, "%s; the next day begins at 00:00 UTC", calls).
		WithRetryAfter(int(math.Ceil(left.Seconds()))).WithNoRetry()
}
