//go:build unix

package store

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// TestReadOnlyFile checks that a hub with a read-only database file fails at the start.
// Root can write every file, so as root it runs the test as another user.
func TestReadOnlyFile(t *testing.T) {
	if os.Geteuid() == 0 {
		asAnotherUser(t, "^TestReadOnlyFile$")
		return
	}
	path := filepath.Join(t.TempDir(), "kith.db")
	db := assert.Value(Open(t.Context(), Config{Path: path}))(t)
	assert.OK(t, db.Close())
	assert.OK(t, os.Chmod(path, 0o400))
	if _, err := Open(t.Context(), Config{Path: path}); err == nil || !strings.Contains(err.Error(), "cannot use the database "+path+": it cannot be written; check") {
		t.Errorf("opened: %v", err)
	}
}

// asAnotherUser runs tests of this program in a process of an unprivileged user, in that
// user's folder, because others cannot read the folder of programs built by go test.
func asAnotherUser(t *testing.T, tests string) {
	t.Helper()
	const user = 65534
	folder, err := os.MkdirTemp("", "kith-test-")
	assert.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(folder) })
	program := filepath.Join(folder, "store.test")
	self, err := os.Executable()
	assert.OK(t, err)
	text, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(program, text, 0o755)
	}
	if err == nil {
		err = os.Chown(folder, user, user)
	}
	assert.OK(t, err)
	other := exec.CommandContext(t.Context(), program, "-test.v", "-test.run="+tests)
	other.Dir, other.Env = folder, append(os.Environ(), "TMPDIR="+folder)
	other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	if out, err := other.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: ") {
		t.Errorf("%v\n%s", err, out)
	}
}
