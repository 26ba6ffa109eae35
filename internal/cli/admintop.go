package cli

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kith/kith/internal/api"
)

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
		err := ask(ctx, o.socket(), "look at the hub", api.OperatorTop.With(api.None{}), func(top api.Top) {
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
		select {
		case <-time.After(topEvery):
		case <-ctx.Done():
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
