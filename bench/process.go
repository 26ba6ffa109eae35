package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the kernel's unit in /proc/PID/stat; 100 a second on every Linux that
// Go runs on.
const tick = 10 * time.Millisecond

// cpu is the user and system time that each of the processes has used so far.
func cpu(pids []int) []time.Duration {
	used := make([]time.Duration, len(pids))
	for i, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		_, rest, _ := bytes.Cut(stat, []byte(") "))
		fields := strings.Fields(string(rest))
		user, _ := strconv.Atoi(fields[11])
		system, _ := strconv.Atoi(fields[12])
		used[i] = time.Duration(user+system) * tick
	}
	return used
}

// bench holds what a run started, so that all of it ends with the run.
type bench struct {
	dir   string
	self  string
	kith  string
	procs []*exec.Cmd
}

// start runs a process whose output goes to a file in the bench's folder.
func (b *bench) start(name string, env []string, program string, args ...string) (int, error) {
	log, err := os.Create(filepath.Join(b.dir, name+".log"))
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("cannot start %s: %w", name, err)
	}
	b.procs = append(b.procs, cmd)
	return cmd.Process.Pid, nil
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

// log is what a process of the bench wrote, for an error message.
func (b *bench) log(name string) string {
	text, _ := os.ReadFile(filepath.Join(b.dir, name+".log"))
	return string(text)
}

// await polls until ready says so, or 20 s passed.
func await(what string, ready func() bool) error {
	for limit := time.Now().Add(20 * time.Second); time.Now().Before(limit); time.Sleep(50 * time.Millisecond) {
		if ready() {
			return nil
		}
	}
	return fmt.Errorf("%s was not ready within 20 s", what)
}

func answers(c *http.Client, url, key, want string) bool {
	r, _ := http.NewRequest(http.MethodGet, url, nil)
	r.Header.Set("Authorization", "Bearer "+key)
	response, err := c.Do(r)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode == http.StatusOK && strings.Contains(string(text), want)
}

// freePort returns a loopback port without a listener.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
