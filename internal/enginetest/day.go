package enginetest

import "time"

// OneDay waits until the UTC day has at least a minute left, so that everything a test
// counts per day in real time falls on one day.
func OneDay() {
	now := time.Now()
	if left := now.Truncate(24 * time.Hour).Add(24 * time.Hour).Sub(now); left < time.Minute {
		time.Sleep(left)
	}
}
