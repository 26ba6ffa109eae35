package host

import (
	"context"
	"os/exec"
)

// notServers says that computers with this system are people's.
const notServers = true

func systemOnBattery(ctx context.Context) (on, known bool) {
	told, err := pmset(ctx, "batt")
	return err == nil && pmsetOnBattery(told), true
}

func systemHot(ctx context.Context) (hot, known bool) {
	told, err := pmset(ctx, "therm")
	return err == nil && pmsetHot(told), true
}

func pmset(ctx context.Context, what string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	told, err := exec.CommandContext(ctx, "/usr/bin/pmset", "-g", what).Output()
	return string(told), err
}

// AwakeCommand is the command by which a Vigil keeps this computer awake.
func (Computer) AwakeCommand() []string { return onPath("caffeinate", "-i", "cat") }

func systemRAM(ctx context.Context) (m Memory, known bool) {
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	size, err := exec.CommandContext(ctx, "/usr/sbin/sysctl", "-n", "hw.memsize").Output()
	if err != nil {
		return Memory{}, true
	}
	pages, err := exec.CommandContext(ctx, "/usr/bin/vm_stat").Output()
	if err != nil {
		return Memory{}, true
	}
	return vmStat(string(size), string(pages)), true
}
