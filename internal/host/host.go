// Package host reads how this computer is, as its system tells it: whose it
// looks, how much memory it and its GPU have left, whether it runs on its
// battery, whether its processor is hot, which other program holds its GPU; and
// it keeps the computer awake. What follows
// from a reading is not decided here.
//
// What cannot be read counts as in order: a reading exists to spare the owner,
// and a machine without sensors is not a machine in trouble. Readings come from
// /proc and /sys on Linux; macOS and Windows have some of them, untried.
package host

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Computer is the computer that kith runs on.
type Computer struct {
	// Root is the folder that /proc and /sys are read in; empty: the system's
	// own. With a Root, nothing but the folder and programs on PATH is asked.
	Root string
}

// asking is how long a program that is asked for a reading may take.
const asking = 5 * time.Second

// line is the text of a small file, without space around it; empty where it
// cannot be read.
func (c Computer) line(name ...string) string {
	text, err := os.ReadFile(c.path(name...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func (c Computer) path(name ...string) string {
	return filepath.Join(append([]string{"/", c.Root}, name...)...)
}

// glob are the paths that match the pattern, sorted; each has Root in front.
func (c Computer) glob(pattern string) []string {
	found, _ := filepath.Glob(c.path(pattern)) // its only error is of the pattern, which is ours
	return found
}

// number is the number that a file holds; ok is false where it holds none.
func number(file string) (n int64, ok bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// Personal reports whether this looks like a person's computer, and not like a
// server: by the kind of chassis that its maker names (SMBIOS 3, 7.4.1). A
// virtual machine, a rack's and one that does not say are servers.
func (c Computer) Personal() bool {
	if c.Root == "" && notServers {
		return true
	}
	switch c.line("sys/class/dmi/id/chassis_type") {
	case "3", "4", "6", "7", "15", "24", "35", "36": // desktops, towers, small ones
		return true
	case "8", "9", "10", "11", "13", "14", "30", "31", "32": // laptops, all-in-ones, tablets
		return true
	}
	return false
}

// OnBattery reports whether the computer runs on its battery, or on that of an
// uninterruptible supply: one gives power and nothing at the mains does.
// Batteries of mice and headsets do not count.
func (c Computer) OnBattery(ctx context.Context) bool {
	if c.Root == "" {
		if on, known := systemOnBattery(ctx); known {
			return on
		}
	}
	discharging := false
	for _, supply := range c.glob("sys/class/power_supply/*") {
		switch kind := fileLine(supply, "type"); {
		case kind == "Mains" || strings.HasPrefix(kind, "USB"):
			if fileLine(supply, "online") == "1" {
				return false
			}
		case (kind == "Battery" || kind == "UPS") && fileLine(supply, "scope") != "Device":
			discharging = discharging || fileLine(supply, "status") == "Discharging"
		}
	}
	return discharging
}

// fileLine is Computer.line for a path that has its Root already.
func fileLine(folder, name string) string {
	text, _ := os.ReadFile(filepath.Join(folder, name)) // what cannot be read is empty
	return strings.TrimSpace(string(text))
}

// A processor is hot from hotAt degrees Celsius, or hotBelow under the limit its
// maker gives, if that is less; it has cooled down coolBy under that. The gap
// keeps a machine from pausing and resuming every few seconds.
const (
	hotAt    = 90
	hotBelow = 5
	coolBy   = 15
	// Sensors say 0 or 255 for a limit that is none.
	minLimit, maxLimit = 60, 130
)

// HotCPU reports whether the processor is hot; was is the answer of the reading
// before.
func (c Computer) HotCPU(ctx context.Context, was bool) bool {
	if c.Root == "" {
		if hot, known := systemHot(ctx); known {
			return hot
		}
	}
	for _, s := range c.sensors() {
		mark := min(hotAt, s.limit-hotBelow)
		if was {
			mark -= coolBy
		}
		if s.celsius >= mark {
			return true
		}
	}
	return false
}

// sensor is one temperature of the processor, in degrees Celsius.
type sensor struct{ celsius, limit float64 }

// sensors are those of the processor: of hwmon, and where a board has none
// there, of its thermal zones.
func (c Computer) sensors() []sensor {
	var found []sensor
	for _, chip := range c.glob("sys/class/hwmon/hwmon*") {
		switch fileLine(chip, "name") {
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
		kind := fileLine(zone, "type")
		if kind != "x86_pkg_temp" && !strings.HasPrefix(kind, "cpu") {
			continue
		}
		trips, _ := filepath.Glob(filepath.Join(zone, "trip_point_*_temp"))
		found = appendSensor(found, filepath.Join(zone, "temp"), trips...)
	}
	return found
}

// appendSensor reads a temperature and the least of its limits, in files of
// thousandths of a degree.
func appendSensor(found []sensor, input string, limits ...string) []sensor {
	now, ok := number(input)
	if !ok {
		return found
	}
	s := sensor{celsius: float64(now) / 1000, limit: maxLimit}
	for _, file := range limits {
		if n, ok := number(file); ok && n >= minLimit*1000 && n <= maxLimit*1000 {
			s.limit = min(s.limit, float64(n)/1000)
		}
	}
	return append(found, s)
}
