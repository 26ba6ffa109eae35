package host

import (
	"context"
	"syscall"
	"unsafe"
)

// alwaysPersonal says that every computer with this system is a personal one.
const alwaysPersonal = true

// systemOnBattery calls GetSystemPowerStatus.
func systemOnBattery(context.Context) (on, known bool) {
	const offline = 0 // of ACLineStatus
	var status struct {
		acLine, battery, percent, saver byte
		left, full                      uint32 // s
	}
	call := syscall.NewLazyDLL("kernel32.dll").NewProc("GetSystemPowerStatus")
	ok, _, _ := call.Call(uintptr(unsafe.Pointer(&status)))
	return ok != 0 && status.acLine == offline, true
}

// systemHot always reports false: Windows gives temperatures to administrators
// only.
func systemHot(context.Context) (hot, known bool) { return false, true }

// AwakeCommand returns nil: Windows has no program that keeps it awake.
func (Computer) AwakeCommand() []string { return nil }
