package site

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
)

// The page of a machine offers only what is possible now: an offline machine cannot be
// paused, and for an online one there is no time when it was last seen.
func TestMachinePage(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	online := ada.get("/machines/"+tn.machine.ID).want(t, 200, `action="/machines/pause"`, "In use by")
	assert.Lacks(t, online.body, "Last seen", "an online machine was last seen")
	assert.Lacks(t, online.body, "kith serve", "an online machine is to be started")
	assert.Contains(t, online.body, `<dt>Sealed calls</dt><dd><a href="/docs/privacy">No key</a></dd>`)
	keyed := *tn.snapshot.Machine(fleet.MachineID(tn.machine.ID))
	keyed.Seals = []fleet.SealKey{{1}}
	tn.snapshot = tn.snapshot.WithMachine(&keyed)
	ada.get("/machines/"+tn.machine.ID).want(t, 200, "<dt>Sealed calls</dt><dd>Yes</dd>")
	away := tn.machine
	away.ID, away.Name, away.Hash, away.LastSeen = account.NewID("mch_"), "cellar", [32]byte{2}, time.Now().Add(-time.Hour)
	check(t, tn.db.CreateMachine(t.Context(), away))
	ada.get("/machines/"+away.ID).want(t, 200, "cellar", "Last seen", "offline", "<code>kith serve</code> starts it")
	for tab, forms := range map[string][]string{"": {"pause", "resume"}, "sharing": {"hours"}, "settings": {"slots"}} {
		offline := ada.get(machineAddress(away.ID, tab)).want(t, 200, "cellar")
		for _, form := range forms {
			assert.Lacks(t, offline.body, `action="/machines/`+form+`"`, "is offered for an offline machine")
		}
	}
	fresh := away
	fresh.ID, fresh.Name, fresh.Hash, fresh.LastSeen = account.NewID("mch_"), "attic", [32]byte{3}, time.Time{}
	check(t, tn.db.CreateMachine(t.Context(), fresh))
	notSetUp := ada.get("/machines/"+fresh.ID).want(t, 200, `<span class="state">not set up</span>`, "Run <code>kith serve</code> on it", `href="/machines/revoke?machine=`+fresh.ID)
	assert.Lacks(t, notSetUp.body, "offline", "a machine that never connected is offline")
	ada.get("/machines?state=not+set+up").want(t, 200, ">attic</a>", `<span class="state">not set up</span>`)
	ada.get("/").want(t, 200, "cellar is offline", "attic is not set up: run <code>kith serve</code> on it.")
	op := tn.operator()
	op.get("/operator/machines?state=not+set+up").want(t, 200, "attic")
	op.get("/operator/machines?q=cellar").want(t, 200, `offline</span></td><td class="n">–</td><td class="n">–</td>`)
	ada.get("/machines/revoke?machine="+away.ID).want(t, 200, "Revoke cellar?", "No call runs on it now.")
	tn.as("bob").get("/machines/"+away.ID).want(t, 404, "no machine with the id")
}

// The page of a machine has tabs: each form is on one, and leads back to it, done or refused;
// addresses of before there were tabs lead to the tab.
func TestMachineTabs(t *testing.T) {
	tn := newTown(t, nil)
	ada, id := tn.as("ada"), tn.machine.ID
	tn.files = someFiles()
	for _, c := range []struct {
		tab    string
		titles []string // ids of its titles
		forms  []string
		sent   []string // a form of it
		refuse []string // the same, with a mistake
	}{
		{"", []string{"load-title", "users-title"}, []string{"pause"}, []string{"pause", "for", "1h"}, []string{"pause", "for", "soon"}},
		{"models", []string{"models-title", "files-title"}, []string{"files", "pause"}, []string{"pause", "tab", "models"}, []string{"pause", "tab", "models", "for", "soon"}},
		{"sharing", []string{"hours-title", "groups-title"}, []string{"hours", "keep-out", "pause"}, []string{"hours"}, []string{"hours", "days-0", "Mon", "from-0", "10:00"}},
		{"settings", []string{"settings-title", "end-title"}, []string{"slots", "rename", "pause"}, []string{"rename", "name", "box"}, []string{"slots", "slots", "many"}},
	} {
		address := machineAddress(id, c.tab)
		page := ada.get(address).want(t, 200, `<a href="`+address+`" aria-current="page"`)
		assert.Equal(t, strings.Count(page.body, "aria-current=\"page\"")-strings.Count(page.body, `<a href="/machines" aria-current`), 1, "tabs that are chosen")
		for _, title := range []string{"load-title", "users-title", "models-title", "files-title", "hours-title", "groups-title", "settings-title", "end-title"} {
			assert.Equal(t, strings.Contains(page.body, `<h2 id="`+title+`"`), slices.Contains(c.titles, title), title, "on the tab", c.tab)
		}
		for _, form := range c.forms {
			assert.Contains(t, page.body, `action="/machines/`+form+`"`)
		}
		send := func(form []string) seen {
			return ada.post("/machines/"+form[0], append([]string{"machine", id}, form[1:]...)...)
		}
		send(c.sent).goes(t, address)
		send(c.refuse).want(t, 400, `<a aria-current="page" href="`+address+`"`)
	}
	for title, tab := range map[string]string{"files-title": "models", "hours-title": "sharing", "settings-title": "settings"} {
		ada.get("/machines/"+id).want(t, 200, `<a href="`+machineAddress(id, tab)+`" id="`+title+`" data-moved>`)
	}
	ada.get("/machines/"+id+"?tab=nonsense").want(t, 200, `<a href="/machines/`+id+`" aria-current="page"`)
	ada.get("/machines/revoke?machine="+id).want(t, 200, `href="/machines/`+id+`?tab=settings"`)
	ada.post("/machines/pause", "machine", id, "tab", "//elsewhere").goes(t, "/machines/"+id)
}

// The list names exactly the groups that give their members access to a machine. The
// machine's page explains why.
func TestMachineGroups(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	for _, name := range []string{"lab", "attic"} {
		good[anything](tn.world, "ada", "POST", "/api/groups", `{"name":"`+name+`","kind":"open"}`)
	}
	const ofItself = "Serves only the groups named in its own configuration"
	for _, test := range []struct {
		groups            []string // in its configuration
		keepOut           string
		cell, page, other string
	}{
		{nil, "", "lab, attic", "Serves all your groups", ofItself},
		{nil, "lab", "attic", "Serves all your groups, except those", ofItself},
		{[]string{"lab"}, "lab", "none", ofItself, "Serves all"},
		{[]string{"lab"}, "", "lab", ofItself, "Serves all"},
		{[]string{}, "", "none", ofItself, "Serves all"},
	} {
		box := *tn.snapshot.Machine(fleet.MachineID(tn.machine.ID))
		box.Groups = test.groups
		tn.snapshot = tn.snapshot.WithMachine(&box)
		if test.keepOut != "" {
			ada.post("/machines/keep-out", "machine", tn.machine.ID, "group", test.keepOut).goes(t, "/machines/"+tn.machine.ID+"?tab=sharing")
		}
		ada.get("/machines").want(t, 200, ">"+test.cell+`</td><td class="quiet">now</td>`)
		if page := ada.get("/machines/"+tn.machine.ID+"?tab=sharing").want(t, 200, test.page); strings.Contains(page.body, test.other) {
			t.Errorf("%+v: the page says %q", test, test.other)
		}
		if test.keepOut != "" {
			ada.post("/machines/keep-out", "machine", tn.machine.ID, "group", test.keepOut, "undo", "yes").goes(t, "/machines/"+tn.machine.ID+"?tab=sharing")
		}
	}
}

// The page of a machine shows how busy it was, and who used it today and in the last 30
// days.
func TestMachineUse(t *testing.T) {
	enginetest.OneDay()
	tn := newTown(t, nil)
	now := time.Now().UTC()
	call := func(id, who string, ago time.Duration) account.Usage {
		return account.Usage{CallID: id, Attempt: 1, Started: now.Add(-ago), MemberID: tn.members[who].ID, OwnerID: tn.members["ada"].ID, MachineID: tn.machine.ID, Model: "m", TokensIn: 3, TokensOut: 1234}
	}
	another := call("req_5", "bob", 0)
	another.MachineID = "mch_other"
	check(t, tn.db.RecordUsage(t.Context(), []account.Usage{
		call("req_1", "bob", 0), call("req_2", "bob", 0), call("req_3", "bob", 20*24*time.Hour), call("req_4", "ada", 20*24*time.Hour), another, call("req_6", "eve", 40*24*time.Hour),
	}))
	page := tn.as("ada").get("/machines/"+tn.machine.ID).want(t, 200, "2 served</span>",
		`<th scope="row">bob</th><td class="n">2</td><td class="n">3</td><td class="n">9 in, 3,702 out</td>`, `<th scope="row">you</th><td class="n">0</td><td class="n">1</td>`)
	assert.Lacks(t, page.body, ">eve<", "a call of 40 days ago is among those of 30")
}

// The page of a machine with as many models as one can offer says that there may be more.
func TestMostModels(t *testing.T) {
	tn := newTown(t, nil)
	machine := *tn.snapshot.Machine(fleet.MachineID(tn.machine.ID))
	for _, n := range []int{255, 256} {
		machine.Offers = nil
		for i := range n {
			machine.Offers = append(machine.Offers, fleet.Offer{ID: fleet.ModelID(fmt.Sprint("m", i)), Families: fleet.Families(fleet.Chat)})
		}
		tn.snapshot = tn.snapshot.WithMachine(new(machine))
		page := tn.as("ada").get("/machines/"+tn.machine.ID+"?tab=models").want(t, 200)
		assert.Equal(t, strings.Contains(page.body, "A machine offers at most 256 models."), n == 256, n, "models")
	}
}

// The end of a pause is one time in the reader's zone on each page, as an element that the
// script converts, and no text of another zone. "Tomorrow morning" is 8:00 at the machine.
func TestPauseEnd(t *testing.T) {
	tn := newTown(t, nil)
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	paused := *tn.snapshot.Machine(fleet.MachineID(tn.machine.ID))
	paused.Paused, paused.PausedUntil = true, until
	tn.snapshot = tn.snapshot.WithMachine(&paused)
	for _, path := range []string{"/", "/machines", "/machines/" + tn.machine.ID} {
		page := tn.as("ada").get(path).want(t, 200, `class="state warn">paused</span>`, "ntil <time datetime=\""+until.Format(time.RFC3339)+`"`)
		text := regexp.MustCompile("<time[^>]*>[^<]*</time>").ReplaceAllString(page.body, "")
		if clock := regexp.MustCompile(`until \d+.\d\d`).FindString(text); clock != "" {
			t.Errorf("%s: %q is a time of no named zone", path, clock)
		}
	}
	at := time.Date(2026, 11, 23, 15, 43, 0, 0, time.UTC)
	for zone, want := range map[string]string{"": "2026-11-24T08:00:00Z", "nonsense": "2026-11-24T08:00:00Z", "Asia/Tokyo": "2026-11-23T23:00:00Z", "America/New_York": "2026-11-24T13:00:00Z"} {
		assert.Equal(t, morning(at, zone).Format(time.RFC3339), want, zone)
	}
	for hour, want := range map[int]string{2: "this", 3: "this", 5: "tomorrow", 15: "tomorrow", 23: "tomorrow"} {
		if got := morningDay(time.Date(2026, 11, 24, hour, 0, 0, 0, time.UTC), "UTC"); got != want {
			t.Errorf("at %d:00 the next morning is %q, want %q", hour, got, want)
		}
	}
	if got := morning(time.Date(2026, 11, 24, 2, 0, 0, 0, time.UTC), "UTC").Format(time.RFC3339); got != "2026-11-24T08:00:00Z" {
		t.Errorf("at night: %s", got)
	}
}
