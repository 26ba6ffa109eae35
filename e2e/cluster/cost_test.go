//go:build linux

package cluster_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

const (
	costCalls    = 3000 // measured calls, by 16 callers at a time
	costStreams  = 64   // at a time
	costDuration = 10 * time.Second
)

// TestCost measures what a call costs by way of another node, and three nodes in
// comparison with one. It needs -long.
func TestCost(t *testing.T) {
	if !*long {
		t.Skip("it measures: -long")
	}
	client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}
	r := new(results)
	defer r.print(t)
	r.add("CPU of the nodes", "a unary call, µs", "a chunk, µs")
	c := start(t, 1)
	var unaries, chunks [2]float64
	for range *rounds {
		for i, n := range c.nodes[:2] { // by turns
			unaries[i] += c.costOfCall(n) / float64(*rounds)
			chunks[i] += c.costOfChunk(n) / float64(*rounds)
		}
	}
	row := func(name string, unary, chunk float64) {
		r.add(name, fmt.Sprintf("%.0f", unary), fmt.Sprintf("%.1f", chunk))
	}
	row("at the machine's home", unaries[0], chunks[0])
	row("by way of another node", unaries[1], chunks[1])
	row("the extra hop", unaries[1]-unaries[0], chunks[1]-chunks[0])
	three := start(t, 3)
	each := 0.0
	for range *rounds {
		each += three.costOfCall(three.nodes...) / float64(*rounds)
	}
	row("three nodes by turns, machines at each", each, 0)
	r.add("capacity of three nodes", fmt.Sprintf("%.2f times that of one", 3*unaries[0]/each))
}

// cpu returns the CPU time of the nodes so far.
func (c *cluster) cpu() (sum time.Duration) {
	c.t.Helper()
	for _, n := range c.nodes {
		text := assert.Value(os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.cmd.Process.Pid)))(c.t)
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		for _, ticks := range fields[11:13] { // utime and stime, of 10 ms
			n, _ := strconv.Atoi(ticks)
			sum += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return sum
}

// costOfCall returns the CPU time of a unary call at the nodes by turns, in µs.
func (c *cluster) costOfCall(nodes ...*node) float64 {
	k := c.key(owner)
	var done atomic.Int64
	var running sync.WaitGroup
	before := c.cpu()
	for range 16 {
		running.Go(func() {
			for i := done.Add(1); i <= costCalls; i = done.Add(1) {
				if _, err := c.call(nodes[int(i)%len(nodes)], k, unary); err != nil {
					c.t.Error(err)
				}
			}
		})
	}
	running.Wait()
	return float64((c.cpu() - before).Microseconds()) / costCalls
}

// costOfChunk returns the CPU time of a chunk of a stream at a node, in µs.
func (c *cluster) costOfChunk(n *node) float64 {
	k := c.key(owner)
	ctx, stop := context.WithCancel(c.t.Context())
	var running sync.WaitGroup
	var seen atomic.Int64
	for range costStreams {
		running.Go(func() {
			_, _ = c.callUntil(ctx, n, k, endless, func() { seen.Add(1) })
		})
	}
	c.until("the streams run", func() error {
		if n := seen.Load(); n < 5*costStreams {
			return fmt.Errorf("%d chunks came", n)
		}
		return nil
	})
	cpu, before := c.cpu(), seen.Load()
	time.Sleep(costDuration)
	cost := float64((c.cpu() - cpu).Microseconds()) / float64(seen.Load()-before)
	stop()
	running.Wait()
	return cost
}
