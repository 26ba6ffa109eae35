package enginetest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
)

func TestOneDay(t *testing.T) {
	for clock, want := range map[string]string{"00:00:00": "00:00:00", "23:59:00": "23:59:00", "23:59:01": "00:00:00", "23:59:59": "00:00:00"} {
		synctest.Test(t, func(t *testing.T) {
			at := assert.Value(time.Parse(time.TimeOnly, clock))(t)
			time.Sleep(at.Sub(at.Truncate(24 * time.Hour))) // a bubble begins at midnight
			OneDay()
			assert.Equal(t, time.Now().UTC().Format(time.TimeOnly), want, "began at", clock, "returned at")
		})
	}
}
