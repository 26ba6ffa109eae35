package cli

import (
	"os"
	"strings"

	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/host"
)

// thisComputer is where the daemon reads how its computer is. Tests stage
// another one in a folder that KITH_SYSTEM_ROOT names (docs/HACKING.md).
func thisComputer() host.Computer { return host.Computer{Root: os.Getenv("KITH_SYSTEM_ROOT")} }

// comfortable sets the defaults of what a machine does for its owner of itself,
// which `kith serve` alone has: in `kith dev` one computer plays everybody.
func (c *daemonFile) comfortable(computer host.Computer) {
	personal := computer.Personal()
	c.Share.PauseOnBattery, c.Share.PauseOnBusyGPU, c.Share.PauseOnHotCPU = personal, personal, personal
	c.Share.YieldToLocal = true
}

// comfort is what the configuration says of it.
func (c *daemonFile) comfort() daemon.PowerPolicy {
	return daemon.PowerPolicy{
		Computer:  thisComputer(),
		OnBattery: c.Share.PauseOnBattery, OnBusyGPU: c.Share.PauseOnBusyGPU, OnHotCPU: c.Share.PauseOnHotCPU,
		Yield: c.Share.YieldToLocal, Awake: thisComputer().AwakeCommand(),
	}
}

// showComfort says what keeps others' calls away beside the owner's own word.
func (a *app) showComfort(now daemon.Status) {
	if now.PausedBy != nil {
		a.fact("", "paused by itself: %s; goes on when that is over ([share] pause_on_… of config.toml)", strings.Join(now.PausedBy, ", "))
	}
	if now.Yielding {
		a.fact("", "yields to your own calls: none from the hub begins now ([share] yield_to_local)")
	}
}
