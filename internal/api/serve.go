package api

import (
	"cmp"
	"encoding/json/v2"
	"errors"
	"io"
	"net/http"
	"net/url"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// The limits for a request's body: its size in bytes and the time to receive it.
const (
	maxBody  = 64 << 10
	bodyTime = 10 * time.Second
)

// Mux finds handlers by patterns of http.ServeMux. It uses paths unchanged and never
// redirects: a path with an empty segment matches no pattern, and segments of dots are
// ordinary names.
type Mux struct{ patterns http.ServeMux }

// Handle adds a handler for a method and a path pattern.
func (m *Mux) Handle(method, pattern string, h http.Handler) {
	if pattern == "/" {
		pattern = "/{$}"
	}
	m.patterns.Handle(method+" "+pattern, h)
}

// Allowed lists the methods for the path. If there are none, no pattern matches it.
func (m *Mux) Allowed(u *url.URL) []string {
	u = withDots(u)
	if p := u.EscapedPath(); p != "/" && path.Clean(p) != p {
		return nil
	}
	var methods []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		if _, found := m.patterns.Handler(&http.Request{Method: method, URL: u}); found != "" {
			methods = append(methods, method)
		}
	}
	return methods
}

// ServeHTTP calls the handler for the request's method and path, which must be among
// those that Allowed lists.
func (m *Mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if u := withDots(r.URL); u != r.URL {
		r = r.WithContext(r.Context())
		r.URL = u
	}
	m.patterns.ServeHTTP(w, r)
}

// withDots escapes the path segments "." and "..", which ServeMux would treat as folders.
func withDots(u *url.URL) *url.URL {
	if !strings.Contains(u.Path, "/.") {
		return u
	}
	segments := strings.Split(u.EscapedPath(), "/")
	for i, s := range segments {
		if s == "." || s == ".." {
			segments[i] = strings.ReplaceAll(s, ".", "%2E")
		}
	}
	escaped := *u
	escaped.RawPath = strings.Join(segments, "/")
	return &escaped
}

// ServeHTTP serves the routes for members and machines.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && r.URL.Path == openAPIPath {
		correlate(w)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(OpenAPI()) // an error means that the client disconnected
		return
	}
	a.route(&a.public, w, r)
}

// Operator serves the operator's routes. Use it only for the socket in the hub's data
// folder, which only the operator can open.
func (a *API) Operator() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		a.route(&a.operator, w, r)
	})
}

// correlate sets the answer's correlation id, which also appears in the log.
func correlate(w http.ResponseWriter) (id string) {
	id = account.NewID("req_")
	h := w.Header()
	h["X-Correlation-Id"], h["Request-Id"], h["X-Request-Id"] = []string{id}, []string{id}, []string{id}
	h.Set("Cache-Control", "no-store")
	return id
}

// route serves the route that matches the request, or refuses it.
func (a *API) route(mux *Mux, w http.ResponseWriter, r *http.Request) {
	switch allowed := mux.Allowed(r.URL); {
	case allowed == nil:
		a.refuse(fault.New(fault.RouteNotFound, "there is no such path under /api/"), w, r)
	case !slices.Contains(allowed, r.Method):
		allow := strings.Join(allowed, ", ")
		w.Header().Set("Allow", allow)
		a.refuse(fault.New(fault.MethodNotAllowed, "this path takes %s", allow), w, r)
	default:
		mux.ServeHTTP(w, r)
	}
}

// handler returns the handler for one route.
func (a *API) handler(l *line) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := correlate(w)
		body, late := ReadBody(w, r) // first: net/http would otherwise wait for it after the answer
		answer, err := a.answer(l, r, body, late)
		if err == nil {
			WriteJSON(w, http.StatusOK, answer)
			return
		}
		f := fault.Of(err)
		if f.Code == fault.InternalError {
			a.Log.Error("management request failed", "id", id, "request", l.method+" "+l.path, "error", err)
		}
		WriteFault(w, f, id)
	})
}

func (a *API) refuse(f *fault.Fault, w http.ResponseWriter, r *http.Request) {
	_, _ = ReadBody(w, r)
	Refuse(w, f)
}

// Refuse responds with a fault and a new correlation id, which it returns.
func Refuse(w http.ResponseWriter, f *fault.Fault) (id string) {
	id = correlate(w)
	WriteFault(w, f, id)
	return id
}

// answer checks the caller, then the rate, then the body, and serves the route. A panic
// affects only this request.
func (a *API) answer(l *line, r *http.Request, body []byte, late error) (answer any, err error) {
	defer func() {
		if v := recover(); v != nil {
			answer, err = nil, fault.Defect(v)
		}
	}()
	var caller fleet.Caller
	if l.may == members {
		secret, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok {
			return nil, fault.New(fault.InvalidAPIKey, "no valid API key: send Authorization: Bearer with an API key or a machine's credential")
		}
		if caller, err = a.Identify(r.Context(), secret); err != nil {
			return nil, err
		}
		if err := a.Admit(caller); err != nil {
			return nil, err
		}
		if caller.Inference && !l.inference {
			return nil, fault.New(fault.NotAllowed, "this key is for inference and may not manage the account: use the site, "+
				"`kith` on a machine that is signed in, or a key that may manage (`kith keys create --manage`)")
		}
		if l.noKey && caller.KeyID != "" {
			return nil, fault.New(fault.NotAllowed, "no API key may manage the models of a machine: use the site, or `kith` on a machine that is signed in")
		}
	}
	if late != nil {
		return nil, late
	}
	return l.serve(a, r, caller, body)
}

// ReadBody reads the complete body of a small request. The error is for the caller, and
// the connection is closed after the answer.
func ReadBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTime)) // connections in memory may not support deadlines
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err == nil && len(body) <= maxBody {
		_ = control.SetReadDeadline(time.Time{})
		return body, nil
	}
	_ = control.SetReadDeadline(time.Now()) // do not wait for the rest
	_ = control.EnableFullDuplex()
	w.Header().Set("Connection", "close")
	if err == nil {
		return nil, fault.New(fault.RequestTooLarge, "the body exceeds %d bytes", maxBody)
	}
	return nil, fault.New(fault.InvalidRequest, "cannot read the body: it ended too early").Because(err)
}

// readJSON decodes a body, a single strict JSON object, into the value that into points
// to. The error is for the caller: it names the invalid member but no Go type.
func readJSON(body []byte, into any) error {
	err := json.Unmarshal(body, into, json.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	wrong, ok := errors.AsType[*json.SemanticError](err)
	if !ok {
		return fault.New(fault.InvalidRequest, "the body is not strict JSON: %s", strings.TrimPrefix(err.Error(), "jsontext: "))
	}
	name := wrong.JSONPointer.LastToken()
	var f *fault.Fault
	switch {
	case errors.Is(err, json.ErrUnknownName):
		f = fault.New(fault.InvalidRequest, "this request has no member %.80q; it takes %s", name, strings.Join(memberNames(reflect.TypeOf(into).Elem()), ", "))
	case errors.As(wrong.Err, new(*time.ParseError)):
		f = fault.New(fault.InvalidRequest, "%s takes a time such as \"2026-11-23T18:30:00Z\"", name)
	case wrong.Err != nil:
		f = fault.New(fault.InvalidRequest, "cannot use %s: %v", cmp.Or(name, "the body"), wrong.Err)
	default:
		kind := strings.NewReplacer("[", "array", "{", "object").Replace(wrong.JSONKind.String())
		f = fault.New(fault.InvalidRequest, "%s cannot be a JSON %s", cmp.Or(name, "the body"), kind)
	}
	return f.WithParam(name).Because(err)
}

// memberNames lists the JSON members of a struct type, including those of embedded
// structs.
func memberNames(t reflect.Type) []string {
	var names []string
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			names = append(names, memberNames(f.Type)...)
		case name != "" && name != "-":
			names = append(names, name)
		}
	}
	return names
}

// WriteJSON writes a value as a JSON answer.
func WriteJSON(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.MarshalWrite(w, answer) // an error means that the client disconnected
}

// Problem is a refusal in the format of the chat dialect.
type Problem struct {
	Code          fault.Code `json:"code"`
	Message       string     `json:"message"`
	Type          string     `json:"type"`
	Param         *string    `json:"param"`
	CorrelationID string     `json:"correlation_id"`
}

// defaultRetryAfter is the number of seconds to wait if the fault contains none.
const defaultRetryAfter = 5

// SetRetryAfter sets the Retry-After header if the fault's status requires it.
func SetRetryAfter(h http.Header, f *fault.Fault) {
	if status := f.Status(); status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		h.Set("Retry-After", strconv.Itoa(cmp.Or(f.RetryAfter, defaultRetryAfter)))
	}
}

// WriteFault responds with a fault and the answer's correlation id.
func WriteFault(w http.ResponseWriter, f *fault.Fault, id string) {
	p := Problem{Code: f.Code, Message: f.Message, Type: f.Type(), CorrelationID: id}
	if f.Param != "" {
		p.Param = &f.Param
	}
	SetRetryAfter(w.Header(), f)
	if f.NoRetry {
		w.Header().Set("X-Should-Retry", "false")
	}
	WriteJSON(w, f.Status(), map[string]Problem{"error": p})
}
