package site

import (
	"net/url"
	"testing"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
)

// TestLimitsForm checks the fields of limits: with those in force, and as they were typed.
func TestLimitsForm(t *testing.T) {
	offered := []string{"big", "tiny"}
	f := newLimitFields("", offered, api.Limits{Models: []string{"tiny", "gone"}, Hours: "Sat,Sun 10:00-24:00", PerDay: new(7)}, nil)
	assert.Same(t, f.Models, []modelBox{{"gone", true, false}, {"tiny", true, true}, {"big", false, true}})
	assert.Equal(t, f.PerDay+"|"+f.Concurrent+"|"+f.Other, "7||")
	assert.Equal(t, f.Rows[0].From+f.Rows[0].To, "10:0000:00")
	assert.That(t, !f.HoursOpen && len(f.Rows) == 2, "the hours", f.Rows)

	typed := url.Values{"models": {"big", "new one\r\nbig\r\n"}, "per_day": {"many"}, "concurrent": {"2"},
		"days-3": {"Mon", "Tue"}, "from-3": {"25:00"}, "to-3": {"26:00"}}
	f = newLimitFields("", offered, api.Limits{Models: []string{"gone"}, PerDay: new(7)}, typed)
	assert.Same(t, f.Models, []modelBox{{"big", true, true}, {"tiny", false, true}})
	assert.Equal(t, f.PerDay+"|"+f.Concurrent+"|"+f.Other, "many|2|new one")
	assert.Equal(t, f.Rows[0].From+f.Rows[0].To, "25:0026:00")
	assert.That(t, f.HoursOpen && f.Rows[0].Days[1].On && !f.Rows[0].Days[2].On, "the hours", f.Rows)

	f = newLimitFields("", nil, api.Limits{}, nil)
	assert.That(t, len(f.Models) == 0 && len(f.Rows) == 1 && f.Hours == "", "without limits", f)
}

// TestLimitsByBoxes checks that a form with checkboxes and windows sets those limits, and that
// one without any ends them.
func TestLimitsByBoxes(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	limits := func() api.Limits {
		return good[api.List[api.Share]](tn.world, "ada", "GET", "/api/shares", "").Data[0].Limits
	}
	good[anything](tn.world, "ada", "POST", "/api/shares", `{"with":"bob"}`)
	form := url.Values{"with": {"bob"}, "models": {"tiny", "other\r\ntiny"}, "concurrent": {""}, "per_day": {"3"}, "days-0": {"Sat", "Sun"}, "from-0": {"10:00"}, "to-0": {"12:00"}}
	ada.do("POST", "/sharing/limits", form).goes(t, "/access")
	assert.Same(t, limits(), api.Limits{Models: []string{"tiny", "other"}, Hours: "Sat,Sun 10:00-12:00", PerDay: new(3)})
	ada.get("/access?member=bob").want(t, 200, `value="other" checked><span>other <small class="muted">not available now`, "Hours: Sat,Sun 10:00-12:00 machine time", `name="days-0" value="Sat" checked`)
	form.Set("to-0", "")
	ada.do("POST", "/sharing/limits", form).want(t, 400, "window 1 needs both times, From and To", `<details id="with-hours" open`, `<dialog class="panel" id="panel" open`)
	ada.do("POST", "/sharing/limits", url.Values{"with": {"bob"}, "days-0": {"Sat"}, "from-0": {""}, "to-0": {""}}).want(t, 400, "window 1 needs both times")
	ada.do("POST", "/sharing/limits", url.Values{"with": {"bob"}, "from-0": {"10:00"}, "to-0": {"12:00"}}).goes(t, "/access") // every day
	assert.Equal(t, limits().Hours, "Mon-Sun 10:00-12:00")
	ada.do("POST", "/sharing/limits", url.Values{"with": {"bob"}, "models": {""}, "from-0": {""}, "to-0": {""}}).goes(t, "/access")
	got := limits()
	assert.That(t, len(got.Models) == 0 && got.Hours == "" && got.PerDay == nil && got.Concurrent == nil, "limits that were emptied are", got)
}
