package browser_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/store"
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
	w.until("the lines are copied", func() bool { return read[bool](b, `Boolean(window.copied)`) })
}

// chooses opens the menu of a row, and presses what is in it.
func (b *tab) chooses(more, item string) {
	b.t.Helper()
	run(b, clickOn(more))
	b.leads(200, clickOn(".menu:popover-open "+item))
}

// opensPanel follows a link to a panel, and counts it: with scripts it opens beside the page.
func (w *walk) opensPanel(b *tab, link string) {
	w.t.Helper()
	if !w.scripts {
		w.click(b, link)
		return
	}
	w.clicks++
	run(b, clickOn(link))
	w.until("the panel is open", func() bool { return read[bool](b, `document.querySelector("#panel:modal") !== null`) })
}

// oldAddresses: addresses of before Access had tabs lead to what they led to.
func (w *walk) oldAddresses() {
	op := w.op
	if !w.scripts { // without them the link is in sight
		op.open("/access#accept-invite")
		w.click(op, "#accept-invite")
		return
	}
	for was, is := range map[string]string{"/access#accept-invite": "/access/invites#accept-invite", "/access#invite-person": "/access/invites#invite-person", "/access#groups": "/access/groups#groups", "/access#share-with": "/access?share=new"} {
		op.open("/try") // else only the hash changes
		op.open(was)
		w.until(was+" leads to "+is, func() bool { return strings.HasSuffix(op.at(), is) })
	}
}

// limitGroup is how many clicks it takes to limit what a group may call: from any page
// at most four, the last of which sends the form.
func (w *walk) limitGroup() {
	op := w.op
	run(op, chromedp.EmulateViewport(1280, 900))
	op.open("/")
	w.clicks = 0
	w.click(op, "a[href='/access']")
	w.click(op, "#people a[href*='group=lab']") // what ben reaches the machine through
	w.opensPanel(op, ".actions a[data-panel]")
	run(op, chromedp.SendKeys(chromedp.CSS("form[action='/groups/limit'] input[name=per_day]"), "10"))
	w.click(op, "form[action='/groups/limit'] button")
	op.see("Limits saved for lab.")
	op.see("10 calls a day")
	assert.That(w.t, w.clicks <= 4, "to limit a group takes", w.clicks, "clicks")
	w.look(op, "access-limited")
}

// friends fills a hub with op, an operator with two machines, five shares and two groups.
func friends(t *testing.T, folder string) {
	t.Helper()
	assert.OK(t, os.MkdirAll(folder, 0o700))
	db := assert.Value(store.Open(t.Context(), store.Config{Path: filepath.Join(folder, "kith.db")}))(t)
	defer func() { assert.OK(t, db.Close()) }()
	ctx, now := t.Context(), time.Now()
	names := []string{"op", "ana", "ben", "cho", "dov", "eli", "fay", "gus"}
	for _, name := range names {
		assert.OK(t, db.CreateMember(ctx, account.Member{ID: "mem_" + name, Name: name, Operator: name == "op", Created: now}))
	}
	for i, name := range []string{"cellar", "workshop-under-the-stairs"} {
		m := account.Machine{ID: "mch_" + name, OwnerID: "mem_op", Name: name, Region: "local", Created: now}
		m.Hash[0], m.Hash[1] = byte(i), 7
		assert.OK(t, db.CreateMachine(ctx, m))
	}
	for i, limits := range []account.Limits{
		{}, {PerDay: 50}, {Models: []string{"llama3", "gone:70b"}, Concurrent: 2},
		{Hours: "Mon-Fri 18:00-23:00; Sat,Sun 00:00-24:00", PerDay: 100}, {Models: []string{"hf.co/unsloth/Qwen3-Coder-480B-A35B-Instruct-1M-GGUF:UD-Q4_K_XL"}, PerDay: 5},
	} {
		name := names[i+1]
		assert.OK(t, db.AddShare(ctx, account.Share{ID: "shr_" + name, OwnerID: "mem_op", MemberID: "mem_" + name, Limits: limits, Created: now}))
	}
	assert.OK(t, db.AddShare(ctx, account.Share{ID: "shr_back", OwnerID: "mem_ana", MemberID: "mem_op", Limits: account.Limits{PerDay: 20}, Created: now}))
	for name, kind := range map[string]account.GroupKind{"lab": account.GroupOrg, "club": account.GroupOpen} {
		assert.OK(t, db.CreateGroup(ctx, account.Group{ID: "grp_" + name, Name: name, Kind: kind, Created: now,
			Members: []account.GroupMember{{MemberID: "mem_op", Admin: true}, {MemberID: "mem_fay"}, {MemberID: "mem_ana"}}}))
	}
}

// TestAccess: a member with three machines, five shares, two groups and two invites limits a
// friend from Access in three clicks, and no page of it is longer than two screens. An open
// panel and a filter that is being typed stay as they are while the list under them changes.
func TestAccess(t *testing.T) {
	t.Parallel()
	browser := chromium(t, nil)
	for name, scripts := range map[string]bool{"scripts": true, "no scripts": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &walk{stage: newStageOver(t, func(folder string) { friends(t, folder) }, "127.0.0.1:0", "", "llama3", "llama3:latest", "qwen2.5-coder"), scripts: scripts}
			w.op = newTab(t, browser, w.base, scripts)
			op := w.op
			w.enter(op, "op")
			w.machine()
			w.until("the models are offered", func() bool {
				op.open("/access?member=ben")
				return strings.Contains(op.text("#panel"), "qwen2.5-coder")
			})
			for range 2 {
				op.open("/access/invites")
				op.send("#create-invite")
			}
			w.look(op, "access-invite-made")
			run(op, chromedp.EmulateViewport(1440, 900))
			op.open("/access")
			w.clicks = 0
			w.opensPanel(op, "#people a[href='/access?member=ben']")
			run(op, chromedp.SetValue(chromedp.CSS("#with-per-day"), "10"))
			w.click(op, "#limits button")
			op.see("ben may use your machines: ")
			op.see("10 calls a day")
			assert.That(t, w.clicks <= 3, "to limit a friend takes", w.clicks, "clicks")

			const most = 2 * 900
			for path, name := range map[string]string{
				"/access": "access-people", "/access?member=dov": "access-panel", "/access?member=fay": "access-panel-group", "/access?share=new": "access-share",
				"/access/for-you": "access-for-you", "/access/groups": "access-groups", "/access/group?group=lab": "access-group-page", "/access/group?group=lab&limits=edit": "access-group-limits",
				"/access/invites": "access-invites",
			} {
				run(op, chromedp.EmulateViewport(1440, 900))
				op.open(path)
				tall := run(op, chromedp.Evaluate[int64](`Math.max(document.documentElement.scrollHeight, document.querySelector("#panel")?.scrollHeight ?? 0)`))
				t.Logf("%-36s %5d pixels tall", path, tall)
				assert.That(t, tall <= most, path, "is", tall, "pixels tall")
				op.picture(fmt.Sprintf("%s-1440-%t", name, scripts), 1440)
				w.look(op, name)
			}
			run(op, chromedp.EmulateViewport(390, 844))
			op.open("/access")
			tall := run(op, chromedp.Evaluate[int64](`document.querySelector("#people .list").clientHeight`))
			t.Logf("on a phone the list of six people is %d pixels tall", tall)
			assert.That(t, tall <= 844, "on a phone the list of six people is", tall, "pixels tall")
			if scripts {
				w.panelStays()
			}
			op.quiet()
		})
	}
}

// panelStays checks that what is open or typed stays while the page follows what happens, and
// how a panel closes.
func (w *walk) panelStays() {
	op := w.op
	at := func(want string) {
		w.t.Helper()
		w.until("the address is "+want, func() bool { return strings.HasSuffix(op.at(), want) })
	}
	open := func() bool { return run(op, chromedp.Evaluate[bool](`document.querySelector("#panel") !== null`)) }
	run(op, chromedp.EmulateViewport(1440, 900))
	op.open("/access")
	run(op, clickOn("#people-q"))
	run(op, chromedp.KeyEvent("cho"))
	w.until("one is found", func() bool { return len(op.rows()) == 1 })
	w.opensPanel(op, "#people a[href='/access?member=cho']")
	at("/access?member=cho&q=cho")
	run(op, chromedp.SetValue(chromedp.CSS("#with-per-day"), "33"))
	w.kith("share", "add", "gus")
	w.kith("share", "add", "cho", "--concurrent", "7")
	w.until("the list under the panel follows", func() bool { return strings.Contains(op.text("#people"), "7 at once") })
	assert.Equal(w.t, run(op, chromedp.Evaluate[string](`document.querySelector("#with-per-day").value`)), "33", "what was typed")
	assert.Equal(w.t, strings.Join(op.rows(), " "), "cho", "the rows that are found")
	run(op, chromedp.KeyEvent("\x1b"))
	w.until("Esc closes the panel", func() bool { return !open() })
	at("/access?q=cho")
	w.opensPanel(op, "#people .more + .menu a[data-panel], #people th a[data-panel]")
	run(op, clickOn("#panel [data-close]"))
	w.until("its link closes the panel", func() bool { return !open() })
	w.opensPanel(op, "#people th a[data-panel]")
	run(op, chromedp.Evaluate[chromedp.Void](`history.back(); undefined`))
	w.until("Back closes the panel", func() bool { return !open() })
	at("/access?q=cho")

	op.open("/sharing/end?with=cho")
	assert.Equal(w.t, run(op, chromedp.Evaluate[int](`(() => {
		let sent = 0;
		document.addEventListener("submit", (event) => { sent += !event.defaultPrevented; event.preventDefault(); });
		const form = document.getElementById("do").form;
		form.requestSubmit();
		form.requestSubmit();
		return sent;
	})()`)), 1, "at a double click the form is sent")
}
