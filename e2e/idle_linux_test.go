package e2e_test

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// What an idle daemon may cost (docs/performance.md).
const (
	maxOwn   = 12_000 // KB of memory that is no file's
	maxAll   = 40_000 // KB with the pages of its executable
	maxStart = 300 * time.Millisecond
	// On a busy computer the first answer may take at most idleBusy times as long as the go
	// command takes to print its version.
	idleBusy = 10
)

// A daemon without a loaded model answers soon after its start and takes little
// memory. The best of several starts counts, and a slow one is followed by others for a
// minute. It runs from a copy of the executable, written page by page: the page cache
// holds it so, and what is mapped of a file in larger pieces is more than what is used
// of it, up to 55 MB.
func TestIdleDaemon(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "kith")
	code := assert.Value(os.ReadFile(builtBinary(t)))(t)
	file := assert.Value(os.OpenFile(binary, os.O_CREATE|os.O_WRONLY, 0o700))(t)
	for page := range slices.Chunk(code, os.Getpagesize()) {
		assert.Value(file.Write(page))(t)
	}
	assert.OK(t, file.Close())
	start, control, most, least := time.Hour, time.Hour, maxStart, idleMemory{own: 1 << 30, all: 1 << 30}
	for n, late := 0, time.Now().Add(patience); n < 7 || start > most && time.Now().Before(late); n++ {
		control = min(control, startOfGo(t))
		most = max(maxStart, idleBusy*control)
		took, memory := idleDaemon(t, binary)
		start = min(start, took)
		least = idleMemory{own: min(least.own, memory.own), all: min(least.all, memory.all)}
	}
	t.Logf("the first answer %v after the start; idle %d KB of its own, %d KB in all; go version takes %v",
		start.Round(time.Millisecond), least.own, least.all, control.Round(time.Millisecond))
	assert.That(t, start <= most, "the first answer came", start, "after the start", most)
	assert.That(t, least.own <= maxOwn, "an idle daemon holds", least.own, "KB of its own", maxOwn)
	assert.That(t, least.all <= maxAll, "an idle daemon holds", least.all, "KB in all", maxAll)
}

// idleMemory is what a process holds, in KB.
type idleMemory struct {
	own int // of no file
	all int // its share of what is mapped
}

// startOfGo returns how long the go command takes to print its version.
func startOfGo(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	assert.OK(t, exec.Command("go", "version").Run())
	return time.Since(began)
}

// idleDaemon starts a daemon and returns when it first answered and what it holds then.
func idleDaemon(t *testing.T, binary string) (took time.Duration, memory idleMemory) {
	t.Helper()
	home, err := os.MkdirTemp("", "kith") // a socket's path is short
	assert.OK(t, err)
	defer os.RemoveAll(home)
	address := enginetest.FreeAddress()
	cmd := exec.Command(binary, "serve", "--listen", address)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "KITH_HOME=" + home}
	began := time.Now()
	assert.OK(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	for {
		resp, err := http.Get("http://" + address + "/v1/models")
		if err == nil {
			resp.Body.Close()
			break
		}
		assert.Require(t, time.Since(began) <= patience, err)
		<-time.After(time.Millisecond)
	}
	took = time.Since(began)
	file, err := os.Open(filepath.Join("/proc", fmt.Sprint(cmd.Process.Pid), "smaps_rollup"))
	assert.OK(t, err)
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		for of, kb := range map[string]*int{"Pss_Anon": &memory.own, "Pss": &memory.all} {
			if name != of {
				continue
			}
			assert.Value(fmt.Sscan(rest, kb))(t)
		}
	}
	if memory.own == 0 || memory.all == 0 {
		t.Fatal("the kernel does not say how much memory a process holds")
	}
	return took, memory
}
