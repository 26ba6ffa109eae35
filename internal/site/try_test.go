package site

import (
	"encoding/json/v2"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fleet"
)

// asked is a call as sent by /try.
type asked struct {
	Model    string `json:"model"`
	Stream   bool   `json:"stream"`
	Messages []said `json:"messages"`
}

// parrot answers calls with their question. It never answers "nothing".
func parrot(w http.ResponseWriter, r *http.Request, who fleet.Caller) {
	var call asked
	if err := json.UnmarshalRead(r.Body, &call); err != nil {
		panic(err)
	}
	w.Header().Set("X-Correlation-Id", "req_of_the_call")
	if call.Model == "nothing" {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"error":{"code":"NOT_IN_CIRCLE","message":"not in reach","correlation_id":"req_of_the_call"}}`)
		return
	}
	text, err := json.Marshal(fmt.Sprintf("%s: %s", who.Name, call.Messages[len(call.Messages)-1].Content))
	if err != nil {
		panic(err)
	}
	if !call.Stream {
		fmt.Fprintf(w, `{"choices":[{"message":{"role":"assistant","content":%s}}]}`, text)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%s}}]}\n\n", text)
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done() // until the browser stops the call
}

func TestTry(t *testing.T) { onEachStore(t, testTry) }

func testTry(t *testing.T, tn *town) {
	ada := tn.as("ada")
	ada.get("/try").want(t, 200, "of-ada", `id="send"`, "No message yet", "Not sealed</a>: the hub and the owner", "&#34;CASCADE_EXHAUSTED&#34;:&#34;No machine available&#34;", assetPaths()["chat.js"])
	page := ada.post("/try", "model", "of-ada", "said", "one\r\ntwo", "said", "three", "ask", "is <b> bold?").want(t, 200,
		"one\ntwo", "three", "is &lt;b&gt; bold?", "ada: is &lt;b&gt; bold?")
	assert.Equal(t, strings.Count(page.body, `name="said"`), 4, "the next form brings", "messages of 4")
	ada.post("/try", "model", "nothing", "ask", "typed and kept").want(t, 200, "<strong>Not shared with you</strong>", "<code>NOT_IN_CIRCLE</code></small>: not in reach.", `href="/requests/req_of_the_call">Why?`, "typed and kept</textarea>")
	ada.post("/try", "model", "of-ada", "ask", " ").want(t, 400, "type something")
	ada.post("/try", "model", "", "ask", "x").want(t, 400, "choose a model")
	ada.post("/try", "model", "of-ada", "said", "odd", "ask", "\xff").want(t, 400, "not UTF-8")
	ada.post("/try/stream", "model", "of-ada", "ask", "x").want(t, 400, `"code":"invalid_request"`, "send the call as application/json", `"correlation_id":"req_`)
	ada.chat(`{"model":"nothing","stream":true,"messages":[]}`).want(t, 403, "NOT_IN_CIRCLE")
	if text := tn.log.String(); strings.Contains(text, "bold") || strings.Contains(text, "typed and kept") {
		t.Errorf("what was said is logged: %s", text)
	}
}

// By default a model on the member's own machine is selected, then a shared one, then a
// group's, on every page. The list shows whose each model is.
func TestChoosesOneOfYourOwn(t *testing.T) {
	tn := newTown(t, nil)
	key := credential.Mint(credential.APIKey, "home").Reveal()
	tn.keys = map[string]string{key: "ada"}
	strange := api.Model{ID: "0-fast", Availability: "ready", Via: "group", Owner: "eve", Chat: true, Machines: 2}
	shared := api.Model{ID: "1-shared", Availability: "ready", Via: "shared", Owner: "bob", Chat: true, Machines: 1}
	vectors := api.Model{ID: "2-vectors", Availability: "ready", Via: "own", Owner: "ada", Machines: 1}
	own := api.Model{ID: "3-own", Availability: "busy", Via: "own", Owner: "ada", Chat: true, Machines: 1}
	off := api.Model{ID: "4-paused", Availability: "paused", Via: "own", Owner: "ada", Chat: true, Machines: 1}
	ada := tn.as("ada")
	for _, step := range []struct {
		models []api.Model
		want   string
	}{
		{[]api.Model{strange, shared, vectors, own, off}, "3-own"},
		{[]api.Model{strange, shared, vectors, off}, "1-shared"},
		{[]api.Model{strange, vectors, off}, "0-fast"},
		{[]api.Model{vectors, off}, ""},
	} {
		tn.models = step.models
		page := ada.get("/try").want(t, 200)
		if got := strings.Count(page.body, " selected"); step.want == "" && got != 0 {
			t.Errorf("of %+v one is chosen", step.models)
		}
		if step.want != "" {
			page.want(t, 200, `<option value="`+step.want+`" selected`)
			ada.post("/applications/test", "secret", key).want(t, 200, step.want+" answered")
		}
	}
	tn.models = []api.Model{strange, shared, vectors, own}
	page := ada.get("/try?model=2-vectors").want(t, 200, `<option value="3-own" selected`)
	assert.Lacks(t, page.body, `value="2-vectors"`, "the models to chat with")
	ada.get("/try").want(t, 200, "0-fast (eve&#39;s or another&#39;s, in a group · ready)", "1-shared (bob&#39;s · ready)", "3-own (yours · busy)")
}

// chat makes a call like the page's script.
func (b *browser) chat(body string) seen {
	b.t.Helper()
	r, err := http.NewRequest("POST", b.web.URL+"/try/stream", strings.NewReader(body))
	check(b.t, err)
	r.Header.Set("Content-Type", "application/json")
	resp, err := b.client.Do(r)
	check(b.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	check(b.t, err)
	return seen{resp.StatusCode, resp.Header, string(text)}
}

// TestTryTakesImages checks that a script's call may be larger than a form, and reaches
// the hosted routes unchanged.
func TestTryTakesImages(t *testing.T) {
	tn := newTown(t, nil)
	body := `{"model":"tiny","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("x", 1<<20) + `"}]}`
	tn.call = func(w http.ResponseWriter, r *http.Request, c fleet.Caller) {
		got, err := io.ReadAll(r.Body)
		if err != nil || string(got) != body || r.ContentLength != int64(len(body)) || c.Name != "ada" {
			t.Errorf("%d of %d bytes came, said to be %d, of %s: %v", len(got), len(body), r.ContentLength, c.Name, err)
		}
	}
	tn.as("ada").chat(body).want(t, 200)
	assert.Equal(t, tn.browser().chat("{}").status, http.StatusSeeOther, "a visitor's call")
}

// TestTryPolicy checks that the page of the chat has only the site's scripts, and that
// only DOMPurify's policy turns text into elements.
func TestTryPolicy(t *testing.T) {
	tn := newTown(t, nil)
	policy := tn.as("ada").get("/try").want(t, 200).header.Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "script-src 'self'", "worker-src 'self'", "require-trusted-types-for 'script'", "trusted-types dompurify chat-worker"} {
		assert.Contains(t, policy, part, "the policy lacks")
	}
	sent := 0
	for _, name := range []string{"app.js", "chat.js", "stream.js", "marked.js", "purify.js", "markdown.js"} { // the last three with an answer
		sent += len(assets()[assetPaths()[name]].zipped)
	}
	assert.That(t, sent != 0 && sent <= 120<<10, "the scripts of the page", sent, "bytes over the wire")
	t.Logf("%d bytes of scripts", sent)
}

// TestTryIsTheMembersOwn checks that a call is made for the signed-in member, with the
// complete conversation and none of the browser's headers.
func TestTryIsTheMembersOwn(t *testing.T) {
	tn := newTown(t, nil)
	var who fleet.Caller
	var got asked
	var header http.Header
	tn.call = func(w http.ResponseWriter, r *http.Request, c fleet.Caller) {
		who, header = c, r.Header
		if err := json.UnmarshalRead(r.Body, &got); err != nil {
			t.Error(err)
		}
		parrot(w, &http.Request{Body: io.NopCloser(strings.NewReader(`{"messages":[{}]}`))}, c)
	}
	eve := tn.as("eve")
	eve.header.Set("Authorization", "Bearer ada")
	eve.post("/try", "model", "tiny", "said", "a", "said", "b", "said", "half", "ask", "c").want(t, 200)
	want := asked{"tiny", false, []said{{"user", "a"}, {"assistant", "b"}, {"user", "c"}}}
	assert.Same(t, got, want)
	if string(who.Member) != tn.members["eve"].ID || who.KeyID != api.SiteKey+tn.members["eve"].ID {
		t.Errorf("called as %+v", who)
	}
	assert.Same(t, header, http.Header{"Content-Type": {"application/json"}})
}

// TestTryStops checks that the answer is streamed, and ends when the browser disconnects.
func TestTryStops(t *testing.T) {
	tn := newTown(t, nil)
	ended := make(chan struct{})
	tn.call = func(w http.ResponseWriter, r *http.Request, c fleet.Caller) {
		defer close(ended)
		parrot(w, r, c)
	}
	ada := tn.as("ada")
	r, err := http.NewRequestWithContext(t.Context(), "POST", tn.web.URL+"/try/stream", strings.NewReader(`{"model":"of-ada","stream":true,"messages":[{"role":"user","content":"hello"}]}`))
	check(t, err)
	r.Header.Set("Content-Type", "application/json")
	resp, err := ada.client.Do(r)
	check(t, err)
	first := make([]byte, 5)
	_, err = io.ReadFull(resp.Body, first)
	check(t, err)
	assert.That(t, string(first) == "data:" && resp.Header.Get("Cache-Control") == "no-store", first, resp.Header)
	check(t, resp.Body.Close())
	<-ended
}

// TestTryEndsWithTheError checks that the response of an answer that broke off is complete,
// with the hub's error as its last frame: a browser drops what it has not read yet of a
// response that is reset. Without scripts it is the page with the question.
func TestTryEndsWithTheError(t *testing.T) {
	tn := newTown(t, nil)
	tn.call = func(w http.ResponseWriter, r *http.Request, _ fleet.Caller) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"choices\":[]}\n\ndata: {\"error\":{\"code\":\"engine_error\"}}\n\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	ada := tn.as("ada")
	ada.chat("{}").want(t, 200, "choices", "engine_error")
	ada.post("/try", "model", "of-ada", "ask", "typed and kept").want(t, 200, "the answer could not be read", "typed and kept</textarea>")
}

// TestAnswerOf checks that half an answer is none, as where a key is tested.
func TestAnswerOf(t *testing.T) {
	half := answerOf(func(w http.ResponseWriter) {
		_, _ = io.WriteString(w, `{"choices":[{"message":{"role":"assistant","content":"Hel`)
		panic(http.ErrAbortHandler)
	})
	assert.That(t, !half.Answered && half.Message == "the answer could not be read", half)
	assert.That(t, answerOf(func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"choices":[{"message":{}}]}`) }).Answered, "an empty answer is one")
}

// TestSpeedsInChat checks that a model is offered with its state, its owner and the speed that
// was measured for the member on a machine that is online.
func TestSpeedsInChat(t *testing.T) {
	tn := newTown(t, nil)
	tn.models = []api.Model{{ID: "tiny", Availability: "busy", Via: "own", Owner: "ada", Chat: true, Machines: 1}}
	measure := func(c fleet.Circle, took time.Duration) {
		tn.box().Offer("tiny").Load.Measure(c, fleet.Measurement{At: time.Now(), FirstToken: time.Second, Output: 100, Decoding: took, Running: 1})
	}
	ada := tn.as("ada")
	measure(fleet.Circle{Class: fleet.Shared}, time.Second) // of others' calls
	ada.get("/try").want(t, 200, "tiny (yours · busy)")
	measure(fleet.Circle{}, 4*time.Second)
	ada.get("/try").want(t, 200, "tiny (yours · busy · 25.0 tokens/s)", `data-speed="25.0 tokens/s"`)
	offline := *tn.box()
	offline.Online = false
	tn.snapshot = tn.snapshot.WithMachine(&offline)
	ada.get("/try").want(t, 200, "tiny (yours · busy)")
	tn.models = []api.Model{{ID: "vectors", Availability: "ready", Via: "own"}} // no other model answers chats: the kept chats are there
	ada.get("/try").want(t, 200, "tiny (yours · offline)", `id="chats"`)
}

// TestChatAddress checks that the address of a chat, which only the browser knows, is the page
// of the chat, and that the page has no footer.
func TestChatAddress(t *testing.T) {
	ada := newTown(t, nil).as("ada")
	page := ada.get("/try/0123abcd").want(t, 200, `id="try"`)
	assert.Lacks(t, page.body, "<footer>", "the page")
	assert.Equal(t, ada.get("/try/0123abcd/more").status, http.StatusNotFound, "below a chat")
}

// TestWhatModelsOfChatCan checks that the page's script learns what it offers of a model: images,
// reasoning effort, and the bar of its context.
func TestWhatModelsOfChatCan(t *testing.T) {
	tn := newTown(t, nil)
	tn.models = []api.Model{
		{ID: "all", Availability: "ready", Via: "own", Chat: true, ContextLength: 4096, Capabilities: []string{"thinking", "tools", "vision"}},
		{ID: "none", Availability: "ready", Via: "own", Chat: true},
	}
	tn.as("ada").get("/try").want(t, 200, `<option value="all" selected data-vision data-thinks data-context="4096" data-n=`, `<option value="none" data-n=`)
}
