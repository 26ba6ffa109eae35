package engine

import (
	"cmp"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
)

// thinkMode is whether the model thinks before it answers.
type thinkMode uint8

const (
	thinkDefault thinkMode = iota // the engine's default
	thinkOff
	thinkOn
)

// thinking is the common form of all thinking controls. For the zero value nothing is
// sent to the engine (spec/api.md#thinking).
type thinking struct {
	mode   thinkMode
	effort string // minimal, low, medium, high, xhigh or max; "" if not set
	budget int64  // tokens; 0 if not set
	hide   bool   // the caller does not want the reasoning
}

// controls is a thinking setting in an engine's own fields.
type controls struct {
	members []member
	kwargs  []member // for chat_template_kwargs
}

// thinkingRank is the precedence of the controls.
var thinkingRank = map[string]int{
	"reasoning_effort":        0,
	"reasoning":               1,
	"thinking":                2,
	"chat_template_kwargs":    3,
	"think":                   unpublished,
	"enable_thinking":         unpublished,
	"thinking_budget":         unpublished,
	"thinking_budget_tokens":  unpublished,
	"reasoning_budget_tokens": unpublished,
	"thinking_token_budget":   unpublished,
	"include_reasoning":       unpublished,
}

// unpublished is the rank of names that clients use although no documentation contains
// them.
const unpublished = 4

// thinkingSources are the settings by rank.
type thinkingSources [unpublished + 1]thinking

// merged takes each aspect from the first rank that sets it. Conflicts are not errors.
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

func (t *thinking) setEnabled(on bool) {
	t.mode = thinkOff
	if on {
		t.mode = thinkOn
	}
}

// setBudget treats 0 as off and negative numbers as no limit.
func (t *thinking) setBudget(tokens int64) {
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
	switch kind := value.Kind(); {
	case thinkingRank[name] < unpublished || name == "think" && kind == '"':
		control, err := dialect.ReadThinking(name, value)
		if err != nil {
			return err
		}
		t.set(control)
		if name == "chat_template_kwargs" && r.req.Trusted { // only the owner may set the template's other variables
			return r.keepKwargs(value)
		}
	case (name == "think" || name == "enable_thinking") && (kind == 't' || kind == 'f'):
		t.setEnabled(kind == 't')
	case name == "include_reasoning" && (kind == 't' || kind == 'f'):
		t.hide = kind == 'f'
	case kind == '0' && strings.Contains(name, "budget"):
		t.setBudget(int64(atoi(value)))
	default:
		return fault.New(fault.InvalidRequest, "%s is not of a form that is known; see the thinking controls", name).WithParam(name)
	}
	return nil
}

// set applies a control. If members contradict each other, the last one applies.
func (t *thinking) set(control dialect.Thinking) {
	t.hide = control.Hide
	if control.Budget != nil {
		t.setBudget(*control.Budget)
	}
	switch {
	case control.Effort == nil:
	case *control.Effort == "none":
		t.mode = thinkOff
	default:
		t.mode, t.effort = thinkOn, *control.Effort
	}
	if control.Enabled != nil {
		t.setEnabled(*control.Enabled)
	}
}

// keepKwargs keeps the members of chat_template_kwargs that are not thinking settings.
func (r *rebuild) keepKwargs(value jsontext.Value) error {
	var all map[string]jsontext.Value
	if err := json.Unmarshal(value, &all); err != nil {
		return err
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

// level returns the effort as low, medium or high, which every engine supports. If only a
// budget is set, it returns the nearest level; if neither is set, "".
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

// effortThinking is for servers that only support reasoning_effort.
func effortThinking(t thinking, _ *Model) controls {
	if t.mode == thinkOff {
		return controls{members: effortMember("none")}
	}
	return controls{members: effortMember(cmp.Or(t.effort, t.level()))}
}

// templateThinking is for llama.cpp: the chat template decides.
func templateThinking(t thinking, _ *Model) controls {
	switch t.mode {
	case thinkOff: // the budget stops templates without that variable
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
			c.members = []member{{"thinking_budget_tokens", strconv.FormatInt(t.budget, 10)}}
		}
		return c
	default:
		return controls{}
	}
}

// builtinThinking is for the built-in engine, which passes each setting to the chat
// template in the variables that it has. It counts no tokens of reasoning.
func builtinThinking(t thinking, _ *Model) controls {
	switch t.mode {
	case thinkOff:
		return controls{kwargs: []member{{"enable_thinking", "false"}}}
	case thinkOn:
		c := controls{kwargs: append([]member{{"enable_thinking", "true"}}, effortMember(cmp.Or(t.effort, t.level()))...)}
		if t.budget > 0 {
			c.kwargs = append(c.kwargs, member{"thinking_budget", strconv.FormatInt(t.budget, 10)})
		}
		return c
	default:
		return controls{}
	}
}

// ollamaThinking sends nothing for a model that does not support thinking, because Ollama
// would refuse the call.
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

// lmStudioThinking only sends values in the model's own list.
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

// vllmThinking sends the setting to both the server and the template.
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
			c.members = append(c.members, member{"thinking_token_budget", strconv.FormatInt(t.budget, 10)})
		}
		return c
	default:
		return controls{}
	}
}
