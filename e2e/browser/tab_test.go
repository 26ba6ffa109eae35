package browser_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/kith/kith/internal/assert"
)

// tab is one member's browser at the site. It answers every question with yes.
type tab struct {
	t    *testing.T
	ctx  context.Context
	base string

	mu    sync.Mutex
	wrong []string            // what the pages complained of or loaded from elsewhere
	forms map[string]struct{} // where the forms seen so far lead
	// refusals says that what the page itself asks for may be refused.
	refusals bool
}

// newTab opens a tab with cookies of its own in the browser.
func newTab(t *testing.T, browser context.Context, base string, scripts bool) *tab {
	t.Helper()
	ctx, leave := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(leave)
	b := &tab{t: t, ctx: ctx, base: base, forms: map[string]struct{}{}}
	err := chromedp.Listen(ctx, b.hear)
	if err == nil && scripts {
		_, err = chromedp.Call(ctx, cdppage.AddScriptToEvaluateOnNewDocument, cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: moved})
	} else if err == nil {
		_, err = chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	}
	assert.OK(t, err)
	return b
}

// hear notes what must not happen on any page.
func (b *tab) hear(event any) {
	switch e := event.(type) {
	case *cdppage.EventJavascriptDialogOpening:
		go func() {
			_, _ = chromedp.Call(b.ctx, cdppage.HandleJavaScriptDialog, cdppage.HandleJavaScriptDialogParams{Accept: true})
		}()
	case *runtime.EventConsoleAPICalled:
		b.note("console: %s", e.Type)
	case *runtime.EventExceptionThrown:
		b.note("exception: %s at %s:%d", e.ExceptionDetails.Text, e.ExceptionDetails.URL, e.ExceptionDetails.LineNumber)
	case *log.EventEntryAdded:
		if e.Entry.Source != log.EntrySourceNetwork { // those report the refusals that tests provoke
			b.note("%s: %s", e.Entry.Source, e.Entry.Text)
		}
	case *network.EventRequestWillBeSent:
		if u := e.Request.URL; !strings.HasPrefix(u, b.base+"/") && !strings.HasPrefix(u, "data:") {
			b.note("it loads %s", u)
		}
	case *network.EventResponseReceived:
		b.mu.Lock()
		may := b.refusals && e.Type == network.ResourceTypeFetch
		b.mu.Unlock()
		if e.Type != network.ResourceTypeDocument && e.Response.Status >= 400 && !may && !strings.HasSuffix(e.Response.URL, "/try/stream") { // a refusal is an answer there
			b.note("%d for %s", e.Response.Status, e.Response.URL)
		}
	}
}

func (b *tab) note(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrong = append(b.wrong, fmt.Sprintf(format, args...))
}

// quiet fails the test with what was noted.
func (b *tab) quiet() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.wrong) > 0 {
		b.t.Errorf("the pages complain: %s", strings.Join(b.wrong, "\n"))
	}
}

// leads does what leads to another page, and wants its status.
func (b *tab) leads(want int64, steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	const loaded = `({ at: performance.timeOrigin, done: document.readyState === "complete", status: performance.getEntriesByType("navigation")[0]?.responseStatus ?? 0 })`
	type page struct {
		At     float64
		Done   bool
		Status int64
	}
	before, _ := chromedp.Run(ctx, chromedp.Evaluate[page](loaded)) // none before the first page
	got, err := chromedp.RunResponse(ctx, steps...)
	assert.OK(b.t, err, "no page follows")
	var now page
	if got != nil {
		now.Status = int64(got.Status)
	}
	for got == nil && !(now.At > before.At && now.Done) { // a script changed the address just before the page that follows
		assert.OK(b.t, ctx.Err(), "no page follows")
		now, _ = chromedp.Run(ctx, chromedp.Evaluate[page](loaded))
	}
	if now.Status != want {
		b.t.Fatalf("status %d, want %d: %s says %q", now.Status, want, b.is("location.href"), b.text("main"))
	}
	for _, action := range read[[]string](b, `[...document.querySelectorAll("form[method=post]")].map(f => f.getAttribute("action"))`) {
		b.forms[action] = struct{}{}
	}
}

// run does one thing on the page.
func run[T any](b *tab, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	got := assert.Value(chromedp.Run(ctx, action))(b.t)
	return got
}

// read returns what an expression that changes nothing is on the page. A page that is left
// ends the evaluation with an error; read evaluates the expression on the next page then.
func read[T any](b *tab, expression string, opts ...chromedp.EvaluateOption) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	for {
		got, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, opts...))
		var left *cdproto.Error
		if !errors.As(err, &left) || left.Message != "Inspected target navigated or closed" && left.Message != "Execution context was destroyed." {
			return assert.Value(got, err)(b.t)
		}
	}
}

// at returns the address of the page.
func (b *tab) at() string {
	b.t.Helper()
	return read[string](b, "location.href")
}

// open goes to a path of the site, or to a link.
func (b *tab) open(path string) {
	b.t.Helper()
	b.openTo(path, 200)
}

func (b *tab) openTo(path string, status int64) {
	b.t.Helper()
	b.leads(status, chromedp.Navigate(b.base+strings.TrimPrefix(path, b.base)))
}

// send fills fields (each a selector and its value in turn), presses a button and
// waits for the page that follows.
func (b *tab) send(button string, fields ...string) {
	b.t.Helper()
	for pair := range slices.Chunk(fields, 2) {
		run(b, chromedp.SetValue(chromedp.CSS(pair[0]), pair[1]))
	}
	b.leads(200, clickOn(button))
}

// text is what an element shows.
func (b *tab) text(selector string) string {
	b.t.Helper()
	return strings.TrimSpace(read[string](b, fmt.Sprintf(`document.querySelector(%q)?.textContent ?? ""`, selector)))
}

// see fails the test if the page does not say something.
func (b *tab) see(want string) {
	b.t.Helper()
	if got := b.text("main"); !strings.Contains(got, want) {
		b.t.Fatalf("%s does not say %q but %q", b.at(), want, got)
	}
}

// clickOn clicks on what a selector finds once it rests at one place: after the window
// changed its size, or a part of the page was replaced, a click may hit what is there no more.
func clickOn(selector string) chromedp.Action[chromedp.Void] {
	where := chromedp.Evaluate[string](fmt.Sprintf(`(e => {
		e?.scrollIntoView({block: "center", behavior: "instant"});
		return e ? JSON.stringify([innerWidth, e.getBoundingClientRect()]) : "";
	})(document.querySelector(%q))`, selector))
	return func(ctx context.Context, t *chromedp.Target) (none chromedp.Void, err error) {
		for before := ""; ; {
			at, err := where(ctx, t)
			if err != nil {
				return none, err
			}
			if at != "" && at == before {
				return chromedp.Click(chromedp.CSS(selector))(ctx, t)
			}
			before = at
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				return none, ctx.Err()
			}
		}
	}
}
