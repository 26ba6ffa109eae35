// Command routing compares ways to choose a machine for a call, in a simulation of
// false time: six machines whose speeds differ a hundredfold, and agents' sessions. The
// same trace runs under each way; the product's is fleet.Route.
//
//	go run ./bench/routing [-seed 1] [-rounds 5] [-page docs/performance.md] [-picture docs/pictures/routing.svg]
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"runtime"
	"sync"
)

// loads are parts of the capacity.
var loads = []float64{0.3, 0.6, 0.9}

func main() {
	if err := compare(); err != nil {
		fmt.Fprintln(os.Stderr, "routing:", err)
		os.Exit(1)
	}
}

func compare() error {
	seed := flag.Uint64("seed", 1, "the first round's seed; the same seed gives the same figures")
	rounds := flag.Int("rounds", 5, "traces of each load, whose calls are taken together")
	page := flag.String("page", "", "a page whose part between the routing marks is replaced with the tables")
	picture := flag.String("picture", "", "a file for the plot, SVG")
	flag.Parse()
	traces := make([]*trace, *rounds)
	for i := range traces {
		traces[i] = newTrace(*seed + uint64(i))
	}
	full := capacity(traces, *seed)
	results := measure(traces, full, *seed)
	text := fmt.Sprintf("Seed %d, %d rounds of %d agents' sessions and %d questions, %d calls in all. Capacity: %.2f calls a second.\n",
		*seed, *rounds, agentSessions, questions, len(results[0].calls), full) + report(results)
	fmt.Print(text)
	if *picture != "" {
		if err := os.WriteFile(*picture, plot(results), 0o644); err != nil {
			return err
		}
	}
	if *page != "" {
		return replace(*page, text)
	}
	return nil
}

// result is what the calls of a policy at a load were like, over all rounds.
type result struct {
	policy string
	load   float64
	calls  []*call
}

// capacity returns how many calls a second the machines serve, with the oracle, before
// calls wait for a slot for more than a tenth of a second on average.
func capacity(traces []*trace, seed uint64) float64 {
	low, high := 0.0, 16.0
	for high-low > 0.02 {
		rate, waited, calls := (low+high)/2, 0.0, 0
		for i, t := range traces {
			for _, c := range run(t, rate, seed+uint64(i), &policy{pick: oracle}) {
				waited += c.waited
				calls++
			}
		}
		if waited/float64(calls) > 0.1 {
			high = rate
		} else {
			low = rate
		}
	}
	return low
}

// measure runs every policy at every load, as many runs at once as there are cores.
func measure(traces []*trace, full float64, seed uint64) []result {
	results := make([]result, 0, len(loads)*len(policies))
	for _, load := range loads {
		for _, policy := range policies {
			results = append(results, result{policy: policy().name, load: load})
		}
	}
	var running sync.WaitGroup
	free := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range results {
		running.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			r := &results[i]
			for round, t := range traces {
				r.calls = append(r.calls, run(t, r.load*full, seed+uint64(round), policies[i%len(policies)]())...)
			}
		})
	}
	running.Wait()
	return results
}

const beginMark, endMark = "<!-- routing:begin -->\n", "<!-- routing:end -->\n"

// replace writes text between the marks of a page.
func replace(page, text string) error {
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	head, rest, ok := bytes.Cut(old, []byte(beginMark))
	_, tail, ok2 := bytes.Cut(rest, []byte(endMark))
	if !ok || !ok2 {
		return fmt.Errorf("%s lacks the marks %s and %s", page, beginMark[:len(beginMark)-1], endMark[:len(endMark)-1])
	}
	return os.WriteFile(page, bytes.Join([][]byte{head, tail}, []byte(beginMark+text+endMark)), 0o644)
}
