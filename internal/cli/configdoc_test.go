package cli

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

var update = flag.Bool("update", false, "write docs/configuration.md, docs/commands.md and packaging/hub.toml")

// TestConfigurationPage: docs/configuration.md is what the comments on the
// configuration's structs say, key by key.
func TestConfigurationPage(t *testing.T) {
	page := newConfigPage(t)
	page.print("# Configuration\n\n" +
		"TOML, and strict: an unknown key, a wrong type or an impossible value is refused with file, line, column and the nearest right\n" +
		"key; `kith config check [FILE]` runs the code that reads it at start. Without a file, or a key, the default applies. A path may\n" +
		"begin with `~/`; a relative one begins at the file's folder. A file that every user can change is refused.\n\n" +
		"This page is made from the comments where the keys are declared (`internal/cli/configfiles.go`).\n")
	page.print("\n## The daemon: `config.toml` in `KITH_HOME`\n\n`kith reload`, or SIGHUP, applies changes of `%s` while calls run; changes of other keys are listed and take effect at the next start.\n",
		strings.Join(reloadable, "`, `"))
	page.sections("daemonFile", reflect.TypeFor[daemonFile]())
	page.print("\n## A hub: `hub.toml` in `KITH_HOME`\n\n`kith admin reload`, or SIGHUP, applies changes of `hub.drain`, `hub.proxies`, `hub.cors`, `limits` (without `member` and `spool`), `ratelimit`, " +
		"the certificate's files and `log.level` while calls run; changes of other keys are listed and take effect at the next start. A file with a mistake changes nothing.\n")
	page.sections("hubFile", reflect.TypeFor[hubFile]())

	const path = "../../docs/configuration.md"
	if *update {
		assert.OK(t, os.WriteFile(path, []byte(page.text.String()), 0o644))
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != page.text.String() {
		t.Errorf("docs/configuration.md is not what the comments say (%v): run go test ./internal/cli -run ConfigurationPage -update", err)
	}
}

type configPage struct {
	t     *testing.T
	types map[string]*ast.StructType
	text  strings.Builder
}

// newConfigPage reads the comments of the configuration's structs.
func newConfigPage(t *testing.T) *configPage {
	file := assert.Value(parser.ParseFile(token.NewFileSet(), "configfiles.go", nil, parser.ParseComments))(t)
	page := &configPage{t: t, types: map[string]*ast.StructType{}}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if s, ok := spec.Type.(*ast.StructType); ok {
				page.types[spec.Name.Name] = s
			}
		}
		return true
	})
	return page
}

func (p *configPage) print(format string, args ...any) { fmt.Fprintf(&p.text, format, args...) }

// sections prints each section of a file.
func (p *configPage) sections(name string, shape reflect.Type) {
	for i, field := range p.types[name].Fields.List {
		p.section("", field, shape.Field(i))
	}
}

// section prints one section, and then those in it.
func (p *configPage) section(in string, field *ast.Field, inner reflect.StructField) {
	key, kind, heading := in+inner.Tag.Get("toml"), inner.Type, "[%s]"
	if kind.Kind() == reflect.Slice {
		kind, heading = kind.Elem(), "[[%s]]"
	}
	s := p.structOf(field.Type)
	p.print("\n### `"+heading+"`\n", key)
	if text := p.about(field, s, kind, key, true); text != "" {
		p.print("\n%s\n", text)
	}
	p.print("\n| Key | Takes | Meaning |\n|---|---|---|\n")
	if s == nil {
		p.print("| a name | %s | |\n", takes(kind.Elem()))
		return
	}
	p.keys(s, kind)
	for i, field := range s.Fields.List {
		if section(kind.Field(i).Type) {
			p.section(key+".", field, kind.Field(i))
		}
	}
}

// structOf is the struct behind a section: written there, or by its name; nil for a map.
func (p *configPage) structOf(e ast.Expr) *ast.StructType {
	switch e := e.(type) {
	case *ast.StructType:
		return e
	case *ast.ArrayType:
		return p.structOf(e.Elt)
	case *ast.Ident:
		return p.types[e.Name]
	case *ast.MapType:
		return nil
	}
	p.t.Fatalf("a section of another shape: %T", e)
	return nil
}

func (p *configPage) keys(s *ast.StructType, shape reflect.Type) {
	for i, field := range s.Fields.List {
		inner := shape.Field(i)
		if section(inner.Type) {
			continue
		}
		key := inner.Tag.Get("toml")
		p.print("| `%s` | %s | %s |\n", key, strings.ReplaceAll(takes(inner.Type), "|", "\\|"), p.about(field, s, shape, key, false))
	}
}

// about is the comment on a key, which begins with the field's name, with the
// keys of its section for the fields' names. A section may do without one.
func (p *configPage) about(field *ast.Field, s *ast.StructType, shape reflect.Type, key string, section bool) string {
	text := strings.Join(strings.Fields(field.Doc.Text()), " ")
	if text == "" && section {
		return ""
	}
	rest, named := strings.CutPrefix(text, field.Names[0].Name)
	assert.That(p.t, named, "the comment on", key, "does not begin with its name", text)
	if s == nil {
		return "`" + key + "`" + rest
	}
	for i, other := range s.Fields.List {
		name := regexp.MustCompile(`(^|[^-\w])` + other.Names[0].Name + `\b`) // not in the name of a header
		rest = name.ReplaceAllString(rest, "${1}`"+shape.Field(i).Tag.Get("toml")+"`")
	}
	return strings.ReplaceAll("`"+key+"`"+rest, "|", "\\|")
}
