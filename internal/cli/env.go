package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

type setting struct{ name, value string }

// environment holds the variables that point OpenAI- and Anthropic-style clients to a
// surface.
type environment struct {
	set []setting
	// unset are variables that would make a client send a second secret, which the hub
	// refuses.
	unset []string
	// proof is the model that answered a call; empty if no model was ready.
	proof string
}

// shell is a shell's syntax: the formats for setting and for unsetting a variable, the
// escape for a single quote, and the command that applies the lines.
type shell struct{ set, unset, quote, use string }

var shells = map[string]shell{
	"sh":         {"export %s='%s'\n", "unset %s\n", `'\''`, `eval "$(kith env%s)"`},
	"fish":       {"set -gx %s '%s'\n", "set -e %s\n", `\'`, "kith env%s | source"},
	"powershell": {"$env:%s = '%s'\n", "Remove-Item Env:%s -ErrorAction SilentlyContinue\n", "''", "kith env%s | Out-String | Invoke-Expression"},
}

// usualShell returns the default shell for the lines.
func usualShell() string {
	if runtime.GOOS == "windows" {
		return "powershell"
	}
	if filepath.Base(os.Getenv("SHELL")) == "fish" {
		return "fish"
	}
	return "sh"
}

func (a *app) env() *cobra.Command {
	var name string
	var local bool
	cmd := command("kith env", func(ctx context.Context, _ []string) error {
		style, ok := shells[name]
		if !ok {
			return wrongUse("cannot write lines for the shell %q; use --shell sh, fish or powershell", name)
		}
		prove := a.hubEnvironment
		if local {
			prove = a.localEnvironment
		}
		env, err := prove(ctx)
		if err != nil {
			return err
		}
		flags := strings.TrimSuffix(" --shell "+name, " --shell "+usualShell()) + map[bool]string{true: " --local"}[local]
		return a.print(env.json(), func() { a.write(env, style, flags) })
	})
	cmd.Flags().StringVar(&name, "shell", usualShell(), "sh, fish or powershell")
	cmd.Flags().BoolVar(&local, "local", false, "this machine's daemon instead of the hub")
	_ = cmd.RegisterFlagCompletionFunc("shell", cobra.FixedCompletions([]string{"sh", "fish", "powershell"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) write(env environment, style shell, flags string) {
	// Without styles, because the output is for a shell.
	print := func(format string, args ...any) { fmt.Fprintf(a.out, format, args...) }
	for _, s := range env.set {
		print(style.set, s.name, strings.ReplaceAll(s.value, "'", style.quote))
	}
	for _, name := range env.unset {
		print(style.unset, name)
	}
	if env.proof != "" {
		print("# A call to %s with these succeeded. Use them with:\n", env.proof)
	} else {
		print("# The address and the key are valid; no model is ready for a call now. Use them with:\n")
	}
	print("#   "+style.use+"\n", flags)
}

// json returns the output of `kith env --json`.
func (e environment) json() any {
	values := map[string]string{}
	for _, s := range e.set {
		values[s.name] = s.value
	}
	return struct {
		Set      map[string]string `json:"set"`
		Unset    []string          `json:"unset"`
		ProvedBy string            `json:"proved_by,omitzero"`
	}{values, append([]string{}, e.unset...), e.proof}
}

// hubEnvironment points clients to the hub, with an API key. It does not use the
// machine's own credential, which must not reach programs that execute a model's output.
func (a *app) hubEnvironment(ctx context.Context) (environment, error) {
	hub, found, err := a.byKey()
	if err != nil {
		return environment{}, err
	}
	if !found {
		return environment{}, notSignedIn("cannot point clients at a hub without an API key: create one with `kith keys create` or on the hub's site, and set KITH_API_KEY; `kith env --local` needs none")
	}
	return provedEnvironment(ctx, hub, hub.bearer)
}

// localEnvironment points clients to this machine's daemon, which accepts any key.
func (a *app) localEnvironment(ctx context.Context) (environment, error) {
	surface, err := a.toDaemon()
	if err != nil {
		return environment{}, err
	}
	surface.http = &http.Client{} // over TCP, as the clients do, instead of the socket
	return provedEnvironment(ctx, surface, localKey)
}

// provedEnvironment returns the variables for a surface after it has answered test calls.
func provedEnvironment(ctx context.Context, surface *client, key string) (environment, error) {
	model, err := proof(ctx, surface, chatPath, messagesPath)
	return environment{
		set: []setting{
			{"OPENAI_BASE_URL", surface.base + "/v1"}, {"OPENAI_API_KEY", key},
			{"ANTHROPIC_BASE_URL", surface.base}, {"ANTHROPIC_AUTH_TOKEN", key},
		},
		unset: []string{"ANTHROPIC_API_KEY"}, proof: model,
	}, err
}

// proof makes a call for one token at each path, to the first model that is ready for it,
// and returns that model. It returns "" if none is ready, which still proves that the
// address and the key are valid.
func proof(ctx context.Context, surface *client, paths ...string) (string, error) {
	const doing = "prove the address and the key"
	var list listing
	if _, err := surface.call(ctx, doing, request{http.MethodGet, "/v1/models", nil}, &list); err != nil {
		return "", err
	}
	// Models that may not support chat come last; the member's own come before those of
	// others.
	place := func(m listed) int { return slices.Index([]string{"shared", "group"}, m.Via) }
	slices.SortStableFunc(list.Data, func(a, b listed) int { return cmp.Or(a.others()-b.others(), place(a)-place(b)) })
	in := chatRequest{MaxTokens: 1, Messages: []message{{"user", "Hello"}}}
	for _, m := range list.Data {
		if !m.isReady() {
			continue
		}
		in.Model = m.ID
		served := true
		for _, path := range paths {
			res, err := surface.send(ctx, http.MethodPost, path, in)
			if refused := (*refusal)(nil); errors.As(err, &refused) && refused.exit() == exitNoCapacity {
				served = false // no chat model, or busy by now
				break
			}
			if err != nil {
				return m.ID, callFailure("prove the lines by a call to "+m.ID, err)
			}
			_, err = io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswer))
			if err = errors.Join(err, res.Body.Close()); err != nil {
				return m.ID, err
			}
		}
		if served {
			return m.ID, nil
		}
	}
	return "", nil
}

// over returns the environment of a process with e's changes.
func (e environment) over(process []string) []string {
	process = slices.DeleteFunc(slices.Clone(process), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains(e.unset, name) || slices.ContainsFunc(e.set, func(s setting) bool { return s.name == name })
	})
	for _, s := range e.set {
		process = append(process, s.name+"="+s.value)
	}
	return process
}
