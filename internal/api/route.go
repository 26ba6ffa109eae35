package api

import (
	"context"
	"net/http"
	"net/url"
	"reflect"
	"strings"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
)

// access says who may ask for a route.
type access uint8

const (
	// members present an API key or a machine's credential.
	members access = iota
	// machines have no credential yet: the request holds a login token.
	machines
	// operators connect to the socket in the hub's data folder, which only the
	// hub's own user can open.
	operators
)

// None is the request of a route that takes nothing.
type None struct{}

// Route is one line of the table with its types. In holds what the request says:
// a field with the tag `path:"group"` is the path's segment {group}, one with
// `query:"days"` is of the query unless the method is POST, and all others are
// members of the JSON body. A path field whose segment the route's path lacks is a
// member of the body, too.
type Route[In, Out any] struct {
	*line
	do func(*API, context.Context, Caller, In) (Out, error)
}

// line is a route without its types.
type line struct {
	method, path string
	// about says what the route does: to readers of the description or, of a route
	// of the operator's, in the audit log.
	about string
	may   access
	// inference says that a key which may not manage the account is enough.
	inference bool
	in, out   reflect.Type
	fields    []field // of in, which the path or the query holds
	body      bool    // the request has a JSON body
	needed    bool    // the body has members that must be there
	serve     func(*API, *http.Request, Caller, []byte) (any, error)
}

// field is a field of a request that its path or query holds.
type field struct {
	name  string
	query bool
	index int
}

// table is every route, in the order of routes.go.
var table []*line

// member, caller, machine and operator add a line to the table.
func member[In, Out any](pattern, about string, do func(*API, context.Context, Caller, In) (Out, error)) Route[In, Out] {
	return add(members, pattern, about, do)
}

func caller[In, Out any](pattern, about string, do func(*API, context.Context, Caller, In) (Out, error)) Route[In, Out] {
	r := add(members, pattern, about, do)
	r.inference = true
	return r
}

func machine[In, Out any](pattern, about string, do func(*API, context.Context, Caller, In) (Out, error)) Route[In, Out] {
	return add(machines, pattern, about, do)
}

func operator[In, Out any](pattern, about string, do func(*API, context.Context, Caller, In) (Out, error)) Route[In, Out] {
	return add(operators, pattern, about, do)
}

func add[In, Out any](may access, pattern, about string, do func(*API, context.Context, Caller, In) (Out, error)) Route[In, Out] {
	method, path, _ := strings.Cut(pattern, " ")
	l := &line{method: method, path: path, about: about, may: may, in: reflect.TypeFor[In](), out: reflect.TypeFor[Out]()}
	l.bind()
	r := Route[In, Out]{l, do}
	l.serve = func(a *API, req *http.Request, c Caller, body []byte) (any, error) {
		var in In
		if err := l.decode(req, body, &in); err != nil {
			return nil, err
		}
		return r.Do(req.Context(), a, c, in)
	}
	table = append(table, l)
	return r
}

// bind finds out which field of a request is where.
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

// decode reads a request into the In that into points to. The body is one strict
// JSON object: no member twice, none unknown.
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

// Do serves the route for a caller who is known, as the pages do. It logs a
// change and brings it into force.
func (r Route[In, Out]) Do(ctx context.Context, a *API, c Caller, in In) (Out, error) {
	reads := r.method == http.MethodGet
	if r.may == operators && !reads {
		ctx = account.Acting(ctx, &account.Act{
			ID: account.NewID("act_"), At: a.DB.Now().UTC(), By: c.id(), ByName: c.Name, What: r.about, Subject: r.subject(in),
		})
	}
	out, err := r.do(a, ctx, c, in)
	if err != nil || reads {
		return out, err
	}
	switch r.may {
	case operators:
		a.Log.Info("operator act", "operator", c.id(), "request", r.method+" "+r.path, "subject", account.ActOf(ctx).Subject)
	case members:
		a.Log.Info("member act", "member", c.id(), "method", r.method, "path", r.path)
	}
	a.Changed(ctx)
	return out, nil
}

// subject is what a request's path and query name, for the audit log. A handler
// that reads names from the body says more with about.
func (l *line) subject(in any) string {
	var names []string
	for _, f := range l.fields {
		if name := reflect.ValueOf(in).Field(f.index).String(); name != "" {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Request is a request for a route as a program on another computer sends it,
// with the type of its answer.
type Request[Out any] struct {
	Method, Path string
	Body         any // to be written as JSON; nil: none
}

// With makes a request for the route.
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
