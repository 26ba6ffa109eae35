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
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/limit"
)

// The lifetime of a session without use, and its maximum.
const (
	sessionIdle = 12 * time.Hour
	sessionLife = 14 * 24 * time.Hour
)

// The keys of a session's values.
const (
	sessionMember   = "member"   // the signed-in member
	sessionFrom     = "from"     // the address of the sign-in
	sessionAgent    = "agent"    // the browser's User-Agent
	sessionHow      = "how"      // the sign-in method: password, passkey, provider, recovery, link or sign-up
	sessionSince    = "since"    // the time of the sign-in
	sessionState    = "state"    // of a sign-in at the provider that began here
	sessionNewcomer = "newcomer" // the provider's account that is not bound to a member yet
	sessionDone     = "done"     // the confirmation message for the next page
	sessionNewKey   = "new-key"  // a new key's id and encrypted secret; also the cookie that decrypts it
	sessionDevice   = "device"   // the typed code of a device that is to be approved or denied
	sessionKept     = "kept"     // whether it was loaded from the store
)

func newSessions(kept sessionStore, secure bool) *scs.SessionManager {
	cookie := scs.SessionCookie{Name: "kith", Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: secure,
		Persist: true}
	if secure {
		cookie.Name = "__Host-kith"
	}
	// scs.New would start a goroutine for a store that is not used.
	return &scs.SessionManager{
		IdleTimeout: sessionIdle, Lifetime: sessionLife, Store: kept, Codec: sessionCodec{}, Cookie: cookie,
		HashTokenInStore: true,
	}
}

// sessionCodec encodes a session as JSON. All its values are strings.
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

// sessionStore lets scs keep its sessions in the hub's store. A session's id is the hash
// of the browser's token.
type sessionStore struct {
	scs.Store // for calls without a context, which never happen
	db        Store
}

// FindCtx satisfies scs.CtxStore.
func (k sessionStore) FindCtx(ctx context.Context, id string) ([]byte, bool, error) {
	session, err := k.db.Session(ctx, id, k.db.Now())
	if errors.Is(err, account.ErrNotFound) {
		return nil, false, nil
	}
	return session.Data, err == nil, err
}

// CommitCtx satisfies scs.CtxStore. It never inserts a session again that was loaded from
// the store, because it may have been ended since.
func (k sessionStore) CommitCtx(ctx context.Context, id string, text []byte, expires time.Time) error {
	var data sessionData
	if err := json.Unmarshal(text, &data); err != nil {
		return err
	}
	now := k.db.Now().UTC()
	expires = now.Add(time.Until(expires)) // expires is by this computer's clock
	session := account.Session{ID: id, MemberID: data.Values[sessionMember], Data: text, Created: now, Seen: now,
		Expires: expires}
	if data.Values[sessionKept] != "" {
		return k.db.TouchSession(ctx, session)
	}
	return k.db.CreateSession(ctx, session)
}

// DeleteCtx satisfies scs.CtxStore.
func (k sessionStore) DeleteCtx(ctx context.Context, id string) error {
	return k.db.EndSession(ctx, id)
}

// begin signs the member in. The browser always gets a new token.
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

// plain makes text from another program safe to store and show: valid UTF-8, without
// control characters, and at most that long.
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

// addressOf returns the address of the request's client. Behind a proxy, the hub has set
// it from the proxy's headers.
func addressOf(r *http.Request) string {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return "unknown"
	}
	return from.Addr().Unmap().WithZone("").String()
}

// network returns the prefix that an address is counted under.
func network(address string) string {
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	return limit.Network(addr).String()
}

type throttle = limit.Throttle[string]

// pollEvery is the minimum interval between a device's polls.
const pollEvery = 2 * time.Second

// limits limit guesses, and what the hub does for visitors.
type limits struct {
	fromAddress, guesses, ofName, ofBrowser, confirms, recoverFrom, recoverOf *throttle
	devices, polls, codes, userCodes, codesFrom                               *throttle
	verifiers, verified, recoveries                                           *throttle
}

func newLimits() limits {
	every := func(d time.Duration, burst int) *throttle { return &throttle{Every: d, Burst: burst} }
	return limits{
		fromAddress: every(6*time.Second, 20),  // sign-ins and sign-ups, by address
		guesses:     every(30*time.Second, 10), // passwords, by address and account name
		// By name, for all addresses together. It allows twice the sustained
		// rate of one address, so that one address cannot lock out the others.
		ofName:      every(15*time.Second, 100),
		ofBrowser:   every(30*time.Second, 10),                // by browser used before
		confirms:    every(30*time.Second, 10),                // by member, after the sign-in
		recoverFrom: every(6*time.Second, 20),                 // recoveries, by address
		recoverOf:   every(30*time.Second, 10),                // recoveries, by address and name
		codes:       every(2*time.Second, 30),                 // unknown codes, by address
		devices:     every(2*time.Minute, 30),                 // requests for approval, by address
		polls:       every(pollEvery-200*time.Millisecond, 1), // polls, by request
		userCodes:   every(2*time.Minute, 5),                  // typed codes, by member
		codesFrom:   every(2*time.Minute, 30),                 // typed codes, by address
		verifiers:   every(10*time.Minute, 5),                 // verifying e-mails, by member
		verified:    every(20*time.Minute, 3),                 // verifying e-mails, by address
		recoveries:  every(10*time.Minute, 3),                 // recoveries by mail, by e-mail address
	}
}
