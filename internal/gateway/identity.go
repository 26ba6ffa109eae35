package gateway

import (
	"net/http"
	"strings"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// RefusedKey returns the fault for a missing, wrong or revoked key, and for two different
// keys: the caller does not learn which it was (spec/api.md#check-key). Its message names
// the page at base where keys are created.
func RefusedKey(base string) *fault.Fault {
	return fault.New(fault.InvalidAPIKey, "the API key is missing, wrong or revoked: kith's keys begin with kith_; "+
		"create one at Keys (%s/applications) and send it as Authorization: Bearer KEY", base)
}

// identify identifies the caller of a hosted request. No other function reads its key.
// x-api-key alone is enough only on routes that accept it; if a request has two keys,
// they must be equal on every route.
func (r *request) identify() error {
	secret, ok := secretOf(r.Header, r.route.takesAPIKey())
	if !ok {
		return RefusedKey(r.edge.cfg.Base)
	}
	caller, err := r.edge.cfg.Identify(r.Context(), secret)
	if err != nil {
		return err
	}
	r.caller = caller
	return nil
}

// HeaderReach narrows what one call may reach: "own", "shared" (own and shared) or "all".
// It never widens what the key or the daemon's configuration allows
// (spec/api.md#x-kith-reach).
const HeaderReach = "X-Kith-Reach"

// narrow narrows the caller's reach to that of the request's header, the narrowest if
// there are several. An empty value is refused: it may be a variable that was not set.
func (r *request) narrow() error {
	for _, word := range r.Header[HeaderReach] {
		reach, ok := fleet.ParseKeyReach(word)
		if !ok {
			return fault.New(fault.InvalidRequest, "%s must be own, shared or all, not %.40q", HeaderReach,
				word).WithParam(HeaderReach)
		}
		r.caller.Reach = max(r.caller.Reach, reach)
	}
	return nil
}

// HeaderProgram is the command of kith that made the call at a machine's daemon, which
// sends it to the hub: the name of a fleet.Program (spec/api.md#kith-program).
const HeaderProgram = "Kith-Program"

// localKey is the prefix of the keys by which the local surface knows the commands of
// kith.
const localKey = "kith-"

// LocalKey returns the key that a command of kith, or an agent that it starts, sends to
// the local surface, so that its calls are recorded under its name.
func LocalKey(p fleet.Program) string { return localKey + string(p) }

// setProgram sets the program of the caller: on the local surface by its key, on the
// hosted one by the header, which only the holder of a machine credential may send. Any
// other name is ignored, because a member must not fill the usage with names.
func (r *request) setProgram() {
	if r.edge.surface == hosted {
		if r.caller.Machine != "" {
			r.caller.Program = fleet.ParseProgram(r.Header.Get(HeaderProgram))
		}
		return
	}
	secret, _ := secretOf(r.Header, true)
	if name, ok := strings.CutPrefix(secret, localKey); ok {
		r.caller.Program = fleet.ParseProgram(name)
	}
}

// secretOf returns the secret in the headers; ok is false if there is none or if there
// are two different ones.
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
