package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A commit with a release's tag has its version; any other one comes before the release
// in VERSION, and has its commit.
func TestVersionOfACommit(t *testing.T) {
	folder := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("git", append([]string{"-C", folder, "-c", "user.name=a", "-c", "user.email=a@example.org"}, args...)...).Output()
		ok(t, err, "git", args)
		return strings.TrimSpace(string(out))
	}
	is := func(want string) {
		t.Helper()
		r := &release{source: folder}
		if err := r.describe(t.Context()); err != nil || r.version != want {
			t.Errorf("%q, %v, and not %q", r.version, err, want)
		}
	}
	git("init", "-q")
	write(t, filepath.Join(folder, "VERSION"), "1.1.0\n", 0o644)
	git("add", ".")
	git("commit", "-q", "-m", "first")
	dev := "1.1.0-dev.g" + git("rev-parse", "HEAD")[:12]
	is(dev)
	git("tag", "v1.1.0")
	is("1.1.0")
	write(t, filepath.Join(folder, "VERSION"), "1.2.0\n", 0o644)
	is(strings.Replace(dev, "1.1.0", "1.2.0", 1) + ".modified")
}
