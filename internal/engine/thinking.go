package engine

import (
	"maps"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/fault"
)

// thinkMode says whether the model thinks before it answers.
type thinkMode uint8

const (
	thinkDefault thinkMode = iota // the engine's default
	thinkOff
	thinkOn
)

// thinking is the setting that all thinking controls are reduced to. With the zero
// value nothing is sent to the engine (spec/api.md#thinking).
type thinking struct {
	mode   thinkMode
	effort string // minimal, low, medium, high, xhigh or max; "" if not set
	budget int    // tokens; 0 if not set
	hide   bool   // the caller does not want to see the reasoning
}

// controls is a thinking setting in the fields of an engine.
type controls struct {
	members []member
	kwargs  []member // of chat_template_kwargs
}

// thinkingRank is the precedence of the controls. The last rank holds unpublished
// names that clients send.
var thinkingRank = map[string]int{
	"reasoning_effort":        0,
	"reasoning":               1,
	"thinking":                2,
	"chat_template_kwargs":    3,
	"think":                   4,
	"enable_thinking":         4,
	"thinking_budget":         4,
	"thinking_budget_tokens":  4,
	"reasoning_budget_tokens": 4,
	"thinking_token_budget":   4,
	"include_reasoning":       4,
}

// thinkingSources holds the settings of each rank.
type thinkingSources [5]thinking

// merged takes each aspect from the first rank that sets it; a conflict is no error.
func (s *thinkingSources) merged() thinking {
	var t thinking
	for _, from := range s {
		if t.mode == thinkDefault {
			t.mode = from.mode
		}
		if t.effort == "" {
			t.effort = from.effort
		}
		if t.budget == 0 {
			t.budget = from.budget
		}
		t.hide = t.hide || from.hide
	}
	if t.mode == thinkOff {
		t.effort, t.budget = "", 0
	}
	return t
}

// off returns the setting for a call that must not think.
func (t thinking) off() thinking { return thinking{mode: thinkOff, hide: t.hide} }

var efforts = []string{"minimal", "low", "medium", "high", "xhigh", "max"}

func (t *thinking) setEffort(param, effort string) error {
	switch {
	case effort == "none":
		t.mode = thinkOff
	case slices.Contains(efforts, effort):
		t.mode, t.effort = thinkOn, effort
	default:
		return fault.New(fault.InvalidRequest, "%s must be none, minimal, low, medium, high, xhigh or max", param).WithParam(param)
	}
	return nil
}

func (t *thinking) setEnabled(on bool) {
	t.mode = thinkOff
	if on {
		t.mode = thinkOn
	}
}

// setBudget treats 0 as off and a negative number as no limit.
func (t *thinking) setBudget(tokens int) {
	switch {
	case tokens == 0:
		t.mode = thinkOff
	case tokens > 0:
		t.mode, t.budget = thinkOn, tokens
	}
}

// read reads one control. It adds unknown members of chat_template_kwargs to r.
func (s *thinkingSources) read(name string, value jsontext.Value, r *rebuild) error {
	t := &s[thinkingRank[name]]
	wrong := fault.New(fault.InvalidRequest, "%s is not of a form that is known; see the thinking controls", name).WithParam(name)
	switch kind := value.Kind(); {
	case name == "reasoning" && kind == '{':
		return t.readReasoning(value, wrong)
	case name == "thinking" && kind == '{':
		return t.readThinking(value, wrong)
	case name == "chat_template_kwargs" && kind == '{':
		return t.readKwargs(value, wrong, r)
	case (name == "thinking" || name == "think" || name == "enable_thinking") && (kind == 't' || kind == 'f'):
		t.setEnabled(kind == 't')
	case name == "include_reasoning" && (kind == 't' || kind == 'f'):
		t.hide = kind == 'f'
	case (name == "reasoning_effort" || name == "think") && kind == '"':
		var effort string
		if err := json.Unmarshal(value, &effort); err != nil {
			return wrong
		}
		return t.setEffort(name, effort)
	case kind == '0' && (name == "thinking_budget" || name == "thinking_budget_tokens" || name == "reasoning_budget_tokens" || name == "thinking_token_budget"):
		t.setBudget(atoi(value))
	default:
		return wrong
	}
	return nil
}

func (t *thinking) readReasoning(value jsontext.Value, wrong error) error {
	var v struct {
		Effort    *string `json:"effort"`
		MaxTokens *int    `json:"max_tokens"`
		Enabled   *bool   `json:"enabled"`
		Exclude   bool    `json:"exclude"`
	}
	if err := json.Unmarshal(value, &v); err != nil {
		return wrong
	}
	t.hide = v.Exclude
	if v.MaxTokens != nil {
		t.setBudget(*v.MaxTokens)
	}
	if v.Effort != nil {
		if err := t.setEffort("reasoning", *v.Effort); err != nil {
			return err
		}
	}
	if v.Enabled != nil {
		t.setEnabled(*v.Enabled)
	}
	return nil
}

func (t *thinking) readThinking(value jsontext.Value, wrong error) error {
	var v struct {
		Type   string `json:"type"`
		Budget *int   `json:"budget_tokens"`
	}
	if err := json.Unmarshal(value, &v); err != nil {
		return wrong
	}
	switch v.Type {
	case "enabled":
		t.mode = thinkOn
		if v.Budget != nil {
			t.setBudget(*v.Budget)
		}
	case "":
		if v.Budget != nil {
			t.setBudget(*v.Budget)
		}
	case "disabled":
		t.mode = thinkOff
	case "adaptive", "auto", "between_tools":
	default:
		return wrong
	}
	return nil
}

func (t *thinking) readKwargs(value jsontext.Value, wrong error, r *rebuild) error {
	var v struct {
		Enable   *bool   `json:"enable_thinking"`
		Thinking *bool   `json:"thinking"`
		Effort   *string `json:"reasoning_effort"`
		Budget   *int    `json:"thinking_budget"`
	}
	if err := json.Unmarshal(value, &v); err != nil {
		return wrong
	}
	if v.Budget != nil {
		t.setBudget(*v.Budget)
	}
	if v.Effort != nil {
		if err := t.setEffort("chat_template_kwargs", *v.Effort); err != nil {
			return err
		}
	}
	for _, enabled := range []*bool{v.Thinking, v.Enable} {
		if enabled != nil {
			t.setEnabled(*enabled)
		}
	}
	if !r.req.Trusted {
		return nil
	}
	// Other members are for the chat template; only the owner may set them.
	var all map[string]jsontext.Value
	if err := json.Unmarshal(value, &all); err != nil {
		return wrong
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		switch name {
		case "enable_thinking", "thinking", "reasoning_effort", "thinking_budget":
		default:
			r.kwargs = append(r.kwargs, member{name, string(all[name])})
		}
	}
	return nil
}

// level returns the effort as low, medium or high, which every engine knows. If
// only a budget is set, it returns the nearest level; if neither is set, "".
func (t thinking) level() string {
	switch {
	case t.effort == "minimal" || t.effort == "low":
		return "low"
	case t.effort == "medium":
		return "medium"
	case t.effort != "":
		return "high"
	case t.budget == 0:
		return ""
	case t.budget <= 2<<10:
		return "low"
	case t.budget <= 8<<10:
		return "medium"
	default:
		return "high"
	}
}

// effortMember returns level as reasoning_effort.
func effortMember(level string) []member {
	if level == "" {
		return nil
	}
	return []member{{"reasoning_effort", quoted(level)}}
}

// effortThinking is for servers that know only reasoning_effort.
func effortThinking(t thinking, _ *Model) controls {
	switch {
	case t.mode == thinkOff:
		return controls{members: effortMember("none")}
	case t.effort != "":
		return controls{members: effortMember(t.effort)}
	default:
		return controls{members: effortMember(t.level())}
	}
}

// templateThinking is for llama.cpp, where the chat template decides.
func templateThinking(t thinking, _ *Model) controls {
	switch t.mode {
	case thinkOff: // the budget stops templates without that switch
		return controls{
			members: []member{{"thinking_budget_tokens", "0"}},
			kwargs:  []member{{"enable_thinking", "false"}},
		}
	case thinkOn:
		c := controls{kwargs: []member{{"enable_thinking", "true"}}}
		if t.effort != "" {
			c.kwargs = append(c.kwargs, effortMember(t.level())...)
		}
		if t.budget > 0 {
			c.members = []member{{"thinking_budget_tokens", strconv.Itoa(t.budget)}}
		}
		return c
	default:
		return controls{}
	}
}

// ollamaThinking sends nothing for a model that cannot think: Ollama would refuse it.
func ollamaThinking(t thinking, m *Model) controls {
	switch {
	case !m.Can("thinking"):
		return controls{}
	case t.mode == thinkOff:
		return controls{members: effortMember("none")}
	default:
		return controls{members: effortMember(t.level())}
	}
}

// lmStudioThinking sends only what the model's own list allows.
func lmStudioThinking(t thinking, m *Model) controls {
	switch level := t.level(); {
	case t.mode == thinkOff && slices.Contains(m.efforts, "off"):
		return controls{members: effortMember("none")}
	case level != "" && slices.Contains(m.efforts, level):
		return controls{members: effortMember(level)}
	default:
		return controls{}
	}
}

// vllmThinking sends the setting to the server and to the template.
func vllmThinking(t thinking, _ *Model) controls {
	switch t.mode {
	case thinkOff:
		return controls{
			members: effortMember("none"),
			kwargs:  []member{{"enable_thinking", "false"}, {"thinking", "false"}},
		}
	case thinkOn:
		c := controls{kwargs: []member{{"enable_thinking", "true"}, {"thinking", "true"}}}
		if t.effort != "" {
			c.members = effortMember(t.level())
		}
		if t.budget > 0 {
			c.members = append(c.members, member{"thinking_token_budget", strconv.Itoa(t.budget)})
		}
		return c
	default:
		return controls{}
	}
}
