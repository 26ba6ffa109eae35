package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// fakeRelease is a release whose binaries are scripts that print their version. Its
// inputs have the date of now.
func fakeRelease(t *testing.T, version string) *release {
	t.Helper()
	r := &release{
		source: repository(t), out: t.TempDir(), work: t.TempDir(), version: version,
		commit: "0123456789abcdef0123456789abcdef01234567", date: time.Date(2026, 11, 1, 12, 30, 0, 0, time.UTC),
	}
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in\n*--json*) echo '{\"version\":\"%s\"}' ;;\n*) echo kith %s ;;\nesac\n", version, version)
	for _, target := range targets {
		write(t, r.binary(target), script, 0o755)
		if target.libraries() != "" {
			license := filepath.Join(r.source, target.libraries(), "LICENSE")
			if _, err := os.Stat(license); err != nil {
				r.source = withLibraries(t, r.source)
			}
		}
	}
	write(t, r.licensesFile(), "licences\n", 0o644)
	for _, name := range []string{"kith.1", "kith-hub.1"} {
		write(t, filepath.Join(r.work, "man", name), ".TH KITH 1\n", 0o644)
	}
	for _, name := range []string{"kith.bash", "_kith", "kith.fish", "kith.ps1"} {
		write(t, filepath.Join(r.work, "completions", name), "# "+name+"\n", 0o644)
	}
	return r
}

// withLibraries is a folder like the repository with a license of each platform's
// libraries, which were not fetched.
func withLibraries(t *testing.T, source string) string {
	folder := t.TempDir()
	for _, name := range []string{"packaging", "deploy"} {
		ok(t, os.Symlink(filepath.Join(source, name), filepath.Join(folder, name)))
	}
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md", "install.sh"} { // a package has a link as a link
		text := value(os.ReadFile(filepath.Join(source, name)))(t)
		write(t, filepath.Join(folder, name), string(text), 0o644)
	}
	for _, target := range targets {
		if target.libraries() != "" {
			write(t, filepath.Join(folder, target.libraries(), "LICENSE"), "MIT\n", 0o644)
		}
	}
	return folder
}

func repository(t *testing.T) string {
	folder := value(filepath.Abs("../.."))(t)
	return folder
}

func write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	ok(t, put(name, mode, []byte(text)))
	ok(t, os.Chmod(name, mode))
}

// buildAll writes every artifact that fake binaries can be in.
func (r *release) buildAll(t *testing.T) {
	t.Helper()
	for _, target := range targets {
		ok(t, r.writeArchive(target))
	}
	for name, part := range map[string]func(context.Context) error{"packages": r.packages, "image": r.image, "finish": r.finish} {
		if name == "finish" {
			continue
		}
		ok(t, part(t.Context()), name)
	}
	ok(t, r.finish(t.Context()))
}

// TestEqualReleases: two releases of one commit, from other folders and with inputs of
// other dates, are equal, byte for byte.
func TestEqualReleases(t *testing.T) {
	var sums [2]string
	for i := range sums {
		r := fakeRelease(t, "1.2.3")
		if i == 1 { // as if it were built at another time
			old := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
			for _, name := range []string{r.binary(targets[0]), filepath.Join(r.work, "man", "kith.1")} {
				ok(t, os.Chtimes(name, old, old))
			}
		}
		r.buildAll(t)
		text := value(os.ReadFile(filepath.Join(r.out, sumsFile)))(t)
		sums[i] = string(text)
		if err := r.checkSums(); err != nil {
			t.Error(err)
		}
	}
	if sums[0] != sums[1] {
		t.Errorf("the checksums differ:\n%s\n%s", sums[0], sums[1])
	}
	for _, name := range []string{
		"kith_1.2.3_linux_amd64.tar.gz", "kith-slim_1.2.3_linux_arm64.tar.gz", "kith_1.2.3_darwin_arm64.tar.gz", "kith_1.2.3_windows_arm64.zip",
		"kith_1.2.3_amd64.deb", "kith-1.2.3-1.x86_64.rpm", "kith-hub_1.2.3.oci.tar", "install.sh", "kith.rb", "winget/kith.kith.installer.yaml",
	} {
		if !strings.Contains(sums[0], "  "+name+"\n") {
			t.Errorf("there is no %s in\n%s", name, sums[0])
		}
	}
}

// slim is the hub's binary for this computer, built once for all tests.
var slim = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "kith-slim-")
	if err != nil {
		return "", err
	}
	source, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	r := &release{source: source, work: folder, version: "1.2.3"}
	slimFolder = folder
	return r.binary(host()), r.build(context.Background(), host())
})

var slimFolder string

func TestMain(m *testing.M) {
	status := m.Run()
	if slimFolder != "" {
		_ = os.RemoveAll(slimFolder)
	}
	os.Exit(status)
}

// built returns slim.
func built(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("a static binary is made on Linux only")
	}
	binary := value(slim())(t)
	return binary
}

// TestStaticBinary: a build without the tag llama has no dynamic loader, and its version
// is the release's.
func TestStaticBinary(t *testing.T) {
	binary := built(t)
	if err := checkStatic(binary); err != nil {
		t.Error(err)
	}
	if err := runVersion(t.Context(), binary, "1.2.3"); err != nil {
		t.Error(err)
	}
	if self, err := os.Executable(); err == nil && checkStatic("/bin/sh") == nil && checkStatic(self) == nil {
		t.Error("checkStatic finds every binary static")
	}
}

// TestBOM: what a build is made of holds each module that the toolchain recorded.
func TestBOM(t *testing.T) {
	binary := built(t)
	r := fakeRelease(t, "1.2.3")
	data := value(os.ReadFile(binary))(t)
	target := target{"linux", runtime.GOARCH, false}
	write(t, r.binary(target), string(data), 0o755)
	r.source = t.TempDir()
	write(t, filepath.Join(r.source, target.libraries(), "STAMP"), target.platform()+" 3.22.1 sha\n", 0o644)
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		ok(t, r.writeBOM(out, target))
	}
	if first.String() != second.String() {
		t.Error("two of one binary differ")
	}
	var bom cdx.BOM
	ok(t, json.Unmarshal(first.Bytes(), &bom))
	found := map[string]string{}
	for _, c := range *bom.Components {
		found[c.Name] = c.PackageURL
	}
	for _, name := range []string{"std", "modernc.org/sqlite", "github.com/spf13/cobra", "@node-llama-cpp/" + target.platform()} {
		if found[name] == "" {
			t.Errorf("there is no %s in %v", name, slices.Sorted(maps.Keys(found)))
		}
	}
	if _, linked := found["github.com/ebitengine/purego"]; linked {
		t.Error("a build without the engine links purego")
	}
	if bom.Metadata.Component.Version != "1.2.3" || bom.SpecVersion.String() == "" || !strings.HasPrefix(bom.SerialNumber, "urn:uuid:") {
		t.Errorf("%+v", bom.Metadata)
	}
}

// TestProgress: a step that takes long says every 10 s that it is still at work.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := step{"build", func(context.Context) error { time.Sleep(25 * time.Second); return nil }}
		ok(t, s.run(t.Context(), &out, "[1/2] "))
		want := "[1/2] build\n[1/2] build: 10 s so far\n[1/2] build: 20 s so far\n[1/2] done in 25 s\n"
		if out.String() != want {
			t.Errorf("%q, not %q", out.String(), want)
		}
	})
}
