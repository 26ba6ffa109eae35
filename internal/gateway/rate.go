package gateway

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/limit"
)

// Rate is a limit on requests (spec/api.md#limits); the zero Rate limits nothing.
type Rate struct {
	PerSecond float64
	Burst     int
}

// bucketKey identifies a bucket: an API key, a machine credential, or for keys of other
// regions a client's address. The zero key is that of the local surface.
type bucketKey struct {
	key     string
	machine fleet.MachineID
}

func bucketOf(c fleet.Caller) bucketKey { return bucketKey{key: c.KeyID, machine: c.Machine} }

// Taken is how many requests of one key or machine credential a node has accepted and not
// yet reported to the other nodes (spec/peers.md#rates).
type Taken struct {
	Key      string          `json:"key,omitzero"`
	Machine  fleet.MachineID `json:"machine,omitzero"`
	Requests int             `json:"requests"`
}

// buckets limits the requests of each key. It holds only valid keys and the addresses of
// connected clients; idle ones are dropped.
type buckets struct {
	mu     sync.Mutex
	rate   Rate
	by     limit.Map[bucketKey, *bucket]
	shared bool    // collect taken
	taken  []Taken // reports for the other nodes
}

// bucket holds the tokens of one key.
type bucket struct {
	*rate.Limiter
	unreported int // requests not yet reported to other nodes
}

// maxTaken is the most reports sent to the other nodes at a time.
const maxTaken = 4096

// setRate changes the rate and fills every bucket.
func (b *buckets) setRate(to Rate) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rate != to {
		b.rate = to
		b.by.Clear()
	}
}

// take takes a token. If there is none, it returns a fault with the time until the next.
func (b *buckets) take(key bucketKey, now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	of := b.bucket(key, now)
	if of == nil {
		return nil
	}
	if !of.AllowN(now, 1) {
		perSecond := float64(of.Limit())
		wait := time.Duration((1 - of.TokensAt(now)) / perSecond * float64(time.Second))
		return fault.New(fault.RateLimitExceeded,
			"too many requests: at most %g per second, %d at once; wait for the time in Retry-After",
			perSecond, of.Burst()).WithRetryAfter(wholeSeconds(wait))
	}
	if of.unreported++; b.shared && of.unreported >= max(b.rate.Burst/8, 1) {
		b.taken = append(b.taken, Taken{key.key, key.machine, of.unreported})
		of.unreported = 0
	}
	return nil
}

// collected returns at most maxTaken reports for the other nodes and removes them.
func (b *buckets) collected() []Taken {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.taken), maxTaken)
	reports := b.taken[:n:n]
	if b.taken = b.taken[n:]; len(b.taken) == 0 {
		b.taken = nil
	}
	return reports
}

// applyTaken takes the tokens of requests that another node accepted. A bucket can go
// as far below zero as its capacity.
func (b *buckets) applyTaken(taken []Taken, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range taken {
		if of := b.bucket(bucketKey{t.Key, t.Machine}, now); of != nil {
			left := int(of.TokensAt(now)) + of.Burst()
			of.ReserveN(now, max(min(t.Requests, left, of.Burst()), 0))
		}
	}
}

// bucket returns the bucket of a key, or nil if there is no limit. b.mu must be held.
func (b *buckets) bucket(key bucketKey, now time.Time) *bucket {
	if b.rate.PerSecond <= 0 {
		return nil
	}
	if of, ok := b.by.Get(key); ok {
		return of
	}
	of := &bucket{Limiter: rate.NewLimiter(rate.Limit(b.rate.PerSecond), b.rate.Burst)}
	full := float64(b.rate.Burst)
	b.by.Put(key, of, func(of *bucket) bool { return of.TokensAt(now) >= full }) // the same as a new one
	return of
}

// In each missWindow a key may name maxMisses different models that it cannot reach
// (spec/api.md#limit-misses), so that a member cannot find out which models exist by
// trying names.
const (
	maxMisses  = 60
	missWindow = time.Minute
)

// misses counts the different models that a key requested and could not reach.
type misses struct {
	mu sync.Mutex
	by limit.Map[bucketKey, *missed]
}

type missed struct {
	since  time.Time
	models map[fleet.ModelID]struct{}
}

// add counts a miss. If there are too many, it returns the fault to answer instead, else
// nil.
func (m *misses) add(key bucketKey, model fleet.ModelID, now time.Time) *fault.Fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen, ok := m.by.Get(key)
	if !ok || now.Sub(seen.since) >= missWindow {
		seen = &missed{since: now, models: make(map[fleet.ModelID]struct{})}
		m.by.Put(key, seen, func(old *missed) bool { return now.Sub(old.since) >= missWindow })
	}
	if _, again := seen.models[model]; again {
		return nil
	}
	if len(seen.models) >= maxMisses {
		return fault.New(fault.RateLimitExceeded,
			"too many requests for models that you cannot reach: use those that GET /v1/models lists").
			WithRetryAfter(wholeSeconds(missWindow - now.Sub(seen.since)))
	}
	seen.models[model] = struct{}{}
	return nil
}

// isOutOfReach reports whether f means that the model is out of the caller's reach: rows
// 1 and 5 to 7 of spec/routing.md#the-twelve-rows.
func isOutOfReach(f *fault.Fault) bool {
	switch f.Code {
	case fault.ModelNotFound, fault.NotInCircle:
		return true
	case fault.CascadeExhausted:
		return f.NoRetry
	default:
		return false
	}
}

// wholeSeconds rounds d up to a valid value of a Retry-After header.
func wholeSeconds(d time.Duration) int {
	return min(max(int(math.Ceil(d.Seconds())), minRetryAfter), maxRetryAfter)
}
