package host

import "context"

// alwaysPersonal reports that every computer with this system is a personal computer.
const alwaysPersonal = true

func systemOnBattery(ctx context.Context) (on, known bool) {
	output, err := pmset(ctx, "batt")
	return err == nil && pmsetOnBattery(output), true
}

func systemHot(ctx context.Context) (hot, known bool) {
	output, err := pmset(ctx, "therm")
	return err == nil && pmsetHot(output), true
}

func pmset(ctx context.Context, what string) (string, error) {
	return output(ctx, "/usr/bin/pmset", "-g", what)
}

// AwakeCommand returns the command that a Wakelock runs to keep this computer awake.
func (Computer) AwakeCommand() []string { return onPath("caffeinate", "-i", "cat") }
