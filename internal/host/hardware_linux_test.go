package host

import (
	"os"
	"strconv"
	"syscall"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// The processors are as busy as /proc/stat has them between its two readings.
func TestCPUBusy(t *testing.T) {
	part, ok := Computer{}.CPUBusy(t.Context())
	assert.That(t, ok && part >= 0 && part <= 1, "this computer", part, ok)
	c := stage(t, map[string]string{"proc/stat": "cpu  100 0 0 100 0 0 0 0 0 0"})
	still, ok := c.CPUBusy(t.Context())
	assert.That(t, ok && still == 0, "no time passed", still, ok)

	// A pipe in place of the file gives each reading other values.
	stat := c.path("proc/stat")
	assert.OK(t, os.Remove(stat))
	assert.OK(t, syscall.Mkfifo(stat, 0o600))
	go func() {
		for i := range 2 { // 75 of 100 ticks are busy
			_ = os.WriteFile(stat, []byte("cpu  "+strconv.Itoa(100+75*i)+" 0 0 "+strconv.Itoa(100+25*i)+" 0 0 0 0 0 0\n"), 0o600)
		}
	}()
	part, ok = c.CPUBusy(t.Context())
	assert.That(t, ok && part > 0.74 && part < 0.76, "75 %", part, ok)
	_, ok = stage(t, nil).CPUBusy(t.Context())
	assert.That(t, !ok, "a system without the file")
}
