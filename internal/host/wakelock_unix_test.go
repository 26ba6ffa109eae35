//go:build unix

package host

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// inhibitor writes its process id to a pipe when it starts, and a second line when
// its input ends.
const inhibitor = `echo $$ >&3; cat; echo over >&3`

// runWakelock runs a Wakelock whose command is a script with the pipe as its third
// file. output receives its lines.
func runWakelock(t *testing.T, script string) (w *Wakelock, output <-chan string, failures <-chan error, stop func()) {
	t.Helper()
	pipe := filepath.Join(t.TempDir(), "lines")
	assert.OK(t, syscall.Mkfifo(pipe, 0o600))
	file := assert.Value(os.OpenFile(pipe, os.O_RDWR, 0))(t)
	t.Cleanup(func() { file.Close() })
	lines := make(chan string, 16)
	go func() {
		buffer := make([]byte, 256)
		for {
			n, err := file.Read(buffer)
			if err != nil {
				return
			}
			for line := range strings.Lines(string(buffer[:n])) {
				lines <- strings.TrimSpace(line)
			}
		}
	}()
	failed := make(chan error, 16)
	w = &Wakelock{Command: []string{"sh", "-c", "exec 3>" + pipe + "; " + script}, OnError: func(err error) { failed <- err }}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	return w, lines, failed, stop
}

func next[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(2 * time.Minute):
		t.Fatal("nothing arrived")
		panic("unreachable")
	}
}

// One program runs from the first hold until idleTime after the last release,
// however many holds there are. The next hold starts another.
func TestWakelock(t *testing.T) {
	t.Parallel()
	w, lines, _, stop := runWakelock(t, inhibitor)
	one, two := w.Hold(), w.Hold()
	first := next(t, lines)
	one()
	two()
	again := w.Hold() // within idleTime
	released := time.Now()
	again()
	if got := next(t, lines); got != "over" {
		t.Fatalf("the program wrote %q, want one program for all", got)
	}
	if took := time.Since(released); took < idleTime {
		t.Errorf("ended %v after the last release, want %v", took, idleTime)
	}
	defer w.Hold()()
	if second := next(t, lines); second == first || second == "over" {
		t.Errorf("the program wrote %q, want a new program", second)
	}
	stop()
	assert.Equal(t, next(t, lines), "over", "the program wrote")
}

// A command that fails is reported once, with its output, and is not run for
// every answer.
func TestWakelockThatFails(t *testing.T) {
	w, lines, failures, stop := runWakelock(t, `echo tried >&3; echo "no bus here" >&2; exit 1`)
	for range 3 {
		w.Hold()()
	}
	release := w.Hold()
	defer release()
	if err := next(t, failures); !strings.Contains(err.Error(), "no bus here") || !strings.HasPrefix(err.Error(), "cannot keep this computer awake") {
		t.Errorf("reported %v", err)
	}
	next(t, lines)
	w.Hold()()
	stop()
	if len(lines) != 0 || len(failures) != 0 {
		t.Errorf("tried again at once: %d times, %d failures", len(lines), len(failures))
	}
}

// A missing program is reported, and no program at all does nothing.
func TestWakelockWithoutProgram(t *testing.T) {
	failed := make(chan error, 1)
	w := &Wakelock{Command: []string{filepath.Join(t.TempDir(), "absent")}, OnError: func(err error) { failed <- err }}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	w.Hold()
	assert.Is(t, next(t, failed), os.ErrNotExist, "reported")
	cancel()
	next(t, ended)
	none := new(Wakelock)
	none.Hold()()
	if err := none.Run(t.Context()); err != nil {
		t.Error(err)
	}
}

// The computer may sleep again when kith is killed: the pipe that is the program's
// input closes with this process.
func TestWakelockEndsWithItsProcess(t *testing.T) {
	w, lines, _, stop := runWakelock(t, inhibitor)
	defer stop()
	defer w.Hold()()
	pid := next(t, lines)
	target, err := os.Readlink("/proc/" + pid + "/fd/0")
	if err != nil {
		return // not Linux
	}
	assert.That(t, strings.HasPrefix(target, "pipe:"), "the program's input", target)
}

func TestAwakeCommand(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	booted := stage(t, map[string]string{"run/systemd/system/x": ""})
	if got := booted.AwakeCommand(); got != nil {
		t.Errorf("without the program: %q", got)
	}
	assert.OK(t, os.WriteFile(filepath.Join(dir, "systemd-inhibit"), []byte("#!/bin/sh\n"), 0o700))
	if got := booted.AwakeCommand(); len(got) == 0 || got[len(got)-1] != "cat" {
		t.Errorf("the command is %q", got)
	}
	if got := stage(t, nil).AwakeCommand(); got != nil {
		t.Errorf("on a system without logind: %q", got)
	}
}
