package fleet

import (
	"fmt"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // so that the zones are the same wherever the tests run

	"github.com/kith/kith/internal/assert"
)

func hours(t testing.TB, text, zone string) Hours {
	t.Helper()
	h := assert.Value(ParseHours(text, zone))(t)
	return h
}

// zones reads each zone once: the random worlds ask for three a million times.
var zones = map[string]Hours{}

func knownHours(t testing.TB, text, zone string) Hours {
	t.Helper()
	if _, ok := zones[zone]; !ok {
		zones[zone] = hours(t, "", zone)
	}
	h := zones[zone]
	if text != "" {
		h.windows = hours(t, text, "UTC").windows
	}
	return h
}

func TestWindows(t *testing.T) {
	h := hours(t, "Sun,Mon 22:00-06:00; Wed 00:00-24:00", "Asia/Tokyo")
	got := fmt.Sprint(h.Windows())
	if want := "[{[Monday Sunday] 1320 360} {[Wednesday] 0 1440}]"; got != want {
		t.Errorf("the windows are %s, want %s", got, want)
	}
	at := time.Date(2026, 11, 21, 20, 0, 0, 0, time.UTC)
	if len((Hours{}).Windows()) != 0 || (Hours{}).Now(at) != at || h.Now(at).Format("Mon 15:04") != "Sun 05:00" {
		t.Errorf("it is %s", h.Now(at))
	}
}

func TestParseHours(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"  ", ""},
		{"Mon-Fri 18:00-23:00; Sat,Sun 00:00-24:00", "Mon-Fri 18:00-23:00; Sat,Sun 00:00-24:00"},
		{"mon-fri 18:00-23:00;sat , sun 00:00-24:00", "Mon-Fri 18:00-23:00; Sat,Sun 00:00-24:00"},
		{"Sun,Sat,Sat 09:30-10:00", "Sat,Sun 09:30-10:00"},
		{"Fri-Mon 22:00-06:00", "Mon,Fri-Sun 22:00-06:00"},
		{"Mon,Tue,Wed 00:00-00:01", "Mon-Wed 00:00-00:01"},
		{"Mon-Sun 18:00-00:00", "Mon-Sun 18:00-24:00"},
		{"Wed 23:59-24:00", "Wed 23:59-24:00"},
		{"Wed 22:59-23:59", "Wed 22:59-23:59"},
		{"Mon-Wed,Fri-Sun 09:00-10:00", "Mon-Wed,Fri-Sun 09:00-10:00"},
		{"Tue-Mon 00:00-24:00", "Mon-Sun 00:00-24:00"},
	} {
		h := hours(t, c.text, "Europe/Lisbon")
		assert.That(t, h.String() == c.want && h.Zone() == "Europe/Lisbon", c.text, h, "in", h.Zone(), c.want)
	}
	if h := hours(t, strings.Repeat("Mon 18:00-19:00;", 63)+"Tue 18:00-19:00", ""); strings.Count(h.String(), ";") != 63 {
		t.Errorf("64 windows are %q", h)
	}
	if h := hours(t, "", ""); h.Zone() != "UTC" || !h.Always() || (Hours{}).Zone() != "UTC" {
		t.Errorf("no zone is %s", h.Zone())
	}
}

func TestParseHoursRefuses(t *testing.T) {
	for _, c := range []struct{ text, zone, says string }{
		{"Mon-Fri", "", "write days and a window"},
		{"18:00-23:00", "", "write days and a window"},
		{"Mon 18:00-23:00;", "", "write days and a window"},
		{"Mo 18:00-23:00", "", "cannot read the days"},
		{"Mon-Fri-Sun 18:00-23:00", "", "cannot read the days"},
		{"Mo-Fri 18:00-23:00", "", "cannot read the days"},
		{"Mon,,Tue 18:00-23:00", "", "cannot read the days"},
		{"Mon- 18:00-23:00", "", "cannot read the days"},
		{"Mon 18:00", "", "cannot read the window"},
		{"Mon 18-23", "", "cannot read the window"},
		{"Mon 8:00-23:00", "", "cannot read the window"},
		{"Mon 18.00-23:00", "", "cannot read the window"},
		{"Mon 18:xx-23:00", "", "cannot read the window"},
		{"Mon 18:60-23:00", "", "cannot read the window"},
		{"Mon 18:00-24:01", "", "cannot read the window"},
		{"Mon 24:00-24:00", "", "cannot read the window"},
		{"Mon +8:00-23:00", "", "cannot read the window"},
		{"Mon 18:00-23:00-24:00", "", "cannot read the window"},
		{"Mon 18:00-18:00", "", "is empty"},
		{strings.Repeat("Mon 18:00-19:00;", 64) + "Tue 18:00-19:00", "", "more than 64"},
		{"", "Local", "time zone"},
		{"", "Europe/Lisboa", "time zone"},
		{"", "../etc/passwd", "time zone"},
		{"", "/etc/localtime", "time zone"},
	} {
		h, err := ParseHours(c.text, c.zone)
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), "cannot ") {
			t.Errorf("%q in %q is %v, error %v; want one that says %q", c.text, c.zone, h, err, c.says)
		}
	}
}

func TestHoursOpen(t *testing.T) {
	const office = "Mon-Fri 18:00-23:00; Sat,Sun 00:00-24:00"
	const night = "Fri 22:00-02:30"
	for _, c := range []struct {
		text, zone, at string
		want           bool
	}{
		{"", "", "2026-11-21T12:00:00Z", true},
		{office, "Europe/Berlin", "2026-11-20T16:59:59Z", false}, // Friday 17:59 there
		{office, "Europe/Berlin", "2026-11-20T17:00:00Z", true},
		{office, "Europe/Berlin", "2026-11-20T21:59:59Z", true},
		{office, "Europe/Berlin", "2026-11-20T22:00:00Z", false},
		{office, "Europe/Berlin", "2026-11-20T23:00:00Z", true}, // Saturday there
		{office, "Europe/Berlin", "2026-11-22T22:59:59Z", true},
		{office, "Europe/Berlin", "2026-11-22T23:00:00Z", false},     // Monday there
		{office, "Pacific/Kiritimati", "2026-11-20T10:00:00Z", true}, // Saturday, 14 h ahead
		{night, "", "2026-11-20T21:59:59Z", false},
		{night, "", "2026-11-20T22:00:00Z", true},
		{night, "", "2026-11-21T00:00:00Z", true}, // Saturday belongs to Friday's window
		{night, "", "2026-11-21T02:29:59Z", true},
		{night, "", "2026-11-21T02:30:00Z", false},
		{night, "", "2026-11-20T01:00:00Z", false}, // Friday morning is Thursday's
		{"Sun 23:00-01:00", "", "2026-11-23T00:30:00Z", true},
		{"Sat 23:00-01:00", "", "2026-11-22T00:30:00Z", true},
	} {
		at := assert.Value(time.Parse(time.RFC3339, c.at))(t)
		assert.Equal(t, hours(t, c.text, c.zone).Open(at), c.want, c.text, "in", c.zone, "at", c.at, "open")
	}
}

// Hours in a zone that this computer does not know are closed, to the members of a share
// with hours of its own too, and keep what their machine advertised.
func TestHoursInAnUnknownZone(t *testing.T) {
	evening := hours(t, "Sat 12:00-13:00", "UTC")
	for _, zone := range []string{"Mars/Olympus", "Local", ""} {
		h, err := AdvertisedHours("Mon-Sun 00:00-24:00", zone)
		if err != nil || h.ZoneKnown() || h.Open(noon) || h.Zone() != zone || h.String() != "Mon-Sun 00:00-24:00" {
			t.Errorf("%q: %v, open %t, %q in %q", zone, err, h.Open(noon), h, h.Zone())
		}
		always, err := AdvertisedHours("", zone)
		if err != nil || always.ZoneKnown() || !always.Open(noon) {
			t.Errorf("%q, without windows: %v, open %t", zone, err, always.Open(noon))
		}
		m := &Machine{Online: true, Hours: always, Load: new(Load)}
		if got := m.state(Shared, &Limits{Hours: evening}, noon, true); got != OutsideHours {
			t.Errorf("%q: a share with hours finds the machine %s", zone, got)
		}
		assert.Equal(t, m.state(Shared, nil, noon, true), Ready, zone, "a share without hours finds the machine")
	}
	if _, err := AdvertisedHours("whenever", "Mars/Olympus"); err == nil {
		t.Error("unreadable hours were read")
	}
	if h, err := AdvertisedHours("Sat 12:00-13:00", "UTC"); err != nil || !h.ZoneKnown() || !h.Open(noon) {
		t.Errorf("UTC: %v, open %t", err, h.Open(noon))
	}
}

// A share's hours are read on the wall clock of a machine that may name no zone.
func TestHoursWithoutAZoneAreInUTC(t *testing.T) {
	h := hours(t, "Sat 12:00-13:00", "Asia/Tokyo")
	if !h.openOn(noon, Hours{}) || h.openOn(noon.Add(-time.Minute), Hours{}) || h.Open(noon) {
		t.Error("not on UTC's clock")
	}
}

// Every range of days is open on its days and no other, and prints as it reads.
func TestEveryRangeOfDays(t *testing.T) {
	days := []string{"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"}
	for first := range 7 {
		for length := 1; length <= 7; length++ {
			text := days[first] + "-" + days[(first+length-1)%7] + " 12:00-12:01"
			h := hours(t, text, "")
			for day := range 7 {
				at := time.Date(2026, 11, 16+day, 12, 0, 0, 0, time.UTC) // the 16th is a Monday
				if want := (day-first+7)%7 < length; h.Open(at) != want {
					t.Errorf("%q on a %s: open %v", text, days[day], !want)
				}
			}
			if inWeek := first+length <= 7; inWeek && length >= 3 && h.String() != text {
				t.Errorf("%q prints as %q", text, h)
			}
		}
	}
}

// minutesOpen counts, minute by minute, how long the hours are open from start on.
func minutesOpen(h Hours, start time.Time, days int) int {
	n := 0
	for i := range days * 24 * 60 {
		if h.Open(start.Add(time.Duration(i) * time.Minute)) {
			n++
		}
	}
	return n
}

// Berlin: 02:00–03:00 does not exist on 29 March 2026 and comes twice on 25 October.
func TestHoursWhenClocksChange(t *testing.T) {
	const zone = "Europe/Berlin"
	for _, c := range []struct {
		text           string
		spring, autumn int // minutes open on the Sunday itself, by the wall clock
	}{
		{"Sun 02:00-03:00", 0, 120},
		{"Sun 01:30-03:30", 60, 180},
		{"Sun 02:30-02:45", 0, 30},
		{"Sun 00:00-24:00", 23 * 60, 25 * 60},
		{"Sat 23:00-02:30", 120, 180},
		{"Sun 03:00-04:00", 60, 60},
	} {
		h := hours(t, c.text, zone)
		loc := h.zone
		for _, day := range []struct {
			name string
			day  time.Time
			want int
		}{
			{"spring", time.Date(2026, 3, 29, 0, 0, 0, 0, loc), c.spring},
			{"autumn", time.Date(2026, 10, 25, 0, 0, 0, 0, loc), c.autumn},
		} {
			next := day.day.AddDate(0, 0, 1)
			got := 0
			for at := day.day; at.Before(next); at = at.Add(time.Minute) {
				if h.Open(at) {
					got++
				}
			}
			assert.Equal(t, got, day.want, c.text, day.name, "open")
		}
	}
	// A week without a change, for comparison.
	if got := minutesOpen(hours(t, "Sun 02:00-03:00", zone), time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC), 7); got != 60 {
		t.Errorf("open %d min in an ordinary week, want 60", got)
	}
}

// Where the clock changes at midnight, a day begins at 01:00.
func TestHoursWhenMidnightDoesNotExist(t *testing.T) {
	h := hours(t, "Sun 00:00-01:00", "Asia/Beirut") // 29 March 2026: 00:00 → 01:00
	if got := minutesOpen(h, time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC), 1); got != 0 {
		t.Errorf("open %d min in an hour that never came", got)
	}
}

func FuzzParseHours(f *testing.F) {
	f.Add("Mon-Fri 18:00-23:00; Sat,Sun 00:00-24:00", "Europe/Lisbon", int64(1_800_000_000))
	f.Add("Fri-Mon 22:00-06:00", "Asia/Beirut", int64(0))
	f.Add("", "UTC", int64(-1))
	f.Fuzz(func(t *testing.T, text, zone string, unix int64) {
		h, err := ParseHours(text, zone)
		if err != nil {
			return
		}
		again, err := ParseHours(h.String(), h.Zone())
		assert.OK(t, err, text, "prints as", h, "which does not parse")
		at := time.Unix(unix%(1<<35), 0)
		if again.String() != h.String() || again.Open(at) != h.Open(at) || h.Always() != (strings.TrimSpace(text) == "") {
			t.Fatalf("%q is %q and then %q", text, h, again)
		}
	})
}

func FuzzModelID(f *testing.F) {
	for _, id := range []string{"", "qwen3:8b", " x", "x\u0085", "a\u202eb", "\xff", "org/模型-7B", strings.Repeat("a", 257)} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		valid := ModelID(id).Valid()
		if valid && (len(id) == 0 || len(id) > MaxModelID || strings.ContainsAny(id, "\x00\r\n\t\u202e\u2028") || id != strings.ToValidUTF8(id, "") || strings.TrimSpace(id) != id) {
			t.Fatalf("%q passes", id)
		}
		quoted := string(appendQuoted(nil, ModelID(id)))
		if strings.ContainsAny(quoted, "\x00\r\n\t\u202e\u2028") || len(quoted) > 12*MaxModelID {
			t.Fatalf("%q is quoted as %s", id, quoted)
		}
	})
}

// A machine opens for a caller at the next time that is within its hours and within those of
// the caller's limits, on the machine's clock.
func TestOpens(t *testing.T) {
	hours := func(text, zone string) Hours { return assert.Value(AdvertisedHours(text, zone))(t) }
	wednesday := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		class   Class
		machine Hours
		limits  *Limits
		want    string // RFC 3339; "": it does not open, or is open
	}{
		"always":                      {Shared, Hours{}, nil, ""},
		"open now":                    {Shared, hours("Wed 10:00-13:00", "UTC"), nil, ""},
		"this evening":                {Shared, hours("Mon-Fri 18:00-23:00", "UTC"), nil, "2026-11-25T18:00:00Z"},
		"on Saturday":                 {Grouped, hours("Sat 10:00-12:00", "Europe/Lisbon"), nil, "2026-11-28T10:00:00Z"},
		"in another zone":             {Shared, hours("Wed 20:00-22:00", "America/New_York"), nil, "2026-11-26T01:00:00Z"},
		"in a week":                   {Shared, hours("Wed 09:00-11:00", "UTC"), nil, "2026-12-02T09:00:00Z"},
		"the owner's own":             {Own, hours("Sat 10:00-12:00", "UTC"), nil, ""},
		"by the limits":               {Shared, Hours{}, &Limits{Hours: hours("Thu 08:00-09:00", "")}, "2026-11-26T08:00:00Z"},
		"by both, the machine's last": {Shared, hours("Thu 09:00-12:00", "UTC"), &Limits{Hours: hours("Thu 08:00-10:00", "")}, "2026-11-26T09:00:00Z"},
		"by both, the limits' last":   {Shared, hours("Thu 07:00-12:00", "UTC"), &Limits{Hours: hours("Thu 08:00-10:00", "")}, "2026-11-26T08:00:00Z"},
		"by both, never":              {Shared, hours("Thu 07:00-08:00", "UTC"), &Limits{Hours: hours("Fri 08:00-10:00", "")}, ""},
		"a zone that is not known":    {Shared, hours("Thu 07:00-08:00", "Mars/Olympus"), nil, ""},
	} {
		got := (&Candidate{Machine: &Machine{Hours: c.machine}, Class: c.class, Limits: c.limits}).Opens(wednesday)
		text := ""
		if !got.IsZero() {
			text = got.UTC().Format(time.RFC3339)
		}
		assert.Equal(t, text, c.want, name)
	}
}
