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

// The files with the time zone of a Unix system and with the list of zones in the zone
// database.
const (
	zoneFile     = "/etc/localtime"
	zoneNameFile = "/etc/timezone"
	zoneListFile = "/usr/share/zoneinfo/zone1970.tab"
)

// errNoZone is returned on computers without a time zone, such as most containers.
var errNoZone = errors.New("TZ is not set, and there is no " + zoneFile)

// Zone returns the IANA name of this computer's time zone, or an error if it is unknown.
func Zone() (string, error) {
	tz, set := os.LookupEnv("TZ")
	return unixZone("/", tz, set)
}

// unixZone returns the IANA name of the time zone of the computer whose files are below
// root. It uses the variable TZ, if set, then the target of the link /etc/localtime, then
// the name in /etc/timezone. In containers /etc/localtime is often a copy; its zone is
// then found in the zone database by comparing clocks.
func unixZone(root, tz string, set bool) (string, error) {
	if set {
		return zoneOfTZ(root, tz)
	}
	return zoneOfFile(root, zoneFile)
}

// zoneOfTZ returns the zone for a value of TZ: a name or the path of a file, with or
// without a leading colon. The empty value is UTC. A rule such as CET-1CEST has no name.
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
	return "", fmt.Errorf("TZ is %.40q, which is not in the zone database", tz)
}

// zoneOfFile returns the zone that the file defines.
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
	text, _ := os.ReadFile(filepath.Join(root, zoneNameFile)) // missing on most systems
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

// zoneIn returns the zone at the end of a path, or "".
func zoneIn(path string) string {
	path = filepath.ToSlash(path)
	for {
		// The content of these files differs between computers.
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
// differed at any time since 1970.
func zoneNames(root string) (names []string) {
	text, _ := os.ReadFile(filepath.Join(root, zoneListFile)) // without the file there are none
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[0][0] != '#' {
			names = append(names, fields[2])
		}
	}
	return names
}

// sameClock returns the zone whose clock has agreed with here for the longest time,
// looking from 1970 to ten years from now, or "" if no clock agrees from now on. Of
// several it returns the first.
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

// agreeSince returns since when, 1970 at the earliest, the clocks of a and b agree until
// end.
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
