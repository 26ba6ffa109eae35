package gateway

import (
	"net/http"
	"slices"
	"strings"
)

// exposed are the response headers that a web application may read in addition to the
// CORS-safelisted ones.
const exposed = "X-Correlation-ID, Request-Id, X-Request-Id, Retry-After, X-Kith-Route, X-Should-Retry, " +
	"X-Kith-Estimate, X-Kith-Truncated"

// cors sets the headers that allow the web applications of Origins to call the hosted
// surface from a browser. They do not allow credentials, so a browser sends no cookie and
// no certificate, and only the key identifies the caller. It reports whether the request
// is a preflight. A preflight has no key, and its answer is complete with these headers.
func (g *Edge) cors(h http.Header, r *http.Request) (preflight bool) {
	origins := g.tuning.Load().origins
	if len(origins) == 0 || !strings.HasPrefix(r.URL.Path, "/v1/") {
		return false
	}
	h.Add("Vary", "Origin")
	from := r.Header["Origin"]
	if len(from) != 1 || !slices.Contains(origins, from[0]) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", from[0])
	matched, method := find(r.URL.EscapedPath(), g.surface), r.Header.Get("Access-Control-Request-Method")
	if r.Method != http.MethodOptions || method == "" || matched == nil {
		h.Set("Access-Control-Expose-Headers", exposed)
		return false
	}
	h.Set("Access-Control-Allow-Methods", matched.methods)
	if wants := r.Header.Get("Access-Control-Request-Headers"); wants != "" {
		h.Set("Access-Control-Allow-Headers", wants) // only the key identifies a caller
	}
	h.Set("Access-Control-Max-Age", "600")
	return true
}
