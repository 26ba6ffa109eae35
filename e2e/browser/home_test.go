package browser_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/kith/kith/internal/assert"
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
	op.open("/access")
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
	above("Needs attention, Calls, last 24 hours, Your machines, Newest refusals")
	run(op, chromedp.EmulateViewport(1440, 900))
	run(op, clickOn("#calls-table summary"))
	assert.Contains(t, op.text("#calls-table"), "Refused or broken off")

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
