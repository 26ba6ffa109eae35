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

// systemRAM asks GlobalMemoryStatusEx.
func systemRAM(context.Context) (m Memory, known bool) {
	var status struct {
		length, load                                      uint32
		total, free, pageTotal, pageFree, all, left, more uint64 // bytes
	}
	status.length = uint32(unsafe.Sizeof(status))
	ask := syscall.NewLazyDLL("kernel32.dll").NewProc("GlobalMemoryStatusEx")
	if ok, _, _ := ask.Call(uintptr(unsafe.Pointer(&status))); ok == 0 {
		return Memory{}, true
	}
	return Memory{status.total, status.free}, true
}

// AwakeCommand is nil: Windows comes with no program for that.
func (Computer) AwakeCommand() []string { return nil }
