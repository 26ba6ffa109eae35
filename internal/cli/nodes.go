package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
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
			if !screen {
				o.printTop(top)
				return
			}
			width, height, err := term.GetSize(int(o.out.raw.(*os.File).Fd()))
			if err != nil {
				width, height = 80, 24
			}
			o.say("%s", ours("\x1b[H\x1b[2J"+topOnScreen(top, width, height)))
		})
		if err != nil || once {
			return err
		}
		if wait(ctx, topEvery) != nil {
			return nil // Ctrl-C is how the user ends it
		}
	}
}

// topTable is one table of kith admin top.
type topTable struct {
	headings string
	rows     [][]string
}

// topTables returns the tables of the calls, the queues if there are any, and the machines,
// with at most room rows together, and the line above them.
func topTables(top api.Top, room int) (head string, tables []topTable) {
	head = fmt.Sprintf("%s  %s running, %d waiting, %s online", strong(top.At.Local().Format("15:04:05")),
		count(top.Running, "call"), top.Waiting, count(top.Online, "machine"))
	age := func(since time.Time) string { return max(top.At.Sub(since), 0).Round(time.Second).String() }
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
	tables = append(tables, topTable{"MEMBER MODEL STATE MACHINE SINCE", calls})
	if len(queues) > 0 {
		tables = append(tables, topTable{"QUEUE WAITING OLDEST", queues})
	}
	return head, append(tables, topTable{"MACHINE OWNER RUNNING QUEUED MODELS STATE", machines})
}

// printTop prints all of it.
func (o *operator) printTop(top api.Top) {
	head, tables := topTables(top, 1<<20)
	o.say("%s\n", head)
	for _, t := range tables {
		o.say("\n")
		o.table(t.headings, t.rows)
	}
}

// topOnScreen returns as much as fits a window, which it never scrolls.
func topOnScreen(top api.Top, width, height int) string {
	const around = 8 // the first line, three empty ones, three with headings, and the cursor's
	head, tables := topTables(top, max(height-around, 0))
	lines := []string{cut(plain(head), width)}
	for _, t := range tables {
		lines = append(append(lines, ""), inLines(t.headings, t.rows, width)...)
	}
	return strings.Join(lines[:min(len(lines), max(height-1, 1))], "\n") + "\n"
}
