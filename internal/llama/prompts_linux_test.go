package llama

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// A prompt that does not fit on the disk is not kept, and nothing is left of it. The
// conversation goes on. The disk is full for a process of its own, whose files have a limit.
func TestFullDisk(t *testing.T) {
	const inChild = "KITH_TEST_FULL_DISK"
	if os.Getenv(inChild) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFullDisk$", "-test.v")
		cmd.Env = append(os.Environ(), inChild+"=1")
		out, err := cmd.CombinedOutput()
		assert.That(t, err == nil && strings.Contains(string(out), "--- PASS: TestFullDisk"), err, string(out))
		return
	}
	r := newCounted(t, 1)
	r.prompts = newTestStore(t, 1<<30)
	question := strings.Repeat("Tell me about the owl. ", 60)
	want, all := r.ask("ann", question)
	var limit syscall.Rlimit
	assert.OK(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit))
	assert.OK(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 64 << 10, Max: limit.Max}))
	r.unload()
	assert.OK(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit))
	assert.Equal(t, len(r.prompts.names(t)), 0, "files that were not completed")
	if text, computed := r.ask("ann", question); text != want || computed != all {
		t.Errorf("%d of %d tokens were computed; %q, want %q", computed, all, text, want)
	}
	r.unload()
	assert.Equal(t, len(r.prompts.names(t)), 1, "files once there is room")
}
