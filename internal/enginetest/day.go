package enginetest

import "time"

// OneDay returns once the day, in UTC, has a minute left, so that what a test counts of a
// day in real time is of one day.
func OneDay() {
	now := time.Now()
	if left := now.Truncate(24 * time.Hour).Add(24 * time.Hour).Sub(now); left < time.Minute {
		time.Sleep(left)
	}
}
