package hub

import (
	"runtime/debug"
	"runtime/metrics"
)

// crowded reports whether what lives, by the last collection, fills four fifths
// of the memory that the process may use. Garbage does not count: the collector
// lets it grow up to the limit on purpose.
func crowded() bool {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(live)
	limit := uint64(debug.SetMemoryLimit(-1))
	return live[0].Value.Uint64()+live[1].Value.Uint64() > limit/5*4
}
