package cli

import (
	"fmt"
	"go/ast"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/assert"
)

// packagedHome is KITH_HOME of the hub that the deb and rpm packages install.
const packagedHome = "/var/lib/kith"

const packagedHead = `# The configuration of a hub, read by kith-hub.service.
#
# Each key is listed with its default, or with an example where it has none. Remove the
# "# " before a key to set it, then check and reload, which names what needs a restart:
#
#   kith config check /etc/kith/hub.toml
#   sudo -u kith kith admin reload --config /etc/kith/hub.toml --data /var/lib/kith
#   systemctl restart kith-hub
#
# This file is made from the comments where the keys are declared
# (internal/cli/configfiles.go).
`

// TestConfigurationPagePackaged: packaging/hub.toml, which the packages install as
// /etc/kith/hub.toml, lists every key of a hub with its comment and its default.
func TestConfigurationPagePackaged(t *testing.T) {
	page := newConfigPage(t)
	page.print(packagedHead)
	file := &configText{configPage: page, examples: map[string]bool{}}
	defaults := reflect.ValueOf(packagedDefaults()).Elem()
	for i, field := range page.types["hubFile"].Fields.List {
		file.section("", field, defaults.Type().Field(i), defaults.Field(i))
	}

	const path = "../../packaging/hub.toml"
	if *update {
		assert.OK(t, os.WriteFile(path, []byte(page.text.String()), 0o644))
	}
	text, err := os.ReadFile(path)
	if err != nil || string(text) != page.text.String() {
		t.Errorf("packaging/hub.toml is not what the comments say (%v): run go test ./internal/cli -run ConfigurationPage -update", err)
	}

	if c := packagedDefaults(); parseConfig(path, text, c) != nil || !equalFiles(c, packagedDefaults()) {
		t.Error("the file as it is installed changes a default, or is refused")
	}
	lines := regexp.MustCompile(`(?m)^# (\w+ = .*)$`)
	for _, at := range lines.FindAllSubmatchIndex(text, -1) {
		line := string(text[at[2]:at[3]])
		used := string(text[:at[0]]) + line + string(text[at[1]:])
		c := packagedDefaults()
		if err := parseConfig(path, []byte(used), c); err != nil {
			// A key that needs another one, or a file, is refused with that cause.
			assert.Lacks(t, err.Error(), "unknown", line, err)
		} else if !file.examples[line] && !equalFiles(c, packagedDefaults()) {
			t.Errorf("%s is not the default", line)
		}
	}
	assert.That(t, len(file.examples) != 0 && len(lines.FindAll(text, -1)) >= 30, "the file lists too few keys")
}

// packagedDefaults are the defaults of the packaged hub, whose data folder
// kith-hub.service sets. Its name, the computer's, is left out.
func packagedDefaults() *hubFile {
	c := defaultHubFile(packagedHome)
	c.Hub.Data = packagedHome
	c.Hub.Listen.Text = "127.0.0.1:8700" // tests have another
	c.Hub.Node.Text = ""
	return c
}

// equalFiles compares all keys, unexported ones too.
func equalFiles(a, b *hubFile) bool {
	return cmp.Equal(a, b, cmp.Exporter(func(reflect.Type) bool { return true }))
}

// configText writes a configuration as TOML.
type configText struct {
	*configPage
	examples map[string]bool // the lines that hold an example
}

// section writes a section: its comment, its keys, then the sections in it. in is the
// key of the section that holds it, with a dot.
func (f *configText) section(in string, field *ast.Field, inner reflect.StructField, v reflect.Value) {
	key, s := in+inner.Tag.Get("toml"), f.structOf(field.Type)
	f.print("\n")
	f.comment(f.about(field, s, v.Type(), key, true))
	f.print("[%s]\n", key)
	if s == nil { // a map, whose keys the operator chooses
		line := "name = " + example(reflect.New(v.Type().Elem()).Elem())
		f.examples[line] = true
		f.print("\n# %s\n", line)
		return
	}
	for i, field := range s.Fields.List {
		inner := v.Type().Field(i)
		if section(inner.Type) {
			continue
		}
		name := inner.Tag.Get("toml")
		f.print("\n")
		f.comment(f.about(field, s, v.Type(), name, false))
		line := name + " = " + literal(v.Field(i))
		if v.Field(i).IsZero() {
			line = name + " = " + example(v.Field(i))
			f.examples[line] = true
		}
		f.print("# %s\n", line)
	}
	for i, field := range s.Fields.List {
		if inner := v.Type().Field(i); section(inner.Type) {
			f.section(key+".", field, inner, v.Field(i))
		}
	}
}

// comment writes a text in lines of at most 90 characters.
func (f *configText) comment(text string) {
	line := "#"
	for _, word := range strings.Fields(strings.NewReplacer("`", "", "\\|", "|").Replace(text)) {
		if len(line)+len(word) > 89 {
			f.print("%s\n", line)
			line = "#"
		}
		line += " " + word
	}
	if line != "#" {
		f.print("%s\n", line)
	}
}

// literal returns a value as TOML writes it.
func literal(v reflect.Value) string {
	switch value := v.Interface().(type) {
	case duration:
		text := regexp.MustCompile(`([hm])0[ms].*`).ReplaceAllString(value.String(), "$1")
		return strconv.Quote(text)
	case size:
		for unit, name := range map[int64]string{1 << 30: "GiB", 1 << 20: "MiB"} {
			if value.Bytes%unit == 0 && value.Bytes/unit < 1024 {
				return strconv.Quote(strconv.FormatInt(value.Bytes/unit, 10) + name)
			}
		}
		return strconv.Quote(strconv.FormatInt(value.Bytes, 10) + "B")
	}
	switch v.Kind() {
	case reflect.Struct:
		for v.Kind() == reflect.Struct {
			v = v.Field(0)
		}
		return strconv.Quote(v.String())
	case reflect.Slice:
		return "[]"
	case reflect.String:
		return strconv.Quote(v.String())
	default:
		return fmt.Sprint(v.Interface())
	}
}

var quoted = regexp.MustCompile(`such as ("[^"]*"|\[.*?\])`)

// example returns what a key without a default can be set to.
func example(v reflect.Value) string {
	of := v.Type()
	if of.Kind() == reflect.Slice {
		return "[" + example(reflect.New(of.Elem()).Elem()) + "]"
	}
	if m := quoted.FindStringSubmatch(takes(of)); m != nil {
		return m[1]
	}
	return literal(v)
}
