package cli

import (
	"cmp"
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

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
	type limit struct { // without it the conversation is never shortened
		Context int `json:"context"`
		Output  int `json:"output"`
	}
	type model struct {
		Limit limit `json:"limit,omitzero"`
	}
	type provider struct {
		NPM     string            `json:"npm"`
		Options map[string]string `json:"options"`
		Models  map[string]model  `json:"models"`
	}
	var one model
	if t.context > 0 {
		one.Limit = limit{t.context, t.answerLimit()}
	}
	config, err := json.Marshal(struct {
		Model    string              `json:"model"`
		Provider map[string]provider `json:"provider"`
	}{"kith/" + t.model, map[string]provider{"kith": {
		NPM: "@ai-sdk/openai-compatible", Options: map[string]string{"baseURL": t.base + "/v1", "apiKey": "{env:KITH_API_KEY}"},
		Models: map[string]model{t.model: one},
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

// localKey is the key that agents send to the daemon, which does not require one.
const localKey = "kith"

// target returns the model and the surface for an agent. It uses this machine's daemon if
// the daemon can serve the agent, and if it either serves the model itself or there is no
// API key. Otherwise it uses the hub.
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
	at := func(m listed) target { return target{base, localKey, m.ID, m.ContextLength} }
	if one, ok := choose(here, model); ok && (model != "" || !found) {
		return at(one), nil
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
