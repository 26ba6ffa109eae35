package hub

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/limit"
)

// A client may look up guessBurst secrets that are not in the database, and then one per
// guessEvery (spec/api.md#limit-guesses). The checksums of these secrets are correct, so
// nothing else shows that they are guesses.
const (
	guessBurst = 100
	guessEvery = 200 * time.Millisecond
)

// clientKey is the context key for the client of a request, a netip.Prefix.
type clientKey struct{}

// withClient returns the request with its client in its context.
func withClient(r *http.Request) *http.Request {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), clientKey{}, limit.Network(from.Addr())))
}

// guess counts a look-up of a secret, or returns a fault if the client made too many
// guesses. The caller must call known if the secret is known or could not be looked up.
func (h *Hub) guess(ctx context.Context) (known func(), err error) {
	client, ok := ctx.Value(clientKey{}).(netip.Prefix)
	if !ok {
		return func() {}, nil
	}
	if wait := h.guesses.Take(client, time.Now()); wait > 0 {
		return nil, fault.New(fault.RateLimitExceeded,
			"too many unknown keys came from this address: at most %d a second, %d at once; correct the key, and wait for Retry-After",
			time.Second/guessEvery, guessBurst).WithRetryAfter(int(wait/time.Second) + 1)
	}
	return func() { h.guesses.Give(client, time.Now()) }, nil
}
