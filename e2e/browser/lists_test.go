package browser_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// TestCallsFit: nothing of a call is out of sight on a window of 1,100 pixels, whatever its
// names and numbers.
func TestCallsFit(t *testing.T) {
	t.Parallel()
	const model = "hf.co/unsloth/Qwen3-Coder-480B-A35B-Instruct-1M-GGUF:UD-Q4_K_XL"
	w := &walk{stage: newStage(t, model), scripts: true}
	w.op = newTab(t, chromium(t, nil), w.base, true)
	w.chatting()
	op := w.op
	w.say("Hello")
	w.answered(1, "Hello from the attic")
	w.engine.Set(enginetest.Behaviour{Text: "word ", Chunks: 40, Fault: enginetest.Die, After: 20})
	w.say("Fail")
	w.until("it has failed", func() bool { return op.text("#said .turn:last-child .meta") != "" })
	w.until("both calls are listed", func() bool {
		op.open("/requests")
		return run(op, chromedp.Evaluate[int](`document.querySelectorAll("#requests tbody tr").length`)) == 2
	})
	w.look(op, "requests-long")
	run(op, chromedp.Evaluate[chromedp.Void](axe+"\n"+checks+"\n;undefined"))
	for _, width := range []int64{1100, 1280} {
		run(op, chromedp.EmulateViewport(width, 800))
		run(op, chromedp.Evaluate[chromedp.Void](`for (const row of document.querySelectorAll("#requests tbody tr")) {
			const cells = [...row.cells];
			cells[2].textContent = cells[4].textContent = "Rechenzentrum-Dachboden-Werkstatt";
			cells[5].textContent = "59.9 s";
			cells[6].firstChild.data = "59 min";
			for (const text of cells[7].childNodes) if (text.nodeType === 3 && text.data.trim()) text.data = text.data.replace(/[\\d,]+/g, "1,234,567");
		}`))
		op.wants(fmt.Sprint("calls, ", width), "checks.cut()")
	}
	op.quiet()
}

// TestPickers: a long list of models to choose from is shortened by words in any order, and
// the lines of a new key name the model that is chosen.
func TestPickers(t *testing.T) {
	t.Parallel()
	ids := []string{"qwen3:32b", "qwen3:8b"}
	for i := range 14 {
		ids = append(ids, fmt.Sprintf("llama-%d", i))
	}
	w := &walk{stage: newStage(t, append(ids, "it's")...), scripts: true}
	w.op = newTab(t, chromium(t, nil), w.base, true)
	w.chatting()
	op := w.op
	find := func(field, words string) {
		t.Helper()
		run(op, chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`(() => {
			const field = [...document.querySelectorAll("label")].find((l) => l.textContent.trim() === %q).querySelector("input");
			field.value = %q;
			field.dispatchEvent(new Event("input"));
		})()`, field, words)))
	}
	options := func(selector string) string {
		t.Helper()
		return run(op, chromedp.Evaluate[string](fmt.Sprintf(`[...document.querySelector(%q).options].map((o) => o.value).join(" ")`, selector)))
	}
	w.until("all models are offered", func() bool { op.open("/try"); return strings.Count(options("#model"), "llama-") == 14 })
	w.look(op, "try-pickers")
	chosen := func(name string) string {
		t.Helper()
		return run(op, chromedp.Evaluate[string](fmt.Sprintf(`document.getElementById(%q).value`, name)))
	}
	choose := func(name string) {
		t.Helper()
		list := "#" + name + "-list "
		run(op, chromedp.WaitVisible(chromedp.CSS(list+"input")))
		run(op, chromedp.KeyEvent("32B  qwen")) // its field has the focus
		assert.Equal(t, op.text(list+"ul"), "qwen3:32b yours · ready", name, "finds")
		run(op, chromedp.KeyEvent("x"))
		assert.Equal(t, op.text(list+"p:not([hidden])"), "No models match", name)
		run(op, chromedp.KeyEvent("\b"))
		run(op, clickOn(list+"li"))
		assert.Equal(t, chosen(name), "qwen3:32b", "the chosen model of", name)
	}
	run(op, clickOn("#model-button"))
	choose("model")
	assert.Contains(t, op.text("#model-button"), "qwen3:32b yours · ready", "the button")
	run(op, clickOn("#options"))
	run(op, clickOn("#compare-with"))
	choose("compare")
	run(op, clickOn("#model-button"))
	run(op, chromedp.WaitVisible(chromedp.CSS("#model-list input")))
	run(op, chromedp.KeyEvent("qwen"))
	w.look(op, "try-model-list")
	for _, key := range []string{"ArrowDown", "ArrowDown", "Enter"} { // a key that the browser presses again would open the list
		run(op, chromedp.Evaluate[bool](`document.querySelector("#model-list input").dispatchEvent(new KeyboardEvent("keydown", { key: "`+key+`", cancelable: true }))`))
	}
	assert.Equal(t, chosen("model"), "qwen3:8b", "by keys")
	assert.That(t, !run(op, chromedp.Evaluate[bool](`document.querySelector("#model-list").matches(":popover-open")`)), "the list stays open")

	w.makeKey(op, "editor")
	w.look(op, "key-pickers")
	find("Find a model", "8b qwen")
	for _, lines := range []string{"#for-curl", "#for-python", "#for-js", "#for-go", "#for-anthropic"} {
		assert.Contains(t, op.text(lines), "qwen3:8b", lines)
	}
	find("Find a model", "it's")
	assert.Contains(t, op.text("#for-curl"), `"model":"MODEL"`, "an id that a shell takes for more")
	run(op, chromedp.Evaluate[chromedp.Void](`document.querySelector("#model").value = "it's"; undefined`))
	op.send("#test-key")
	op.see("It works.")
	op.see("it's answered")
	op.quiet()
}
