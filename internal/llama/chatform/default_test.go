package chatform

import (
	"strings"
	"testing"
)

// agentTurn is a conversation of an agent: two calls with their results.
func agentTurn() *Conversation {
	return &Conversation{
		Messages: []Message{
			{Role: "system", Content: "Be careful."},
			{Role: "user", Content: "What is it?"},
			{Role: "assistant", Content: "I look.", Calls: []Call{{"call_1", "read_file", `{"path":"a"}`}, {"call_2", "run", `{"command":"ls"}`}}},
			{Role: "tool", Content: "A", CallID: "call_1", Name: "read_file"},
			{Role: "tool", Content: "B", CallID: "call_2", Name: "run"},
		},
		Tools: chatTools(agentTools[:1]), Answer: true,
	}
}

const instructionsEnd = `</tools>

To call a function, write its name and its arguments exactly in this form, and nothing after it:

<tool_call>
{"name": "function_name", "arguments": {"argument_name": "value"}}
</tool_call>

You may write several calls one after another.
The results follow in the next message.`

// TestDefaultForm renders calls for a template that does not write them.
func TestDefaultForm(t *testing.T) {
	plain := `{% for m in messages %}<{{ m.role }}>{{ m.content }}
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`
	calls := `I look.
<tool_call>
{"name": "read_file", "arguments": {"path":"a"}}
</tool_call>
<tool_call>
{"name": "run", "arguments": {"command":"ls"}}
</tool_call>
`
	results := "<user><tool_response>\nA\n</tool_response>\n<tool_response>\nB\n</tool_response>\n<assistant>"
	for name, test := range map[string]struct{ template, before, after string }{
		"with a system message":    {plain, "<system>Be careful.\n\n# Tools", instructionsEnd + "\n<user>What is it?\n<assistant>" + calls + results},
		"without a system message": {`{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}` + plain, "<user>Be careful.\n\n# Tools", instructionsEnd + "\n\nWhat is it?\n<assistant>" + calls + results},
	} {
		t.Run(name, func(t *testing.T) {
			tpl := inspected(t, Source{Text: test.template})
			if !tpl.form.Default || tpl.form.ShowsTools {
				t.Fatalf("%+v", tpl.form)
			}
			text, hidden, err := tpl.render(agentTurn())
			if err != nil || !strings.HasPrefix(text, test.before) || !strings.HasSuffix(text, test.after) || !strings.Contains(text, string(agentTools[0].Parameters)) {
				t.Errorf("%v\n got %s\nwant %s…%s", err, text, test.before, test.after)
			}
			if end := tpl.tail(agentTurn(), text, hidden); end != "<assistant>" {
				t.Errorf("the prompt ends with %q", end)
			}
		})
	}
}

// TestToolsNotShown describes the tools for a template that writes calls but not the tools.
func TestToolsNotShown(t *testing.T) {
	tpl := inspected(t, templates(t)["deepseek-ai-DeepSeek-V3.1"])
	text, _, err := tpl.render(agentTurn())
	call := "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function_name<｜tool▁sep｜>{\"argument_name\": \"value\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
	if err != nil || !strings.Contains(text, "Be careful.\n\n# Tools") || !strings.Contains(text, call) || !strings.Contains(text, `<｜tool▁call▁begin｜>read_file<｜tool▁sep｜>{"path": "a"}`) {
		t.Errorf("%v: %s", err, text)
	}
}

// TestOneCall gives each call a message if the template refuses or drops a second one.
func TestOneCall(t *testing.T) {
	all := templates(t)
	for name, want := range map[string]string{
		"meta-llama-Llama-3.2-3B-Instruct": `{"name": "read_file", "parameters": {"path": "a"}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>

"A"<|eot_id|><|start_header_id|>assistant<|end_header_id|>

{"name": "run", "parameters": {"command": "ls"}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>

"B"<|eot_id|>`,
		"GigaChat3.1-10B-A1.8B": `I look.<|function_call|>{"name": "read_file", "arguments": {"path": "a"}}<|message_sep|>

function result<|role_sep|>
A<|message_sep|>

assistant<|role_sep|>
<|function_call|>{"name": "run", "arguments": {"command": "ls"}}<|message_sep|>

function result<|role_sep|>
B<|message_sep|>`,
	} {
		text, _, err := inspected(t, all[name]).render(agentTurn())
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("%s: %v: %s", name, err, text)
		}
	}
}

// TestCallIDs gives calls and results ids that the template takes.
func TestCallIDs(t *testing.T) {
	all := templates(t)
	for name, form := range map[string]struct {
		source Source
		wants  []string
	}{
		"9 letters and digits": {all["mistralai-Mistral-Nemo-Instruct-2407"], []string{`"id": "CALL1"}`, `"call_id": "CALL1"}`, `"call_id": "CALL2"}`}},
		"the caller's":         {all["moonshotai-Kimi-K2"], []string{"## Return of call_1", "## Return of call_2"}},
	} {
		t.Run(name, func(t *testing.T) {
			tpl := inspected(t, form.source)
			text, _, err := tpl.render(agentTurn())
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range form.wants {
				want = strings.NewReplacer("CALL1", tpl.form.callID("call_1"), "CALL2", tpl.form.callID("call_2")).Replace(want)
				if !strings.Contains(text, want) {
					t.Errorf("%q is not in %q", want, text)
				}
			}
		})
	}
	f := Form{ShortIDs: true}
	ids := map[string]bool{}
	for _, id := range []string{"", "a", "call_1", "call_2", "123456789", "12345678_"} {
		short := f.callID(id)
		if len(short) != 9 || strings.Trim(short, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" || ids[short] {
			t.Errorf("the id of %q is %q", id, short)
		}
		ids[short] = true
	}
	if !ids["123456789"] {
		t.Error("an id that fits is changed")
	}
}

// TestNameIDs gives calls ids with the names of the tools if the template writes no names.
func TestNameIDs(t *testing.T) {
	text := strings.Replace(unknownTemplates["the id in place of the name"], "{{ m.role }}", "{{ m.role }} {{ m.tool_call_id }}", 1)
	tpl := inspected(t, Source{Text: text})
	c := agentTurn()
	c.Messages[2].Calls[0].ID, c.Messages[3].CallID = "functions.read_file:4", "functions.read_file:4"
	text, _, err := tpl.render(c)
	call := `<|call|>functions.read_file:4<|with|>{"path": "a"}<|end_call|><|call|>functions.run:1<|with|>`
	if err != nil || !strings.Contains(text, call) || !strings.Contains(text, "tool functions.run:1\nB") || c.Messages[2].Calls[1].ID != "call_2" {
		t.Errorf("%v: %s", err, text)
	}
}

// TestPythonCalls writes calls as in Python for a template that does not write them.
func TestPythonCalls(t *testing.T) {
	tpl := inspected(t, templates(t)["LFM2-8B-A1B"])
	text, _, err := tpl.render(agentTurn())
	if want := "I look.\n<|tool_call_start|>[read_file(path=\"a\"), run(command=\"ls\")]<|tool_call_end|><|im_end|>"; err != nil || !strings.Contains(text, want) {
		t.Errorf("%v: %s", err, text)
	}
}

// TestReasoningNames passes reasoning on by the name that the template reads.
func TestReasoningNames(t *testing.T) {
	tpl := inspected(t, templates(t)["openai-gpt-oss-120b"])
	c := agentTurn()
	c.Messages[2].Reasoning, c.Messages[2].Calls = "It must be read.", c.Messages[2].Calls[:1]
	c.Messages = c.Messages[:4]
	text, _, err := tpl.render(c)
	if err != nil || !strings.Contains(text, "<|channel|>analysis<|message|>It must be read.<|end|><|start|>assistant to=functions.read_file") {
		t.Errorf("%v: %s", err, text)
	}
}

// TestTail returns what the template writes after the last message, also if the message
// reads like it.
func TestTail(t *testing.T) {
	tpl := inspected(t, templates(t)["Qwen3.5-4B"])
	for _, content := range []string{"n", "<think>", "", "What is in the folder that was named above?", "assistant\n<think>\n"} {
		for _, thinking := range []bool{false, true} {
			c := &Conversation{Messages: []Message{{Role: "user", Content: content}}, Answer: true, Variables: map[string]any{"enable_thinking": thinking}}
			prompt, hidden, err := tpl.render(c)
			if err != nil {
				t.Fatal(err)
			}
			want := "<think>\n\n</think>\n\n"
			if thinking {
				want = "<think>\n"
			}
			want = "<|im_start|>assistant\n" + want
			if got := strings.TrimPrefix(tpl.tail(c, prompt, hidden), "<|im_end|>\n"); got != want {
				t.Errorf("%q: %q, want %q", content, got, want)
			}
		}
	}
}
