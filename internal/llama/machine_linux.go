package llama

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// availableMemory is how many bytes can be had without swapping.
func availableMemory() (bytes uint64, known bool) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) >= 2 && fields[0] == "MemAvailable:" {
			kib, err := strconv.ParseUint(fields[1], 10, 54)
			return kib << 10, err == nil
		}
	}
	return 0, false
}

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
