package gateway

import (
	"net/http"
	"strings"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// RefusedKey is the one answer to a missing, wrong or revoked key, and to two
// different ones: the caller does not learn which it was (spec/api.md#check-key). It names
// the page of the site at that address where keys are created.
func RefusedKey(base string) *fault.Fault {
	return fault.New(fault.InvalidAPIKey, "the API key is missing, wrong or revoked: create one at Keys (%s/applications) and send it as Authorization: Bearer", base)
}

// identify finds the caller of a hosted request; it is the only place that reads a key. x-api-key alone counts only where
// the route takes it, but two keys must always be equal.
func (x *exchange) identify() error {
	secret, ok := secretOf(x.r.Header, x.route.takesAPIKey())
	if !ok {
		return RefusedKey(x.g.cfg.Base)
	}
	caller, err := x.g.cfg.Identify(x.r.Context(), secret)
	if err != nil {
		return err
	}
	x.caller = caller
	return nil
}

// HeaderReach narrows what one call may reach: "own", "shared" (own and shared) or "all".
// It never widens what the key or the daemon's configuration allows
// (spec/api.md#x-kith-reach).
const HeaderReach = "X-Kith-Reach"

// narrow narrows the caller's reach to what the request's header says: of several, to the
// narrowest. An empty one is refused, because it may be a variable that was not set.
func (x *exchange) narrow() error {
	for _, word := range x.r.Header[HeaderReach] {
		narrow, ok := fleet.ParseNarrow(word)
		if !ok {
			return fault.New(fault.InvalidRequest, "%s is own, shared or all, not %.40q", HeaderReach, word).WithParam(HeaderReach)
		}
		x.caller.Narrow = max(x.caller.Narrow, narrow)
	}
	return nil
}

// secretOf is the one secret the headers carry; ok is false when there is none
// or more than one.
func secretOf(h http.Header, apiKeyHeader bool) (secret string, ok bool) {
	for _, value := range h["Authorization"] {
		scheme, credential, _ := strings.Cut(value, " ")
		credential = strings.TrimSpace(credential)
		if !strings.EqualFold(scheme, "Bearer") || credential == "" || secret != "" && secret != credential {
			return "", false
		}
		secret = credential
	}
	bearer := secret != ""
	for _, value := range h["X-Api-Key"] {
		if value == "" || secret != "" && secret != value {
			return "", false
		}
		secret = value
	}
	return secret, bearer || apiKeyHeader && secret != ""
}
