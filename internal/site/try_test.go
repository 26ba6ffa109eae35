package site

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/api"
)

// asked is a call as /try makes it.
type asked struct {
	Model    string `json:"model"`
	Stream   bool   `json:"stream"`
	Messages []said `json:"messages"`
}

// parrot answers calls with what they ask, and one for "nothing" not at all.
func parrot(w http.ResponseWriter, r *http.Request, who api.Caller) {
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
	<-r.Context().Done() // until the browser stops it
}

func TestTry(t *testing.T) { onEachStore(t, testTry) }

func testTry(t *testing.T, tn *town) {
	ada := tn.as("ada")
	ada.get("/try").want(t, 200, "of-ada", `id="send"`, assetPaths()["try.js"])
	page := ada.post("/try", "model", "of-ada", "said", "one\r\ntwo", "said", "three", "ask", "is <b> bold?").want(t, 200,
		"one\ntwo", "three", "is &lt;b&gt; bold?", "ada: is &lt;b&gt; bold?")
	if n := strings.Count(page.body, `name="said"`); n != 4 {
		t.Errorf("the next form brings %d messages of 4", n)
	}
	ada.post("/try", "model", "nothing", "ask", "typed and kept").want(t, 200, "NOT_IN_CIRCLE", `href="/requests/req_of_the_call"`, "typed and kept</textarea>")
	ada.post("/try", "model", "of-ada", "ask", " ").want(t, 400, "type something")
	ada.post("/try", "model", "", "ask", "x").want(t, 400, "choose a model")
	ada.post("/try", "model", "of-ada", "said", "odd", "ask", "\xff").want(t, 400, "not UTF-8")
	ada.post("/try/stream", "model", "", "ask", "x").want(t, 400, `"code":"invalid_request"`, `"correlation_id":"req_`)
	ada.post("/try/stream", "model", "nothing", "ask", "x").want(t, 403, "NOT_IN_CIRCLE")
	if text := tn.log.String(); strings.Contains(text, "bold") || strings.Contains(text, "typed and kept") {
		t.Errorf("what was said is logged: %s", text)
	}
}

// TestTryIsTheMembersOwn: a call goes out in the name of who is signed in, with
// the complete conversation and none of the browser's headers.
func TestTryIsTheMembersOwn(t *testing.T) {
	tn := newTown(t, nil)
	var who api.Caller
	var got asked
	var header http.Header
	tn.call = func(w http.ResponseWriter, r *http.Request, c api.Caller) {
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
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if string(who.Member) != tn.members["eve"].ID || who.KeyID != SiteKey+tn.members["eve"].ID {
		t.Errorf("called as %+v", who)
	}
	if diff := cmp.Diff(http.Header{"Content-Type": {"application/json"}}, header); diff != "" {
		t.Error(diff)
	}
}

// TestTryStops: the answer comes as it is made, and ends when the browser leaves.
func TestTryStops(t *testing.T) {
	tn := newTown(t, nil)
	ended := make(chan struct{})
	tn.call = func(w http.ResponseWriter, r *http.Request, c api.Caller) {
		defer close(ended)
		parrot(w, r, c)
	}
	ada := tn.as("ada")
	form := url.Values{"model": {"of-ada"}, "ask": {"hello"}}
	r, err := http.NewRequestWithContext(t.Context(), "POST", tn.web.URL+"/try/stream", strings.NewReader(form.Encode()))
	check(t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := ada.client.Do(r)
	check(t, err)
	first := make([]byte, 5)
	_, err = io.ReadFull(resp.Body, first)
	check(t, err)
	if string(first) != "data:" || resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%q, %v", first, resp.Header)
	}
	check(t, resp.Body.Close())
	<-ended
}
