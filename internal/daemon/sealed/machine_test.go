package sealed

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/json/v2"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/seal"
	"github.com/kith/kith/internal/tunnel"
)

func newMachine(t testing.TB) *Machine {
	t.Helper()
	m := NewMachine(assert.Value(OpenKeyring(t.TempDir(), "https://hub.example", "ada"))(t), "m_1")
	assert.OK(t, assert.Err(m.Turn(time.Now())))
	return m
}

// sealFor seals a call for a machine as its statement is now.
func (m *Machine) sealFor(t testing.TB, head seal.Head, body seal.Body) (http.Header, []byte, *seal.Call) {
	t.Helper()
	rand.Read(head.Call[:])
	s := assert.Value(seal.ParseStatement(assert.Value(m.Seal())(t).Statement))(t)
	call := assert.Value(seal.Seal(head, []byte("{}"), []*seal.Sender{assert.Value(seal.NewSender(s))(t)}, body))(t)
	r := call.Request
	h, routing := int(binary.BigEndian.Uint16(r[6:])), int(binary.BigEndian.Uint16(r[8:]))
	rest := r[11+h+routing:]
	return http.Header{
		tunnel.HeaderSealed: {base64.StdEncoding.EncodeToString(r[11 : 11+h])},
		tunnel.HeaderModel:  {tunnel.EscapeModel(head.Model)},
		tunnel.HeaderSealKey: {base64.StdEncoding.EncodeToString(s.KeyID[:]) + " " +
			base64.StdEncoding.EncodeToString(rest[:seal.RecipientKeySize])},
	}, rest[seal.RecipientKeySize:], call
}

var chatHead = seal.Head{Endpoint: "/v1/chat/completions", Model: "m", Stream: true, Choices: 1}

const chatText = `{"model":"m","stream":true,"messages":[]}`

func (m *Machine) opened(h http.Header, body []byte) (*Call, tunnel.Refusal, error) {
	r, refusal, err := m.Receive(h)
	if r == nil {
		return nil, refusal, err
	}
	return m.Open(r, slices.Clone(body))
}

// A prekey is the newest one for an hour, opens calls for another one, and is gone then,
// also if no timer ran.
func TestTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		first := m.Seals()
		h, body, _ := m.sealFor(t, chatHead, seal.Body{Text: []byte(chatText)})
		changed, err := m.Turn(time.Now())
		assert.That(t, len(first) == 1 && !changed && err == nil)
		time.Sleep(time.Hour)
		changed, err = m.Turn(time.Now())
		ids := m.Seals()
		assert.That(t, changed && err == nil && len(ids) == 2 && ids[1] == first[0] && ids[0] != ids[1], ids)
		_, refusal, err := m.opened(h, body)
		assert.That(t, refusal == "" && err == nil, refusal, err)
		slow, slowBody, _ := m.sealFor(t, chatHead, seal.Body{Text: []byte(chatText)})
		received, _, err := m.Receive(slow)
		assert.OK(t, err)
		time.Sleep(time.Hour)
		_, refusal, err = m.opened(h, body)
		assert.That(t, refusal == tunnel.RefusedStaleKey && err == nil, "after two hours", refusal, err)
		time.Sleep(time.Hour)
		_, refusal, err = m.Open(received, slowBody)
		assert.That(t, refusal == tunnel.RefusedStaleKey && err == nil, "its body came after two hours", refusal, err)
		s, err := m.Seal()
		assert.That(t, err == nil && s.Statement == nil, "a statement of a key that is too old")
		assert.OK(t, assert.Err(m.Turn(time.Now())))
		assert.Equal(t, len(m.Seals()), 1)

		// A clock that was set back makes no key older than it may get.
		now := time.Now()
		last := m.Seals()
		changed, err = m.Turn(now.Add(-time.Hour))
		assert.That(t, changed && err == nil && len(m.Seals()) == 2 && m.Seals()[1] == last[0], m.Seals())
		changed, err = m.Turn(now.Add(-2 * time.Hour))
		assert.That(t, changed && err == nil && len(m.Seals()) == 2 && !slices.Contains(m.Seals(), last[0]), m.Seals())
	})
}

// A call opens once, for the model that the hub routed it for, and as it was sealed.
func TestOpen(t *testing.T) {
	m := newMachine(t)
	h, body, _ := m.sealFor(t, chatHead, seal.Body{Text: []byte(chatText), Owner: m.keys.owner(), Cache: [16]byte{7}})
	second, _, err := m.Receive(h)
	assert.OK(t, err)
	call, refusal, err := m.opened(h, body)
	assert.Require(t, refusal == "" && err == nil, refusal, err)
	assert.That(t, call.Model == "m" && call.Stream && call.Own && call.Cache == [16]byte{7} && string(call.Text) == chatText)
	assert.OK(t, call.Check())
	_, refusal, err = m.Receive(h)
	assert.That(t, refusal == tunnel.RefusedRepeated && err == nil, "a replay", refusal, err)
	_, refusal, err = m.Open(second, slices.Clone(body))
	assert.That(t, refusal == tunnel.RefusedRepeated && err == nil, "a replay at the same time", refusal, err)

	for name, change := range map[string]func(http.Header, []byte){
		"another model": func(h http.Header, _ []byte) { h.Set(tunnel.HeaderModel, "other") },
		"no head":       func(h http.Header, _ []byte) { h.Del(tunnel.HeaderSealed) },
		"no key":        func(h http.Header, _ []byte) { h.Del(tunnel.HeaderSealKey) },
		"a short key":   func(h http.Header, _ []byte) { h.Set(tunnel.HeaderSealKey, h.Get(tunnel.HeaderSealKey)[:80]) },
		"a long key id": func(h http.Header, _ []byte) {
			id, key, _ := strings.Cut(h.Get(tunnel.HeaderSealKey), " ")
			b, _ := base64.StdEncoding.DecodeString(id)
			h.Set(tunnel.HeaderSealKey, base64.StdEncoding.EncodeToString(append(b, 0))+" "+key)
		},
		"a changed body":   func(_ http.Header, b []byte) { b[len(b)/2] ^= 1 },
		"another endpoint": rehead(func(h *seal.Head) { h.Endpoint = "/v1/embeddings" }),
		"no stream":        rehead(func(h *seal.Head) { h.Stream = false }),
		"more answers":     rehead(func(h *seal.Head) { h.Choices = 4 }),
		"an odd endpoint":  rehead(func(h *seal.Head) { h.Endpoint = "/v1/messages" }),
		"another call":     rehead(func(h *seal.Head) { h.Call[0]++ }),
	} {
		h, body, _ := m.sealFor(t, chatHead, seal.Body{Text: []byte(chatText)})
		change(h, body)
		call, refusal, err := m.opened(h, body)
		assert.That(t, call == nil && refusal == "" && err != nil, name, refusal, err)
	}
	for _, endpoint := range []string{"/v1/messages", "/v1/audio/transcriptions", "/v1/nothing", ""} {
		head := chatHead
		head.Endpoint = endpoint
		h, _, _ := m.sealFor(t, head, seal.Body{Text: []byte(chatText)})
		_, _, err := m.Receive(h)
		assert.Equal(t, err, errHead, endpoint)
	}
	for name, text := range map[string]string{
		"another model": `{"model":"x","stream":true,"messages":[]}`, "no stream": `{"model":"m","messages":[]}`,
		"more answers": `{"model":"m","stream":true,"n":2,"messages":[]}`, "no JSON": "hello", "twice": `{"model":"m","model":"m","stream":true}`,
	} {
		h, body, _ := m.sealFor(t, chatHead, seal.Body{Text: []byte(text)})
		call, refusal, err := m.opened(h, body)
		assert.That(t, refusal == "" && err == nil, refusal, err)
		assert.That(t, call.Check() != nil && !call.Own, name)
	}
}

// What a member writes into the head of a call does not get into the log of a machine.
func TestHeadText(t *testing.T) {
	m := newMachine(t)
	for _, text := range []string{"{\"v\":1,\"run kith trust remove ada\":1}", `{"v":7}`, `"`} {
		_, _, err := m.Receive(http.Header{tunnel.HeaderSealed: {base64.StdEncoding.EncodeToString([]byte(text))}})
		assert.Equal(t, err, errHead)
	}
}

// Whatever the hub sends as a call, it is refused, or it is the one that was sealed.
func FuzzReceive(f *testing.F) {
	m := newMachine(f)
	h, body, _ := m.sealFor(f, chatHead, seal.Body{Text: []byte(chatText)})
	f.Add(h.Get(tunnel.HeaderSealed), h.Get(tunnel.HeaderModel), h.Get(tunnel.HeaderSealKey), body)
	f.Fuzz(func(t *testing.T, head, model, key string, body []byte) {
		h := http.Header{tunnel.HeaderSealed: {head}, tunnel.HeaderModel: {model}, tunnel.HeaderSealKey: {key}}
		r, refusal, err := m.Receive(h)
		assert.That(t, (r != nil) != (refusal != "" || err != nil) && (refusal == "" || err == nil), refusal, err)
		if r == nil {
			return
		}
		call, refusal, err := m.Open(r, slices.Clone(body))
		assert.That(t, call == nil && refusal == "" && err != nil || string(call.Text) == chatText && call.Check() == nil, refusal, err)
		if call != nil {
			m.unopened(r)
		}
	})
}

// rehead changes the head as a hub would.
func rehead(change func(*seal.Head)) func(http.Header, []byte) {
	return func(h http.Header, _ []byte) {
		text, _ := base64.StdEncoding.DecodeString(h.Get(tunnel.HeaderSealed))
		head, _ := seal.ParseHead(text)
		change(&head)
		text, _ = json.Marshal(head)
		h.Set(tunnel.HeaderSealed, base64.StdEncoding.EncodeToString(text))
	}
}

// A prekey that has opened too many calls is replaced.
func TestManyCalls(t *testing.T) {
	m := newMachine(t)
	h, body, _ := m.sealFor(t, chatHead, seal.Body{Text: []byte(chatText)})
	for i := range maxOpened {
		m.prekeys[0].opened[[16]byte{byte(i), byte(i >> 8), byte(i >> 16), 1}] = struct{}{}
	}
	_, refusal, err := m.opened(h, body)
	assert.That(t, refusal == tunnel.RefusedStaleKey && err == nil, refusal, err)
	changed, err := m.Turn(time.Now())
	assert.That(t, changed && err == nil && len(m.Seals()) == 2)
	m.prekeys[0].opened = m.prekeys[1].opened
	changed, err = m.Turn(time.Now())
	assert.That(t, changed && err == nil && len(m.Seals()) == 2, "a third key", m.Seals())
	for i := range maxContexts {
		m.prekeys[0].receivers[fmt.Sprint(i)] = nil
	}
	h, body, _ = m.sealFor(t, chatHead, seal.Body{Text: []byte(chatText)})
	_, refusal, err = m.opened(h, body)
	assert.That(t, refusal == "" && err == nil && len(m.prekeys[0].receivers) == 1, refusal, err)
}

// Each flush is one chunk, and what an engine says is never in clear.
func TestAnswer(t *testing.T) {
	m := newMachine(t)
	answered := func(stream bool, write func(*Answer)) (*http.Response, string, *seal.Call) {
		head := chatHead
		head.Stream = stream
		h, body, sealed := m.sealFor(t, head, seal.Body{Text: []byte(chatText)})
		call, _, err := m.opened(h, body)
		assert.OK(t, err)
		w := httptest.NewRecorder()
		a := call.Answer(w, "req_1")
		write(a)
		assert.OK(t, a.Close())
		resp := w.Result()
		return resp, string(assert.Value(io.ReadAll(resp.Body))(t)), sealed
	}
	resp, text, call := answered(true, func(a *Answer) {
		a.Header().Set("Content-Length", "1")
		a.WriteHeader(200)
		for _, part := range []string{"one", "two"} {
			io.WriteString(a, part)
			assert.OK(t, http.NewResponseController(a).Flush())
		}
		io.WriteString(a, "three\n\ndata: [DO")
		io.WriteString(a, "NE]\n\n")
		a.Header().Set("Kith-Usage", "3 5")
		a.Header().Set("Kith-Cached", "2")
	})
	frames := strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n")
	assert.Require(t, len(frames) == 6 && frames[5] == "data: [DONE]" && resp.Header.Get("Content-Length") == "", text)
	decode := func(i int) []byte {
		return assert.Value(base64.StdEncoding.DecodeString(strings.TrimPrefix(frames[i], "data: ")))(t)
	}
	opener := assert.Value(call.Answer(decode(0)))(t)
	for i, want := range []string{"one", "two", "three\n\ndata: [DONE]\n\n", "3 5 2"} {
		got, err := opener.Chunk(decode(i + 1))
		assert.That(t, string(got) == want && (err == io.EOF) == (i == 3), string(got), err)
	}

	// The hub records an engine's stream without an end mark as incomplete.
	_, text, _ = answered(true, func(a *Answer) { io.WriteString(a, "data: {}\n\n") })
	assert.That(t, !strings.Contains(text, "[DONE]") && strings.Count(text, "data: ") == 3, text)

	const usage = `{"id":"1","usage":{"prompt_tokens":3,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":2}}}`
	resp, text, call = answered(false, func(a *Answer) {
		a.Header().Set("Content-Length", "9")
		io.WriteString(a, usage)
	})
	in := &incoming{sealed: call}
	got, err := in.openAll([]byte(text))
	assert.That(t, err == nil && string(got) == usage && resp.Header.Get("Content-Type") == "application/octet-stream", err)
	assert.That(t, resp.Trailer.Get("Kith-Usage") == "3 5" && resp.Trailer.Get("Kith-Cached") == "2", resp.Trailer)

	// An answer that the hub would refuse is an error to the hub, too.
	resp, text, _ = answered(false, func(a *Answer) { io.WriteString(a, `{"error":{"message":"what is 7+5?"}}`) })
	assert.That(t, resp.StatusCode == 502 && resp.Header.Get(tunnel.HeaderFault) == "engine_error" && !strings.Contains(text, "7+5"), resp.StatusCode, resp.Header)

	for _, c := range []struct {
		status      int
		text        string
		want        int
		code, holds string
	}{
		{400, `{"error":{"message":"what is 7+5?"}}`, 400, "invalid_request", "7+5"},
		{500, `{"error":{"message":"what is 7+5?"}}`, 502, "engine_error", "7+5"},
		{413, "", 413, "request_too_large", "too large"},
		{503, "what is 7+5?", 503, "", ""},
		{404, "what is 7+5?", 404, "", ""},
	} {
		resp, text, call := answered(true, func(a *Answer) {
			a.WriteHeader(c.status)
			io.WriteString(a, c.text)
		})
		assert.That(t, resp.StatusCode == c.want && resp.Header.Get(tunnel.HeaderFault) == c.code, c.status, resp.StatusCode, resp.Header)
		assert.Lacks(t, text, "7+5")
		if c.code == "" {
			assert.Equal(t, text, "")
			continue
		}
		document, err := (&incoming{sealed: call}).openAll([]byte(text))
		assert.That(t, err == nil && bytes.Contains(document, []byte(c.holds)), string(document), err)
		assert.Equal(t, string(machineFault(document).Code), c.code)
	}
}

// A call that did not run may be sent again; one that was answered may not.
func TestNotRun(t *testing.T) {
	m := newMachine(t)
	h, body, _ := m.sealFor(t, chatHead, seal.Body{Text: []byte(chatText)})
	for _, status := range []int{503, 0, 400} {
		call, refusal, err := m.opened(h, body)
		assert.Require(t, refusal == "" && err == nil, refusal, err)
		a := call.Answer(httptest.NewRecorder(), "")
		if status != 0 { // else the hub cancelled it
			a.WriteHeader(status)
			assert.OK(t, a.Close())
		}
		a.End()
	}
	_, refusal, _ := m.opened(h, body)
	assert.Equal(t, refusal, tunnel.RefusedRepeated)

	h, body, _ = m.sealFor(t, chatHead, seal.Body{Text: []byte(chatText)})
	call, _, err := m.opened(h, body)
	assert.OK(t, err)
	cut := call.Answer(httptest.NewRecorder(), "") // a stream that began, and was cut
	cut.WriteHeader(200)
	cut.End()
	_, refusal, _ = m.opened(h, body)
	assert.Equal(t, refusal, tunnel.RefusedRepeated)
}

// The beginning of an answer is not an answer.
func TestNotTheEnd(t *testing.T) {
	m := newMachine(t)
	h, body, sealed := m.sealFor(t, chatHead, seal.Body{Text: []byte(chatText)})
	call, _, err := m.opened(h, body)
	assert.OK(t, err)
	text, err := (&incoming{sealed: sealed}).openAll(append(call.answer.Head(), call.answer.Chunk([]byte("Hello"), false)...))
	assert.That(t, text == nil && err == seal.ErrOpen, text, err)
}

// A call of embeddings is checked as one, and is never streamed.
func TestEmbeddings(t *testing.T) {
	m := newMachine(t)
	for text, ok := range map[string]bool{
		`{"model":"m","input":"a"}`: true, `{"model":"m","input":"a","stream":true}`: true, `{"model":"x","input":"a"}`: false, `{"model":"m"}`: false,
	} {
		h, body, _ := m.sealFor(t, seal.Head{Endpoint: "/v1/embeddings", Model: "m"}, seal.Body{Text: []byte(text)})
		call, _, err := m.opened(h, body)
		assert.OK(t, err)
		assert.Equal(t, call.Check() == nil, ok, text)
	}
}

// A machine seals an error of any code, and only those that an engine can cause are passed.
func TestMachineFault(t *testing.T) {
	for document, want := range map[string]string{
		`{"error":{"code":"invalid_request","message":"a\u001b[31m\nb","param":"x"}}`:       "invalid_request a [31m b",
		`{"error":{"code":"NOT_IN_CIRCLE","message":"no"}}`:                                 "engine_error no",
		`{"error":{"code":"CAPACITY_FULL","message":"no","reason":"wait_elapsed"}}`:         "engine_error no",
		`{"error":{"code":"invalid_request","message":"` + strings.Repeat("x", 999) + `"}}`: "invalid_request " + strings.Repeat("x", maxFaultText) + "…",
		`hello`: "engine_error the machine refused the request and its error cannot be read",
	} {
		f := machineFault([]byte(document))
		assert.That(t, string(f.Code)+" "+f.Message == want && f.Reason == "" && f.Sealed == "", f.Code, f.Message)
	}
}
