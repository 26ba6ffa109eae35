//go:build unix

package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A fake inhibitor writes its process id to a pipe when it begins, and a second
// line when its input has ended.
const inhibitor = `echo $$ >&3; cat; echo over >&3`

// keeper runs a Vigil whose command is a script with the pipe as its third file;
// said gets its lines.
func keeper(t *testing.T, script string) (v *Vigil, said <-chan string, troubles <-chan error, stop func()) {
	t.Helper()
	pipe := filepath.Join(t.TempDir(), "said")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
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
	v = &Vigil{Command: []string{"sh", "-c", "exec 3>" + pipe + "; " + script}, Trouble: func(err error) { failed <- err }}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	return v, lines, failed, stop
}

func next[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(30 * time.Second):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// One program is there from the first hold to a while after the last release,
// however many hold; the next hold begins another.
func TestVigil(t *testing.T) {
	v, said, _, stop := keeper(t, inhibitor)
	one, two := v.Hold(), v.Hold()
	first := next(t, said)
	one()
	two()
	again := v.Hold() // within the lingering
	released := time.Now()
	again()
	if got := next(t, said); got != "over" {
		t.Fatalf("said %q, want one program for all", got)
	}
	if took := time.Since(released); took < lingering {
		t.Errorf("ended %v after the last release, want %v", took, lingering)
	}
	defer v.Hold()()
	if second := next(t, said); second == first || second == "over" {
		t.Errorf("said %q, want a new program", second)
	}
	stop()
	if got := next(t, said); got != "over" {
		t.Errorf("said %q, want the end with Run's", got)
	}
}

// A command that fails is told once, in its own words, and is not tried for
// every answer.
func TestVigilThatFails(t *testing.T) {
	v, said, troubles, stop := keeper(t, `echo tried >&3; echo "no bus here" >&2; exit 1`)
	for range 3 {
		v.Hold()()
	}
	release := v.Hold()
	defer release()
	if err := next(t, troubles); !strings.Contains(err.Error(), "no bus here") || !strings.HasPrefix(err.Error(), "cannot keep this computer awake") {
		t.Errorf("told %v", err)
	}
	next(t, said)
	v.Hold()()
	stop()
	if len(said) != 0 || len(troubles) != 0 {
		t.Errorf("tried again at once: %d times, %d troubles", len(said), len(troubles))
	}
}

// A program that is not there, and none at all, harm nothing.
func TestVigilWithoutProgram(t *testing.T) {
	told := make(chan error, 1)
	v := &Vigil{Command: []string{filepath.Join(t.TempDir(), "absent")}, Trouble: func(err error) { told <- err }}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	v.Hold()
	if err := next(t, told); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("told %v", err)
	}
	cancel()
	next(t, ended)
	none := new(Vigil)
	none.Hold()()
	if err := none.Run(t.Context()); err != nil {
		t.Error(err)
	}
}

// The computer may sleep again when kith was killed: its end of the pipe closes
// by itself, and with it the program's input. This is that end.
func TestVigilEndsWithItsProcess(t *testing.T) {
	v, said, _, stop := keeper(t, inhibitor)
	defer stop()
	defer v.Hold()()
	pid := next(t, said)
	target, err := os.Readlink("/proc/" + pid + "/fd/0")
	if err != nil {
		return // not Linux
	}
	if !strings.HasPrefix(target, "pipe:") {
		t.Errorf("the program's input is %s, want a pipe of this process", target)
	}
}

func TestAwakeCommand(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	booted := stage(t, map[string]string{"run/systemd/system/x": ""})
	if got := booted.AwakeCommand(); got != nil {
		t.Errorf("without the program: %q", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "systemd-inhibit"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := booted.AwakeCommand(); len(got) == 0 || got[len(got)-1] != "cat" {
		t.Errorf("the command is %q", got)
	}
	if got := stage(t, nil).AwakeCommand(); got != nil {
		t.Errorf("on a system without logind: %q", got)
	}
}
