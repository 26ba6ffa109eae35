package llama

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// testGPU returns a library of these bytes, and its package.
func testGPU(t *testing.T, name string, library []byte) (g GPULibrary, archive string) {
	t.Helper()
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	files := tar.NewWriter(zip)
	for member, content := range map[string][]byte{"package/LICENSE": []byte("none"), "package/bins/lib" + name + ".so": library} {
		err := files.WriteHeader(&tar.Header{Name: member, Size: int64(len(content)), Mode: 0o644})
		if _, fail := files.Write(content); errors.Join(err, fail) != nil {
			t.Fatal(err, fail)
		}
	}
	assert.OK(t, errors.Join(files.Close(), zip.Close()))
	archive = filepath.Join(t.TempDir(), name+".tgz")
	assert.OK(t, os.WriteFile(archive, packed.Bytes(), 0o600))
	sum := sha256.Sum256(library)
	return GPULibrary{Name: name, Needs: "a card", Version: "2", Member: "package/bins/lib" + name + ".so", Sum: hex.EncodeToString(sum[:])}, archive
}

// compile makes a shared library of a C source.
func compile(t *testing.T, source string, args ...string) []byte {
	t.Helper()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "x.c"), filepath.Join(dir, "x.so")
	assert.OK(t, os.WriteFile(in, []byte(source), 0o600))
	if said, err := exec.Command("gcc", append([]string{"-shared", "-fPIC", "-o", out, in}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("gcc (see make setup-test): %v: %s", err, said)
	}
	library := assert.Value(os.ReadFile(out))(t)
	return library
}

// TestGPUFallback: a GPU library that cannot be used leaves the CPU to compute, and the
// reason is known.
func TestGPUFallback(t *testing.T) {
	needLibraries(t)
	missing := t.TempDir()
	if err := os.WriteFile(filepath.Join(missing, "libnodriver.so"), compile(t, "int driver(void){return 1;}", "-Wl,-soname,libnodriver.so.1"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		library []byte
		why     string
	}{
		"garbage": {[]byte("no library"), "file too short"},
		"no driver": {compile(t, "int driver(void); int f(void){return driver();}", "-L"+missing, "-lnodriver", "-Wl,--no-as-needed"),
			"libnodriver.so.1: cannot open shared object file: No such file or directory; it needs a card"},
		"no backend": {compile(t, "int f(void){return 1;}"), "it needs a card"},
		"crash":      {compile(t, "#include <stdlib.h>\n__attribute__((constructor)) void f(void){abort();}"), "the engine failed with it: it ended before it was ready"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := t.TempDir()
			g, archive := testGPU(t, "odd", c.library)
			assert.OK(t, g.Install(data, archive))
			e := startEngine(t, Config{Data: data, GPUs: []GPULibrary{g}})
			if got := e.Graphics(); got.Library != "" || !strings.Contains(got.Unused["odd"], c.why) {
				t.Errorf("%+v, not %q", got, c.why)
			}
			assert.Equal(t, e.say(ask("Hello")), conversation[0][1], "on the CPU")
		})
	}
}

// TestGPUInstall installs, replaces, checks and removes a library.
func TestGPUInstall(t *testing.T) {
	data := t.TempDir()
	g, archive := testGPU(t, "odd", []byte("library"))
	all := []GPULibrary{g}
	if usable, unused := installedGPUs(data, all); len(usable)+len(unused) != 0 || g.Installed(data) {
		t.Errorf("none installed: %v, %v", usable, unused)
	}
	assert.Is(t, g.Remove(data), fs.ErrNotExist, "remove none")
	old := g
	old.Version = "1"
	assert.OK(t, old.Install(data, archive))
	if usable, unused := installedGPUs(data, all); len(usable) != 0 || !strings.Contains(unused["odd"], "another version") || !g.Installed(data) {
		t.Errorf("the old one: %v, %v", usable, unused)
	}
	for range 2 {
		assert.OK(t, g.Install(data, archive))
	}
	if usable, unused := installedGPUs(data, all); len(usable) != 1 || len(unused) != 0 || len(g.versions(data)) != 1 {
		t.Errorf("installed: %v, %v, %v", usable, unused, g.versions(data))
	}
	assert.OK(t, os.WriteFile(g.path(data), []byte("other"), 0o600))
	if usable, unused := installedGPUs(data, all); len(usable) != 0 || !strings.Contains(unused["odd"], "damaged") {
		t.Errorf("damaged: %v, %v", usable, unused)
	}
	if err := g.Remove(data); err != nil || g.Installed(data) {
		t.Errorf("remove: %v", err)
	}
	g.Sum = strings.Repeat("0", 64)
	if err := g.Install(data, archive); err == nil || g.Installed(data) {
		t.Errorf("a library of another sum is installed: %v", err)
	}
	g.Member = "package/bins/none.so"
	assert.Fails(t, g.Install(data, archive), "has no", "a package without the library")
}

// TestShare: as many layers as fit go to the cards, and the rest to the main memory.
func TestShare(t *testing.T) {
	for _, c := range []struct {
		needs, free, blocks uint64
		layers              int32
		rest                uint64
	}{
		{1000, 1000, 9, allLayers, 0}, {1000, 999, 9, 9, 100}, {1000, 500, 9, 5, 500}, {1000, 99, 9, 0, 1000}, {1000, 0, 9, 0, 1000}, {5, 4, 9, 0, 5},
	} {
		if layers, rest := share(c.needs, c.free, c.blocks); layers != c.layers || rest != c.rest {
			t.Errorf("%+v: %d layers, %d bytes", c, layers, rest)
		}
	}
}

// TestPins: the libraries of the CPU and the GPUs come from one release.
func TestPins(t *testing.T) {
	script := assert.Value(os.ReadFile("../../scripts/fetch-llama.sh"))(t)
	if m := regexp.MustCompile(`(?m)^version=(\S+)`).FindSubmatch(script); m == nil || string(m[1]) != packageVersion {
		t.Errorf("scripts/fetch-llama.sh pins %s, this package %s", m, packageVersion)
	}
}
