package browser_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/tunnel"
)

// crowd fills a hub with op, an operator, 200 other members, 400 machines of op, and 1,000
// models on them. No machine is online.
func crowd(t *testing.T, folder string) {
	t.Helper()
	assert.OK(t, os.MkdirAll(folder, 0o700))
	db := assert.Value(store.Open(t.Context(), store.Config{Path: filepath.Join(folder, "kith.db")}))(t)
	defer func() { assert.OK(t, db.Close()) }()
	ctx, now := t.Context(), time.Now()
	assert.OK(t, db.CreateMember(ctx, account.Member{ID: "mem_op", Name: "op", Operator: true, Created: now.Add(-time.Hour)}))
	for i := range 200 {
		assert.OK(t, db.CreateMember(ctx, account.Member{ID: fmt.Sprintf("mem_%03d", i), Name: fmt.Sprintf("member %d", i*7919%1000), Disabled: i%10 == 0, Created: now.Add(-time.Duration(i) * time.Minute)}))
	}
	for i := range 400 {
		m := account.Machine{ID: fmt.Sprintf("mch_%03d", i), OwnerID: "mem_op", Name: fmt.Sprintf("machine-%03d", i), Region: "local", Created: now.Add(-time.Duration(i) * time.Minute)}
		m.Hash[0], m.Hash[1], m.Hash[2] = byte(i), byte(i>>8), 7
		assert.OK(t, db.CreateMachine(ctx, m))
		ad := tunnel.Advertisement{Version: tunnel.Version, Name: m.Name, Slots: 4, Models: []tunnel.Model{}}
		for j := range 10 {
			ad.Models = append(ad.Models, tunnel.Model{
				ID: fmt.Sprintf("model-%04d:70b-instruct", (i*10+j)%1000), Families: []string{"chat"}, Endpoints: []string{"/v1/chat/completions"}, ContextLength: 4096 + i, Capabilities: []string{"tools"},
			})
		}
		assert.OK(t, db.SaveOffers(ctx, m.ID, assert.Value(json.Marshal(ad))(t), now.Add(-time.Duration(60+i)*time.Minute)))
	}
}

// listScript measures a page: from a key to the rows that it finds, drawn, and the longest
// task of the page's main thread.
const listScript = `window.longest = 0;
new PerformanceObserver((list) => { for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration); }).observe({ type: "longtask", buffered: true });
window.keys = [];
addEventListener("keydown", (event) => {
	const id = document.querySelector("[data-list]")?.id, began = event.timeStamp;
	if (!id || event.key.length > 1) return;
	const old = document.getElementById(id);
	const look = new MutationObserver(() => {
		if (document.getElementById(id) === old) return;
		look.disconnect();
		requestAnimationFrame(() => setTimeout(() => window.keys.push(performance.now() - began), 0));
	});
	look.observe(old.parentElement, { childList: true });
}, true);
undefined`

// rows returns the first cells of the rows of the list on the page.
func (b *tab) rows() []string {
	b.t.Helper()
	return read[[]string](b, `[...document.querySelectorAll(".list tbody tr")].map((row) => row.cells[0].textContent.trim())`)
}

// listed waits until the list on the page has these rows, and its address these parameters.
func (w *walk) listed(b *tab, search string, rows ...string) {
	w.t.Helper()
	var got []string
	w.until(fmt.Sprintf("%s lists %q", search, rows), func() bool {
		got = b.rows()
		return slices.Equal(got, rows) && read[string](b, `decodeURIComponent(location.search)`) == search
	})
}

// openList opens a page with a list, and returns a function that reports how long the rows
// took after a key, and the longest task. They are figures: on a busy computer all takes longer.
func (w *walk) openList(b *tab, path string) (measured func() string) {
	w.t.Helper()
	b.open(path)
	run(b, chromedp.Evaluate[chromedp.Void](listScript))
	return func() string {
		var keys []float64
		w.until("each key was answered", func() bool {
			keys = run(b, chromedp.Evaluate[[]float64](`window.keys`))
			return len(keys) > 0
		})
		slices.Sort(keys)
		longest := run(b, chromedp.Evaluate[float64](`window.longest`))
		return fmt.Sprintf("%-22s %2d keys: median %3.0f ms, most %3.0f ms; longest task %3.0f ms", path, len(keys), keys[len(keys)/2], keys[len(keys)-1], longest)
	}
}

// press presses the keys of a text one by one, each once the rows of the one before are
// there.
func (w *walk) press(b *tab, text string) {
	w.t.Helper()
	for _, key := range text {
		before := run(b, chromedp.Evaluate[int](`window.keys.length`))
		run(b, chromedp.KeyEvent(string(key)))
		w.until("the rows follow", func() bool { return read[int](b, `window.keys.length`) > before })
	}
}

// TestLargeLists: the lists of a hub with 200 members, 400 machines and 1,000 models are
// searched as one types, by state, in the order of a column and page by page, with the mouse
// and by keyboard, and without scripts.
func TestLargeLists(t *testing.T) {
	t.Parallel()
	w := &walk{stage: newStageOver(t, func(folder string) { crowd(t, folder) }, "127.0.0.1:0", "", "qwen3:32b", "qwen3:8b"), scripts: true}
	browser := chromium(t, nil)
	w.op = newTab(t, browser, w.base, true)
	op := w.op
	w.enter(op, "op")
	w.machine()
	w.until("the models of the machine are there", func() bool { op.open("/models?q=qwen"); return len(op.rows()) == 2 })
	w.until("the others no longer reconnect", func() bool { op.open("/models?state=offline&q=model-0000"); return len(op.rows()) == 1 })

	measured := w.openList(op, "/models")
	first := op.rows()
	assert.Equal(t, len(first), 50, "rows on a page")
	assert.Same(t, first[:2], []string{"qwen3:32b", "qwen3:8b"}) // online first
	assert.Equal(t, op.text("[data-found]"), "1 to 50 of 1,002 models")
	w.look(op, "models-many")
	run(op, clickOn("#models-q"))
	w.press(op, "32b qw")
	w.listed(op, "?q=32b+qw", "qwen3:32b")
	assert.Equal(t, op.text("[data-found]"), "1 model")
	w.press(op, "x")
	w.until("none is found", func() bool { return op.text("[data-found]") == "No models match" })
	run(op, chromedp.Evaluate[chromedp.Void](`document.querySelector("#models-q").select(); undefined`))
	w.press(op, "00")
	w.until("some are found", func() bool { return strings.HasPrefix(op.text("[data-found]"), "1 to 50 of ") })
	t.Log(measured())
	assert.Equal(t, run(op, chromedp.Evaluate[string](`document.activeElement.id + " " + document.activeElement.value`)), "models-q 00", "the focus and the text")

	// Order, state and page: links, whose addresses are to keep.
	run(op, clickOn(".list thead th:first-child a"))
	w.until("it is sorted", func() bool { return op.text(".list th[aria-sort=ascending]") == "ID" })
	assert.Equal(t, op.rows()[0], "model-0000:70b-instruct")
	run(op, clickOn(".list thead th:first-child a"))
	w.until("it is sorted in reverse", func() bool { return op.text(".list th[aria-sort=descending]") == "ID" })
	last := op.rows()[0]
	assert.Equal(t, run(op, chromedp.Evaluate[string](`document.activeElement.textContent`)), "ID", "the focus after the press")
	run(op, clickOn(".chips .bad"))
	w.until("those are offline", func() bool { return len(op.rows()) == 50 && op.rows()[0] == last })
	run(op, clickOn(".pages [rel=next]"))
	w.until("the second page is there", func() bool { return strings.HasPrefix(op.text("[data-found]"), "51 to ") })
	at := op.at()
	second := op.rows()
	w.look(op, "models-asked")
	op.open(at)
	assert.Same(t, op.rows(), second)
	assert.Equal(t, run(op, chromedp.Evaluate[string](`document.querySelector("#models-q").value`)), "00", "the search of the address")

	measured = w.openList(op, "/machines")
	assert.Equal(t, len(op.rows()), 50, "rows on a page")
	assert.Equal(t, op.text("[data-found]"), "1 to 50 of 401 machines")
	mine := op.rows()[0] // online first
	w.look(op, "machines-many")
	run(op, clickOn("#machines-q"))
	w.press(op, "e-399 MACHIN")
	w.listed(op, "?q=e-399+MACHIN", "machine-399")
	t.Log(measured())
	w.rowMenu(mine)
	w.liveList(mine)

	measured = w.openList(op, "/operator/members")
	assert.Equal(t, op.text("[data-found]"), "1 to 50 of 201 members")
	w.look(op, "operator-members-many")
	run(op, clickOn("#members-q"))
	w.press(op, "7 13 mem")
	w.listed(op, "?q=7+13+mem", "member 137", "member 713")
	t.Log(measured())
	run(op, chromedp.Evaluate[chromedp.Void](`document.querySelector("#members-q").select(); undefined`))
	w.press(op, "op")
	w.listed(op, "?q=op", "op (operator)")
	run(op, clickOn(".list .more"))
	op.leads(200, clickOn(".menu:popover-open a[href*='/role']"))
	op.see("Remove op as an operator?")

	measured = w.openList(op, "/operator/machines")
	assert.Equal(t, op.rows()[0], mine, "online first")
	run(op, clickOn("#machines-q"))
	w.press(op, "op 39")
	t.Log(measured())
	w.look(op, "operator-machines-many")

	// The same without scripts: a form and links.
	plain := newTab(t, browser, w.base, false)
	w.enter(plain, "op")
	plain.open("/models")
	plain.leads(200, clickOn(".list thead th:first-child a"))
	plain.leads(200, clickOn(".chips .bad"))
	plain.leads(200, clickOn(".pages [rel=next]"))
	assert.Equal(t, plain.rows()[0], "model-0050:70b-instruct", "the second page")
	plain.leads(200, chromedp.SendKeys(chromedp.CSS("#models-q"), "instruct 99\r"))
	assert.Equal(t, plain.rows()[0], "model-0099:70b-instruct", "found, in the same order")
	w.listed(plain, "?state=offline&sort=id&q=instruct+99", plain.rows()...)
	plain.open("/machines?q=" + mine)
	run(plain, clickOn(".list .more"))
	plain.leads(200, clickOn(".menu:popover-open form button"))
	plain.see("Machine paused")
	op.quiet()
	plain.quiet()
}

// enter signs a member in by a link of the command line.
func (w *walk) enter(b *tab, member string) {
	w.t.Helper()
	out := assert.Value(exec.Command(w.binary, "admin", "member", "link", member, "--data", filepath.Join(w.home, "hub")).CombinedOutput())(w.t)
	link := regexp.MustCompile(`http\S+/welcome/\S+`).FindString(string(out))
	assert.Require(w.t, link != "", "a link in", string(out))
	b.open(link)
	b.leads(200, clickOn("main form button"))
}

// rowMenu opens the menu of a machine by keys alone, leaves it, and follows a link in it.
func (w *walk) rowMenu(machine string) {
	op := w.op
	op.open("/machines?q=" + machine)
	at := func() string {
		return run(op, chromedp.Evaluate[string](`(document.querySelector(".menu:popover-open") ? "open: " : "closed: ") + (document.activeElement.getAttribute("aria-label") ?? document.activeElement.textContent)`))
	}
	op.tabTo(".list .more")
	op.types("\r")
	assert.Equal(w.t, at(), "open: Actions: "+machine)
	run(op, chromedp.KeyEvent("\t"))
	assert.Equal(w.t, at(), "open: Details")
	w.look(op, "machines-menu")
	run(op, chromedp.KeyEvent("\x1b")) // Escape
	assert.Equal(w.t, at(), "closed: Actions: "+machine)
	op.types("\r")
	run(op, chromedp.KeyEvent("\t\t"))
	assert.Equal(w.t, at(), "open: Calls")
	op.leads(200, chromedp.KeyEvent("\r"))
	assert.Contains(w.t, op.at(), "/requests?machine="+machine)
}

// liveList changes the state of a machine while its list is used: the states follow, but neither
// the text that is typed, nor the menu that is open, nor the focus is lost.
func (w *walk) liveList(machine string) {
	op := w.op
	path := "/machines?q=" + machine
	op.open(path)
	id := run(op, chromedp.Evaluate[string](`document.querySelector(".list tbody a").pathname.split("/").pop()`))
	send := func(verb string) { // as from another tab
		run(op, chromedp.Evaluate[bool](fmt.Sprintf(`fetch("/machines/%s", { method: "POST", body: new URLSearchParams({ machine: %q }) }).then(() => true)`, verb, id), chromedp.EvalAwaitPromise))
	}
	run(op, clickOn(".list .more"))
	send("pause")
	w.until("the row says so", func() bool { return op.text(".list tbody .state") == "paused" })
	assert.Equal(w.t, op.text(".menu:popover-open a"), "Details", "the menu that is open")
	assert.Equal(w.t, op.text(".chips a:nth-child(2)"), "ready 1", "the list is as it was while a menu is open")
	run(op, chromedp.KeyEvent("\x1b"))
	w.until("the list is counted again", func() bool { return op.text(".chips a:nth-child(2)") == "paused 1" })
	assert.Equal(w.t, run(op, chromedp.Evaluate[string](`document.activeElement.getAttribute("aria-label")`)), "Actions: "+machine, "the focus")
	assert.Equal(w.t, run(op, chromedp.Evaluate[string](`location.pathname + location.search`)), path)

	run(op, clickOn("#machines-q"))
	send("resume")
	w.until("the list is counted again", func() bool { return op.text(".chips a:nth-child(2)") == "ready 1" })
	assert.Equal(w.t, run(op, chromedp.Evaluate[string](`document.activeElement.id + " " + document.activeElement.value`)), "machines-q "+machine, "the focus and the text")
}
