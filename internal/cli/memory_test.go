package cli

import (
	"runtime/debug"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/spool"
)

// Requests and answers in memory may fill a quarter of the process's limit.
func TestSpoolHasAQuarterOfTheMemory(t *testing.T) {
	const mib = 1 << 20
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(4 << 30))
	room, err := openSpool(t.TempDir(), diskLimit, 0)
	assert.OK(t, err)
	bytes := make([]byte, mib) // counted each time
	for _, member := range []string{"ann", "bob", "eve"} {
		for err == nil {
			_, err = room.Keep(spool.Holder{Member: member, Answer: true}, bytes)
		}
		err = nil
	}
	if use := room.Use(); use.Memory != 1024*mib || use.Disk != 0 {
		t.Errorf("held %d MiB in memory, %d on disk", use.Memory/mib, use.Disk/mib)
	}
}
