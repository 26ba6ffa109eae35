package site

import (
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
)

// newKeyPath is the page that shows a key's secret, once.
const newKeyPath = "/applications/new"

// newKeyTime is how long a secret waits to be shown.
const newKeyTime = 5 * time.Minute

// createKey is POST /applications. The secret is shown by the page that follows, so that
// a reload makes no second key.
func (s *Site) createKey(v *visit) (reply, error) {
	key, secret, err := s.CreateKey(v.Context(), v.caller(), api.NewKey{
		Name: strings.TrimSpace(v.form.Get("name")), Region: v.form.Get("region"), Reach: account.Reach(v.form.Get("reach")), Expires: v.form.Get("expires"),
		Manage: v.form.Get("manage") != "",
	})
	if err != nil {
		return reply{}, err
	}
	return s.toShow(v, key, secret), nil
}

// rollKey is POST /applications/roll: a new key with the name, the reach, the region, the
// scope and the end of a live one, which is then revoked.
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

// ownKey is a live key of the member's.
func (s *Site) ownKey(v *visit, id string) (api.Key, error) {
	keys, err := call(s, v, api.ListKeys, api.None{})
	if err != nil {
		return api.Key{}, err
	}
	if i := slices.IndexFunc(keys.Data, func(k api.Key) bool { return k.ID == id && k.State == "live" }); i >= 0 {
		return keys.Data[i], nil
	}
	return api.Key{}, fault.New(fault.NotFound, "you have no live key with the id %.80q", id)
}

// toShow leads to the page that shows a new key's secret. Until then the secret is in
// the session, sealed under a name that only a cookie of this browser has: any node can
// show it, and the database alone cannot.
func (s *Site) toShow(v *visit, key api.Key, secret credential.Secret) reply {
	seal := rand.Text()
	sealed := credential.Seal(seal, v.me.ID, []byte(secret.Reveal()))
	s.sessions.Put(v.Context(), sessionNewKey, key.ID+" "+base64.RawURLEncoding.EncodeToString(sealed))
	v.header.Add("Set-Cookie", s.newKeyCookie(seal, newKeyTime))
	return reply{to: newKeyPath}
}

// newKeyCookie is the cookie that opens the secret; without a name it ends.
func (s *Site) newKeyCookie(seal string, life time.Duration) string {
	return (&http.Cookie{
		Name: sessionNewKey, Value: seal, Path: newKeyPath, MaxAge: int(life.Seconds()), Secure: s.secure, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	}).String()
}

// newKey is GET /applications/new: the only page that shows the secret of a new key.
func (s *Site) newKey(v *visit) (reply, error) {
	id, sealed, _ := strings.Cut(s.sessions.PopString(v.Context(), sessionNewKey), " ")
	cookie, noCookie := v.Cookie(sessionNewKey)
	v.header.Add("Set-Cookie", s.newKeyCookie("", -time.Second))
	key, noKey := s.ownKey(v, id)
	bytes, malformed := base64.RawURLEncoding.DecodeString(sealed)
	if noCookie != nil || noKey != nil || malformed != nil || s.DB.Now().Sub(key.Created) > newKeyTime {
		return reply{to: "/applications", done: "A key's secret is shown once. If you did not copy it, give the key a new secret."}, nil
	}
	secret, err := credential.Unseal(cookie.Value, v.me.ID, bytes)
	if err != nil {
		return reply{}, err
	}
	data, err := s.applicationsData(v)
	data.Made, data.Secret, data.Address = key, string(secret), s.Address(key.Region)
	return reply{page: "key", title: "Your new key", data: data}, err
}

// revokeKeyQuestion asks before a key is revoked.
func (s *Site) revokeKeyQuestion(v *visit) (question, error) {
	key, err := s.ownKey(v, v.URL.Query().Get("key"))
	return question{
		Title: "Revoke " + keyName(key) + "?", Button: "Revoke the key", Action: "/applications/revoke", Back: "/applications", Field: "key", Value: key.ID,
		Cuts: []string{"Programs that use the key ending in " + key.LastFour + " are refused within 5 seconds, for good.", lastUse(key, s.DB.Now())},
	}, err
}

// rollKeyQuestion asks before a key is rolled.
func (s *Site) rollKeyQuestion(v *visit) (question, error) {
	key, err := s.ownKey(v, v.URL.Query().Get("key"))
	return question{
		Title: "Give " + keyName(key) + " a new secret?", Button: "Create the new secret", Action: "/applications/roll", Back: "/applications", Field: "key", Value: key.ID,
		Cuts: []string{"You get a new secret for the same name, reach, region, scope and end.", "Programs that use the old one, ending in " + key.LastFour + ", are refused within 5 seconds, for good.", lastUse(key, s.DB.Now())},
	}, err
}

// keyName is what a question calls a key. One that an operator made may have no name.
func keyName(key api.Key) string { return cmp.Or(key.Name, "the key that ends in "+key.LastFour) }

func lastUse(key api.Key, now time.Time) string {
	if key.LastUsed.IsZero() {
		return "No program has used it yet."
	}
	return "A program used it " + ago(key.LastUsed, now) + "."
}

// question is a page that asks before something is cut, and says what.
type question struct {
	Title, Button string
	Action, Back  string // where the form leads, and the way out
	Field, Value  string // what the form names
	Cuts          []string
}

// asks is the page before a form that cuts something. Where it cannot say what, it shows
// why.
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
