package host

import (
	"os/exec"
	"strconv"
	"strings"
)

// onPath is the command line if its program is there.
func onPath(command ...string) []string {
	if _, err := exec.LookPath(command[0]); err != nil {
		return nil
	}
	return command
}

// pmsetOnBattery reads `pmset -g batt` of macOS.
func pmsetOnBattery(told string) bool {
	return strings.Contains(told, "'Battery Power'") || strings.Contains(told, "'UPS Power'")
}

// pmsetHot reads `pmset -g therm` of macOS: the processor is hot while the
// system holds it below its full speed.
func pmsetHot(told string) bool {
	for line := range strings.Lines(told) {
		key, value, _ := strings.Cut(line, "=")
		limit, err := strconv.Atoi(strings.TrimSpace(value))
		if strings.TrimSpace(key) == "CPU_Speed_Limit" && err == nil {
			return limit < 100
		}
	}
	return false
}

// vmStat reads `sysctl -n hw.memsize` and `vm_stat` of macOS: free is what holds
// nothing, or what the system can drop or has a copy of.
func vmStat(size, pages string) Memory {
	total, err := strconv.ParseUint(strings.TrimSpace(size), 10, 64)
	if err != nil {
		return Memory{}
	}
	page, free := uint64(0), uint64(0)
	for line := range strings.Lines(pages) {
		if _, after, found := strings.Cut(line, "(page size of "); found {
			bytes, _, _ := strings.Cut(after, " ")
			page, _ = strconv.ParseUint(bytes, 10, 32)
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "Pages free", "Pages inactive", "Pages speculative", "Pages purgeable":
			n, _ := strconv.ParseUint(strings.Trim(value, " .\n"), 10, 40)
			free += n * page
		}
	}
	if free == 0 {
		return Memory{}
	}
	return Memory{total, min(total, free)}
}
