package chatform

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// TestEfforts asks templates for reasoning in ways that each of them takes.
func TestEfforts(t *testing.T) {
	type variables = map[string]any
	const unset = "reasoning_effort is not defined"
	for name, test := range map[string]struct {
		template string
		renders  map[string]string // for what is asked
	}{
		"any word": {`{{ reasoning_effort or 'medium' }}`, map[string]string{
			"": "medium", "off": "low", "on": "medium", "minimal": "low", "high": "high", "max": "high"}},
		"two words, and off": {`{% set e = reasoning_effort or 'none' %}{% if e not in ['none', 'high'] %}{{ raise_exception('none or high') }}{% endif %}{{ e }}`,
			map[string]string{"": "none", "off": "none", "none": "none", "on": "high", "low": "high", "max": "high"}},
		"two words, off by itself": {`{% if ` + unset + ` %}-{% elif reasoning_effort in ['low', 'high'] %}{{ reasoning_effort }}{% else %}{{ raise_exception('low or high') }}{% endif %}`,
			map[string]string{"": "-", "off": "-", "minimal": "low", "medium": "high", "max": "high"}},
		"little is off": {`{{ '-' if reasoning_effort in ['low', 'minimal'] else 'on' }}`,
			map[string]string{"": "on", "off": "-", "on": "on", "low": "-", "medium": "on", "max": "on"}},
		"one word counts": {`{{ 'very' if reasoning_effort == 'max' else 'on' }}`,
			map[string]string{"": "on", "off": "on", "low": "on", "max": "very"}},
		"another name": {`{{ 'on' if thinking else '-' }}`, map[string]string{"": "-", "off": "-", "on": "on", "high": "-", "budget": "-"}},
		"a mode of other words": {`{% if thinking_mode is defined and thinking_mode != 'chat' %}{{ raise_exception('chat') }}{% endif %}{{ enable_thinking }}`,
			map[string]string{"off": "False", "on": "True"}},
		"a mode":      {`{{ thinking_mode or 'adaptive' }}`, map[string]string{"": "adaptive", "off": "disabled", "on": "adaptive"}},
		"a budget":    {`{{ thinking_budget if thinking_budget is defined else 'on' }}`, map[string]string{"": "on", "off": "0", "on": "on", "budget": "512"}},
		"no variable": {`on`, map[string]string{"": "on", "off": "on", "on": "on", "high": "on", "budget": "on"}},
	} {
		tpl := inspected(t, Source{Text: `{% for m in messages %}{{ m.content }}{% endfor %}|` + test.template})
		for asked, want := range test.renders {
			set := map[string]variables{"": nil, "off": {enableThinking: false}, "on": {enableThinking: true}, "budget": {thinkingBudget: 512}}
			of, ok := set[asked]
			if !ok {
				of = variables{reasoningEffort: asked}
			}
			before := fmt.Sprint(of)
			text, _, err := tpl.render(&Conversation{Messages: []Message{{Role: "user", Content: "hi"}}, Variables: of, Answer: true})
			assert.OK(t, err, name, asked)
			assert.Equal(t, text, "hi|"+want, name+": "+asked)
			assert.Equal(t, fmt.Sprint(of), before, "the caller's variables")
		}
	}
}

// alwaysThinking are the templates that have no switch for reasoning.
var alwaysThinking = []string{
	"Apriel-1.6-15b-Thinker-fixed", "Kimi-K2-Thinking", "LFM2-8B-A1B", "LFM2.5-8B-A1B", "LFM2.5-Instruct", "MiniMax-M2",
	"NVIDIA-Nemotron-Nano-v2", "StepFun3.5-Flash", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "library-LFM2.5-VL-1.6B-Q8_0", "llama-cpp-deepseek-r1",
	"mistralai-Ministral-3-14B-Reasoning-2512", "muse-glimmer", "unsloth-Apriel-1.5",
}

// TestThinkingOff switches reasoning off in each template that can.
func TestThinkingOff(t *testing.T) {
	var always []string
	all := templates(t)
	for _, name := range sorted(all) {
		tpl := inspected(t, all[name])
		if tpl.form.ThinkEnd == "" {
			continue
		}
		prompt := func(on bool) string {
			c := &Conversation{Messages: []Message{{Role: "user", Content: "hi"}}, Variables: map[string]any{enableThinking: on}, Answer: true}
			text, _, err := tpl.render(c)
			assert.OK(t, err, name)
			return text
		}
		if prompt(true) == prompt(false) {
			always = append(always, name)
		}
	}
	assert.Equal(t, strings.Join(always, "\n"), strings.Join(alwaysThinking, "\n"), "templates without a switch")
}
