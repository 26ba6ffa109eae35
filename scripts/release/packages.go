package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the format "deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // the format "rpm"
)

// formats are the packages' formats, with what the built-in engine needs there: glibc
// 2.34 and the C++ library.
var formats = map[string][]string{
	"deb": {"libc6 (>= 2.34)", "libstdc++6", "libgcc-s1", "ca-certificates", "passwd"},
	"rpm": {"glibc >= 2.34", "libstdc++", "libgcc", "ca-certificates", "shadow-utils"},
}

// packages writes a deb and an rpm for each processor.
func (r *release) packages(context.Context) error {
	for _, t := range targets {
		if t.libraries() == "" {
			continue
		}
		for format := range formats {
			if _, err := r.makePackage(format, t.arch, r.binary(t)); err != nil {
				return err
			}
		}
	}
	return nil
}

// makePackage writes one package of a binary and returns its file name.
func (r *release) makePackage(format, arch, binary string) (name string, err error) {
	contents, err := r.packageFiles(format, binary)
	if err != nil {
		return "", err
	}
	script := func(name string) string { return filepath.Join(r.source, "packaging", name) }
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "kith", Arch: arch, Version: r.version, Section: "net", Priority: "optional",
		Maintainer: "The kith authors", Vendor: "kith", Homepage: "https://github.com/kith/kith", License: "Apache-2.0",
		Description: "use and share the language models of your own machines\n" +
			"The daemon of a member's machine (kith.service, of the user) and the hub\n(kith-hub.service, which is not started before it is configured).",
		MTime: r.date, DisableGlobbing: true,
		Overridables: nfpm.Overridables{
			Depends: formats[format], Contents: contents,
			Scripts: nfpm.Scripts{PostInstall: script("postinstall.sh"), PreRemove: script("preremove.sh"), PostRemove: script("postremove.sh")},
			RPM:     nfpm.RPM{BuildHost: "kith", Summary: "use and share the language models of your own machines"},
		},
	})
	packager, err := nfpm.Get(format)
	if err != nil {
		return "", err
	}
	// Sites for releases allow no "~" in a name, which nfpm writes before a prerelease.
	name = strings.ReplaceAll(packager.ConventionalFileName(info), "~", "-")
	return name, r.create(name, func(w io.Writer) error {
		if err := nfpm.PrepareForPackager(info, format); err != nil {
			return err
		}
		return packager.Package(info, w)
	})
}

// packageFiles are the files of a package.
func (r *release) packageFiles(format, binary string) (files.Contents, error) {
	var out files.Contents
	add := func(to, from string, mode fs.FileMode, kind string) {
		out = append(out, &files.Content{
			Source: from, Destination: to, Type: kind,
			FileInfo: &files.ContentFileInfo{Mode: mode, Owner: "root", Group: "root", MTime: r.date},
		})
	}
	ours := func(name string) string { return filepath.Join(r.source, filepath.FromSlash(name)) }
	completions := func(name string) string { return filepath.Join(r.work, "completions", name) }
	zsh, license, doc := "/usr/share/zsh/site-functions/_kith", files.TypeRPMLicense, files.TypeRPMDoc
	if format == "deb" {
		license, doc = "", ""
		zsh = "/usr/share/zsh/vendor-completions/_kith"
		add("/usr/share/doc/kith/copyright", ours("packaging/copyright"), 0o644, "")
	}
	add("/usr/bin/kith", binary, 0o755, "")
	add("/usr/lib/systemd/system/kith-hub.service", ours("deploy/systemd/kith-hub.service"), 0o644, "")
	add("/usr/lib/systemd/user/kith.service", ours("deploy/systemd/kith.service"), 0o644, "")
	add("/usr/lib/sysusers.d/kith.conf", ours("deploy/systemd/kith.sysusers"), 0o644, "")
	add("/etc/kith/hub.toml", ours("packaging/hub.toml"), 0o600, files.TypeConfigNoReplace)
	add("/usr/share/bash-completion/completions/kith", completions("kith.bash"), 0o644, "")
	add(zsh, completions("_kith"), 0o644, "")
	add("/usr/share/fish/vendor_completions.d/kith.fish", completions("kith.fish"), 0o644, "")
	add("/usr/share/doc/kith/LICENSE", ours("LICENSE"), 0o644, license)
	add("/usr/share/doc/kith/"+licensesName, r.licensesFile(), 0o644, license)
	add("/usr/share/doc/kith/CHANGELOG.md", ours("CHANGELOG.md"), 0o644, doc)
	pages, err := r.manPages()
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return nil, err
		}
		var packed bytes.Buffer
		err = compress(&packed, func(w io.Writer) error { _, err := w.Write(text); return err })
		if err = errors.Join(err, os.WriteFile(page+".gz", packed.Bytes(), 0o644)); err != nil {
			return nil, err
		}
		add("/usr/share/man/man1/"+path.Base(filepath.ToSlash(page))+".gz", page+".gz", 0o644, "")
	}
	return out, nil
}
