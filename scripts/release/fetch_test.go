//go:build linux

package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fetch runs scripts/fetch-llama.sh in a folder of its own, with these programs alone.
func fetch(t *testing.T, registry, system string, programs ...string) (string, error) {
	t.Helper()
	folder, tools := t.TempDir(), t.TempDir()
	for _, name := range []string{"fetch-llama.sh", "progress.sh"} {
		text := value(os.ReadFile(filepath.Join(repository(t), "scripts", name)))(t)
		write(t, filepath.Join(folder, "scripts", name), string(text), 0o755)
	}
	write(t, filepath.Join(tools, "uname"), "#!/bin/sh\n[ \"$1\" = -s ] && echo "+strings.Replace(system, "-", " || echo ", 1)+"\n", 0o755)
	for _, name := range append(programs, "bash", "sh", "dirname", "cat", "rm", "mkdir", "mktemp", "sleep", "wc", "tail", "tr", "grep", "base64", "od", "sha512sum", "cut", "env") {
		path := value(exec.LookPath(name))(t)
		ok(t, os.Symlink(path, filepath.Join(tools, name)))
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(folder, "scripts/fetch-llama.sh"))
	cmd.Env = []string{"PATH=" + tools, "npm_config_registry=" + registry}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestFetch: without npm the libraries are fetched with curl from the registry's address
// of the pinned file, and refused if they are not that file. Where none are pinned, as
// on a Mac, the build goes on, and one line says what to install.
func TestFetch(t *testing.T) {
	asked := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Path
		_, _ = w.Write([]byte("another file"))
	}))
	defer server.Close()
	out, err := fetch(t, server.URL+"/", "Linux-x86_64", "curl")
	if err == nil || !strings.Contains(out, "fetching llama.cpp's libraries for linux-x64 (curl)\n") || !strings.Contains(out, "is not what the pin says: sha512 ") {
		t.Errorf("%v\n%s", err, out)
	}
	if want := "/@node-llama-cpp/linux-x64/-/linux-x64-"; !strings.HasPrefix(asked, want) || !strings.HasSuffix(asked, ".tgz") {
		t.Errorf("it asked for %s, not %s….tgz", asked, want)
	}
	if out, err = fetch(t, server.URL, "Linux-x86_64"); err == nil || !strings.Contains(out, "there is neither npm nor curl; install one") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err = fetch(t, server.URL, "Darwin-arm64"); err != nil || !strings.Contains(out, "brew install llama.cpp") || strings.Count(out, "\n") != 1 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestProgressScript: a command that takes long is not silent, its output is shown only
// if it fails, and its exit status is kept.
func TestProgressScript(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	run := func(script string) (string, error) {
		file, err := os.Create(out)
		ok(t, err)
		defer file.Close()
		cmd := exec.CommandContext(t.Context(), filepath.Join(repository(t), "scripts/progress.sh"), "building", "sh", "-c", script)
		cmd.Env = append(os.Environ(), "KITH_PROGRESS_EVERY=0.05", "OUT="+out)
		cmd.Stdout, cmd.Stderr = file, file
		err = cmd.Run()
		text, _ := os.ReadFile(out)
		return string(text), err
	}
	text, err := run(`echo example.org/package; until grep -q 'so far, 1 done, last example.org/package' "$OUT"; do sleep 0.01; done`)
	if err != nil || !strings.HasPrefix(text, "building\nbuilding: ") {
		t.Errorf("%v\n%s", err, text)
	}
	text, err = run(`echo example.org/package; echo 'main.go:1:2: undefined: x'; exit 3`)
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 3 || !strings.HasSuffix(text, "building\nmain.go:1:2: undefined: x\n") {
		t.Errorf("%v\n%s", err, text)
	}
}
