package host

import (
	"context"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/common"
	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/host"
)

// Hardware is what this computer has. A part that cannot be read is zero.
type Hardware struct {
	System string // with its version, such as "Debian GNU/Linux 12 (bookworm)"
	CPU    string // the name of its model
	Cores  int    // logical processors that this process may use
	Memory uint64 // as for RAM, in bytes
	GPUs   []GPU
}

// Hardware reads what this computer has. It may take seconds if a driver is slow.
func (c Computer) Hardware(ctx context.Context) Hardware {
	h := Hardware{System: c.system(ctx), Cores: runtime.NumCPU(), Memory: c.RAM(ctx).Total, GPUs: c.GPUs(ctx)}
	if all, err := cpu.InfoWithContext(c.env(ctx)); err == nil && len(all) > 0 {
		h.CPU = strings.Join(strings.Fields(all[0].ModelName), " ")
	}
	return h
}

// env returns a context with which gopsutil reads below Root.
func (c Computer) env(ctx context.Context) context.Context {
	if c.Root == "" {
		return ctx
	}
	return context.WithValue(ctx, common.EnvKey, common.EnvMap{
		common.HostProcEnvKey: c.path("proc"), common.HostSysEnvKey: c.path("sys"), common.HostEtcEnvKey: c.path("etc"),
	})
}

// system returns the name and version of the operating system.
func (c Computer) system(ctx context.Context) string {
	for line := range strings.Lines(readText(c.path("etc/os-release"))) { // os-release(5)
		if quoted, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			if name, err := strconv.Unquote(quoted); err == nil {
				return name
			}
			return strings.Trim(quoted, `'`)
		}
	}
	if c.Root != "" {
		return ""
	}
	name, _, version, err := host.PlatformInformationWithContext(ctx)
	if err != nil {
		return runtime.GOOS
	}
	if name == "darwin" {
		name = "macOS"
	}
	return strings.TrimSpace(name + " " + version)
}

// cpuWindow is the time over which CPUBusy measures.
const cpuWindow = 100 * time.Millisecond

// CPUBusy measures for 0.1 s how busy the processors are: the part of their time, 0 to 1.
// ok is false if that cannot be measured.
func (c Computer) CPUBusy(ctx context.Context) (part float64, ok bool) {
	percent, err := cpu.PercentWithContext(c.env(ctx), cpuWindow, false)
	if err != nil || len(percent) == 0 {
		return 0, false
	}
	return min(max(percent[0]/100, 0), 1), true
}
