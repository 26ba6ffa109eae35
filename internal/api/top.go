package api

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/kith/kith/internal/fleet"
)

// topMost is the maximum number of calls and of machines in a Top.
const topMost = 200

// Top is the current activity at a hub node: who calls which model on which machine. It
// contains nothing of the calls' content.
type Top struct {
	At      time.Time `json:"at"`
	Running int       `json:"running"` // calls of this node's callers on machines
	Waiting int       `json:"waiting"` // calls waiting for a machine
	Online  int       `json:"online"`  // machines in the region
	// Calls are the oldest calls, running ones first; Queues are the models that calls
	// wait for; Machines are the online machines, busiest first.
	Calls    []TopCall    `json:"calls"`
	Queues   []TopQueue   `json:"queues"`
	Machines []TopMachine `json:"machines"`
}

// TopCall is one call.
type TopCall struct {
	State   string    `json:"state"` // "running" or "waiting"
	Member  string    `json:"member"`
	Model   string    `json:"model"`
	Machine string    `json:"machine,omitzero"`
	Owner   string    `json:"owner,omitzero"`
	Since   time.Time `json:"since"` // time of arrival
}

// TopQueue is the queue of calls waiting for one model.
type TopQueue struct {
	Model   string    `json:"model"`
	Waiting int       `json:"waiting"`
	Oldest  time.Time `json:"oldest"`
}

// TopMachine is one machine.
type TopMachine struct {
	Name    string `json:"name"`
	Owner   string `json:"owner"`
	Node    string `json:"node,omitzero"`
	Paused  bool   `json:"paused"`
	Slots   int    `json:"slots"`
	Running int    `json:"running"` // calls of this node's callers
	Queued  int    `json:"queued"`  // waiting calls that it could serve
	Models  int    `json:"models"`
}

func (a *API) operatorTop(_ context.Context, _ fleet.Caller, _ None) (Top, error) {
	running, waiting, machines := a.Running(), a.Waiting(), a.Snapshot().Machines()
	top := Top{At: time.Now().UTC(), Running: len(running), Waiting: len(waiting), Calls: []TopCall{}, Queues: []TopQueue{}, Machines: []TopMachine{}}
	byAge := func(x, y fleet.ActiveCall) int { return x.Since.Compare(y.Since) }
	slices.SortFunc(running, byAge)
	slices.SortFunc(waiting, byAge)
	on := make(map[fleet.MachineID]int)
	for _, u := range running {
		on[u.Machine.ID]++
		top.Calls = append(top.Calls, TopCall{"running", u.Name, string(u.Model), u.Machine.Name, u.Machine.OwnerName, u.Since})
	}
	queue := make(map[fleet.ModelID]int) // index in top.Queues
	for _, u := range waiting {
		top.Calls = append(top.Calls, TopCall{State: "waiting", Member: u.Name, Model: string(u.Model), Since: u.Since})
		at, there := queue[u.Model]
		if !there {
			at = len(top.Queues)
			queue[u.Model] = at
			top.Queues = append(top.Queues, TopQueue{Model: string(u.Model), Oldest: u.Since})
		}
		top.Queues[at].Waiting++
	}
	for m := range machines {
		if !m.Online {
			continue
		}
		top.Online++
		top.Machines = append(top.Machines, TopMachine{
			Name: m.Name, Owner: m.OwnerName, Node: a.Home(m.ID), Paused: m.Paused, Slots: m.Slots,
			Running: on[m.ID], Queued: a.Queued(m), Models: len(m.Offers),
		})
	}
	slices.SortFunc(top.Machines, func(x, y TopMachine) int {
		return cmp.Or(y.Running-x.Running, y.Queued-x.Queued, cmp.Compare(x.Owner, y.Owner), cmp.Compare(x.Name, y.Name))
	})
	top.Calls = top.Calls[:min(len(top.Calls), topMost)]
	top.Machines = top.Machines[:min(len(top.Machines), topMost)]
	return top, nil
}
