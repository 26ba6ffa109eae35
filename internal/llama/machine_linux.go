package llama

import (
	"os"
	"path/filepath"
	"syscall"
)

// physicalCores counts cores without their hyper-threads; 0 if unknown.
func physicalCores() int {
	siblings, err := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list")
	if err != nil {
		return 0
	}
	seen := map[string]bool{}
	for _, path := range siblings {
		if list, err := os.ReadFile(path); err == nil {
			seen[string(list)] = true
		}
	}
	return len(seen)
}

// childAttributes make the kernel end the worker with the thread that started it,
// in case it does not notice the end of its standard input.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
