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

// completionTimeout limits the listing of names. Sources that have not answered by then
// are omitted. Only tests change it.
var completionTimeout = 700 * time.Millisecond

// strictCompletion makes cobra's completion command reject unknown shells.
func strictCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Args, cmd.RunE = known, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
}

// source lists names.
type source func(ctx context.Context) []string

// complete returns the names that start with typed. It queries the sources concurrently.
func (a *app) complete(ctx context.Context, typed string, sources ...source) ([]string, cobra.ShellCompDirective) {
	const directive = cobra.ShellCompDirectiveNoFileComp
	var err error
	if a.home, err = kithHome(); err != nil {
		return nil, directive
	}
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
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

// modelsOf returns a source of the models at a surface.
func modelsOf(surface func() (*client, error), path string) source {
	return func(ctx context.Context) []string {
		var list listing
		at, err := surface()
		if err == nil {
			_, err = at.call(ctx, "complete", request{http.MethodGet, path, nil}, &list)
		}
		if err != nil {
			return nil
		}
		return convert(list.Data, func(m listed) string { return m.ID })
	}
}

// rowsOf returns a source of the names in a list of the account.
func rowsOf[Row any](a *app, listing api.Route[api.None, api.List[Row]], names func(Row) []string) source {
	return func(ctx context.Context) (all []string) {
		at, err := a.toAccount()
		if err != nil {
			return nil
		}
		out, _, _ := fetch(ctx, at, "complete", listing.With(api.None{})) // no rows after an error
		for _, row := range out.Data {
			all = append(all, names(row)...)
		}
		return all
	}
}

// completing returns the command. The sources complete its first argument.
func (a *app) completing(sources []source, cmd *cobra.Command) *cobra.Command {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.complete(cmd.Context(), typed, sources...)
	}
	return cmd
}

// completeModelFlag completes models of this machine and of the account.
func (a *app) completeModelFlag(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd.Context(), typed, a.anyModel()...)
}

// anyModel lists the models of this machine and of the account.
func (a *app) anyModel() []source {
	return []source{modelsOf(a.toDaemon, "/v1/models"), modelsOf(a.toAccount, api.ListModels.With(api.None{}).Path)}
}

// anyMember lists the members of the account's shares and groups, and those invited to the
// groups.
func (a *app) anyMember() []source {
	return []source{rowsOf(a, api.ListShares, func(s api.Share) []string {
		if s.Direction == "received" {
			return []string{s.Owner}
		}
		return []string{s.With}
	}), rowsOf(a, api.ListGroups, func(g api.Group) (names []string) {
		for _, m := range g.Members {
			names = append(names, m.Name)
		}
		for _, i := range g.Invitations {
			names = append(names, i.Member)
		}
		return names
	})}
}

// givenShares lists the members that the account shares with, and its open invites.
func (a *app) givenShares() []source {
	return []source{
		rowsOf(a, api.ListShares, func(s api.Share) []string { return nameIf(s.Direction != "received", s.With) }),
		rowsOf(a, api.ListInvites, func(i api.Invite) []string { return nameIf(i.State == "open", i.ID) }),
	}
}

// completeGroups completes the groups that pass and, if members is set, a member as the
// second argument.
func (a *app) completeGroups(passes func(api.Group) bool, members bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(args) == 0:
			return a.complete(cmd.Context(), typed, rowsOf(a, api.ListGroups, func(g api.Group) []string { return nameIf(passes(g), g.Name) }))
		case members && len(args) == 1:
			return a.complete(cmd.Context(), typed, a.anyMember()...)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

func nameIf(passes bool, name string) []string {
	if passes {
		return []string{name}
	}
	return nil
}
