package dialect

import (
	"bytes"
	"encoding/json/jsontext"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/kith/kith/internal/assert"
)

var update = flag.Bool("update", false, "write the golden files anew")

// goldens calls each with every story in that folder of testdata. The results must equal
// the files of the same names.
func goldens(t *testing.T, folder string, each func(t *testing.T, files map[string]string) map[string]string) {
	names, err := filepath.Glob("testdata/" + folder + "/*.txtar")
	assert.Require(t, err == nil && len(names) != 0, names, err)
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive := assert.Value(txtar.ParseFile(name))(t)
			files := map[string]string{}
			for _, f := range archive.Files {
				files[f.Name] = string(f.Data)
			}
			got := each(t, files)
			for i, f := range archive.Files {
				text, ok := got[f.Name]
				if !ok {
					continue
				}
				if diff := cmp.Diff(string(f.Data), text); diff != "" && !*update {
					t.Errorf("%s (-want +got):\n%s", f.Name, diff)
				}
				archive.Files[i].Data = []byte(text)
			}
			if *update {
				assert.OK(t, os.WriteFile(name, txtar.Format(archive), 0o644))
			}
		})
	}
}

// stride is the step between sizes in tests that split a stream into pieces of every
// size: with -short, as under the race detector, not every size is tried.
func stride() int {
	if testing.Short() {
		return 11
	}
	return 1
}

// storied returns the files of that name in the stories of a folder of testdata.
func storied(f *testing.F, folder, file string) []string {
	names, err := filepath.Glob("testdata/" + folder + "/*.txtar")
	assert.Require(f, err == nil && len(names) != 0, names, err)
	var texts []string
	for _, name := range names {
		archive := assert.Value(txtar.ParseFile(name))(f)
		for _, one := range archive.Files {
			if one.Name == file {
				texts = append(texts, string(one.Data))
			}
		}
	}
	return texts
}

// indented returns a JSON document with indentation.
func indented(t *testing.T, document []byte) string {
	t.Helper()
	value := jsontext.Value(bytes.Clone(document))
	assert.OK(t, value.Indent(jsontext.WithIndent("  ")), document)
	return string(value) + "\n"
}
