package gateway

import (
	"bytes"
	"context"
	"encoding/json/v2"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/spool"
)

const (
	responsesRequest = `{"model":"m","input":"canary"}`
	responsesStream  = `{"model":"m","stream":true,"input":"canary"}`
)

// shelf is an implementation of Turns in memory.
type shelf struct {
	turns map[string]string // by member and response
	err   error             // returned by every function
}

func newShelf() *shelf { return &shelf{turns: map[string]string{}} }

func (s *shelf) kept() *Turns {
	return &Turns{
		Keep: func(_ context.Context, member fleet.MemberID, id string, turn []byte) error {
			if s.err == nil {
				s.turns[string(member)+id] = string(turn)
			}
			return s.err
		},
		Load: func(_ context.Context, member fleet.MemberID, id string, room func(int64) error) ([]byte, error) {
			turn, ok := s.turns[string(member)+id]
			if s.err != nil || !ok {
				return nil, s.err
			}
			if err := room(int64(len(turn))); err != nil {
				return nil, err
			}
			return []byte(turn), nil
		},
		Forget: func(_ context.Context, member fleet.MemberID, id string) (bool, error) {
			_, ok := s.turns[string(member)+id]
			delete(s.turns, string(member)+id)
			return ok && s.err == nil, s.err
		},
	}
}

// stateful returns a hosted configuration that stores turns, for two members.
func stateful(b Backend, s *shelf) Config {
	c := hostedConfig(b)
	c.Turns = s.kept()
	c.Identify = func(ctx context.Context, secret string) (fleet.Caller, error) {
		if secret == "kith_test_eve" {
			return fleet.Caller{Member: "mem_eve", Name: "eve", KeyID: "key_eve"}, nil
		}
		return keys(ctx, secret)
	}
	return c
}

// object is a response object as these tests read it.
type object struct {
	ID       string  `json:"id"`
	Status   string  `json:"status"`
	Store    bool    `json:"store"`
	Previous *string `json:"previous_response_id"`
	Output   []struct {
		ID      string `json:"id"`
		Content []struct {
			Text string `json:"text"`
		} `json:"content"`
	} `json:"output"`
}

// readObject reads a response object.
func readObject(t *testing.T, text string) object {
	t.Helper()
	var o object
	assert.OK(t, json.Unmarshal([]byte(text), &o), text)
	return o
}

func TestResponsesRefusals(t *testing.T) {
	c := stateful(answers(chatReply), newShelf())
	c.Limits.Body = 200
	h := New(c)
	for name, c := range map[string]struct {
		r      *http.Request
		status int
		code   fault.Code
		param  string
	}{
		"no key":           {ask("POST", "/v1/responses", responsesRequest, "Authorization", ""), 401, fault.InvalidAPIKey, ""},
		"x-api-key":        {ask("POST", "/v1/responses", responsesRequest, "Authorization", "", "X-Api-Key", goodKey), 401, fault.InvalidAPIKey, ""},
		"no key to get":    {ask("GET", "/v1/responses/resp_1", "", "Authorization", ""), 401, fault.InvalidAPIKey, ""},
		"method":           {ask("GET", "/v1/responses", ""), 405, fault.MethodNotAllowed, ""},
		"method of one":    {ask("POST", "/v1/responses/resp_1", "{}"), 405, fault.MethodNotAllowed, ""},
		"method of items":  {ask("DELETE", "/v1/responses/resp_1/input_items", ""), 405, fault.MethodNotAllowed, ""},
		"no such part":     {ask("GET", "/v1/responses/resp_1/output", ""), 404, fault.RouteNotFound, ""},
		"no id":            {ask("GET", "/v1/responses/", ""), 404, fault.RouteNotFound, ""},
		"no id for items":  {ask("GET", "/v1/responses//input_items", ""), 404, fault.RouteNotFound, ""},
		"v1 missing":       {ask("POST", "/responses", responsesRequest), 404, fault.RouteNotFound, ""},
		"too large":        {ask("POST", "/v1/responses", `{"model":"m","input":"`+strings.Repeat("x", 300)+`"}`), 413, fault.RequestTooLarge, ""},
		"broken JSON":      {ask("POST", "/v1/responses", `{"model":`), 400, fault.InvalidRequest, ""},
		"no input":         {ask("POST", "/v1/responses", chatRequest), 400, fault.InvalidRequest, "input"},
		"bad part":         {ask("POST", "/v1/responses", `{"model":"m","input":[{"role":"user","content":[{"type":"input_file"}]}]}`), 400, fault.InvalidRequest, "input.0"},
		"impossible model": {ask("POST", "/v1/responses", strings.Replace(responsesRequest, `"m"`, `"a\u0000b"`, 1)), 404, fault.ModelNotFound, "model"},
		"unknown previous": {ask("POST", "/v1/responses", `{"model":"m","input":"x","previous_response_id":"resp_1"}`), 400, fault.PreviousResponseNotFound, "previous_response_id"},
		"unknown item":     {ask("POST", "/v1/responses", `{"model":"m","input":[{"type":"item_reference","id":"msg_1_0"}]}`), 400, fault.PreviousResponseNotFound, "input.0.id"},
		"unknown":          {ask("GET", "/v1/responses/resp_1", ""), 400, fault.PreviousResponseNotFound, "response_id"},
		"unknown items":    {ask("GET", "/v1/responses/resp_1/input_items", ""), 400, fault.PreviousResponseNotFound, "response_id"},
		"unknown to drop":  {ask("DELETE", "/v1/responses/resp_1", ""), 400, fault.PreviousResponseNotFound, "response_id"},
		"streamed again":   {ask("GET", "/v1/responses/resp_1?stream=true", ""), 400, fault.InvalidRequest, "stream"},
		"limit":            {ask("GET", "/v1/responses/resp_1/input_items?limit=101", ""), 400, fault.InvalidRequest, "limit"},
		"order":            {ask("GET", "/v1/responses/resp_1/input_items?order=up", ""), 400, fault.InvalidRequest, "order"},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := do(h, c.r)
			got := checkFault(t, w, c.status, c.code)
			// The param is always a string if the path belongs to the route
			// (spec/api.md#error-param).
			if param := got.Error.Param; (param == nil) != (name == "v1 missing") || param != nil && *param != c.param {
				t.Errorf("%s", w.Body)
			}
		})
	}
	for code, status := range fault.Codes() {
		w, _ := do(New(hostedConfig(refuses(fault.New(code, "why").AfterWait()))), ask("POST", "/v1/responses", responsesRequest))
		if got := checkFault(t, w, status, code); got.Error.Reason != fault.WaitElapsed {
			t.Errorf("%s", w.Body)
		}
	}
}

// On the local surface only an upstream may serve the dialect: its answer is passed
// through, and nothing is stored.
func TestResponsesOnTheLocalSurface(t *testing.T) {
	called := false
	h := New(localConfig(&backend{do: func(_ context.Context, asked *Call) (*Answer, error) {
		endpoint, body := asked.Request()
		if text := textOf(body); endpoint != fleet.Responses || text != responsesRequest {
			t.Errorf("%s %s", endpoint, text)
		}
		called = true
		return nil, fault.New(fault.ModelNotFound, "nothing here serves it")
	}}))
	w, _ := do(h, ask("POST", "http://localhost:8701/v1/responses", responsesRequest))
	checkFault(t, w, 404, fault.ModelNotFound)
	assert.That(t, called, "nothing was asked")
	w, _ = do(h, ask("GET", "http://localhost:8701/v1/responses/resp_1", ""))
	checkFault(t, w, 404, fault.RouteNotFound)
}

// A machine gets chat, regardless of what else it claims to support: the hub keeps the
// state, not an engine.
func TestResponsesUnary(t *testing.T) {
	var out Outcome
	s := newShelf()
	c := stateful(&backend{do: func(_ context.Context, asked *Call) (*Answer, error) {
		asked.Trace.Route = "own; machine=box; owner=ann"
		{
			endpoint, body := asked.Request()
			if text := textOf(body); endpoint != fleet.ChatCompletions || text != `{"model":"m","messages":[{"role":"user","content":"canary"}]}` {
				t.Errorf("%s %s", endpoint, text)
			}
		}
		return answer(io.NopCloser(strings.NewReader(chatReply))), nil
	}}, s)
	c.Finished = func(_ *Call, o Outcome) { out = o }
	w, aborted := do(New(c), ask("POST", "/v1/responses", responsesRequest))
	got := readObject(t, w.Body.String())
	if w.Code != 200 || aborted || w.Header().Get("Content-Type") != "application/json" || w.Header().Get("X-Kith-Route") == "" ||
		got.Status != "completed" || !got.Store || got.Output[0].Content[0].Text != "Hello" || len(s.turns) != 1 {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	own := strings.TrimPrefix(got.ID, "resp_")
	if len(own) < 26 || got.Output[0].ID != "msg_"+own+"_0" || strings.Contains(w.Header().Get("X-Correlation-Id"), own) {
		t.Errorf("ids %s, %s", got.ID, got.Output[0].ID)
	}
	if out.TokensIn != 2 || out.TokensOut != 3 || !out.Reported || out.Status != 200 || out.Code != "" {
		t.Errorf("%+v", out)
	}
	again, _ := do(New(c), ask("POST", "/v1/responses", responsesRequest))
	assert.That(t, readObject(t, again.Body.String()).ID != got.ID, "two responses have one id")
	w, _ = do(New(hostedConfig(answers("<html>"))), ask("POST", "/v1/responses", responsesRequest))
	checkFault(t, w, 502, fault.EngineError)
}

func TestResponsesState(t *testing.T) {
	s := newShelf()
	var asked string
	var log bytes.Buffer
	c := stateful(&backend{do: func(_ context.Context, call *Call) (*Answer, error) {
		_, body := call.Request()
		asked = textOf(body)
		return answer(io.NopCloser(strings.NewReader(chatReply))), nil
	}}, s)
	c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	h := New(c)
	as := func(key string) []string { return []string{"Authorization", "", "Authorization", "Bearer " + key} }
	w, _ := do(h, ask("POST", "/v1/responses", responsesRequest))
	first := readObject(t, w.Body.String())
	told := w.Body.String()

	w, _ = do(h, ask("GET", "/v1/responses/"+first.ID, ""))
	assert.That(t, w.Code == 200 && w.Body.String() == told, w.Code, w.Body)
	w, _ = do(h, ask("GET", "/v1/responses/"+first.ID+"/input_items?order=asc&limit=1", ""))
	if w.Code != 200 || !strings.Contains(w.Body.String(), `"data":[{"id":"msg_`) || !strings.Contains(w.Body.String(), `"content":[{"type":"input_text","text":"canary"}]`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w, _ = do(h, ask("POST", "/v1/responses", `{"model":"m","instructions":"Be kind.","input":"again","previous_response_id":"`+first.ID+`"}`))
	second := readObject(t, w.Body.String())
	if second.Previous == nil || *second.Previous != first.ID ||
		asked != `{"model":"m","messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"canary"},{"role":"assistant","content":"Hello"},{"role":"user","content":"again"}]}` {
		t.Errorf("%s\n%s", w.Body, asked)
	}
	w, _ = do(h, ask("POST", "/v1/responses", `{"model":"m","input":[{"type":"item_reference","id":"`+second.Output[0].ID+`"},{"role":"user","content":"so"}]}`))
	if w.Code != 200 || asked != `{"model":"m","messages":[{"role":"assistant","content":"Hello"},{"role":"user","content":"so"}]}` {
		t.Errorf("%s\n%s", w.Body, asked)
	}

	// For another member none of it exists.
	for _, r := range []*http.Request{
		ask("GET", "/v1/responses/"+first.ID, "", as("kith_test_eve")...),
		ask("GET", "/v1/responses/"+first.ID+"/input_items", "", as("kith_test_eve")...),
		ask("DELETE", "/v1/responses/"+first.ID, "", as("kith_test_eve")...),
		ask("POST", "/v1/responses", `{"model":"m","input":"x","previous_response_id":"`+first.ID+`"}`, as("kith_test_eve")...),
		ask("POST", "/v1/responses", `{"model":"m","input":[{"type":"item_reference","id":"`+first.Output[0].ID+`"}]}`, as("kith_test_eve")...),
	} {
		w, _ := do(h, r)
		checkFault(t, w, 400, fault.PreviousResponseNotFound)
	}

	w, _ = do(h, ask("DELETE", "/v1/responses/"+first.ID, ""))
	if w.Code != 200 || w.Body.String() != `{"id":"`+first.ID+`","object":"response","deleted":true}` {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w, _ = do(h, ask("GET", "/v1/responses/"+first.ID, ""))
	checkFault(t, w, 400, fault.PreviousResponseNotFound)
	w, _ = do(h, ask("POST", "/v1/responses", `{"model":"m","input":"x","previous_response_id":"`+second.ID+`"}`))
	if w.Code != 200 || !strings.Contains(asked, "canary") {
		t.Errorf("a turn does not stand for itself: %d %s %s", w.Code, w.Body, asked)
	}

	// Neither ids nor content are in the log.
	do(h, ask("GET", "/responses/"+first.ID, ""))
	for _, secret := range []string{strings.TrimPrefix(first.ID, "resp_"), strings.TrimPrefix(second.ID, "resp_"), "canary", "again"} {
		assert.Lacks(t, log.String(), secret, "is in the log")
	}
	assert.Contains(t, log.String(), "/v1/responses/", "the log says nothing")
}

// An answer is sent whether or not its turn could be stored, and reports which.
func TestResponsesNotStored(t *testing.T) {
	broken := newShelf()
	broken.err = errors.New("the disk is full")
	unkept := stateful(answers(chatReply), newShelf())
	unkept.Turns = nil
	long := stateful(answers(chatReply), newShelf())
	long.Spool, _ = spool.Open("", spool.Limits{})
	for name, c := range map[string]struct {
		config  Config
		request io.Reader
	}{
		"store false":   {stateful(answers(chatReply), newShelf()), strings.NewReader(`{"model":"m","store":false,"input":"x"}`)},
		"cannot keep":   {stateful(answers(chatReply), broken), strings.NewReader(responsesRequest)},
		"nothing kept":  {unkept, strings.NewReader(responsesRequest)},
		"too much kept": {long, io.MultiReader(padded(`{"model":"m","input":"`, 17<<20), strings.NewReader(`"}`))},
	} {
		t.Run(name, func(t *testing.T) {
			r := ask("POST", "/v1/responses", "")
			r.Body, r.ContentLength = io.NopCloser(c.request), -1
			w, _ := do(New(c.config), r)
			got := readObject(t, w.Body.String())
			if w.Code != 200 || got.Status != "completed" || got.Store {
				t.Errorf("%d %.300s", w.Code, w.Body)
			}
			if name == "cannot keep" {
				broken.err = nil
			}
			w, _ = do(New(c.config), ask("GET", "/v1/responses/"+got.ID, ""))
			checkFault(t, w, 400, fault.PreviousResponseNotFound)
		})
	}
	away := newShelf()
	away.err = fault.New(fault.CascadeExhausted, "cannot look")
	w, _ := do(New(stateful(answers(chatReply), away)), ask("POST", "/v1/responses", `{"model":"m","input":"x","previous_response_id":"resp_1"}`))
	checkFault(t, w, 503, fault.CascadeExhausted)
}

// playResponses serves a streamed call of the dialect and returns the tape.
func playResponses(c Config) (w *tape, aborted bool) {
	w = newTape()
	return w, serveTo(New(c), w, ask("POST", "/v1/responses", responsesStream))
}

// Comments are sent while a call waits. The answer is translated as it arrives, and the
// turn is stored before the caller gets the end.
func TestResponsesStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines := []line{{time.Second, frame, nil}, {11 * time.Second, frame[:20], nil}, {time.Second, frame[20:] + done, io.EOF}}
		var out Outcome
		s := newShelf()
		c := stateful(sends(7*time.Second, lines...), s)
		c.Finished = func(_ *Call, o Outcome) { out = o }
		w, aborted := playResponses(c)
		var got []string
		for _, note := range w.notes {
			at, what, _ := strings.Cut(note, " ")
			for part := range strings.SplitSeq(strings.TrimSpace(what), "\n\n") {
				name, _, _ := strings.Cut(part, "\n")
				got = append(got, at+" "+strings.TrimPrefix(name, "event: response."))
			}
		}
		want := []string{
			"5 status 200", "5 : working", "5 flush",
			"8 : shared; machine=box; owner=ann", "8 created", "8 in_progress", "8 output_item.added", "8 content_part.added", "8 output_text.delta", "8 flush",
			"18 : working", "18 flush",
			"20 output_text.delta", "20 output_text.done", "20 content_part.done", "20 output_item.done", "20 flush", "20 completed", "20 data: [DONE]", "20 flush",
		}
		if aborted || strings.Join(got, "|") != strings.Join(want, "|") {
			t.Errorf("aborted %v\n%q\n%q", aborted, got, want)
		}
		if w.header.Get("Content-Type") != "text/event-stream" || strings.Contains(w.text.String(), "choices") || len(s.turns) != 1 || !strings.Contains(w.text.String(), `"store":true`) {
			t.Errorf("%v %s", w.header, w.text.String())
		}
		for _, turn := range s.turns {
			object, err := dialect.KeptResponse([]byte(turn))
			if err != nil || !strings.Contains(w.text.String(), `,"response":`+string(object)+"}\n\ndata: [DONE]\n\n") {
				t.Errorf("another response is kept than was told: %v %s", err, turn)
			}
		}
		assert.That(t, out.Code == "" && out.TokensOut == 2 && out.FirstByte == 8*time.Second, out)
	})
}

// A store that hangs delays an answer only for a moment.
func TestResponsesStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := stateful(sends(0, line{0, frame + done, io.EOF}), newShelf())
		c.Turns.Keep = func(ctx context.Context, _ fleet.MemberID, _ string, _ []byte) error {
			<-ctx.Done()
			return ctx.Err()
		}
		began := time.Now()
		w, aborted := playResponses(c)
		if took := time.Since(began); aborted || took != keepLimit || !strings.HasSuffix(w.text.String(), done) || !strings.Contains(w.text.String(), `"store":false`) {
			t.Errorf("%s, aborted %v: %s", took, aborted, w.text.String())
		}
	})
}

// A stream that fails ends with the error and the failed response, without an end mark,
// and its turn is not stored.
func TestResponsesStreamFails(t *testing.T) {
	for name, c := range brokenStreams() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShelf()
				w, aborted := playResponses(stateful(c.b, s))
				text := w.text.String()
				frames := strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n")
				if w.status != 200 || !aborted || len(frames) < 4 || strings.Contains(text, "[DONE]") || strings.Contains(text, "response.completed") || len(s.turns) > 0 {
					t.Fatalf("aborted %v, %d kept: %s", aborted, len(s.turns), text)
				}
				data, ok := strings.CutPrefix(frames[len(frames)-2], "event: error\ndata: ")
				var got struct {
					Code    string `json:"code"`
					Message string `json:"message"`
					told
				}
				if err := json.Unmarshal([]byte(data), &got); !ok || err != nil || got.Code != string(c.code) || got.Error.Code != got.Code || got.Error.Message != got.Message ||
					got.Error.CorrelationID != w.header.Get("X-Correlation-Id") || (got.Error.Details.Reason == fault.WaitElapsed) != (c.code == fault.CapacityFull) {
					t.Errorf("%v %s", err, data)
				}
				if last := frames[len(frames)-1]; !strings.HasPrefix(last, "event: response.failed\ndata: ") || !strings.Contains(last, `"status":"failed","completed_at":null,"error":{"code":"`+string(c.code)+`"`) {
					t.Errorf("%s", last)
				}
			})
		})
	}
}

// firstWrite calls seen before the first byte of an answer's body.
type firstWrite struct {
	*httptest.ResponseRecorder
	seen func()
}

func (w firstWrite) Write(p []byte) (int, error) {
	if w.Body.Len() == 0 {
		w.seen()
	}
	return w.ResponseRecorder.Write(p)
}

// Stored turns are counted for the member whose request reads them: a document made from
// one while the caller receives it, as an answer, and the turns that a call needs while
// it runs. If there is no memory, they are not read.
func TestTurnsAreCounted(t *testing.T) {
	const mib = 1 << 20
	room := assert.Value(spool.Open(t.TempDir(), spool.Limits{Member: 16 * mib}))(t)
	var held spool.Use
	c := stateful(&backend{do: func(context.Context, *Call) (*Answer, error) {
		held = room.Use()
		return answer(io.NopCloser(strings.NewReader(chatReply))), nil
	}}, newShelf())
	c.Spool = room
	h := New(c)
	w, _ := do(h, ask("POST", "/v1/responses", `{"model":"m","input":"`+strings.Repeat("a", 3*mib)+`"}`))
	first := readObject(t, w.Body.String())
	next := `{"model":"m","store":false,"input":"x","previous_response_id":"` + first.ID + `"}`
	items := "/v1/responses/" + first.ID + "/input_items"

	read := firstWrite{httptest.NewRecorder(), func() { held = room.Use() }}
	h.ServeHTTP(read, ask("GET", items, ""))
	if read.Code != 200 || read.Body.Len() < 3*mib || held.Memory+held.Disk < 3*mib || held.Memory+held.Disk > 4*mib {
		t.Errorf("%d, %d bytes: held %+v", read.Code, read.Body.Len(), held)
	}
	w, _ = do(h, ask("POST", "/v1/responses", next))
	if w.Code != 200 || held.Memory < 3*mib || held.Memory > 8*mib {
		t.Errorf("a call after it: %d, held %+v", w.Code, held)
	}

	other := assert.Value(room.Keep(spool.Holder{Member: "mem_1"}, make([]byte, 6*mib)))(t)
	for name, r := range map[string]*http.Request{
		"items": ask("GET", items, ""), "response": ask("GET", "/v1/responses/"+first.ID, ""), "call": ask("POST", "/v1/responses", next),
	} {
		w, _ := do(h, r)
		if w.Code != 503 || !strings.Contains(w.Body.String(), string(fault.CapacityFull)) || w.Header().Get("Retry-After") == "" {
			t.Errorf("%s without room: %d, %d bytes", name, w.Code, w.Body.Len())
		}
	}
	other.Close()
	if held := room.Use(); held.Memory != 0 || held.Disk != 0 {
		t.Errorf("still held: %+v", held)
	}
}
