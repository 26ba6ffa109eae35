package browser_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/kith/kith/internal/assert"
)

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
	for selector, field := range map[string]string{"#model": "Find a model", "#compare": "Find a model to compare with"} {
		find(field, "32B  qwen")
		assert.Equal(t, options(selector), "qwen3:32b", selector, "finds")
		find(field, "nothing like it")
		assert.Equal(t, options(selector), "qwen3:32b", selector, "keeps what is chosen")
		find(field, "")
		assert.Equal(t, strings.Count(options(selector), ":"), 2, selector, "has all again")
	}
	assert.Equal(t, run(op, chromedp.Evaluate[string](`document.querySelector("#model").value`)), "qwen3:32b", "the chosen model")

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
