package gateway

import (
	"net/http"
	"slices"
	"strings"
)

// exposed are the headers of an answer that a web application may read beside those
// that every one may.
const exposed = "X-Correlation-ID, Request-Id, X-Request-Id, Retry-After, X-Kith-Route, X-Should-Retry, X-Kith-Estimate"

// cors lets the web applications of Origins call the hosted surface from a browser.
// It says nothing of credentials, so a browser sends no cookie and no certificate,
// and the key alone says who calls. It reports whether the request is the browser's
// question before the call (a preflight), which has no key and needs no more of an
// answer.
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
	matched, method := find(r.URL.Path, g.on), r.Header.Get("Access-Control-Request-Method")
	if r.Method != http.MethodOptions || method == "" || matched == nil {
		h.Set("Access-Control-Expose-Headers", exposed)
		return false
	}
	h.Set("Access-Control-Allow-Methods", matched.methods)
	if wants := r.Header.Get("Access-Control-Request-Headers"); wants != "" {
		h.Set("Access-Control-Allow-Headers", wants) // none changes who calls
	}
	h.Set("Access-Control-Max-Age", "600")
	return true
}
