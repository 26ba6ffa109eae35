package site

import (
	"cmp"
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

func (s *Site) machinesPage(v *visit) (reply, error) {
	now := time.Now()
	machines, err := call(s, v, api.ListMachines, api.None{})
	if err != nil {
		return reply{}, err
	}
	groups, err := call(s, v, api.ListGroups, api.None{})
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
	return reply{page: "machines", title: "Machines", data: data}, err
}

// control sends a change to the machine that a form names.
func (s *Site) control(v *visit, done string, change api.Control) (reply, error) {
	return did(s, v, reply{to: "/machines", done: done}, api.ControlMachine, api.MachineControl{Machine: v.form.Get("machine"), Control: change})
}

// pauseMachine is POST /machines/pause machine, for ("", "30m", "2h", "8h").
func (s *Site) pauseMachine(v *visit) (reply, error) {
	paused := true
	change := api.Control{Paused: &paused}
	if length := v.form.Get("for"); length != "" {
		d, err := time.ParseDuration(length)
		if err != nil || d <= 0 {
			return reply{}, fault.New(fault.InvalidRequest, "a pause lasts a time like 2h, not %.20q", length).WithParam("for")
		}
		until := time.Now().Add(d).UTC().Truncate(time.Second)
		change.Until = &until
	}
	return s.control(v, "The machine pauses; what runs on it finishes.", change)
}

func (s *Site) resumeMachine(v *visit) (reply, error) {
	paused := false
	return s.control(v, "The machine takes calls again.", api.Control{Paused: &paused})
}

// setHours is POST /machines/hours machine, timezone, and the rows of the editor.
func (s *Site) setHours(v *visit) (reply, error) {
	hours, zone := readRows(v.form), strings.TrimSpace(v.form.Get("timezone"))
	change := api.Control{Hours: &hours}
	if zone != "" {
		change.Timezone = &zone
	}
	return s.control(v, "The machine has its new hours, and this page shows them as soon as the machine reports them; what runs now finishes.", change)
}

// setSlots is POST /machines/slots machine, slots.
func (s *Site) setSlots(v *visit) (reply, error) {
	slots, err := v.number("slots")
	if err != nil {
		return reply{}, err
	}
	return s.control(v, "The limit is set.", api.Control{Slots: &slots})
}

func (s *Site) rename(v *visit) (reply, error) {
	in := api.MachineName{Machine: v.form.Get("machine"), Name: strings.TrimSpace(v.form.Get("name"))}
	return did(s, v, reply{to: "/machines", done: "The machine has its new name."}, api.RenameMachine, in)
}

func (s *Site) endMachine(v *visit) (reply, error) {
	act, err := call(s, v, api.RevokeMachine, api.MachineID{Machine: v.form.Get("machine")})
	return reply{to: "/machines", done: "The machine " + act.Name + " is revoked. " + cutWords(act.Cut)}, err
}

func (s *Site) keepMachineOut(v *visit) (reply, error) {
	group := v.form.Get("group")
	act, err := call(s, v, api.KeepMachineOut, api.KeepOut{Machine: v.form.Get("machine"), Group: group, All: group == "", Undo: v.form.Get("undo") != ""})
	done := act.Machine + " is kept out of " + cmp.Or(act.Group, "every group") + ". " + cutWords(act.Cut)
	if !act.KeptOut {
		done = act.Machine + " may serve " + cmp.Or(act.Group, "your groups") + " again, within 5 seconds."
	}
	return reply{to: "/machines", done: done}, err
}
