package cli

import (
	"cmp"
	"context"
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

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"
)

// agent is a coding agent that kith can start, as docs/clients.md sets it up.
type agent struct {
	install string // the line that installs it
	// local says that it speaks a dialect that the daemon of this machine serves for
	// the models here, too (decisions 5).
	local bool
	// starts says how it is started at a target: the arguments before the member's
	// own, and its environment.
	starts func(target) (args []string, env environment, err error)
}

// target is what an agent is started on: a surface and a model that it serves.
type target struct {
	base, key, model string
	context          int // the model's context length; 0: unknown
}

// answerLimit is how many tokens of the context an agent leaves for an answer. It
// has to be named to some together with the context: a quarter, and no more than
// the agents ask of models with a long context.
func (t target) answerLimit() int { return min(t.context/4, 32_000) }

var agents = map[string]agent{
	"claude":   {"npm install -g @anthropic-ai/claude-code", true, startClaude},
	"codex":    {"npm install -g @openai/codex", false, startCodex},
	"opencode": {"npm install -g opencode-ai", true, startOpencode},
}

// startClaude starts Claude Code. Of a model that it does not know it takes the
// context to be 200,000 tokens; what it takes instead is in the first variable,
// and in the second when it shortens the talk, which it does of itself only where
// that is set.
func startClaude(t target) ([]string, environment, error) {
	env := environment{
		set: []setting{
			{"ANTHROPIC_BASE_URL", t.base}, {"ANTHROPIC_AUTH_TOKEN", t.key},
			// What it does beside the main conversation, it would ask of models that no
			// machine of the member's has.
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

func startCodex(t target) ([]string, environment, error) {
	quoted := func(text string) string { return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"` }
	settings := []setting{
		{"model", quoted(t.model)}, {"model_provider", `"kith"`}, {"model_providers.kith.name", `"kith"`},
		{"model_providers.kith.base_url", quoted(t.base + "/v1")}, {"model_providers.kith.env_key", `"KITH_API_KEY"`},
		{"model_providers.kith.wire_api", `"responses"`},
	}
	if t.context > 0 { // else it takes the context of the vendor's models
		settings = append(settings, setting{"model_context_window", strconv.Itoa(t.context)})
	}
	var args []string
	for _, s := range settings {
		args = append(args, "-c", s.name+"="+s.value)
	}
	return args, environment{set: []setting{{"KITH_API_KEY", t.key}}}, nil
}

func startOpencode(t target) ([]string, environment, error) {
	type limit struct { // without it the talk is never shortened
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
	cmd := &cobra.Command{
		Use: "launch claude|codex|opencode [--model M] [-- ARGS…]", Short: "Start a coding agent on a model of your hub or of this machine",
		Long: "Start a coding agent on a model of your hub, with the key in KITH_API_KEY; the arguments after -- go to\n" +
			"the agent. Without --model it is the one that is ready, calls tools and takes most context. claude and\n" +
			"opencode use this machine's daemon where that has the model itself, and without a key. The agent gets the\n" +
			"model's context length, and nothing of its own configuration is changed.\n\n" +
			"The owner of a machine that serves you could write what your agent does: let none run tools unasked on\n" +
			"machines of people to whom you would not give a shell.",
		Args: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); len(args) == 0 || at == 0 || at < 0 && len(args) > 1 || at > 1 {
				return errors.New("name one agent; its own arguments come after --")
			}
			return nil
		},
		ValidArgs: names,
		RunE: func(cmd *cobra.Command, args []string) error {
			chosen, known := agents[args[0]]
			if !known {
				return wrongUse("cannot launch %s: known agents are %s; others take the lines of `kith env`", args[0], strings.Join(names, ", "))
			}
			path, err := exec.LookPath(args[0])
			if err != nil {
				return fmt.Errorf("cannot launch %s: it is not on your PATH; install it with `%s`", args[0], chosen.install)
			}
			return a.start(cmd.Context(), path, chosen, model, args[1:])
		},
	}
	cmd.Flags().StringVar(&model, "model", "", "the model, by its exact id")
	_ = cmd.RegisterFlagCompletionFunc("model", a.completeModelFlag)
	return cmd
}

// start runs the agent in this terminal and ends as it ends.
func (a *app) start(ctx context.Context, path string, chosen agent, model string, rest []string) error {
	t, err := a.target(ctx, chosen.local, model)
	if err != nil {
		return err
	}
	first, env, err := chosen.starts(t)
	if err != nil {
		return fmt.Errorf("cannot write the agent's settings: %w", err)
	}
	if !a.json && terminal(a.err) {
		fmt.Fprintf(a.err, "starting %s on %s at %s\n", path, t.model, t.base)
	}
	agent := exec.Command(path, append(first, rest...)...)
	agent.Env = env.over(os.Environ())
	agent.Stdin, agent.Stdout, agent.Stderr = a.in, a.out, a.err
	err = inPlace(agent)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return ended{max(exit.ExitCode(), exitFailed)}
	}
	if err != nil {
		return fmt.Errorf("cannot start %s: %w; run it by itself to see why", path, err)
	}
	return nil
}

// inPlace runs a program to its end. An interrupt of the terminal reaches it by
// itself, and what it makes of that is its own affair; a request to end is
// passed on.
func inPlace(program *exec.Cmd) error {
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
				_ = program.Process.Signal(s) // it has ended if this fails
			}
		}
	}
}

// localKey is what agents send to the daemon, which asks for no key.
const localKey = "kith"

// target finds the model that an agent is started on, and its surface: for an
// agent that the daemon here can serve, the daemon where it has the model itself,
// or where there is no API key; else the hub.
func (a *app) target(ctx context.Context, local bool, model string) (target, error) {
	var here []listed
	base := ""
	if local {
		surface, err := a.toDaemon()
		if err != nil {
			return target{}, err
		}
		surface.http = &http.Client{} // over TCP as the agent will, not over the socket
		var list listing
		if _, err := surface.call(ctx, "list the models", request{http.MethodGet, "/v1/models", nil}, &list); err == nil { // else no daemon runs here
			here, base = list.Data, surface.base
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
			return target{}, notSignedIn("cannot launch on %s: the daemon of this machine does not serve it, and there is no API key; start an engine here, or make a key with `kith keys create` and set KITH_API_KEY", cmp.Or(model, "any model"))
		}
		return target{}, notSignedIn("cannot launch an agent without an API key: make one with `kith keys create` or on the hub's site, and set KITH_API_KEY")
	}
	var list listing
	if _, err := hub.call(ctx, "list the models", request{http.MethodGet, "/v1/models", nil}, &list); err != nil {
		return target{}, err
	}
	one, ok := choose(list.Data, model)
	if !ok {
		return target{}, failure{exitNoCapacity, fmt.Errorf("cannot launch on %s: no machine you reach serves it just now; `kith models --account` lists what is there", cmp.Or(model, "any model"))}
	}
	if own, ok := choose(here, one.ID); ok {
		return at(own), nil
	}
	return target{hub.base, hub.bearer, one.ID, one.ContextLength}, nil
}

// choose finds the model in the list, or, where none is named, one for an agent:
// ready before busy, with tools before without, then by context length.
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
		n := 0
		if m.Availability == "ready" {
			n += 2
		}
		if slices.Contains(m.Capabilities, "tools") {
			n++
		}
		return n
	}
	return slices.MaxFunc(list, func(x, y listed) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(x.ContextLength, y.ContextLength))
	}), true
}

// ended is the end of a program that kith ran in its own place and that said
// for itself what was wrong.
type ended struct{ status int }

func (e ended) Error() string { return fmt.Sprintf("ended with status %d", e.status) }
