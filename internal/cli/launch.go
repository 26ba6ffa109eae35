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
	"strings"
	"syscall"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"
)

// agent is a coding agent that kith can start, as docs/clients.md sets it up.
type agent struct {
	install string // the line that installs it
	// starts says how it is started for a model at the hub with that key: the
	// arguments before the member's own, and its environment.
	starts func(hub, key, model string) (args []string, env environment, err error)
}

var agents = map[string]agent{
	"claude":   {"npm install -g @anthropic-ai/claude-code", startClaude},
	"codex":    {"npm install -g @openai/codex", startCodex},
	"opencode": {"npm install -g opencode-ai", startOpencode},
}

func startClaude(hub, key, model string) ([]string, environment, error) {
	return []string{"--model", model}, environment{
		set: []setting{
			{"ANTHROPIC_BASE_URL", hub}, {"ANTHROPIC_AUTH_TOKEN", key},
			// What it does beside the main conversation, it would ask of models that no
			// machine of the member's has.
			{"ANTHROPIC_DEFAULT_HAIKU_MODEL", model}, {"CLAUDE_CODE_SUBAGENT_MODEL", model},
		},
		unset: []string{"ANTHROPIC_API_KEY"},
	}, nil
}

func startCodex(hub, key, model string) ([]string, environment, error) {
	quoted := func(text string) string { return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"` }
	var args []string
	for _, s := range []setting{
		{"model", quoted(model)}, {"model_provider", `"kith"`}, {"model_providers.kith.name", `"kith"`},
		{"model_providers.kith.base_url", quoted(hub + "/v1")}, {"model_providers.kith.env_key", `"KITH_API_KEY"`},
		{"model_providers.kith.wire_api", `"responses"`},
	} {
		args = append(args, "-c", s.name+"="+s.value)
	}
	return args, environment{set: []setting{{"KITH_API_KEY", key}}}, nil
}

func startOpencode(hub, key, model string) ([]string, environment, error) {
	type provider struct {
		NPM     string              `json:"npm"`
		Options map[string]string   `json:"options"`
		Models  map[string]struct{} `json:"models"`
	}
	config, err := json.Marshal(struct {
		Model    string              `json:"model"`
		Provider map[string]provider `json:"provider"`
	}{"kith/" + model, map[string]provider{"kith": {
		NPM: "@ai-sdk/openai-compatible", Options: map[string]string{"baseURL": hub + "/v1", "apiKey": "{env:KITH_API_KEY}"},
		Models: map[string]struct{}{model: {}},
	}}}, json.Deterministic(true))
	return nil, environment{set: []setting{{"KITH_API_KEY", key}, {"OPENCODE_CONFIG_CONTENT", string(config)}}}, err
}

func (a *app) launch() *cobra.Command {
	var model string
	names := []string{"claude", "codex", "opencode"}
	cmd := &cobra.Command{
		Use: "launch claude|codex|opencode [--model M] [-- ARGS…]", Short: "Start a coding agent on a model of your hub",
		Long: "Start a coding agent on a model of your hub, with the key in KITH_API_KEY; what stands after -- goes to\n" +
			"the agent. Without --model it is the one that is ready, calls tools and takes most context. Nothing of\n" +
			"the agent's own configuration is changed.\n\n" +
			"The owner of a machine that serves you could write what your agent does: let none run tools unasked on\n" +
			"machines of people to whom you would not give a shell.",
		Args: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); len(args) == 0 || at == 0 || at < 0 && len(args) > 1 || at > 1 {
				return errors.New("name one agent; its own arguments stand after --")
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
	hub, found, err := a.byKey()
	if err != nil {
		return err
	}
	if !found {
		return notSignedIn("cannot launch an agent without an API key: make one with `kith keys create` or on the hub's site, and set KITH_API_KEY")
	}
	if model, err = choose(ctx, hub, model); err != nil {
		return err
	}
	first, env, err := chosen.starts(hub.base, hub.bearer, model)
	if err != nil {
		return fmt.Errorf("cannot write the agent's settings: %w", err)
	}
	if !a.json && terminal(a.err) {
		fmt.Fprintf(a.err, "starting %s on %s\n", path, model)
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

// choose checks that the account reaches the model, or finds one for an agent:
// ready before busy, with tools before without, then by context length.
func choose(ctx context.Context, hub *client, model string) (string, error) {
	var list listing
	if _, err := hub.call(ctx, "list the models", http.MethodGet, "/v1/models", nil, &list); err != nil {
		return "", err
	}
	if model == "" && len(list.Data) > 0 {
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
		best := slices.MaxFunc(list.Data, func(x, y listed) int {
			return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(x.ContextLength, y.ContextLength))
		})
		return best.ID, nil
	}
	if model != "" && slices.ContainsFunc(list.Data, func(m listed) bool { return m.ID == model }) {
		return model, nil
	}
	return "", failure{exitNoCapacity, fmt.Errorf("cannot launch on %s: no machine you reach serves it just now; `kith models --account` lists what is there", cmp.Or(model, "any model"))}
}

// ended is the end of a program that kith ran in its own place and that said
// for itself what was wrong.
type ended struct{ status int }

func (e ended) Error() string { return fmt.Sprintf("ended with status %d", e.status) }
