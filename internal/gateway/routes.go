package gateway

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fleet"
)

// surface is a set of the two surfaces.
type surface uint8

const (
	hosted surface = 1 << iota
	local
	both = hosted | local
)

// route is one row of the table of routes.
type route struct {
	path    string  // the complete path; with a slash at the end, the part before an argument
	tail    string  // the part after the argument
	segment bool    // the argument contains no slash
	methods string  // as in the Allow header
	on      surface // the surfaces that have it
	// byVersion: faults have the messages envelope if the request has the version header,
	// else the chat envelope.
	byVersion bool
	// messages: the route belongs to the messages dialect, with its envelope and its
	// version header.
	messages bool
	sealed   bool // the call is sealed, and says itself for which endpoint
	open     bool // no key is required on the hosted surface
	// serve answers the request; nil: it is an inference route for endpoint.
	serve    func(*request) error
	endpoint fleet.Endpoint
}

// routes are all routes of both surfaces (spec/api.md#routes).
var routes = []route{
	{path: "/", methods: "GET, HEAD", on: both, byVersion: true, open: true, serve: (*request).serviceInfo},
	{path: "/v1/models", methods: "GET, HEAD", on: both, byVersion: true, serve: (*request).listModels},
	{path: "/v1/models/", methods: "GET, HEAD", on: both, byVersion: true, serve: (*request).oneModel},
	{path: "/v1/chat/completions", methods: "POST", on: both, endpoint: fleet.ChatCompletions},
	{path: "/v1/embeddings", methods: "POST", on: both, endpoint: fleet.EmbeddingsEndpoint},
	{path: "/v1/responses", methods: "POST", on: both, endpoint: fleet.Responses},
	{path: "/v1/responses/", methods: "GET, DELETE", on: hosted, segment: true, serve: (*request).oneResponse},
	{path: "/v1/responses/", tail: "/input_items", methods: "GET", on: hosted, segment: true,
		serve: (*request).inputItems},
	{path: "/v1/audio/transcriptions", methods: "POST", on: both, endpoint: fleet.Transcriptions},
	{path: "/v1/messages", methods: "POST", on: both, messages: true, endpoint: fleet.Messages},
	{path: "/v1/sealed", methods: "POST", on: hosted, sealed: true},
	{path: "/v1/messages/count_tokens", methods: "POST", on: both, messages: true, serve: (*request).countTokens},
	{path: "/v1/completions", methods: "POST", on: both, serve: (*request).notImplemented},
}

// noResponse are the last parts of other services' paths that are not an {id} of
// /v1/responses/{id}.
var noResponse = []string{"compact", "input_tokens"}

// find returns the route of a path on a surface, or nil. The path is percent-encoded as
// received and compared byte for byte: it is not cleaned, decoded, folded or redirected.
func find(path string, on surface) *route {
	for i := range routes {
		r := &routes[i]
		if r.on&on != 0 && r.matches(path) {
			return r
		}
	}
	return nil
}

func (r *route) matches(path string) bool {
	if len(r.path) == 1 || !strings.HasSuffix(r.path, "/") {
		return path == r.path
	}
	if !strings.HasPrefix(path, r.path) || !strings.HasSuffix(path, r.tail) || len(path) <= len(r.path)+len(r.tail) {
		return false
	}
	argument := r.argument(path)
	return !r.segment || !strings.Contains(argument, "/") && !slices.Contains(noResponse, argument)
}

// argument returns the variable part of the path, decoded.
func (r *route) argument(path string) string {
	part := strings.TrimSuffix(strings.TrimPrefix(path, r.path), r.tail)
	if decoded, err := url.PathUnescape(part); err == nil {
		return decoded
	}
	return part
}

// inference reports whether the route is an inference route.
func (r *route) inference() bool { return r != nil && r.serve == nil }

// takesAPIKey reports whether a key in x-api-key alone is accepted
// (spec/api.md#check-key).
func (r *route) takesAPIKey() bool { return r.byVersion || r.messages }

// streams reports whether the route supports stream: true.
func (r *route) streams() bool { return r.endpoint != fleet.EmbeddingsEndpoint }

// allows reports whether the route accepts the method.
func (r *route) allows(method string) bool {
	for allowed := range strings.SplitSeq(r.methods, ", ") {
		if allowed == method {
			return true
		}
	}
	return false
}

// envelopeOf returns the envelope for the faults of a request: that of the route or, if
// the route has none or there is no route, that of the version header.
func envelopeOf(r *http.Request, matched *route) dialect.Dialect {
	switch {
	case matched != nil && matched.messages:
		return dialect.Messages
	case r.URL.Path == "/v1/responses", strings.HasPrefix(r.URL.Path, "/v1/responses/"):
		return dialect.Responses
	case matched != nil && !matched.byVersion:
		return dialect.Chat
	case r.URL.Path == "/v1/messages", strings.HasPrefix(r.URL.Path, "/v1/messages/"):
		return dialect.Messages
	case r.Header[dialect.VersionHeader] != nil:
		return dialect.Messages
	default:
		return dialect.Chat
	}
}

// nearest returns the right path for a wrong one: /v1 missing or repeated, extra slashes,
// wrong case, or a proxy's prefix (spec/api.md#paths). It returns "" if no route is near.
func nearest(path string, on surface) string {
	parts := strings.FieldsFunc(strings.ToLower(path), func(c rune) bool { return c == '/' })
	for len(parts) > 0 {
		if parts[0] == "v1" {
			parts = parts[1:]
			continue
		}
		candidate := "/v1/" + strings.Join(parts, "/")
		if r := find(candidate, on); r != nil {
			if strings.HasSuffix(r.path, "/") {
				return r.path + "{id}" + r.tail // ids are case-sensitive, so never guess one
			}
			return r.path
		}
		parts = parts[1:]
	}
	return ""
}
