package host

import (
	"strconv"
	"strings"
)

// pmsetOnBattery reads the output of macOS's `pmset -g batt`.
func pmsetOnBattery(output string) bool {
	return strings.Contains(output, "'Battery Power'") || strings.Contains(output, "'UPS Power'")
}

// pmsetHot reads the output of macOS's `pmset -g therm`: the processor is hot
// while the system keeps it below its full speed.
func pmsetHot(output string) bool {
	for line := range strings.Lines(output) {
		key, value, _ := strings.Cut(line, "=")
		limit, err := strconv.Atoi(strings.TrimSpace(value))
		if strings.TrimSpace(key) == "CPU_Speed_Limit" && err == nil {
			return limit < 100
		}
	}
	return false
}
