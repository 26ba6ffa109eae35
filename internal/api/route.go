package api

import (
	"context"
	"net/http"
	"net/url"
	"reflect"
	"strings"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// access determines who may use a route.
type access uint8

const (
	// members authenticate with an API key or a machine's credential.
	members access = iota
	// machines have no credential yet: the request contains a login token.
	machines
	// operators connect to the socket in the hub's data folder, which only the hub's own
	// user can open.
	operators
)

// None is the request type of a route without input.
type None struct{}

// Route is a line of the table with its types. The fields of In are the request's input:
// a field with the tag `path:"group"` is the path segment {group}, one with
// `query:"days"` is a query parameter unless the method is POST, and all others are
// members of the JSON body. A path field that the route's path does not contain is a
// member of the body, too.
type Route[In, Out any] struct {
	*line
	do func(*API, context.Context, fleet.Caller, In) (Out, error)
}

// line is a route without its Go types.
type line struct {
	method, path string
	// about describes the route, for readers of the description or, for an operator's
	// route, in the audit log.
	about string
	may   access
	// inference reports that a key without permission to manage the account may use the
	// route.
	inference bool
	// noKey reports that no API key may use the route: it takes a machine's credential, and
	// the site's sessions.
	noKey   bool
	in, out reflect.Type
	fields  []field // fields of in that come from the path or the query
	body    bool    // the request has a JSON body
	needed  bool    // the body has required members
	serve   func(*API, *http.Request, fleet.Caller, []byte) (any, error)
}

// field is a request field that comes from the path or the query.
type field struct {
	name  string
	query bool
	index int
}

// table contains all routes, in the order of routes.go.
var table []*line

// member, caller, owner, machine and operator add a route to the table.
func member[In, Out any](pattern, about string, do func(*API, context.Context, fleet.Caller, In) (Out, error)) Route[In, Out] {
	return add(members, pattern, about, do)
}

func caller[In, Out any](pattern, about string, do func(*API, context.Context, fleet.Caller, In) (Out, error)) Route[In, Out] {
	r := add(members, pattern, about, do)
	r.inference = true
	return r
}

func owner[In, Out any](pattern, about string, do func(*API, context.Context, fleet.Caller, In) (Out, error)) Route[In, Out] {
	r := add(members, pattern, about+" No API key may: use the credential of one of your machines.", do)
	r.noKey = true
	return r
}

func machine[In, Out any](pattern, about string, do func(*API, context.Context, fleet.Caller, In) (Out, error)) Route[In, Out] {
	return add(machines, pattern, about, do)
}

func operator[In, Out any](pattern, about string, do func(*API, context.Context, fleet.Caller, In) (Out, error)) Route[In, Out] {
	return add(operators, pattern, about, do)
}

func add[In, Out any](may access, pattern, about string, do func(*API, context.Context, fleet.Caller, In) (Out, error)) Route[In, Out] {
	method, path, _ := strings.Cut(pattern, " ")
	l := &line{method: method, path: path, about: about, may: may, in: reflect.TypeFor[In](), out: reflect.TypeFor[Out]()}
	l.bind()
	r := Route[In, Out]{l, do}
	l.serve = func(a *API, req *http.Request, c fleet.Caller, body []byte) (any, error) {
		var in In
		if err := l.decode(req, body, &in); err != nil {
			return nil, err
		}
		return r.Do(req.Context(), a, c, in)
	}
	table = append(table, l)
	return r
}

// bind determines where each field of a request comes from.
func (l *line) bind() {
	for i := range l.in.NumField() {
		f := l.in.Field(i)
		if name := f.Tag.Get("path"); name != "" && strings.Contains(l.path, "{"+name+"}") {
			l.fields = append(l.fields, field{name: name, index: i})
			continue
		}
		if name := f.Tag.Get("query"); name != "" && l.method != http.MethodPost {
			l.fields = append(l.fields, field{name, true, i})
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		l.body = l.body || name != "-"
		l.needed = l.needed || !f.Anonymous && name != "-" && !strings.Contains(options, "omit")
	}
}

// decode decodes a request into the In that into points to. The body must be a single
// strict JSON object: no duplicate and no unknown members.
func (l *line) decode(r *http.Request, body []byte, into any) error {
	switch {
	case l.needed && len(body) == 0:
		return fault.New(fault.InvalidRequest, "this request needs a JSON body")
	case l.body && len(body) > 0:
		if err := readJSON(body, into); err != nil {
			return err
		}
	}
	query, in := r.URL.Query(), reflect.ValueOf(into).Elem()
	for _, f := range l.fields {
		text := r.PathValue(f.name)
		if f.query {
			text = query.Get(f.name)
		}
		in.Field(f.index).SetString(text)
	}
	return nil
}

// Do serves the route for an authenticated caller; the site's pages use it. It logs a
// change and makes it effective.
func (r Route[In, Out]) Do(ctx context.Context, a *API, c fleet.Caller, in In) (Out, error) {
	reads := r.method == http.MethodGet
	if r.may == operators && !reads {
		ctx = account.Acting(ctx, &account.Act{
			ID: account.NewID("act_"), At: a.DB.Now().UTC(), By: string(c.Member), ByName: c.Name, What: r.about, Subject: r.subject(in),
		})
	}
	out, err := r.do(a, ctx, c, in)
	if err != nil || reads {
		return out, err
	}
	switch r.may {
	case operators:
		a.Log.Info("operator act", "operator", string(c.Member), "request", r.method+" "+r.path, "subject", account.ActOf(ctx).Subject)
	case members:
		a.Log.Info("member act", "member", string(c.Member), "method", r.method, "path", r.path)
	}
	a.Changed(ctx)
	return out, nil
}

// subject returns the names in a request's path and query, for the audit log. A handler
// that gets names from the body adds them with about.
func (l *line) subject(in any) string {
	var names []string
	for _, f := range l.fields {
		if name := reflect.ValueOf(in).Field(f.index).String(); name != "" {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Request is a request for a route from another computer, with the type of its answer.
type Request[Out any] struct {
	Method, Path string
	Body         any // to be encoded as JSON; nil: none
}

// With returns a request for the route.
func (r Route[In, Out]) With(in In) Request[Out] {
	path, query := r.path, url.Values{}
	for _, f := range r.fields {
		text := reflect.ValueOf(in).Field(f.index).String()
		switch {
		case !f.query:
			path = strings.Replace(path, "{"+f.name+"}", url.PathEscape(text), 1)
		case text != "":
			query.Set(f.name, text)
		}
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	req := Request[Out]{Method: r.method, Path: path}
	if r.body {
		req.Body = in
	}
	return req
}
