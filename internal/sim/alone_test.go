package sim

import (
	"runtime"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// A hub without other nodes runs nothing of what several nodes need.
func TestAHubAloneRunsNoCluster(t *testing.T) {
	running := func() bool {
		stacks := make([]byte, 16<<20)
		return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "/internal/cluster.")
	}
	inBubble(t, func(*world) {
		assert.That(t, !running(), "a hub alone runs a goroutine of package cluster")
	})
	inCluster(t, 2, func(*world, []*seat) {
		assert.That(t, running(), "this test does not see the goroutines of package cluster")
	})
}
