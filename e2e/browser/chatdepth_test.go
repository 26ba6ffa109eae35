package browser_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
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
	return read[string](b, "(async () => String("+expression+"))()", chromedp.EvalAwaitPromise)
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

// TestChatBranches: an edited message or answer and a regenerated answer are versions beside the earlier
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
	w.engine.Set(enginetest.Behaviour{Text: "**second**"})
	w.say("two")
	w.answered(2, "second")
	w.actions()
	press(2, "Edit this answer")
	run(op, chromedp.KeyEvent("\x1b"))
	shows("one", "first", "two", "second")
	assert.Equal(t, op.is("document.activeElement.ariaLabel"), "Edit this answer", "the focus after Escape")
	press(2, "Edit this answer")
	op.seen("try-edit-answer")
	op.fill("#said textarea", "*seconda*")
	press(2, "Save the answer as another version")
	shows("one", "first", "two", "seconda")
	assert.Equal(t, op.text("#said .turn:last-child .assistant header"), "llama3 edited", "above the edited answer")
	ask(3, "three", "third")
	w.askedWith("*seconda*")
	assert.Lacks(t, string(w.engine.Last().Body), "**second**", "the call after an answer was edited")
	press(2, "Earlier version of the answer")
	shows("one", "first", "two", "second")
	press(2, "Show the source")
	shows("one", "first", "two", "**second**")
	press(2, "Show the source")
	shows("one", "first", "two", "second")
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
	press(2, "Regenerate the answer with the chosen model")
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

	remove := func(turn int) {
		t.Helper()
		op.js("window.confirm = () => true")
		press(turn, "Delete this message")
	}
	remove(2)
	shows("one", "first")
	remove(1)
	shows("uno", "primo", "due", "terzo", "tre", "quarto") // the other version
	assert.Equal(t, op.text("#said .turn:last-child .user .versions"), "", "versions of a message without another")
	remove(2) // with both of its answers
	shows("uno", "primo")
	op.open(path)
	shows("uno", "primo")
	ask(2, "quattro", "quinto")
	w.askedWith("uno", "primo", "quattro")
	assert.Lacks(t, string(w.engine.Last().Body), "due", "the call after a message was deleted")
	remove(1)
	shows("")
	w.until("the chat is deleted", func() bool {
		return op.is("location.pathname") == "/try" && op.is(`(await chatHistory(document.getElementById("try").dataset.member).all()).length`) == "0"
	})

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

// actions checks the buttons below each message of a chat of two turns: they are there for the last answer, and
// for the others when the pointer or the focus is on them, or after a press of one button on a phone. Nothing
// moves when they appear.
func (w *walk) actions() {
	w.t.Helper()
	op := w.op
	shown := func() string {
		return op.is(`(scrollTo(0, 0), [...document.querySelectorAll("#said .acts")].map((e) => e.checkVisibility({ opacityProperty: true }) ? "shown" : "none").join() + " " + Math.round(document.querySelector("#said .turn:last-child").getBoundingClientRect().top))`)
	}
	rest, at, _ := strings.Cut(shown(), " ")
	assert.Equal(w.t, rest, "none,none,none,shown", "the buttons without a pointer")
	op.js(`document.querySelector("#said [aria-label='Edit this message']").focus()`)
	assert.Equal(w.t, shown(), "shown,none,none,shown "+at, "the buttons with the focus on the first message")
	run(op, chromedp.EmulateViewport(390, 844))
	rest, at, _ = strings.Cut(shown(), " ")
	assert.Equal(w.t, rest, "none,none,none,shown", "the buttons on a phone")
	run(op, clickOn("#said .turn:first-child .assistant .reveal"))
	assert.Equal(w.t, shown(), "none,shown,none,shown "+at, "the buttons on a phone, once asked for")
	w.look(op, "try-actions")
	assert.Equal(w.t, op.is(`document.querySelector("#said .turn:last-child .assistant .reveal").checkVisibility()`), "false", "a button for the buttons of the last answer")
}

// TestChatKeys: Ctrl+K finds chats, models and commands, Ctrl+B hides the list of chats, "/" leads to the field, Escape stops, and
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
		op.js(`document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: %q, ctrlKey: %t, bubbles: true, cancelable: true }));`, key, key == "k" || key == "b")
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
	shifted := func(key string) {
		t.Helper()
		op.js(`document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: %q, ctrlKey: true, shiftKey: true, bubbles: true, cancelable: true }));`, key)
	}
	shifted("O")
	assert.Equal(t, op.is("location.pathname"), "/try", "after the keys for a new chat")
	find("ATTIC azo", "azores")
	enter()
	w.until("the chat is open again", func() bool { return op.is("location.pathname") == azores && op.text("#said .user .text") == "azores" })
	list := func(want string) {
		t.Helper()
		w.until("the list of chats is "+want, func() bool {
			return op.is(`(document.querySelector("#history").checkVisibility() ? "shown" : "hidden") + document.querySelector("#open-chats").ariaExpanded`) == want
		})
	}
	list("showntrue")
	press("b")
	list("hiddenfalse")
	op.open(azores)
	list("hiddenfalse") // this browser keeps it
	run(op, clickOn("#open-chats"))
	list("showntrue")
	find("hide", "Show or hide the chats")
	enter()
	list("hiddenfalse")
	press("b")
	list("showntrue")
	press("b")
	shifted("E") // shows the list
	run(op, chromedp.KeyEvent("Isles\r"))
	w.until("the chat has the name", func() bool { return op.is("document.title") == "Isles · kith" && op.text("#history a") == "Isles" })
	list("showntrue")
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
	shifted("D")
	w.until("the chat is deleted", func() bool { return op.is("location.pathname") == "/try" && op.text("#history ul") == "" })
	op.quiet()
}

// TestChatExport: a chat is exported as Markdown and JSON, all are at once, and imported JSON is
// what was exported. A file that is none says what is wrong with it and changes nothing.
func TestChatExport(t *testing.T) {
	t.Parallel()
	w, op := chatOf(t, "llama3")
	w.engine.Set(enginetest.Behaviour{Text: "first **answer**"})
	op.fill("#system", "Be brief.")
	w.say("What is/it?")
	w.answered(1, "first answer")
	w.engine.Set(enginetest.Behaviour{Text: "second"})
	run(op, clickOn("#said button[aria-label='Regenerate the answer with the chosen model']"))
	w.answered(1, "second")
	run(op, clickOn("#said button[aria-label='Edit this answer']"))
	op.fill("#said textarea", "third")
	run(op, clickOn("#said button[aria-label='Save the answer as another version']"))
	op.js(`window.saved = {};
		URL.createObjectURL = (blob) => { saved.blob = blob; return "blob:none"; };
		HTMLAnchorElement.prototype.click = function () { saved.name = this.download; };`)
	saved := func(want string) string {
		t.Helper()
		w.until("a file is saved", func() bool { return op.is("saved.name") == want })
		text := op.is("await saved.blob.text()")
		op.js("window.saved = {}")
		return text
	}
	menu := func(button string) {
		t.Helper()
		run(op, clickOn("#history button"))
		run(op, clickOn(button))
	}
	menu("#export-markdown")
	assert.Equal(t, saved("What-is-it.md"), "# What is/it?\n\n## System prompt\n\nBe brief.\n\n## You\n\nWhat is/it?\n\n## llama3 (edited)\n\nthird\n", "as Markdown")
	menu("#export-json")
	one := saved("What-is-it.json")
	run(op, clickOn(".chats .button"))
	w.say("other")
	w.answered(1, "second")
	run(op, clickOn("#export-all"))
	both := saved("chats.json")
	assert.Lacks(t, both, "mem_", "an export names the member:")

	imports := func(name, text, want string) {
		t.Helper()
		op.js(`const files = new DataTransfer(), field = document.querySelector("#import-file");
			files.items.add(new File([%s], %q));
			field.files = files.files;
			field.dispatchEvent(new Event("change"));`, quoted(text), name)
		w.until(name+" is reported as "+want, func() bool { return strings.Contains(op.text("#state"), want) })
	}
	imports("both.json", both, "0 chats imported, 2 already here.")
	run(op, clickOn("#clear"))
	w.until("all are deleted", func() bool { return op.text("#history ul") == "" })
	imports("one.json", one, "1 chat imported.")
	imports("both.json", both, "1 chat imported, 1 already here.")
	w.until("both are listed", func() bool { return op.is(`document.querySelectorAll("#history li").length`) == "2" })
	op.js(`[...document.querySelectorAll("#history a")].find((a) => a.textContent === "What is/it?").dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true }))`)
	w.until("it is shown", func() bool { return op.text("#said .assistant .text") == "third" })
	assert.Equal(t, op.text("#said .assistant header"), "llama3 edited", "above the imported answer")
	for range 2 {
		run(op, clickOn("#said button[aria-label='Earlier version of the answer']"))
	}
	w.until("the earlier answer is there", func() bool { return op.text("#said .assistant .text strong") == "answer" })
	assert.Equal(t, op.is(`document.querySelector("#system").value`), "Be brief.", "the setting")
	menu("#export-json")
	assert.That(t, strings.Contains(saved("What-is-it.json"), `"text": "first **answer**"`), "the export of an imported chat")

	for text, want := range map[string]string{
		"kith": "it is not JSON", "[]": "it is not an export of Chat", `{"kith_chats": 9}`: "another version of kith, as form 9", `{"kith_chats": 1, "chats": 3}`: "chats is not a list",
		strings.Replace(one, `"ask": "What is/it?"`, `"ask": 7`, 1):                         "chats[0].turns[0].ask is not a text",
		strings.Replace(one, `"parent": -1`, `"parent": 1`, 1):                              "chats[0].turns[0].parent is not an earlier turn",
		strings.Replace(one, `"next": 2`, `"next": 7`, 1):                                   "chats[0].next is not a turn after it",
		strings.Replace(one, `"images": []`, `"images": ["https://evil.example/x.png"]`, 1): "chats[0].turns[0].images[0] is not an image",
		strings.Replace(one, `"temperature"`, `"x"`, 1) + "x":                               "it is not JSON",
		strings.Replace(one, `"system": "Be brief."`, `"temperature": 12`, 1):               "settings.temperature is not a number from 0 to 2",
		strings.Replace(one, `"id": "`, `"id": "../`, 1):                                    "chats[0].id is not the id of a chat",
	} {
		imports("wrong.json", text, want)
		assert.Contains(t, op.text("#state"), "wrong.json cannot be imported: ")
		op.js(`document.querySelector("#state").textContent = ""`)
	}
	assert.Equal(t, op.is(`(await chatHistory(document.getElementById("try").dataset.member).all()).length`), "2", "the chats after wrong files")
	op.quiet()
}

// TestChatContext: a bar shows how much of the model's context the last answer used, and none is
// shown while the context is unknown. Tables keep their alignment, and lists their first number.
func TestChatContext(t *testing.T) {
	t.Parallel()
	w, op := chatOf(t, "llama3")
	w.engine.Set(enginetest.Behaviour{Text: "| left | middle | right |\n|:--|:-:|--:|\n| a | b | 1 |\n\n7. seven\n8. eight\n"})
	w.say("How much?")
	w.answered(1, "eight")
	shown := func() string { return op.is(`document.querySelector("#context").checkVisibility()`) }
	assert.Equal(t, shown(), "false", "the bar of a model whose context is unknown")
	context := func(tokens string) {
		op.js(`const model = document.querySelector("#model"); model.selectedOptions[0].dataset.context = %q; model.dispatchEvent(new Event("change"));`, tokens)
	}
	context("4096")
	w.until("the bar is shown", func() bool { return op.text("#context small") == "1 % of context" })
	assert.That(t, strings.HasSuffix(op.is(`document.querySelector("#context").title`), " of 4,096 tokens of the context are used"))
	assert.Equal(t, op.is(`[...document.querySelectorAll("#said td")].map((e) => getComputedStyle(e).textAlign).join()`), "left,center,right", "the table")
	assert.Equal(t, op.is(`document.querySelector("#said ol").start`), "7", "the list begins")
	w.look(op, "try-context")
	context("0")
	assert.Equal(t, shown(), "false", "the bar of a model whose context is unknown")
	op.quiet()
}

// pdfOf returns a PDF file whose pages have these texts.
func pdfOf(pages ...string) string {
	return pdfIn("<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>", pages...)
}

// japanese is a font of a PDF file whose encoding is one of those that are not in the file.
const japanese = "<</Type/Font/Subtype/Type0/BaseFont/HeiseiMin-W3/Encoding/UniJIS-UCS2-H/DescendantFonts[" +
	"<</Type/Font/Subtype/CIDFontType0/BaseFont/HeiseiMin-W3/CIDSystemInfo<</Registry(Adobe)/Ordering(Japan1)/Supplement 2>>" +
	"/FontDescriptor<</Type/FontDescriptor/FontName/HeiseiMin-W3/Flags 4/FontBBox[0 0 1000 1000]/ItalicAngle 0/Ascent 800/Descent -200/CapHeight 700/StemV 80>>>>]>>"

// pdfIn returns a PDF file whose text is in a font.
func pdfIn(font string, pages ...string) string {
	var file strings.Builder
	var at []int
	object := func(text string) {
		at = append(at, file.Len())
		fmt.Fprintf(&file, "%d 0 obj\n%s\nendobj\n", len(at), text)
	}
	file.WriteString("%PDF-1.4\n")
	object("<</Type/Catalog/Pages 2 0 R>>")
	var kids strings.Builder
	for i := range pages {
		fmt.Fprintf(&kids, "%d 0 R ", 4+2*i)
	}
	object(fmt.Sprintf("<</Type/Pages/Count %d/Kids[%s]>>", len(pages), kids.String()))
	object(font)
	for i, text := range pages {
		object(fmt.Sprintf("<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 300]/Resources<</Font<</F 3 0 R>>>>/Contents %d 0 R>>", 5+2*i))
		content := ""
		switch {
		case strings.HasSuffix(text, " re f"): // a drawing
			content = text
		case text != "":
			content = "BT /F 12 Tf 20 200 Td (" + text + ") Tj ET"
		}
		object(fmt.Sprintf("<</Length %d>>\nstream\n%s\nendstream", len(content), content))
	}
	start := file.Len()
	fmt.Fprintf(&file, "xref\n0 %d\n0000000000 65535 f \n", len(at)+1)
	for _, offset := range at {
		fmt.Fprintf(&file, "%010d 00000 n \n", offset)
	}
	fmt.Fprintf(&file, "trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n", len(at)+1, start)
	return file.String()
}

// TestChatFiles: the text of text, code and PDF files is sent with a message, in a fence with the
// file's name. They come by choice, drop and paste, can be removed, and stay with the chat. What
// cannot be read says why. PDF.js is loaded with the first PDF file.
func TestChatFiles(t *testing.T) {
	t.Parallel()
	w, op := chatOf(t, "llama3", "llava", "voxtral")
	op.fill("#model", "llama3")
	add := func(how, name, text string) {
		t.Helper()
		op.js(`const all = new DataTransfer(), field = document.querySelector("#file");
			all.items.add(new File([Uint8Array.from(%s, (c) => c.charCodeAt(0))], %q, { type: %q }));
			document.querySelector("#state").textContent = "";
			if (%[4]q === "drop") dispatchEvent(new DragEvent("drop", { dataTransfer: all, bubbles: true, cancelable: true }));
			else if (%[4]q === "paste") document.querySelector("#ask").dispatchEvent(new ClipboardEvent("paste", { clipboardData: all, bubbles: true, cancelable: true }));
			else { field.files = all.files; field.dispatchEvent(new Event("change")); }`, quoted(text), name, map[bool]string{true: "image/png"}[strings.HasSuffix(name, ".png")], how)
	}
	chips := func(want string) {
		t.Helper()
		w.until("the files are "+want, func() bool {
			return op.is(`[...document.querySelectorAll("#attached .file > span")].map((e) => e.textContent).join()`) == want
		})
	}
	loaded := func() string {
		return op.is(`performance.getEntriesByType("resource").some(({ name }) => name.includes("/pdf."))`)
	}
	run(op, clickOn("#ask")) // from now on elements may move
	add("choice", "main.go", "package main\n")
	chips("main.go")
	add("drop", "notes.md", "Use ```` fences\n")
	chips("main.go,notes.md")
	add("paste", "gone.txt", "remove me")
	chips("main.go,notes.md,gone.txt")
	run(op, clickOn("button[aria-label='Remove gone.txt']"))
	chips("main.go,notes.md")
	assert.Equal(t, loaded(), "false", "PDF.js is loaded before a PDF file")
	paste := func(text string) string {
		return op.is(`(() => {
			const all = new DataTransfer();
			all.setData("text/plain", ` + quoted(text) + `);
			return document.querySelector("#ask").dispatchEvent(new ClipboardEvent("paste", { clipboardData: all, bubbles: true, cancelable: true }));
		})()`)
	}
	assert.Equal(t, paste("a few words"), "true", "the browser pastes a short text")
	assert.Equal(t, paste(strings.Repeat("line\n", 1000)), "false", "the browser pastes a long text")
	chips("main.go,notes.md,pasted.txt")
	run(op, clickOn("button[aria-label='Remove pasted.txt']"))
	w.look(op, "try-files")
	add("drop", "paper.pdf", pdfOf("The first page", "and the second"))
	chips("main.go,notes.md,paper.pdf")
	assert.Equal(t, loaded(), "true", "PDF.js is loaded")

	for name, file := range map[string]struct{ text, want string }{
		"tool.exe":    {"MZ\x00\x01", "tool.exe is not text."},
		"latin.txt":   {"caf\u00e9", "latin.txt is not text."},
		"big.log":     {strings.Repeat("line\n", 200_000), "big.log is 1.0 MB; a text file may have 524 KB."},
		"empty.txt":   {" \n", "empty.txt is empty."},
		"scan.pdf":    {pdfOf(""), "scan.pdf has no text, only pictures of pages, and llama3 takes no images."},
		"sound.mp3":   {"ID3", "sound.mp3 cannot be added: llama3 takes no audio."},
		"nippon.pdf":  {pdfIn(japanese, `\145\345\147\054`), "nippon.pdf has text in a Chinese, Japanese or Korean encoding"},
		"broken.pdf":  {"%PDF-1.4 and nothing", "broken.pdf cannot be read as a PDF file."},
		"picture.png": {"png", "picture.png cannot be added: llama3 takes no images."},
	} {
		add("choice", name, file.text)
		w.until("the page says "+file.want, func() bool { return strings.HasPrefix(op.text("#state"), file.want) })
	}
	chips("main.go,notes.md,paper.pdf")

	op.fill("#ask", "")
	w.say("Read them")
	w.answered(1, "Hello from the attic")
	var call struct {
		Messages []struct{ Content string }
	}
	assert.OK(t, json.Unmarshal(w.engine.Last().Body, &call))
	want := "Read them\n\nmain.go\n```\npackage main\n```\n\nnotes.md\n`````\nUse ```` fences\n`````\n\npaper.pdf\n```\nThe first page\n\nand the second\n```"
	assert.Equal(t, call.Messages[0].Content, want, "the message")
	assert.Equal(t, op.is(`document.querySelectorAll("#attached .file").length`), "0", "files of the next message")
	path := op.is("location.pathname")
	op.open(path)
	w.until("the files are shown", func() bool { return op.is(`document.querySelectorAll("#said .file").length`) == "3" })
	run(op, clickOn("#said .file summary"))
	w.look(op, "try-file")
	run(op, clickOn("#said button[aria-label='Edit this message']"))
	chips("main.go,notes.md,paper.pdf")

	images := func(want string) {
		t.Helper()
		w.until(want+" images are added", func() bool { return op.is(`document.querySelectorAll("#attached img").length`) == want })
	}
	says := func(want string) {
		t.Helper()
		w.until("the page says "+want, func() bool { return strings.HasPrefix(op.text("#state"), want) })
	}
	op.open("/try")
	op.fill("#model", "llava")
	add("choice", "blank.pdf", pdfOf(""))
	says("blank.pdf has no text, and no pictures that can be read here.")
	add("choice", "scan.pdf", pdfOf("0 0 1 rg 50 50 100 100 re f", "", "1 0 0 rg 50 50 100 100 re f"))
	says("The pages of scan.pdf are added as images, except 1 that")
	images("2")
	add("drop", "book.pdf", pdfOf(slices.Repeat([]string{"20 20 100 100 re f"}, 12)...))
	says("The first 2 of 12 pages of book.pdf are added as images.")
	images("4")
	add("choice", "scan.pdf", pdfOf("0 0 1 rg 50 50 100 100 re f"))
	says("A message has at most 4 images.")
	w.say("Look at them")
	w.answered(1, "Hello from the attic")
	assert.Equal(t, strings.Count(string(w.engine.Last().Body), "data:image/jpeg;base64,"), 4, "images that are sent")

	op.open("/try")
	op.fill("#model", "voxtral")
	add("choice", "noise.wav", "RIFF1234AVI ")
	says("noise.wav is neither WAV nor MP3.")
	song := wavOf(2000)
	talk := bytes.Repeat(append([]byte{0xff, 0xfb, 0x90, 0xc0}, make([]byte, 413)...), 40) // silence: 40 frames of 1,152 samples at 44,100 a second
	add("drop", "song.wav", characters(song))
	add("choice", "talk.mp3", characters(talk))
	chips("song.wav,talk.mp3")
	add("choice", "more.mp3", "\u00ff\u00fb")
	says("A message has at most 2 audio files.")
	w.say("Listen")
	w.answered(1, "Hello from the attic")
	for format, sound := range map[string][]byte{"wav": song, "mp3": talk} {
		w.askedWith(fmt.Sprintf(`{"type":"input_audio","input_audio":{"data":%q,"format":%q}}`, base64.StdEncoding.EncodeToString(sound), format))
	}
	op.open(op.is("location.pathname"))
	w.until("the sounds are shown", func() bool { return op.text("#said p.file") == "song.wav 2 KB" })
	for name, lasts := range map[string]string{"song.wav": "0.25", "talk.mp3": "1.04"} {
		w.until(name+" can be played", func() bool {
			return strings.HasPrefix(op.is(`document.querySelector("#said audio[aria-label='`+name+`']").duration`), lasts)
		})
	}
	run(op, clickOn("#ask")) // nothing is played on a page that was not used yet
	op.js(`await document.querySelector("#said audio[aria-label='talk.mp3']").play()`)
	w.until("it was played to its end", func() bool {
		return op.is(`document.querySelector("#said audio[aria-label='talk.mp3']").ended`) == "true"
	})
	op.seen("try-sounds")
	op.quiet()
}

// wavOf returns a WAV file of silence, 8 bits a sample and 8,000 samples a second.
func wavOf(samples int) []byte {
	head := append([]byte("RIFF"), binary.LittleEndian.AppendUint32(nil, uint32(36+samples))...)
	head = append(head, "WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x40\x1f\x00\x00\x01\x00\x08\x00data"...)
	head = binary.LittleEndian.AppendUint32(head, uint32(samples))
	return append(head, bytes.Repeat([]byte{0x80}, samples)...)
}

// characters returns a file's bytes as characters of the same numbers.
func characters(file []byte) string {
	runes := make([]rune, len(file))
	for i, b := range file {
		runes[i] = rune(b)
	}
	return string(runes)
}

// drawn has an answer drawn piece by piece, with its formulas and colours, and returns what it is as HTML.
func (b *tab) drawn(text string) string {
	b.t.Helper()
	return run(b, chromedp.Evaluate[string](`(async () => {
		`+drawing+`
		const place = document.createElement("div");
		document.getElementById("said").append(place);
		const answer = new Answer(place, load);
		for (const piece of `+quoted(text)+`.match(/[^]{1,7}/g)) { answer.add(piece); answer.draw(); }
		answer.end();
		await answer.rich;
		const html = place.innerHTML;
		place.remove();
		return html;
	})()`, chromedp.EvalAwaitPromise))
}

// TestChatFormulas: formulas are typeset as MathML and code is coloured, by libraries that are loaded
// with the first of them. What is no formula stays as it was written.
func TestChatFormulas(t *testing.T) {
	t.Parallel()
	w, op := chatOf(t, "llama3")
	loaded := func(name string) string {
		return op.is(fmt.Sprintf(`performance.getEntriesByType("resource").some(({ name }) => name.endsWith("/%s"))`, name))
	}
	for _, name := range []string{"marked.js", "purify.js", "markdown.js"} {
		assert.Equal(t, loaded(name), "false", name, "is loaded before an answer begins:")
	}
	w.engine.Set(enginetest.Behaviour{Text: "plain `text`"})
	w.say("Hello")
	w.answered(1, "plain")
	for _, name := range []string{"rich.js", "temml.js", "highlight.js"} {
		assert.Equal(t, loaded(name), "false", name, "is loaded for plain text:")
	}
	for text, want := range map[string]string{
		"It costs $5, or $6.":           "<p>It costs $5, or $6.</p>\n",
		"US$5 and A$6, $HOME and $PATH": "<p>US$5 and A$6, $HOME and $PATH</p>\n",
		"`$x$` and \\$x\\$":             "<p><code>$x$</code> and $x$</p>\n",
		"$\\frac{1$":                    `<p><code class="math">\frac{1</code></p>` + "\n",
	} {
		assert.Equal(t, op.drawn(text), want, text)
	}
	for _, text := range []string{"so $a_1 * b_2$ is", "so \\(a_1 * b_2\\) is"} {
		assert.Contains(t, op.drawn(text), `<p>so <span class="math"><math`, text)
		assert.Contains(t, op.drawn(text), "<msub>", text)
	}
	for _, text := range []string{"so\n$$\n\\int_0^1 x^2\n$$\nis", "so\n\n\\[ \\int_0^1 x^2 \\]\n\nis", "so $$\\int_0^1 x^2$$ is"} {
		assert.Contains(t, op.drawn(text), `<span class="math display"><math display="block"`, text)
		assert.Contains(t, op.drawn(text), "<msubsup>", text)
	}
	assert.Equal(t, loaded("temml.js")+loaded("highlight.js"), "truefalse", "the libraries that formulas need")
	got := op.drawn("```go\nfunc main() {}\n```\n\n```nolanguage\nfunc\n```\n")
	assert.Contains(t, got, `<span class="hljs-keyword">func</span>`, "code")
	assert.Contains(t, got, `<code class="language-nolanguage">func</code>`, "code in a language that is not known")

	op.open("/try")
	w.engine.Set(enginetest.Behaviour{Text: "The **roots** of $ax^2 + bx + c = 0$ are\n\n$$x_{1,2} = \\frac{-b \\pm \\sqrt{b^2 - 4ac}}{2a}$$\n\nin Python:\n\n```python\nimport math\n\ndef roots(a, b, c):  # real ones\n    d = math.sqrt(b * b - 4 * a * c)\n    return (-b + d) / (2 * a), \"two\"\n```\n\n| n | n² |\n|--:|---:|\n| 2 | 4 |\n| 12 | 144 |\n"})
	w.say("Solve it")
	w.answered(1, "roots")
	w.until("it is drawn", func() bool {
		return op.is(`document.querySelectorAll("#said math").length + " " + (document.querySelectorAll("#said .hljs-keyword").length > 1)`) == "2 true"
	})
	op.seen("try-formulas")
	op.quiet()
}

// seen looks at a page that has loaded more than it begins with.
func (b *tab) seen(name string) {
	b.t.Helper()
	run(b, chromedp.Evaluate[chromedp.Void](axe+"\n"+checks+"\n;undefined"))
	b.keyboard()
	b.appears(name)
}

// hostileFormulas is what a model may write as formulas and as code to make a page run or load
// something, or to keep it busy.
func hostileFormulas() (all []string) {
	acts := []string{
		`\href{javascript:window.pwned=1}{x}`, `\href{https://evil.example/}{x}`, `\url{javascript:window.pwned=1}`, `\includegraphics{//evil.example/x.png}`, `\includegraphics[width=1em]{https://evil.example/x.png}`,
		`\htmlClass{said}{x}`, `\htmlId{ask}{x}`, `\id{ask}{x}`, `\class{evil}{x}`, `\htmlStyle{background:url(//evil.example/s)}{x}`, `\style{background:url(//evil.example/s)}{x}`, `\htmlData{live=/evil}{x}`, `\data{live=/evil}{x}`, `\cssId{ask}{x}`,
		`\text{<img src=//evil.example/x onerror=window.pwned=1>}`, `<img src=x onerror=window.pwned=1>`, `\text{</math><script>window.pwned=1</script>}`, `\unicode{x3c}script\unicode{x3e}`, `\char"3Cscript\char"3E`,
		`\color{url(//evil.example/c)}{x}`, `\textcolor{red;background:url(//evil.example/c)}{x}`, `\colorbox{expression(window.pwned=1)}{x}`, `\fcolorbox{red}{url(//evil.example/d)}{x}`, `\tag{<b onclick=window.pwned=1>}x`, `\label{ask} x`, `\ref{ask}`, `\eqref{javascript:window.pwned=1}`,
		`\def\a{\a\a}\a`, `\def\a{xxxxxxxxxx}\def\b{\a\a\a\a\a\a\a\a\a\a}\def\c{\b\b\b\b\b\b\b\b\b\b}\def\d{\c\c\c\c\c\c\c\c\c\c}\d\d\d\d`, `\newcommand{\x}[1]{#1#1}\x{\x{\x{\x{\x{\x{\x{\x{\x{\x{\x{\x{y}}}}}}}}}}}}`, `\gdef\frac#1#2{\href{javascript:window.pwned=1}{x}}\frac12`,
		`\rule{1e9em}{1e9em}`, `\hspace{-9999em}x`, `\kern9999999em x`, `\raisebox{99999em}{x}`, strings.Repeat("{", 1500) + "x" + strings.Repeat("}", 1500), strings.Repeat(`\sqrt{`, 600) + "x" + strings.Repeat("}", 600), strings.Repeat("x^{", 900) + "x" + strings.Repeat("}", 900), strings.Repeat("x+", 2000) + "x",
		`\begin{array}{` + strings.Repeat("c", 3000) + `}x\end{array}`, `\begin{CD}A @>javascript:window.pwned=1>> B\end{CD}`, `\ce{<script>window.pwned=1</script>}`, `\require{html}\href{javascript:window.pwned=1}{x}`, `\catcode92=12 \href{javascript:window.pwned=1}{x}`, `\__proto__`, `\constructor`, `\toString{x}`, `\begin{__proto__}x\end{__proto__}`, `\begin{constructor}\end{constructor}`,
	}
	for _, form := range []string{"$%s$", "$$%s$$", "\\(%s\\)", "\\[%s\\]", "text\n$$\n%s\n$$\nmore", "- $%s$", "| a |\n|---|\n| $%s$ |", "**$%s$** [x]($%[1]s$)"} {
		for _, act := range acts {
			all = append(all, fmt.Sprintf(form, act))
		}
	}
	code := []string{
		`<img src=//evil.example/x onerror=window.pwned=1>`, `</code></pre><script>window.pwned=1</script>`, `"><svg onload=window.pwned=1>`, "`${<b onclick=window.pwned=1>}`", `<span class="hljs-keyword" onclick=window.pwned=1 style="background:url(//evil.example/s)">`, `&lt;script&gt;window.pwned=1&lt;/script&gt;`, `<?php echo "<script>window.pwned=1</script>" ?>`,
		strings.Repeat(`"`, 3000), strings.Repeat(`/*`, 3000), strings.Repeat("(", 5000), strings.Repeat("a<", 4000), strings.Repeat("{[", 4000), strings.Repeat(" ", 20000) + "x", strings.Repeat("\\", 9000),
	}
	for _, language := range []string{"html", "xml", "javascript", "js", "typescript", "php", "python", "css", "markdown", "bash", "go", "rust", "sql", "json", "yaml", "ini", "makefile", "diff", "c", "java", "__proto__", "constructor", "hljs-x\" onclick=\"window.pwned=1"} {
		for _, text := range code {
			all = append(all, "```"+language+"\n"+text+"\n```\n")
		}
	}
	return all
}

// TestHostileFormulas: whatever a model writes as a formula or as code, the chat runs nothing of it,
// loads nothing for it, links nowhere, gives no element a name, and is not busy with it for long.
func TestHostileFormulas(t *testing.T) {
	t.Parallel()
	cases := hostileFormulas()
	assert.Require(t, len(cases) >= 500, "only", len(cases), "cases")
	_, op := chatOf(t, "llama3")
	assert.Contains(t, op.drawn("$x$ and\n```go\nfunc\n```\n"), "<math", "a formula") // the libraries are there
	for part := range slices.Chunk(cases, 60) {
		wrong := run(op, chromedp.Evaluate[[]string](`(async () => {
			`+drawing+`
			const wrong = [];
			for (const text of `+quoted(part)+`) {
				const place = element("div", "text"), article = element("article", "said assistant", place);
				document.getElementById("said").append(article);
				const answer = new Answer(place, load), begun = performance.now();
				answer.add(text);
				answer.end();
				await answer.rich;
				const took = performance.now() - begun;
				if (took > 2000) wrong.push(text.slice(0, 80) + " => took " + took + " ms");
				for (const e of place.querySelectorAll("*")) {
					const bad = !/^(p|strong|em|code|pre|ul|li|table|thead|tbody|tr|th|td|div|span|button|a|math|m[a-z]+)$/i.test(e.tagName)
						|| [...e.attributes].some(({ name, value }) => /^(on|data-|xlink|id$|src|action|name$)/i.test(name) || /javascript:|evil|url\(|expression/i.test(value))
						|| e.hasAttribute("href") && !/^(https?|mailto):$/.test(e.protocol)
						|| e.className && !/^(math|language-|hljs|tml|menclose)/.test(e.className) && e.closest(".math, code");
					if (bad) wrong.push(text.slice(0, 80) + " => " + e.outerHTML.slice(0, 200));
					for (const kind of ["mouseover", "focus", "click", "load", "error"]) if (!e.matches("button, a")) e.dispatchEvent(new Event(kind));
				}
				const { right, left } = place.getBoundingClientRect();
				for (const e of place.querySelectorAll(".math")) {
					const box = (e.closest("table") ?? e).getBoundingClientRect(); // which scrolls
					if (box.right > right + 1 || box.left < left - 1 || box.height > 2000) wrong.push(text.slice(0, 80) + " => it is outside of the answer");
				}
				if (!place.textContent.trim()) wrong.push(text.slice(0, 80) + " => nothing is shown");
				article.remove();
			}
			if (window.pwned) wrong.push("it ran");
			return wrong;
		})()`, chromedp.EvalAwaitPromise))
		if len(wrong) > 0 {
			t.Errorf("%d cases act: %s", len(wrong), strings.Join(wrong[:min(8, len(wrong))], "\n"))
		}
	}
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
