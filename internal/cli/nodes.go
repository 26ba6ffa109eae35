package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
)

// health is `kith admin health`, a container's health check: it reports whether the hub
// serves calls.
func (o *operator) health() *cobra.Command {
	return command("kith admin health", func(ctx context.Context, _ []string) error {
		got, err := answer(ctx, o.socket("check the hub"), api.OperatorGetHealth.With(api.None{}), func(h api.Health) {
			if h.Ready {
				o.say("the hub serves calls\n")
			}
		})
		if err == nil && !got.Ready {
			return fmt.Errorf("cannot serve calls at this hub now: %s; its log says more", got.Reason)
		}
		return err
	})
}

// nodes is `kith admin nodes`, which lists the hub's nodes.
func (o *operator) nodes() *cobra.Command {
	return command("kith admin nodes", func(ctx context.Context, _ []string) error {
		return ask(ctx, o.socket("list the nodes"), api.OperatorListNodes.With(api.None{}), func(nodes []api.Node) {
			o.table("NODE REGION STATE BEAT LINK MACHINES CALLS VERSION ADDRESS", convert(nodes, nodeRow))
		})
	})
}

func nodeRow(n api.Node) []string {
	name, state, beat := n.Name, n.State, "never seen"
	if n.Here {
		name += " *"
	}
	if !n.Seen.IsZero() {
		beat = time.Since(n.Seen).Round(100*time.Millisecond).String() + " ago"
	}
	if !n.Alive {
		state = "gone"
	}
	return []string{name, n.Region, state, beat, yes(n.Linked, "yes"), strconv.Itoa(n.Machines), strconv.Itoa(n.Calls), n.Version, n.Address}
}

// drain is `kith admin drain`, which makes a node exit and shows the progress.
func (o *operator) drain() *cobra.Command {
	return command("kith admin drain", func(ctx context.Context, args []string) error {
		hub, err := o.hub()
		if err != nil {
			return err
		}
		if _, _, err := fetch(ctx, hub, "drain the node", api.OperatorDrainNode.With(api.Named{Name: args[0]})); err != nil {
			return err
		}
		err = o.awaitDrained(ctx, hub, args[0])
		o.progress("")
		if err != nil {
			return err
		}
		return o.print(map[string]string{"node": args[0], "state": "ended"}, func() { o.say("node %s has ended\n", strong(args[0])) })
	})
}

// drainPoll is how often the progress of a drain is read.
const drainPoll = 500 * time.Millisecond

// awaitDrained shows what is left at a node until the node has exited.
func (o *operator) awaitDrained(ctx context.Context, hub *client, name string) error {
	here, shown := false, ""
	for {
		nodes, _, err := fetch(ctx, hub, "list the nodes", api.OperatorListNodes.With(api.None{}))
		if _, off := errors.AsType[unreachable](err); off && here {
			return nil // the node that served the requests was the one to exit
		}
		if err != nil {
			return err
		}
		i := slices.IndexFunc(nodes, func(n api.Node) bool { return n.Name == name })
		if i < 0 || !nodes[i].Alive {
			return nil
		}
		if nodes[i].State != account.NodeDraining && shown != "" {
			return fmt.Errorf("node %s was started again; it is no longer draining", name)
		}
		here = nodes[i].Here
		left := count(nodes[i].Machines, "machine") + ", " + count(nodes[i].Calls, "call")
		if left != shown && nodes[i].State == account.NodeDraining {
			shown = left
			o.progress("node " + name + " still has " + left)
		}
		if err := wait(ctx, drainPoll); err != nil {
			return err
		}
	}
}

// topEvery is how often kith admin top refreshes.
const topEvery = 2 * time.Second

func (o *operator) top() *cobra.Command {
	var once bool
	cmd := command("kith admin top", func(ctx context.Context, _ []string) error {
		screen := terminal(o.out)
		if !screen && !o.json {
			once = true
		}
		return o.showTop(ctx, once, screen && !once && !o.json)
	})
	cmd.Flags().BoolVar(&once, "once", false, "show it once; the default if the output is not a terminal")
	return cmd
}

// showTop prints the hub's activity repeatedly, or once. On a screen it always overwrites
// the previous output.
func (o *operator) showTop(ctx context.Context, once, screen bool) error {
	for {
		err := ask(ctx, o.socket("look at the hub"), api.OperatorTop.With(api.None{}), func(top api.Top) {
			lines := 1 << 20
			if screen {
				o.say("%s", ours("\x1b[H\x1b[2J"))
				if _, height, err := term.GetSize(int(o.out.raw.(*os.File).Fd())); err == nil {
					lines = height
				}
			}
			o.printTop(top, lines)
		})
		if err != nil || once {
			return err
		}
		if wait(ctx, topEvery) != nil {
			return nil // Ctrl-C is how the user ends it
		}
	}
}

// printTop prints at most the given number of lines.
func (o *operator) printTop(top api.Top, lines int) {
	o.say("%s  %s running, %d waiting, %s online\n\n", strong(top.At.Local().Format("15:04:05")), count(top.Running, "call"), top.Waiting, count(top.Online, "machine"))
	age := func(since time.Time) string { return max(top.At.Sub(since), 0).Round(time.Second).String() }
	room := max(lines-8, 6) // without headings and empty lines
	var queues, calls, machines [][]string
	for _, q := range top.Queues[:min(len(top.Queues), room/4)] {
		queues = append(queues, []string{q.Model, strconv.Itoa(q.Waiting), age(q.Oldest)})
	}
	for _, c := range top.Calls[:min(len(top.Calls), (room-len(queues))/2)] {
		where := "-"
		if c.Machine != "" {
			where = c.Machine + " of " + c.Owner
		}
		calls = append(calls, []string{c.Member, c.Model, c.State, where, age(c.Since)})
	}
	state := map[bool]string{false: "online", true: "paused"}
	for _, m := range top.Machines[:min(len(top.Machines), room-len(queues)-len(calls))] {
		machines = append(machines, []string{
			m.Name, m.Owner, fmt.Sprintf("%d/%d", m.Running, m.Slots), strconv.Itoa(m.Queued), strconv.Itoa(m.Models), state[m.Paused],
		})
	}
	o.table("MEMBER MODEL STATE MACHINE SINCE", calls)
	if len(queues) > 0 {
		o.say("\n")
		o.table("QUEUE WAITING OLDEST", queues)
	}
	o.say("\n")
	o.table("MACHINE OWNER RUNNING QUEUED MODELS STATE", machines)
}
