package e2e_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What an idle daemon may cost (docs/performance.md).
const (
	maxIdle  = 12_000 // KB of memory that is no file's
	maxStart = 300 * time.Millisecond
)

// A daemon without a loaded model answers soon after its start and takes little
// memory. The best of a few starts counts: others use this computer, too.
func TestIdleDaemon(t *testing.T) {
	start, idle := time.Hour, 1<<30
	for range 7 {
		took, kb := idleDaemon(t)
		start, idle = min(start, took), min(idle, kb)
	}
	t.Logf("the first answer %v after the start, %d KB idle", start.Round(time.Millisecond), idle)
	if start > maxStart {
		t.Errorf("the first answer came %v after the start, want %v", start, maxStart)
	}
	if idle > maxIdle {
		t.Errorf("an idle daemon holds %d KB, want %d", idle, maxIdle)
	}
}

// idleDaemon starts a daemon and returns when it first answered and how much memory it
// has taken for itself. The pages of its executable are the page cache's: how many are
// mapped depends on how that holds the file, 28 MB or 40 MB of the same binary.
func idleDaemon(t *testing.T) (took time.Duration, kb int) {
	t.Helper()
	home, err := os.MkdirTemp("", "kith") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(home)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	cmd := exec.Command(builtBinary(t), "serve", "--listen", address)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "KITH_HOME=" + home}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	for {
		resp, err := http.Get("http://" + address + "/v1/models")
		if err == nil {
			resp.Body.Close()
			break
		}
		if time.Since(began) > patience {
			t.Fatal(err)
		}
		<-time.After(time.Millisecond)
	}
	took = time.Since(began)
	file, err := os.Open(filepath.Join("/proc", fmt.Sprint(cmd.Process.Pid), "smaps_rollup"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "Pss_Anon:"); ok {
			if _, err := fmt.Sscan(rest, &kb); err != nil {
				t.Fatal(err)
			}
			return took, kb
		}
	}
	t.Fatal("the kernel does not say how much memory a process holds")
	return 0, 0
}
