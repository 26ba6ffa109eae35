package site

import (
	"cmp"
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
)

// The device sign-in of RFC 8628. A device requests a code at /device/code and shows it
// to its user. It then polls /device/token until a member types the code at /device and
// decides.
const (
	devicePath = "/device"
	grantLife  = 10 * time.Minute
	grantType  = "urn:ietf:params:oauth:grant-type:device_code"
)

// serveGrant handles requests from devices. Its errors have the form of RFC 6749 5.2.
func (s *Site) serveGrant(w http.ResponseWriter, r *http.Request, body []byte, late error) {
	refuse := func(status int, code, text string) {
		api.WriteJSON(w, status, map[string]string{"error": code, "error_description": text})
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		refuse(http.StatusMethodNotAllowed, "invalid_request", "this path takes POST")
		return
	}
	form, err := formOf(r, body)
	if late != nil || err != nil {
		refuse(http.StatusBadRequest, "invalid_request", "a form is needed, as application/x-www-form-urlencoded")
		return
	}
	var answer any
	if r.URL.Path == devicePath+"/code" {
		answer, err = s.beginGrant(r, form)
	} else {
		answer, err = s.pollGrant(r, form)
	}
	refused, isRefused := errors.AsType[grantRefusal](err)
	switch f := fault.Of(err); {
	case err == nil:
		api.WriteJSON(w, http.StatusOK, answer)
	case isRefused:
		refuse(http.StatusBadRequest, refused.code, refused.text)
	case f.Code == fault.RateLimitExceeded:
		api.WriteFault(w, f, w.Header().Get("X-Correlation-ID"))
	default:
		s.Log.Error("device sign-in failed", "id", w.Header().Get("X-Correlation-ID"), "error", err)
		refuse(http.StatusServiceUnavailable, "temporarily_unavailable",
			"the service could not do this just now; try again shortly")
	}
}

// grantRefusal is an error for a device, with its code from RFC 6749 or RFC 8628.
type grantRefusal struct{ code, text string }

func (r grantRefusal) Error() string { return r.text }

var unknownGrant = grantRefusal{"invalid_grant", "the device code is wrong or was used"}

// beginGrant handles POST /device/code client_id, scope ("machine" or "key"), name. For a
// key there are also reach, region, expires, per_day and manage ("true").
func (s *Site) beginGrant(r *http.Request, form url.Values) (any, error) {
	from := addressOf(r)
	if err := tooSoon(s.limits.devices.Take(network(from), time.Now())); err != nil {
		return nil, err
	}
	if form.Get("client_id") == "" {
		return nil, grantRefusal{"invalid_client", "client_id is missing"}
	}
	code, now := credential.Mint(credential.DeviceCode, s.Region), s.DB.Now().UTC().Truncate(time.Millisecond)
	g := account.Grant{
		ID: account.NewID("grt_"), Hash: code.Hash(), Kind: account.GrantKind(form.Get("scope")),
		Name:  form.Get("name"),
		Reach: account.Reach(form.Get("reach")), Manage: form.Get("manage") == "true",
		Client: plain(r.UserAgent(), 100), Address: from,
		Created: now, Expires: now.Add(grantLife),
	}
	if g.Reach == "" {
		g.Reach = account.ReachAll
	}
	switch {
	case g.Kind == account.GrantMachine && api.CheckName(g.Name) != nil:
		g.Name = "machine"
	case g.Kind == account.GrantKey:
		g.Region = form.Get("region")
		perDay, err := strconv.Atoi(cmp.Or(form.Get("per_day"), "0"))
		if err != nil {
			return nil, grantRefusal{"invalid_request", "per_day must be a whole number"}
		}
		asked, _, err := s.MintKey(api.NewKey{Name: g.Name, Region: g.Region, Reach: g.Reach,
			Expires: form.Get("expires"), PerDay: perDay})
		if err != nil {
			return nil, grantRefusal{"invalid_request", fault.Of(err).Message}
		}
		g.KeyExpires, g.PerDay = asked.Expires, asked.PerDay
	case g.Kind != account.GrantMachine:
		return nil, grantRefusal{"invalid_scope", "scope is machine or key"}
	}
	g.UserCode = credential.UserCode()
	err := s.DB.CreateGrant(r.Context(), g)
	if errors.Is(err, account.ErrExists) { // the chance is 1 in 25,600,000,000 for each pending code
		g.UserCode = credential.UserCode()
		err = s.DB.CreateGrant(r.Context(), g)
	}
	if err != nil {
		return nil, err
	}
	return struct {
		DeviceCode string `json:"device_code"`
		UserCode   string `json:"user_code"`
		Address    string `json:"verification_uri"`
		ExpiresIn  int    `json:"expires_in"`
		Interval   int    `json:"interval"`
	}{code.Reveal(), g.UserCode, s.Base + devicePath, int(grantLife.Seconds()), int(pollEvery.Seconds())}, nil
}

// granted is the response to an approved device. Only this response contains Secret.
type granted struct {
	Secret    string `json:"access_token"`
	TokenType string `json:"token_type"`
	ID        string `json:"id"` // of the machine or the key
	Name      string `json:"name"`
	Member    string `json:"member"`
	Region    string `json:"region"`
	BaseURL   string `json:"base_url,omitzero"` // only for a key
}

// pollGrant handles POST /device/token grant_type, device_code.
func (s *Site) pollGrant(r *http.Request, form url.Values) (any, error) {
	if form.Get("grant_type") != grantType {
		return nil, grantRefusal{"unsupported_grant_type", "grant_type is " + grantType}
	}
	hash, ok := s.CodeHash(form.Get("device_code"), credential.DeviceCode)
	if !ok {
		return nil, unknownGrant
	}
	slowDown, now := grantRefusal{"slow_down", "ask less often"}, s.DB.Now().UTC()
	looked, err := s.guess(addressOf(r)) // before the limit of polls, which made-up codes could fill up
	if err != nil {
		return nil, slowDown
	}
	if s.limits.polls.Take(string(hash[:]), now) > 0 {
		looked(nil)
		return nil, slowDown
	}
	g, err := s.DB.Grant(r.Context(), hash)
	looked(err)
	switch {
	case errors.Is(err, account.ErrNotFound) || err == nil && g.State == account.GrantUsed:
		return nil, unknownGrant
	case err != nil:
		return nil, err
	case g.State == account.GrantDenied:
		return nil, grantRefusal{"access_denied", "the member denied it"}
	case !g.Expires.After(now):
		return nil, grantRefusal{"expired_token", "it was not approved in time"}
	case g.State == account.GrantWaiting:
		return nil, grantRefusal{"authorization_pending", "not decided yet"}
	}
	return s.redeem(r, g, now)
}

// redeem creates the machine or key that was approved.
func (s *Site) redeem(r *http.Request, g account.Grant, now time.Time) (any, error) {
	out := granted{TokenType: "Bearer", Name: g.Name, Region: s.Region}
	var machine account.Machine
	var key account.Key
	if g.Kind == account.GrantMachine {
		made, secret := s.MintMachine(g.Name)
		machine, out.Secret, out.ID = made, secret.Reveal(), made.ID
	} else {
		made, secret, err := s.MintKey(api.NewKey{Name: g.Name, Region: g.Region, Reach: g.Reach})
		if err != nil {
			return nil, err
		}
		key, out.Secret, out.ID = made, secret.Reveal(), made.ID
		out.Region, out.BaseURL = made.Region, s.BaseURL(made.Region)
	}
	member, err := s.DB.RedeemGrant(r.Context(), g.Hash, machine, key, now)
	if errors.Is(err, account.ErrExists) && g.Kind == account.GrantMachine {
		machine.Name += "-" + strings.ToLower(rand.Text()[:4])
		out.Name = machine.Name
		member, err = s.DB.RedeemGrant(r.Context(), g.Hash, machine, key, now)
	}
	if errors.Is(err, account.ErrNotFound) { // another poll used it, or its member is disabled
		return nil, unknownGrant
	}
	if err != nil {
		return nil, err
	}
	out.Member = member.Name
	s.Log.Info("member act", "member", member.ID, "method", r.Method, "path", r.URL.Path, "kind", g.Kind,
		"made", out.ID)
	s.Changed(r.Context())
	return out, nil
}

// The site protects against remote phishing (RFC 8628 5.4). No link fills in a code, so a
// member who approves has typed it here. The page then shows the code and which device
// asks, from where and since when. Only the session that typed the code can approve it.

// deviceData is the content of /device: a field for a code, or the request with that
// code.
type deviceData struct {
	Grant   *account.Grant
	Decided account.GrantState
}

// showDevice handles POST /device. It shows which device asks, from where and since when,
// and decides nothing.
func (s *Site) showDevice(v *visit) (reply, error) {
	g, err := s.typed(v)
	if err != nil {
		return reply{}, err
	}
	s.sessions.Put(v.Context(), sessionDevice, g.UserCode)
	return reply{page: "device", title: "Approve a device", data: deviceData{Grant: &g}}, nil
}

// typed returns the pending request for the code that the member typed. Wrong codes count
// against the member and the address.
func (s *Site) typed(v *visit) (account.Grant, error) {
	now, from := s.DB.Now(), network(v.from)
	if err := tooSoon(s.limits.userCodes.Take(v.me.ID, now)); err != nil {
		return account.Grant{}, err
	}
	if err := tooSoon(s.limits.codesFrom.Take(from, now)); err != nil {
		s.limits.userCodes.Give(v.me.ID, now)
		return account.Grant{}, err
	}
	wrong := fault.New(fault.NotFound, "no device is waiting with this code: check it; "+
		"a code is valid for 10 minutes and works once").WithParam("code")
	code := credential.ReadUserCode(v.form.Get("code"))
	if code == "" {
		return account.Grant{}, wrong
	}
	g, err := s.DB.WaitingGrant(v.Context(), code, s.DB.Now())
	if errors.Is(err, account.ErrNotFound) {
		return account.Grant{}, wrong
	}
	if err == nil {
		s.limits.userCodes.Give(v.me.ID, now)
		s.limits.codesFrom.Give(from, now)
	}
	return g, err
}

// decideDevice handles POST /device/decide. The decision is final.
func (s *Site) decideDevice(v *visit) (reply, error) {
	if code := v.form.Get("code"); code == "" || code != s.sessions.GetString(v.Context(), sessionDevice) {
		return reply{}, fault.New(fault.NotFound, "first enter the code that the device shows at `%s`", devicePath)
	}
	g, err := s.typed(v)
	if err != nil {
		return reply{}, err
	}
	state := account.GrantDenied
	switch v.form.Get("decision") {
	case "approve":
		state = account.GrantApproved
	case "deny":
	default:
		return reply{}, fault.New(fault.InvalidRequest, "choose Approve or Deny")
	}
	if _, err = s.DB.DecideGrant(v.Context(), g.UserCode, state, v.me.ID, s.DB.Now()); err != nil {
		return reply{}, api.NotFound(err, "this code was already used or has expired")
	}
	s.sessions.Remove(v.Context(), sessionDevice)
	s.Log.Info("member act", "member", v.me.ID, "method", v.Method, "path", "/device/decide", "grant", g.ID,
		"decision", state)
	if state == account.GrantApproved {
		s.notice(v,
			"A "+string(g.Kind)+" was approved, with the name "+line(g.Name)+": it acts as you until you revoke it.")
	}
	return reply{page: "device", title: "Done", data: deviceData{Grant: &g, Decided: state}}, nil
}
