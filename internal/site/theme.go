package site

import (
	"net/http"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// themeCookie stores a browser's choice of light or dark pages. Without it, pages follow
// the browser's setting.
const themeCookie = "kith-theme"

// theme returns the choice in a request's cookie, or "".
func theme(r *http.Request) string {
	if cookie, err := r.Cookie(themeCookie); err == nil && (cookie.Value == "light" || cookie.Value == "dark") {
		return cookie.Value
	}
	return ""
}

// zoneCookie stores the browser's time zone, which the page's script knows.
const zoneCookie = "kith-zone"

// zone returns the IANA name of the reader's time zone, or "" for UTC if it is unknown.
func (v *visit) zone() string {
	cookie, err := v.Cookie(zoneCookie)
	if err != nil {
		return ""
	}
	if _, err = fleet.ParseZone(cookie.Value); err != nil {
		return ""
	}
	return cookie.Value
}

// setTheme handles POST /theme. It stores the choice and shows the page again.
func (s *Site) setTheme(v *visit) (reply, error) {
	cookie := http.Cookie{Name: themeCookie, Value: v.form.Get("theme"), Path: "/",
		MaxAge: int((365 * 24 * time.Hour).Seconds()), Secure: s.secure, HttpOnly: true, SameSite: http.SameSiteLaxMode}
	switch cookie.Value {
	case "light", "dark":
	case "":
		cookie.MaxAge = -1
	default:
		return reply{}, fault.New(fault.InvalidRequest, "theme must be light, dark or empty, not %.20q",
			cookie.Value).WithParam("theme")
	}
	v.header.Add("Set-Cookie", cookie.String())
	return reply{to: s.localPath(v.form.Get("next"))}, nil
}
