package site

import (
	"context"
	"crypto/sha256"
	"encoding/json/v2"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/alexedwards/scs/v2"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/limit"
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

// network returns what an address is counted under.
func network(address string) string {
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	return limit.Network(addr).String()
}

type throttle = limit.Throttle[string]

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
		fromAddress: &throttle{Every: 6 * time.Second, Burst: 20},  // sign-ins and sign-ups, by address
		guesses:     &throttle{Every: 30 * time.Second, Burst: 10}, // passwords, by address and the account's name
		// The same by name, from all addresses: twice as many as one address may go on
		// with, or it could shut out the rest.
		ofName:      &throttle{Every: 15 * time.Second, Burst: 100},
		ofBrowser:   &throttle{Every: 30 * time.Second, Burst: 10},                // the same in a browser that the member signed in with before
		confirms:    &throttle{Every: 30 * time.Second, Burst: 10},                // passwords typed once more by who is signed in, by member
		recoverFrom: &throttle{Every: 6 * time.Second, Burst: 20},                 // recoveries, by address
		recoverOf:   &throttle{Every: 30 * time.Second, Burst: 10},                // and by address and name
		codes:       &throttle{Every: 2 * time.Second, Burst: 30},                 // unknown codes of devices and links, by address
		devices:     &throttle{Every: 2 * time.Minute, Burst: 30},                 // requests for approval, by address
		polls:       &throttle{Every: pollEvery - 200*time.Millisecond, Burst: 1}, // by request
		userCodes:   &throttle{Every: 2 * time.Minute, Burst: 5},                  // codes typed, by member
		codesFrom:   &throttle{Every: 2 * time.Minute, Burst: 30},                 // and by address
		verifiers:   &throttle{Every: 10 * time.Minute, Burst: 5},                 // e-mails that prove an address, by member
		verified:    &throttle{Every: 20 * time.Minute, Burst: 3},                 // and by that address
		recoveries:  &throttle{Every: 10 * time.Minute, Burst: 3},                 // recoveries by mail, by the e-mail address
	}
}
