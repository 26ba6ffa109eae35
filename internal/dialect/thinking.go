package dialect

import (
	"cmp"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"slices"
	"strings"

	"github.com/kith/kith/internal/fault"
)

// efforts are the values of reasoning_effort (spec/api.md#thinking); none disables
// thinking.
var efforts = []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}

var thinkingTypes = []string{"enabled", "disabled", "adaptive", "auto"}

// Thinking is the meaning of one thinking control; nil fields are not set by it.
type Thinking struct {
	Effort  *string // a value of reasoning_effort
	Budget  *int64  // tokens; 0: none, negative: no limit
	Enabled *bool
	Hide    bool // the caller does not want to see the reasoning
}

// tokens is a number of tokens, which JSON may write with a fraction or an exponent.
type tokens int64

func (t *tokens) UnmarshalJSON(value []byte) error {
	return json.Unmarshal(Integral(value), (*int64)(t))
}

// ReadThinking reads reasoning_effort or another thinking control (spec/api.md#thinking).
// null is always allowed and sets nothing; unknown members are ignored. The error is a
// *fault.Fault.
func ReadThinking(name string, value jsontext.Value) (Thinking, error) {
	var t Thinking
	switch name {
	case "reasoning":
		var control struct {
			Effort    *string `json:"effort"`
			MaxTokens *tokens `json:"max_tokens"`
			Enabled   *bool   `json:"enabled"`
			Exclude   bool    `json:"exclude"`
		}
		if json.Unmarshal(value, &control) != nil {
			return t, badControl(name, "must be an object with effort (string), max_tokens (integer), enabled and exclude (booleans)")
		}
		t = Thinking{control.Effort, (*int64)(control.MaxTokens), control.Enabled, control.Exclude}
		return t, checkEffort("reasoning.effort", t.Effort)
	case "thinking":
		return readThinkingObject(value)
	case "chat_template_kwargs":
		var control struct {
			EnableThinking *bool   `json:"enable_thinking"`
			Thinking       *bool   `json:"thinking"`
			Effort         *string `json:"reasoning_effort"`
			Budget         *tokens `json:"thinking_budget"`
		}
		if json.Unmarshal(value, &control) != nil {
			return t, badControl(name, "must be an object; its enable_thinking and thinking are booleans, reasoning_effort a string, thinking_budget an integer")
		}
		t = Thinking{Effort: control.Effort, Budget: (*int64)(control.Budget), Enabled: cmp.Or(control.EnableThinking, control.Thinking)}
		return t, checkEffort("chat_template_kwargs.reasoning_effort", t.Effort)
	}
	if json.Unmarshal(value, &t.Effort) != nil {
		return t, badControl(name, "must be one of %s", strings.Join(efforts, ", "))
	}
	return t, checkEffort(name, t.Effort)
}

// readThinkingObject reads thinking, which is a boolean or an object.
func readThinkingObject(value jsontext.Value) (t Thinking, err error) {
	if kind := value.Kind(); kind == 't' || kind == 'f' {
		t.Enabled = new(kind == 't')
		return t, nil
	}
	var control struct {
		Type   *string `json:"type"`
		Budget *tokens `json:"budget_tokens"`
	}
	if json.Unmarshal(value, &control) != nil {
		return t, badControl("thinking", "must be a boolean, or an object with type (string) and budget_tokens (integer)")
	}
	switch kind := control.Type; {
	case kind == nil:
		t.Budget = (*int64)(control.Budget)
	case !slices.Contains(thinkingTypes, *kind):
		return t, badControl("thinking.type", "must be one of %s", strings.Join(thinkingTypes, ", "))
	case *kind == "enabled":
		if t.Budget = (*int64)(control.Budget); t.Budget == nil || *t.Budget < 0 {
			t.Enabled = new(true)
		}
	case *kind == "disabled":
		t.Enabled = new(false)
	}
	return t, nil
}

func checkEffort(param string, effort *string) error {
	if effort == nil || slices.Contains(efforts, *effort) {
		return nil
	}
	return badControl(param, "must be one of %s", strings.Join(efforts, ", "))
}

// badControl returns the fault for an invalid thinking control. It never quotes the
// value.
func badControl(param, rule string, args ...any) error {
	return fault.New(fault.InvalidRequest, param+" "+rule, args...).WithParam(param)
}
