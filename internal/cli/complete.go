package cli

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/api"
)

// completePatience is how long the shell waits for live names at most; what has
// not answered by then is left out, without a word. Only tests change it.
var completePatience = 700 * time.Millisecond

// strictCompletion makes cobra's command for the shells' scripts refuse a shell
// that it does not know, as any group refuses a command.
func strictCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Args, cmd.RunE = known, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
}

// source is one listing that names are taken from.
type source func(ctx context.Context) []string

// complete offers the names of several sources, each asked at once, that begin
// with what was typed.
func (a *app) complete(ctx context.Context, typed string, sources ...source) ([]string, cobra.ShellCompDirective) {
	const directive = cobra.ShellCompDirectiveNoFileComp
	var err error
	if a.home, err = kithHome(); err != nil {
		return nil, directive
	}
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completePatience)
	defer cancel()
	found := make([][]string, len(sources))
	var group sync.WaitGroup
	for i, ask := range sources {
		group.Go(func() { found[i] = ask(ctx) })
	}
	group.Wait()
	names := slices.DeleteFunc(slices.Concat(found...), func(name string) bool { return !strings.HasPrefix(name, typed) })
	slices.Sort(names)
	return slices.Compact(names), directive
}

// modelsOf lists the models of a surface.
func modelsOf(surface func() (*client, error), path string) source {
	return func(ctx context.Context) []string {
		at, err := surface()
		if err != nil {
			return nil
		}
		var list listing
		if _, err := at.call(ctx, "complete", request{http.MethodGet, path, nil}, &list); err != nil {
			return nil
		}
		var ids []string
		for _, m := range list.Data {
			ids = append(ids, m.ID)
		}
		return ids
	}
}

// quiet is the rows of a listing of the account's; none where it cannot be read.
func quiet[Row any](ctx context.Context, a *app, listing api.Route[api.None, api.List[Row]]) []Row {
	at, err := a.toAccount()
	if err != nil {
		return nil
	}
	out, _, err := fetch(ctx, at, "complete", listing.With(api.None{}))
	if err != nil {
		return nil
	}
	return out.Data
}

// completeModels offers models as a command's first argument.
func (a *app) completeModels(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeModelFlag(cmd, nil, typed)
}

// completeModelFlag offers the models of this machine and of the account.
func (a *app) completeModelFlag(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd.Context(), typed, modelsOf(a.toDaemon, "/v1/models"), modelsOf(a.toAccount, api.ListModels.With(api.None{}).Path))
}

// shared are the members of the account's shares that pass.
func (a *app) shared(passes func(api.Share) (name string, ok bool)) source {
	return func(ctx context.Context) []string {
		var names []string
		for _, row := range quiet(ctx, a, api.ListShares) {
			if name, ok := passes(row); ok {
				names = append(names, name)
			}
		}
		return names
	}
}

// grouped are the names that a group of the account's has for a completion.
func (a *app) grouped(of func(api.Group) []string) source {
	return func(ctx context.Context) []string {
		var names []string
		for _, row := range quiet(ctx, a, api.ListGroups) {
			names = append(names, of(row)...)
		}
		return names
	}
}

// fellows are the members of a group, and those invited to it.
func fellows(g api.Group) []string {
	var names []string
	for _, m := range g.Members {
		names = append(names, m.Name)
	}
	for _, i := range g.Invitations {
		names = append(names, i.Member)
	}
	return names
}

// completeMembers offers those the account shares with, and its groups' members.
func (a *app) completeMembers(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	known := a.shared(func(row api.Share) (string, bool) {
		if row.Direction == "received" {
			return row.Owner, true
		}
		return row.With, true
	})
	return a.complete(cmd.Context(), typed, known, a.grouped(fellows))
}

// completeGivenShares offers what `kith share remove` takes.
func (a *app) completeGivenShares(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	given := a.shared(func(row api.Share) (string, bool) { return row.With, row.Direction != "received" })
	return a.complete(cmd.Context(), typed, given, func(ctx context.Context) []string {
		var ids []string
		for _, row := range quiet(ctx, a, api.ListInvites) {
			if row.State == "open" {
				ids = append(ids, row.ID)
			}
		}
		return ids
	})
}

// completeGroups offers the groups that pass and, for a second argument, the
// members that there are for it.
func (a *app) completeGroups(passes func(api.Group) bool, members bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return a.complete(cmd.Context(), typed, a.grouped(func(g api.Group) []string {
				if !passes(g) {
					return nil
				}
				return []string{g.Name}
			}))
		}
		if !members || len(args) > 1 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.completeMembers(cmd, nil, typed)
	}
}
