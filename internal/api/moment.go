package api

import (
	"fmt"
	"time"
)

// Moment formats a time for people, in the time zone of now: "14:05" if it is today, "23
// Nov 14:05" if it is this year, otherwise "23 Nov 2026 14:05". It marks times in UTC as
// such. If now is zero, the result is always complete and in UTC.
func Moment(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	t = t.In(now.Location())
	layout := "2 Jan 2006 15:04"
	switch {
	case t.Year() == now.Year() && t.YearDay() == now.YearDay():
		layout = "15:04"
	case t.Year() == now.Year():
		layout = "2 Jan 15:04"
	}
	if t.Location() == time.UTC {
		layout += " UTC"
	}
	return t.Format(layout)
}

// Number formats an integer for people, with commas as thousands separators.
func Number(n any) string {
	text := fmt.Sprintf("%d", n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
