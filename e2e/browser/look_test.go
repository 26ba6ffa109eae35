package browser_test

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/chromedp/cdproto/emulation"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/kith/kith/internal/assert"
)

// axe looks for what keeps people out of a page. testdata/LICENSES.md says whose
// it is.
//
//go:embed testdata/axe.min.js
var axe string

// checks look for the rest: focus, sizes of targets, weight.
//
//go:embed testdata/checks.js
var checks string

// moved notes what moves on a page as it loads: until it is touched for the first time.
const moved = `window.moved = [];
const shifts = new PerformanceObserver((list) => {
	for (const shift of list.getEntries()) moved.push(shift.value.toFixed(4) + ": " + shift.sources.map(s => s.node?.parentElement?.outerHTML?.slice(0, 120)).join(" | "));
});
shifts.observe({ type: "layout-shift", buffered: true });
for (const touch of ["pointerdown", "keydown", "resize"]) addEventListener(touch, () => shifts.disconnect(), { capture: true, once: true });`

var screens = flag.String("screens", "", "the folder to keep pictures of the pages in; none are taken without it")

// What a page may take on the wire, in KiB, and its scripts; the chat has more to do.
const (
	mostKiB       = 120
	mostScripts   = 60
	mostOfTheChat = 120
)

func (b *tab) scheme(name string) { b.t.Helper(); b.prefers(name, "reduce") }

// prefers makes the browser prefer a colour scheme, and motion or less of it.
func (b *tab) prefers(scheme, motion string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: motion}},
	})
	assert.OK(b.t, err)
}

// inspect looks at the page closely: as it was loaded, then light and dark on a
// screen and on a phone.
func (b *tab) inspect(name string) {
	b.t.Helper()
	most := mostScripts
	if strings.HasPrefix(name, "try") {
		most = mostOfTheChat
	}
	b.wants(name, "moved")
	run(b, chromedp.Evaluate[chromedp.Void](axe+"\n"+checks+"\n;undefined"))
	b.wants(name, fmt.Sprintf("checks.weight(%d, %d)", mostKiB, most))
	b.keyboard()
	b.appears(name)
}

// keyboard presses Tab, so that the browser shows the focus. In a dialog with one stop the first
// Tab leaves the page.
func (b *tab) keyboard() {
	b.t.Helper()
	for range 2 {
		run(b, chromedp.KeyEvent("\t"))
		if run(b, chromedp.Evaluate[bool](`document.activeElement !== document.body`)) {
			return
		}
	}
}

// appears looks at the page in each of its appearances. What differs between light and
// dark is colours alone.
func (b *tab) appears(name string) {
	b.t.Helper()
	for _, size := range []struct {
		name          string
		width, height int64
	}{{"", 1100, 800}, {"phone ", 390, 844}, {"wide ", 1440, 900}} {
		run(b, chromedp.EmulateViewport(size.width, size.height))
		for _, scheme := range []string{"light", "dark"} {
			if size.width == 1440 && scheme == "dark" { // has the colours of the narrower window
				continue
			}
			b.scheme(scheme)
			look, rules := name+", "+size.name+scheme, `, runOnly: {type: "rule", values: ["color-contrast", "link-in-text-block"]}`
			if scheme == "light" {
				rules = ""
				b.wants(look, "checks.focus()")
				b.wants(look, fmt.Sprintf("checks.targets(%t)", size.width < 1000))
				b.wants(look, "checks.breaks()")
				b.wants(look, "checks.cut()")
				b.wants(look, "checks.spills()")
				if size.width == 390 {
					b.wants(look, "checks.rows()")
				}
				if wide := run(b, chromedp.Evaluate[int64](`document.documentElement.scrollWidth`)); wide > size.width {
					b.t.Errorf("%s is %d pixels wide on a screen of %d", look, wide, size.width)
				}
			}
			b.wants(look, axeFinds(rules))
			b.picture(strings.ReplaceAll(name+"-"+size.name+scheme, " ", "-"), size.width)
		}
	}
	b.scheme("light")
	run(b, chromedp.EmulateViewport(1280, 900)) // the menu is in sight
}

// menu looks at the open menu of a phone, light and dark.
func (b *tab) menu() {
	b.t.Helper()
	run(b, chromedp.EmulateViewport(390, 844))
	run(b, clickOn("[popovertarget=menu]:not(.close)"))
	run(b, chromedp.WaitVisible(chromedp.CSS("#menu:popover-open")))
	run(b, chromedp.Evaluate[chromedp.Void](axe+"\n"+checks+"\n;undefined"))
	run(b, chromedp.KeyEvent("\t"))
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		look := "menu, phone " + scheme
		b.wants(look, "checks.focus()")
		b.wants(look, "checks.targets(true)")
		b.wants(look, axeFinds(""))
		b.picture("menu-phone-"+scheme, 390)
	}
	b.scheme("light")
	run(b, clickOn("#menu .close"))
	run(b, chromedp.WaitNotVisible(chromedp.CSS("#menu")))
	run(b, chromedp.EmulateViewport(1280, 900))
}

// axeFinds is what finds the violations of axe's rules, of all of them or as more says.
func axeFinds(more string) string {
	return `axe.run(document, {resultTypes: ["violations"]` + more + `}).then(r => r.violations.map(v =>
		v.id + ": " + v.help + ": " + v.nodes.map(n => n.html.slice(0, 200) + " " + (n.any[0]?.message ?? "")).join(" | ")))`
}

// wants fails the test with what a check finds on the page.
func (b *tab) wants(look, check string) {
	b.t.Helper()
	if found := run(b, chromedp.Evaluate[[]string](check, chromedp.EvalAwaitPromise)); len(found) > 0 {
		b.t.Errorf("%s: %s finds\n%s", look, check[:min(len(check), 30)], strings.Join(found, "\n"))
	}
}

// picture keeps what the page looks like, with -screens.
func (b *tab) picture(name string, width int64) {
	b.t.Helper()
	if *screens == "" {
		return
	}
	tall := run(b, chromedp.Evaluate[float64](`document.documentElement.scrollHeight`))
	shot := assert.Value(chromedp.Call(b.ctx, cdppage.CaptureScreenshot, cdppage.CaptureScreenshotParams{
		Clip:                  &cdppage.Viewport{Width: float64(width), Height: tall, Scale: 1},
		CaptureBeyondViewport: new(true),
	}))(b.t)
	assert.OK(b.t, os.MkdirAll(*screens, 0o755))
	assert.OK(b.t, os.WriteFile(filepath.Join(*screens, name+".png"), shot.Data, 0o644))
}
