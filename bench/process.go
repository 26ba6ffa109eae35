package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/shirou/gopsutil/v4/process"
)

// cpu is the user and system time that each of the processes has used so far.
func cpu(pids []int) []time.Duration {
	used := make([]time.Duration, len(pids))
	for i, pid := range pids {
		if times, err := (&process.Process{Pid: int32(pid)}).Times(); err == nil {
			used[i] = time.Duration((times.User + times.System) * float64(time.Second))
		}
	}
	return used
}

// children returns the child processes of a process.
func children(pid int) (pids []int) {
	for _, child := range must((&process.Process{Pid: int32(pid)}).Children()) {
		pids = append(pids, int(child.Pid))
	}
	return pids
}

// bench holds what a run started, so that all of it ends with the run.
type bench struct {
	dir   string
	self  string
	kith  string
	procs []*exec.Cmd
}

// start runs a process whose output goes to a file in the bench's folder, and returns its
// id.
func (b *bench) start(name string, env []string, program string, args ...string) int {
	log := must(os.Create(filepath.Join(b.dir, name+".log")))
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		check(fmt.Errorf("cannot start %s: %w", name, err))
	}
	b.procs = append(b.procs, cmd)
	return cmd.Process.Pid
}

// end stops everything the bench started.
func (b *bench) end() {
	for _, cmd := range b.procs {
		cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, cmd := range b.procs {
		kill := time.AfterFunc(3*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
		kill.Stop()
	}
	os.RemoveAll(b.dir)
}

// logs is what processes of the bench wrote, for an error message.
func (b *bench) logs(names ...string) string {
	var all strings.Builder
	for _, name := range names {
		text, _ := os.ReadFile(filepath.Join(b.dir, name+".log"))
		fmt.Fprintf(&all, "\n%s: %s", name, text)
	}
	return all.String()
}

// await polls until ready reports true, for at most limit.
func await(ctx context.Context, limit time.Duration, ready func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for !ready() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
