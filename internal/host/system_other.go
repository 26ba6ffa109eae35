//go:build !linux && !darwin && !windows

package host

import "context"

// notServers says that computers with this system are people's.
const notServers = false

func systemOnBattery(context.Context) (on, known bool) { return false, false }

func systemHot(context.Context) (hot, known bool) { return false, false }

func systemRAM(context.Context) (m Memory, known bool) { return Memory{}, false }

// AwakeCommand is nil: no program for that is known on this system.
func (Computer) AwakeCommand() []string { return nil }
