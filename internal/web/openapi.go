package web

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/account"
)

// The API's description is made of the route table, of what stands here beside
// it, and of the Go types that handlers read and answer with.

// openAPIPath is where the description is, for anybody: it tells nothing of a
// member's.
const openAPIPath = "/api/openapi.json"

// described is what a route's line in the table does not say: what it does, what it
// reads and what it answers with, by values of the types that its handler uses.
type described struct {
	about  string
	query  []parameter
	body   any      // nil: it takes none
	needs  []string // members of the body that have to be there
	answer any
}

// parameter is one of a path or a query.
type parameter struct{ name, about string }

var pathParameters = map[string]string{
	"member": "a member's name", "invite": "an invite's id", "group": "a group's name", "key": "a key's id", "machine": "a machine's id",
	"call": "a request's correlation id, as every answer tells it",
}

const keepsOrEnds = "a limit that the body does not name stays as it is, null ends it."

// descriptions are by method and path, one for each route.
var descriptions = map[string]described{
	"GET /api/models": {about: "The models that the account reaches now.", answer: list[Model]{}},

	"GET /api/shares":             {about: "The shares of one's machines, and those with oneself.", answer: list[Share]{}},
	"POST /api/shares":            {about: "Share one's machines with a member, or change the limits of the share that is there: " + keepsOrEnds, body: newShare{}, needs: []string{"with"}, answer: Share{}},
	"DELETE /api/shares/{member}": {about: "End the share with a member: it holds within 5 seconds, for running answers too.", answer: endedShare{}},
	"POST /api/groups/{group}/limits": {
		about: "Limit what all other members of a group together may call on one's machines by it: " + keepsOrEnds, body: limitChange{}, answer: GroupLimits{},
	},
	"GET /api/invites": {about: "One's own invites.", answer: list[Invite]{}},
	"POST /api/invites": {
		about: "Make an invite: whoever accepts it may use one's machines. Its code is told this once. Without a body: one use, 7 days, no limits.",
		body:  newInvite{}, answer: Invite{},
	},
	"POST /api/invites/accept":     {about: "Accept an invite by its code. Where its maker shares with one already, that share and its limits stay as they are, and the invite is not used.", body: inviteCode{}, needs: []string{"code"}, answer: accepted{}},
	"DELETE /api/invites/{invite}": {about: "Revoke an invite; shares that it made stay.", answer: revoked{}},

	"GET /api/groups":                  {about: "The groups that one is in or invited to, and all open ones.", answer: list[Group]{}},
	"POST /api/groups":                 {about: "Make a group, of which one is the first member and admin.", body: newGroup{}, needs: []string{"name", "kind"}, answer: Group{}},
	"DELETE /api/groups/{group}":       {about: "End a group, as its admin.", answer: groupAct{}},
	"POST /api/groups/{group}/join":    {about: "Join an open group.", answer: groupAct{}},
	"POST /api/groups/{group}/leave":   {about: "Leave a group.", answer: groupAct{}},
	"POST /api/groups/{group}/accept":  {about: "Accept the invitation to an org: from then on its members reach one's machines, and one theirs.", answer: groupAct{}},
	"POST /api/groups/{group}/decline": {about: "Decline the invitation to an org.", answer: groupAct{}},
	"POST /api/groups/{group}/invitations": {
		about: "Invite a member to an org, as its admin. The member is in it only after accepting, within 30 days.",
		body:  memberName{}, needs: []string{"member"}, answer: groupAct{},
	},
	"DELETE /api/groups/{group}/members/{member}": {about: "Remove a member from an org, or withdraw the member's invitation, as its admin.", answer: groupAct{}},
	"POST /api/groups/{group}/admins": {
		about: "Make a member of an org another admin, as its admin.", body: memberName{}, needs: []string{"member"}, answer: groupAct{},
	},
	"DELETE /api/groups/{group}/admins/{member}": {about: "Take the role of admin from a member of an org, as its admin: the member stays in it.", answer: groupAct{}},

	"GET /api/notices": {about: "The invitations that wait for one, and who joined one's groups lately.", answer: list[Notice]{}},
	"POST /api/notices/seen": {
		about: "Mark the joins up to a time as seen; invitations stay until they are answered.", body: seenUntil{}, needs: []string{"until"}, answer: seenUntil{},
	},

	"GET /api/keys":          {about: "One's own API keys, revoked ones too, the newest first. Keys are made on the site alone.", answer: list[Key]{}},
	"DELETE /api/keys/{key}": {about: "Revoke a key: it is refused everywhere within 5 seconds.", answer: revoked{}},

	"GET /api/machines":                    {about: "One's own machines.", answer: list[Machine]{}},
	"DELETE /api/machines/{machine}":       {about: "Revoke a machine's credential: its line and what runs on it end within 5 seconds.", answer: machineAct{}},
	"POST /api/machines/{machine}/name":    {about: "Rename a machine.", body: machineName{}, needs: []string{"name"}, answer: machineAct{}},
	"POST /api/machines/{machine}/control": {about: "Pause or resume a connected machine, set its hours or its slots.", body: Control{}, answer: machineAct{}},
	"POST /api/machines/{machine}/keep-out": {
		about: "Keep a machine out of one group or of all, or let it in again.", body: keepOutOf{}, answer: keptOut{},
	},

	"GET /api/requests": {
		about: "One's newest calls, and those on one's machines: what happened to each, nothing of what it said.",
		query: []parameter{{"before", "the next of the page before, or a time: what is older is told"}}, answer: Requests{},
	},
	"GET /api/why": {
		about: "Whether a call for a model would be served now, by whom, and if not, why not and what would change that.",
		query: []parameter{{"model", "the model's id; has to be there"}, {"family", "chat (when absent), embeddings or audio"}}, answer: Why{},
	},
	"GET /api/why/{call}": {about: "What happened to a call of one's own or on one's machines, and why.", answer: (*Told)(nil)},
	"GET /api/usage": {
		about: "Sums of usage, as caller and as owner.", query: []parameter{{"days", "1 to 366, today included; 30 when absent"}}, answer: UsagePage{},
	},
}

// values are those that a type of text may have.
var values = map[reflect.Type][]string{
	reflect.TypeFor[account.Reach]():     {string(account.ReachAll), string(account.ReachShared), string(account.ReachOwn)},
	reflect.TypeFor[account.GroupKind](): {string(account.GroupOrg), string(account.GroupOpen)},
}

// object is a JSON object in the making.
type object = map[string]any

// openAPI is the whole description (OpenAPI 3.1), made when first asked for.
var openAPI = sync.OnceValue(func() []byte {
	s := schemas{object{}}
	refused := s.of(reflect.TypeFor[problem]())
	s.all["Error"] = object{"type": "object", "properties": object{"error": refused}, "required": []string{"error"}}
	paths := map[string]object{}
	for _, r := range routes {
		if paths[r.path] == nil {
			paths[r.path] = object{}
		}
		paths[r.path][strings.ToLower(r.method)] = s.operation(r)
	}
	text, err := json.Marshal(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "kith: a member's account", "version": "1",
			"description": "What the members' site does, for programs: the commands of kith use nothing else. Whatever is another member's is told like what does not exist. Members may be added to answers.",
		},
		"security": []any{object{"secret": []string{}}},
		"paths":    paths,
		"components": object{
			"schemas": s.all,
			"securitySchemes": object{"secret": object{
				"type": "http", "scheme": "bearer", "description": "An API key, or a machine's credential: both speak for their member.",
			}},
		},
	}, json.Deterministic(true), jsontext.Multiline(true))
	must(err)
	return text
})

func serveOpenAPI(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openAPI()) // the client is gone: nothing to add
}

// operation describes one route.
func (s schemas) operation(r route) object {
	d := descriptions[r.method+" "+r.path]
	var parameters []object
	for segment := range strings.SplitSeq(r.path, "/") {
		if name, open := strings.CutPrefix(segment, "{"); open {
			name = strings.TrimSuffix(name, "}")
			parameters = append(parameters, object{"name": name, "in": "path", "required": true, "description": pathParameters[name], "schema": object{"type": "string"}})
		}
	}
	for _, q := range d.query {
		parameters = append(parameters, object{"name": q.name, "in": "query", "description": q.about, "schema": object{"type": "string"}})
	}
	op := object{
		"summary": d.about,
		"responses": object{
			"200":     object{"description": "Done.", "content": inJSON(s.of(reflect.TypeOf(d.answer)))},
			"default": object{"description": "Refused: error.code says why, error.message what helps.", "content": inJSON(ref("Error"))},
		},
	}
	if parameters != nil {
		op["parameters"] = parameters
	}
	if d.body != nil {
		body := s.object(reflect.TypeOf(d.body))
		body["additionalProperties"] = false // what is not known is refused
		delete(body, "required")
		if d.needs != nil {
			body["required"] = d.needs
		}
		op["requestBody"] = object{"required": d.needs != nil, "content": inJSON(body)}
	}
	return op
}

func inJSON(schema object) object { return object{"application/json": object{"schema": schema}} }

func ref(name string) object { return object{"$ref": "#/components/schemas/" + name} }

// schemas are those of the Go types met so far, by name.
type schemas struct{ all object }

// of is the schema of a type: of a struct with a name, a reference.
func (s schemas) of(t reflect.Type) object {
	if t == reflect.TypeFor[time.Time]() {
		return object{"type": "string", "format": "date-time"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.Struct:
		if value, ok := t.FieldByName("value"); ok && reflect.PointerTo(t).Implements(reflect.TypeFor[json.UnmarshalerFrom]()) { // given
			return object{"anyOf": []any{s.of(value.Type), object{"type": "null"}}}
		}
		name := nameOf(t)
		if name == "" {
			return s.object(t)
		}
		if s.all[name] == nil {
			s.all[name] = object{} // of a type that holds itself
			s.all[name] = s.object(t)
		}
		return ref(name)
	case reflect.Slice:
		return object{"type": "array", "items": s.of(t.Elem())}
	case reflect.String:
		if known := values[t]; known != nil {
			return object{"type": "string", "enum": known}
		}
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return object{"type": "integer", "format": "int64"}
	case reflect.Float64:
		return object{"type": "number", "format": "double"}
	}
	panic("the API's description knows no " + t.String())
}

// nameOf is a type's name there; a list is of what.
func nameOf(t reflect.Type) string {
	name, of, generic := strings.Cut(t.Name(), "[")
	if generic {
		return strings.TrimSuffix(of[strings.LastIndex(of, ".")+1:], "]") + "List"
	}
	return strings.ToUpper(name[:min(1, len(name))]) + name[min(1, len(name)):]
}

// object is the schema of a struct, of the members that it is written with.
func (s schemas) object(t reflect.Type) object {
	properties, required := object{}, []string{}
	s.members(t, true, properties, &required)
	out := object{"type": "object", "properties": properties}
	if len(required) > 0 {
		slices.Sort(required)
		out["required"] = required
	}
	return out
}

// members adds the members of a struct to the properties: its own, then those of
// what it embeds that it has not itself.
func (s schemas) members(t reflect.Type, always bool, properties object, required *[]string) {
	var embedded []reflect.StructField
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			embedded = append(embedded, f)
			continue
		}
		if name == "-" || properties[name] != nil {
			continue
		}
		schema := s.of(f.Type)
		absent := strings.Contains(options, "omit")
		if f.Type.Kind() == reflect.Pointer && !absent {
			schema = object{"anyOf": []any{schema, object{"type": "null"}}}
		}
		properties[name] = schema
		if always && !absent {
			*required = append(*required, name)
		}
	}
	for _, f := range embedded {
		if f.Type.Kind() == reflect.Pointer {
			s.members(f.Type.Elem(), false, properties, required)
			continue
		}
		s.members(f.Type, always, properties, required)
	}
}
