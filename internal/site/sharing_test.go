package site

import (
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
)

// TestInvitePage checks that the form creates an invite with limits, which is shown with
// them and as a QR code, and that its share has the limits.
func TestInvitePage(t *testing.T) {
	tn := newTown(t, nil)
	ada, bob := tn.as("ada"), tn.as("bob")
	page := ada.post("/sharing/invite", "uses", "2", "expires", "30d", "models", "tiny\r\nother one", "hours", "sat,sun 00:00-24:00", "concurrent", "2", "per_day", "9").
		want(t, 200, "models tiny, other one; Sat,Sun 00:00-24:00 machine time; 2 at once; 9 calls a day", `id="uses" inputmode="numeric" value="1"`, `src="data:image/png;base64,`)
	link := textOf(t, page, "link")
	code := strings.TrimPrefix(link, tn.web.URL+"/invite/")
	bob.post("/sharing/accept", "code", code).goes(t, "/access/for-you")
	ada.get("/access/invites").want(t, 200, "1 of 2")
	got := good[api.List[api.Share]](tn.world, "bob", "GET", "/api/shares", "").Data[0].Limits
	if diff := cmp.Diff(api.Limits{Models: []string{"tiny", "other one"}, Hours: "Sat,Sun 00:00-24:00", Concurrent: new(2), PerDay: new(9)}, got); diff != "" {
		t.Error(diff)
	}
	ada.post("/sharing/invite", "uses", "0").want(t, 400, "How many people is a whole number from 1 to 1,000,000, or empty", `inputmode="numeric" value="0"`)
	// The values of a refused form are still in it, and in no other form.
	again := ada.post("/sharing/invite", "uses", "3", "per_day", "many", "hours", "Mon 10:00-12:00").want(t, 400, "Calls a day is a whole number from 1", `id="invite-per-day" inputmode="numeric" placeholder="no limit" value="many"`, `id="uses" inputmode="numeric" value="3"`)
	if strings.Count(again.body, `value="many"`) != 1 {
		t.Error("the form for a share holds what was typed for an invite")
	}
	ada.get("/access/invites").want(t, 200, `aria-label="Revoke the invite`)
}

// TestInvitedFriendLandsInChat checks that who accepts an invite, with a new account or an old
// one, comes to a chat with the inviter's model that is ready, and else to where it was before.
func TestInvitedFriendLandsInChat(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	page := ada.post("/sharing/invite", "uses", "5").want(t, 200)
	code := strings.TrimPrefix(textOf(t, page, "link"), tn.web.URL+"/invite/")
	join := func(name string) seen {
		return tn.browser().post("/signup", "invite", code, "name", name, "password", aPassword)
	}
	tn.models = []api.Model{{ID: "own of bob", Availability: "ready", Via: "own", Owner: "bob", Chat: true}, {ID: "ada's idle", Availability: "offline", Via: "shared", Owner: "ada", Chat: true}}
	join("zoe").goes(t, "/")
	tn.models[1].Availability = "busy"
	join("xia").goes(t, "/")
	tn.models = append(tn.models, api.Model{ID: "ada/it's ready", Availability: "ready", Via: "shared", Owner: "ada", Chat: true}, api.Model{ID: "ada's embeddings", Availability: "ready", Via: "shared", Owner: "ada"})
	const chat = "/try?model=ada%2Fit%27s+ready"
	join("yan").goes(t, chat)
	bob := tn.as("bob")
	bob.post("/sharing/accept", "code", code).goes(t, chat)
	bob.get(chat).want(t, 200, "ada shares their machines with you. What you write here runs on them, and ada could read it.", `class="shelf"`)
	bob.post("/sharing/accept", "code", code).goes(t, "/access/for-you")
}

// TestAnInviteOpenedAgain checks that the link of an invite leads the member who accepted it to
// where it led at first, however often it is opened, and no one else.
func TestAnInviteOpenedAgain(t *testing.T) {
	tn := newTown(t, nil)
	ada, bob, eve := tn.as("ada"), tn.as("bob"), tn.as("eve")
	tn.models = []api.Model{{ID: "tiny", Availability: "ready", Via: "shared", Owner: "ada", Chat: true}}
	link := textOf(t, ada.post("/sharing/invite", "uses", "1"), "link")
	at := strings.TrimPrefix(link, tn.web.URL)
	ada.get(at).goes(t, "/access/invites")
	ada.get("/access/invites").want(t, 200, "This is your own invite")
	bob.post("/sharing/accept", "code", link).goes(t, "/try?model=tiny")
	again := func(who string) {
		t.Helper()
		bob.get(at).goes(t, "/try?model=tiny")
		bob.post("/sharing/accept", "code", link).goes(t, "/try?model=tiny")
		for _, other := range []*browser{eve, tn.browser()} {
			other.get(at).want(t, 404, "the invite of ada is "+who)
		}
		eve.post("/sharing/accept", "code", link).want(t, 404, "the invite is wrong, used up, expired or revoked")
	}
	again("used up")
	bob.post("/signup", "invite", link, "name", "bob2", "password", aPassword).goes(t, at) // a tab from before bob signed in
	next := tn.browser()
	_, rest, _ := strings.Cut(next.get(at).want(t, 404).body, `<a href="/signin?next=`)
	to, _, _ := strings.Cut(rest, `"`)
	to, _ = url.QueryUnescape(to)
	bob.post("/account/password", "password", aPassword).goes(t, "/account")
	next.post("/signin", "name", "bob", "password", aPassword, "next", to).goes(t, at)
	next.get(at).goes(t, "/try?model=tiny")
	tn.models[0].Availability = "offline"
	next.get(at).goes(t, "/access/for-you")
	tn.models[0].Availability = "ready"
	good[anything](tn.world, "ada", "DELETE", "/api/shares/bob", "") // now it leads nowhere for bob, too
	bob.get(at).want(t, 404, "the invite of ada is used up: ask ada for another")
}

// TestHoursEditor checks that the checked boxes become the hours, and that the page shows
// them as a picture and as text.
func TestHoursEditor(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	ada.get("/machines/"+tn.machine.ID+"?tab=sharing").want(t, 200, `aria-label="Open Mon-Sun 00:00-24:00, in the time zone Europe/Lisbon. Machine time: `, "Edit hours",
		`name="days-0" value="Mon" checked>`, `name="days-1" value="Mon">`, `name="from-0" value="00:00"`, `name="to-0" value="00:00"`)
	post := func(form url.Values) seen {
		form.Set("machine", tn.machine.ID)
		return ada.do("POST", "/machines/hours", form)
	}
	post(url.Values{
		"days-0": {"Mon", "Tue", "Wed"}, "from-0": {"18:00"}, "to-0": {"23:00"}, "from-1": {"01:00"}, "to-1": {"02:00"}, // without a day: every day
		"days-2": {"Sat"}, "from-2": {"22:00"}, "to-2": {"00:00"}, "timezone": {"Asia/Kolkata"},
	}).goes(t, "/machines/"+tn.machine.ID+"?tab=sharing")
	post(url.Values{}).goes(t, "/machines/"+tn.machine.ID+"?tab=sharing")
	ada.post("/machines/slots", "machine", tn.machine.ID, "slots", "2").goes(t, "/machines/"+tn.machine.ID+"?tab=settings")
	hours, zone, always, two := "Mon,Tue,Wed 18:00-23:00; Mon-Sun 01:00-02:00; Sat 22:00-00:00", "Asia/Kolkata", "", 2
	assert.Same(t, tn.controls, []fleet.Control{{Hours: &hours, Timezone: &zone}, {Hours: &always}, {Slots: &two}})
	post(url.Values{"days-0": {"Mon"}, "from-0": {"10:00"}}).want(t, 400, "window 1 needs both times", `id="hours-`+tn.machine.ID+`" open="">`)
	post(url.Values{"days-0": {"<b>"}, "from-0": {"10:00"}, "to-0": {"11:00"}}).want(t, 400, "&lt;b&gt;")
	ada.post("/machines/slots", "machine", tn.machine.ID, "slots", "-1").want(t, 400, "Calls at once is a whole number from 1")
	if len(tn.controls) != 3 {
		t.Errorf("a machine was asked for %+v", tn.controls[3:])
	}
}

func TestDrawWeek(t *testing.T) {
	now := time.Date(2026, 11, 21, 20, 30, 0, 0, time.UTC) // a Saturday; Sunday in Kolkata
	pic := drawWeek("Mon-Wed 18:00-23:00; Sun 22:00-02:00", "Asia/Kolkata", now)
	want := week{Words: "Open Mon-Wed 18:00-23:00; Sun 22:00-02:00, in the time zone Asia/Kolkata. Machine time: Sun 02:00."}
	for i, name := range []string{"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"} {
		d := weekDay{Name: name, Today: name == "Sun", Now: 120}
		if i < 3 {
			d.Open = []span{{18 * 60, 5 * 60}}
		}
		switch name {
		case "Mon":
			d.Open = append(d.Open, span{0, 120})
		case "Sun":
			d.Open = []span{{22 * 60, 120}}
		}
		want.Days = append(want.Days, d)
	}
	assert.Same(t, pic, want)
	if pic := drawWeek("Mon-Fri 18:00-23:00", "Mars/Olympus", now); len(pic.Days) != 7 || pic.Days[0].Today || !strings.Contains(pic.Words, `"Mars/Olympus", which this hub does not know`) {
		t.Errorf("an unknown zone: %+v", pic)
	}
	if pic := drawWeek("", "", now); len(pic.Days[0].Open) != 1 || pic.Days[0].Open[0].Length != dayMinutes || !strings.HasPrefix(pic.Words, "Always open") {
		t.Errorf("always: %+v", pic)
	}
	// The editor reproduces any hours.
	for _, hours := range []string{"", "Mon-Fri 18:00-23:00; Sat,Sun 00:00-24:00", "Fri 22:00-06:00"} {
		form := url.Values{}
		for _, row := range hoursRows(hours) {
			n := "-" + strconv.Itoa(row.N)
			for _, d := range row.Days {
				if d.On {
					form.Add("days"+n, d.Word)
				}
			}
			form.Set("from"+n, row.From)
			form.Set("to"+n, row.To)
		}
		rows, err := readRows(form)
		check(t, err)
		got, err := fleet.ParseHours(rows, "")
		check(t, err)
		assert.Equal(t, got.String(), hours, "comes back as", got)
	}
}

// TestSpeed checks the text about how fast a machine responds, based on measurements.
func TestSpeed(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.members["ada"].ID
	use := func(id string, model, code string, tokens int64, age time.Duration) account.Usage {
		return account.Usage{
			CallID: id, Attempt: 1, Started: time.Now().Add(-age), MemberID: ada, OwnerID: ada, MachineID: tn.machine.ID, Model: model, Code: code,
			Waited: time.Second, Duration: 3 * time.Second, TokensOut: tokens,
		}
	}
	check(t, tn.db.RecordUsage(t.Context(), []account.Usage{
		use("a", "tiny", "", 100, 0), use("b", "tiny", "", 50, 24*time.Hour), use("c", "tiny", "engine_error", 9000, 0), use("d", "tiny", "", 9000, 8*24*time.Hour), use("e", "other", "", 9, 0),
	}))
	tn.box().Offer("tiny").Load.Measure(fleet.Circle{}, fleet.Measurement{At: time.Now(), FirstToken: 1500 * time.Millisecond})
	want := api.MachineModel{ID: "tiny", ContextLength: 512, Slots: 2, FirstTokenMS: 1500, TokensPerSecond: 37.5}
	if diff := cmp.Diff([]api.MachineModel{want}, good[api.List[api.Machine]](tn.world, "ada", "GET", "/api/machines", "").Data[0].Models); diff != "" {
		t.Error(diff)
	}
	tn.as("ada").get("/machines/"+tn.machine.ID+"?tab=models").want(t, 200, ">37.5<", ">1.50 s<")
	tn.as("ada").get("/models?model=tiny").want(t, 200, ">First token<", ">1.5 s<")
}

// TestTwins checks that similar ids are listed next to each other, unchanged.
func TestTwins(t *testing.T) {
	var models []api.Model
	for _, id := range []fleet.ModelID{"Llama-3", "llama3", "llama3.1", "llama3:latest", "qwen", "?", "!"} {
		models = append(models, api.Model{ID: id})
	}
	type row struct {
		ID    fleet.ModelID
		N     int
		Twins []fleet.ModelID
	}
	var got []row
	for _, r := range modelRows(models) {
		got = append(got, row{r.ID, r.N, r.Twins})
	}
	want := []row{
		{"!", 6, nil}, {"?", 5, nil},
		{"Llama-3", 0, []fleet.ModelID{"llama3", "llama3:latest"}}, {"llama3", 1, []fleet.ModelID{"Llama-3", "llama3:latest"}},
		{"llama3:latest", 3, []fleet.ModelID{"Llama-3", "llama3"}}, {"llama3.1", 2, nil}, {"qwen", 4, nil},
	}
	assert.Same(t, got, want)
}
