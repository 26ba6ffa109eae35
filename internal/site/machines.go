package site

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
)

// machinesData is what /machines shows.
type machinesData struct {
	Machines []machineRow
	Live     scene
}

// machineRow is one machine on /machines.
type machineRow struct {
	api.Machine
	Week   week
	Rows   []hoursRow
	Asked  bool // a form of it was refused just now
	Serves []groupRow
}

// groupRow says what a machine is to a group of its owner's.
type groupRow struct {
	Name    string
	KeptOut bool // by its owner, here
	Beyond  bool // its own configuration leaves the group out
	Limits  *api.Limits
}

func (s *Site) machinesData(v *visit) (machinesData, error) {
	now := time.Now()
	machines, noMachines := call(s, v, api.ListMachines, api.None{})
	groups, noGroups := call(s, v, api.ListGroups, api.None{})
	data := machinesData{Live: machinesScene(s, s.glance(now), v.caller())}
	for _, m := range machines.Data {
		row := machineRow{Machine: m, Rows: hoursRows(m.Hours), Asked: v.form.Get("machine") == m.ID}
		if !m.LastSeen.IsZero() {
			row.Week = drawWeek(m.Hours, m.Timezone, now)
		}
		for _, g := range groups.Data {
			if g.In {
				row.Serves = append(row.Serves, groupRow{g.Name, slices.Contains(g.KeptOut, m.Name), m.Groups != nil && !slices.Contains(m.Groups, g.Name), g.Limits})
			}
		}
		data.Machines = append(data.Machines, row)
	}
	return data, cmp.Or(noMachines, noGroups)
}

// control is a change to the machine that a form names.
func control(v *visit, change api.Control) api.MachineControl {
	return api.MachineControl{Machine: v.form.Get("machine"), Control: change}
}

// pause reads a machine, and for how long ("", "30m", "2h", "8h") it is to pause.
func pause(v *visit) (api.MachineControl, error) {
	paused := true
	change := api.Control{Paused: &paused}
	if length := v.form.Get("for"); length != "" {
		d, err := time.ParseDuration(length)
		if err != nil || d <= 0 {
			return api.MachineControl{}, fault.New(fault.InvalidRequest, "a pause lasts a time like 2h, not %.20q", length).WithParam("for")
		}
		until := time.Now().Add(d).UTC().Truncate(time.Second)
		change.Until = &until
	}
	return control(v, change), nil
}

func resume(v *visit) (api.MachineControl, error) {
	paused := false
	return control(v, api.Control{Paused: &paused}), nil
}

// hours reads a machine, its time zone, and the rows of the editor.
func hours(v *visit) (api.MachineControl, error) {
	rows, zone := readRows(v.form), strings.TrimSpace(v.form.Get("timezone"))
	change := api.Control{Hours: &rows}
	if zone != "" {
		change.Timezone = &zone
	}
	return control(v, change), nil
}

func slots(v *visit) (api.MachineControl, error) {
	n, err := v.number("slots")
	return control(v, api.Control{Slots: &n}), err
}

// revokeMachineQuestion asks before a machine is revoked.
func (s *Site) revokeMachineQuestion(v *visit) (question, error) {
	m, err := s.ownMachine(v, v.URL.Query().Get("machine"))
	return question{
		Title: "Revoke " + m.Name + "?", Button: "Revoke the machine", Action: "/machines/revoke", Back: "/machines/" + m.ID, Field: "machine", Value: m.ID,
		Cuts: []string{
			runningWords(m.Running), "Its models are out of reach for you and for everyone who uses them through you.",
			"To come back it has to sign in again, with kith login.",
		},
	}, err
}

// runningWords says what a revocation cuts.
func runningWords(running int) string {
	switch running {
	case 0:
		return "No call runs on it now."
	case 1:
		return "1 call that runs on it is cut."
	}
	return fmt.Sprintf("%d calls that run on it are cut.", running)
}

// ownMachine is a machine of the member's.
func (s *Site) ownMachine(v *visit, id string) (api.Machine, error) {
	machines, err := call(s, v, api.ListMachines, api.None{})
	if err != nil {
		return api.Machine{}, err
	}
	if i := slices.IndexFunc(machines.Data, func(m api.Machine) bool { return m.ID == id }); i >= 0 {
		return machines.Data[i], nil
	}
	return api.Machine{}, fault.New(fault.RouteNotFound, "you have no machine with the id %.80q", id)
}

func revokedMachine(act api.MachineAct) string {
	return "The machine " + act.Name + " is revoked. " + cutWords(act.Cut)
}

// keepOut reads a machine and a group; no group: all.
func keepOut(v *visit) (api.KeepOut, error) {
	group := v.form.Get("group")
	return api.KeepOut{Machine: v.form.Get("machine"), Group: group, All: group == "", Undo: v.form.Get("undo") != ""}, nil
}

func keptOut(act api.KeptOut) string {
	if !act.KeptOut {
		return act.Machine + " may serve " + cmp.Or(act.Group, "your groups") + " again, within 5 seconds."
	}
	return act.Machine + " is kept out of " + cmp.Or(act.Group, "every group") + ". " + cutWords(act.Cut)
}
