package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

// downloads is the address of the artifacts of all releases.
const downloads = "https://github.com/kith/kith/releases/download"

// sumsFile is the file of the checksums.
const sumsFile = "SHA256SUMS"

// manifest is what the templates in packaging use.
type manifest struct {
	Version string
	Date    string
	Systems []systemArchives // of Homebrew
	Windows []archiveSum
}

type systemArchives struct {
	Name     string // as Homebrew names it
	Archives []archiveSum
}

type archiveSum struct {
	Processor string // as the package manager names it
	URL       string
	Sum       string
	Folder    string // the one in the archive
}

// templates are the manifests, each with its place below the output folder.
var templates = map[string]string{
	"kith.rb.tmpl":                            "kith.rb",
	"winget/kith.kith.yaml.tmpl":              "winget/kith.kith.yaml",
	"winget/kith.kith.installer.yaml.tmpl":    "winget/kith.kith.installer.yaml",
	"winget/kith.kith.locale.en-US.yaml.tmpl": "winget/kith.kith.locale.en-US.yaml",
}

// finish writes the installer, the manifests and the checksums of everything.
func (r *release) finish(context.Context) error {
	installer, err := os.ReadFile(filepath.Join(r.source, "install.sh"))
	if err == nil {
		err = os.WriteFile(filepath.Join(r.out, "install.sh"), installer, 0o755)
	}
	if err == nil {
		err = r.manifests()
	}
	if err != nil {
		return err
	}
	return r.sums()
}

// manifests writes the manifests of the package managers.
func (r *release) manifests() error {
	m := manifest{Version: r.version, Date: r.date.Format("2006-01-02")}
	for _, os := range []struct{ goos, name string }{{"darwin", "macos"}, {"linux", "linux"}} {
		archives, err := r.archivesOf(os.goos, map[string]string{"amd64": "intel", "arm64": "arm"})
		if err != nil {
			return err
		}
		m.Systems = append(m.Systems, systemArchives{os.name, archives})
	}
	var err error
	if m.Windows, err = r.archivesOf("windows", map[string]string{"amd64": "x64", "arm64": "arm64"}); err != nil {
		return err
	}
	for from, to := range templates {
		t, err := template.New(filepath.Base(from)).Option("missingkey=error").ParseFiles(filepath.Join(r.source, "packaging", from))
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(r.out, to)), 0o755); err != nil {
			return err
		}
		if err := r.create(to, func(w io.Writer) error { return t.Execute(w, m) }); err != nil {
			return err
		}
	}
	return nil
}

// archivesOf lists a system's archives with their sums; names are the processors'.
func (r *release) archivesOf(goos string, names map[string]string) ([]archiveSum, error) {
	var out []archiveSum
	for _, t := range targets {
		if t.os != goos || t.slim {
			continue
		}
		sum, err := sumOf(filepath.Join(r.out, r.archiveName(t)))
		if err != nil {
			return nil, err
		}
		url := downloads + "/v" + r.version + "/" + r.archiveName(t)
		out = append(out, archiveSum{names[t.arch], url, sum, r.baseName(t)})
	}
	return out, nil
}

// sums writes the checksums of all files in the output folder.
func (r *release) sums() error {
	all, err := filesBelow(r.out)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, f := range sorted(all) {
		if f.isDir() || f.name == sumsFile {
			continue
		}
		sum, err := sumOf(f.from)
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%s  %s\n", sum, f.name)
	}
	return os.WriteFile(filepath.Join(r.out, sumsFile), []byte(text.String()), 0o644)
}
