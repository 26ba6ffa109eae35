package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/llama"
)

// tgz returns an archive of one file.
func tgz(t *testing.T, name string, content []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	files := tar.NewWriter(zip)
	err := files.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644})
	if _, fail := files.Write(content); errors.Join(err, fail, files.Close(), zip.Close()) != nil {
		t.Fatal(err, fail)
	}
	return packed.Bytes()
}

// gpuRegistry serves the package of a library that cannot be loaded, as a registry does,
// and makes it the only one that there is. cuts is how many answers break off.
func gpuRegistry(t *testing.T, cuts int64) (packed []byte, requests *atomic.Int64) {
	t.Helper()
	library := bytes.Repeat([]byte("no library"), 1000)
	packed = tgz(t, "package/bins/libodd.so", library)
	requests = new(atomic.Int64)
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/own/@test/odd/-/odd-9.tgz" {
			http.NotFound(w, r)
			return
		}
		if requests.Add(1) > cuts {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(packed))
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(packed)))
		_, _ = w.Write(packed[:len(packed)/2])
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(registry.Close)
	t.Setenv("npm_config_registry", registry.URL+"/own/")
	setGPU(t, llama.GPULibrary{
		Name: "odd", Cards: "Odd", Needs: "an odd card", Package: "@test/odd", Version: "9", Member: "package/bins/libodd.so",
		Size: int64(len(packed)), SHA256: fmt.Sprintf("%x", sha256.Sum256(packed)), Unpacked: int64(len(library)), Sum: fmt.Sprintf("%x", sha256.Sum256(library)),
	})
	return packed, requests
}

func setGPU(t *testing.T, libraries ...llama.GPULibrary) {
	before := gpuLibraries
	gpuLibraries = func() []llama.GPULibrary { return libraries }
	t.Cleanup(func() { gpuLibraries = before })
}

// TestEngineAdd adds a library for graphics cards over a connection that breaks off, and
// runs a daemon that cannot load it: it serves with the processor, and says why.
func TestEngineAdd(t *testing.T) {
	if err := llama.Available(); err != nil {
		t.Fatalf("%v: use `make test`, or scripts/fetch-llama.sh and go test -tags llama", err)
	}
	_, requests := gpuRegistry(t, 1)
	home := shortDir(t)
	t.Setenv("KITH_HOME", home)
	t.Setenv("PATH", home) // no llama-server
	write(t, filepath.Join(home, "config.toml"), "[discovery]\nenabled = false\n[daemon]\nlisten = \"127.0.0.1:0\"\n")
	assert.Value(llama.Tiny(filepath.Join(home, "models")))(t)
	check(t, kith(t, "", "engine", "add", "cuda"), said{2, "", "cannot add cuda: there is odd"})
	check(t, kith(t, "", "engine", "remove", "odd"), said{1, "", "it was not added"})
	if got := kith(t, "", "engine"); got.status != 0 || !strings.Contains(got.out, "not added") {
		t.Errorf("before: %+v", got)
	}
	check(t, kith(t, "", "engine", "add", "odd"), said{out: "added odd; it needs an odd card\n`kith serve` uses it; check with `kith engine`\n"})
	assert.Equal(t, requests.Load(), 2, "requests for a download that breaks off once")
	if left, err := filepath.Glob(filepath.Join(home, "engine", "*")); err != nil || len(left) != 1 || filepath.Base(left[0]) != "odd-9" {
		t.Errorf("left behind: %v, %v", left, err)
	}

	p := begin(t, "serve")
	// On a busy computer the daemon starts before its engine has.
	for late := time.Now().Add(soon); !strings.Contains(kith(t, "", "models").out, llama.TinyID) && time.Now().Before(late); {
		time.Sleep(100 * time.Millisecond)
	}
	if got := kith(t, "", "run", llama.TinyID, "Hello"); got.status != 0 || got.out == "" {
		t.Errorf("with the processor: %+v", got)
	}
	const why = "invalid ELF header; it needs an odd card"
	if got := kith(t, "", "status"); !strings.Contains(got.out, "odd is not used: "+why) {
		t.Errorf("status: %+v", got)
	}
	if got := kith(t, "", "doctor"); got.status != 1 || !strings.Contains(got.out, why) || !strings.Contains(got.out, "kith engine remove odd") || strings.Count(got.out, "FAIL") != 1 {
		t.Errorf("doctor: %+v", got)
	}
	if got := kith(t, "", "engine", "--json"); !strings.Contains(got.out, `"added":true,"used":false,"why":"`+why) {
		t.Errorf("engine: %+v", got)
	}
	check(t, kith(t, "", "engine", "remove", "odd"), said{out: "removed odd\n"})
	if end := p.stop(); end.status != 0 {
		t.Errorf("the daemon ended with %+v", end)
	}
}

// TestEngineAddFails: what is not the pinned package is not installed, and the error says
// what to do.
func TestEngineAddFails(t *testing.T) {
	home := shortDir(t)
	t.Setenv("KITH_HOME", home)
	gpuRegistry(t, 0)
	good := gpuLibraries()[0]
	for name, c := range map[string]struct {
		change func(*llama.GPULibrary)
		want   string
	}{
		"another package": {func(g *llama.GPULibrary) { g.SHA256 = strings.Repeat("0", 64) }, "odd-9.tgz is damaged"},
		"another library": {func(g *llama.GPULibrary) { g.Sum = strings.Repeat("0", 64) }, "its sha256 is"},
		"no package":      {func(g *llama.GPULibrary) { g.Package = "@test/none" }, "none-9.tgz is not there (404 Not Found)"},
		"a full disk":     {func(g *llama.GPULibrary) { g.Size = 1 << 60 }, "the disk is too full: it needs"},
	} {
		g := good
		change := c.change
		change(&g)
		setGPU(t, g)
		got := kith(t, "", "engine", "add", "odd")
		if got.status != 1 || !strings.HasPrefix(got.err, "kith: cannot add odd: ") || !strings.Contains(got.err, c.want) || g.Installed(filepath.Join(home, "engine")) {
			t.Errorf("%s: %+v", name, got)
		}
		assert.OK(t, os.RemoveAll(filepath.Join(home, "engine")))
	}
	setGPU(t)
	check(t, kith(t, "", "engine", "add", "vulkan"), said{1, "", "a llama-server on the PATH"})
	if got := kith(t, "", "engine"); got.status != 0 || !strings.Contains(got.out, "llama-server on the PATH") {
		t.Errorf("on another system: %+v", got)
	}
}

// TestGraphicsText: what is in use and what is not, for people.
func TestGraphicsText(t *testing.T) {
	for want, g := range map[string]*engine.Graphics{
		"": {},
		"; computes with cuda on A, B; vulkan is not used: kith uses cuda": {Library: "cuda", Cards: []string{"A", "B"}, Unused: map[string]string{"vulkan": "kith uses cuda"}},
	} {
		assert.Equal(t, graphicsText(g), want)
	}
}
