package api

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/account"
)

// openAPIPath is where the description of the members' routes is. It needs no key:
// nothing in it is a member's.
const openAPIPath = "/api/openapi.json"

// values are those that a text type may have.
var values = map[reflect.Type][]string{
	reflect.TypeFor[account.Reach]():     {string(account.ReachAll), string(account.ReachShared), string(account.ReachOwn)},
	reflect.TypeFor[account.GroupKind](): {string(account.GroupOrg), string(account.GroupOpen)},
}

// object is a JSON object in the making.
type object = map[string]any

// OpenAPI returns the description of the members' routes (OpenAPI 3.1), made of the
// table and of the Go types of its requests and answers.
var OpenAPI = sync.OnceValue(func() []byte {
	s := schemas{object{}}
	refused := s.of(reflect.TypeFor[Problem]())
	s.all["Error"] = object{"type": "object", "properties": object{"error": refused}, "required": []string{"error"}}
	paths := map[string]object{}
	for _, l := range table {
		if l.may != members {
			continue
		}
		if paths[l.path] == nil {
			paths[l.path] = object{}
		}
		paths[l.path][strings.ToLower(l.method)] = s.operation(l)
	}
	text, err := json.Marshal(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "kith: a member's account", "version": "1",
			"description": "What the members' site does, for programs: the commands of kith use nothing else. What belongs to another member is answered as what does not exist. Members may be added to answers.",
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
	if err != nil {
		panic(err) // it is made of what is compiled in
	}
	return text
})

// MemberRoutes lists method and path of each route of the members, in the order of
// the table.
func MemberRoutes() (all [][2]string) {
	for _, l := range table {
		if l.may == members {
			all = append(all, [2]string{l.method, l.path})
		}
	}
	return all
}

// operation describes one route.
func (s schemas) operation(l *line) object {
	var parameters []object
	for _, f := range l.fields {
		p := object{"name": f.name, "in": "path", "required": true, "description": parameterTexts[f.name], "schema": object{"type": "string"}}
		if f.query {
			p["in"] = "query"
			delete(p, "required")
		}
		parameters = append(parameters, p)
	}
	op := object{
		"summary": l.about,
		"responses": object{
			"200":     object{"description": "Done.", "content": inJSON(s.of(l.out))},
			"default": object{"description": "Refused: error.code says why, error.message what helps.", "content": inJSON(ref("Error"))},
		},
	}
	if parameters != nil {
		op["parameters"] = parameters
	}
	if l.body {
		body := s.object(l.in)
		body["additionalProperties"] = false // what is not known is refused
		op["requestBody"] = object{"required": l.needed, "content": inJSON(body)}
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
		if value, ok := t.FieldByName("value"); ok && reflect.PointerTo(t).Implements(reflect.TypeFor[json.UnmarshalerFrom]()) { // Given
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
