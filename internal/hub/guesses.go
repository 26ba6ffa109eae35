package hub

import (
	"context"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/gateway"
)

// A client may look up guessBurst secrets that are not in the database, and then one per
// guessEvery (spec/api.md#limit-guesses). The checksums of these secrets are correct, so
// nothing else shows that they are guesses.
const (
	guessBurst = 100
	guessEvery = 200 * time.Millisecond
	maxGuesses = 100_000 // number of clients that are remembered
)

// guesses counts the unknown secrets per client.
type guesses struct {
	mu   sync.Mutex
	full map[netip.Prefix]time.Time // when the client's guessBurst is fully restored; absent: it is
}

// take counts a client's look-up. If there are too many it returns how long the client
// has to wait.
func (g *guesses) take(client netip.Prefix, now time.Time) (wait time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	full := g.full[client]
	if full.Before(now) || full.Sub(now) > guessBurst*guessEvery { // the latter if the clock was set back
		full = now
	}
	full = full.Add(guessEvery)
	if over := full.Sub(now) - guessBurst*guessEvery; over > 0 {
		return over
	}
	if len(g.full) >= maxGuesses {
		clear(g.full)
	}
	if g.full == nil {
		g.full = make(map[netip.Prefix]time.Time)
	}
	g.full[client] = full
	return 0
}

// give reverses take, because the secret is known.
func (g *guesses) give(client netip.Prefix) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if full, ok := g.full[client]; ok {
		g.full[client] = full.Add(-guessEvery)
	}
}

// clientKey is the context key for the client of a request, a netip.Prefix.
type clientKey struct{}

// withClient returns the request with its client in its context.
func withClient(r *http.Request) *http.Request {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), clientKey{}, gateway.Network(from.Addr())))
}

// guess counts a look-up of a secret, or returns a fault if the client made too many
// guesses. The caller must call known if the secret is known or could not be looked up.
func (h *Hub) guess(ctx context.Context) (known func(), err error) {
	client, ok := ctx.Value(clientKey{}).(netip.Prefix)
	if !ok {
		return func() {}, nil
	}
	if wait := h.guesses.take(client, time.Now()); wait > 0 {
		return nil, fault.New(fault.RateLimitExceeded,
			"too many unknown keys came from this address: at most %d a second, %d at once; correct the key, and wait for Retry-After",
			time.Second/guessEvery, guessBurst).WithRetryAfter(int(wait/time.Second) + 1)
	}
	return func() { h.guesses.give(client) }, nil
}
