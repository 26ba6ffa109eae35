package host

import (
	"context"
	"math"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory is how much there is of a kind of memory, and how much of it is free,
// in bytes. The zero Memory is one that cannot be read.
type Memory struct{ Total, Free uint64 }

// RAM is this computer's main memory, within the bounds of the control groups
// that this process is in.
func (c Computer) RAM(ctx context.Context) Memory {
	if c.Root == "" {
		if m, known := systemRAM(ctx); known {
			return m
		}
	}
	info := table(c.path("proc/meminfo"))
	m := Memory{info["MemTotal:"] << 10, info["MemAvailable:"] << 10}
	if m.Total == 0 || m.Free == 0 {
		return Memory{}
	}
	group, ok := strings.CutPrefix(c.line("proc/self/cgroup"), "0::")
	if !ok {
		return m // none, or of the first version: its bounds are elsewhere
	}
	for at := path.Clean("/" + group); ; at = path.Dir(at) { // a group is bound by those around it, too
		m = m.within(c.path("sys/fs/cgroup", at))
		if at == "/" {
			return m
		}
	}
}

// within is the memory within the bound of the control group at dir.
func (m Memory) within(dir string) Memory {
	bound, bounded := number(filepath.Join(dir, "memory.max")) // "max" is no bound
	used, counted := number(filepath.Join(dir, "memory.current"))
	if !bounded || !counted || bound <= 0 || used <= 0 {
		return m
	}
	spare := table(filepath.Join(dir, "memory.stat"))["inactive_file"] // can be given back at once
	taken := uint64(used) - min(uint64(used), spare)
	m.Total = min(m.Total, uint64(bound))
	m.Free = min(m.Free, uint64(bound)-min(uint64(bound), taken))
	return m
}

// GPUs is the memory of each graphics card that has its own: NVIDIA's as
// nvidia-smi tells it, AMD's from /sys. Where a GPU uses the main memory, as
// Apple's do, that is RAM.
func (c Computer) GPUs(ctx context.Context) []Memory {
	cards := c.nvidiaMemory(ctx)
	for _, file := range c.glob("sys/class/drm/card*/device/mem_info_vram_total") {
		total, ok := number(file)
		used, told := number(strings.TrimSuffix(file, "total") + "used")
		if ok && told && used >= 0 && used <= total {
			cards = append(cards, Memory{uint64(total), uint64(total - used)})
		}
	}
	return cards
}

func (c Computer) nvidiaMemory(ctx context.Context) (cards []Memory) {
	if _, err := os.Stat(c.path("proc/driver/nvidia")); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	told, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits").Output()
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(told)) { // "24564, 511" in MiB; "[N/A]" where it is the main memory
		all, used, _ := strings.Cut(line, ",")
		total, bad := strconv.ParseUint(strings.TrimSpace(all), 10, 32)
		taken, worse := strconv.ParseUint(strings.TrimSpace(used), 10, 32)
		if bad == nil && worse == nil && taken <= total {
			cards = append(cards, Memory{total << 20, (total - taken) << 20})
		}
	}
	return cards
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
