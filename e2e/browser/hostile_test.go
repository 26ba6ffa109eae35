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

	"github.com/kith/kith/internal/assert"
)

// hostileNames are what a page may be asked to show, each of which would set
// window.pwned where it is taken for anything but text, or make a page say what it
// does not. All of them can be a model's id.
func hostileNames() (all []string) {
	leave := []string{
		"", `"`, `'`, `>`, `">`, `'>`, "`", `--><!---->`, `</code>`, `</title>`, `</textarea>`, `</option></select>`, `</script>`, `\x22`, `{{.}}`,
		`</style>`, `</svg>`, `]]>`, `</noscript>`, `</template>`, `\u0022`, `\"`, `&quot;`, `&#34;`, `%22%3E`, `"/>`, `=`, `</td></tr></table>`, `</iframe>`, `"]`,
	}
	act := []string{
		`<script>window.pwned=1</script>`, `<img src=x onerror=window.pwned=1>`, `<svg/onload=window.pwned=1>`,
		` autofocus onfocus=window.pwned=1 x=`, `<iframe srcdoc="<script>parent.pwned=1</script>">`,
		`javascript:window.pwned=1//`, `;window.pwned=1;//`, `<details open ontoggle=window.pwned=1>`,
		`<ScRiPt>window.pwned=1</sCrIpT>`, `<svg><script>window.pwned=1</script></svg>`, `<svg><animate onbegin=window.pwned=1 attributeName=x dur=1s>`,
		`<math><mtext><img src=x onerror=window.pwned=1></mtext></math>`, `<style>@import '//evil.example/x.css'</style>`,
		`<link rel=stylesheet href=//evil.example/x.css>`, `<p style=background:url(//evil.example/x)>`, `<base href=//evil.example/>`,
		`<meta http-equiv=refresh content=0;url=javascript:window.pwned=1>`,
	}
	for _, l := range leave {
		for _, a := range act {
			all = append(all, strings.TrimSpace(l+a))
		}
	}
	return append(all,
		// Templates' own words, in this one and others.
		`{{.Me.ID}}`, `{{template "layout" .}}`, `{{define "main"}}x{{end}}`, `${window.pwned=1}`, `<%= window.pwned=1 %>`, `#{window.pwned=1}`, `[[window.pwned=1]]`,
		// Attributes that the pages' own scripts read.
		`" data-copy="x`, `" data-live="x`, `" hx-get="//evil.example/" hx-trigger="load" x="`, `" hx-on:load="window.pwned=1" x="`, `" data-table="x`, `" data-stream="//evil.example/`,
		// Other places to be taken for a link.
		`data:text/html,<script>parent.pwned=1</script>`, `vbscript:window.pwned=1`, `//evil.example/`, `/\evil.example/`, `https://evil.example/?"onmouseover=window.pwned=1`,
		`JaVaScRiPt:window.pwned=1`, `&#106;avascript:window.pwned=1`, `javascript&colon;window.pwned=1`, `..//..//evil`, `%0d%0aSet-Cookie:x=y`,
		// Formulas, shells, and text of other scripts, combined, doubled and long.
		`=HYPERLINK("//evil.example")`, `+1+1`, `-1+1`, `@SUM(1)`, `'; rm -rf ~ #`, "$(touch /x)", "`touch x`", `' OR 1=1 --`,
		"e\u0301e\u0301", "\ufdfa", "田中さん", "Ω≈ç√", "👩‍👩‍👧"[:4], "a"+strings.Repeat("\u0301", 100), strings.Repeat("A", 256), strings.Repeat("é", 128), strings.Repeat("<b>", 85),
	)
}

// unprintable can be no model's id; pages are asked for them all the same, and
// asked to show them again.
var unprintable = []string{
	"\x00<script>window.pwned=1</script>", "<scr\x00ipt>window.pwned=1</script>", "<script\n>window.pwned=1</script\n>", "\u202e<script>window.pwned=1</script>", "\u2066a\u2069",
	"a\u200bb\u200d<img src=x onerror=window.pwned=1>", "\ufeff<svg/onload=window.pwned=1>", "<img\tsrc=x\ronerror=window.pwned=1>", "java\nscript:window.pwned=1", "\x1b[31m<b>",
	"\x7f\x80\xff<script>window.pwned=1</script>", "+ADw-script+AD4-window.pwned=1+ADw-/script+AD4-", "\xe2\x80\xa8;window.pwned=1;", "\x0b\x0c<script>window.pwned=1</script>",
	strings.Repeat("A", 5000) + "<script>window.pwned=1</script>", strings.Repeat(`"><script>window.pwned=1</script>`, 100),
}

// Whatever a model, a key or a link is called, no page takes it for more than
// text, even with the browser's content policy out of the way; and no other site
// has a form of this one's sent. A machine offers at most 256 models, so the names
// are shared out.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	names := hostileNames()
	assert.Require(t, len(names) >= 500, "only", len(names), "names")
	browser := chromium(t, nil)
	n := 0
	for part := range slices.Chunk(names, 190) {
		n++
		first := n == 1
		t.Run(fmt.Sprint("part ", n), func(t *testing.T) {
			t.Parallel()
			w := &walk{stage: newStage(t, part...)}
			w.op, w.ben = newTab(t, browser, w.base, true), newTab(t, browser, w.base, true)
			assert.Value(chromedp.Call(w.op.ctx, cdppage.SetBypassCSP, cdppage.SetBypassCSPParams{Enabled: true}))(t)
			w.signUp()
			w.join()
			w.machine()
			w.shown(part)
			w.op.quiet()
			if !first {
				w.asked(part)
				return
			}
			w.asked(append(part, unprintable...))
			w.crossSite()
		})
	}
}

// shown has each page that lists names show all of them, and looks at it.
func (w *walk) shown(names []string) {
	op, key := w.op, w.makeKey(w.op, "editor")
	w.until("the models are reached", func() bool { status, _, _ := w.call(key, names[len(names)-1]); return status == 200 })
	for _, name := range names {
		if status, code, _ := w.call(key, name); status != 200 {
			w.t.Fatalf("a call for %s: %d %s", name, status, code)
		}
	}
	told := 0
	w.until("every call is told", func() bool {
		op.open("/requests")
		op.harmless()
		told = strings.Count(op.text("#requests tbody"), "served")
		for run(op, chromedp.Evaluate[bool](`document.querySelector("a[rel=next]") !== null`)) {
			op.open(run(op, chromedp.Evaluate[string](`document.querySelector("a[rel=next]").getAttribute("href")`)))
			op.harmless()
			told += strings.Count(op.text("#requests tbody"), "served")
		}
		return told >= len(names)
	})
	op.leads(200, clickOn("#requests tbody a"))
	op.harmless()
	w.makeKey(op, "other")
	op.harmless()
	op.open("/access?share=new")
	op.send("#share", "#with", "ben", "#models", strings.Join(names[:60], "\n"))
	op.harmless()
	const shown = 50 // rows of a table of usage
	w.until("every model is counted", func() bool {
		op.open("/usage")
		rows := run(op, chromedp.Evaluate[int](`document.querySelectorAll("#caller-models tbody tr").length`))
		below := run(op, chromedp.Evaluate[string](`document.querySelector("#caller-models").closest("details").textContent`))
		return rows == min(len(names), shown) && (len(names) <= shown || strings.Contains(below, fmt.Sprintf("%d more with fewer calls", len(names)-shown)))
	})
	for _, path := range []string{"/models", "/machines", "/try", "/usage", "/access", "/access?member=ben", "/access/invites", "/applications", "/sessions", "/account"} {
		op.open(path)
		op.harmless()
	}
	op.open("/models")
	if found := op.text("#models [data-found]"); !strings.HasSuffix(found, fmt.Sprintf("%d models", len(names))) {
		w.t.Errorf("/models shows %s, want %d models", found, len(names))
	}
	for i, name := range names { // a few as a page of their own
		status, path := int64(200), "/models?model="
		if i%40 == 20 {
			path, status = "/requests/", http.StatusNotFound
		}
		if i%20 == 0 {
			op.openTo(path+url.PathEscape(url.QueryEscape(name)), status)
			op.harmless()
		}
	}
	op.open("/applications")
	run(op, chromedp.Evaluate[bool](`document.querySelector("#name").removeAttribute("maxlength") ?? true`))
	run(op, chromedp.SetValue(chromedp.CSS("#name"), strings.Join(names, " ")))
	op.leads(http.StatusBadRequest, clickOn("#create-key"))
	op.harmless()
}

// asked asks every page about every name, and sends it in every form that shows it
// again: the page itself fetches them and reads each as a document.
func (w *walk) asked(names []string) {
	op := w.op
	op.open("/")
	op.mu.Lock()
	op.refusals = true
	op.mu.Unlock()
	for batch := range slices.Chunk(names, 5) { // few at a time, as patience bounds each step
		type question struct {
			Path string            `json:"path"`
			Form map[string]string `json:"form,omitempty"`
		}
		var all []question
		for _, name := range batch {
			q := url.QueryEscape(name)
			for _, path := range []string{
				"/models?model=", "/try?model=", "/signin?next=", "/signup?invite=", "/usage?days=", "/usage.csv?of=", "/requests?before=", "/requests?q=", "/operator/members?q=",
				"/operator/machines?q=", "/operator/audit?before=",
			} {
				all = append(all, question{Path: path + q})
			}
			for _, path := range []string{"/requests/", "/invite/", "/welcome/", "/"} {
				all = append(all, question{Path: path + url.PathEscape(name)})
			}
			for path, fields := range map[string]string{
				"/applications": "name reach", "/applications/test": "secret model", "/device": "code", "/sharing/share": "with models hours concurrent", "/sharing/end": "with",
				"/sharing/accept": "code", "/groups/create": "name kind", "/groups/leave": "group", "/groups/invite": "group member", "/groups/accept": "group", "/groups/machine": "group owner machine rule", "/notices/seen": "until", "/account/notices": "kind site mail mails", "/machines/hours": "machine hours timezone",
			} {
				form := map[string]string{}
				for field := range strings.FieldsSeq(fields) {
					form[field] = strings.ToValidUTF8(name, "\ufffd")
				}
				all = append(all, question{path, form})
			}
			all = append(all, question{"/try", map[string]string{"model": batch[0], "said": strings.ToValidUTF8(name, "\ufffd"), "ask": " "}})
		}
		list := assert.Value(json.Marshal(all))(w.t)
		if wrong := run(op, chromedp.Evaluate[[]string](`Promise.all(`+string(list)+`.map(async q => {
			const r = await fetch(q.path, { headers: { Accept: "text/html" }, ...(q.form ? { method: "POST", body: new URLSearchParams(q.form) } : {}) }), text = await r.text();
			if (r.status >= 500 && r.status !== 503 || !r.url.startsWith(location.origin + "/")) return q.path + " " + r.status + " " + r.url;
			return (`+acting+`)(new DOMParser().parseFromString(text, "text/html")).map(a => q.path + " " + JSON.stringify(q.form ?? {}) + ": " + a).join("\n");
		})).then(all => all.filter(Boolean))`, chromedp.EvalAwaitPromise)); len(wrong) > 0 {
			w.t.Errorf("pages act on text: %s", strings.Join(wrong[:min(5, len(wrong))], "\n"))
		}
	}
	op.harmless()
}

// acting is a function of a document: what acts in it, or leads elsewhere.
const acting = `d => [...d.querySelectorAll("*")].filter(e => e.tagName === "SCRIPT" && !e.getAttribute("src")?.startsWith("/static/") ||
	e.tagName === "LINK" && !e.getAttribute("href")?.startsWith("/static/") || e.tagName === "META" && e.httpEquiv ||
	["IFRAME", "STYLE", "BASE", "MATH", "OBJECT", "EMBED"].includes(e.tagName.toUpperCase()) ||
	[...e.attributes].some(a => a.name.startsWith("on") || a.name.startsWith("hx-on") || /^(href|src|srcset|action|formaction|xlink:href|hx-get|hx-post|data-stream)$/.test(a.name) &&
		/^\s*(javascript:|vbscript:|data:text|(https?:)?[\/\\]{2}evil)/i.test(a.value))).map(e => e.outerHTML.slice(0, 200))`

// harmless fails the test if the page took text for something that acts.
func (b *tab) harmless() {
	b.t.Helper()
	if acts := run(b, chromedp.Evaluate[[]string](`[window.pwned ? "it ran" : "", ...(`+acting+`)(document)].filter(Boolean)`)); len(acts) > 0 {
		b.t.Errorf("%s acts on text: %s", b.at(), strings.Join(acts, "\n"))
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
	assert.OK(w.t, err)
	actions := slices.Sorted(maps.Keys(w.op.forms))
	list, _ := json.Marshal(actions)
	err = chromedp.Do(ctx, chromedp.Navigate(strings.Replace(evil.URL, "127.0.0.1", "localhost", 1)))
	if err == nil {
		_, err = chromedp.Run(ctx, chromedp.Evaluate[bool](fmt.Sprintf(`Promise.all(%s.map(a => fetch(%q + a,
			{method: "POST", mode: "no-cors", credentials: "include", body: new URLSearchParams({name: "evil", all: "yes"})}).catch(() => 0))).then(() => true)`, list, w.base), chromedp.EvalAwaitPromise))
	}
	assert.OK(w.t, err)
	got := map[string]int64{}
	w.until("the browser reports every answer", func() bool { // on a way of its own, after the page has it
		mu.Lock()
		defer mu.Unlock()
		for id, action := range asked {
			got[action] = answers[id]
		}
		return !slices.ContainsFunc(actions, func(action string) bool { return got[action] == 0 })
	})
	for _, action := range actions {
		assert.Equal(w.t, got[action], http.StatusForbidden, action, "from another site: status")
	}
	assert.That(w.t, len(actions) >= 15, len(actions), "forms were tried", actions)
}
