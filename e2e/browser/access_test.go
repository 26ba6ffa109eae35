package browser_test

import (
	"fmt"

	"github.com/chromedp/chromedp"

	"github.com/kith/kith/internal/assert"
)

// click presses what leads to another page, and counts it.
func (w *walk) click(b *tab, selector string) {
	w.t.Helper()
	w.clicks++
	b.leads(200, clickOn(selector))
}

// copies clicks on a button that copies, and waits until it has said so. It says so for 2 s
// only, and on a busy computer the next look comes later: so the page notes it.
func (w *walk) copies(b *tab, button string) {
	w.t.Helper()
	run(b, chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`new MutationObserver(() => {
		window.copied ||= document.querySelector(%q)?.textContent === "Copied";
	}).observe(document, { childList: true, subtree: true })`, button)))
	run(b, clickOn(button))
	w.until("the lines are copied", func() bool { return run(b, chromedp.Evaluate[bool](`Boolean(window.copied)`)) })
}

// limitGroup is how many clicks it takes to limit what a group may call: from any page
// at most four, the last of which sends the form.
func (w *walk) limitGroup() {
	op := w.op
	run(op, chromedp.EmulateViewport(1280, 900))
	op.open("/")
	w.clicks = 0
	w.click(op, "a[href='/access']")
	w.click(op, "#given-list a[href*='group=lab']") // what ben reaches the machine through
	run(op, chromedp.SendKeys(chromedp.CSS("details[open] form[action='/groups/limit'] input[name=per_day]"), "10"))
	w.click(op, "details[open] form[action='/groups/limit'] button")
	op.see("These are now your limits for lab.")
	op.see("10 calls a day")
	assert.That(w.t, w.clicks <= 4, "to limit a group takes", w.clicks, "clicks")
	w.look(op, "access-limited")
}
