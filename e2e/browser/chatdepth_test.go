package browser_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// chatOf opens the chat of a fresh hub with these models.
func chatOf(t *testing.T, models ...string) (*walk, *tab) {
	t.Helper()
	w := &walk{stage: newStage(t, models...), scripts: true}
	w.op = newTab(t, chromium(t, nil), w.base, true)
	w.chatting()
	return w, w.op
}

// js does something on the page.
func (b *tab) js(format string, args ...any) {
	b.t.Helper()
	run(b, chromedp.Evaluate[chromedp.Void]("(async () => {"+fmt.Sprintf(format, args...)+"})()", chromedp.EvalAwaitPromise))
}

// is returns what an expression is on the page, as text.
func (b *tab) is(expression string) string {
	b.t.Helper()
	return run(b, chromedp.Evaluate[string]("(async () => String("+expression+"))()", chromedp.EvalAwaitPromise))
}

// fill types into a field.
func (b *tab) fill(selector, text string) {
	b.t.Helper()
	b.js(`const field = document.querySelector(%q); field.value = %q; field.dispatchEvent(new Event("input", { bubbles: true })); field.dispatchEvent(new Event("change", { bubbles: true }));`, selector, text)
}

// asked waits until the engine was asked something with these texts.
func (w *walk) askedWith(texts ...string) {
	w.t.Helper()
	body := string(w.engine.Last().Body)
	for _, text := range texts {
		assert.Contains(w.t, body, text, "what the engine is asked")
	}
}

// TestChatSettings: the settings of a chat are part of its calls and of its code, stay with it, and
// are not those of the next. Effort is offered for models that think, and no wrong value is sent.
func TestChatSettings(t *testing.T) {
	t.Parallel()
	w, op := chatOf(t, "llama3", "qwen3")
	choose := func(model string) { op.fill("#model", model) }
	choose("llama3")
	run(op, clickOn("#set-chat"))
	run(op, chromedp.WaitVisible(chromedp.CSS("#system")))
	assert.Equal(t, op.is(`document.querySelector("#effort").checkVisibility()`), "false", "effort of a model that does not think")
	op.fill("#system", "You answer in Latin.")
	op.fill("#temperature", "0.3")
	op.fill("#length", "77")
	choose("qwen3")
	assert.Equal(t, op.is(`document.querySelector("#effort").checkVisibility()`), "true", "effort of a model that thinks")
	op.fill("#effort", "high")
	w.look(op, "try-settings")
	run(op, chromedp.KeyEvent("\x1b"))
	w.say("Salve")
	w.answered(1, "Hello from the attic")
	w.askedWith(`"role":"system","content":"You answer in Latin."`, `"temperature":0.3`, `"max_tokens":77`, `high`)
	choose("llama3")
	w.say("Iterum")
	w.answered(2, "Hello from the attic")
	w.askedWith("in Latin", `"temperature":0.3`)
	assert.Lacks(t, string(w.engine.Last().Body), "high", "the call of a model that does not think")
	choose("qwen3")
	op.js(`document.querySelector("#view-code").click()`)
	w.until("the code is shown", func() bool { return op.text("#snippet") != "" })
	for language, want := range map[string][]string{
		"curl": {`"temperature": 0.3`, `"max_tokens": 77`, `"reasoning_effort": "high"`, "in Latin"}, "python": {"    temperature=0.3,", `    reasoning_effort="high",`}, "javascript": {"  max_tokens: 77,"},
	} {
		op.fill("#language", language)
		for _, part := range want {
			assert.Contains(t, op.text("#snippet"), part, "the code in", language)
		}
	}
	run(op, chromedp.KeyEvent("\x1b"))

	path := op.is("location.pathname")
	run(op, clickOn(".chats .button"))
	assert.Equal(t, op.is(`document.querySelector("#system").value + document.querySelector("#length").value`), "", "the settings of a new chat")
	op.fill("#temperature", "3")
	assert.Equal(t, op.is(`document.querySelector("#temperature").ariaInvalid`), "true", "a temperature of 3")
	w.say("Hot")
	w.answered(1, "Hello from the attic")
	assert.Lacks(t, string(w.engine.Last().Body), "temperature", "a call without a valid one")
	op.open(path)
	w.until("the settings are there again", func() bool {
		return op.is(`["system", "temperature", "length", "effort"].map((id) => document.getElementById(id).value).join()`) == "You answer in Latin.,0.3,77,high"
	})
	op.quiet()
}

// TestChatBranches: an edited message and a regenerated answer are versions beside the earlier
// ones, each with what followed it, in the page and as it is kept. A chat that was kept as a list opens.
func TestChatBranches(t *testing.T) {
	t.Parallel()
	w, op := chatOf(t, "llama3")
	ask := func(n int, text, answer string) {
		t.Helper()
		w.engine.Set(enginetest.Behaviour{Text: answer})
		w.say(text)
		w.answered(n, answer)
	}
	shows := func(want ...string) {
		t.Helper()
		w.until(fmt.Sprint("the chat shows ", want), func() bool {
			return op.is(`[...document.querySelectorAll("#said .text")].map((e) => e.textContent.trim()).join("|")`) == strings.Join(want, "|")
		})
	}
	press := func(turn int, label string) {
		t.Helper()
		run(op, clickOn(fmt.Sprintf("#said .turn:nth-child(%d) button[aria-label=%q]", turn, label)))
	}
	ask(1, "one", "first")
	ask(2, "two", "second")
	press(1, "Edit this message")
	ask(1, "uno", "primo")
	shows("uno", "primo")
	assert.Equal(t, op.text("#said .user .versions .muted"), "2/2")
	ask(2, "due", "secondo")
	press(1, "Earlier version of the message")
	shows("one", "first", "two", "second")
	assert.Equal(t, op.is("document.activeElement.ariaLabel"), "Later version of the message", "the focus, where there is no earlier one")
	press(1, "Later version of the message")
	shows("uno", "primo", "due", "secondo")
	w.engine.Set(enginetest.Behaviour{Text: "terzo"})
	press(2, "Regenerate the answer")
	shows("uno", "primo", "due", "terzo")
	w.until("it is complete", func() bool { return op.text("#said .turn:last-child .assistant .versions .muted") == "2/2" })
	w.look(op, "try-versions")
	assert.Equal(t, op.text("#said .turn:last-child .user .versions"), "", "versions of a message that was answered twice")
	ask(3, "tre", "quarto")
	w.askedWith("uno", "primo", "due", "terzo")
	assert.Lacks(t, string(w.engine.Last().Body), "secondo", "the call after the newer answer")
	press(2, "Earlier version of the answer")
	shows("uno", "primo", "due", "secondo")

	w.engine.Set(enginetest.Behaviour{Status: 400, Answer: `{"error":{"message":"no"}}`})
	press(1, "Edit this message")
	w.say("refused")
	w.until("it is refused", func() bool { return op.text("#refused") != "" && op.text("#send:disabled") == "" })
	shows("uno", "primo", "due", "secondo")
	assert.Equal(t, op.is(`document.querySelector("#ask").value`), "refused", "the field")
	run(op, chromedp.KeyEvent("\x1b")) // cancels the editing
	assert.Equal(t, op.is(`document.querySelector("#ask").value`), "", "the field after Escape")

	path := op.is("location.pathname")
	op.open("/models")
	op.open(path)
	shows("uno", "primo", "due", "secondo")
	press(2, "Later version of the answer")
	shows("uno", "primo", "due", "terzo", "tre", "quarto")
	press(1, "Earlier version of the message")
	shows("one", "first", "two", "second")

	op.js(`await chatHistory(document.getElementById("try").dataset.member).put({ id: "00112233445566778899", at: Date.now(), title: "old",
		turns: [{ ask: "a", images: [], answers: [{ model: "llama3", text: "A" }] }, { ask: "b", answers: [{ model: "llama3", text: "B" }] }] });`)
	op.open("/try/00112233445566778899")
	shows("a", "A", "b", "B")
	press(1, "Edit this message")
	ask(1, "c", "C")
	press(1, "Earlier version of the message")
	shows("a", "A", "b", "B")
	op.quiet()
}

// TestChatKeys: Ctrl+K finds chats, models and commands, "/" leads to the field, Escape stops, and
// "?" shows the list of these keys.
func TestChatKeys(t *testing.T) {
	t.Parallel()
	w, op := chatOf(t, "llama3", "qwen3")
	op.fill("#model", "llama3")
	w.say("azores")
	w.answered(1, "Hello from the attic")
	azores := op.is("location.pathname")
	press := func(key string) {
		t.Helper()
		op.js(`document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: %q, ctrlKey: %t, bubbles: true, cancelable: true }));`, key, key == "k")
	}
	enter := func() { press("Enter") } // without the character, which would come to the field that gets the focus
	find := func(words, want string) {
		t.Helper()
		press("k")
		w.until("the list is open", func() bool { return op.is(`document.activeElement.closest(".palette") !== null`) == "true" })
		run(op, chromedp.KeyEvent(words))
		assert.Contains(t, op.text(".palette li.active"), want, "the first that has the words", words)
	}
	find("new", "New chat")
	enter()
	assert.Equal(t, op.is("location.pathname"), "/try", "after New chat")
	find("qwen", "qwen3")
	enter()
	assert.Equal(t, op.is(`document.querySelector("#model").value`), "qwen3", "the model")
	find("ATTIC azo", "azores")
	enter()
	w.until("the chat is open", func() bool { return op.is("location.pathname") == azores && op.text("#said .user .text") == "azores" })
	find("e", "New chat")
	w.look(op, "try-palette")
	run(op, chromedp.KeyEvent("\x1b"))
	find("no such thing", "")
	assert.Equal(t, op.is(`document.querySelector(".palette p").checkVisibility()`), "true", "that nothing matches is shown")
	run(op, chromedp.KeyEvent("\x1b"))

	op.js("document.activeElement.blur()")
	press("?")
	assert.Equal(t, op.is(`document.querySelector("#shortcuts").open`), "true", "the list of keys is open")
	w.look(op, "try-keys")
	run(op, chromedp.KeyEvent("\x1b"))
	op.js("document.activeElement.blur()")
	press("/")
	assert.Equal(t, op.is("document.activeElement.id + document.activeElement.value"), "ask", "the focus")
	run(op, chromedp.KeyEvent("/?"))
	assert.Equal(t, op.is(`document.querySelector("#ask").value`), "/?", "the field takes them as text")

	w.engine.Set(enginetest.Behaviour{Chunks: 100_000, Interval: 20 * time.Millisecond, Text: "word "})
	w.say("for ever")
	w.until("the answer begins", func() bool { return strings.Contains(op.text("#said .turn:last-child .assistant .text"), "word word") })
	run(op, clickOn("#options"))
	run(op, chromedp.KeyEvent("\x1b"))
	assert.Equal(t, op.is(`document.querySelector("#more").matches(":popover-open") + " " + document.querySelector("#stop").hidden`), "false false", "Escape closes the menu first")
	run(op, chromedp.KeyEvent("\x1b"))
	w.until("it is stopped", func() bool { return op.text("#state") == "Stopped." })
	op.quiet()
}

// quoted returns text as JavaScript.
func quoted(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return string(text)
}
