package cli

import (
	"cmp"
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
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

// agent is a coding agent that kith can start, with the settings in docs/clients.md.
type agent struct {
	install string // the command that installs it
	// local reports that this machine's daemon serves the agent's dialect for local
	// models.
	local bool
	// settings returns the arguments for a target, which are inserted before the user's
	// own, and the environment.
	settings func(target) (args []string, env environment, err error)
}

// target is the surface and the model that an agent uses.
type target struct {
	base, key, model string
	context          int // context length of the model; 0: unknown
}

// answerLimit returns how many tokens of the context an agent should reserve for an
// answer: a quarter, but no more than agents reserve by default for long contexts. Some
// agents need this number together with the context length.
func (t target) answerLimit() int { return min(t.context/4, 32_000) }

var agents = map[string]agent{
	"claude":   {"npm install -g @anthropic-ai/claude-code", true, claudeSettings},
	"codex":    {"npm install -g @openai/codex", false, codexSettings},
	"opencode": {"npm install -g opencode-ai", true, opencodeSettings},
}

// claudeSettings returns the settings of Claude Code. For unknown models it assumes a
// context of 200,000 tokens, unless the first of the last three variables is set. It only
// shortens the conversation, at the length in the second variable, if that is set.
func claudeSettings(t target) ([]string, environment, error) {
	env := environment{
		set: []setting{
			{"ANTHROPIC_BASE_URL", t.base}, {"ANTHROPIC_AUTH_TOKEN", t.key},
			// By default it uses models for side tasks that no machine has.
			{"ANTHROPIC_DEFAULT_HAIKU_MODEL", t.model}, {"CLAUDE_CODE_SUBAGENT_MODEL", t.model},
		},
		unset: []string{"ANTHROPIC_API_KEY"},
	}
	if t.context > 0 {
		env.set = append(env.set,
			setting{"CLAUDE_CODE_MAX_CONTEXT_TOKENS", strconv.Itoa(t.context)},
			setting{"CLAUDE_CODE_AUTO_COMPACT_WINDOW", strconv.Itoa(t.context)},
			setting{"CLAUDE_CODE_MAX_OUTPUT_TOKENS", strconv.Itoa(t.answerLimit())})
	}
	return []string{"--model", t.model}, env, nil
}

func codexSettings(t target) ([]string, environment, error) {
	quoted := func(text string) string { return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"` }
	settings := []setting{
		{"model", quoted(t.model)}, {"model_provider", `"kith"`}, {"model_providers.kith.name", `"kith"`},
		{"model_providers.kith.base_url", quoted(t.base + "/v1")}, {"model_providers.kith.env_key", `"KITH_API_KEY"`},
		{"model_providers.kith.wire_api", `"responses"`},
	}
	if t.context > 0 { // otherwise it assumes the context of its vendor's models
		settings = append(settings, setting{"model_context_window", strconv.Itoa(t.context)})
	}
	var args []string
	for _, s := range settings {
		args = append(args, "-c", s.name+"="+s.value)
	}
	return args, environment{set: []setting{{"KITH_API_KEY", t.key}}}, nil
}

func opencodeSettings(t target) ([]string, environment, error) {
	model := map[string]any{}
	if t.context > 0 { // without it the conversation is never shortened
		model["limit"] = map[string]int{"context": t.context, "output": t.answerLimit()}
	}
	config, err := json.Marshal(map[string]any{"model": "kith/" + t.model, "provider": map[string]any{"kith": map[string]any{
		"npm": "@ai-sdk/openai-compatible", "options": map[string]string{"baseURL": t.base + "/v1", "apiKey": "{env:KITH_API_KEY}"},
		"models": map[string]any{t.model: model},
	}}}, json.Deterministic(true))
	return nil, environment{set: []setting{{"KITH_API_KEY", t.key}, {"OPENCODE_CONFIG_CONTENT", string(config)}}}, err
}

func (a *app) launch() *cobra.Command {
	var model string
	names := []string{"claude", "codex", "opencode"}
	cmd := command("kith launch", func(ctx context.Context, args []string) error {
		chosen, known := agents[args[0]]
		if !known {
			return wrongUse("cannot launch %s: known agents are %s; others take the lines of `kith env`", args[0], strings.Join(names, ", "))
		}
		path, err := exec.LookPath(args[0])
		if err != nil {
			return fmt.Errorf("cannot launch %s: it is not on your PATH; install it with `%s`", args[0], chosen.install)
		}
		return a.start(ctx, path, chosen, model, args[1:])
	})
	cmd.ValidArgs = names
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if at := cmd.ArgsLenAtDash(); len(args) == 0 || at == 0 || at < 0 && len(args) > 1 || at > 1 {
			return errors.New("name one agent; its own arguments come after --")
		}
		return nil
	}
	cmd.Flags().StringVar(&model, "model", "", "the model, by its exact id")
	_ = cmd.RegisterFlagCompletionFunc("model", a.completeModelFlag)
	return cmd
}

// start runs the agent in this terminal and returns its exit status as an error.
func (a *app) start(ctx context.Context, path string, chosen agent, model string, rest []string) error {
	t, err := a.target(ctx, chosen.local, model)
	if err != nil {
		return err
	}
	first, env, err := chosen.settings(t)
	if err != nil {
		return fmt.Errorf("cannot write the agent's settings: %w", err)
	}
	if t.context > 0 && t.context < agentContext {
		a.warn([]string{a.shortContext(ctx, t).warning()})
	}
	if !a.json && terminal(a.err) {
		fmt.Fprintf(a.err, "starting %s on %s at %s\n", path, t.model, t.base)
	}
	agent := exec.Command(path, append(first, rest...)...)
	agent.Env = env.over(os.Environ())
	agent.Stdin, agent.Stdout, agent.Stderr = a.in, a.out.raw, a.err.raw
	err = runForeground(agent)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return ended{max(exit.ExitCode(), exitFailed)}
	}
	if err != nil {
		return fmt.Errorf("cannot start %s: %w; run it without kith to see why", path, err)
	}
	return nil
}

// runForeground runs a program to its end. The terminal sends interrupts to both
// processes, and this one ignores them; SIGTERM is forwarded.
func runForeground(program *exec.Cmd) error {
	signal.Reset(os.Interrupt, syscall.SIGTERM)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	if err := program.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- program.Wait() }()
	for {
		select {
		case err := <-done:
			return err
		case s := <-signals:
			if s == syscall.SIGTERM {
				_ = program.Process.Signal(s) // fails if the program has ended
			}
		}
	}
}

// localKey is the key that programs send to the daemon, which does not require one.
const localKey = "kith"

// target returns the model and the surface for an agent. It uses this machine's daemon if
// the daemon can serve the agent, and if it either serves the model itself, or is signed in
// to the hub: then it seals the calls. Otherwise it uses the hub.
func (a *app) target(ctx context.Context, local bool, model string) (target, error) {
	var here []listed
	base := ""
	if local {
		surface, err := a.toDaemon()
		if err != nil {
			return target{}, err
		}
		surface.http = &http.Client{}                  // over TCP, as the agent does, instead of the socket
		if here, err = surface.list(ctx); err == nil { // otherwise no daemon is running here
			base = surface.base
		}
	}
	hub, found, err := a.byKey()
	if err != nil {
		return target{}, err
	}
	at := func(m listed) target {
		return target{base, gateway.LocalKey(fleet.ProgramLaunch), m.ID, m.ContextLength}
	}
	if one, ok := choose(here, model); ok && (model != "" || !found) {
		return at(one), nil
	}
	if _, saved, ok := a.signedIn(); ok && base != "" {
		if models, err := asMachine(saved).list(ctx); err == nil { // this machine's own are not in it
			if one, ok := choose(append(models, here...), model); ok {
				return at(one), nil
			}
		}
	}
	if a.mustSeal() {
		return target{}, failure{exitNoCapacity, fmt.Errorf("cannot launch on %s: [privacy] sealed = \"require\" lets only this machine's daemon make calls, and it does not reach the model for this agent", cmp.Or(model, "any model"))}
	}
	if !found {
		if base != "" {
			return target{}, notSignedIn("cannot launch on %s: the daemon of this machine does not serve it, and there is no API key; start an engine here, or create a key with `kith keys create` and set KITH_API_KEY", cmp.Or(model, "any model"))
		}
		return target{}, notSignedIn("cannot launch an agent without an API key: create one with `kith keys create` or on the hub's site, and set KITH_API_KEY")
	}
	models, err := hub.list(ctx)
	if err != nil {
		return target{}, err
	}
	one, ok := choose(models, model)
	if !ok {
		return target{}, failure{exitNoCapacity, fmt.Errorf("cannot launch on %s: no machine that you reach serves it now; `kith models --account` lists the models", cmp.Or(model, "any model"))}
	}
	if own, ok := choose(here, one.ID); ok {
		return at(own), nil
	}
	return target{hub.base, hub.bearer, one.ID, one.ContextLength}, nil
}

// choose returns the model with the given id. Without an id it returns the best available
// model for an agent, comparing first the owner of the machines (own, shared, a group's),
// then readiness, tools and context length. Models that may not support chat come last.
func choose(list []listed, model string) (listed, bool) {
	if model != "" {
		i := slices.IndexFunc(list, func(m listed) bool { return m.ID == model })
		if i < 0 {
			return listed{}, false
		}
		return list[i], true
	}
	if len(list) == 0 {
		return listed{}, false
	}
	rank := func(m listed) int {
		tools := slices.Contains(m.Capabilities, "tools")
		n := 0
		for _, better := range []bool{
			tools || m.others() == 0, m.takesCalls(), m.Via != "shared" && m.Via != "group", m.Via != "group", m.isReady(), tools,
		} {
			n *= 2
			if better {
				n++
			}
		}
		return n
	}
	return slices.MaxFunc(list, func(x, y listed) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(x.ContextLength, y.ContextLength))
	}), true
}

// ended is the exit status of a program that kith ran. That program has already reported
// its error.
type ended struct{ status int }

func (e ended) Error() string { return fmt.Sprintf("ended with status %d", e.status) }
