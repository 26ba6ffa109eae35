package gateway

import (
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/fault"
)

// Guard keeps web pages away from a local surface (spec/security.md#local-guard): a loopback connection does not prove
// that a local program sends the request. It is checked first, on every path.
type Guard struct {
	// Port is the port of the address listened on; Host must name it.
	Port int
	// Origins are origins of pages that may call, byte for byte; they may come
	// from another site. Empty: no page may.
	Origins []string
	// AnyHost takes requests to every Host, for a surface that other computers reach
	// by names of their own.
	AnyHost bool
}

// Handler returns a handler that refuses what a browser page may have caused and serves
// the rest with next.
func (g *Guard) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := g.check(r); err != nil {
			http.Error(w, fault.Of(err).Message, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// check refuses a request that a browser page could have caused. Each check
// alone would leave a hole: GETs and images carry no Origin, WebSockets and
// rebound names no Sec-Fetch-Site, and a page on loopback has a good Host.
func (g *Guard) check(r *http.Request) error {
	if !g.AnyHost && !g.ownHost(r.Host) {
		return fault.New(fault.ForbiddenOrigin, "this surface answers to localhost, 127.0.0.1 and [::1] with port %d only: use one of those in the base URL", g.Port)
	}
	listed := false
	for _, origin := range r.Header["Origin"] {
		if listed = slices.Contains(g.Origins, origin); !listed {
			return fault.New(fault.ForbiddenOrigin, "web pages may not call this surface: call from a program")
		}
	}
	for _, site := range r.Header["Sec-Fetch-Site"] {
		if site != "none" && site != "same-origin" && !listed {
			return fault.New(fault.ForbiddenOrigin, "web pages of another site may not call this surface: call from a program")
		}
	}
	return nil
}

// ofBrowser reports whether a request has a header that only browsers send. The body of
// such a request has to be JSON by its Content-Type, for which a page needs a preflight.
func ofBrowser(h http.Header) bool {
	for name := range h {
		if name == "Origin" || name == "Referer" || strings.HasPrefix(name, "Sec-Fetch-") {
			return true
		}
	}
	return false
}

// isJSON reports whether a Content-Type is one that a page cannot send without
// a preflight; text/plain, forms and none at all are not (spec/security.md#local-guard).
func isJSON(contentType string) bool {
	if contentType == "application/json" {
		return true
	}
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
}

// ownHost reports whether a Host header is one of the three loopback names,
// literally: no other spelling of a loopback address is one. Port 80 is what a
// name without a port means.
func (g *Guard) ownHost(host string) bool {
	for _, name := range [...]string{"localhost", "127.0.0.1", "[::1]"} {
		rest, found := strings.CutPrefix(host, name)
		if found && (rest == ":"+strconv.Itoa(g.Port) || rest == "" && g.Port == 80) {
			return true
		}
	}
	return false
}
