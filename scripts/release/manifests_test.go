package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestFormula: the formula names this release's archives, each with its sum.
func TestFormula(t *testing.T) {
	r := fakeRelease(t, "1.2.3")
	r.buildAll(t)
	text := read(t, r, "kith.rb")
	urls := regexp.MustCompile(`url "(\S+)"\s+sha256 "([0-9a-f]{64})"`).FindAllStringSubmatch(text, -1)
	if len(urls) != 4 {
		t.Fatalf("%d archives in\n%s", len(urls), text)
	}
	for _, m := range urls {
		checkURL(t, r, m[1], m[2])
	}
	for _, want := range []string{`version "1.2.3"`, "on_macos do\n    on_intel do\n      url \"" + downloads + "/v1.2.3/kith_1.2.3_darwin_amd64.tar.gz\"", "on_linux do", `depends_on "llama.cpp"`} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	opened := len(regexp.MustCompile(`(?m)(\bdo$|^class |^ *def )`).FindAllString(text, -1))
	if closed := len(regexp.MustCompile(`(?m)^ *end$`).FindAllString(text, -1)); opened != closed {
		t.Errorf("%d blocks are opened and %d closed in\n%s", opened, closed, text)
	}
}

// TestWinget: the manifests are YAML of one version, and name this release's archives.
func TestWinget(t *testing.T) {
	r := fakeRelease(t, "1.2.3")
	r.buildAll(t)
	for kind, name := range map[string]string{"version": "kith.kith.yaml", "installer": "kith.kith.installer.yaml", "defaultLocale": "kith.kith.locale.en-US.yaml"} {
		var m struct {
			PackageIdentifier string `yaml:"PackageIdentifier"`
			PackageVersion    string `yaml:"PackageVersion"`
			ManifestType      string `yaml:"ManifestType"`
			ManifestVersion   string `yaml:"ManifestVersion"`
			Installers        []struct {
				URL   string `yaml:"InstallerUrl"`
				Sum   string `yaml:"InstallerSha256"`
				Files []struct {
					Path string `yaml:"RelativeFilePath"`
				} `yaml:"NestedInstallerFiles"`
			} `yaml:"Installers"`
		}
		ok(t, yaml.Unmarshal([]byte(read(t, r, "winget/"+name)), &m))
		if m.PackageIdentifier != "kith.kith" || m.PackageVersion != "1.2.3" || m.ManifestType != kind || m.ManifestVersion != "1.6.0" {
			t.Errorf("%s: %+v", name, m)
		}
		if kind != "installer" {
			continue
		}
		if len(m.Installers) != 2 {
			t.Fatalf("%+v", m)
		}
		for _, one := range m.Installers {
			checkURL(t, r, one.URL, one.Sum)
			if want := strings.TrimSuffix(filepath.Base(one.URL), ".zip") + `\kith.exe`; one.Files[0].Path != want {
				t.Errorf("the program is %q, not %q", one.Files[0].Path, want)
			}
		}
	}
}

func read(t *testing.T, r *release, name string) string {
	t.Helper()
	text := value(os.ReadFile(filepath.Join(r.out, name)))(t)
	return string(text)
}

// checkURL checks that a URL is of this release, and its sum that of the file.
func checkURL(t *testing.T, r *release, url, sum string) {
	t.Helper()
	name, ours := strings.CutPrefix(url, downloads+"/v"+r.version+"/")
	if got, err := sumOf(filepath.Join(r.out, name)); !ours || err != nil || got != sum {
		t.Errorf("%s has the sum %s (%v), not %s", url, got, err, sum)
	}
}
