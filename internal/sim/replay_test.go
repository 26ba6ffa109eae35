package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestSeedsReplay plays histories twice: what each client got and when, and what
// ran where, must be the same, so that a seed that failed fails again.
//
// It plays these seeds and no others. In about one seed of 30 two goroutines compete in
// one instant, such as two calls of a machine that disconnects for the last slot of
// another one, and the Go scheduler decides: such a seed is played a few times.
func TestSeedsReplay(t *testing.T) {
	first, n := uint64(1), unlessShort(20, 5)
	if *seedFlag != 0 {
		first, n = *seedFlag, 1
	}
	for seed := first; seed < first+uint64(n); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			var played [2][]string
			for i := range played {
				inBubble(t, func(w *world) { played[i] = w.minutes(w.play(seed, new(delays))) })
			}
			if len(played[0]) != len(played[1]) {
				t.Fatalf("%d calls, then %d", len(played[0]), len(played[1]))
			}
			for i, line := range played[0] {
				if line != played[1][i] {
					t.Fatalf("played again, it differs first in\n%s\nwhich became\n%s", line, played[1][i])
				}
			}
		})
	}
}

// minutes is what happened, a line for each call.
func (w *world) minutes(answers []*answer) []string {
	var out []string
	at := func(t time.Time) string {
		if t.IsZero() {
			return "never"
		}
		return t.Format("15:04:05.999999999")
	}
	for _, a := range answers {
		var runs []string
		for _, r := range w.runs.of(a.tag) {
			runs = append(runs, fmt.Sprintf("%s %s to %s", r.machine.name, at(r.at), at(r.left)))
		}
		out = append(out, fmt.Sprintf("%s to %s: %s, on %s", at(a.began), at(a.ended), a, strings.Join(runs, ", ")))
	}
	return out
}
