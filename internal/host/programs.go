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
