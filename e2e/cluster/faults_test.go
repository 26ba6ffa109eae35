//go:build linux

package cluster_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/kith/kith/internal/assert"
)

var (
	long      = flag.Bool("long", false, "run every fault, check times, and measure: for a machine with nothing else to do")
	rounds    = flag.Int("rounds", 1, "how often each fault is played")
	each      = flag.Int("each", 4, "how many members lose their rights in each round")
	failOvers = flag.Int("failovers", 2, "how many fail-overs of the database are played")
)

// How long a right may outlive its end (spec/security.md#revocation).
const (
	grantedWithin = 5 * time.Second  // for what begins
	runsWithin    = 30 * time.Second // for what runs, at a node that cannot read the database
)

// fault is what happens to a cluster while rights end. The first node and its way to the
// database stay as they are, except where all nodes are concerned.
type fault struct {
	name  string
	lasts time.Duration
	begin func(*cluster) (end func())
	quick bool // also without -long
}

func between(nodes ...string) (ways []way) {
	for _, a := range nodes {
		for _, b := range nodes {
			if a != b {
				ways = append(ways, way{a, b})
			}
		}
	}
	return ways
}

func cut(ways ...way) func(*cluster) func() {
	return func(c *cluster) func() { return c.network.cut(ways...) }
}

func stopped(c *cluster) (resume func()) { return c.nodes[2].stop() }

var databases = []way{{"node3", "database0"}, {"node3", "database1"}}

var faults = []fault{
	{name: "none", quick: true, begin: func(*cluster) func() { return func() {} }},
	{name: "kill -9 of a node", quick: true, begin: func(c *cluster) func() {
		c.nodes[2].kill()
		return func() { c.startNode(c.nodes[2]) }
	}},
	{name: "SIGSTOP of a node, 3 s", lasts: 3 * time.Second, begin: stopped},
	{name: "SIGSTOP of a node, 8 s", lasts: 8 * time.Second, quick: true, begin: stopped},
	{name: "SIGSTOP of a node, 60 s", lasts: 60 * time.Second, begin: stopped},
	{name: "a node cut off from the database", lasts: 8 * time.Second, quick: true, begin: cut(databases...)},
	{name: "two nodes cut off from each other", lasts: 8 * time.Second, begin: cut(between("node2", "node3")...)},
	{name: "all nodes cut off from each other", lasts: 8 * time.Second, begin: cut(between("node1", "node2", "node3")...)},
	{name: "a node cut off from nodes and database", lasts: 8 * time.Second, begin: cut(
		append([]way{{"node1", "node3"}, {"node2", "node3"}, {"node3", "node1"}, {"node3", "node2"}}, databases...)...)},
	{name: "machines cut off from the nodes", lasts: 8 * time.Second, begin: cut(machinesWay)},
	{name: "promotion, the old primary lives for two nodes", lasts: 8 * time.Second, begin: func(c *cluster) func() {
		old, next := fmt.Sprintf("database%d", c.primary), fmt.Sprintf("database%d", 1-c.primary)
		restore := c.network.cut(way{"", old}, way{"node1", old}, way{"node2", next}, way{"node3", next})
		c.failOver()
		return func() {
			_ = c.database[1-c.primary].Kill()
			restore()
			c.replaceStandby()
		}
	}},
}

// results are the rows that a run has measured.
type results struct{ rows [][]string }

func (r *results) add(cells ...string) { r.rows = append(r.rows, cells) }

func (r *results) print(t *testing.T) {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range r.rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
	fmt.Fprintf(os.Stdout, "%s:\n%s", t.Name(), text.String())
}

// TestFaults ends rights while nodes, ways and databases fail. No run begins more than 5 s
// after its right ended and none goes on for 30 s, no call runs twice, and each call with a
// complete answer is in the ledger once. Times are checked with -long only.
func TestFaults(t *testing.T) {
	c, r := start(t, 3), new(results)
	defer r.print(t)
	r.add("fault", "rights ended", "the last start after one", "the last part of an answer")
	for _, f := range faults {
		if !f.quick && !*long {
			continue
		}
		var answer, begin time.Duration
		for range *rounds {
			a, b := c.endRights(f)
			answer, begin = max(answer, a), max(begin, b)
		}
		r.add(f.name, fmt.Sprint(*rounds**each), seconds(begin), seconds(answer))
		if *long && (begin > grantedWithin || answer > runsWithin) {
			t.Errorf("%s: a start outlived its right by %v, an answer by %v", f.name, begin, answer)
		}
	}
	var longest time.Duration
	for range *failOvers {
		longest = max(longest, c.killPrimary())
	}
	r.add("fail-overs of the database", fmt.Sprint(*failOvers), "each node serves again after", seconds(longest))
	again, together := c.machines.repeated()
	lost, doubled := c.checkLedger()
	r.add("attempts that ran twice", fmt.Sprint(again), "two attempts of a call at a time", fmt.Sprint(together))
	r.add("answered calls", fmt.Sprint(len(c.answered)), "lost, doubled in the ledger", fmt.Sprint(lost, ", ", doubled))
	if again+together > 0 {
		t.Errorf("%d attempts ran twice, %d calls had two attempts at a time", again, together)
	}
}

// TestMachinesReturn kills one node after another. Each machine connects to a node that
// lives, and no call of the others' callers runs twice.
func TestMachinesReturn(t *testing.T) {
	c, r := start(t, 3), new(results)
	defer r.print(t)
	r.add("node killed", "machines that lost their tunnel", "99 % of all are back after")
	for round := range *rounds {
		for _, n := range c.nodes {
			lost, took := c.returnAfter(func() { n.kill() })
			r.add(fmt.Sprint(n.name, ", round ", round+1), fmt.Sprint(lost, " of ", *machineCount), seconds(took))
			if *long && took > 10*time.Second {
				t.Errorf("99 %% of the machines were back after %v", took)
			}
			c.startNode(n)
			c.settle()
			c.allConnected(*machineCount)
		}
	}
	if again, together := c.machines.repeated(); again+together > 0 {
		t.Errorf("%d attempts ran twice, %d calls had two attempts at a time", again, together)
	}
}

// returnAfter does something, and returns how many machines lost their tunnel and when
// 99 % of all were connected for good.
func (c *cluster) returnAfter(do func()) (lost int64, took time.Duration) {
	all := int64(*machineCount)
	began := time.Now()
	do()
	for time.Since(began) < took+3*time.Second && time.Since(began) < soon {
		up := c.machines.up.Load()
		lost = max(lost, all-up)
		if up < all*99/100 {
			took = time.Since(began)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return lost, took
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

// endRights gives members a key and a share, has them call at each node, and takes one or
// the other away while the fault lasts. It returns by how much the last byte of an
// answer, and the last start on a machine, outlived the end of a right.
func (c *cluster) endRights(f fault) (answer, begin time.Duration) {
	c.t.Helper()
	ctx, stop := context.WithCancel(c.t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	type holder struct {
		name    string
		key     key
		callers []*caller
		ended   time.Time
	}
	holders := make([]holder, *each)
	for i := range holders {
		c.members++
		h := holder{name: fmt.Sprintf("member%d", c.members)}
		c.member(h.name)
		h.key = c.key(h.name)
		for _, n := range c.nodes {
			h.callers = append(h.callers, c.load(ctx, &running, n, h.key, unary, streamed))
		}
		h.callers = append(h.callers, c.load(ctx, &running, c.nodes[c.members%3], h.key, endless))
		holders[i] = h
	}
	c.until("each member is served by each node", func() error {
		for _, h := range holders {
			for i, by := range h.callers {
				if by.last.Load() == 0 {
					return fmt.Errorf("%s is not by %d", h.name, i)
				}
			}
		}
		return nil
	})
	over := time.Now().Add(f.lasts)
	end := f.begin(c)
	for i := range holders {
		h := &holders[i]
		time.Sleep(rand.N(500 * time.Millisecond))
		c.until("a right ends", func() error {
			if i%2 == 0 {
				return c.nodes[0].operate("POST", "/keys/"+h.key.ID+"/revoke", nil, nil)
			}
			return c.nodes[0].operate("DELETE", "/shares?owner="+owner+"&with="+h.name, nil, nil)
		})
		h.ended = time.Now()
	}
	time.Sleep(time.Until(over))
	end()
	time.Sleep(grantedWithin + time.Second)
	for _, h := range holders {
		for _, by := range h.callers {
			answer = max(answer, time.Unix(0, by.last.Load()).Sub(h.ended))
		}
		begin = max(begin, c.machines.lastStart(h.name).Sub(h.ended))
	}
	stop()
	running.Wait()
	c.settle()
	return answer, begin
}

// settle waits until each node serves the owner.
func (c *cluster) settle() {
	c.t.Helper()
	c.until("the first node's operator is served", func() error { return c.nodes[0].operate("GET", "/members", nil, nil) })
	k := c.key(owner)
	for _, n := range c.nodes {
		c.until(n.name+" serves", func() error { _, err := c.call(n, k, unary); return err })
	}
}

// killPrimary kills the primary and promotes the standby. It returns when each node
// serves again.
func (c *cluster) killPrimary() time.Duration {
	k := c.key(owner)
	began := time.Now()
	assert.OK(c.t, c.database[c.primary].Kill())
	c.failOver()
	for _, n := range c.nodes {
		c.until(n.name+" serves", func() error { _, err := c.call(n, k, unary); return err })
	}
	took := time.Since(began)
	c.replaceStandby()
	return took
}
