package llamaserver

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// memory is what this machine has and has left, in bytes.
type memory struct{ total, free uint64 }

// readMemory reads it below root, which is "/" but for tests: the machine's,
// and the bound of the control group that this process is in. known is false on
// systems that have no such files.
func readMemory(root string) (m memory, known bool) {
	info := table(filepath.Join(root, "proc/meminfo"))
	total, hasTotal := info["MemTotal:"]
	free, hasFree := info["MemAvailable:"]
	if !hasTotal || !hasFree {
		return memory{}, false
	}
	m = memory{total << 10, free << 10}
	text, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return m, true
	}
	group, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "0::")
	if !ok {
		return m, true // of the first version: its bounds are elsewhere
	}
	dir := filepath.Join(root, "sys/fs/cgroup", filepath.Clean("/"+group))
	bound, used := number(filepath.Join(dir, "memory.max")), number(filepath.Join(dir, "memory.current"))
	if bound == 0 || used == 0 {
		return m, true
	}
	used -= min(used, table(filepath.Join(dir, "memory.stat"))["inactive_file"]) // can be given back at once
	m.total = min(m.total, bound)
	m.free = min(m.free, bound-min(bound, used))
	return m, true
}

// table reads lines of a name and a number.
func table(path string) map[string]uint64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	out := map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		if n, err := strconv.ParseUint(fields[1], 10, 64); err == nil && n < math.MaxUint64>>10 {
			out[fields[0]] = n
		}
	}
	return out
}

// number is the one number of a file; 0: it has none.
func number(path string) uint64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64) // "max" is no bound
	return n
}

// size writes bytes for a person.
func size(bytes uint64) string {
	if bytes < 1<<30 {
		return strconv.FormatUint(bytes>>20, 10) + " MiB"
	}
	return strconv.FormatFloat(float64(bytes)/(1<<30), 'f', 1, 64) + " GiB"
}
