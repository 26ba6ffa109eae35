package browser_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// hostileNames are what a page may be asked to show, each of which would set
// window.pwned where it is taken for anything but text.
func hostileNames() (all []string) {
	leave := []string{"", `"`, `'`, `>`, `">`, `'>`, "`", `--><!---->`, `</code>`, `</title>`, `</textarea>`, `</option></select>`, `</script>`, `\x22`, `{{.}}`}
	act := []string{
		`<script>window.pwned=1</script>`, `<img src=x onerror=window.pwned=1>`, `<svg/onload=window.pwned=1>`,
		` autofocus onfocus=window.pwned=1 x=`, `<iframe srcdoc="<script>parent.pwned=1</script>">`,
		`javascript:window.pwned=1//`, `;window.pwned=1;//`, `<details open ontoggle=window.pwned=1>`,
	}
	for _, l := range leave {
		for _, a := range act {
			all = append(all, strings.TrimSpace(l+a))
		}
	}
	return all
}

// Whatever a model, a key or a link is called, no page takes it for more than
// text, even with the browser's content policy out of the way; and no other site
// has a form of this one's sent.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	browser, names := chromium(t, nil), hostileNames()
	w := &walk{stage: newStage(t, names...)}
	w.op, w.ben = newTab(t, browser, w.base, true), newTab(t, browser, w.base, true)
	if _, err := chromedp.Call(w.op.ctx, cdppage.SetBypassCSP, cdppage.SetBypassCSPParams{Enabled: true}); err != nil {
		t.Fatal(err)
	}
	w.signUp()
	w.machine()
	op, key := w.op, w.makeKey(w.op, "editor")
	w.until("the models are reached", func() bool { status, _, _ := w.call(key, names[len(names)-1]); return status == 200 })
	for _, name := range names {
		if status, code, _ := w.call(key, name); status != 200 {
			t.Fatalf("a call for %s: %d %s", name, status, code)
		}
	}
	w.until("every call is told", func() bool { op.open("/requests"); return strings.Count(op.text("#requests"), "served") >= 100 })
	op.harmless()
	op.leads(200, clickOn("#requests tbody a"))
	op.harmless()
	w.makeKey(op, "other")
	op.harmless()
	op.open("/sharing")
	run(op, clickOn("#share-with summary"))
	op.send("#share", "#with", "ben", "#models", strings.Join(names[:60], "\n"))
	op.harmless()
	for _, path := range []string{"/models", "/machines", "/usage", "/sharing", "/applications", "/groups", "/sessions", "/account"} {
		op.open(path)
		op.harmless()
	}
	if shown := run(op, chromedp.Evaluate[int](`fetch("/models").then(r => r.text()).then(t => new DOMParser().parseFromString(t, "text/html").querySelectorAll("#models tbody tr").length)`, chromedp.EvalAwaitPromise)); shown != len(names) {
		t.Errorf("/models shows %d models, want %d", shown, len(names))
	}
	for i, name := range names {
		status, path := int64(200), "/models?model="
		switch i % 4 {
		case 1:
			path = "/signin?next="
		case 2:
			path = "/signup?invite="
		case 3:
			path, status = "/requests/", http.StatusNotFound
		}
		op.openTo(path+url.PathEscape(url.QueryEscape(name)), status)
		op.harmless()
	}
	op.open("/applications")
	run(op, chromedp.Evaluate[bool](`document.querySelector("#name").removeAttribute("maxlength") ?? true`))
	run(op, chromedp.SetValue(chromedp.CSS("#name"), strings.Join(names, " ")))
	op.leads(http.StatusBadRequest, clickOn("#create-key"))
	op.harmless()
	op.quiet()
	w.crossSite()
}

// harmless fails the test if the page took text for something that acts.
func (b *tab) harmless() {
	b.t.Helper()
	if acts := run(b, chromedp.Evaluate[[]string](`[window.pwned ? "it ran" : "", ...[...document.querySelectorAll("*")]
		.filter(e => e.tagName === "SCRIPT" && !e.getAttribute("src")?.startsWith("/static/") || e.tagName === "IFRAME" ||
			[...e.attributes].some(a => a.name.startsWith("on") || ["href", "src", "action"].includes(a.name) && /^\s*javascript:/i.test(a.value)))
		.map(e => e.outerHTML.slice(0, 200))].filter(Boolean)`)); len(acts) > 0 {
		b.t.Errorf("%s acts on text: %s", run(b, chromedp.Location()), strings.Join(acts, "\n"))
	}
}

// crossSite has a page of another site, in op's own browser, send every form that
// op's pages hold.
func (w *walk) crossSite() {
	evil := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer evil.Close()
	ctx, leave := chromedp.NewContext(w.op.ctx)
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var mu sync.Mutex
	asked, answers := map[network.RequestID]string{}, map[network.RequestID]int64{} // the browser keeps the answers from the page
	err := chromedp.Listen(ctx, func(event any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := event.(type) {
		case *network.EventRequestWillBeSent:
			asked[e.RequestID] = strings.TrimPrefix(e.Request.URL, w.base)
		case *network.EventResponseReceivedExtraInfo:
			answers[e.RequestID] = e.StatusCode
		}
	})
	if err != nil {
		w.t.Fatal(err)
	}
	actions := slices.Sorted(maps.Keys(w.op.forms))
	list, _ := json.Marshal(actions)
	err = chromedp.Do(ctx, chromedp.Navigate(strings.Replace(evil.URL, "127.0.0.1", "localhost", 1)))
	if err == nil {
		_, err = chromedp.Run(ctx, chromedp.Evaluate[bool](fmt.Sprintf(`Promise.all(%s.map(a => fetch(%q + a,
			{method: "POST", mode: "no-cors", credentials: "include", body: new URLSearchParams({name: "evil", all: "yes"})}).catch(() => 0))).then(() => true)`, list, w.base), chromedp.EvalAwaitPromise))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	got := map[string]int64{}
	for id, action := range asked {
		got[action] = answers[id]
	}
	for _, action := range actions {
		if got[action] != http.StatusForbidden {
			w.t.Errorf("%s from another site: status %d, want 403", action, got[action])
		}
	}
	if len(actions) < 15 {
		w.t.Errorf("%d forms were tried, want 15: %q", len(actions), actions)
	}
}
