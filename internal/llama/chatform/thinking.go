package chatform

import (
	"maps"
	"slices"
	"strings"
)

// The variables with which templates control reasoning. A template reads some of them or none.
const (
	enableThinking  = "enable_thinking"
	thinking        = "thinking"         // another name of enable_thinking
	thinkingMode    = "thinking_mode"    // modeOff or another word
	thinkingBudget  = "thinking_budget"  // tokens of reasoning; 0 means none
	reasoningEffort = "reasoning_effort" // one of efforts
)

// modeOff is the value of thinking_mode for no reasoning. Not all templates take it.
const modeOff = "disabled"

// efforts are the values of reasoning_effort, the least first.
var efforts = []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}

// deriveThinking finds out which values the template takes of the variables whose values
// are words.
func (p *probe) deriveThinking() {
	const unknown = "zqeffort"
	with := func(name, word string) string {
		set := map[string]any{enableThinking: true, thinking: true}
		if word != "" {
			set[name] = word
		}
		text, err := p.prompt(set)
		if err != nil {
			return ""
		}
		return text
	}
	prompt := func(effort string) string { return with(reasoningEffort, effort) }
	p.form.TakesModeOff = with(thinkingMode, modeOff) != ""
	unset, other := prompt(""), prompt(unknown)
	known := efforts
	if strings.Contains(other, unknown) { // it writes any word, and the model knows these
		known = []string{"low", "medium", "high"}
	}
	f, used, usual := p.form, false, false
	for _, effort := range known {
		text := prompt(effort)
		if text == "" || effort == "none" && text == other {
			continue
		}
		f.Efforts = append(f.Efforts, effort)
		used = used || text != unset
		usual = usual || text == unset && effort != "none"
	}
	if !used {
		f.Efforts = nil
		return
	}
	if f.DefaultOff = !usual; usual || f.Efforts[0] == "none" {
		f.OffEffort = f.Efforts[0]
	}
}

// variables returns the variables of a conversation with those about reasoning under all
// names, and with an effort that the template takes.
func (f *Form) variables(of map[string]any) map[string]any {
	set := maps.Clone(of)
	if set == nil {
		set = map[string]any{}
	}
	on, known := set[enableThinking].(bool)
	if !known {
		on, known = set[thinking].(bool)
	}
	effort, _ := set[reasoningEffort].(string)
	if effort == "none" {
		on, known = false, true
	}
	switch {
	case known && !on:
		effort, set[thinkingBudget] = f.OffEffort, 0
		if f.TakesModeOff {
			set[thinkingMode] = modeOff
		}
	case effort != "":
		effort = f.nearestEffort(effort)
	case known && f.DefaultOff:
		effort = f.nearestEffort("medium")
	}
	if known {
		set[enableThinking], set[thinking] = on, on
	}
	if set[reasoningEffort] = effort; effort == "" {
		delete(set, reasoningEffort)
	}
	return set
}

// nearestEffort returns the least effort that the template takes and that is not below the
// given one, else the greatest, or "" if the template takes none.
func (f *Form) nearestEffort(effort string) (nearest string) {
	for _, e := range f.Efforts {
		if nearest = e; slices.Index(efforts, e) >= slices.Index(efforts, effort) {
			break
		}
	}
	return nearest
}
