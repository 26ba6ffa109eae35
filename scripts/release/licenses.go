package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// licensesName is the file with the licences of what is not kith's own.
const licensesName = "THIRD_PARTY_LICENSES"

// licensesFile is where licenses writes it.
func (r *release) licensesFile() string { return filepath.Join(r.work, licensesName) }

// llamaLicense is the file with llama.cpp's own licence: the packages that its libraries
// come from have only the licence of node-llama-cpp.
func (r *release) llamaLicense() string {
	return filepath.Join(r.source, "packaging", "LICENSE.llama.cpp")
}

// work is something that builds hold and that is not kith's own.
type work struct {
	name  string   // with its version
	files []string // with its licence, and notices
	note  string
}

// licenses is writeLicenses for all targets.
func (r *release) licenses(ctx context.Context) error { return r.writeLicenses(ctx, targets) }

// writeLicenses writes the licences of all that the builds, or the image, hold: the modules
// whose packages are linked, Go's own library, llama.cpp, and the files of the site.
func (r *release) writeLicenses(ctx context.Context, targets []target) error {
	modules := map[string]map[string]bool{} // licence files of each
	for _, t := range targets {
		if err := r.linkedModules(ctx, t, modules); err != nil {
			return err
		}
	}
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("cannot find Go's own files: %w", err)
	}
	root := strings.TrimSpace(string(out))
	works := []work{{name: "Go " + runtime.Version() + ", its library", files: []string{filepath.Join(root, "LICENSE"), filepath.Join(root, "PATENTS")}}}
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		if len(modules[name]) == 0 {
			return fmt.Errorf("the module %s has no licence file", name)
		}
		works = append(works, work{name: name, files: slices.Sorted(maps.Keys(modules[name]))})
	}
	for _, t := range targets {
		if folder := t.libraries(); folder != "" {
			works = append(works, work{
				name:  "llama.cpp's libraries, as packaged in @node-llama-cpp/" + t.platform(),
				files: []string{r.llamaLicense(), filepath.Join(r.source, folder, "LICENSE")},
			})
		}
	}
	works = append(works,
		work{name: "the site's scripts, font and icons", files: []string{filepath.Join(r.source, "internal/site/static/LICENSES.md")}},
		work{name: "the certificates in the image of the hub", note: "the authorities that Mozilla trusts, from its list under the Mozilla Public License 2.0, https://mozilla.org/MPL/2.0/"})
	text, err := licensesText(works)
	if err != nil {
		return err
	}
	return os.WriteFile(r.licensesFile(), text, 0o644)
}

// linkedModules adds the modules of the target's packages to modules, with the licence
// files in the folders of the packages and in those above, up to the module's own.
func (r *release) linkedModules(ctx context.Context, t target, modules map[string]map[string]bool) error {
	args := []string{"list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}\t{{.Dir}}\t{{$.Dir}}{{end}}{{end}}"}
	if !t.slim {
		args = append(args, "-tags", "llama")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/kith")...)
	cmd.Dir = r.source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOOS="+t.os, "GOARCH="+t.arch)
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("cannot list the packages of %s: %w", t, err)
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if len(fields) != 3 {
			return fmt.Errorf("cannot read the list of packages: %q", line)
		}
		module, top := fields[0], fields[1]
		if modules[module] == nil {
			modules[module] = map[string]bool{}
		}
		for folder := fields[2]; strings.HasPrefix(folder, top); folder = filepath.Dir(folder) {
			for _, file := range licenseFiles(folder) {
				modules[module][file] = true
			}
		}
	}
	return nil
}

var licenseName = regexp.MustCompile(`(?i)^(licen[cs]es?|copying|copyright|notice|patents|unlicense)([-._][a-z0-9._-]*)?$`)

// licenseFiles returns the files of a folder that hold a licence or a notice.
func licenseFiles(folder string) (files []string) {
	entries, _ := os.ReadDir(folder) // go list has just read it
	for _, e := range entries {
		if !e.IsDir() && licenseName.MatchString(e.Name()) && filepath.Ext(e.Name()) != ".go" {
			files = append(files, filepath.Join(folder, e.Name()))
		}
	}
	return files
}

// licensesText lists the works, each with the numbers of its texts, and then each text
// once.
func licensesText(works []work) ([]byte, error) {
	var list, texts bytes.Buffer
	numbers := map[string]int{}
	for _, w := range works {
		var refs []string
		for _, name := range w.files {
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, fmt.Errorf("cannot read the licence of %s: %w", w.name, err)
			}
			body := strings.TrimSpace(strings.ReplaceAll(string(text), "\r\n", "\n"))
			if numbers[body] == 0 {
				numbers[body] = len(numbers) + 1
				fmt.Fprintf(&texts, "\n\n==== [%d]\n\n%s\n", numbers[body], body)
			}
			if ref := fmt.Sprintf("[%d]", numbers[body]); !slices.Contains(refs, ref) {
				refs = append(refs, ref)
			}
		}
		if w.note != "" {
			refs = append(refs, "("+w.note+")")
		}
		fmt.Fprintf(&list, "%s  %s\n", w.name, strings.Join(refs, " "))
	}
	head := "kith is under the Apache License 2.0, in LICENSE. It holds these works of others, not every one of them in each build.\n" +
		"The numbers are those of the texts below.\n\n"
	return slices.Concat([]byte(head), list.Bytes(), texts.Bytes()), nil
}

// checkLicenses reports an error unless each module that is linked into a binary is in the
// list of licences.
func (r *release) checkLicenses() error {
	text, err := os.ReadFile(r.licensesFile())
	if err != nil {
		return err
	}
	for _, t := range targets {
		info, err := buildinfo.ReadFile(r.binary(t))
		if err != nil {
			return err
		}
		for _, module := range info.Deps {
			if !strings.Contains(string(text), "\n"+module.Path+" "+module.Version+"  [") {
				return fmt.Errorf("%s holds no licence of %s %s, which %s links", licensesName, module.Path, module.Version, t)
			}
		}
	}
	return nil
}
