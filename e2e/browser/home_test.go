package browser_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// TestHomeFits: a member with three machines, one of them paused and one that never connected,
// sees all of the first page without scrolling, and on a phone first what needs attention. What
// is paused is resumed there, and the open page shows it by itself.
func TestHomeFits(t *testing.T) {
	t.Parallel()
	w := &walk{stage: newStage(t, "llama3"), scripts: true}
	w.op = newTab(t, chromium(t, nil), w.base, true)
	op := w.op
	w.chatting()
	for _, name := range []string{"attic", "cellar"} {
		home := filepath.Join(w.home, name)
		w.env = []string{"KITH_HOME=" + home}
		w.start("login", "--hub", w.base)
		op.open("/device")
		op.send("#show", "#code", w.code())
		op.send("#approve")
		op.see("Approved")
		w.until(name+" has its credential", func() bool { return w.read(filepath.Join(name, "credential")) != "" })
	}
	w.env = nil
	op.open("/access/invites")
	op.send("#create-invite")
	key := w.makeKey(op, "editor")
	w.until("a call is served", func() bool { status, _, _ := w.call(key, "llama3"); return status == 200 })
	for _, model := range []string{"llama4", "llama5", "llama6", "llama7", "llama8"} {
		w.call(key, model)
	}
	w.kith("pause")
	w.until("all of it is there", func() bool {
		op.open("/")
		return strings.Count(op.text("#refusals"), "you can use serves") == 5 && strings.Contains(op.text("#now"), "1 served") && strings.Contains(op.text(".beside"), "is paused")
	})
	assert.Equal(t, op.text("#steps"), "", "the first steps")
	w.look(op, "home-full")
	run(op, chromedp.EmulateViewport(1440, 900))
	if tall := run(op, chromedp.Evaluate[int64](`document.documentElement.scrollHeight`)); tall > 900 {
		t.Errorf("the page is %d pixels tall in a window of 900", tall)
	}
	op.picture("home-full-1440", 1440)
	above := func(want string) {
		t.Helper()
		got := run(op, chromedp.Evaluate[string](`[...document.querySelectorAll("#now h2")].sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top).map(h => h.textContent).join(", ")`))
		assert.Equal(t, got, want)
	}
	run(op, chromedp.EmulateViewport(390, 844))
	above("Needs attention, Calls, last 24 hours, Your machines, Recent failed calls")
	run(op, chromedp.EmulateViewport(1440, 900))
	run(op, clickOn("#calls-table summary"))
	assert.Contains(t, op.text("#calls-table"), "Failed")

	w.kith("resume")
	w.until("the page shows that nothing is paused", func() bool { return !strings.Contains(op.text(".beside"), "paused") })
	assert.Contains(t, op.text("#machines"), "ready")
	assert.That(t, run(op, chromedp.Evaluate[bool](`document.querySelector("#calls-table").open`)), "the table that was opened is closed")
	w.kith("pause")
	w.until("the page shows the pause", func() bool { return strings.Contains(op.text(".beside"), "is paused") })
	op.send("form[action='/machines/resume'] button")
	w.until("it is resumed", func() bool { op.open("/"); return !strings.Contains(op.text(".beside"), "paused") })
	op.quiet()
}

// TestMap checks that the dot of a running call moves on the map, or does not where the browser
// asks for less motion, and that it goes when the call ends. A picture of 50 machines that
// each run three calls is drawn with -measure, which says what that takes.
func TestMap(t *testing.T) {
	t.Parallel()
	w := &walk{stage: newStage(t, "llama3"), scripts: true}
	w.op = newTab(t, chromium(t, nil), w.base, true)
	w.chatting()
	op := w.op
	key := w.makeKey(op, "editor")
	w.until("a call is served", func() bool { status, _, _ := w.call(key, "llama3"); return status == 200 })
	op.open("/map")
	op.see("ready")
	w.look(op, "map")
	shown := func() int {
		return run(op, chromedp.Evaluate[int](`[...document.querySelectorAll(".map .dots path")].filter(p => p.checkVisibility()).length`))
	}
	assert.Equal(t, shown(), 0, "dots without a call")
	w.engine.Set(enginetest.Behaviour{First: time.Hour})
	var running sync.WaitGroup
	running.Go(func() { w.call(key, "llama3") })
	w.until("the call is on the map", func() bool { return shown() == 1 })
	op.see("you: llama3")
	op.open("/map")
	w.look(op, "map-calls")
	at := func() string {
		return run(op, chromedp.Evaluate[string](`getComputedStyle([...document.querySelectorAll(".map .dots path")].find(p => p.checkVisibility())).transform`))
	}
	op.prefers("light", "no-preference")
	first := at()
	w.until("a dot moves", func() bool { return at() != first })
	op.scheme("light")
	still := at()
	run(op, chromedp.Sleep(300*time.Millisecond))
	assert.Equal(t, at(), still, "a dot where motion is reduced")
	op.prefers("light", "no-preference")
	if *measured {
		w.crowdedMap()
	}
	op.open("/applications")
	run(op, clickOn("#keys .more"))
	op.leads(200, clickOn("#keys a[href*=revoke]"))
	op.send("form[action='/applications/revoke'] button")
	op.open("/map")
	w.until("the call ends with its key", func() bool { return shown() == 0 })
	running.Wait()
}

// crowdedMap measures the map with 50 machines that run three calls each.
func (w *walk) crowdedMap() {
	op := w.op
	_, err := chromedp.Call(op.ctx, performance.Enable, performance.EnableParams{TimeDomain: performance.EnableTimeDomainThreadTicks})
	assert.OK(w.t, err)
	busy := func() float64 {
		got := assert.Value(chromedp.Call(op.ctx, performance.GetMetrics, cdp.Empty{}))(w.t)
		i := slices.IndexFunc(got.Metrics, func(m *performance.Metric) bool { return m.Name == "TaskDuration" })
		return got.Metrics[i].Value
	}
	run(op, chromedp.Evaluate[chromedp.Void](`{
		const map = document.querySelector(".map"), one = map.querySelector("g:has(.dots)");
		for (const live of one.querySelectorAll("[data-live]")) live.remove();
		const calls = document.createElementNS(map.namespaceURI, "text");
		calls.setAttribute("class", "calls-3");
		one.querySelector(".dots").before(calls);
		for (let i = 1; i < 50; i++) {
			const more = one.cloneNode(true);
			for (const dots of more.querySelectorAll(".dots")) dots.setAttribute("transform", dots.getAttribute("transform").replace(/rotate\([^)]*/, "rotate(" + 7 * i));
			map.prepend(more);
		}
	}; undefined`))
	const seconds = 5
	before := busy()
	frames := run(op, chromedp.Evaluate[float64](fmt.Sprintf(`(async () => {
		let n = 0;
		for (const begun = performance.now(); performance.now() - begun < %d000; n++) await new Promise(requestAnimationFrame);
		return n;
	})()`, seconds), chromedp.EvalAwaitPromise))
	w.t.Logf("50 machines with 150 dots: %.0f pictures a second, %.0f %% of a core in the main thread", frames/seconds, 100*(busy()-before)/seconds)
}
