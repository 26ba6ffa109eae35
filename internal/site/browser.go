package site

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// After a member signs in, the browser keeps a cookie that proves it, so that other
// people who guess passwords cannot lock the member out. The cookie does not sign anyone
// in: it gives the browser a separate limit for wrong passwords. It is signed with the
// hash of the member's password, so nothing is stored for it, and it is void once the
// password changes.

// browserLife is how long a browser is recognized after its last sign-in.
const browserLife = 180 * 24 * time.Hour

// browserCookieName returns the cookie's name. With https the cookie is bound to this
// host.
func (s *Site) browserCookieName() string {
	if s.secure {
		return "__Host-kith-browser"
	}
	return "kith-browser"
}

// rememberBrowser sets the cookie that lets this browser be recognized. Without a
// password, or if it cannot be read, there is no key to sign with, and no cookie is set.
// The sign-in succeeds all the same.
func (s *Site) rememberBrowser(v *visit, memberID string) {
	hash, err := s.DB.Password(v.Context(), memberID)
	if err != nil {
		return
	}
	claim := rand.Text() + "." + strconv.FormatInt(s.DB.Now().Add(browserLife).Unix(), 10)
	cookie := http.Cookie{
		Name: s.browserCookieName(), Value: claim + "." + signBrowser(claim, memberID, hash), Path: "/",
		MaxAge: int(browserLife.Seconds()), HttpOnly: true, Secure: s.secure, SameSite: http.SameSiteStrictMode,
	}
	v.header.Add("Set-Cookie", cookie.String())
}

// knownBrowser reports whether the member signed in with this browser before, and returns
// the key for its limit.
func (s *Site) knownBrowser(v *visit, memberID, hash string) (browser string, known bool) {
	cookie, err := v.Cookie(s.browserCookieName())
	if err != nil || hash == "" {
		return "", false
	}
	dot := strings.LastIndexByte(cookie.Value, '.')
	if dot < 0 {
		return "", false
	}
	claim, signature := cookie.Value[:dot], cookie.Value[dot+1:]
	if !hmac.Equal([]byte(signature), []byte(signBrowser(claim, memberID, hash))) {
		return "", false
	}
	browser, until, _ := strings.Cut(claim, ".")
	seconds, err := strconv.ParseInt(until, 10, 64)
	return browser, err == nil && s.DB.Now().Unix() < seconds
}

func signBrowser(claim, memberID, hash string) string {
	mac := hmac.New(sha256.New, []byte(hash))
	mac.Write([]byte("known browser\x00" + memberID + "\x00" + claim))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
