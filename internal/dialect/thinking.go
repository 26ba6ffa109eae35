package dialect

import (
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/fault"
)

// efforts are the words of reasoning_effort (spec/api.md#thinking); none switches
// thinking off.
var efforts = []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}

// thinkingTypes are the words of thinking.type.
var thinkingTypes = []string{"enabled", "disabled", "adaptive", "auto"}

// thinkingControls checks reasoning_effort and its three siblings (spec/api.md#thinking). null
// says nothing and is always taken; members beyond those known are ignored.
var thinkingControls = map[string]func(jsontext.Value) error{
	"reasoning_effort":     checkReasoningEffort,
	"reasoning":            checkReasoning,
	"thinking":             checkThinking,
	"chat_template_kwargs": checkTemplateArguments,
}

func checkReasoningEffort(value jsontext.Value) error {
	var effort *string
	if json.Unmarshal(value, &effort) != nil {
		return badControl("reasoning_effort", "must be one of %s", strings.Join(efforts, ", "))
	}
	return checkEffort("reasoning_effort", effort)
}

func checkReasoning(value jsontext.Value) error {
	var control struct {
		Effort    *string `json:"effort"`
		MaxTokens *int64  `json:"max_tokens"`
		Enabled   *bool   `json:"enabled"`
		Exclude   *bool   `json:"exclude"`
	}
	if json.Unmarshal(value, &control) != nil {
		return badControl("reasoning", "must be an object with effort (string), max_tokens (integer), enabled and exclude (booleans)")
	}
	return checkEffort("reasoning.effort", control.Effort)
}

func checkThinking(value jsontext.Value) error {
	if kind := value.Kind(); kind == 't' || kind == 'f' {
		return nil
	}
	var control struct {
		Type   *string `json:"type"`
		Budget *int64  `json:"budget_tokens"`
	}
	if json.Unmarshal(value, &control) != nil {
		return badControl("thinking", "must be a boolean, or an object with type (string) and budget_tokens (integer)")
	}
	if control.Type != nil && !slices.Contains(thinkingTypes, *control.Type) {
		return badControl("thinking.type", "must be one of %s", strings.Join(thinkingTypes, ", "))
	}
	return nil
}

func checkTemplateArguments(value jsontext.Value) error {
	var control struct {
		EnableThinking *bool   `json:"enable_thinking"`
		Thinking       *bool   `json:"thinking"`
		Effort         *string `json:"reasoning_effort"`
		Budget         *int64  `json:"thinking_budget"`
	}
	if json.Unmarshal(value, &control) != nil {
		return badControl("chat_template_kwargs",
			"must be an object; its enable_thinking and thinking are booleans, reasoning_effort a string, thinking_budget an integer")
	}
	return checkEffort("chat_template_kwargs.reasoning_effort", control.Effort)
}

// checkEffort refuses an effort that is no word of the list.
func checkEffort(param string, effort *string) error {
	if effort == nil || slices.Contains(efforts, *effort) {
		return nil
	}
	return badControl(param, "must be one of %s", strings.Join(efforts, ", "))
}

// badControl says what a thinking control must look like; it never quotes what
// was sent.
func badControl(param, rule string, args ...any) error {
	return fault.New(fault.InvalidRequest, param+" "+rule, args...).WithParam(param)
}
