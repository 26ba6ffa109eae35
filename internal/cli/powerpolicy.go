package cli

import (
	"os"
	"strings"

	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/host"
)

// thisComputer returns the source of this computer's readings. Tests replace it with the
// folder in KITH_SYSTEM_ROOT (docs/HACKING.md).
func thisComputer() host.Computer { return host.Computer{Root: os.Getenv("KITH_SYSTEM_ROOT")} }

// setPowerDefaults sets the defaults of the power policy for `kith serve`. In `kith dev`,
// where one computer is both hub and machine, the policy is off.
func (c *daemonFile) setPowerDefaults(computer host.Computer) {
	personal := computer.Personal()
	c.Share.PauseOnBattery, c.Share.PauseOnBusyGPU, c.Share.PauseOnHotCPU = personal, personal, personal
	c.Share.YieldToLocal = true
}

func (c *daemonFile) powerPolicy() daemon.PowerPolicy {
	return daemon.PowerPolicy{
		Computer:  thisComputer(),
		OnBattery: c.Share.PauseOnBattery, OnBusyGPU: c.Share.PauseOnBusyGPU, OnHotCPU: c.Share.PauseOnHotCPU,
		Yield: c.Share.YieldToLocal, Awake: thisComputer().AwakeCommand(),
	}
}

// showSelfPause prints why the machine has paused automatically or yields.
func (a *app) showSelfPause(now daemon.Status) {
	if now.PausedBy != nil {
		a.fact("", "paused by itself: %s; resumes when that is over ([share] pause_on_… of config.toml)", strings.Join(now.PausedBy, ", "))
	}
	if now.Yielding {
		a.fact("", "yields to your own calls: no call from the hub starts now ([share] yield_to_local)")
	}
}
