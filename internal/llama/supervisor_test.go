package llama

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// pids is a log that yields the process id of each worker that becomes ready.
type pids chan int

var pidPattern = regexp.MustCompile(`ready.* pid=(\d+)`)

// Write satisfies io.Writer.
func (p pids) Write(line []byte) (int, error) {
	if m := pidPattern.FindSubmatch(line); m != nil {
		pid, err := strconv.Atoi(string(m[1]))
		if err != nil {
			return 0, err
		}
		p <- pid
	}
	return len(line), nil
}

// TestWorkerKilled kills the worker while it answers: the stream breaks without an
// end mark, calls in the meantime fail with the cause, and a new worker answers.
func TestWorkerKilled(t *testing.T) {
	needLibraries(t)
	started := make(pids, 10)
	s := NewSupervisor(Config{Models: testModels, Data: testData, Log: slog.New(slog.NewTextHandler(started, nil))})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	pid := <-started
	<-s.Ready()
	e := &engine{Supervisor: s, t: t, client: &http.Client{Transport: s.Transport()}}
	res := e.open(t.Context(), "/v1/chat/completions", ask("x", object{"model": "random", "stream": true, "temperature": 1, "seed": 3, "response_format": object{"type": "json_object"}}))
	kill(t, pid)
	b, err := io.ReadAll(res.Body)
	if err == nil || strings.Contains(string(b), "[DONE]") {
		t.Errorf("the stream of a killed worker ended well: %v", err)
	}
	res.Body.Close()
	for {
		res, err := e.try(t.Context(), "/v1/chat/completions", ask("Hello"))
		if err == nil {
			res.Body.Close()
			break
		}
		if again := "starting again"; strings.Contains(err.Error(), again) {
			break
		}
		// The supervisor has not noticed yet, and the connection was refused.
	}
	if again := <-started; again == pid {
		t.Errorf("the same process, %d", pid)
	}
	assert.Equal(t, e.say(ask("Hello")), conversation[0][1], "after the restart")
}

const orphanArg = "llama-orphan-parent"

// orphanParent supervises a worker until it is killed. It prints the worker's
// process id.
func orphanParent() int {
	started := make(pids, 1)
	s := NewSupervisor(Config{Models: testModels, Data: os.Args[2], Log: slog.New(slog.NewTextHandler(started, nil))})
	go func() {
		fmt.Println(<-started)
	}()
	if err := s.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
	return 1
}

// TestOrphan kills a supervisor: its worker ends, too.
func TestOrphan(t *testing.T) {
	needLibraries(t)
	exe, err := os.Executable()
	assert.OK(t, err)
	parent := exec.Command(exe, orphanArg, testData)
	parent.Stderr = os.Stderr
	out, err := parent.StdoutPipe()
	assert.OK(t, err)
	assert.OK(t, parent.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	assert.OK(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("the supervisor says %q", line)
	}
	assert.OK(t, parent.Process.Kill())
	if err := parent.Wait(); err == nil {
		t.Error("a killed process ended well")
	}
	for end := time.Now().Add(time.Minute); !gone(pid); {
		if time.Now().After(end) {
			kill(t, pid)
			t.Fatalf("the worker %d outlives its parent", pid)
		}
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	p := assert.Value(os.FindProcess(pid))(t)
	assert.OK(t, p.Kill())
}

// gone reports whether a process has ended, also if it was not waited for.
func gone(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil || p.Signal(syscall.Signal(0)) != nil {
		return true
	}
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func TestWorkerCannotStart(t *testing.T) {
	needLibraries(t)
	dir := t.TempDir()
	for _, name := range libraryNames {
		assert.OK(t, os.WriteFile(filepath.Join(dir, name), []byte("no library"), 0o600))
	}
	t.Setenv(libraryEnv, dir)
	s := NewSupervisor(Config{Data: testData, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	client := &http.Client{Transport: s.Transport()}
	for {
		_, err := client.Get("http://engine/health")
		assert.Require(t, err != nil, "a worker without libraries answers")
		if strings.Contains(err.Error(), libraryNames[0]) {
			break
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	t.Setenv(libraryEnv, t.TempDir()) // holds none
	assert.Fails(t, Available(), libraryEnv, "Available in an empty folder")
	if err := s.Run(t.Context()); err == nil {
		t.Error("Run without libraries does not fail")
	}
}
