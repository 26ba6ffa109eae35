package browser_test

import (
	"fmt"
	"net/http"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// A member talks with a model on /try, sees what became of it on /usage and
// /requests, and as operator sees a backup: with scripts, where every page is
// looked at closely, and without.
func TestFigures(t *testing.T) {
	t.Parallel()
	browser := chromium(t, nil)
	for name, scripts := range map[string]bool{"scripts": true, "no scripts": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &walk{stage: newStage(t, "llama3"), scripts: scripts}
			w.op, w.ben = newTab(t, browser, w.base, scripts), newTab(t, browser, w.base, scripts)
			w.signUp()
			w.join()
			w.machine()
			w.until("a model is reached", func() bool { w.op.open("/try"); return strings.HasPrefix(w.op.text("#model"), "llama3") })
			w.talks()
			w.refusedTry()
			w.counted()
			if scripts {
				w.zoned()
			}
			w.operates()
			w.op.quiet()
		})
	}
}

// say asks on /try, and waits for what follows.
func (w *walk) say(text string) {
	w.t.Helper()
	run(w.op, chromedp.SetValue(chromedp.CSS("#ask"), text))
	if !w.scripts {
		w.op.leads(200, clickOn("#send"))
		return
	}
	run(w.op, clickOn("#send"))
}

// answered waits until the page has so many answers and is ready for the next
// question.
func (w *walk) answered(n int, last string) {
	w.t.Helper()
	w.until(fmt.Sprintf("answer %d is %q", n, last), func() bool {
		return run(w.op, chromedp.Evaluate[bool](fmt.Sprintf(`(() => {
			const all = document.querySelectorAll("#said .assistant .text");
			return all.length === %d && all[%d].textContent.includes(%q) && !document.querySelector("#send").disabled;
		})()`, n, n-1, last)))
	})
}

// talks has a conversation of two questions, the second with all before it, and
// stops a long answer.
func (w *walk) talks() {
	op := w.op
	w.say("Who is there?")
	w.answered(1, "Hello from the attic")
	w.look(op, "try")
	w.say("And <b>now</b>?")
	w.answered(2, "Hello from the attic")
	if said := string(w.engine.Last().Body); !strings.Contains(said, "Who is there?") || !strings.Contains(said, "Hello from the attic") || !strings.Contains(said, "now") {
		w.t.Errorf("the second question brings %s", said)
	}
	if !w.scripts {
		return
	}
	w.engine.Set(enginetest.Behaviour{Chunks: 100_000, Interval: 20 * time.Millisecond, Text: "word "})
	w.say("For ever?")
	w.until("the answer begins", func() bool { return strings.Contains(op.text("#said .turn:last-child .assistant .text"), "word word") })
	w.look(op, "try-answering")
	run(op, clickOn("#stop"))
	w.until("it is stopped", func() bool { return op.text("#state") == "Stopped." })
	w.answered(3, "word")
	if err := w.engine.Wait(w.t.Context(), func(c enginetest.Counts) bool { return c.Running == 0 }); err != nil {
		w.t.Error(err)
	}
	w.engine.Set(enginetest.Behaviour{Text: "Hello from the attic"})
}

// refusedTry pauses the machine: the refusal names the request, which its page
// explains; so it is where nothing is known of one.
func (w *walk) refusedTry() {
	op := w.op
	op.open("/machines")
	op.leads(200, clickOn("#machines tbody a"))
	op.send("form[action='/machines/pause'] button")
	op.open("/try?model=llama3")
	w.say("Anybody?")
	w.until("it is refused", func() bool { return strings.Contains(op.text("#refused"), "CASCADE_EXHAUSTED") })
	w.look(op, "try-refused")
	assert.Contains(w.t, op.text("#refused"), "No machine available CASCADE_EXHAUSTED: each machine", "the chat")
	id := path.Base(run(op, chromedp.Evaluate[string](`document.querySelector("#refused a").pathname`)))
	w.until("the request is explained", func() bool {
		op.open("/requests")
		if w.scripts { // that of lists leads to the call
			run(op, chromedp.SendKeys(chromedp.CSS("#requests-q"), id))
			w.until("its page", func() bool { return op.is("location.pathname") == "/requests/"+id })
		} else {
			op.leads(200, chromedp.SendKeys(chromedp.CSS("#requests-q"), id+"\r"))
		}
		return strings.Contains(op.text("main"), "paused")
	})
	op.see("Timeline")
	op.see("No machine available CASCADE_EXHAUSTED")
	w.look(op, "request-refused")
	op.open("/requests?outcome=served")
	op.leads(200, clickOn("#requests tbody a"))
	op.see("Your vm")
	w.look(op, "request-served")
	op.openTo("/requests/req_none", http.StatusNotFound)
	op.see("no call \"req_none\" of yours")
	w.look(op, "request-unknown")
	op.open("/machines")
	op.leads(200, clickOn("#machines tbody a"))
	op.send("form[action='/machines/resume'] button")
}

// counted finds the calls on /usage: in the table and in each chart, one at a time, whose page
// is no longer than two screens.
func (w *walk) counted() {
	op := w.op
	w.until("the calls are counted", func() bool { op.open("/usage?days=7"); return op.text("#caller-codes") != "" })
	for _, view := range []string{"calls-model", "tokens-member", "first", "waits", "calls-week"} {
		op.leads(200, clickOn("nav[aria-label=Chart] a[href$="+view+"]"))
		assert.Equal(w.t, run(op, chromedp.Evaluate[int](`document.querySelectorAll("main figure").length`)), 1, view, "charts are shown")
		w.look(op, "usage-"+view)
	}
	op.leads(200, clickOn("nav[aria-label=Side] a[href*=owner]"))
	assert.Contains(w.t, op.text("#owner-members"), "you", "who called")
	op.open("/usage?days=7&side=balance")
	w.look(op, "usage-balance")
	op.open("/usage?days=7")
	w.look(op, "usage-charts")
	run(op, chromedp.EmulateViewport(1440, 900))
	if high := run(op, chromedp.Evaluate[int](`document.documentElement.scrollHeight`)); high > 1800 {
		w.t.Errorf("usage is %d pixels high, more than two screens", high)
	}
	run(op, chromedp.ResetViewport())
}

// operates makes a backup, and looks at the operator's pages and the API's.
func (w *walk) operates() {
	op := w.op
	op.open("/operator")
	assert.Equal(w.t, op.text("#backup"), "none yet", "before any backup")
	out, err := exec.Command(w.binary, "admin", "backup", filepath.Join(w.home, "copy.db"), "--data", filepath.Join(w.home, "hub")).CombinedOutput()
	if err != nil {
		w.t.Fatalf("kith admin backup: %v: %s", err, out)
	}
	for path, name := range map[string]string{
		"/operator": "operator", "/operator/usage": "operator-usage", "/operator/members": "operator-members", "/operator/machines": "operator-machines", "/operator/audit": "operator-audit", "/api": "api", "/docs": "docs", "/docs/commands": "docs-commands", "/docs/spec/routing": "docs-routing", "/docs/install": "docs-install", "/docs?q=backup": "docs-search",
	} {
		op.open(path)
		w.look(op, name)
	}
	w.documentation()
	op.open("/operator")
	op.see("verified")
	op.open("/operator/audit")
	op.see("back up the database")
	op.open("/operator/members?q=ben")
	run(op, clickOn(".list .more"))
	op.leads(200, clickOn(".menu:popover-open a[href*='/link']"))
	op.send("#do", "#old", "correct horse battery")
	w.look(op, "operator-link")
	w.ben.open(op.text("#link"))
	w.look(w.ben, "welcome")
	w.ben.open(w.invite)
	w.look(w.ben, "invite")
}

// documentation copies lines of a page, whose list of pages is beside the text where there
// is room, and folded on a phone.
func (w *walk) documentation() {
	op := w.op
	op.open("/docs/install")
	if w.scripts {
		w.copies(op, ".code-block button")
	}
	for width, want := range map[int64]bool{1280: true, 390: false} {
		run(op, chromedp.EmulateViewport(width, 900))
		if got := run(op, chromedp.Evaluate[bool](`document.querySelector("#pages a").checkVisibility({ contentVisibilityAuto: true, visibilityProperty: true })`)); got != want {
			w.t.Errorf("%d pixels wide: the list of pages is shown: %t, want %t", width, got, want)
		}
	}
	run(op, chromedp.ResetViewport())
}

// zoned looks at times as a member in another time zone: they are in that zone, also the
// hours of usage and the fields of a filter, which sends UTC.
func (w *walk) zoned() {
	w.t.Helper()
	op := w.op
	zone := func(id string) {
		_, err := chromedp.Call(op.ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: id})
		assert.OK(w.t, err)
	}
	zone("Asia/Kathmandu") // 5 h 45 min ahead
	op.open("/usage?days=1&by=hour")
	assert.Lacks(w.t, op.text("body"), "UTC", "the hours of usage")
	assert.Contains(w.t, op.text("#caller-days tbody th"), ":45", "an hour of usage")
	op.open("/requests")
	assert.Lacks(w.t, op.text("body"), "UTC", "calls")
	assert.Contains(w.t, op.text("body > footer"), "Times: Asia/Kat", "the zone")
	run(op, chromedp.Evaluate[chromedp.Void](`document.getElementById("filters").open = true; document.getElementById("from").value = "2026-11-21T10:30"; undefined`))
	run(op, clickOn("#filter"))
	w.until("the filter is in the address", func() bool {
		return strings.Contains(op.at(), "from=") && op.text("#requests [data-found]") != ""
	})
	op.open(op.at())
	sent := run(op, chromedp.Evaluate[[]string](`[new URLSearchParams(location.search).get("from"), document.getElementById("from").value]`))
	assert.Equal(w.t, strings.Join(sent, " "), "2026-11-21T04:45:00.000Z 2026-11-21T10:30", "what the filter sent, and shows")
	zone("")
}
