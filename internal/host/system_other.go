//go:build !darwin && !windows

package host

import (
	"context"
	"os"
)

// alwaysPersonal reports that the system alone does not make a computer a personal one.
const alwaysPersonal = false

func systemOnBattery(context.Context) (on, known bool) { return false, false }

func systemHot(context.Context) (hot, known bool) { return false, false }

// AwakeCommand returns the command that a Wakelock runs to keep this computer awake, or
// nil if the system has none. logind releases its lock when cat reads the end of its
// input.
func (c Computer) AwakeCommand() []string {
	if _, err := os.Stat(c.path("run/systemd/system")); err != nil {
		return nil // not booted by systemd (sd_booted(3)), so there is no logind
	}
	return onPath("systemd-inhibit", "--what=sleep:idle", "--who=kith", "--why=an answer is running", "--mode=block", "cat")
}
