package host

import (
	"context"
	"syscall"
	"unsafe"
)

// notServers says that computers with this system are people's.
const notServers = true

// systemOnBattery asks GetSystemPowerStatus.
func systemOnBattery(context.Context) (on, known bool) {
	const offline = 0 // of ACLineStatus
	var status struct {
		acLine, battery, percent, saver byte
		left, full                      uint32 // s
	}
	ask := syscall.NewLazyDLL("kernel32.dll").NewProc("GetSystemPowerStatus")
	ok, _, _ := ask.Call(uintptr(unsafe.Pointer(&status)))
	return ok != 0 && status.acLine == offline, true
}

// systemHot: Windows tells no ordinary program.
func systemHot(context.Context) (hot, known bool) { return false, true }

// AwakeCommand is nil: Windows comes with no program for that.
func (Computer) AwakeCommand() []string { return nil }
