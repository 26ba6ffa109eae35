//go:build linux

package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sassoftware/go-rpmutils"
)

// packaged are the files of a package, with their modes.
var packaged = []string{
	"/etc/kith/hub.toml 0600",
	"/usr/bin/kith 0755",
	"/usr/lib/systemd/system/kith-hub.service 0644",
	"/usr/lib/systemd/user/kith.service 0644",
	"/usr/lib/sysusers.d/kith.conf 0644",
	"/usr/share/bash-completion/completions/kith 0644",
	"/usr/share/doc/kith/CHANGELOG.md 0644",
	"/usr/share/doc/kith/LICENSE 0644",
	"/usr/share/doc/kith/THIRD_PARTY_LICENSES 0644",
	"/usr/share/fish/vendor_completions.d/kith.fish 0644",
	"/usr/share/man/man1/kith-hub.1.gz 0644",
	"/usr/share/man/man1/kith.1.gz 0644",
}

// debFiles are packaged, and what only Debian's package holds.
func debFiles() []string {
	return append(slices.Clone(packaged), "/usr/share/doc/kith/copyright 0644", "/usr/share/zsh/vendor-completions/_kith 0644")
}

// makeDeb writes the deb of a fake release for this computer and returns its path.
func makeDeb(t *testing.T, version string) string {
	t.Helper()
	r := fakeRelease(t, version)
	arch, err := exec.CommandContext(t.Context(), "dpkg", "--print-architecture").Output()
	if err != nil {
		t.Fatalf("cannot run dpkg: %v; these tests need Debian or Ubuntu", err)
	}
	name, err := r.makePackage("deb", strings.TrimSpace(string(arch)), r.binary(host()))
	ok(t, err)
	return filepath.Join(r.out, name)
}

func TestDebContents(t *testing.T) {
	deb := makeDeb(t, "1.2.3")
	out := value(exec.CommandContext(t.Context(), "dpkg-deb", "--ctrl-tarfile", deb).Output())(t)
	control, folder := t.TempDir(), t.TempDir()
	ok(t, unpackTar(strings.NewReader(string(out)), control))
	for name, want := range map[string]string{
		"conffiles": "/etc/kith/hub.toml\n", "control": "Depends: libc6 (>= 2.34), libstdc++6", "postinst": "systemd-sysusers", "prerm": "disable --now", "postrm": "purge",
	} {
		if text, err := os.ReadFile(filepath.Join(control, name)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s is %q (%v), without %q", name, text, err, want)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "-x", deb, folder).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	compare(t, listFiles(t, folder), debFiles())
}

func TestRPMContents(t *testing.T) {
	r := fakeRelease(t, "1.2.3")
	name := value(r.makePackage("rpm", "amd64", r.binary(targets[0])))(t)
	in := value(os.Open(filepath.Join(r.out, name)))(t)
	defer in.Close()
	rpm := value(rpmutils.ReadRpm(in))(t)
	files := value(rpm.Header.GetFiles())(t)
	var found []string
	for _, f := range files {
		found = append(found, fmt.Sprintf("%s %04o", f.Name(), f.Mode()&0o777))
		if config := f.Flags()&rpmutils.RPMFILE_CONFIG != 0; config != (f.Name() == "/etc/kith/hub.toml") || config && f.Flags()&rpmutils.RPMFILE_NOREPLACE == 0 {
			t.Errorf("%s has the flags %b", f.Name(), f.Flags())
		}
	}
	compare(t, found, append(slices.Clone(packaged), "/usr/share/zsh/site-functions/_kith 0644"))
	for tag, want := range map[int]string{rpmutils.POSTIN: "systemd-sysusers", rpmutils.PREUN: "disable --now", rpmutils.BUILDHOST: "kith", rpmutils.ARCH: "x86_64"} {
		if text, err := rpm.Header.GetString(tag); err != nil || !strings.Contains(text, want) {
			t.Errorf("tag %d is %q (%v), without %q", tag, text, err, want)
		}
	}
}

// TestPrerelease: a prerelease comes before its release in a package, and no name holds a
// character that sites for releases replace.
func TestPrerelease(t *testing.T) {
	deb := makeDeb(t, "1.3.0-rc.1")
	if name := filepath.Base(deb); !strings.HasPrefix(name, "kith_1.3.0-rc.1_") {
		t.Errorf("the package is named %s", name)
	}
	version, err := exec.CommandContext(t.Context(), "dpkg-deb", "-f", deb, "Version").Output()
	if err != nil || string(version) != "1.3.0~rc.1\n" {
		t.Errorf("its version is %q (%v)", version, err)
	}
	if out, err := exec.CommandContext(t.Context(), "dpkg", "--compare-versions", strings.TrimSpace(string(version)), "lt", "1.3.0").CombinedOutput(); err != nil {
		t.Errorf("it does not come before 1.3.0: %v %s", err, out)
	}
}

// TestDeb installs a package, upgrades it with a changed configuration, removes and
// purges it, with the computer's own dpkg in a root that sees the computer's files and
// keeps its changes apart.
func TestDeb(t *testing.T) {
	root := newRoot(t)
	_ = os.Remove(root.path("/var/lib/man-db/auto-update")) // dpkg would index all man pages of the computer
	first, second := makeDeb(t, "1.2.3"), makeDeb(t, "1.3.0")
	root.run("dpkg", "--force-unsafe-io", "-i", first)
	for _, name := range debFiles() {
		path, _, _ := strings.Cut(name, " ")
		if _, err := os.Stat(root.path(path)); err != nil && !strings.HasPrefix(path, "/usr/share/") {
			t.Error(err) // dpkg may be set to leave out documentation
		}
	}
	if got := root.run("kith", "version"); got != "kith 1.2.3\n" {
		t.Errorf("kith version: %q", got)
	}
	if got := root.run("stat", "-c", "%U %G %a", "/etc/kith/hub.toml"); got != "kith kith 600\n" {
		t.Errorf("hub.toml: %q", got)
	}
	if got := root.run("getent", "passwd", "kith"); !strings.Contains(got, ":/var/lib/kith:") {
		t.Errorf("the user: %q", got)
	}

	// What a hub leaves, and an operator changes.
	root.run("sh", "-c", "mkdir -p /var/lib/kith && echo data >/var/lib/kith/kith.db && echo 'region = \"mine\"' >>/etc/kith/hub.toml")
	root.run("dpkg", "--force-unsafe-io", "-i", second)
	if got := root.run("kith", "version"); got != "kith 1.3.0\n" {
		t.Errorf("kith version after the upgrade: %q", got)
	}
	if got := root.run("tail", "-n", "1", "/etc/kith/hub.toml"); got != "region = \"mine\"\n" {
		t.Errorf("after the upgrade the configuration ends with %q", got)
	}

	root.run("dpkg", "--force-unsafe-io", "-r", "kith")
	if _, err := os.Stat(root.path("/usr/bin/kith")); err == nil {
		t.Error("the program is there after the removal")
	}
	root.run("test", "-e", "/etc/kith/hub.toml", "-a", "-e", "/var/lib/kith/kith.db")

	root.run("dpkg", "--force-unsafe-io", "-P", "kith")
	for _, path := range []string{"/etc/kith", "/var/lib/kith", "/usr/share/doc/kith", "/usr/lib/systemd/system/kith-hub.service"} {
		if _, err := os.Lstat(root.path(path)); err == nil {
			t.Errorf("%s is there after the purge", path)
		}
	}
	root.run("sh", "-c", "! getent passwd kith && ! getent group kith")
	if got := root.run("sh", "-c", "dpkg -l kith 2>/dev/null | grep ' kith ' || true"); got != "" {
		t.Errorf("dpkg knows it after the purge: %s", got)
	}
}

// listFiles are the files below a folder, with their modes.
func listFiles(t *testing.T, folder string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			out = append(out, fmt.Sprintf("%s %04o", strings.TrimPrefix(name, folder), info.Mode().Perm()))
		}
		return err
	})
	ok(t, err)
	return out
}

func compare(t *testing.T, found, want []string) {
	t.Helper()
	slices.Sort(found)
	slices.Sort(want)
	if !slices.Equal(found, want) {
		t.Errorf("it holds\n%s\nand not\n%s", strings.Join(found, "\n"), strings.Join(want, "\n"))
	}
}
