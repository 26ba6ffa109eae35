package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
)

// health is `kith admin health`, a container's health check: it reports whether the hub
// serves calls.
func (o *operator) health() *cobra.Command {
	return &cobra.Command{
		Use: "health", Short: "Check whether the hub serves calls; it fails if not", Args: cobra.NoArgs,
		Example: "  kith admin health --data /var/lib/kith && echo ready",
		RunE: func(cmd *cobra.Command, _ []string) error {
			got, err := answer(cmd.Context(), o.command(), "check the hub", api.OperatorGetHealth.With(api.None{}), func(h api.Health) {
				if h.Ready {
					o.say("the hub serves calls\n")
				}
			})
			if err == nil && !got.Ready {
				return fmt.Errorf("cannot serve calls at this hub now: %s; its log says more", got.Reason)
			}
			return err
		},
	}
}

// nodes is `kith admin nodes`, which lists the hub's nodes.
func (o *operator) nodes() *cobra.Command {
	return &cobra.Command{
		Use: "nodes", Short: "List the hub's nodes", Args: cobra.NoArgs,
		Long: "List the hub's nodes as seen by the one that you ask, whose line has a *. LINK is whether that node is\n" +
			"connected to this one, MACHINES how many machines are connected to it, CALLS how many calls it serves.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd.Context(), o.command(), "list the nodes", api.OperatorListNodes.With(api.None{}), func(nodes []api.Node) {
				o.table("NODE REGION STATE BEAT LINK MACHINES CALLS VERSION ADDRESS", convert(nodes, nodeRow))
			})
		},
	}
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

// drained is the output of `kith admin drain --json`.
type drained struct {
	Node  string `json:"node"`
	State string `json:"state"` // "ended"
}

// drain is `kith admin drain`, which makes a node exit and shows the progress.
func (o *operator) drain() *cobra.Command {
	return &cobra.Command{
		Use: "drain NODE", Short: "End a node of the hub without ending a call", Args: cobra.ExactArgs(1),
		Long: "Drain a node of the hub: it accepts nothing new, its machines connect to the other nodes, its calls continue\n" +
			"for at most [hub] drain, and then its process exits. The command shows what is left until the node exits;\n" +
			"interrupting the command does not stop that. SIGTERM to the node's process does the same.",
		Example: "  kith admin drain hub-1",
		RunE: func(cmd *cobra.Command, args []string) error {
			hub, err := o.hub()
			if err != nil {
				return err
			}
			if _, _, err := fetch(cmd.Context(), hub, "drain the node", api.OperatorDrainNode.With(api.Named{Name: args[0]})); err != nil {
				return err
			}
			err = o.awaitDrained(cmd.Context(), hub, args[0])
			o.progress("")
			if err != nil {
				return err
			}
			return o.print(drained{args[0], "ended"}, func() { o.say("node %s has ended\n", strong(args[0])) })
		},
	}
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
		select {
		case <-time.After(drainPoll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
