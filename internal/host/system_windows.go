package host

import (
	"context"
	"syscall"
	"unsafe"
)

// alwaysPersonal reports that every computer with this system is a personal computer.
const alwaysPersonal = true

// systemOnBattery calls GetSystemPowerStatus.
func systemOnBattery(context.Context) (on, known bool) {
	const offline = 0 // a value of ACLineStatus
	var status struct {
		acLine, battery, percent, saver byte
		left, full                      uint32 // in seconds
	}
	call := syscall.NewLazyDLL("kernel32.dll").NewProc("GetSystemPowerStatus")
	ok, _, _ := call.Call(uintptr(unsafe.Pointer(&status)))
	return ok != 0 && status.acLine == offline, true
}

// systemHot always returns false: Windows shows temperatures only to administrators.
func systemHot(context.Context) (hot, known bool) { return false, true }

// AwakeCommand returns nil: Windows has no program that keeps it awake.
func (Computer) AwakeCommand() []string { return nil }
