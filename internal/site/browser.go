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

// A browser that a member signed in with keeps a cookie that proves it, so that
// guesses at the member's password from elsewhere do not keep the member out. The
// cookie signs no one in: it gives the browser a limit of its own on wrong passwords.
// It is signed with the hash of the member's password, so nothing is stored for it,
// and it is void once the password changes.

// browserLife is how long a browser is known after its last sign-in.
const browserLife = 180 * 24 * time.Hour

// browserCookieName is the cookie's name; over https it is bound to this very host.
func (s *Site) browserCookieName() string {
	if s.secure {
		return "__Host-kith-browser"
	}
	return "kith-browser"
}

// rememberBrowser sets the cookie that makes this browser a known one of the member.
// Without a password, or where it cannot be read, there is nothing to sign with and
// no cookie is set; that is no reason to refuse a sign-in.
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

// knownBrowser reports whether the visit is by a browser that the member signed in
// with before, and what to count it as.
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
