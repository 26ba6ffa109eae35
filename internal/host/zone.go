//go:build !windows

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Where a Unix system keeps its time zone, and where the zone database lists its zones.
const (
	zoneFile     = "/etc/localtime"
	zoneNameFile = "/etc/timezone"
	zoneListFile = "/usr/share/zoneinfo/zone1970.tab"
)

// errNoZone is the reason on a computer that sets no time zone, as most containers.
var errNoZone = errors.New("TZ is not set, and there is no " + zoneFile)

// Zone returns the IANA name of this computer's time zone, or why it is not known.
func Zone() (string, error) {
	tz, set := os.LookupEnv("TZ")
	return unixZone("/", tz, set)
}

// unixZone returns the IANA name of the time zone of the computer whose files are below
// root. The variable TZ comes first, if it is set; then the target of the link
// /etc/localtime; then the name in /etc/timezone. In containers /etc/localtime is often
// a copy: its zone is the one in the zone database with the same clock.
func unixZone(root, tz string, set bool) (string, error) {
	if set {
		return zoneOfTZ(root, tz)
	}
	return zoneOfFile(root, zoneFile)
}

// zoneOfTZ returns the zone that a value of TZ names: NAME or the path of a file, with
// or without a colon before it. Empty is UTC. A rule such as CET-1CEST has no name.
func zoneOfTZ(root, tz string) (string, error) {
	tz = strings.TrimPrefix(tz, ":")
	if tz == "" || tz == "UTC0" {
		return "UTC", nil
	}
	if filepath.IsAbs(tz) {
		return zoneOfFile(root, tz)
	}
	if name := zoneIn(tz); name == strings.TrimPrefix(strings.TrimPrefix(tz, "posix/"), "right/") {
		return name, nil
	}
	return "", fmt.Errorf("TZ is %.40q, which names no zone of the zone database", tz)
}

// zoneOfFile returns the zone that the file describes.
func zoneOfFile(root, file string) (string, error) {
	path := filepath.Join(root, file)
	if name := zoneIn(file); name != "" {
		return name, nil
	}
	if target, err := os.Readlink(path); err == nil {
		if name := zoneIn(target); name != "" {
			return name, nil
		}
		if target, err = filepath.EvalSymlinks(path); err == nil && zoneIn(target) != "" {
			return zoneIn(target), nil
		}
	}
	text, _ := os.ReadFile(filepath.Join(root, zoneNameFile)) // absent on most systems
	stated := strings.TrimSpace(string(text))
	if zoneIn(stated) != stated {
		stated = ""
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && file == zoneFile {
		if stated == "" {
			return "", errNoZone
		}
		return stated, nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot read the time zone: %w", err)
	}
	here, err := time.LoadLocationFromTZData("", data)
	if err != nil {
		return "", fmt.Errorf("cannot read the time zone in %s: %w", file, err)
	}
	if name := sameClock(here, append([]string{stated, "UTC"}, zoneNames(root)...)); name != "" {
		return name, nil
	}
	return "", fmt.Errorf("%s is a copy without a name, and no zone of %s has its clock", file, zoneListFile)
}

// zoneIn returns the zone whose name a path ends in; empty if there is none.
func zoneIn(path string) string {
	path = filepath.ToSlash(path)
	for {
		// What these hold differs between computers.
		local := slices.Contains([]string{"", "Local", "localtime", "posixrules"}, path)
		if _, err := time.LoadLocation(path); err == nil && !local {
			return strings.TrimPrefix(strings.TrimPrefix(path, "posix/"), "right/")
		}
		_, rest, ok := strings.Cut(path, "/")
		if !ok {
			return ""
		}
		path = rest
	}
}

// zoneNames returns the zones that the zone database lists: those whose clocks have
// differed since 1970.
func zoneNames(root string) (names []string) {
	text, _ := os.ReadFile(filepath.Join(root, zoneListFile)) // without it there are none
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[0][0] != '#' {
			names = append(names, fields[2])
		}
	}
	return names
}

// sameClock returns the first of the zones that has agreed with here for longest, from
// 1970 to a decade from now; empty if none does from now on.
func sameClock(here *time.Location, names []string) string {
	found, since := "", time.Now()
	for _, name := range names {
		zone, err := time.LoadLocation(name)
		if err != nil || name == "" {
			continue
		}
		if t := agreeSince(here, zone, time.Now().AddDate(10, 0, 0)); t.Before(since) {
			found, since = name, t
		}
	}
	return found
}

// agreeSince returns since when the clocks of a and b agree until end; 1970 at the
// earliest.
func agreeSince(a, b *time.Location, end time.Time) time.Time {
	since := end
	for start := time.Unix(0, 0); since.After(start); {
		inA, inB := since.Add(-time.Second).In(a), since.Add(-time.Second).In(b)
		_, offsetA := inA.Zone()
		_, offsetB := inB.Zone()
		if offsetA != offsetB {
			return since
		}
		since = start
		for _, t := range []time.Time{inA, inB} {
			if from, _ := t.ZoneBounds(); from.After(since) {
				since = from
			}
		}
	}
	return since
}
