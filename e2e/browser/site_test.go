package browser_test

import (
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// Two members' way through the complete site, from sign-up on: with
// scripts, where every page on the way is looked at closely; and without.
func TestSite(t *testing.T) {
	t.Parallel()
	browser := chromium(t, nil)
	for name, scripts := range map[string]bool{"scripts": true, "no scripts": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &walk{stage: stageAt(t, enginetest.FreeAddress(), "llama3", "llama3:latest", "qwen2.5-coder"), scripts: scripts}
			w.op, w.ben = newTab(t, browser, w.base, scripts), newTab(t, browser, w.base, scripts)
			w.signUp()
			w.machine()
			w.until("op reaches a model", func() bool { w.op.open("/models"); return w.op.text("#models") != "" })
			w.join()
			w.firstAnswer()
			w.firstCall()
			w.calls()
			w.hours()
			w.ends()
			w.byKeyboard()
			w.op.quiet()
			w.ben.quiet()
		})
	}
}

// walk is the members' way through one stage.
type walk struct {
	*stage
	scripts       bool
	op, ben       *tab
	opKey, benKey string
	invite        string // op's link
	clicks        int    // since the test began to count
}

// look looks at the page that a tab shows: what it is for, as its pictures are
// called.
func (w *walk) look(b *tab, name string) {
	w.t.Helper()
	if w.scripts {
		b.inspect(name)
	}
}

// signUp makes the first account, by the operator's link, and an invite of it.
func (w *walk) signUp() {
	op := w.op
	for path, name := range map[string]string{"/": "start", "/signin": "signin", "/signup": "signup", "/recover": "recover"} {
		op.open(path)
		w.look(op, name)
	}
	op.openTo("/nothing", http.StatusNotFound)
	w.look(op, "problem")
	op.openTo("/invite/none", http.StatusNotFound)
	op.open(w.first)
	w.look(op, "first")
	op.send("#sign-up", "#name", "op", "#password", "correct horse battery")
	op.see("Hello, op")
	w.look(op, "home-empty")
	if w.scripts {
		op.menu()
	}
	for path, name := range map[string]string{
		"/applications": "applications-empty", "/machines": "machines-empty", "/access": "access-empty", "/access/for-you": "access-for-you-empty", "/access/groups": "access-groups-empty", "/models": "models-empty",
		"/try": "try-empty", "/usage": "usage-empty", "/requests": "requests-empty", "/notices": "notices-empty",
	} {
		op.open(path)
		w.look(op, name)
	}
	op.open("/access/invites")
	w.look(op, "invites-empty")
	run(op, clickOn("#invite-limits > summary"))
	op.send("#create-invite", "#invite-per-day", "40", "#uses", "2")
	op.see("40 calls a day")
	w.look(op, "invite-made")
	w.invite = op.text("#link")
	assert.Equal(w.t, op.readQR(), w.invite, "a phone reads")
}

// join makes the second account, by the invite.
func (w *walk) join() {
	ben := w.ben
	ben.open(w.invite)
	ben.see("op shares their machines with you, within these limits: 40 calls a day.")
	w.look(ben, "invited")
	run(ben, chromedp.SetValue(chromedp.CSS("#name"), "ben"))
	run(ben, chromedp.SetValue(chromedp.CSS("#password"), "battery horse correct"))
	w.clicks = 0
	w.click(ben, "#sign-up")
	ben.see("op shares their machines with you.")
}

// firstAnswer is the chat that the invite led to, one click from an answer.
func (w *walk) firstAnswer() {
	ben := w.ben
	ben.see("What you write here runs on them, and op could read it.")
	w.look(ben, "try-invited")
	run(ben, chromedp.SetValue(chromedp.CSS("#ask"), "Hello"))
	if w.scripts {
		run(ben, clickOn("#send"))
		w.clicks++
	} else {
		w.click(ben, "#send")
	}
	w.until("ben has an answer", func() bool { return strings.Contains(ben.text("#said"), "Hello from the attic") })
	assert.Equal(w.t, w.clicks, 2, "from the invite to an answer: clicks")
}

// firstCall is how soon a member who just signed up makes a call of a program: from Home, two
// clicks (one without scripts, where text is copied by hand), and one paste into
// a shell.
func (w *walk) firstCall() {
	ben := w.ben
	// The hub's pages learn of a change a moment after it is made.
	w.until("ben reaches a model", func() bool { ben.open("/"); return strings.Contains(ben.text("#steps"), "Key name") })
	w.look(ben, "home-invited")
	w.clicks = 0
	w.click(ben, "#first-key")
	if w.scripts {
		w.clicks++
		w.copies(ben, "#for-curl + button")
	}
	w.benKey = ben.text("#secret")
	out, err := exec.Command("sh", "-c", ben.text("#for-curl")).Output()
	if err != nil || !strings.Contains(string(out), "Hello from the attic") {
		w.t.Fatalf("the lines for curl, pasted: %v: %s", err, out)
	}
	assert.That(w.t, w.clicks <= 2, "from Home to a first call takes", w.clicks, "clicks")
}

// machine approves a machine of op's by its code.
func (w *walk) machine() {
	op := w.op
	w.start("login", "--hub", w.base)
	op.open("/device")
	w.look(op, "device")
	op.send("#show", "#code", w.code())
	op.see("to be your machine")
	w.look(op, "device-asks")
	op.see("Does your device show this code")
	op.send("#approve")
	op.see("Approved")
	w.look(op, "device-approved")
	w.until("the machine has its credential", func() bool { return w.read("credential") != "" })
	w.start("serve")
}

// makeKey makes a key that reaches everything, and returns its secret.
func (w *walk) makeKey(b *tab, name string) string {
	b.open("/applications")
	b.send("#create-key", "#name", name, "#reach", "all")
	return b.text("#secret")
}

// calls are made with keys of both, and explained.
func (w *walk) calls() {
	op, ben := w.op, w.ben
	w.opKey = w.makeKey(op, "editor")
	w.look(op, "key")
	w.until("a call of op's is served", func() bool { status, _, _ := w.call(w.opKey, "llama3"); return status == 200 })
	op.send("#test-key")
	op.see("It works.")
	w.look(op, "key-tested")
	op.open("/applications")
	w.look(op, "applications")
	run(op, clickOn("#keys .more")) // the row's menu
	op.send("#keys .field button", "#keys [name=per_day]", "100")
	op.see("The key's daily limit is 100")

	w.oldAddresses()
	op.open("/access?share=new")
	w.refusedAtField()
	op.send("#share", "#with", "ben", "#models", "llama3", "#per-day", "50")
	op.see("50 calls a day")
	w.look(op, "access")
	w.until("ben no longer reaches the other model", func() bool { status, _, _ := w.call(w.benKey, "qwen2.5-coder"); return status != 200 })
	op.open("/models")
	op.see("different from")
	w.look(op, "models-twins")
	ben.open("/models")
	w.look(ben, "models")
	ben.send("#ask-why", "#model", "qwen2.5-coder")
	ben.see("A call would be refused")
	w.look(ben, "models-why")
}

// refusedAtField: what is wrong with a form is shown at its field, which has the focus;
// what was typed is still there.
func (w *walk) refusedAtField() {
	op := w.op
	run(op, chromedp.SetValue(chromedp.CSS("#with"), "nobody"))
	op.leads(http.StatusNotFound, clickOn("#share"))
	op.see("Problem:")
	if got := run(op, chromedp.Evaluate[string](`document.querySelector("#with").value`)); got != "nobody" {
		w.t.Errorf("the field holds %q now", got)
	}
	w.until("the focus is at the field, under the refusal", func() bool {
		return run(op, chromedp.Evaluate[bool](`document.activeElement.id === "with" && document.querySelector("#problem").nextElementSibling.contains(document.activeElement)`))
	})
	w.look(op, "access-refused")
}

// hours closes the machine to ben, and the refusal is explained.
func (w *walk) hours() {
	op, ben := w.op, w.ben
	op.open("/machines")
	w.look(op, "machines")
	op.leads(200, clickOn("#machines tbody a"))
	machine := op.at()
	if w.scripts {
		w.live(machine)
	}
	w.look(op, "machine")
	op.open(machine + "?tab=settings")
	w.look(op, "machine-settings")
	op.open(machine + "?tab=models")
	w.look(op, "machine-models")
	op.open(machine + "#hours-title") // as before the page had tabs
	if !w.scripts {
		op.leads(200, clickOn("#hours-title"))
	}
	w.until("the hours are there", func() bool { return strings.Contains(op.text("#machine"), "Edit hours") })
	machine += "?tab=sharing"
	run(op, clickOn("#machine details summary"))
	w.look(op, "machine-sharing")
	day := time.Now().UTC().AddDate(0, 0, 3).Format("Mon")
	run(op, clickOn("#hours-form input[name=days-0][value="+day+"]"))
	op.send("#hours-form button", "#hours-form input[name=from-0]", "00:00", "#hours-form input[name=to-0]", "00:00", "#hours-form input[name=timezone]", "UTC")
	w.until("the page shows the hours", func() bool {
		if !w.scripts { // with them it does so by itself
			op.open(machine)
		}
		return strings.Contains(op.text("#machine"), "Open "+day+" 00:00-24:00, in the time zone UTC")
	})
	run(op, clickOn("#machine details summary"))
	w.look(op, "machine-hours")
	w.until("ben is outside the sharing hours", func() bool { _, code, _ := w.call(w.benKey, "llama3"); return code == "outside_sharing_hours" })
	w.until("the refusal is listed", func() bool {
		ben.open("/requests")
		return strings.Contains(ben.text("#requests tbody"), "Outside sharing hours")
	})
	w.look(ben, "requests")
	ben.leads(200, clickOn("#requests tbody a"))
	ben.see("Timeline")
	ben.see("hours")
	w.look(ben, "request")
	op.open("/requests")
	w.look(op, "requests-owner")
	for _, b := range []*tab{op, ben} {
		b.open("/usage")
	}
	w.look(op, "usage")
}

// live: open pages show what happens, by themselves, and leave alone who types.
func (w *walk) live(machine string) {
	op, ben := w.op, w.ben
	shows := func(b *tab, selector, want string) {
		w.t.Helper()
		w.until(selector+" shows "+want, func() bool { return strings.Contains(b.text(selector), want) })
	}
	ben.open("/models")
	op.open(machine + "?tab=settings")
	shows(op, "#machine [id^=state-]", "ready")
	w.kith("pause")
	shows(op, "#machine [id^=state-]", "paused")
	shows(op, "#machine", "Resume") // the rest of the page is another one, too
	shows(ben, "#models [id^=now-]", "paused")
	run(op, chromedp.SetValue(chromedp.CSS("input[name=name]"), "half typed"))
	w.kith("resume")
	shows(op, "#machine [id^=state-]", "ready")
	shows(ben, "#models [id^=now-]", "ready")
	if got := run(op, chromedp.Evaluate[string](`document.querySelector("input[name=name]").value`)); got != "half typed" {
		w.t.Errorf("what was typed is %q now", got)
	}
	op.open(machine)
}

// ends revokes a key, ends a share, a group and a session.
func (w *walk) ends() {
	op, ben := w.op, w.ben
	op.open("/access/groups")
	op.send("#create-group", "#name", "lab", "#kind", "org")
	op.send("form[action='/groups/invite'] button", "form[action='/groups/invite'] input[name=member]", "ben")
	op.see("ben is invited")
	ben.open("/access/groups")
	ben.see("invites you to lab")
	w.look(ben, "access-invited")
	ben.send("form[action='/groups/accept'] button")
	ben.see("You are in the group")
	op.open("/notices")
	op.see("ben joined the group lab.")
	w.look(op, "notices")
	op.send("#seen")
	op.see("Nothing new")
	w.look(op, "notices-earlier")
	op.open("/access/group?group=lab")
	op.chooses(".more[aria-label$=' ben']", "form[action='/groups/admin'] button")
	op.see("ben is an admin of lab now.")
	op.chooses("#machines .more", "form[action='/groups/machine'] button[value=pinned]")
	op.see("it is used before new machines in lab.")
	w.look(op, "access-group")
	op.open("/account")
	op.send("#create-codes", "#old-codes", "correct horse battery")
	op.see("Your recovery codes")
	w.look(op, "account")
	if w.scripts {
		op.authenticator()
		op.send("#add-passkey", "#passkey-name", "this laptop")
		op.see("Passkey added")
	}
	op.open("/sessions")
	w.look(op, "sessions")
	op.open("/")
	w.look(op, "home")

	ben.open("/applications")
	run(ben, clickOn("#keys .more"))
	ben.leads(200, clickOn(".menu:popover-open a[href^='/applications/revoke']"))
	ben.see("are permanently refused within 5 seconds")
	w.look(ben, "key-revoke")
	ben.send("#do")
	ben.see("revoked")
	w.until("the key is refused", func() bool { status, _, _ := w.call(w.benKey, "llama3"); return status == http.StatusUnauthorized }) // how soon: sim.TestRevocations
	op.open("/access?member=ben")
	op.see("Also in lab, which has no effect while you share")
	w.look(op, "access-both")
	op.leads(200, clickOn("a[href^='/sharing/end']"))
	op.see("No running call is stopped.")
	op.see("can still use your machines through the group lab")
	w.look(op, "share-end")
	ben.open("/access/for-you")
	op.send("#do")
	op.see("You no longer share with ben. No running call is stopped.")
	if w.scripts {
		w.until("the open page of ben shows that the group is left", func() bool { return strings.Contains(ben.text("#owners"), "group lab") })
	}
	w.limitGroup()
	op.open("/access/group?group=lab")
	op.leads(200, clickOn("a[href^='/groups/end']"))
	w.look(op, "group-end")
	op.send("#do")
	op.open("/access")
	op.see("Only you.")
	op.open("/")
	op.send("form[action='/signout'] button")
	op.open("/signin")
	if w.scripts {
		op.send("#use-passkey")
	} else {
		op.send("#sign-in", "#name", "op", "#password", "correct horse battery")
	}
	op.see("Hello, op")
}
