package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Hours are weekly windows in the local time of one time zone
// (spec/api.md#sharing-hours). The zero value is always open, in UTC.
//
// Minutes that are skipped when the clocks go forward do not exist; minutes that are
// repeated when they go back count both times.
type Hours struct {
	windows []window
	zone    *time.Location // nil: UTC
	unknown bool           // the zone is named but not in this computer's database
}

// window is open on each of its days from one minute of the day to another. If to is less
// than from, it ends on the following day.
type window struct {
	days     uint8 // bit 1<<time.Sunday … 1<<time.Saturday
	from, to int   // minutes: 0 to 1439, 1 to 1440
}

// maxWindows bounds the number of windows that an advertisement can make Route check.
const maxWindows = 64

const minutesADay = 24 * 60

// weekdays are in ParseHours' order: the week starts on Monday.
var weekdays = []time.Weekday{
	time.Monday, time.Tuesday, time.Wednesday, time.Thursday, time.Friday, time.Saturday, time.Sunday,
}

// word returns the name of the day for ParseHours: Mon, Tue, …
func word(day time.Weekday) string { return day.String()[:3] }

// ParseZone returns the time zone with an IANA name, such as Europe/Lisbon; empty means UTC.
// It refuses names that mean different zones on different computers.
func ParseZone(name string) (*time.Location, error) {
	location, err := time.LoadLocation(name)
	if err != nil || slices.Contains([]string{"Local", "localtime", "posixrules"}, name) {
		return nil, fmt.Errorf("cannot use the time zone %.40q: name one, like Europe/Lisbon", name)
	}
	return location, nil
}

// ParseHours parses weekly windows in the format of `kith hours set`:
//
//	Mon-Fri 18:00-23:00; Sat,Sun 00:00-24:00
//
// A window consists of days, single or in ranges, separated by commas, and two 24-hour
// times. Windows are separated by semicolons. A window that ends before its start ends on
// the following day. An empty text is always open. The zone is an IANA name; empty means
// UTC.
func ParseHours(text, zone string) (Hours, error) {
	location, err := ParseZone(zone)
	if err != nil {
		return Hours{}, err
	}
	h := Hours{zone: location}
	if strings.TrimSpace(text) == "" {
		return h, nil
	}
	for part := range strings.SplitSeq(text, ";") {
		w, err := parseWindow(part)
		if err != nil {
			return Hours{}, err
		}
		if h.windows = append(h.windows, w); len(h.windows) > maxWindows {
			return Hours{}, fmt.Errorf("cannot take more than %d windows of sharing hours", maxWindows)
		}
	}
	return h, nil
}

// AdvertisedHours parses the hours of a machine, whose computer may know time zones that
// this one does not. It fails when ParseHours does, except that windows in an unknown or
// unnamed zone are accepted and are always closed.
func AdvertisedHours(text, zone string) (Hours, error) {
	if zone != "" {
		if h, err := ParseHours(text, zone); err == nil {
			return h, nil
		}
	}
	h, err := ParseHours(text, "")
	h.zone, h.unknown = time.FixedZone(zone, 0), true
	return h, err
}

// ZoneKnown reports whether this computer's database contains the zone.
func (h Hours) ZoneKnown() bool { return !h.unknown }

func parseWindow(text string) (window, error) {
	fields := strings.Fields(text)
	// Spaces around commas are allowed: the times are the last field.
	if len(fields) < 2 {
		return window{}, fmt.Errorf(`cannot read the hours %.40q: write days and a window, like "Mon-Fri 18:00-23:00"`, text)
	}
	words := strings.Join(fields[:len(fields)-1], "")
	days := parseDays(words)
	if days == 0 {
		return window{}, fmt.Errorf("cannot read the days %.40q: write Mon, Tue, Wed, Thu, Fri, Sat or Sun, as in Mon-Fri or Sat,Sun", words)
	}
	times := fields[len(fields)-1]
	start, end, _ := strings.Cut(times, "-")
	from, ok1 := parseMinute(start)
	to, ok2 := parseMinute(end)
	if !ok1 || !ok2 || from == minutesADay {
		return window{}, fmt.Errorf("cannot read the window %.40q: write it from 00:00 to 24:00, like 18:00-23:00", times)
	}
	if to == 0 {
		to = minutesADay // from and to are both midnight
	}
	if from == to {
		return window{}, fmt.Errorf("cannot take the window %.40q: it is empty; a full day is 00:00-24:00", times)
	}
	return window{days: days, from: from, to: to}, nil
}

// parseDays parses the days of a window. It returns 0 if they are invalid.
func parseDays(text string) (days uint8) {
	for item := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(item, "-")
		if !isRange {
			last = first
		}
		i, j := weekday(first), weekday(last)
		if i < 0 || j < 0 {
			return 0
		}
		for ; i != j; i = (i + 1) % 7 {
			days |= 1 << weekdays[i]
		}
		days |= 1 << weekdays[j]
	}
	return days
}

// weekday returns the index of a day's name in weekdays, or a negative number.
func weekday(text string) int {
	return slices.IndexFunc(weekdays, func(day time.Weekday) bool { return strings.EqualFold(word(day), text) })
}

// parseMinute parses HH:MM, from 00:00 to 24:00, into the minute of the day.
func parseMinute(text string) (int, bool) {
	if text == "24:00" {
		return minutesADay, true
	}
	const layout = "15:04"
	t, err := time.Parse(layout, text)
	return t.Hour()*60 + t.Minute(), err == nil && len(text) == len(layout)
}

// Always reports whether the hours have no windows, so that they never close.
func (h Hours) Always() bool { return len(h.windows) == 0 }

// Open reports whether t is inside the hours.
func (h Hours) Open(t time.Time) bool { return h.openOn(t, h) }

// openOn is Open in the local time of other hours.
func (h Hours) openOn(t time.Time, clock Hours) bool {
	zone := clock.zone
	if h.Always() || clock.unknown {
		return h.Always()
	}
	if zone == nil {
		zone = time.UTC
	}
	t = t.In(zone)
	today, minute := t.Weekday(), t.Hour()*60+t.Minute()
	yesterday := (today + 6) % 7
	for _, w := range h.windows {
		switch {
		case w.from < w.to:
			if w.on(today) && w.from <= minute && minute < w.to {
				return true
			}
		case w.on(today) && minute >= w.from, w.on(yesterday) && minute < w.to:
			return true
		}
	}
	return false
}

// Opens returns when the machine next begins to take the candidate's calls, by its hours and
// those of the caller's limits, at most a week after now. It returns the zero time if no
// hours are closed or if they never open.
func (c *Candidate) Opens(now time.Time) (first time.Time) {
	clock, windows := c.Machine.Hours, []window(nil)
	if c.Class != Own {
		windows = slices.Clone(clock.windows)
	}
	if c.Limits != nil {
		windows = append(windows, c.Limits.Hours.windows...)
	}
	open := func(t time.Time) bool {
		return (c.Class == Own || clock.Open(t)) && (c.Limits == nil || c.Limits.Hours.openOn(t, clock))
	}
	if open(now) {
		return first
	}
	there := clock.Now(now)
	for _, w := range windows {
		for day := range 8 {
			at := time.Date(there.Year(), there.Month(), there.Day()+day, 0, w.from, 0, 0, there.Location())
			if at.After(now) && w.on(at.Weekday()) && (first.IsZero() || at.Before(first)) && open(at) {
				first = at
			}
		}
	}
	return first
}

func (w window) on(day time.Weekday) bool { return w.days&(1<<day) != 0 }

// Window is a weekly window of Hours. It is open on each of its days from one minute of
// the day to another, 1 to 1440. If To is less than From, it ends on the following day.
type Window struct {
	Days     []time.Weekday // starting with Monday
	From, To int
}

// Windows returns the windows in their original order.
func (h Hours) Windows() []Window {
	out := make([]Window, len(h.windows))
	for i, w := range h.windows {
		out[i] = Window{From: w.from, To: w.to}
		for _, day := range weekdays {
			if w.on(day) {
				out[i].Days = append(out[i].Days, day)
			}
		}
	}
	return out
}

// Now returns t in the zone of the hours, or in UTC if the zone is unknown.
func (h Hours) Now(t time.Time) time.Time {
	if h.zone == nil || h.unknown {
		return t.UTC()
	}
	return t.In(h.zone)
}

// Zone returns the name of the windows' time zone.
func (h Hours) Zone() string { return h.zone.String() } // of nil: UTC

// String returns the windows in the format of ParseHours, so that ParseHours(h.String(),
// h.Zone()) equals h. It returns "" if the hours are always open.
func (h Hours) String() string {
	var b strings.Builder
	for i, w := range h.windows {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s %02d:%02d-%02d:%02d", w.daysString(), w.from/60, w.from%60, w.to/60, w.to%60)
	}
	return b.String()
}

// daysString formats the days. Three or more in a row become a range: "Mon-Fri",
// "Sat,Sun".
func (w window) daysString() string {
	var items []string
	for i := 0; i < len(weekdays); i++ {
		if !w.on(weekdays[i]) {
			continue
		}
		last := i
		for last+1 < len(weekdays) && w.on(weekdays[last+1]) {
			last++
		}
		if last-i >= 2 {
			items = append(items, word(weekdays[i])+"-"+word(weekdays[last]))
			i = last
			continue
		}
		items = append(items, word(weekdays[i]))
	}
	return strings.Join(items, ",")
}
