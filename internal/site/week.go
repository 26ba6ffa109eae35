package site

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// dayMinutes is the length of a day on a wall clock.
const dayMinutes = 24 * 60

// weekOrder is the order of the days on the pages.
var weekOrder = []time.Weekday{
	time.Monday, time.Tuesday, time.Wednesday, time.Thursday, time.Friday, time.Saturday, time.Sunday,
}

// week is the picture of a machine's sharing hours, on the machine's own wall clock.
type week struct {
	Days  []weekDay
	Words string // the same as text, for screen readers
}

// weekDay is one day of a week, in minutes.
type weekDay struct {
	Name  string
	Today bool
	Now   int // minute of the day, if the day is today
	Open  []span
}

// span is an open part of a day.
type span struct{ From, Length int }

// drawWeek returns the picture of the hours. now is marked in it.
func drawWeek(hours, zone string, now time.Time) week {
	h, err := fleet.AdvertisedHours(hours, zone)
	if err != nil { // cannot happen: the hours and the zone are from a valid Hours
		return week{}
	}
	there := h.Now(now)
	pic := week{Words: "Open " + hours + ", in the time zone " + h.Zone()}
	windows := h.Windows()
	if h.Always() {
		pic.Words = "Always open"
		windows = []fleet.Window{{Days: weekOrder, To: dayMinutes}}
	}
	switch {
	case h.ZoneKnown():
		pic.Words += fmt.Sprintf(". Machine time: %s.", there.Format("Mon 15:04"))
	case h.Always():
		pic.Words = fmt.Sprintf("Always open. Its time zone %q is not known here, "+
			"so members whose share has hours cannot use it.", zone)
	default:
		pic.Words = fmt.Sprintf("Open %s in the time zone %q, which this hub does not know: "+
			"others cannot use the machine until you choose another zone.", hours, zone)
	}
	for i, day := range weekOrder {
		d := weekDay{Name: day.String()[:3], Today: h.ZoneKnown() && day == there.Weekday(),
			Now: there.Hour()*60 + there.Minute()}
		before := weekOrder[(i+6)%7]
		for _, w := range windows {
			on := slices.Contains(w.Days, day)
			switch {
			case w.From < w.To && on:
				d.Open = append(d.Open, span{w.From, w.To - w.From})
			case w.From > w.To && on:
				d.Open = append(d.Open, span{w.From, dayMinutes - w.From})
			}
			if w.From > w.To && slices.Contains(w.Days, before) {
				d.Open = append(d.Open, span{0, w.To})
			}
		}
		pic.Days = append(pic.Days, d)
	}
	return pic
}

// hoursRow is one window in the editor of sharing hours.
type hoursRow struct {
	N        int // suffix of its fields' names
	Days     []dayBox
	From, To string
}

// Number returns the number of the window, from 1.
func (r hoursRow) Number() int { return r.N + 1 }

// dayBox is a day's checkbox.
type dayBox struct {
	Word string
	On   bool
}

// maxHoursRows is the maximum number of windows in the editor.
const maxHoursRows = 64

// hoursRows returns the windows in the editor, and an empty one to add.
func hoursRows(hours string) []hoursRow {
	h, err := fleet.ParseHours(hours, "")
	if err != nil {
		return nil
	}
	clock := func(minute int) string { return fmt.Sprintf("%02d:%02d", minute/60%24, minute%60) }
	var rows []hoursRow
	for _, w := range h.Windows() {
		var days []string
		for _, day := range w.Days {
			days = append(days, day.String()[:3])
		}
		rows = append(rows, newHoursRow(len(rows), days, clock(w.From), clock(w.To)))
	}
	return withEmptyRow(rows)
}

// typedRows returns the windows of the editor as they were typed, and an empty one to add.
func typedRows(form url.Values) []hoursRow {
	var rows []hoursRow
	for i := range maxHoursRows {
		n := fmt.Sprint("-", i)
		days, from, to := form["days"+n], form.Get("from"+n), form.Get("to"+n)
		if len(days) > 0 || from != "" || to != "" {
			rows = append(rows, newHoursRow(len(rows), days, from, to))
		}
	}
	return withEmptyRow(rows)
}

// newHoursRow returns the window with that index in the editor.
func newHoursRow(n int, days []string, from, to string) hoursRow {
	row := hoursRow{N: n, From: from, To: to}
	for _, day := range weekOrder {
		name := day.String()[:3]
		row.Days = append(row.Days, dayBox{name, slices.Contains(days, name)})
	}
	return row
}

// withEmptyRow adds an empty window, unless the editor has its maximum.
func withEmptyRow(rows []hoursRow) []hoursRow {
	return append(rows, newHoursRow(len(rows), nil, "", ""))[:min(len(rows)+1, maxHoursRows)]
}

// readRows returns the editor's windows in the syntax of ParseHours. A window without a
// day is open every day; one without days and times is skipped, and one that lacks a time
// is refused.
func readRows(form url.Values) (string, error) {
	var windows []string
	for i := range maxHoursRows {
		n := fmt.Sprint("-", i)
		days, from, to := form["days"+n], form.Get("from"+n), form.Get("to"+n)
		switch {
		case len(days) == 0 && from == "" && to == "":
			continue
		case from == "" || to == "":
			return "", fault.New(fault.InvalidRequest, "window %d needs both times, From and To; "+
				"to remove it, empty its days and times", len(windows)+1).WithParam("hours")
		case len(days) == 0:
			days = []string{"Mon-Sun"}
		}
		windows = append(windows, fmt.Sprintf("%s %s-%s", strings.Join(days, ","), from, to))
	}
	return strings.Join(windows, "; "), nil
}
