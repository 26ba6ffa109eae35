package cli

import (
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/kith/kith/internal/spool"
)

// A program that serves trades memory for less collecting: most of what a call
// allocates is dead when it ends, so collecting rarely is collecting little
// (hub −14 %, daemon −23 % of CPU, docs/performance.md). Above the limit the
// collector works as usual. The Go runtime's own variables go before.
const (
	gcPercent   = 400
	memoryLimit = 1 << 30
)

// diskLimit is how much a daemon holds in files, where a hub has a key for it.
const diskLimit = 2 << 30

// openSpool makes what holds the bodies of calls and answers: in memory a quarter
// of what this process may use.
func openSpool(folder string, disk, member int64) (*spool.Spool, error) {
	return spool.Open(filepath.Join(folder, "spool"), spool.Limits{Memory: debug.SetMemoryLimit(-1) / 4, Disk: disk, Member: member})
}

func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
}
