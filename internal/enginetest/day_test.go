package enginetest

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestOneDay(t *testing.T) {
	for clock, want := range map[string]string{"00:00:00": "00:00:00", "23:59:00": "23:59:00", "23:59:01": "00:00:00", "23:59:59": "00:00:00"} {
		synctest.Test(t, func(t *testing.T) {
			at, err := time.Parse(time.TimeOnly, clock)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(at.Sub(at.Truncate(24 * time.Hour))) // a bubble begins at midnight
			OneDay()
			if got := time.Now().UTC().Format(time.TimeOnly); got != want {
				t.Errorf("began at %s, returned at %s, want %s", clock, got, want)
			}
		})
	}
}
