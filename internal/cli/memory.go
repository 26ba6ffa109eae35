package cli

import (
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/kith/kith/internal/spool"
)

// A server collects garbage less often than with Go's default, because most of a call's
// allocations become garbage when it ends (−14 % CPU for the hub, −23 % for the daemon,
// docs/performance.md). Above memoryLimit the collector works as usual. GOGC and
// GOMEMLIMIT take precedence.
const (
	gcPercent   = 400
	memoryLimit = 1 << 30
)

// diskLimit is how many bytes a daemon's spool may have in files, and the default for a
// hub's.
const diskLimit = 2 << 30

// openSpool opens the spool for the bodies of calls and responses. It may use a quarter
// of the process's memory limit.
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
