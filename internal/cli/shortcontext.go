package cli

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/kith/kith/internal/llamaserver"
	"github.com/kith/kith/internal/pull"
)

// agentContext is the context length in tokens that coding agents need: their own prompts
// take 10,000 and more.
const agentContext = 16_384

// shortContext is what is known about a model whose context is too short for agents.
type shortContext struct {
	model   string
	context int
	// The rest is about a file that this machine's own engine runs; trained is 0 if it runs
	// none.
	configured, slots int // of config.toml; 0: none
	trained           int // the length that the model was trained on
	weights, each     uint64
}

// shortContext returns what is known about the model of an agent. Nothing about this
// machine is known if its daemon does not serve the model with that context.
func (a *app) shortContext(ctx context.Context, t target) shortContext {
	s := shortContext{model: t.model, context: t.context}
	config, err := loadLocalFile(a.home)
	if err != nil {
		return s
	}
	files, err := modelFiles(config.Engine.Models)
	file := slices.IndexFunc(files, func(f modelFile) bool { return f.ID == t.model })
	if err != nil || file < 0 {
		return s
	}
	surface, err := a.toDaemon()
	if err != nil {
		return s
	}
	surface.http = &http.Client{} // over TCP, as the agent does, instead of the socket
	here, err := surface.list(ctx)
	if err != nil || !slices.ContainsFunc(here, func(m listed) bool { return m.ID == t.model && m.ContextLength == t.context }) {
		return s
	}
	if trained, weights, each, err := llamaserver.ContextOf(files[file].Path); err == nil {
		s.trained, s.weights, s.each = trained, weights, each
		s.configured, s.slots = int(config.Engine.Context), int(config.Engine.Slots)
	}
	return s
}

// warning returns why the context is short and what helps.
func (s shortContext) warning() string {
	why, help := "", "`kith models --account` lists models with more; name one with --model"
	smaller := func(otherwise string) string {
		if l := s.smaller(); l != nil {
			return fmt.Sprintf("`kith pull %s` fetches a smaller model, which has more here", l.Name)
		}
		return otherwise
	}
	switch {
	case s.trained == 0:
	case s.context == s.trained:
		why, help = ", the length that it was trained on", smaller(help)
	case s.configured > 0:
		why, help = ", which [engine] context sets", "remove it from config.toml and restart the daemon"
	case s.slots > 1:
		why = fmt.Sprintf(", since this machine's free memory holds no more for %d slots", s.slots)
		help = "set [engine] slots to 1 in config.toml and restart the daemon"
	default:
		why = ", since this machine's free memory holds no more"
		help = smaller("close other programs and restart the daemon")
	}
	return fmt.Sprintf("%s has a context of %d tokens%s; coding agents need %d; %s", s.model, s.context, why, agentContext, help)
}

// smaller returns the largest listed model that calls tools and has agentContext in the
// memory that the model takes now, or nil if there is none.
func (s shortContext) smaller() *pull.Listed {
	// The engine leaves a fifth of the memory beside the weights free.
	memory := s.weights + s.each*uint64(s.context*max(s.slots, 1))/4*5
	list := slices.DeleteFunc(slices.Clone(pull.List()), func(l pull.Listed) bool {
		return l.Tools != "yes" || uint64(l.Size) >= s.weights || newPullable(l, memory).Context < agentContext
	})
	if len(list) == 0 {
		return nil
	}
	return &list[len(list)-1] // the list is sorted by size
}
