// Package host reads what this computer has and its state: whether it is a personal
// computer or a server, how much memory it and its GPUs have free, how busy its processors
// are, whether it runs on its battery, whether its processor is hot, and which other
// program is using its GPU. It also keeps the computer awake. The caller decides how to react to a reading.
//
// A sensor that cannot be read counts as normal, because most servers have none. On Linux
// the readings come from /proc and /sys. On macOS and Windows only some are available,
// and those are not tested there.
package host

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Computer is the computer that kith runs on.
type Computer struct {
	// Root is the folder that contains /proc and /sys; empty means "/". Tests set it. With
	// a Root, readings come only from that folder and from programs on PATH.
	Root string
}

func (c Computer) path(name ...string) string {
	return filepath.Join(append([]string{"/", c.Root}, name...)...)
}

// glob returns the paths below Root that match the pattern, sorted.
func (c Computer) glob(pattern string) []string {
	found, _ := filepath.Glob(c.path(pattern)) // fails only for a malformed pattern
	return found
}

// readText returns the trimmed text of a file, or "" if it cannot be read.
func readText(path ...string) string {
	text, _ := os.ReadFile(filepath.Join(path...))
	return strings.TrimSpace(string(text))
}

// readNumber returns the number in a file; ok is false if there is none.
func readNumber(file string) (n int64, ok bool) {
	n, err := strconv.ParseInt(readText(file), 10, 64)
	return n, err == nil
}

// Personal reports whether this is a personal computer rather than a server, based on its
// chassis type (SMBIOS 3, 7.4.1). Virtual machines, rack servers and computers without a
// chassis type are servers.
func (c Computer) Personal() bool {
	if c.Root == "" && alwaysPersonal {
		return true
	}
	switch readText(c.path("sys/class/dmi/id/chassis_type")) {
	case "3", "4", "6", "7", "15", "24", "35", "36", // desktops, towers, mini PCs
		"8", "9", "10", "11", "13", "14", "30", "31", "32": // laptops, all-in-ones, tablets
		return true
	}
	return false
}

// OnBattery reports whether the computer runs on its battery or on an uninterruptible
// power supply: one of them is discharging and no mains or USB supply is online. The
// batteries of mice and headsets do not count.
func (c Computer) OnBattery(ctx context.Context) bool {
	if c.Root == "" {
		if on, known := systemOnBattery(ctx); known {
			return on
		}
	}
	discharging := false
	for _, supply := range c.glob("sys/class/power_supply/*") {
		switch kind := readText(supply, "type"); {
		case kind == "Mains" || strings.HasPrefix(kind, "USB"):
			if readText(supply, "online") == "1" {
				return false
			}
		case (kind == "Battery" || kind == "UPS") && readText(supply, "scope") != "Device":
			discharging = discharging || readText(supply, "status") == "Discharging"
		}
	}
	return discharging
}

// The processor is hot from hotAt degrees Celsius, or from hotMargin below its critical
// temperature if that is lower. It counts as hot until it is coolMargin below that
// temperature, so that a machine does not pause and resume every few seconds.
const (
	hotAt      = 90
	hotMargin  = 5
	coolMargin = 15
	// Sensors without a critical temperature report values such as 0 or 255.
	minLimit, maxLimit = 60, 130
)

// HotCPU reports whether the processor is hot; wasHot is the previous result.
func (c Computer) HotCPU(ctx context.Context, wasHot bool) bool {
	if c.Root == "" {
		if hot, known := systemHot(ctx); known {
			return hot
		}
	}
	for _, s := range c.sensors() {
		mark := min(hotAt, s.critical-hotMargin)
		if wasHot {
			mark -= coolMargin
		}
		if s.celsius >= mark {
			return true
		}
	}
	return false
}

// sensor is a temperature of the processor and its critical value, in degrees Celsius.
type sensor struct{ celsius, critical float64 }

// sensors returns the temperatures of the processor from hwmon, or from the thermal zones
// if hwmon has no processor chip.
func (c Computer) sensors() []sensor {
	var found []sensor
	for _, chip := range c.glob("sys/class/hwmon/hwmon*") {
		switch readText(chip, "name") {
		case "coretemp", "k10temp", "zenpower", "cpu_thermal":
		default:
			continue
		}
		inputs, _ := filepath.Glob(filepath.Join(chip, "temp*_input"))
		for _, input := range inputs {
			crit := strings.TrimSuffix(input, "input") + "crit"
			found = appendSensor(found, input, crit)
		}
	}
	if found != nil {
		return found
	}
	for _, zone := range c.glob("sys/class/thermal/thermal_zone*") {
		kind := readText(zone, "type")
		if kind != "x86_pkg_temp" && !strings.HasPrefix(kind, "cpu") {
			continue
		}
		trips, _ := filepath.Glob(filepath.Join(zone, "trip_point_*_temp"))
		found = appendSensor(found, filepath.Join(zone, "temp"), trips...)
	}
	return found
}

// appendSensor reads a temperature and the lowest of its limits. The files contain
// thousandths of a degree.
func appendSensor(found []sensor, input string, limits ...string) []sensor {
	now, ok := readNumber(input)
	if !ok {
		return found
	}
	s := sensor{celsius: float64(now) / 1000, critical: maxLimit}
	for _, file := range limits {
		if n, ok := readNumber(file); ok && n >= minLimit*1000 && n <= maxLimit*1000 {
			s.critical = min(s.critical, float64(n)/1000)
		}
	}
	return append(found, s)
}

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
