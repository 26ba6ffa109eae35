package cli

import (
	"errors"
	"math"
	"net/http"
	"path/filepath"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// TestLedgerFullDisk: while nothing can be written no call is sent to a machine, and
// running calls complete; the hub recovers by itself once there is space
// (docs/faults.md#27). A limit on the size of the hub's files simulates the disk.
func TestLedgerFullDisk(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.engine.Set(enginetest.Behaviour{Chunks: 20, Interval: 50 * time.Millisecond})
	res, err := r.begin(true)
	assert.Require(t, err == nil && res.StatusCode == http.StatusOK, res, err)
	if err := r.engine.Wait(t.Context(), func(c enginetest.Counts) bool { return c.Running == 1 }); err != nil {
		t.Fatal(err) // what the caller has may be a sign of life from the hub
	}
	r.hub.limitFiles(t, 1)
	r.hasty = true
	runs := r.engine.Counts().Runs

	var refused []string
	for range 3 {
		res := assert.Value(r.begin(false))(t)
		refusal := readRefusal(res)
		res.Body.Close()
		if refusal.status != http.StatusServiceUnavailable || refusal.code != "CASCADE_EXHAUSTED" || res.Header.Get("Retry-After") == "" {
			t.Fatalf("with a full disk: %+v, %v", refusal, res.Header)
		}
		refused = append(refused, res.Header.Get("X-Correlation-Id"))
	}
	r.until("the hub is not ready", func() error { // for a while after each refused call
		if refused, err := r.begin(false); err == nil {
			refused.Body.Close()
		}
		res, err := http.Get(r.base + "/readyz")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusServiceUnavailable {
			return errors.New(res.Status)
		}
		return nil
	})
	ran, err := complete(res, true)
	assert.OK(t, err, "the stream that ran when the disk was full")
	if now := r.engine.Counts().Runs; now != runs {
		t.Fatalf("%d calls were sent to a machine while the ledger could not be written", now-runs)
	}

	r.engine.Set(enginetest.Behaviour{})
	r.hub.limitFiles(t, math.MaxUint64)
	var after string
	r.until("a call is served again", func() (err error) { after, err = r.ask(false); return err })
	r.hub.stop(t)
	calls := checkLedger(t, filepath.Join(r.dir, "kith.db"), []string{ran, after})
	for _, id := range refused {
		if u := calls[id]; u.Code != "CASCADE_EXHAUSTED" || u.MachineID != "" || u.Status != http.StatusServiceUnavailable {
			t.Errorf("the ledger says of a refused call: %+v", u)
		}
	}
}

// limitFiles bounds the files that the process writes, in bytes.
func (c *child) limitFiles(t *testing.T, size uint64) {
	t.Helper()
	limit := syscall.Rlimit{Cur: size, Max: math.MaxUint64}
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(c.cmd.Process.Pid), syscall.RLIMIT_FSIZE, uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	assert.Require(t, errno == 0, errno)
}
