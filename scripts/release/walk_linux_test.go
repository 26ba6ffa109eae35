package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestWalk goes from downloaded artifacts to the first answer, and logs how long each
// command takes (docs/install.md#how-long-it-takes): the hub is the static binary of an
// archive in a root folder where there is nothing else, the member's machine has the deb,
// the model comes from a model hub that the test plays.
func TestWalk(t *testing.T) {
	member := newRoot(t)
	archive, deb := realArtifacts(t)
	w := &walk{t: t}

	bare := t.TempDir()
	for _, name := range []string{"tmp", "data"} {
		ok(t, os.Mkdir(filepath.Join(bare, name), 0o700))
	}
	w.step("operator", "tar -xzf kith-slim_1.2.3_linux_"+runtime.GOARCH+".tar.gz", func() {
		ok(t, unpackTarGz(archive, bare))
	})
	program := "/" + strings.TrimSuffix(filepath.Base(archive), ".tar.gz") + "/kith"
	inBare := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Err, cmd.Dir, cmd.Env = nil, "/", []string{"KITH_HOME=/data", "HOME=/data"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: bare, Setpgid: true}
		return cmd
	}
	site := ""
	w.step("operator", "kith hub", func() {
		line := w.start(inBare("hub", "--listen", "127.0.0.1:0", "--admin", ""))
		if m := hubLine.FindStringSubmatch(line); m != nil {
			site = m[1]
		}
	})
	w.step("operator", "kith admin member create ada", func() { w.output(inBare("admin", "member", "create", "ada")) })
	token := strings.TrimSpace(w.output(inBare("admin", "machine", "token", "--member", "ada")))
	_, key, _ := strings.Cut(w.output(inBare("admin", "key", "create", "--member", "ada", "--json")), `"secret":"`)
	key, _, _ = strings.Cut(key, `"`)

	_ = os.Remove(member.path("/var/lib/man-db/auto-update")) // dpkg would index all man pages of the computer
	w.mount(member)
	write(t, member.path("/home/ada/.kith/config.toml"), "[daemon]\nlisten = \"127.0.0.1:0\"\n[discovery]\nenabled = false\n", 0o600)
	ok(t, os.Chmod(member.path("/home/ada/.kith"), 0o700))
	models := modelHub(t)
	inMember := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "/usr/bin/kith", args...)
		cmd.Err, cmd.Dir = nil, "/"
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/home/ada", "KITH_HOME=/home/ada/.kith", "KITH_SYSTEM_ROOT=/nowhere", "HF_ENDPOINT=" + models}
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: member.folder, Setpgid: true}
		return cmd
	}
	w.step("member", "apt install ./kith_1.2.3.deb", func() { member.run("dpkg", "--force-unsafe-io", "-i", deb) })
	w.step("member", "kith pull qwen3-0.6b", func() { w.output(inMember("pull", "qwen3-0.6b")) })
	w.step("member", "kith login", func() { w.output(inMember("login", "--hub", site, "--token", token)) })
	w.step("member", "kith serve", func() { w.start(inMember("serve")) })
	w.step("member", "curl, until it answers", func() { w.call(site, key) })
	w.report()
}

// walk measures the commands of a walk.
type walk struct {
	t     *testing.T
	lines []string
	sum   time.Duration
}

// step does what the command does, and keeps how long it took.
func (w *walk) step(role, command string, do func()) {
	w.t.Helper()
	begin := time.Now()
	do()
	took := time.Since(begin)
	w.sum += took
	w.lines = append(w.lines, fmt.Sprintf("| %s | `%s` | %.1f s |", role, command, took.Seconds()))
}

// report logs the table.
func (w *walk) report() {
	w.t.Logf("\n%s\n| | in all | %.1f s |", strings.Join(w.lines, "\n"), w.sum.Seconds())
}

// output runs a command and returns what it prints.
func (w *walk) output(cmd *exec.Cmd) string {
	w.t.Helper()
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, out, said.String())
	}
	return string(out)
}

// start starts a command that runs until the test's end, and returns its first line.
func (w *walk) start(cmd *exec.Cmd) string {
	w.t.Helper()
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	ok(w.t, err)
	ok(w.t, cmd.Start())
	w.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		if w.t.Failed() {
			w.t.Logf("%s:\n%s", strings.Join(cmd.Args, " "), said.String())
		}
	})
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if err != nil {
		w.t.Fatalf("%s printed nothing: %v", strings.Join(cmd.Args, " "), err)
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	return line
}

// mount gives a root what its programs need of the system: /proc and /dev.
func (w *walk) mount(r *root) {
	w.t.Helper()
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{{"proc", "/proc", "proc", 0}, {"/dev", "/dev", "", syscall.MS_BIND}} {
		ok(w.t, syscall.Mount(m.source, r.path(m.target), m.kind, m.flags, ""), "cannot mount", m.target)
		w.t.Cleanup(func() {
			if err := syscall.Unmount(r.path(m.target), syscall.MNT_DETACH); err != nil {
				w.t.Errorf("cannot unmount %s: %v", m.target, err)
			}
		})
	}
}

// call calls the model at the hub until it answers.
func (w *walk) call(site, key string) {
	w.t.Helper()
	said := ""
	for limit := time.Now().Add(2 * time.Minute); time.Now().Before(limit); {
		body := strings.NewReader(`{"model":"Qwen3-0.6B-Q8_0","messages":[{"role":"user","content":"What is the capital of France?"}]}`)
		req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, site+"/v1/chat/completions", body)
		ok(w.t, err)
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		ok(w.t, err)
		text, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode == http.StatusOK && bytes.Contains(text, []byte(`"content":"`)) {
			return
		}
		said = res.Status + " " + string(text)
		<-time.After(100 * time.Millisecond)
	}
	w.t.Fatalf("no answer within 2 min; the last one: %s", said)
}

// realArtifacts builds the archive of the static binary and the deb, as a release has
// them, for this computer.
func realArtifacts(t *testing.T) (archive, deb string) {
	t.Helper()
	r := fakeRelease(t, "1.2.3")
	full := host()
	full.slim = false
	build := &release{source: repository(t), work: t.TempDir(), version: "1.2.3"}
	for _, target := range []target{host(), full} {
		ok(t, build.build(t.Context(), target))
		data := value(os.ReadFile(build.binary(target)))(t)
		write(t, r.binary(target), string(data), 0o755)
	}
	ok(t, r.writeArchive(host()))
	name := value(r.makePackage("deb", runtime.GOARCH, r.binary(full)))(t)
	return filepath.Join(r.out, r.archiveName(host())), filepath.Join(r.out, name)
}

// modelHub serves the small model as the one file of every repository, as a model hub
// does, and returns its address.
func modelHub(t *testing.T) string {
	t.Helper()
	model := value(os.ReadFile(filepath.Join(repository(t), "internal/llama/data/tiny.gguf")))(t)
	sum := fmt.Sprintf("%x", sha256.Sum256(model))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/models/{org}/{repo}/tree/main", func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimSuffix(r.PathValue("repo"), "-GGUF")
		fmt.Fprintf(w, `[{"type":"file","oid":"1","path":"%s-Q8_0.gguf","size":%d,"lfs":{"oid":%q,"size":%[2]d,"pointerSize":134}}]`, name, len(model), sum)
	})
	mux.HandleFunc("GET /{org}/{repo}/resolve/main/{file}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"`+sum+`"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(model))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}
