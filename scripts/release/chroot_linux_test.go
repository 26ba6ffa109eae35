package main

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
)

// root is a root folder: the computer's own files below an empty layer, which takes all
// changes.
type root struct {
	t      *testing.T
	folder string
}

// newRoot mounts the root until the end of the test. It needs to be root.
func newRoot(t *testing.T) *root {
	t.Helper()
	needRoot(t)
	layers := t.TempDir()
	r := &root{t, filepath.Join(layers, "root")}
	for _, name := range []string{"upper", "work", "root"} {
		ok(t, os.Mkdir(filepath.Join(layers, name), 0o755))
	}
	options := "lowerdir=/,upperdir=" + layers + "/upper,workdir=" + layers + "/work"
	if err := syscall.Mount("overlay", r.folder, "overlay", 0, options); err != nil {
		t.Fatalf("cannot mount an overlay file system: %v; a container needs the capability SYS_ADMIN for it", err)
	}
	t.Cleanup(func() {
		// A program's own children may end a moment after it, and keep the root busy until then.
		err := syscall.Unmount(r.folder, 0)
		for limit := time.Now().Add(30 * time.Second); err == syscall.EBUSY && time.Now().Before(limit); err = syscall.Unmount(r.folder, 0) {
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil {
			t.Errorf("cannot unmount the test's root: %v; programs in it: %v", err, r.programs())
		}
	})
	return r
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("only root can change to another root folder: run `make test`, which uses sudo for these tests, or `go test -exec sudo .`")
	}
}

// programs are the programs that run in the root, by process id.
func (r *root) programs() map[string]string {
	found := map[string]string{}
	links, _ := filepath.Glob("/proc/[0-9]*/root")
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && to == r.folder {
			process := filepath.Dir(link)
			name, _ := os.ReadFile(filepath.Join(process, "comm"))
			found[filepath.Base(process)] = strings.TrimSpace(string(name))
		}
	}
	return found
}

// path is a path in the root, from outside.
func (r *root) path(name string) string { return filepath.Join(r.folder, name) }

// run runs a command in the root and returns its output.
func (r *root) run(args ...string) string {
	r.t.Helper()
	program, err := exec.LookPath(args[0])
	if err != nil && args[0] != "kith" {
		r.t.Fatal(err)
	}
	if args[0] == "kith" {
		program = "/usr/bin/kith"
	}
	cmd := exec.CommandContext(r.t.Context(), program, args[1:]...)
	cmd.Err = nil
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: r.folder}
	var errors strings.Builder
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("%s: %v\n%s%s", strings.Join(args, " "), err, out, errors.String())
	}
	return string(out)
}

// TestRootOutlivesItsPrograms: the root stays until what still runs in it has ended, as the
// engine of a killed daemon does a moment later.
func TestRootOutlivesItsPrograms(t *testing.T) {
	needRoot(t)
	sleep := exec.Command("/bin/sleep", "0.3")
	t.Run("root", func(t *testing.T) {
		sleep.SysProcAttr = &syscall.SysProcAttr{Chroot: newRoot(t).folder}
		ok(t, sleep.Start())
	})
	if err := sleep.Wait(); err != nil {
		t.Error(err)
	}
}

// hubLine is the line in which a hub prints its address.
var hubLine = regexp.MustCompile(`hub on (http://127\.0\.0\.1:\d+)/v1`)

// TestImageRuns: the hub's image, unpacked, serves: with its own user, in a root where
// there is nothing else, in new namespaces, and it ends on SIGTERM.
func TestImageRuns(t *testing.T) {
	needRoot(t)
	binary := built(t)
	r := fakeRelease(t, "1.2.3")
	data := value(os.ReadFile(binary))(t)
	write(t, r.binary(host()), string(data), 0o755)
	if err := r.image(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.checkImage(); err != nil {
		t.Fatal(err)
	}
	index, err := r.readImage(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	images, err := partial.FindImages(index, anything)
	if err != nil {
		t.Fatal(err)
	}
	config := unpackImage(t, images, folder)
	if len(config.Entrypoint) != 1 || config.User != "65532:65532" {
		t.Fatalf("%+v", config)
	}
	if pem, err := os.ReadFile(filepath.Join(folder, "etc/ssl/certs/ca-certificates.crt")); err != nil || strings.Count(string(pem), "BEGIN CERTIFICATE") < 100 {
		t.Errorf("there are few authorities: %d bytes (%v)", len(pem), err)
	}
	cmd := exec.CommandContext(t.Context(), config.Entrypoint[0], "hub", "--listen", "127.0.0.1:0", "--admin", "")
	cmd.Err = nil
	cmd.Dir, cmd.Env = config.WorkingDir, config.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Chroot: folder, Credential: &syscall.Credential{Uid: imageUser, Gid: imageUser},
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC,
	}
	var log strings.Builder
	cmd.Stderr = &log
	out := value(cmd.StdoutPipe())(t)
	if err := cmd.Start(); err != nil {
		t.Fatalf("cannot make namespaces: %v; a container needs the capability SYS_ADMIN for them", err)
	}
	address := ""
	for lines := bufio.NewScanner(out); address == "" && lines.Scan(); {
		if m := hubLine.FindStringSubmatch(lines.Text()); m != nil {
			address = m[1]
		}
	}
	if address == "" {
		t.Errorf("the hub does not start: %v\n%s", cmd.Wait(), log.String())
		return
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	req := value(http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/v1/models", nil))(t)
	if res, err := http.DefaultClient.Do(req); err != nil || res.StatusCode != http.StatusUnauthorized {
		t.Errorf("a call without a key: %+v (%v)", res, err)
	} else {
		res.Body.Close()
	}
	check := exec.CommandContext(t.Context(), config.Healthcheck.Test[1], config.Healthcheck.Test[2:]...)
	check.Err, check.Dir, check.Env = nil, cmd.Dir, cmd.Env
	check.SysProcAttr = &syscall.SysProcAttr{Chroot: folder, Credential: cmd.SysProcAttr.Credential}
	if out, err := check.CombinedOutput(); err != nil || string(out) != "the hub serves calls\n" {
		t.Errorf("the image's health check: %v %s", err, out)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the hub's end: %v\n%s", err, log.String())
	}
}

// unpackImage unpacks this processor's image and returns its configuration.
func unpackImage(t *testing.T, images []v1.Image, folder string) v1.Config {
	t.Helper()
	ok(t, os.Chmod(folder, 0o755))
	for _, image := range images {
		config := value(image.ConfigFile())(t)
		if config.Architecture != runtime.GOARCH {
			continue
		}
		layers := value(image.Layers())(t)
		for _, layer := range layers {
			in, err := layer.Uncompressed()
			if err == nil {
				err = unpackTar(in, folder)
			}
			ok(t, err)
		}
		return config.Config
	}
	t.Fatalf("there is no image for %s", runtime.GOARCH)
	return v1.Config{}
}
