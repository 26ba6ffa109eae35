package site

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"

	"github.com/kith/kith/internal/api"
)

// apiData is what /api shows: the API's description for a person, read from the
// one for programs.
type apiData struct {
	Routes []apiRoute
	Types  []apiType
}

type apiRoute struct {
	Method, Path, About string
	Parameters          []apiParameter
	Body                []apiField
	Answer              apiValue
}

type apiParameter struct{ Name, About string }

type apiType struct {
	Name   string
	Fields []apiField
}

// apiField is one member of an object.
type apiField struct {
	Name  string
	Type  apiValue
	Maybe bool // it may be absent
}

// apiValue is a type: one that has its own place on the page, or in words.
type apiValue struct {
	Ref, Plain string
	Many       bool
}

// schema is as much of JSON Schema as the description uses.
type schema struct {
	Ref        string            `json:"$ref"`
	Type       string            `json:"type"`
	Format     string            `json:"format"`
	Enum       []string          `json:"enum"`
	Items      *schema           `json:"items"`
	AnyOf      []schema          `json:"anyOf"`
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
}

type content struct {
	Content map[string]struct {
		Schema schema `json:"schema"`
	} `json:"content"`
}

func (c content) schema() schema { return c.Content["application/json"].Schema }

var apiShown = sync.OnceValue(func() apiData {
	var doc struct {
		Paths map[string]map[string]struct {
			Summary    string `json:"summary"`
			Parameters []struct {
				Name  string `json:"name"`
				About string `json:"description"`
			} `json:"parameters"`
			Body      *content           `json:"requestBody"`
			Responses map[string]content `json:"responses"`
		} `json:"paths"`
		Components struct {
			Schemas map[string]schema `json:"schemas"`
		} `json:"components"`
	}
	must(json.Unmarshal(api.OpenAPI(), &doc))
	var data apiData
	for _, r := range api.MemberRoutes() {
		method, path := r[0], r[1]
		op := doc.Paths[path][strings.ToLower(method)]
		shown := apiRoute{Method: method, Path: path, About: op.Summary, Answer: op.Responses["200"].schema().value()}
		for _, p := range op.Parameters {
			shown.Parameters = append(shown.Parameters, apiParameter{p.Name, p.About})
		}
		if op.Body != nil {
			shown.Body = op.Body.schema().fields()
		}
		data.Routes = append(data.Routes, shown)
	}
	for _, name := range slices.Sorted(maps.Keys(doc.Components.Schemas)) {
		data.Types = append(data.Types, apiType{name, doc.Components.Schemas[name].fields()})
	}
	return data
})

func (s schema) fields() []apiField {
	var all []apiField
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		all = append(all, apiField{name, s.Properties[name].value(), !slices.Contains(s.Required, name)})
	}
	return all
}

func (s schema) value() apiValue {
	switch {
	case s.Ref != "":
		return apiValue{Ref: s.Ref[strings.LastIndex(s.Ref, "/")+1:]}
	case s.Items != nil:
		v := s.Items.value()
		v.Many = true
		return v
	case s.AnyOf != nil:
		v := s.AnyOf[0].value()
		v.Plain += " or null"
		return v
	case s.Enum != nil:
		return apiValue{Plain: strings.Join(s.Enum, " or ")}
	case s.Format == "date-time":
		return apiValue{Plain: "a time (RFC 3339)"}
	}
	return apiValue{Plain: map[string]string{"string": "text", "integer": "a whole number", "boolean": "true or false"}[s.Type]}
}

func (s *Site) apiPage(*visit) (reply, error) {
	return reply{page: "api", title: "API", data: apiShown()}, nil
}
