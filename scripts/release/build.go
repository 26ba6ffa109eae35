package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// target is one build of the program.
type target struct {
	os, arch string
	slim     bool // without the built-in engine: the tag llama
}

// targets are all builds. Only for Linux there are libraries to embed; elsewhere the
// engine is a llama-server on the PATH, or libraries beside the binary.
var targets = []target{
	{"linux", "amd64", false},
	{"linux", "arm64", false},
	{"linux", "amd64", true},
	{"linux", "arm64", true},
	{"darwin", "amd64", false},
	{"darwin", "arm64", false},
	{"windows", "amd64", false},
	{"windows", "arm64", false},
}

// String names the target, as in "slim linux/arm64".
func (t target) String() string {
	if t.slim {
		return "slim " + t.os + "/" + t.arch
	}
	return t.os + "/" + t.arch
}

// libraries is the folder of the embedded libraries, from the repository's root; "" if
// the build has none.
func (t target) libraries() string {
	if t.os != "linux" || t.slim {
		return ""
	}
	return "internal/llama/lib/" + t.platform()
}

// platform is the name of the target where its libraries come from.
func (t target) platform() string {
	return t.os + "-" + map[string]string{"amd64": "x64", "arm64": "arm64"}[t.arch]
}

// binary is the file that build writes.
func (r *release) binary(t target) string {
	return filepath.Join(r.work, "bin", strings.ReplaceAll(t.String(), "/", "-"))
}

// build builds the program for the target, and fetches its libraries first.
func (r *release) build(ctx context.Context, t target) error {
	args := []string{"build", "-trimpath", "-buildvcs=true", "-ldflags", "-s -w -X github.com/kith/kith/internal/cli.Version=" + r.version}
	if !t.slim {
		args = append(args, "-tags", "llama")
	}
	if t.libraries() != "" {
		if err := r.command(ctx, nil, "scripts/fetch-llama.sh", t.platform()); err != nil {
			return err
		}
	}
	env := []string{"CGO_ENABLED=0", "GOFLAGS=", "GOOS=" + t.os, "GOARCH=" + t.arch}
	return r.command(ctx, env, "go", append(args, "-o", r.binary(t), "./cmd/kith")...)
}

// host is the target that runs here, without an engine.
func host() target { return target{os: runtime.GOOS, arch: runtime.GOARCH, slim: true} }

// buildDocs writes the man pages to man and the completions to completions.
func (r *release) buildDocs(ctx context.Context) error {
	if err := r.command(ctx, []string{"GOFLAGS="}, "go", "run", "./scripts/man", filepath.Join(r.work, "man")); err != nil {
		return err
	}
	if err := r.build(ctx, host()); err != nil {
		return err
	}
	folder := filepath.Join(r.work, "completions")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for shell, name := range map[string]string{"bash": "kith.bash", "zsh": "_kith", "fish": "kith.fish", "powershell": "kith.ps1"} {
		cmd := exec.CommandContext(ctx, r.binary(host()), "completion", shell)
		cmd.Env = append(os.Environ(), "KITH_HOME="+filepath.Join(r.work, "home"))
		text, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("cannot write the completions of %s: %w", shell, err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// command runs a command in the repository. An error holds its output.
func (r *release) command(ctx context.Context, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	if strings.Contains(name, "/") {
		cmd.Path, cmd.Err = filepath.Join(r.source, name), nil
	}
	cmd.Dir = r.source
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
