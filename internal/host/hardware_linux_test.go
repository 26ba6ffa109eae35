package host

import (
	"errors"
	"os"
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

	// A pipe in place of the file gives each reading other values. The next pipe is there before
	// the first one ends, so that a reading never gets the values of both.
	stat := c.path("proc/stat")
	pipe := func() { assert.OK(t, errors.Join(os.Remove(stat), syscall.Mkfifo(stat, 0o600))) }
	pipe()
	go func() {
		for _, times := range []string{"100 0 0 100", "175 0 0 125"} { // 75 of 100 ticks are busy
			to, err := os.OpenFile(stat, os.O_WRONLY, 0)
			assert.OK(t, err)
			_, err = to.WriteString("cpu  " + times + " 0 0 0 0 0 0\n")
			pipe()
			assert.OK(t, errors.Join(err, to.Close()))
		}
	}()
	part, ok = c.CPUBusy(t.Context())
	assert.That(t, ok && part > 0.74 && part < 0.76, "75 %", part, ok)
	_, ok = stage(t, nil).CPUBusy(t.Context())
	assert.That(t, !ok, "a system without the file")
}
