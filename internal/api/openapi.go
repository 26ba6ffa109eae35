package api

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fleet"
)

// openAPIPath is the path of the description of the members' routes. It requires no key,
// because it contains no member's data.
const openAPIPath = "/api/openapi.json"

// Description describes the members' routes, in the order of the table, and their types.
// It is generated from the table and from the Go types of the requests and answers.
type Description struct {
	Operations []Operation
	Types      map[string]*Schema
}

// Resource is what routes with the same first part of their path are about.
type Resource struct {
	Name       string
	Operations []Operation
}

// Resources returns the operations by resource, in the order of the table.
func (d Description) Resources() (all []Resource) {
	for _, op := range d.Operations {
		name := strings.ToUpper(op.Tags[0][:1]) + op.Tags[0][1:]
		i := slices.IndexFunc(all, func(r Resource) bool { return r.Name == name })
		if i < 0 {
			i, all = len(all), append(all, Resource{Name: name})
		}
		all[i].Operations = append(all[i].Operations, op)
	}
	return all
}

// Operation is a route in OpenAPI's format.
type Operation struct {
	Method     string      `json:"-"`
	Path       string      `json:"-"`
	NoKey      bool        `json:"-"`    // it takes a machine's credential, and no API key
	Tags       []string    `json:"tags"` // the resource: the first part of the path
	Summary    string      `json:"summary"`
	More       string      `json:"description,omitzero"`
	Parameters []Parameter `json:"parameters,omitzero"`
	Body       *Content    `json:"requestBody,omitzero"`
	Responses  struct {
		Done    Content `json:"200"`
		Refused Content `json:"default"`
	} `json:"responses"`
}

// Parameter is a parameter in a route's path or query.
type Parameter struct {
	Name     string  `json:"name"`
	In       string  `json:"in"` // path or query
	Required bool    `json:"required,omitzero"`
	About    string  `json:"description"`
	Schema   *Schema `json:"schema"`
}

// Content describes a body.
type Content struct {
	About    string `json:"description,omitzero"`
	Required bool   `json:"required,omitzero"`
	Content  struct {
		JSON struct {
			Schema *Schema `json:"schema"`
		} `json:"application/json"`
	} `json:"content"`
}

// Schema is the subset of JSON Schema that the description uses.
type Schema struct {
	Ref        string             `json:"$ref,omitzero"`
	Type       string             `json:"type,omitzero"`
	Format     string             `json:"format,omitzero"`
	Enum       []string           `json:"enum,omitzero"`
	Items      *Schema            `json:"items,omitzero"`
	AnyOf      []*Schema          `json:"anyOf,omitzero"`
	Properties map[string]*Schema `json:"properties,omitzero"`
	Required   []string           `json:"required,omitempty"`
	Others     *bool              `json:"additionalProperties,omitzero"`
}

// Needs reports whether the property is required.
func (s *Schema) Needs(property string) bool { return slices.Contains(s.Required, property) }

// RefName returns the name of the type that the schema refers to, or "" if it is not a
// reference.
func (s *Schema) RefName() string { return strings.TrimPrefix(s.Ref, refPrefix) }

const refPrefix = "#/components/schemas/"

func ref(name string) *Schema { return &Schema{Ref: refPrefix + name} }

func orNull(s *Schema) *Schema { return &Schema{AnyOf: []*Schema{s, {Type: "null"}}} }

// Describe returns the description of the members' routes.
var Describe = sync.OnceValue(func() Description {
	types := schemas{}
	types["Error"] = &Schema{Type: "object", Properties: map[string]*Schema{"error": types.of(reflect.TypeFor[Problem]())}, Required: []string{"error"}}
	d := Description{Types: types}
	for _, l := range table {
		if l.may == members {
			d.Operations = append(d.Operations, types.operation(l))
		}
	}
	return d
})

// OpenAPI returns the description of the members' routes as OpenAPI 3.1.
var OpenAPI = sync.OnceValue(func() []byte {
	type object = map[string]any
	paths := map[string]map[string]Operation{}
	for _, op := range Describe().Operations {
		if paths[op.Path] == nil {
			paths[op.Path] = map[string]Operation{}
		}
		paths[op.Path][strings.ToLower(op.Method)] = op
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
			"schemas": Describe().Types,
			"securitySchemes": object{"secret": object{
				"type": "http", "scheme": "bearer", "description": "An API key, or a machine's credential: both speak for their member.",
			}},
		},
	}, json.Deterministic(true), jsontext.Multiline(true))
	if err != nil {
		panic(err) // cannot fail: everything is compiled in
	}
	return text
})

// schemas are the schemas of the Go types seen so far, by name.
type schemas map[string]*Schema

// operation returns the description of a route.
func (s schemas) operation(l *line) Operation {
	summary, more, _ := strings.Cut(l.about, ". ")
	resource, _, _ := strings.Cut(strings.TrimPrefix(l.path, "/api/"), "/")
	op := Operation{Method: l.method, Path: l.path, NoKey: l.noKey, Tags: []string{resource}, Summary: strings.TrimSuffix(summary, "."), More: more}
	for _, f := range l.fields {
		p := Parameter{Name: f.name, In: "path", Required: !f.query, About: parameterTexts[f.name], Schema: &Schema{Type: "string"}}
		if f.query {
			p.In = "query"
		}
		op.Parameters = append(op.Parameters, p)
	}
	op.Responses.Done.About = "Done."
	op.Responses.Done.Content.JSON.Schema = s.of(l.out)
	op.Responses.Refused.About = "Refused: error.code says why, error.message what helps."
	op.Responses.Refused.Content.JSON.Schema = ref("Error")
	if l.body {
		op.Body = &Content{Required: l.needed}
		op.Body.Content.JSON.Schema = s.object(l.in)
		op.Body.Content.JSON.Schema.Others = new(bool) // unknown members are rejected
	}
	return op
}

// plainSchemas are the schemas of types that are not objects.
var plainSchemas = map[reflect.Type]Schema{
	reflect.TypeFor[time.Time]():           {Type: "string", Format: "date-time"},
	reflect.TypeFor[account.Reach]():       {Type: "string", Enum: []string{string(account.ReachAll), string(account.ReachShared), string(account.ReachOwn)}},
	reflect.TypeFor[account.MachineRule](): {Type: "string", Enum: []string{string(account.NoRule), string(account.MachinePinned), string(account.MachineExcluded)}},
	reflect.TypeFor[account.NoticeKind]():  {Type: "string", Enum: views(account.NoticeKinds, func(k account.NoticeKind) string { return string(k) })},
	reflect.TypeFor[fleet.FileVerb]():      {Type: "string", Enum: views(fleet.FileActs, func(v fleet.FileVerb) string { return string(v) })},
	reflect.TypeFor[fleet.FileState]():     {Type: "string", Enum: []string{string(fleet.FileUnloaded), string(fleet.FileLoading), string(fleet.FileLoaded)}},
	reflect.TypeFor[fleet.PullState]():     {Type: "string", Enum: []string{string(fleet.PullWaiting), string(fleet.PullRunning), string(fleet.PullFailed), string(fleet.PullDone)}},
	reflect.TypeFor[account.GroupKind]():   {Type: "string", Enum: []string{string(account.GroupOrg), string(account.GroupOpen)}},
}

// of returns the schema of a type. For a named struct it is a reference.
func (s schemas) of(t reflect.Type) *Schema {
	if plain, ok := plainSchemas[t]; ok {
		return &plain
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.Struct:
		if value, ok := t.FieldByName("value"); ok && reflect.PointerTo(t).Implements(reflect.TypeFor[json.UnmarshalerFrom]()) { // Given
			return orNull(s.of(value.Type))
		}
		name := nameOf(t)
		if name == "" {
			return s.object(t)
		}
		if s[name] == nil {
			s[name] = new(Schema) // for recursive types
			s[name] = s.object(t)
		}
		return ref(name)
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return &Schema{Type: "string", Format: "byte"} // base64
		}
		return &Schema{Type: "array", Items: s.of(t.Elem())}
	case reflect.String:
		return &Schema{Type: "string"}
	case reflect.Bool:
		return &Schema{Type: "boolean"}
	case reflect.Int, reflect.Int64:
		return &Schema{Type: "integer", Format: "int64"}
	case reflect.Float64:
		return &Schema{Type: "number", Format: "double"}
	}
	panic("the API's description knows no " + t.String())
}

// nameOf returns the name of a type in the description. The name of a list contains that
// of its elements.
func nameOf(t reflect.Type) string {
	name, of, generic := strings.Cut(t.Name(), "[")
	if generic {
		return strings.TrimSuffix(of[strings.LastIndex(of, ".")+1:], "]") + "List"
	}
	return strings.ToUpper(name[:min(1, len(name))]) + name[min(1, len(name)):]
}

// object returns the schema of a struct, with the members of its JSON form.
func (s schemas) object(t reflect.Type) *Schema {
	out := &Schema{Type: "object", Properties: map[string]*Schema{}}
	s.members(t, true, out)
	slices.Sort(out.Required)
	return out
}

// members adds the members of a struct to an object: its own, then those of embedded
// structs that it does not have itself.
func (s schemas) members(t reflect.Type, always bool, object *Schema) {
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" || name == "-" || object.Properties[name] != nil {
			continue
		}
		schema, absent := s.of(f.Type), strings.Contains(options, "omit")
		if f.Type.Kind() == reflect.Pointer && !absent {
			schema = orNull(schema)
		}
		object.Properties[name] = schema
		if always && !absent {
			object.Required = append(object.Required, name)
		}
	}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case !f.Anonymous || name != "":
		case f.Type.Kind() == reflect.Pointer:
			s.members(f.Type.Elem(), false, object)
		default:
			s.members(f.Type, always, object)
		}
	}
}
