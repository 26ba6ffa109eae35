package site

import (
	"context"
	"crypto/sha256"
	"encoding/json/v2"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/alexedwards/scs/v2"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/credential"
)

// How long a session lives unseen, and at most.
const (
	sessionIdle = 12 * time.Hour
	sessionLife = 14 * 24 * time.Hour
)

// What a session holds.
const (
	sessionMember   = "member"   // who is signed in
	sessionFrom     = "from"     // the address of the sign-in
	sessionAgent    = "agent"    // the browser, as it says
	sessionHow      = "how"      // by password, passkey, provider, recovery, link or sign-up
	sessionSince    = "since"    // when
	sessionState    = "state"    // of a sign-in at the provider that began here
	sessionNewcomer = "newcomer" // who came back from there, bound to no member
	sessionDone     = "done"     // what the last act did, for the next page
	sessionNewKey   = "new-key"  // the id of a key just made, and its sealed secret; also the cookie that opens it
	sessionDevice   = "device"   // the code of a device that was typed, which is to be approved or denied
	sessionKept     = "kept"     // it was read from the store
)

func newSessions(kept sessionStore, secure bool) *scs.SessionManager {
	cookie := scs.SessionCookie{Name: "kith", Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: secure, Persist: true}
	if secure {
		cookie.Name = "__Host-kith"
	}
	// Not scs.New, which begins a goroutine for a store that is not used.
	return &scs.SessionManager{
		IdleTimeout: sessionIdle, Lifetime: sessionLife, Store: kept, Codec: sessionCodec{}, Cookie: cookie, HashTokenInStore: true,
	}
}

// sessionCodec writes a session, whose values are all strings, as JSON.
type sessionCodec struct{}

type sessionData struct {
	Deadline time.Time
	Values   map[string]string
}

// Encode satisfies scs.Codec.
func (sessionCodec) Encode(deadline time.Time, values map[string]any) ([]byte, error) {
	data := sessionData{Deadline: deadline, Values: map[string]string{}}
	for name, value := range values {
		data.Values[name], _ = value.(string)
	}
	return json.Marshal(data, json.Deterministic(true))
}

// Decode satisfies scs.Codec.
func (sessionCodec) Decode(text []byte) (time.Time, map[string]any, error) {
	var data sessionData
	if err := json.Unmarshal(text, &data); err != nil {
		return time.Time{}, nil, err
	}
	values := map[string]any{sessionKept: "yes"}
	for name, value := range data.Values {
		values[name] = value
	}
	return data.Deadline, values, nil
}

// sessionStore lets scs keep its sessions in the hub's store. Their ids are
// hashes of what browsers hold.
type sessionStore struct {
	scs.Store // of calls without a context: none is made
	api       *api.API
}

// FindCtx satisfies scs.CtxStore.
func (k sessionStore) FindCtx(ctx context.Context, id string) ([]byte, bool, error) {
	session, err := k.api.DB.Session(ctx, id, k.api.DB.Now())
	if errors.Is(err, account.ErrNotFound) {
		return nil, false, nil
	}
	return session.Data, err == nil, err
}

// CommitCtx satisfies scs.CtxStore. A session that was read from the store is
// not made again: it may have been ended since.
func (k sessionStore) CommitCtx(ctx context.Context, id string, text []byte, expires time.Time) error {
	var data sessionData
	if err := json.Unmarshal(text, &data); err != nil {
		return err
	}
	now := k.api.DB.Now().UTC()
	expires = now.Add(time.Until(expires)) // which is by this computer's clock
	session := account.Session{ID: id, MemberID: data.Values[sessionMember], Data: text, Created: now, Seen: now, Expires: expires}
	if data.Values[sessionKept] != "" {
		return k.api.DB.TouchSession(ctx, session)
	}
	return k.api.DB.CreateSession(ctx, session)
}

// DeleteCtx satisfies scs.CtxStore.
func (k sessionStore) DeleteCtx(ctx context.Context, id string) error {
	return k.api.DB.EndSession(ctx, id)
}

// begin signs the member in: the browser gets a new token, whatever it held.
func (s *Site) begin(v *visit, member account.Member, how string) error {
	ctx := v.Context()
	if err := s.sessions.RenewToken(ctx); err != nil {
		return err
	}
	for _, left := range []string{sessionKept, sessionState, sessionNewcomer, sessionDevice} {
		s.sessions.Remove(ctx, left)
	}
	s.sessions.Put(ctx, sessionMember, member.ID)
	s.sessions.Put(ctx, sessionFrom, v.from)
	s.sessions.Put(ctx, sessionAgent, plain(v.UserAgent(), 200))
	s.sessions.Put(ctx, sessionHow, how)
	s.sessions.Put(ctx, sessionSince, s.DB.Now().UTC().Format(time.RFC3339))
	v.me = member
	s.rememberBrowser(v, member.ID)
	s.Log.Info("member signed in", "member", member.ID, "how", how, "from", v.from)
	return nil
}

func hashOf(token string) [32]byte { return sha256.Sum256([]byte(token)) }

func mintLink(region string) credential.Secret { return credential.Mint(credential.LinkCode, region) }

// plain is text that a program sent, fit to be kept and shown: valid,
// without control characters, and not long.
func plain(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xfffd {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, " "))
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "")
	}
	return strings.TrimSpace(text)
}

// addressOf is the address of a request's client, which the hub has put in place of
// a proxy's.
func addressOf(r *http.Request) string {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return "unknown"
	}
	return from.Addr().Unmap().WithZone("").String()
}

// network is whose an address counts as: of IPv6, the /64 that a customer has.
func network(address string) string {
	from, err := netip.ParseAddr(address)
	if err != nil || from.Is4() {
		return address
	}
	prefix, _ := from.Prefix(64) // an IPv6 address has one
	return prefix.String()
}

// throttle lets each key through burst times, and then once every so often.
type throttle struct {
	every time.Duration
	burst int

	mu   sync.Mutex
	full map[string]time.Time // when all of burst is there again; absent: now
}

// maxThrottled bounds the keys remembered; past it they are forgotten, which
// costs an attacker who can bring as many more than it gives.
const maxThrottled = 100_000

// take lets one through, or says how long to wait until the next may.
func (t *throttle) take(key string, now time.Time) (wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.full) >= maxThrottled {
		for k, full := range t.full {
			if !full.After(now) {
				delete(t.full, k)
			}
		}
		if len(t.full) >= maxThrottled {
			clear(t.full)
		}
	}
	full := t.full[key]
	if full.Before(now) {
		full = now
	}
	full = full.Add(t.every)
	if over := full.Sub(now) - time.Duration(t.burst)*t.every; over > 0 {
		return over
	}
	if t.full == nil {
		t.full = map[string]time.Time{}
	}
	t.full[key] = full
	return 0
}

// give takes back what a take counted.
func (t *throttle) give(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if full, ok := t.full[key]; ok {
		t.full[key] = full.Add(-t.every)
	}
}

// pollEvery is how often a device may ask whether it was approved.
const pollEvery = 2 * time.Second

// limits bound what can be guessed at, and what is done for visitors.
type limits struct {
	fromAddress, guesses, ofName, ofBrowser, confirms, recoverFrom, recoverOf *throttle
	devices, polls, codes, userCodes, codesFrom                               *throttle
	verifiers, verified, recoveries                                           *throttle
}

func newLimits() limits {
	return limits{
		fromAddress: &throttle{every: 6 * time.Second, burst: 20},  // sign-ins and sign-ups, by address
		guesses:     &throttle{every: 30 * time.Second, burst: 10}, // passwords, by address and the account's name
		// The same by name, from all addresses: twice as many as one address may go on
		// with, or it could shut out the rest.
		ofName:      &throttle{every: 15 * time.Second, burst: 100},
		ofBrowser:   &throttle{every: 30 * time.Second, burst: 10},                // the same in a browser that the member signed in with before
		confirms:    &throttle{every: 30 * time.Second, burst: 10},                // passwords typed once more by who is signed in, by member
		recoverFrom: &throttle{every: 6 * time.Second, burst: 20},                 // recoveries, by address
		recoverOf:   &throttle{every: 30 * time.Second, burst: 10},                // and by address and name
		codes:       &throttle{every: 2 * time.Second, burst: 30},                 // unknown codes of devices and links, by address
		devices:     &throttle{every: 2 * time.Minute, burst: 30},                 // requests for approval, by address
		polls:       &throttle{every: pollEvery - 200*time.Millisecond, burst: 1}, // by request
		userCodes:   &throttle{every: 2 * time.Minute, burst: 5},                  // codes typed, by member
		codesFrom:   &throttle{every: 2 * time.Minute, burst: 30},                 // and by address
		verifiers:   &throttle{every: 10 * time.Minute, burst: 5},                 // e-mails that prove an address, by member
		verified:    &throttle{every: 20 * time.Minute, burst: 3},                 // and by that address
		recoveries:  &throttle{every: 10 * time.Minute, burst: 3},                 // recoveries by mail, by the e-mail address
	}
}
