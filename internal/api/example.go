package api

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"strings"
)

// examples are example values for texts and numbers, by property name.
var examples = map[string]any{
	"with": "bob", "owner": "ada", "member": "bob", "by": "ada", "caller": "bob", "admin": true, "group": "lab", "machine": "ada-desktop",
	"model": "qwen3:32b", "models": "qwen3:32b", "hours": "Mon-Fri 18:00-23:00", "timezone": "Europe/Lisbon", "concurrent": 2, "per_day": 50,
	"code": "", "expires_in": "7d", "day": "2026-11-21", "since": "2026-10-23", "name": "ada-desktop", "id": "mch_01a2", "state": "ready",
	"context_length": 32768, "slots": 4, "tokens_in": 1584, "tokens_out": 912, "calls": 12, "days": 30, "region": "home",
}

// Example returns an example of a request or an answer: indented JSON that matches the
// schema.
func (d Description) Example(s *Schema) (string, error) {
	text, err := json.Marshal(d.example("", s), json.Deterministic(true), jsontext.WithIndent(" "))
	return string(text), err
}

// example returns an example value for the schema of the named property.
func (d Description) example(name string, s *Schema) any {
	switch {
	case s.Ref != "":
		return d.example(name, d.Types[s.RefName()])
	case len(s.AnyOf) > 0:
		return d.example(name, s.AnyOf[0])
	case len(s.Enum) > 0:
		return s.Enum[0]
	case s.Items != nil:
		return []any{d.example(name, s.Items)}
	case s.Type == "object":
		object := map[string]any{}
		for property, of := range s.Properties {
			object[property] = d.example(property, of)
		}
		return object
	case s.Format == "date-time":
		return "2026-11-21T09:30:00Z"
	}
	value, known := examples[name]
	switch value.(type) {
	case string:
		known = known && s.Type == "string"
	case int:
		known = known && (s.Type == "integer" || s.Type == "number")
	case bool:
		known = known && s.Type == "boolean"
	}
	switch {
	case known:
		return value
	case s.Type == "boolean":
		return false
	case s.Type == "integer", s.Type == "number":
		return 1
	}
	return "…"
}

// Call returns shell commands that call the operation at the given address.
func (d Description) Call(base string, op Operation) (string, error) {
	path := op.Path
	var query []string
	for _, p := range op.Parameters {
		value, _ := d.example(p.Name, p.Schema).(string)
		if p.In == "path" {
			path = strings.ReplaceAll(path, "{"+p.Name+"}", value)
		} else if p.Required || p.Name == "model" {
			query = append(query, p.Name+"="+value)
		}
	}
	if len(query) > 0 {
		path += "?" + strings.Join(query, "&")
	}
	text := "curl -sS"
	if op.Method != "GET" {
		text += " -X " + op.Method
	}
	secret := "$KITH_API_KEY"
	if op.NoKey {
		secret = "$MACHINE_CREDENTIAL"
	}
	text += " '" + base + path + "' \\\n  -H \"Authorization: Bearer " + secret + "\""
	if op.Body == nil {
		return text, nil
	}
	body, err := json.Marshal(d.example("", op.Body.Content.JSON.Schema), json.Deterministic(true))
	return text + " \\\n  -H 'Content-Type: application/json' \\\n  -d '" + strings.ReplaceAll(string(body), "'", `'\''`) + "'", err
}

// Anchor returns the id of the operation's section on a page.
func (o Operation) Anchor() string {
	return strings.ToLower(o.Method) + strings.NewReplacer("/api/", "-", "/", "-", "{", "", "}", "").Replace(o.Path)
}
