package llama

import (
	"os"
	"path/filepath"
	"syscall"
)

// physicalCores counts cores without their second threads; 0 if unknown.
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

// childAttributes make the kernel end the worker when the thread that started
// it ends, should it not notice that its standard input closed.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
