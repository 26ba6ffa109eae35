package host

import (
	"context"
	"os"
)

// notServers says that computers with this system are people's.
const notServers = false

func systemOnBattery(context.Context) (on, known bool) { return false, false }

func systemHot(context.Context) (hot, known bool) { return false, false }

func systemRAM(context.Context) (m Memory, known bool) { return Memory{}, false }

// AwakeCommand is the command by which a Vigil keeps this computer awake; nil:
// its system offers none. logind's lock falls when cat sees its input end.
func (c Computer) AwakeCommand() []string {
	if _, err := os.Stat(c.path("run/systemd/system")); err != nil {
		return nil // not booted by systemd (sd_booted(3)): nobody would answer
	}
	return onPath("systemd-inhibit", "--what=sleep:idle", "--who=kith", "--why=an answer is running", "--mode=block", "cat")
}
