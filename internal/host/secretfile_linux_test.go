package host

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// TestSecretFileModes: the owner and the group may read a secret, no one else.
func TestSecretFileModes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	assert.OK(t, os.WriteFile(file, []byte("k"), 0o600))
	for mode, want := range map[os.FileMode]string{0o600: "", 0o400: "", 0o640: "", 0o440: "", 0o644: "mode 0644", 0o604: "chmod 600", 0o444: "chmod 640", 0o660: "mode 0660"} {
		assert.OK(t, os.Chmod(file, mode))
		err := CheckSecretFile(file)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("mode %04o: %v, want %q", mode, err, want)
		}
	}
	if err := CheckSecretFile(file + ".none"); !os.IsNotExist(err) {
		t.Error(err)
	}
}

// TestMountedSecrets mounts secrets as orchestrators do, in a mount namespace of its own,
// where this test runs again.
func TestMountedSecrets(t *testing.T) {
	if dir := os.Getenv("KITH_TEST_MOUNTS"); dir != "" {
		checkMounts(t, dir)
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMountedSecrets$", "-test.v")
	cmd.Env = append(os.Environ(), "KITH_TEST_MOUNTS="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
	}
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) == 0 {
		t.Skipf("users of this computer cannot make namespaces: %v", err)
	}
	assert.That(t, err == nil && strings.Contains(string(out), "--- PASS"), err, out)
}

func checkMounts(t *testing.T, dir string) {
	bind := func(from, to string, readOnly bool) {
		t.Helper()
		err := syscall.Mount(from, to, "", syscall.MS_BIND, "")
		if err == nil && readOnly {
			err = syscall.Mount("", to, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
		}
		assert.OK(t, err)
	}
	tmpfs := func(to, options string) {
		t.Helper()
		assert.OK(t, syscall.Mount("tmpfs", to, "tmpfs", 0, options))
	}
	at := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
	write := func(name string, mode os.FileMode) string {
		t.Helper()
		assert.OK(t, os.MkdirAll(filepath.Dir(name), 0o700))
		assert.OK(t, os.WriteFile(name, []byte("k"), 0o600))
		assert.OK(t, os.Chmod(name, mode))
		return name
	}
	compose, writable := write(at("compose"), 0o644), write(at("writable"), 0o644)
	bind(compose, compose, true)
	bind(writable, writable, false)
	folder := write(at("with a space", "url"), 0o664)
	bind(filepath.Dir(folder), filepath.Dir(folder), true)
	for _, name := range []string{"kubernetes", "everyones", "changeable"} {
		assert.OK(t, os.Mkdir(at(name), 0o755))
	}
	tmpfs(at("kubernetes"), "mode=0755")
	linked := write(at("kubernetes", "..2026", "url"), 0o644)
	assert.OK(t, os.Symlink("..2026/url", at("kubernetes", "url")))
	tmpfs(at("everyones"), "mode=1777")
	tmpfs(at("changeable"), "mode=0755")
	readOnly, memory := "accepted since it is on a mount of its own that is read-only, ", "accepted since it is on a tmpfs of its own, "+at("kubernetes")
	for file, accepted := range map[string]string{
		compose: "mode 0644 gives others access, and it is " + readOnly + compose, folder: readOnly + filepath.Dir(folder),
		at("kubernetes", "url"): memory, linked: memory,
		writable: "", write(at("everyones", "url"), 0o644): "", write(at("changeable", "url"), 0o666): "",
	} {
		err, why := CheckSecretFile(file), WhyAccepted(file)
		if (err == nil) != (accepted != "") || !strings.HasSuffix(why, accepted) || accepted == "" && why != "" {
			t.Errorf("%s: %v, %q; want %q", file, err, why, accepted)
		}
	}
	assert.Equal(t, WhyAccepted(write(at("kubernetes", "own"), 0o640)), "", "a mode that gives others nothing")
}
