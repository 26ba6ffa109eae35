package site

import (
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/credential"
)

// newKeyPath is the page that shows a key's secret once.
const newKeyPath = "/applications/new"

// newKeyTime is how long a secret can be shown after its creation.
const newKeyTime = 5 * time.Minute

// createKey handles POST /applications. It redirects to the page that shows the secret,
// so that a reload does not create a second key.
func (s *Site) createKey(v *visit) (reply, error) {
	perDay, err := number(v.form, "per_day")
	if err != nil {
		return reply{}, err
	}
	key, secret, err := s.CreateKey(v.Context(), v.caller(), api.NewKey{
		Name: strings.TrimSpace(v.form.Get("name")), Region: v.form.Get("region"),
		Reach: account.Reach(v.form.Get("reach")), Expires: v.form.Get("expires"),
		Manage: v.form.Get("manage") != "", PerDay: perDay,
	})
	if err != nil {
		return reply{}, err
	}
	return s.toShow(v, key, secret), nil
}

// rollKey handles POST /applications/roll. It creates a key with the same name, reach,
// region, scope, expiry and limit as an existing one, and revokes the old key.
func (s *Site) rollKey(v *visit) (reply, error) {
	old, err := s.ownKey(v, v.form.Get("key"))
	if err != nil {
		return reply{}, err
	}
	key, secret, err := s.RollKey(v.Context(), v.caller(), old)
	if err != nil {
		return reply{}, err
	}
	shown := s.toShow(v, key, secret)
	_, err = call(s, v, api.RevokeKey, api.KeyID{Key: old.ID})
	return shown, err
}

// keyLimit reads a key and its calls a day from the form; an empty field removes the
// limit.
func keyLimit(v *visit) (api.KeyLimit, error) {
	n, err := number(v.form, "per_day")
	return api.KeyLimit{Key: v.form.Get("key"), PerDay: api.Give(n)}, err
}

// ownKey returns a key of the member that is not revoked.
func (s *Site) ownKey(v *visit, id string) (api.Key, error) {
	keys, err := call(s, v, api.ListKeys, api.None{})
	live := func(k api.Key) bool { return k.ID == id && k.State == "live" }
	return pick(keys.Data, err, live, "you have no active key with the id %.80q", id)
}

// toShow redirects to the page that shows a new key's secret. The session stores the
// secret encrypted, and only a cookie in this browser can decrypt it. So any node can
// show it, and the database alone cannot.
func (s *Site) toShow(v *visit, key api.Key, secret credential.Secret) reply {
	seal := rand.Text()
	sealed := credential.Seal(seal, v.me.ID, []byte(secret.Reveal()))
	s.sessions.Put(v.Context(), sessionNewKey, key.ID+" "+base64.RawURLEncoding.EncodeToString(sealed))
	v.header.Add("Set-Cookie", s.newKeyCookie(seal, newKeyTime))
	return reply{to: newKeyPath}
}

// newKeyCookie returns the cookie that decrypts the secret. Without a value it deletes
// the cookie.
func (s *Site) newKeyCookie(seal string, life time.Duration) string {
	return (&http.Cookie{
		Name: sessionNewKey, Value: seal, Path: newKeyPath, MaxAge: int(life.Seconds()), Secure: s.secure,
		HttpOnly: true, SameSite: http.SameSiteStrictMode,
	}).String()
}

// newKey handles GET /applications/new, the only page that shows the secret of a new key.
func (s *Site) newKey(v *visit) (reply, error) {
	id, sealed, _ := strings.Cut(s.sessions.PopString(v.Context(), sessionNewKey), " ")
	cookie, noCookie := v.Cookie(sessionNewKey)
	v.header.Add("Set-Cookie", s.newKeyCookie("", -time.Second))
	key, noKey := s.ownKey(v, id)
	bytes, malformed := base64.RawURLEncoding.DecodeString(sealed)
	if noCookie != nil || noKey != nil || malformed != nil || s.DB.Now().Sub(key.Created) > newKeyTime {
		return reply{to: "/applications",
			done: "A key's secret is shown once. If you did not copy it, give the key a new secret."}, nil
	}
	secret, err := credential.Unseal(cookie.Value, v.me.ID, bytes)
	if err != nil {
		return reply{}, err
	}
	data, err := s.applicationsData(v)
	data.Made, data.Secret, data.Address = key, string(secret), s.Address(key.Region)
	return reply{page: "key", title: "Your new key", data: data}, err
}

// revokeKeyQuestion returns the confirmation page for revoking a key.
func (s *Site) revokeKeyQuestion(v *visit) (question, error) {
	key, err := s.ownKey(v, v.URL.Query().Get("key"))
	return question{
		Title: "Revoke " + keyName(key) + "?", Button: "Revoke the key", Action: "/applications/revoke",
		Back: "/applications", Field: "key", Value: key.ID,
		Cuts: []string{"Programs that use the key ending in " + key.LastFour +
			" are permanently refused within 5 seconds.", lastUse(key, s.DB.Now())},
	}, err
}

// rollKeyQuestion returns the confirmation page for rolling a key.
func (s *Site) rollKeyQuestion(v *visit) (question, error) {
	key, err := s.ownKey(v, v.URL.Query().Get("key"))
	return question{
		Title: "Give " + keyName(key) + " a new secret?", Button: "Create the new secret", Action: "/applications/roll",
		Back: "/applications", Field: "key", Value: key.ID,
		Cuts: []string{"The key keeps its name, reach, region, scope, expiry and limit.",
			"Programs that use the old one, ending in " + key.LastFour + ", are permanently refused within 5 seconds.",
			lastUse(key, s.DB.Now())},
	}, err
}

// keyName returns a key's name for a confirmation page. A key that an operator created
// may have no name.
func keyName(key api.Key) string { return cmp.Or(key.Name, "the key that ends in "+key.LastFour) }

func lastUse(key api.Key, now time.Time) string {
	if key.LastUsed.IsZero() {
		return "No program has used it yet."
	}
	return "A program used it " + ago(key.LastUsed, now) + "."
}

// question is a confirmation page for an action that cuts something off.
type question struct {
	Title, Button string
	Action, Back  string // the form's path, and the cancel link
	Field, Value  string // the form's hidden field
	More          []hiddenField
	Cuts          []string
	Password      bool   // the form asks for the password
	SignIn        string // if not empty: the member has to sign in again first, at this address
}

// hiddenField is a hidden field of a form.
type hiddenField struct{ Name, Value string }

// asks returns the confirmation page for a form. If ask fails, the page shows why.
func asks(path string, ask func(*Site, *visit) (question, error)) page {
	p := get(path, func(s *Site, v *visit) (reply, error) {
		q, err := ask(s, v)
		if err != nil {
			return reply{}, err
		}
		return reply{page: "question", title: q.Title, data: q}, nil
	})
	p.asks = true
	return p
}
