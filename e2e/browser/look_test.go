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
)

// axe looks for what keeps people out of a page. testdata/LICENSES.md says whose
// it is.
//
//go:embed testdata/axe.min.js
var axe string

var screens = flag.String("screens", "", "the folder to keep pictures of the pages in; none are taken without it")

func (b *tab) scheme(name string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}, {Name: "prefers-reduced-motion", Value: "reduce"}},
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// axe fails the test with what axe-core finds on the page: with all its rules in the
// light, with those about colours in the dark, which differs in nothing else.
func (b *tab) axe(name string) {
	b.t.Helper()
	run(b, chromedp.Evaluate[chromedp.Void](axe+"\n;undefined"))
	for scheme, rules := range map[string]string{"light": "", "dark": `, runOnly: {type: "rule", values: ["color-contrast", "link-in-text-block"]}`} {
		b.scheme(scheme)
		found := run(b, chromedp.Evaluate[[]string](`axe.run(document, {resultTypes: ["violations"]`+rules+`}).then(r => r.violations.map(v =>
			v.id + ": " + v.help + ": " + v.nodes.map(n => n.html.slice(0, 200) + " " + (n.any[0]?.message ?? "")).join(" | ")))`, chromedp.EvalAwaitPromise))
		if len(found) > 0 {
			b.t.Errorf("%s, %s: axe-core finds\n%s", name, scheme, strings.Join(found, "\n"))
		}
	}
}

// fits fails the test if the page is wider than a screen or a phone. With -screens
// it keeps what the page looks like: light, dark and on a phone.
func (b *tab) fits(name string) {
	b.t.Helper()
	for _, look := range []struct {
		name, scheme  string
		width, height int64
	}{{"light", "light", 1100, 800}, {"dark", "dark", 1100, 800}, {"phone", "light", 390, 844}} {
		b.scheme(look.scheme)
		run(b, chromedp.EmulateViewport(look.width, look.height))
		if wide := run(b, chromedp.Evaluate[int64](`document.documentElement.scrollWidth`)); wide > look.width {
			b.t.Errorf("%s is %d pixels wide on a screen of %d", name, wide, look.width)
		}
		if *screens == "" {
			continue
		}
		tall := run(b, chromedp.Evaluate[float64](`document.documentElement.scrollHeight`))
		run(b, chromedp.EmulateViewport(look.width, int64(tall)))
		shot, err := chromedp.Call(b.ctx, cdppage.CaptureScreenshot, cdppage.CaptureScreenshotParams{
			Clip:                  &cdppage.Viewport{Width: float64(look.width), Height: tall, Scale: 1},
			CaptureBeyondViewport: new(true),
		})
		if err != nil {
			b.t.Fatal(err)
		}
		if err := os.MkdirAll(*screens, 0o755); err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(*screens, fmt.Sprintf("%s-%s.png", name, look.name)), shot.Data, 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
	run(b, chromedp.ResetViewport())
}
