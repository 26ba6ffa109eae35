package chatform

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"strings"
)

// schema is a JSON schema, of which only the types of values are read.
type schema struct {
	node map[string]jsontext.Value
	root map[string]jsontext.Value
}

func newSchema(v jsontext.Value) schema {
	var node map[string]jsontext.Value
	_ = json.Unmarshal(v, &node)
	return schema{node, node}
}

// maxParts limits the schemas that are read for one: they may refer to each other.
const maxParts = 64

// parts returns the schema and those that it is composed of.
func (s schema) parts() []schema {
	list := []schema{s}
	for i := 0; i < len(list) && len(list) < maxParts; i++ {
		node := list[i].node
		var ref string
		_ = json.Unmarshal(node["$ref"], &ref)
		if path, ok := strings.CutPrefix(ref, "#"); ok {
			list = append(list, s.at(path))
		}
		for _, name := range []string{"anyOf", "oneOf", "allOf"} {
			var nodes []jsontext.Value
			_ = json.Unmarshal(node[name], &nodes)
			for _, node := range nodes {
				list = append(list, s.child(node))
			}
		}
	}
	return list
}

// at returns the schema at a JSON pointer.
func (s schema) at(path string) schema {
	node := s.root
	for _, name := range strings.Split(path, "/")[1:] {
		var next map[string]jsontext.Value
		_ = json.Unmarshal(node[strings.NewReplacer("~1", "/", "~0", "~").Replace(name)], &next)
		node = next
	}
	return schema{node, s.root}
}

// property returns the schema of a member of an object.
func (s schema) property(name string) schema {
	for _, part := range s.parts() {
		var properties map[string]jsontext.Value
		_ = json.Unmarshal(part.node["properties"], &properties)
		if v, ok := properties[name]; ok {
			return s.child(v)
		}
	}
	for _, part := range s.parts() {
		if v, ok := part.node["additionalProperties"]; ok && v.Kind() == '{' {
			return s.child(v)
		}
	}
	return schema{}
}

// items returns the schema of the elements of an array.
func (s schema) items() schema {
	for _, part := range s.parts() {
		if v, ok := part.node["items"]; ok {
			return s.child(v)
		}
	}
	return schema{}
}

func (s schema) child(v jsontext.Value) schema {
	child := newSchema(v)
	child.root = s.root
	return child
}

// typeSet is a set of the types of JSON values; 0 is unknown.
type typeSet uint8

const (
	typeString typeSet = 1 << iota
	typeNumber
	typeBoolean
	typeNull
	typeObject
	typeArray
)

var typeNames = map[string]typeSet{
	"string": typeString, "number": typeNumber, "integer": typeNumber, "boolean": typeBoolean,
	"null": typeNull, "object": typeObject, "array": typeArray,
}

var typeKinds = map[jsontext.Kind]typeSet{
	'"': typeString, '0': typeNumber, 't': typeBoolean, 'f': typeBoolean, 'n': typeNull, '{': typeObject, '[': typeArray,
}

// allow reports whether a value of the kind is in the set.
func (t typeSet) allow(kind jsontext.Kind) bool { return t == 0 || t&typeKinds[kind] != 0 }

// types returns the types that the schema allows.
func (s schema) types() (set typeSet) {
	for _, part := range s.parts() {
		var one string
		var list []string
		if json.Unmarshal(part.node["type"], &one) == nil {
			list = []string{one}
		} else {
			_ = json.Unmarshal(part.node["type"], &list)
		}
		for _, name := range list {
			set |= typeNames[name]
		}
		if len(list) > 0 {
			continue
		}
		var values []jsontext.Value
		_ = json.Unmarshal(part.node["enum"], &values)
		if v, ok := part.node["const"]; ok {
			values = append(values, v)
		}
		for _, v := range values {
			set |= typeKinds[v.Kind()]
		}
	}
	return set
}
