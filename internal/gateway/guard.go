package gateway

import (
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/fault"
)

// Guard keeps web pages away from a local surface (spec/security.md#local-guard): a
// loopback connection does not prove that a local program sent the request. It is the
// first check, on every path.
type Guard struct {
	// Port is the port listened on; Host must name it.
	Port int
	// Origins are the origins of pages that may call, compared byte for byte, also
	// cross-site. Empty: no page may.
	Origins []string
	// AnyHost accepts every Host, for a surface that other computers reach by other
	// names.
	AnyHost bool
}

// Handler returns a handler that refuses requests that a web page may have caused and
// passes the others to next.
func (g *Guard) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := g.check(r); err != nil {
			http.Error(w, fault.Of(err).Message, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// check refuses a request that a web page could have caused. No check is enough alone:
// GETs and images have no Origin, WebSockets and rebound names have no Sec-Fetch-Site,
// and a page on loopback has a valid Host.
func (g *Guard) check(r *http.Request) error {
	if !g.AnyHost && !g.ownHost(r.Host) {
		return fault.New(fault.ForbiddenOrigin, "this surface answers to localhost, "+
			"127.0.0.1 and [::1] with port %d only: use one of those in the base URL", g.Port)
	}
	listed := false
	for _, origin := range r.Header["Origin"] {
		if listed = slices.Contains(g.Origins, origin); !listed {
			return fault.New(fault.ForbiddenOrigin, "web pages may not call this surface: call from a program")
		}
	}
	for _, site := range r.Header["Sec-Fetch-Site"] {
		if site != "none" && site != "same-origin" && !listed {
			return fault.New(fault.ForbiddenOrigin,
				"web pages of another site may not call this surface: call from a program")
		}
	}
	return nil
}

// ofBrowser reports whether a request has a header that only browsers send. The body of
// such a request must have the Content-Type of JSON, which a page cannot send without a
// preflight.
func ofBrowser(h http.Header) bool {
	for name := range h {
		if name == "Origin" || name == "Referer" || strings.HasPrefix(name, "Sec-Fetch-") {
			return true
		}
	}
	return false
}

// isJSON reports whether a page needs a preflight to send this Content-Type. It does not
// for text/plain, forms and no Content-Type at all (spec/security.md#local-guard).
func isJSON(contentType string) bool {
	if contentType == "application/json" {
		return true
	}
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
}

// ownHost reports whether a Host header is one of the three loopback names with the right
// port. No other spelling of a loopback address is accepted. A name without a port means
// port 80.
func (g *Guard) ownHost(host string) bool {
	for _, name := range [...]string{"localhost", "127.0.0.1", "[::1]"} {
		rest, found := strings.CutPrefix(host, name)
		if found && (rest == ":"+strconv.Itoa(g.Port) || rest == "" && g.Port == 80) {
			return true
		}
	}
	return false
}
