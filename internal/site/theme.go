package site

import (
	"net/http"
	"time"

	"github.com/kith/kith/internal/fault"
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
