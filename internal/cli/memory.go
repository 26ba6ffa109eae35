package cli

import (
	"os"
	"runtime/debug"
)

// A program that serves trades memory for less collecting: most of what a call
// allocates is dead when it ends, so collecting rarely is collecting little
// (hub −14 %, daemon −23 % of CPU, docs/performance.md). Above the limit the
// collector works as usual. The Go runtime's own variables go before.
const (
	gcPercent   = 400
	memoryLimit = 1 << 30
)

func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
}
