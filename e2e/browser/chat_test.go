package browser_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

var measured = flag.Bool("measure", false, "measure what the chat takes of the browser's main thread, for 40 s")

// hostileMarkdown is what a model may write to make a page run or load something.
func hostileMarkdown() (all []string) {
	acts := []string{
		`<script>window.pwned=1</script>`, `<img src=//evil.example/x.png onerror=window.pwned=1>`, `<svg onload=window.pwned=1><image href="//evil.example/x.svg"/></svg>`,
		`<iframe src=//evil.example/></iframe>`, `<style>@import "//evil.example/x.css"; body{background:url(//evil.example/y)}</style>`, `<link rel=stylesheet href=//evil.example/x.css>`,
		`<link rel=prefetch href=//evil.example/x>`, `<meta http-equiv=refresh content="0;url=//evil.example/">`, `<base href=//evil.example/>`,
		`<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=window.pwned=1&gt;"></mglyph></table></mtext></math>`,
		`<math href="javascript:window.pwned=1">x</math>`, `<svg><style><img src=x onerror=window.pwned=1></style></svg>`, `<svg><a xlink:href="javascript:window.pwned=1"><text y=20>x</text></a></svg>`,
		`<svg><use href="//evil.example/x.svg#y"/></svg>`, `<svg><animate attributeName=href values=javascript:window.pwned=1 /></svg>`, `<details open ontoggle=window.pwned=1>x</details>`,
		`<form action=//evil.example/><input autofocus onfocus=window.pwned=1><button formaction=javascript:window.pwned=1>x</button></form>`, `<video poster=//evil.example/p src=//evil.example/v autoplay onerror=window.pwned=1></video>`,
		`<audio src=//evil.example/a autoplay></audio>`, `<object data="data:text/html,<script>parent.pwned=1</script>"></object>`, `<embed src=//evil.example/e>`, `<template><script>window.pwned=1</script></template>`,
		`<noscript><p title="</noscript><img src=x onerror=window.pwned=1>">`, `<p style="background:url(//evil.example/s)">x</p>`, `<a href="javascript:window.pwned=1" id=location name=submit>x</a>`,
		`<img srcset="//evil.example/1x 1x">`, `<picture><source srcset=//evil.example/p><img></picture>`, `<body onload=window.pwned=1>`, `<input type=image src=//evil.example/i>`, `<table background=//evil.example/t><td background=//evil.example/u>x`,
		`![x](//evil.example/a.png)`, `![x](https://evil.example/b.png "t")`, `![x](data:image/svg+xml,<svg/onload=window.pwned=1>)`, `![x](javascript:window.pwned=1)`, `[x](javascript:window.pwned=1)`,
		`[x](JaVaScRiPt:window.pwned=1)`, `[x](&#106;avascript:window.pwned=1)`, `[x](javascript&colon;window.pwned=1)`, `[x](<java` + "\t" + `script:window.pwned=1>)`, `[x](data:text/html,<script>window.pwned=1</script>)`,
		`[x](vbscript:window.pwned=1)`, `[x](file:///etc/passwd)`, `[x](blob:https://evil.example/1)`, `[x](//evil.example" onmouseover="window.pwned=1)`, `<javascript:window.pwned=1>`,
		"[x]: javascript:window.pwned=1\n\n[x]", "![y][y]\n\n[y]: //evil.example/ref.png", "```\"><img src=x onerror=window.pwned=1>\ncode\n```", "```js onload=window.pwned=1\n</code></pre><script>window.pwned=1</script>\n```",
		"| a |\n|---|\n| <img src=//evil.example/cell onerror=window.pwned=1> |",
	}
	for _, around := range []string{
		"%s", "text before %s and after", "- item\n  - %s", "> %s", "# %s", "**%s**", "a\n\n%s\n\nb", "<div>\n%s\n</div>", "1. %s\n2. [x](https://ok.example)", "&lt;%s&gt;\\", "~~%s~~ `code` %[1]s",
	} {
		for _, act := range acts {
			all = append(all, fmt.Sprintf(around, act))
		}
	}
	return all
}

// drawing has Answer of markdown.js, and load, which a page loads when an answer begins.
const drawing = `const load = (name) => import(JSON.parse(document.getElementById("try").dataset.parts)[name]);
	await Promise.all([load("marked"), load("purify")]);
	const { Answer } = await load("markdown");`

// Whatever a model writes, the chat runs nothing of it, loads nothing for it, and links
// only to the web and to mail: piece by piece, as it comes, and when it is complete.
func TestHostileMarkdown(t *testing.T) {
	t.Parallel()
	cases := hostileMarkdown()
	assert.Require(t, len(cases) >= 500, "only", len(cases), "cases")
	w := &walk{stage: newStage(t, "llama3"), scripts: true}
	w.op = newTab(t, chromium(t, nil), w.base, true)
	w.chatting()
	op := w.op
	list := assert.Value(json.Marshal(cases))(t)
	wrong := run(op, chromedp.Evaluate[[]string](`(async () => {
		`+drawing+`
		const wrong = [];
		for (const text of `+string(list)+`) {
			const place = document.createElement("div");
			document.getElementById("said").append(place);
			const answer = new Answer(place, load);
			for (const piece of text.match(/[\s\S]{1,7}/g)) { answer.add(piece); answer.draw(); }
			answer.end();
			for (const e of place.querySelectorAll("*")) {
				const bad = !/^(P|BR|STRONG|EM|DEL|CODE|PRE|BLOCKQUOTE|UL|OL|LI|H[1-6]|HR|TABLE|THEAD|TBODY|TR|TH|TD|A|DIV|SPAN|BUTTON)$/.test(e.tagName)
					|| [...e.attributes].some(a => !/^(href|start|align|class|target|rel|tabindex|role|aria-label|type)$/.test(a.name))
					|| e.tagName === "A" && e.hasAttribute("href") && !/^(https?:|mailto:)$/.test(e.protocol);
				if (bad) wrong.push(text + " => " + e.outerHTML.slice(0, 200));
				for (const kind of ["mouseover", "focus", "toggle", "load", "error"]) e.dispatchEvent(new Event(kind));
			}
			if (!place.textContent.trim() && text.trim() && !/^\[x\]: /.test(text)) wrong.push(text + " => nothing is shown");
			place.remove();
		}
		const deep = document.createElement("div"), answer = new Answer(deep, load);
		for (const piece of ["first\n\n", "- ".repeat(30000), "<img src=x onerror=window.pwned=1>"]) { answer.add(piece); answer.draw(); }
		answer.end();
		if (deep.textContent !== answer.text) wrong.push("nested deeply => " + deep.textContent.slice(0, 100));
		await new Promise(r => setTimeout(r, 500));
		if (window.pwned) wrong.push("it ran");
		return wrong;
	})()`, chromedp.EvalAwaitPromise))
	if len(wrong) > 0 {
		t.Errorf("%d cases act: %s", len(wrong), strings.Join(wrong[:min(8, len(wrong))], "\n"))
	}
	op.quiet()

	// The same through the hub, as an answer.
	w.engine.Set(enginetest.Behaviour{Text: strings.Join(cases[:50], "\n\n")})
	w.say("Attack")
	w.answered(1, "evil.example")
	assert.That(t, !run(op, chromedp.Evaluate[bool](`Boolean(window.pwned)`)), "an answer ran")
	op.quiet()
}

// chatting signs up, connects a machine and opens the chat.
func (w *walk) chatting() {
	w.op.open(w.first)
	w.op.send("#sign-up", "#name", "op", "#password", "correct horse battery")
	w.machine()
	w.until("a model is reached", func() bool { w.op.open("/try"); return w.op.text("#model") != "" })
}

// A chat's message can be edited and its answer made again, its thinking is folded, two
// models answer side by side, an image goes with a message, the chat is shown as code, and
// this browser alone has it the next time, until it is deleted.
func TestChat(t *testing.T) {
	t.Parallel()
	w := &walk{stage: newStage(t, "llava", "qwen3"), scripts: true}
	w.op = newTab(t, chromium(t, nil), w.base, true)
	w.chatting()
	op := w.op
	run(op, chromedp.EmulateViewport(1100, 800))
	said := func(want string) {
		t.Helper()
		w.until("the chat says "+want, func() bool { return strings.Contains(op.text("#said"), want) && op.text("#send:disabled") == "" })
	}
	run(op, chromedp.Evaluate[chromedp.Void](`document.querySelector("#model").value = "llava"; undefined`))
	w.engine.Set(enginetest.Behaviour{Text: "# First\n\nwith **bold**\n\n```go\nfunc main() {}\n```\n", Reasoning: "let me think"})
	run(op, chromedp.SendKeys(chromedp.CSS("#ask"), "one\r")) // Enter sends
	w.until("the answer has its foot", func() bool {
		return strings.Contains(op.text("#said .meta"), "llava on ") && strings.Contains(op.text("#said .meta"), "to first token")
	})
	if got := op.text("#said .text h1") + "|" + op.text("#said .text strong") + "|" + op.text("#said .block .muted") + "|" + op.text("#said .thinking > div"); got != "First|bold|go|let me think" {
		t.Errorf("the answer is drawn as %q", got)
	}
	if run(op, chromedp.Evaluate[bool](`document.querySelector("#said .thinking").open`)) {
		t.Error("the thinking is not folded")
	}
	op.seen("try-markdown")

	w.engine.Set(enginetest.Behaviour{Text: "edited"})
	run(op, clickOn("#said button[aria-label='Edit this message']"))
	run(op, chromedp.Evaluate[chromedp.Void](`document.querySelector("#compare").value = "qwen3"; document.querySelector("#ask").value = "two"; undefined`))
	run(op, clickOn("#send"))
	said("edited")
	if n := run(op, chromedp.Evaluate[int](`document.querySelectorAll("#said .turn").length * 10 + document.querySelectorAll("#said .turn.two .assistant").length`)); n != 12 {
		t.Errorf("%d turns and answers, want 1 turn with 2 answers", n)
	}
	op.seen("try-compare")
	run(op, chromedp.Evaluate[chromedp.Void](`document.querySelector("#compare").value = ""; undefined`))
	w.engine.Set(enginetest.Behaviour{Text: "regenerated"})
	run(op, clickOn("#said button[aria-label='Regenerate the answer with the chosen model']"))
	said("regenerated")
	assert.Lacks(t, op.text("#said"), "edited", "beside the new answer")

	run(op, chromedp.Evaluate[chromedp.Void](`(async () => {
		const canvas = document.createElement("canvas");
		canvas.width = canvas.height = 3000;
		const files = new DataTransfer();
		files.items.add(new File([await new Promise(r => canvas.toBlob(r))], "a.png", { type: "image/png" }));
		document.querySelector("#file").files = files.files;
		document.querySelector("#file").dispatchEvent(new Event("change"));
	})()`, chromedp.EvalAwaitPromise))
	w.until("the image is there", func() bool {
		return run(op, chromedp.Evaluate[bool](`document.querySelector("#attached img") !== null`))
	})
	w.engine.Set(enginetest.Behaviour{Text: "a picture"})
	w.say("what is it?")
	said("a picture")
	if body := string(w.engine.Last().Body); !strings.Contains(body, "image_url") || !strings.Contains(body, "data:image/jpeg;base64,") || !strings.Contains(body, "regenerated") {
		t.Errorf("the model is asked %.300s", body)
	}
	run(op, clickOn("#options"))
	run(op, clickOn("#view-code"))
	w.until("the code is shown", func() bool { return op.text("#snippet") != "" })
	for language, want := range map[string]string{"curl": "-H \"Authorization: Bearer $KITH_API_KEY\"", "python": "from openai import OpenAI", "javascript": "import OpenAI from"} {
		run(op, chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`document.querySelector("#language").value = %q; document.querySelector("#language").dispatchEvent(new Event("change")); undefined`, language)))
		if got := op.text("#snippet"); !strings.Contains(got, want) || !strings.Contains(got, w.base+"/v1") || !strings.Contains(got, "what is it?") || len(got) > 4000 {
			t.Errorf("as %s: %.500s", language, got)
		}
	}
	op.seen("try-code")

	op.open("/try")
	w.until("the chat is kept", func() bool { return strings.Contains(op.text("#history ul"), "two") })
	run(op, clickOn("#history a"))
	said("a picture")
	if n := run(op, chromedp.Evaluate[int](`document.querySelectorAll("#said img").length`)); n != 1 {
		t.Errorf("%d images are kept", n)
	}
	run(op, clickOn("#clear")) // the tab answers the question with yes
	w.until("all are deleted", func() bool { return op.text("#history ul") == "" && op.text("#said") == "" })
	op.open("/try")
	assert.Equal(t, op.text("#history ul"), "", "after the deletion there")
	op.quiet()
}

// answerText is a long answer as models write them.
func answerText(paragraphs int) string {
	var text strings.Builder
	for i := range paragraphs {
		fmt.Fprintf(&text, "## Part %d\n\nA paragraph with **bold words**, `code` and a [link](https://example.org/%d), long enough to be broken into lines. It says that drawing is cheap.\n\n"+
			"- one item, and what there is to say of it\n- another item with *emphasis*\n\n```go\nfunc part%d() error {\n\treturn errors.New(\"not yet\")\n}\n```\n\n", i, i, i)
	}
	return text.String()
}

// What the lexer reads of a long answer stays a small multiple of it: only the last
// block is read again. The complete answer is as if it had been drawn at once.
func TestChatDrawsOnlyTheLastBlock(t *testing.T) {
	t.Parallel()
	w := &walk{stage: newStage(t, "llama3"), scripts: true}
	w.op = newTab(t, chromium(t, nil), w.base, true)
	w.chatting()
	text, err := json.Marshal(answerText(40) + "\nThe end [of it][ref].\n\n[ref]: https://example.org/ref\n")
	assert.OK(t, err)
	got := run(w.op, chromedp.Evaluate[struct {
		Length, Read int
		Same         bool
	}](`(async () => {
		`+drawing+`
		const text = `+string(text)+`, places = [document.createElement("div"), document.createElement("div")];
		const [bit, all] = places.map((place) => new Answer(place, load));
		for (const piece of text.match(/[\s\S]{1,40}/g)) { bit.add(piece); bit.draw(); }
		const read = bit.read;
		bit.end();
		all.add(text);
		all.end();
		return { Length: text.length, Read: read, Same: places[0].innerHTML === places[1].innerHTML };
	})()`, chromedp.EvalAwaitPromise))
	assert.That(t, got.Same, "an answer in pieces is drawn otherwise than the complete one")
	if got.Read > 6*got.Length {
		t.Errorf("the lexer reads %d characters for an answer of %d", got.Read, got.Length)
	}
	t.Logf("the lexer reads %d characters for %d", got.Read, got.Length)
}

// TestChatKeepsUp: however many pieces an answer comes in, the page gets all that is there
// at once, and one message for each drawing.
func TestChatKeepsUp(t *testing.T) {
	t.Parallel()
	w := &walk{stage: newStage(t, "llama3"), scripts: true}
	w.op = newTab(t, chromium(t, nil), w.base, true)
	w.chatting()
	run(w.op, chromedp.Evaluate[chromedp.Void](`(async () => {
		`+drawing+`
		window.messages = window.drawings = 0;
		const { draw } = Answer.prototype, { postMessage } = MessagePort.prototype;
		Answer.prototype.draw = function () { window.drawings++; draw.call(this); };
		MessagePort.prototype.postMessage = function (...all) { window.messages++; postMessage.apply(this, all); }; // one for each of the worker's
	})()`, chromedp.EvalAwaitPromise))
	w.engine.Set(enginetest.Behaviour{Chunks: 2000, Interval: time.Millisecond, Text: "word "})
	w.say("Fast?")
	w.answered(1, strings.TrimSpace(strings.Repeat("word ", 1000))) // each second piece is empty
	got := run(w.op, chromedp.Evaluate[struct{ Messages, Drawings int }](`({ Messages: messages, Drawings: drawings })`))
	if got.Messages > 200 || got.Messages > got.Drawings+5 {
		t.Errorf("%d messages and %d drawings for 2,000 pieces", got.Messages, got.Drawings)
	}
	t.Logf("%d messages, %d drawings", got.Messages, got.Drawings)
}

// TestChatEnds: a call ends that is stopped, and one whose page is left. The page says what
// else ends one: a worker that fails, a session that has ended, a connection that is lost.
func TestChatEnds(t *testing.T) {
	t.Parallel()
	w := &walk{stage: newStage(t, "llama3", "qwen3"), scripts: true}
	w.op = newTab(t, chromium(t, nil), w.base, true)
	w.chatting()
	op := w.op
	if _, err := chromedp.Call(op.ctx, cdppage.AddScriptToEvaluateOnNewDocument, cdppage.AddScriptToEvaluateOnNewDocumentParams{
		Source: `window.Worker = class extends Worker { constructor(at) { super(at); window.worker = this; } };`,
	}); err != nil {
		t.Fatal(err)
	}
	op.open("/try")
	running := func(want int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // by itself the browser ends the call of a page that is left after 60
		defer cancel()
		if err := w.engine.Wait(ctx, func(c enginetest.Counts) bool { return c.Running == want }); err != nil {
			t.Fatalf("%d calls run, want %d", w.engine.Counts().Running, want)
		}
	}
	says := func(want string) {
		t.Helper()
		w.until("the chat says "+want, func() bool { return strings.Contains(op.text("#said")+op.text("#refused")+op.text("#state"), want) })
	}
	endless := enginetest.Behaviour{Chunks: 100_000, Interval: 20 * time.Millisecond, Text: "word "}

	w.engine.Set(endless)
	run(op, chromedp.Evaluate[chromedp.Void](`document.querySelector("#model").value = "llama3"; document.querySelector("#compare").value = "qwen3"; undefined`))
	w.say("Stop it")
	says("word word") // of the one; the other waits for the machine
	says("In line for a machine")
	running(1)
	run(op, clickOn("#stop"))
	says("Stopped.")
	running(0)

	run(op, chromedp.Evaluate[chromedp.Void](`document.querySelector("#compare").value = ""; undefined`))
	w.say("Leave")
	running(1)
	op.open("/models")
	running(0)

	op.open("/try")
	w.say("Fail")
	says("word word")
	run(op, chromedp.Evaluate[chromedp.Void](`worker.dispatchEvent(new Event("error")); undefined`))
	says("the connection ended before the answer did")
	running(0)
	w.engine.Set(enginetest.Behaviour{Text: "another worker"})
	w.say("And now?")
	says("another worker")

	cookies := assert.Value(chromedp.Call(op.ctx, network.GetCookies, network.GetCookiesParams{}))(t)
	assert.Value(chromedp.Call(op.ctx, network.ClearBrowserCookies, cdp.Empty{}))(t)
	w.say("Who am I?")
	says("you are not signed in any more")
	for _, c := range cookies.Cookies {
		if _, err := chromedp.Call(op.ctx, network.SetCookie, network.SetCookieParams{Name: c.Name, Value: c.Value, URL: w.base}); err != nil {
			t.Fatal(err)
		}
	}

	op.quiet()

	w.engine.Set(endless)
	w.say("Lose the hub")
	w.until("the answer begins", func() bool { return strings.Contains(op.text("#said .turn:last-child .assistant .text"), "word word") })
	assert.OK(t, w.hub.Kill())
	w.until("the loss is said", func() bool {
		return strings.Contains(op.text("#said .turn:last-child .meta"), "the connection ended before the answer did")
	})
}

// TestChatKeepsWhatIsLeft: a chat is stored when its message is sent, with what has come of an
// answer. A stopped answer is no error, and a refused one takes nothing from the chat.
func TestChatKeepsWhatIsLeft(t *testing.T) {
	t.Parallel()
	w := &walk{stage: newStage(t, "llama3"), scripts: true}
	w.op = newTab(t, chromium(t, nil), w.base, true)
	w.chatting()
	op := w.op
	begins := func() {
		t.Helper()
		w.until("the answer begins", func() bool { return strings.Contains(op.text("#said .turn:last-child .assistant .text"), "word word") })
	}
	reopen := func(title string) {
		t.Helper()
		op.open("/models")
		op.open("/try")
		w.until("the chat is listed", func() bool { return strings.HasPrefix(op.text("#history li"), title) })
		run(op, clickOn("#history a"))
		w.until("it is shown", func() bool { return strings.Contains(op.text("#said .user .text"), title) })
	}
	endless := enginetest.Behaviour{Chunks: 100_000, Interval: 20 * time.Millisecond, Text: "word "}

	w.engine.Set(endless)
	w.say("left early")
	begins()
	w.until("a part is stored", func() bool {
		return run(op, chromedp.Evaluate[bool](`chatHistory(document.getElementById("try").dataset.member).all().then((all) => Boolean(all[0]?.turns[0].answers[0].text.includes("word word")))`, chromedp.EvalAwaitPromise))
	})
	reopen("left early")
	assert.Contains(t, op.text("#said .assistant .text"), "word word", "the answer that was left")
	assert.Contains(t, op.text("#said .assistant .meta"), "This answer is not complete.", "below it")

	w.engine.Set(enginetest.Behaviour{Text: "complete"})
	run(op, clickOn("#said button[aria-label='Regenerate the answer with the chosen model']"))
	w.answered(1, "complete")
	assert.Lacks(t, op.text("#said"), "not complete", "once it is")

	op.open("/try")
	w.engine.Set(enginetest.Behaviour{First: time.Hour, Text: "late"})
	w.say("left at once")
	assert.OK(t, w.engine.Wait(t.Context(), func(c enginetest.Counts) bool { return c.Running == 1 }))
	reopen("left at once")
	assert.Contains(t, op.text("#said .assistant .meta"), "This answer is not complete.", "where nothing came")

	w.engine.Set(endless)
	run(op, clickOn("#said button[aria-label='Regenerate the answer with the chosen model']"))
	begins()
	run(op, clickOn("#stop"))
	w.until("it is stopped", func() bool { return op.text("#state") == "Stopped." })
	for range 2 { // in the page, and as it is kept
		assert.Contains(t, op.text("#said .assistant .meta"), "You stopped this answer.", "below a stopped answer")
		if got := op.text("#said .meta strong") + op.text("#said .meta a") + op.text("#refused"); got != "" {
			t.Errorf("a stopped answer is shown as an error: %s", got)
		}
		reopen("left at once")
	}

	w.engine.Set(enginetest.Behaviour{Status: 400, Answer: `{"error":{"message":"no"}}`})
	run(op, clickOn("#said button[aria-label='Regenerate the answer with the chosen model']"))
	w.until("it is refused", func() bool { return op.text("#refused") != "" && op.text("#send:disabled") == "" })
	assert.Contains(t, op.text("#said .assistant .text"), "word word", "the answer before the refused one")
	assert.Equal(t, run(op, chromedp.Evaluate[string](`document.querySelector("#ask").value`)), "", "the field of a message that is shown")
	w.say("refused")
	w.until("its message is in the field again", func() bool {
		return run(op, chromedp.Evaluate[string](`document.querySelector("#ask").value`)) == "refused"
	})
	reopen("left at once")
	assert.Contains(t, op.text("#said"), "word word", "the kept chat")
	assert.Lacks(t, op.text("#said"), "refused", "the kept chat")

	w.engine.Set(endless) // a chat may be deleted while it runs
	run(op, clickOn("#said button[aria-label='Regenerate the answer with the chosen model']"))
	begins()
	run(op, clickOn("#history button[aria-label='Options of the chat left at once']"))
	run(op, clickOn("#delete"))
	assert.OK(t, w.engine.Wait(t.Context(), func(c enginetest.Counts) bool { return c.Running == 0 }))
	w.until("it is gone", func() bool {
		return op.text("#said") == "" && !strings.Contains(op.text("#history"), "at once") && op.text("#send:disabled") == ""
	})
	op.open("/try")
	w.until("the other is listed", func() bool { return strings.Contains(op.text("#history"), "left early") })
	assert.Lacks(t, op.text("#history"), "at once", "the chats that are kept")
	op.quiet()
}

// TestChatSaysWhyAnAnswerBrokeOff: an engine that dies in mid-answer ends it with the hub's
// error below the text that came. The browser reaches the hub over HTTP/2, where it drops what
// it has not read yet of a response that is reset.
func TestChatSaysWhyAnAnswerBrokeOff(t *testing.T) {
	t.Parallel()
	w := &walk{stage: newStage(t, "llama3"), scripts: true}
	proxy := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(assert.Value(url.Parse(w.base))(t)))
	proxy.EnableHTTP2 = true
	proxy.StartTLS()
	t.Cleanup(proxy.Close)
	w.op = newTab(t, chromium(t, map[string]any{"ignore-certificate-errors": true}), proxy.URL, true)
	w.first = proxy.URL + strings.TrimPrefix(w.first, w.base)
	w.chatting()
	op := w.op
	for round := range 8 {
		w.engine.Set(enginetest.Behaviour{Chunks: 40, Interval: 5 * time.Millisecond, Text: "word ", Fault: enginetest.Die, After: 20 + round})
		w.say("Break off")
		turn := fmt.Sprintf("#said .turn:nth-child(%d) .assistant ", round+1)
		w.until("the answer ends", func() bool { return op.text(turn+".meta") != "" && op.text("#send:disabled") == "" })
		assert.Contains(t, op.text(turn+".text"), "word word", "the part that came")
		assert.Contains(t, op.text(turn+".meta"), "Engine failed engine_error", "below the text")
	}
}

// TestChatMeasured is how much of a core the main thread takes for an answer of 4,000
// tokens at 100 a second, with formulas and code. It runs only if it is asked for: it measures.
func TestChatMeasured(t *testing.T) {
	if !*measured {
		t.Log("measures only with -measure")
		return
	}
	w := &walk{stage: newStage(t, "llama3"), scripts: true}
	w.op = newTab(t, chromium(t, nil), w.base, true)
	w.chatting()
	op := w.op
	long := strings.ReplaceAll(answerText(70), "drawing is cheap", "$e^{i\\pi} = -1$")
	w.engine.Set(enginetest.Behaviour{Chunks: 4000, Interval: 10 * time.Millisecond, Text: long})
	if _, err := chromedp.Call(op.ctx, performance.Enable, performance.EnableParams{TimeDomain: performance.EnableTimeDomainThreadTicks}); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(op.ctx, network.Disable, cdp.Empty{}); err != nil { // its events are no part of what a member's browser does
		t.Fatal(err)
	}
	metrics := func() map[string]float64 {
		got := assert.Value(chromedp.Call(op.ctx, performance.GetMetrics, cdp.Empty{}))(t)
		all := map[string]float64{}
		for _, m := range got.Metrics {
			all[m.Name] = m.Value
		}
		return all
	}
	before, begun := metrics(), time.Now()
	w.say("A long one")
	sent := make(chan time.Duration, 1)
	go func() {
		_ = w.engine.Wait(t.Context(), func(c enginetest.Counts) bool { return c.Chunks >= 4000 })
		sent <- time.Since(begun)
	}()
	for late := time.After(5 * patience); op.text("#said .meta") == ""; {
		select {
		case <-time.After(time.Second):
		case <-late:
			t.Fatal("the answer is not complete")
		}
	}
	took, after := time.Since(begun), metrics()
	for _, name := range []string{"TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration"} {
		t.Logf("%-20s %5.2f s of %.1f s: %.1f %%", name, after[name]-before[name], took.Seconds(), 100*(after[name]-before[name])/took.Seconds())
	}
	sending := (<-sent).Seconds()
	t.Logf("the engine sent 4,000 tokens in %.1f s: %.0f a second", sending, 4000/sending)
	t.Logf("%d characters; %s", len(op.text("#said .assistant .text")), op.text("#said .meta"))
}

// TestChatShell: each chat has an address, which a reload and the browser's history open. The
// list of chats is searched, and its chats are renamed, pinned and deleted. The field has the
// focus. On a phone the list is a drawer, and an answer has most of the screen. A hub at a
// plain HTTP address does the same, where browsers have fewer functions.
func TestChatShell(t *testing.T) {
	t.Parallel()
	w := &walk{stage: newStage(t, "llama3", "qwen3"), scripts: true}
	w.op = newTab(t, chromium(t, nil), w.base, true)
	w.chatting()
	op := w.op
	assert.Value(chromedp.Call(op.ctx, cdppage.AddScriptToEvaluateOnNewDocument, cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: `delete Crypto.prototype.randomUUID`}))(t)
	path := func() string { return run(op, chromedp.Evaluate[string](`location.pathname`)) }
	shows := func(want string) {
		t.Helper()
		w.until("the chat shows "+want, func() bool { return op.text("#said .user .text") == want })
	}
	lists := func(want ...string) {
		t.Helper()
		w.until(fmt.Sprint("the list is ", want), func() bool {
			return run(op, chromedp.Evaluate[string](`[...document.querySelectorAll("#history :is(h2, a)")].map((e) => e.textContent).join()`)) == strings.Join(want, ",")
		})
	}
	back := func() { run(op, chromedp.Evaluate[chromedp.Void](`history.back()`)) }

	op.open("/try")
	assert.Equal(t, run(op, chromedp.Evaluate[string](`document.activeElement.id`)), "ask", "the focus")
	assert.Equal(t, op.text("body > footer"), "", "the footer")
	run(op, chromedp.KeyEvent("azores\r"))
	w.answered(1, "Hello from the attic")
	azores := path()
	assert.That(t, strings.HasPrefix(azores, "/try/") && len(azores) > 15, azores)
	assert.Equal(t, run(op, chromedp.Evaluate[string](`document.title`)), "azores · kith")
	op.open(azores)
	shows("azores")
	w.look(op, "try-chat")

	run(op, clickOn(".chats .button"))
	shows("")
	assert.Equal(t, path(), "/try", "a new chat")
	w.engine.Set(enginetest.Behaviour{Chunks: 100_000, Interval: 20 * time.Millisecond, Text: "word "})
	run(op, chromedp.Evaluate[chromedp.Void](`document.querySelector("#model").value = "qwen3"; undefined`))
	w.say("bread")
	w.until("the answer begins", func() bool { return strings.Contains(op.text("#said .assistant .text"), "word word") })
	lists("Today", "bread", "azores")
	bread := path()

	run(op, chromedp.EmulateViewport(390, 844))
	share := run(op, chromedp.Evaluate[float64](`(document.querySelector("#try").getBoundingClientRect().top - document.querySelector(".top").getBoundingClientRect().bottom) / innerHeight`))
	assert.That(t, share >= 0.7, "while it streams the answer has", share, "of the height")
	run(op, clickOn("#open-chats"))
	run(op, chromedp.WaitVisible(chromedp.CSS("#history a")))
	w.look(op, "try-drawer")
	run(op, chromedp.EmulateViewport(1280, 900))

	run(op, clickOn("#history a[href='"+azores+"']")) // while the other is being answered
	shows("azores")
	assert.OK(t, w.engine.Wait(t.Context(), func(c enginetest.Counts) bool { return c.Running == 0 }))
	assert.Equal(t, op.text("#model-button span:not(.unseen, .dot)"), "llama3", "the model of the chat")
	back()
	shows("bread")
	assert.Equal(t, path(), bread)
	assert.Contains(t, op.text("#said .assistant .text"), "word word", "the answer that was left")
	assert.Contains(t, op.text("#said .meta"), "This answer is not complete.", "below it")
	assert.Equal(t, op.text("#model-button span:not(.unseen, .dot)"), "qwen3", "the model of the chat")

	menu := func(chat, button string) {
		t.Helper()
		run(op, clickOn("#history button[aria-label='Options of the chat "+chat+"']"))
		run(op, clickOn(button))
	}
	menu("azores", "#pin")
	lists("Pinned", "azores", "Today", "bread")
	menu("bread", "#rename")
	run(op, chromedp.KeyEvent("Sourdough\r"))
	lists("Pinned", "azores", "Today", "Sourdough")
	assert.Equal(t, run(op, chromedp.Evaluate[string](`document.title`)), "Sourdough · kith")
	w.engine.Set(enginetest.Behaviour{Text: "knead it"})
	w.say("and now?")
	w.answered(2, "knead it")
	op.open(bread)
	lists("Pinned", "azores", "Today", "Sourdough") // the name remains
	search := func(words string, want ...string) {
		t.Helper()
		run(op, chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`document.querySelector("#find").value = %q; document.querySelector("#find").dispatchEvent(new Event("input")); undefined`, words)))
		lists(want...)
	}
	search("it  KNEAD", "Today", "Sourdough")
	search("AZORES attic", "Pinned", "azores")
	search("neither")
	assert.Contains(t, op.text("#history"), "No chats match.")
	search("", "Pinned", "azores", "Today", "Sourdough")
	menu("azores", "#delete")
	lists("Today", "Sourdough")
	shows("bread")
	menu("Sourdough", "#delete")
	lists()
	assert.Equal(t, path(), "/try", "without the chat")

	op.open(azores)
	w.until("the loss is said", func() bool { return strings.HasPrefix(op.text("#state"), "That chat is not in this browser") })
	assert.Equal(t, path(), "/try", "without a chat")
	op.quiet()
}
