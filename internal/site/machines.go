package site

import (
	"cmp"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// machinesData is the content of /machines.
type machinesData struct {
	Machines []machineRow // on this page of the list
	Any      bool         // the member has a machine
	List     list
	Live     liveContent
}

// machineRow is a machine, and the groups that give their members access to it.
type machineRow struct {
	api.Machine
	Serves []string
}

// machineColumns are the columns of the list of machines.
var machineColumns = []column{
	{Head: "Name", Name: "name"}, {Head: "State", Class: "status", Name: "state"}, {Head: "Running", Class: "n", Name: "running", Most: true},
	{Head: "Waiting", Class: "n", Name: "waiting", Most: true}, {Head: "Models", Name: "models", Most: true}, {Head: "Groups"},
	{Head: "Seen", Class: "when", Name: "seen", Most: true}, {Head: "Actions", Class: "do"},
}

// machineList are the rules of the list of machines.
var machineList = listRules[machineRow]{
	texts: func(m machineRow) []string {
		texts := append([]string{m.Name, machineState(&m.Machine).text}, m.Serves...)
		for _, model := range m.Models {
			texts = append(texts, string(model.ID))
		}
		return texts
	},
	state: func(m machineRow) words { return kindOfState(&m.Machine) },
	by: map[string]func(a, b machineRow) int{
		"name":    func(a, b machineRow) int { return compareNames(a.Name, b.Name) },
		"state":   func(a, b machineRow) int { return compareStates(machineState(&a.Machine), machineState(&b.Machine)) },
		"running": func(a, b machineRow) int { return cmp.Compare(a.Running, b.Running) },
		"waiting": func(a, b machineRow) int { return cmp.Compare(a.Queued, b.Queued) },
		"models":  func(a, b machineRow) int { return cmp.Compare(len(a.Models), len(b.Models)) },
		"seen":    func(a, b machineRow) int { return a.LastSeen.Compare(b.LastSeen) },
	},
}

// machineData is the content of the page of one machine.
type machineData struct {
	api.Machine
	Tab    string // modelsTab, sharingTab or settingsTab; empty: the first, with the state and the use
	Live   liveContent
	Week   week
	Rows   []hoursRow
	Asked  string // the form of this machine that was just refused
	Named  bool   // the machine's own configuration lists the groups that it may serve
	Serves []groupRow
	Files  filesView
	Load   usageChart // of the last 24 hours
	Users  []api.MachineUser
	Day    string // of the next morning: "this" or "tomorrow"
}

// groupRow is the state of a machine in one of its owner's groups.
type groupRow struct {
	Name     string
	KeptOut  bool // by its owner, on this page
	Beyond   bool // not in the list of the machine's own configuration
	Excluded bool // by an admin of the group
	Limits   *api.Limits
}

// NotSetUp reports whether the machine has never connected.
func (d machineData) NotSetUp() bool { return machineState(&d.Machine) == notSetUp }

// machinePath is the page of one machine.
const machinePath = "/machines/{machine}"

// The tabs of that page besides the first.
const (
	modelsTab   = "models"
	sharingTab  = "sharing"
	settingsTab = "settings"
)

// machineAddress returns the address of a tab of a machine's page.
func machineAddress(id, tab string) string {
	at := "/machines/" + url.PathEscape(id)
	if tab != "" {
		at += "?tab=" + tab
	}
	return at
}

// Address returns the address of a tab.
func (d machineData) Address(tab string) string { return machineAddress(d.ID, tab) }

// machineTab returns the tab of a machine's page that is asked for, or that has the form
// that was sent.
func machineTab(v *visit) string {
	tab := cmp.Or(v.page.tab, v.form.Get("tab"), v.URL.Query().Get("tab"))
	if !slices.Contains([]string{modelsTab, sharingTab, settingsTab}, tab) {
		return ""
	}
	return tab
}

func (s *Site) machinesData(v *visit) (machinesData, error) {
	machines, noMachines := call(s, v, api.ListMachines, api.None{})
	groups, noGroups := call(s, v, api.ListGroups, api.None{})
	data := machinesData{Live: machinesContent(s, s.hubView(s.DB.Now()), v.caller()), Any: len(machines.Data) > 0}
	var rows []machineRow
	for _, m := range machines.Data {
		row := machineRow{Machine: m}
		for _, g := range groups.Data {
			if g.In && serves(v.me.Name, m, g) {
				row.Serves = append(row.Serves, g.Name)
			}
		}
		rows = append(rows, row)
	}
	data.List = list{ID: "machines", Path: "/machines", Label: "Your machines", One: "machine", Many: "machines",
		Find: "Name, model, group or state", Query: readList(v.URL.Query(), ""), Columns: machineColumns}
	data.Machines, data.List.Found, data.List.States = machineList.cut(rows, data.List.Query)
	return data, cmp.Or(noMachines, noGroups)
}

// machineData loads the machine that the path names, or the form that was refused.
func (s *Site) machineData(v *visit) (machineData, error) {
	m, err := s.ownMachine(v, cmp.Or(v.PathValue("machine"), v.form.Get("machine")))
	if err != nil {
		return machineData{}, err
	}
	groups, noGroups := call(s, v, api.ListGroups, api.None{})
	usage, noUsage := call(s, v, api.MachineUsage, api.MachineID{Machine: m.ID})
	err = cmp.Or(noGroups, noUsage)
	now := s.DB.Now()
	data := machineData{Machine: m, Tab: machineTab(v), Live: machinesContent(s, s.hubView(now), v.caller()), Rows: hoursRows(m.Hours)}
	if v.Method == http.MethodPost {
		data.Asked = path.Base(v.URL.Path)
	}
	data.Files = s.files(v.Context(), v.caller(), fleet.MachineID(m.ID))
	data.Live = data.Live.withFiles(&data.Files)
	data.Named = m.Groups != nil
	data.Users, data.Day = usage.Members, morningDay(now, m.Timezone)
	if len(usage.Hours) > 0 {
		data.Load = chartOf(api.UsagePage{By: api.Hour, Since: usage.Hours[0].Day}, usage.Hours, chartViews[0], now)
	}
	if !m.LastSeen.IsZero() {
		data.Week = drawWeek(m.Hours, m.Timezone, now)
	}
	if m.ZoneUnknown {
		data.Timezone = "" // no form submits it
	}
	for _, g := range groups.Data {
		if g.In {
			data.Serves = append(data.Serves, groupRow{
				Name: g.Name, KeptOut: slices.Contains(g.KeptOut, m.Name),
				Beyond:   data.Named && !slices.Contains(m.Groups, g.Name),
				Excluded: ruleOf(g, v.me.Name, m.Name) == account.MachineExcluded, Limits: g.Limits,
			})
		}
	}
	return data, err
}

// machinePage handles GET /machines/{machine}. Forms have paths beside it.
func (s *Site) machinePage(v *visit) (reply, error) {
	if id := v.PathValue("machine"); id != "" &&
		slices.ContainsFunc(s.pages, func(p page) bool { return p.path == "/machines/"+id }) {
		return reply{to: "/machines"}, nil
	}
	data, err := s.machineData(v)
	if err != nil {
		return reply{title: "Machine"}, err
	}
	return reply{page: "machine", title: data.Name, data: data}, nil
}

// control returns a change to the machine that a form names.
func control(v *visit, change fleet.Control) api.MachineControl {
	return api.MachineControl{Machine: v.form.Get("machine"), Control: change}
}

// pause reads from the form a machine and how long to pause it: "" until it is resumed, a
// duration like "2h", or "morning".
func pause(v *visit) (api.MachineControl, error) {
	paused := true
	change := fleet.Control{Paused: &paused}
	if length := v.form.Get("for"); length == "morning" {
		until := morning(v.came, v.form.Get("timezone"))
		change.Until = &until
	} else if length != "" {
		d, err := time.ParseDuration(length)
		if err != nil || d <= 0 {
			return api.MachineControl{}, fault.New(fault.InvalidRequest,
				"a pause must be a duration such as 2h, not %.20q", length).WithParam("for")
		}
		until := v.came.Add(d).UTC().Truncate(time.Second)
		change.Until = &until
	}
	return control(v, change), nil
}

// morning returns the next 8:00 in a time zone that is at least 4 hours away. An unknown
// zone counts as UTC.
func morning(now time.Time, zone string) time.Time {
	place, err := time.LoadLocation(zone)
	if err != nil {
		place = time.UTC
	}
	there := now.In(place)
	at := time.Date(there.Year(), there.Month(), there.Day(), 8, 0, 0, 0, place)
	if at.Sub(now) < 4*time.Hour {
		at = at.AddDate(0, 0, 1)
	}
	return at.UTC()
}

// morningDay returns the day of the next morning: "tomorrow", or "this" late at night.
func morningDay(now time.Time, zone string) string {
	at := morning(now, zone)
	if place, err := time.LoadLocation(zone); err == nil {
		at, now = at.In(place), now.In(place)
	} else {
		now = now.UTC()
	}
	if at.YearDay() == now.YearDay() {
		return "this"
	}
	return "tomorrow"
}

func resume(v *visit) (api.MachineControl, error) {
	paused := false
	return control(v, fleet.Control{Paused: &paused}), nil
}

// hours reads from the form a machine, its time zone, and the rows of the editor.
func hours(v *visit) (api.MachineControl, error) {
	rows, err := readRows(v.form)
	zone := strings.TrimSpace(v.form.Get("timezone"))
	change := fleet.Control{Hours: &rows}
	if zone != "" {
		change.Timezone = &zone
	}
	return control(v, change), err
}

func slots(v *visit) (api.MachineControl, error) {
	n, err := number(v.form, "slots")
	return control(v, fleet.Control{Slots: &n}), err
}

// revokeMachineQuestion returns the confirmation page for revoking a machine.
func (s *Site) revokeMachineQuestion(v *visit) (question, error) {
	m, err := s.ownMachine(v, v.URL.Query().Get("machine"))
	return question{
		Title: "Revoke " + m.Name + "?", Button: "Revoke the machine", Action: "/machines/revoke",
		Back: machineAddress(m.ID, settingsTab), Field: "machine", Value: m.ID,
		Cuts: []string{
			counted(m.Running, "No call runs on it now.", "1 call that runs on it is stopped.",
				"%d calls that run on it are stopped."),
			"You, and everyone who uses it through you, lose access to its models.",
			"To use it again, run kith login on it.",
		},
	}, err
}

// ownMachine returns a machine of the member.
func (s *Site) ownMachine(v *visit, id string) (api.Machine, error) {
	machines, err := call(s, v, api.ListMachines, api.None{})
	return pick(machines.Data, err, func(m api.Machine) bool { return m.ID == id },
		"you have no machine with the id %.80q", id)
}

func revokedMachine(act api.MachineAct) string {
	return "The machine " + act.Name + " is revoked. " + cutWords(act.Cut)
}

// keepOut reads a machine and a group from the form. No group means all.
func keepOut(v *visit) (api.KeepOut, error) {
	group := v.form.Get("group")
	undo := v.form.Get("undo") != ""
	return api.KeepOut{Machine: v.form.Get("machine"), Group: group, All: group == "", Undo: undo}, nil
}

func keptOut(act api.KeptOut) string {
	if !act.KeptOut {
		return act.Machine + " may serve " + cmp.Or(act.Group, "your groups") + " again, within 5 seconds."
	}
	return act.Machine + " is kept out of " + cmp.Or(act.Group, "every group") + ". " + cutWords(act.Cut)
}
