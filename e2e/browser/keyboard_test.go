package browser_test

import (
	"fmt"
	"strings"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/kith/kith/internal/assert"
)

// mostStops is how many times Tab is pressed for an element before it counts as out of
// reach.
const mostStops = 150

// tabTo presses Tab until an element has the focus. At each stop on the way the focus
// must be in sight.
func (b *tab) tabTo(selector string) {
	b.t.Helper()
	for range mostStops {
		run(b, chromedp.KeyEvent("\t"))
		seen := run(b, chromedp.Evaluate[string](`(() => {
			const e = document.activeElement;
			if (!e || e === document.body) return "";
			const style = getComputedStyle(e), at = e.getBoundingClientRect();
			const on = document.elementFromPoint(Math.max(0, at.x + Math.min(at.width, innerWidth - at.x) / 2), Math.max(0, at.y + Math.min(at.height, 20) / 2));
			if (at.bottom <= 0 || at.top >= innerHeight || !on || !(e.contains(on) || on.contains(e))) return "hidden: " + e.outerHTML.slice(0, 200);
			if (!e.matches(":focus-visible") || style.outlineStyle === "none" && style.boxShadow === "none") return "unmarked: " + e.outerHTML.slice(0, 200);
			return "";
		})()`))
		assert.Equal(b.t, seen, "", "the focus is not in sight")
		if run(b, chromedp.Evaluate[bool](fmt.Sprintf("document.activeElement.matches(%q)", selector))) {
			return
		}
	}
	b.t.Fatalf("%s is not reached by %d presses of Tab", selector, mostStops)
}

// types presses the keys of a text in the element that has the focus.
func (b *tab) types(text string) {
	b.t.Helper()
	run(b, chromedp.KeyEvent(text))
}

// enters presses Enter on an element, and waits for the page that follows.
func (b *tab) enters(selector string) {
	b.t.Helper()
	b.tabTo(selector)
	b.leads(200, chromedp.KeyEvent("\r"))
}

// byKeyboard does a member's task by keys alone: sign out and in, make a key, revoke it.
func (w *walk) byKeyboard() {
	ben := w.ben
	ben.open("/")
	ben.enters("form[action='/signout'] button")
	ben.enters("a[href='/signin']")
	ben.tabTo("#name")
	ben.types("ben")
	ben.tabTo("#password")
	ben.types("battery horse correct")
	ben.enters("#sign-in")
	ben.see("Hello, ben")
	ben.enters("a[href='/applications']")
	ben.tabTo("#name")
	ben.types("by keys")
	ben.enters("#create-key")
	if secret := ben.text("#secret"); !strings.HasPrefix(secret, "kith_") {
		w.t.Errorf("the secret is %q", secret)
	}
	ben.tabTo("#curl")
	for _, pane := range []string{"python", "js", "go", "anthropic", "openai", "curl"} {
		run(ben, chromedp.KeyEvent(kb.ArrowRight))
		run(ben, chromedp.WaitVisible(chromedp.CSS("#for-"+pane)))
		shown := run(ben, chromedp.Evaluate[int](`[...document.querySelectorAll(".panes pre")].filter(e => e.checkVisibility()).length`))
		assert.Equal(w.t, shown, 1, "panes beside", pane)
	}
	ben.enters("a[href='/applications']")
	ben.tabTo(".more[aria-label*='by keys']")
	ben.types("\r")
	ben.enters(".menu:popover-open a[href^='/applications/revoke']")
	ben.enters("#do")
	ben.see("The key is revoked")
}
