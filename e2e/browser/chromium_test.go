// Package browser_test drives the binary that members get from a real browser:
// what hostile pages may do to the local surface, and the site. Chromium comes
// with scripts/setup-test.sh.
package browser_test

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/kith/kith/internal/assert"
)

// patience bounds every wait for the browser or a process.
const patience = 3 * time.Minute

// chromium starts a headless browser with a fresh profile and one tab, which
// the context that it returns stands for; both end with the test. More tabs:
// chromedp.NewContext of that context. flags are Chromium's, name and value.
func chromium(t *testing.T, flags map[string]any) context.Context {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program(t)),
		chromedp.Env("TMPDIR="+shortDir(t)), // it leaves a folder there
		chromedp.NoSandbox,                  // tests run as root in containers; the pages are ours
		chromedp.WSURLReadTimeout(patience),
		chromedp.WindowSize(1280, 900), // narrower, the menu is behind a button
	)
	for name, value := range flags {
		options = append(options, chromedp.Flag(name, value))
	}
	allocated, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop) // waits for the process
	tab, leave := chromedp.NewContext(allocated)
	t.Cleanup(leave)
	assert.OK(t, chromedp.Do(tab), "cannot start Chromium")
	return tab
}

// program is the browser on PATH.
func program(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("cannot find Chromium: run make setup-test")
	return ""
}
