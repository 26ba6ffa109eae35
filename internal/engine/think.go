package engine

import (
	"maps"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/fault"
)

// thinkMode says whether the model is to think before it answers.
type thinkMode uint8

const (
	thinkDefault thinkMode = iota // as the engine does by itself
	thinkOff
	thinkOn
)

// thinking is the one value that every thinking control comes down to
// (S4, decisions 5). The zero value says nothing, and nothing is said to the
// engine then.
type thinking struct {
	mode   thinkMode
	effort string // minimal, low, medium, high, xhigh or max; empty: not said
	budget int    // tokens; 0: not said
	hide   bool   // the caller does not want to see it
}

// controls is a thinking value in an engine's words.
type controls struct {
	members []member
	kwargs  []member // of chat_template_kwargs
}

// thinkingRank orders the controls by who is believed first; the last rank are
// names that are in the wild beside the four published ones.
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

// thinkingSources is what each rank of controls said.
type thinkingSources [5]thinking

// merged is the first that speaks, aspect by aspect; a conflict is no error.
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

// off is t for a call that must not think.
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

// setBudget takes 0 for off and a negative number for no limit.
func (t *thinking) setBudget(tokens int) {
	switch {
	case tokens == 0:
		t.mode = thinkOff
	case tokens > 0:
		t.mode, t.budget = thinkOn, tokens
	}
}

// read takes one control; r is given the chat_template_kwargs that are none.
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
	// The rest is the template's business, and the owner's.
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

// level is the effort in words every engine knows: low, medium or high; what
// a budget comes nearest to where only that was said; empty: neither was.
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

// effortMember says level as reasoning_effort.
func effortMember(level string) []member {
	if level == "" {
		return nil
	}
	return []member{{"reasoning_effort", quoted(level)}}
}

// effortThinking is for servers that know reasoning_effort only.
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

// templateThinking is llama.cpp's: its chat template decides.
func templateThinking(t thinking, _ *Model) controls {
	switch t.mode {
	case thinkOff: // templates without that switch are held by the budget
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

// ollamaThinking: it refuses any effort for a model that cannot think.
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

// lmStudioThinking says only what the model's own list allows.
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

// vllmThinking tells the server and the template.
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
