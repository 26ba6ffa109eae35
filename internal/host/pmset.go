package host

import (
	"strconv"
	"strings"
)

// pmsetOnBattery parses the output of `pmset -g batt` on macOS.
func pmsetOnBattery(output string) bool {
	return strings.Contains(output, "'Battery Power'") || strings.Contains(output, "'UPS Power'")
}

// pmsetHot parses the output of `pmset -g therm` on macOS: the processor is hot while the
// system throttles it.
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
