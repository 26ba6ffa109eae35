package browser_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// daemon is a `kith serve` of its own process with an engine double behind it.
type daemon struct {
	port   string
	home   string
	engine *enginetest.Engine

	answers403 atomic.Int64

	mu  sync.Mutex
	log bytes.Buffer
}

// Write collects the daemon's log.
func (d *daemon) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.Write(p)
}

func (d *daemon) said() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.String()
}

// refused is how many answers of its guard have gone out so far.
func (d *daemon) refused() int { return int(d.answers403.Load()) }

// relay carries connections to the daemon's port at 127.0.0.1 on to where it
// listens, byte for byte, and counts the answers of its guard.
func (d *daemon) relay(t *testing.T, at net.Listener, to string) {
	t.Cleanup(func() { at.Close() })
	go enginetest.Relay(at, to, io.Discard, d.counter())
}

// counter counts the heads of refusals in one connection's answers.
func (d *daemon) counter() io.Writer {
	return writer(func(p []byte) { d.answers403.Add(int64(bytes.Count(p, []byte("HTTP/1.1 403 ")))) })
}

// writer is a function that sees what is written.
type writer func(p []byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

// serve starts a daemon and waits until it listens.
func serve(t *testing.T, config string) *daemon {
	t.Helper()
	binary := os.Getenv("KITH_BIN")
	if binary == "" {
		binary, _ = filepath.Abs("../../bin/kith")
	}
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("cannot find the binary under test: %v; run make build, or make test", err)
	}
	d := &daemon{home: shortDir(t), engine: double(t)}
	config = fmt.Sprintf("[engine]\nbuiltin = false\n[discovery]\nenabled = false\nendpoints = [%q]\n%s", d.engine.URL(), config)
	assert.OK(t, os.WriteFile(filepath.Join(d.home, "config.toml"), []byte(config), 0o600))
	free := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	_, d.port, _ = net.SplitHostPort(free.Addr().String())
	// The browser speaks to a relay that counts, on the port that the daemon knows
	// as its own, at another loopback address.
	address := "127.0.0.2:" + d.port
	d.relay(t, free, address)
	cmd := exec.Command(binary, "serve", "--listen", address)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + d.home, "KITH_HOME=" + d.home, "KITH_SYSTEM_ROOT=" + d.home}
	cmd.Stderr = d
	assert.OK(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		if err := <-ended; err != nil {
			t.Errorf("the daemon ended badly: %v", err)
		}
	})
	for late := time.After(patience); ; {
		if c, err := net.Dial("tcp", address); err == nil {
			c.Close()
			return d
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-late:
			t.Fatalf("the daemon does not listen: %s", d.said())
		}
	}
}

// shortDir is a folder whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir := assert.Value(os.MkdirTemp("", "kith"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// double is an engine that counts what it runs, and guards nothing.
func double(t *testing.T) *enginetest.Engine {
	t.Helper()
	e := enginetest.New(enginetest.LlamaCpp, enginetest.Options{})
	assert.OK(t, e.Start())
	t.Cleanup(func() { e.Close() })
	return e
}
