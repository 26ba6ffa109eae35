package chatform

import (
	"strings"
	"testing"
)

// Templates in formats that none of llama.cpp's templates has, but other models do.
const (
	turns = `{% for m in messages %}{% if m.role != 'assistant' %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% else %}<|im_start|>assistant
`
	turnsEnd = `<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`
	showTools = `{% if tools %}{{ tools | tojson }}
{% endif %}`
)

var unknownTemplates = map[string]string{
	"JSON after two marks": showTools + turns +
		`{{ m.content }}{% for c in m.tool_calls or [] %}<|action_start|><|plugin|>
{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}<|action_end|>
{% endfor %}` + turnsEnd,
	"an array as in chat completions": showTools + turns +
		`{% if m.tool_calls %}{{ m.content }}<calls>{{ m.tool_calls | tojson }}</calls>{% else %}{{ m.content }}{% endif %}` + turnsEnd,
	"an array without a mark": showTools + turns +
		`{{ m.content }}{% if m.tool_calls %}[{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}` +
		`{{ ", " if not loop.last }}{% endfor %}]{% endif %}` + turnsEnd,
	"arguments as text": showTools + turns +
		`{{ m.content }}{% for c in m.tool_calls or [] %}<tool>{"name": "{{ c.function.name }}", "arguments": {{ "" + c.function.arguments }}}</tool>{% endfor %}` + turnsEnd,
	"marks around text and reasoning": showTools + turns +
		`{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>
{% endif %}{% if m.content %}<answer>
{{ m.content }}
</answer>{% endif %}{% if m.tool_calls %}<tool_calls>[{% for c in m.tool_calls %}
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}{{ "," if not loop.last }}{% endfor %}
]</tool_calls>{% endif %}` + turnsEnd,
	"reasoning that each prompt begins": showTools + turns +
		`<think>
{{ m.reasoning_content or '' }}
</think>

{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}` +
		strings.TrimSuffix(turnsEnd, "{% endif %}") + `<think>

{% endif %}`,
	"Python": showTools + turns +
		`{{ m.content }}{% if m.tool_calls %}<function_calls>
{% for c in m.tool_calls %}{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }}{{ ", " if not loop.last }}{% endfor %})
{% endfor %}</function_calls>{% endif %}` + turnsEnd,
	"a header": showTools + `{% for m in messages %}{% if m.role != 'assistant' %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% elif m.tool_calls %}<|im_start|>assistant -> tool/function_call
[{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}{{ ", " if not loop.last }}{% endfor %}]<|im_end|>
{% else %}<|im_start|>assistant
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{% endif %}`,
	"attributes": showTools + turns +
		`{{ m.content }}{% for c in m.tool_calls or [] %}
<call tool="{{ c.function.name }}" id="{{ c.id }}">
{% for k, v in c.function.arguments.items() %}  <value of="{{ k }}">{{ v if v is string else v | tojson }}</value>
{% endfor %}</call>{% endfor %}` + turnsEnd,
	"no null": showTools + turns +
		`{{ m.content }}{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}<key>{{ k }}<value>` +
		`{% if v is not none %}{{ v if v is string else v | tojson }}{% endif %}</value>{% endfor %}</call>{% endfor %}` + turnsEnd,
	"a fence": showTools + turns +
		"{{ m.content }}{% for c in m.tool_calls or [] %}\n```tool_call\n{{ c.function.name }}\n{{ c.function.arguments | tojson }}\n```{% endfor %}" + turnsEnd,
	"the id in place of the name": showTools + turns +
		`{{ m.content }}{% if m.tool_calls %}<|calls|>{% for c in m.tool_calls %}<|call|>{{ c.id }}<|with|>{{ c.function.arguments | tojson }}<|end_call|>{% endfor %}<|end_calls|>{% endif %}` + turnsEnd,
	"the name as the key": showTools + turns +
		`{{ m.content }}{% for c in m.tool_calls or [] %}<|call|>{"{{ c.function.name }}": {{ c.function.arguments | tojson }}}<|/call|>{% endfor %}` + turnsEnd,
	"content in parts, and one call": showTools + `{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one call only') }}{% endif %}` +
		`<|{{ m.role }}|>{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% for c in m.tool_calls or [] %}<|tool|>{{ c.function.name }}<|with|>{{ c.function.arguments | tojson }}{% endfor %}<|end|>` +
		`{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}`,
	"no tools, no system message": `{% for m in messages %}{% if m.role not in ['user', 'assistant'] or (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}{% endif %}` +
		`<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}`,
}

// TestUnknownTemplates reads back what templates write that were not looked at.
func TestUnknownTemplates(t *testing.T) {
	for _, name := range sorted(unknownTemplates) {
		t.Run(name, func(t *testing.T) {
			tpl := inspected(t, Source{Text: unknownTemplates[name], EOS: "<|im_end|>"})
			if f := tpl.form; f.Problem != "" || f.Default != strings.HasPrefix(name, "no tools") {
				t.Fatalf("%+v", f)
			}
			for _, a := range writtenAnswers {
				t.Run(a.name, func(t *testing.T) { tpl.readBack(t, a) })
			}
		})
	}
}

// TestProblems inspects templates whose calls cannot be read.
func TestProblems(t *testing.T) {
	for name, call := range map[string]string{
		"a letter":          `x {{ c.function.name }} {{ c.function.arguments | tojson }}`,
		"white space":       `{{ c.function.name }} {{ c.function.arguments | tojson }}`,
		"values unescaped":  `<c>{{ c.function.name }}{% for k, v in c.function.arguments.items() %} {{ k }} "{{ v }}"{% endfor %}</c>`,
		"no argument names": `<c>{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ v }}{% endfor %})</c>`,
		"a long mark":       strings.Repeat("<call>", 50) + `{{ c.function.name }}<with>{{ c.function.arguments | tojson }}`,
	} {
		t.Run(name, func(t *testing.T) {
			tpl := inspected(t, Source{Text: showTools + turns + `{{ m.content }}{% for c in m.tool_calls or [] %}` + call + `{% endfor %}` + turnsEnd})
			if f := tpl.form; f.Problem == "" || f.Tools() || f.TurnEnd != "<|im_end|>" {
				t.Errorf("%+v", f)
			}
			text, _, err := tpl.render(&Conversation{Messages: []Message{{Role: "user", Content: "hi"}}, Tools: chatTools(agentTools), Answer: true})
			if want := "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"; err != nil || text != want {
				t.Errorf("%q, %v", text, err)
			}
		})
	}
	for name, text := range map[string]string{
		"no tools":    `{% if tools %}{{ raise_exception('no tools') }}{% endif %}` + turns + `{{ m.content }}` + turnsEnd,
		"a long mark": turns + strings.Repeat("<answer>", 50) + `{{ m.content }}` + turnsEnd,
	} {
		if f := inspected(t, Source{Text: text}).form; !f.Default || f.TurnEnd != "<|im_end|>" || f.ContentBegin != "" {
			t.Errorf("%s: %+v", name, f)
		}
	}
	end := `{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}<with>{{ c.function.arguments | tojson }}{{ eos_token }}{% endfor %}{% endfor %}`
	if f := inspected(t, Source{Text: end, EOS: "<|eos|>"}).form; f.CallTurnEnd != "<|eos|>" || f.CallEnd+f.End != "" {
		t.Errorf("%+v", f)
	}
	tpl, err := compile(Source{Text: `{{ raise_exception('no') }}`})
	if err != nil {
		t.Fatal(err)
	}
	if err := tpl.inspect(); err == nil || tpl.form.Problem == "" {
		t.Errorf("a template that renders nothing has the form %+v", tpl.form)
	}
}
