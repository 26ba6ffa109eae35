package host

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shirou/gopsutil/v4/mem"
)

// Memory is the total and the free size of a memory, in bytes. It is zero if
// the memory cannot be read.
type Memory struct{ Total, Free uint64 }

// RAM returns the computer's main memory, limited by the control groups of this process.
func (c Computer) RAM(ctx context.Context) Memory {
	ram, err := mem.VirtualMemoryWithContext(c.env(ctx))
	if err != nil || ram.Total == 0 || ram.Available == 0 {
		return Memory{}
	}
	m := Memory{ram.Total, ram.Available}
	group, ok := strings.CutPrefix(readText(c.path("proc/self/cgroup")), "0::")
	if !ok {
		return m // no control groups, or version 1
	}
	for at := path.Clean("/" + group); ; at = path.Dir(at) { // the limits of parent groups apply, too
		m = m.within(c.path("sys/fs/cgroup", at))
		if at == "/" {
			return m
		}
	}
}

// within returns m, reduced to the limit of the control group at dir.
func (m Memory) within(dir string) Memory {
	limit, limited := readNumber(filepath.Join(dir, "memory.max")) // "max" is no limit
	used, known := readNumber(filepath.Join(dir, "memory.current"))
	if !limited || !known || limit <= 0 || used <= 0 {
		return m
	}
	used -= min(used, inactiveFile(filepath.Join(dir, "memory.stat")))
	m.Total = min(m.Total, uint64(limit))
	m.Free = min(m.Free, uint64(limit-min(limit, used)))
	return m
}

// inactiveFile returns how many bytes of a control group are cached files, which the
// kernel can drop at once.
func inactiveFile(stat string) int64 {
	for line := range strings.Lines(readText(stat)) {
		if size, ok := strings.CutPrefix(line, "inactive_file "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(size), 10, 64)
			return max(n, 0)
		}
	}
	return 0
}

// GPU is a graphics card with its own memory. Its name is "" if it cannot be read.
type GPU struct {
	Name string
	Memory
}

// GPUs returns each graphics card that has its own memory: NVIDIA's from nvidia-smi, AMD's
// from /sys. It does not include GPUs that use the main memory, such as Apple's.
func (c Computer) GPUs(ctx context.Context) []GPU {
	cards := c.nvidiaCards(ctx)
	for _, file := range c.glob("sys/class/drm/card*/device/mem_info_vram_total") {
		total, ok := readNumber(file)
		used, known := readNumber(strings.TrimSuffix(file, "total") + "used")
		if ok && known && used >= 0 && used <= total {
			name := cmp.Or(readText(filepath.Dir(file), "product_name"), "AMD GPU") // server cards have a name there
			cards = append(cards, GPU{name, Memory{uint64(total), uint64(total - used)}})
		}
	}
	return cards
}

func (c Computer) nvidiaCards(ctx context.Context) (cards []GPU) {
	output := c.nvidia(ctx, "--query-gpu=memory.total,memory.used,name", "--format=csv,noheader,nounits")
	for line := range strings.Lines(output) { // "24564, 511, NVIDIA L4" in MiB; "[N/A]" for a GPU that uses the main memory
		var total, used uint64
		values := strings.SplitN(strings.TrimSpace(line), ", ", 3)
		if n, _ := fmt.Sscan(strings.Join(values[:min(len(values), 2)], " "), &total, &used); n == 2 && total < 1<<32 && used <= total {
			cards = append(cards, GPU{strings.Join(values[2:], ""), Memory{total << 20, (total - used) << 20}})
		}
	}
	return cards
}

// wslPrograms is the folder with Windows' nvidia-smi in WSL2, which is not always on
// PATH.
const wslPrograms = "usr/lib/wsl/lib"

// nvidia returns the output of nvidia-smi, or nothing if there is no NVIDIA card. In WSL2
// the card is /dev/dxg, without its own driver.
func (c Computer) nvidia(ctx context.Context, args ...string) string {
	_, driver := os.Stat(c.path("proc/driver/nvidia"))
	_, wsl := os.Stat(c.path("dev/dxg"))
	if driver != nil && wsl != nil {
		return ""
	}
	program, err := exec.LookPath("nvidia-smi")
	if err != nil && wsl == nil {
		program = c.path(wslPrograms, "nvidia-smi")
	}
	text, err := output(ctx, program, args...)
	if err != nil {
		return ""
	}
	return text
}

// commandTimeout bounds a program that is run for a reading. Tests change it.
var commandTimeout = 5 * time.Second

// exitTimeout is how long a program may take to exit after it was killed. Tests change
// it.
var exitTimeout = 2 * time.Second

// hanging holds the programs that did not exit when they were killed, until they do.
var hanging sync.Map

// output runs a program and returns its output. It returns within commandTimeout plus
// exitTimeout, or soon after the end of ctx, whatever the program does: a hanging driver
// can keep its program from exiting even when it is killed, and child processes may keep
// the output open. A program is not started again until its previous process has exited.
func output(ctx context.Context, program string, args ...string) (string, error) {
	if _, hangs := hanging.Load(program); hangs {
		return "", fmt.Errorf("%s hangs", program)
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = exitTimeout / 2
	type result struct {
		text []byte
		err  error
	}
	ended := make(chan result, 1)
	go func() {
		text, err := cmd.Output()
		ended <- result{text, err}
		hanging.Delete(program)
	}()
	select {
	case r := <-ended:
		return string(r.text), r.err
	case <-ctx.Done():
	}
	select {
	case r := <-ended:
		return string(r.text), r.err
	case <-time.After(exitTimeout):
		hanging.Store(program, nil)
		select {
		case <-ended: // while waiting
			hanging.Delete(program)
		default:
		}
		return "", fmt.Errorf("%s does not end", program)
	}
}
