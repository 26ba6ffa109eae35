package daemon

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json/v2"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/daemon/sealed"
	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/seal"
	"github.com/kith/kith/internal/tunnel"
)

// What the prompts and answers of these tests have, and no hub may see.
const secretPrompt, secretAnswer = "prompt-of-zebra-7391", "answer-of-walrus-5520"

func secretChat(stream bool) string {
	return strings.Replace(chat(stream), "one two three", "What is "+secretPrompt+"?", 1)
}

// sealHub is a hub that passes sealed calls on to one machine, and lies on demand. It
// records every byte to and from it.
type sealHub struct {
	*fakeHub
	machine *rig
	engine  *enginetest.Engine
	link    *link

	mu    sync.Mutex
	seen  bytes.Buffer
	calls []*sealedCall // posted
	// The lies; nil: none.
	list    func(*fleet.SealList)
	request func(*sealedCall)
	answer  func([]byte) []byte
	instead http.HandlerFunc
	noList  bool
	trailer http.Header // of the last answer
	// double answers in place of the machine's daemon, in chunks that do not depend on time.
	double *sealed.Machine
}

// answerOf is how the double answers a call.
func answerOf(t *testing.T, m *sealed.Machine, c *sealedCall) *http.Response {
	t.Helper()
	w := httptest.NewRecorder()
	h := http.Header{}
	for i, header := 0, c.header(0); i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	received, _, err := m.Receive(h)
	assert.OK(t, err)
	call, _, err := m.Open(received, c.body)
	assert.OK(t, err)
	a := call.Answer(w, "req_1")
	if !call.Stream {
		io.WriteString(a, `{"id":"1","object":"chat.completion","choices":[{"message":{"content":"`+secretAnswer+`"}}]}`)
	} else {
		for _, word := range []string{"It", "is", secretAnswer, "."} {
			io.WriteString(a, `data: {"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"`+word+`"}}]}`+"\n\n")
			assert.OK(t, a.FlushError())
		}
		io.WriteString(a, done)
	}
	assert.OK(t, a.Close())
	return w.Result()
}

// sealedCall is a sealed call as the hub has it.
type sealedCall struct {
	head, keys, body []byte
	model            string // in the header
	routing          gateway.Routing
}

func (c *sealedCall) header(i int) []string {
	key := c.keys[i*seal.RecipientKeySize : (i+1)*seal.RecipientKeySize]
	return []string{
		tunnel.HeaderSealed, base64.StdEncoding.EncodeToString(c.head), tunnel.HeaderModel, tunnel.EscapeModel(c.model),
		tunnel.HeaderSealKey, base64.StdEncoding.EncodeToString(c.routing.To[i].Key[:]) + " " + base64.StdEncoding.EncodeToString(key),
	}
}

// recorded records what passes over its connections.
type recorded struct {
	net.Listener
	hub *sealHub
}

func (l recorded) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return recordedConn{c, l.hub}, err
}

type recordedConn struct {
	net.Conn
	hub *sealHub
}

func (c recordedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.hub.record(p[:n])
	return n, err
}

func (c recordedConn) Write(p []byte) (int, error) {
	c.hub.record(p)
	return c.Conn.Write(p)
}

func (h *sealHub) record(p []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen.Write(p)
}

// hid fails the test if the hub has seen anything of a prompt or an answer.
func (h *sealHub) hid() {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	assert.Require(h.t, h.seen.Len() > 1000, "nothing was recorded")
	for _, secret := range []string{secretPrompt, secretAnswer} {
		forms := [][]byte{[]byte(secret)}
		for phase := range 3 {
			text := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", phase) + secret))
			forms = append(forms, []byte(text[4:len(text)-4]))
		}
		for i, form := range forms {
			assert.That(h.t, !bytes.Contains(h.seen.Bytes(), form), "the hub saw", secret, "in form", i)
		}
	}
}

// hubID is the hub's correlation id of each call.
const hubID = "req_of_the_hub"

// newSealHub is such a hub with a machine of ada's.
func newSealHub(t *testing.T, mode sealed.Mode) *sealHub {
	t.Helper()
	h := &sealHub{engine: enginetest.New(enginetest.LlamaCpp, enginetest.Options{
		Models: []enginetest.Model{{ID: "test-model", ContextLength: 1 << 20}, {ID: "vectors", Embeddings: true}},
	})}
	h.engine.Set(enginetest.Behaviour{Text: "It is " + secretAnswer + " ."})
	h.fakeHub = newHubWith(t, func(mux *http.ServeMux, server *httptest.Server) {
		server.Listener = recorded{server.Listener, h}
		mux.HandleFunc("GET /api/seals", h.serveList)
		mux.HandleFunc("POST /v1/sealed", h.serveSealed)
	})
	home := shortHome(t)
	h.signIn(home)
	h.machine = run(t, Config{Home: home, Sealed: mode}, h.engine)
	h.link = h.connected()
	return h
}

// caller is a daemon of bob's without engines.
func (h *sealHub) caller(mode sealed.Mode) *rig {
	h.t.Helper()
	home := shortHome(h.t)
	h.signInAs(home, "mch_2", "bob")
	r := run(h.t, Config{Home: home, Unshared: true, Sealed: mode})
	r.await("signed in", func(s Status) bool { return s.Tunnel.SignedIn })
	return r
}

// lies replaces what the hub does.
func (h *sealHub) lies(set func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list, h.request, h.answer, h.instead, h.noList, h.calls, h.double = nil, nil, nil, nil, false, nil, nil
	set()
}

func (h *sealHub) lastTrailer() http.Header {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.trailer
}

func (h *sealHub) posted() []*sealedCall {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls)
}

func (h *sealHub) serveList(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	change, missing, double := h.list, h.noList, h.double
	h.mu.Unlock()
	if missing {
		refuseWith(404, `{"error":{"code":"route_not_found","message":"no such path"}}`)(w, r)
		return
	}
	list := fleet.SealList{Now: time.Now(), Machines: []fleet.SealMachine{{
		ID: "mch_1", Name: "attic", Owner: "mem_ada", OwnerName: "ada", Class: "shared", State: "ready", Keys: h.link.ad.Seals,
	}}}
	if s, err := tunnel.FetchSeal(r.Context(), h.link); err == nil {
		list.Machines[0].Statement = s.Statement
	}
	if double != nil {
		list.Machines[0].Statement = assert.Value(double.Seal())(h.t).Statement
	}
	if change != nil {
		change(&list)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.MarshalWrite(w, list)
}

func (h *sealHub) serveSealed(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Correlation-ID", hubID)
	call := &sealedCall{}
	all, _ := io.ReadAll(r.Body)
	head, routing, n := int(binary.BigEndian.Uint16(all[6:])), int(binary.BigEndian.Uint16(all[8:])), int(all[10])
	rest := all[11:]
	call.head, rest = rest[:head], rest[head:]
	assert.OK(h.t, json.Unmarshal(rest[:routing], &call.routing))
	rest = rest[routing:]
	call.keys, call.body = rest[:n*seal.RecipientKeySize], rest[n*seal.RecipientKeySize:]
	parsed := assert.Value(seal.ParseHead(call.head))(h.t)
	call.model = parsed.Model
	h.mu.Lock()
	h.calls, h.asked = append(h.calls, call), append(h.asked, r)
	request, answer, instead, double := h.request, h.answer, h.instead, h.double
	h.mu.Unlock()
	if instead != nil {
		instead(w, r)
		return
	}
	if request != nil {
		request(call)
	}
	if double != nil {
		h.passOn(w, answerOf(h.t, double, call), parsed.Stream, answer)
		return
	}
	resp, err := h.link.call(r.Context(), tunnel.PathSealed, string(call.body), call.header(0)...)
	if err != nil {
		refuseWith(503, `{"error":{"code":"machine_offline","message":"gone"}}`)(w, r)
		return
	}
	defer resp.Body.Close()
	h.passOn(w, resp, parsed.Stream, answer)
}

// passOn passes a machine's answer on as a hub does.
func (h *sealHub) passOn(w http.ResponseWriter, resp *http.Response, stream bool, change func([]byte) []byte) {
	body, _ := io.ReadAll(resp.Body)
	h.mu.Lock()
	h.trailer = resp.Trailer
	h.mu.Unlock()
	if change != nil {
		body = change(body)
	}
	switch code := fault.Code(resp.Header.Get(tunnel.HeaderFault)); {
	case code != "":
		f := fault.New(code, "only the daemon that sealed it can read why").WithSealed(base64.StdEncoding.EncodeToString(body))
		w.WriteHeader(f.Status())
		_, _ = w.Write(dialect.FaultBody(dialect.Chat, f, "req_1"))
		return
	case resp.Header.Get(tunnel.HeaderRefused) == string(tunnel.RefusedStaleKey):
		refuseWith(412, `{"error":{"code":"stale_seal","message":"seal it again"}}`)(w, nil)
		return
	case resp.StatusCode != 200:
		refuseWith(503, `{"error":{"code":"CAPACITY_FULL","message":"all busy"}}`)(w, nil)
		return
	}
	w.Header().Set("X-Kith-Route", "shared; machine=attic; owner=ada")
	w.Header().Set("Content-Type", "application/octet-stream")
	if stream {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, ": waiting 2 ahead, 41 s left\n\n")
		w.(http.Flusher).Flush()
	}
	_, _ = w.Write(body)
}

// Calls of each dialect are served by another machine, and the hub sees nothing of them.
func TestSealedCalls(t *testing.T) {
	h := newSealHub(t, sealed.Prefer)
	assert.Equal(t, len(h.link.ad.Seals), 1)
	r := h.caller(sealed.Prefer)
	for name, c := range map[string]struct{ path, body, want string }{
		"chat":               {"/v1/chat/completions", secretChat(false), secretAnswer},
		"chat, streamed":     {"/v1/chat/completions", secretChat(true), secretAnswer},
		"messages":           {"/v1/messages", strings.Replace(claude("test-model", false), "one two three", secretPrompt, 1), `"type":"message"`},
		"messages, streamed": {"/v1/messages", strings.Replace(claude("test-model", true), "one two three", secretPrompt, 1), "event: message_stop\n"},
		"embeddings":         {"/v1/embeddings", `{"model":"vectors","input":"` + secretPrompt + `"}`, `"embedding"`},
		"a large prompt":     {"/v1/chat/completions", strings.Replace(secretChat(false), secretPrompt, secretPrompt+strings.Repeat(" more", 400_000), 1), secretAnswer},
	} {
		resp := r.post(c.path, c.body)
		text := read(t, resp.Body)
		assert.Require(t, resp.StatusCode == 200 && strings.Contains(text, c.want), name, resp.StatusCode, text)
		assert.That(t, resp.Header.Get("X-Kith-Sealed") == "yes" && resp.Header.Get("X-Kith-Route") == "shared; machine=attic; owner=ada", name, resp.Header)
		assert.Lacks(t, text, "waiting", "a comment of the hub", text)
		assert.Contains(t, string(h.engine.Last().Body), secretPrompt, name)
		trailer := h.lastTrailer()
		usage, reported := dialect.ParseTrailer(trailer.Get(dialect.UsageTrailer), trailer.Get(dialect.CachedTrailer))
		assert.That(t, reported && usage.In > 0, name, trailer)
	}
	// The engine's counts come with the answer: one that read a part of the conversation is named.
	resp := r.post("/v1/chat/completions", strings.Replace(secretChat(true), secretPrompt, secretPrompt+strings.Repeat("x", 5000), 1))
	assert.Contains(t, read(t, resp.Body), "; the engine read only a part of the conversation\n\n")
	h.hid()
	call := h.posted()[0]
	assert.That(t, len(call.routing.To) == 1 && call.routing.To[0].Machine == "mch_1" && call.routing.To[0].Key == h.link.ad.Seals[0], call.routing)
	for _, call := range h.posted() {
		if bytes.Contains(call.head, []byte("chat")) {
			assert.That(t, call.routing.Prompt >= 256 && call.routing.Prompt%256 == 0 && len(call.routing.Marks) >= 10, call.routing)
		}
	}
	_, local := h.machine.admission.running("")
	assert.Equal(t, local, 0)

	// A new tunnel of the same login keeps the keys: calls on their way are not lost.
	key := h.link.ad.Seals[0]
	h.machine.reconnect()
	h.link = h.connected()
	assert.Equal(t, h.link.ad.Seals[0], key)

	// The first key seen is kept, and the words of its owner confirm it.
	keys := assert.Value(r.Sealing())(t)
	theirs := assert.Value(h.machine.Sealing())(t)
	assert.OK(t, keys.ConfirmWords("ada", theirs.Words()))
	c := r.config
	c.Sealed = sealed.Require
	assert.OK(t, r.Reload(t.Context(), c))
	resp = r.post("/v1/chat/completions", secretChat(false))
	assert.That(t, strings.Contains(read(t, resp.Body), secretAnswer) && resp.Header.Get("X-Kith-Sealed") == "yes", resp.StatusCode)
	h.hid()
}

// An engine's error quotes the prompt: its text reaches the caller alone.
func TestSealedEngineError(t *testing.T) {
	h := newSealHub(t, sealed.Prefer)
	r := h.caller(sealed.Prefer)
	h.engine.Set(enginetest.Behaviour{Status: 400, Answer: `{"error":{"message":"I cannot read ` + secretAnswer + `"}}`})
	for _, stream := range []bool{false, true} {
		resp := r.post("/v1/chat/completions", secretChat(stream))
		got := faultIn(t, resp)
		assert.That(t, got.Code == "invalid_request" && got.Status == 400 && strings.Contains(got.Message, secretAnswer), got)
		assert.Equal(t, resp.Header.Get("X-Kith-Sealed"), "yes")
	}
	h.engine.Set(enginetest.Behaviour{Status: 503})
	assert.Equal(t, faultIn(t, r.post("/v1/chat/completions", secretChat(true))).Code, "CAPACITY_FULL")
	h.engine.Set(enginetest.Behaviour{Text: secretAnswer + " " + secretAnswer, Fault: enginetest.Garbage, After: 1})
	text, _ := io.ReadAll(r.post("/v1/chat/completions", secretChat(true)).Body)
	assert.That(t, bytes.Contains(text, []byte(`"code":"engine_error"`)) && !bytes.Contains(text, []byte("[DONE]")), string(text))
	h.hid()
}

// frames splits a sealed stream.
func frames(body []byte) [][]byte {
	return bytes.SplitAfter(bytes.TrimSuffix(body, []byte("\n\n")), []byte("\n\n"))
}

func joinFrames(all ...[]byte) []byte {
	var out []byte
	for _, f := range all {
		out = append(append(out, bytes.TrimSuffix(f, []byte("\n\n"))...), "\n\n"...)
	}
	return out
}

// flip changes one bit of the last byte of a frame's content.
func flip(frame []byte) []byte {
	text := strings.TrimPrefix(strings.TrimSpace(string(frame)), "data: ")
	b, _ := base64.StdEncoding.DecodeString(text)
	b[len(b)-1] ^= 1
	return []byte("data: " + base64.StdEncoding.EncodeToString(b) + "\n\n")
}

// Each lie of a hub is named, and none gets it anything of the prompt.
func TestLyingHub(t *testing.T) {
	h := newSealHub(t, sealed.Prefer)
	const changed, notSealed, cut = "the sealed answer was changed on its way",
		"the hub passed on an answer that the machine did not seal; it was thrown away", "the sealed answer ended before its end"
	var before []byte // an answer to another call
	first := h.caller(sealed.Prefer)
	double := sealed.NewMachine(assert.Value(sealed.OpenKeyring(t.TempDir(), h.URL, "ada"))(t), "mch_1")
	assert.OK(t, assert.Err(double.Turn(time.Now())))
	h.lies(func() { h.double, h.answer = double, func(b []byte) []byte { before = bytes.Clone(b); return b } })
	assert.Contains(t, read(t, first.post("/v1/chat/completions", secretChat(true)).Body), secretAnswer)
	assert.That(t, len(frames(before)) > 5, len(frames(before)))
	const chunk = `data: {"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"hi"}}]}` + "\n\n"
	answers := func(change func([]byte) []byte) func() { return func() { h.double, h.answer = double, change } }
	asks := func(change func(*sealedCall)) func() { return func() { h.request = change } }
	thrown := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write(before)
	}
	for name, c := range map[string]struct {
		unary bool
		lie   func()
		want  string
	}{
		"a changed byte":       {false, answers(func(b []byte) []byte { f := frames(b); f[2] = flip(f[2]); return joinFrames(f...) }), changed},
		"a changed first byte": {false, answers(func(b []byte) []byte { f := frames(b); f[0] = flip(f[0]); return joinFrames(f...) }), changed},
		"a changed answer":     {true, answers(func(b []byte) []byte { b[len(b)-1] ^= 1; return b }), changed},
		"a dropped frame":      {false, answers(func(b []byte) []byte { f := frames(b); return joinFrames(slices.Delete(f, 2, 3)...) }), changed},
		"a repeated frame":     {false, answers(func(b []byte) []byte { f := frames(b); return joinFrames(slices.Insert(f, 2, f[1])...) }), changed},
		"reordered frames":     {false, answers(func(b []byte) []byte { f := frames(b); f[1], f[2] = f[2], f[1]; return joinFrames(f...) }), changed},
		"a frame of another":   {false, answers(func(b []byte) []byte { f := frames(b); f[1] = frames(before)[1]; return joinFrames(f...) }), changed},
		"the end of another": {false, answers(func(b []byte) []byte {
			f, g := frames(b), frames(before)
			f[len(f)-3] = g[len(g)-3]
			return joinFrames(f...)
		}), changed},
		"cut":                  {false, answers(func(b []byte) []byte { f := frames(b); return joinFrames(f[:3]...) }), cut},
		"cut, with an end":     {false, answers(func(b []byte) []byte { f := frames(b); return joinFrames(append(f[:3], f[len(f)-1])...) }), cut},
		"only a head":          {false, answers(func(b []byte) []byte { return joinFrames(frames(b)[0], []byte("data: [DONE]")) }), cut},
		"nothing":              {false, answers(func([]byte) []byte { return nil }), cut},
		"cut, unary":           {true, answers(func(b []byte) []byte { return b[:len(b)-1] }), changed},
		"nothing, unary":       {true, answers(func([]byte) []byte { return nil }), changed},
		"another answer":       {false, func() { h.instead = thrown }, changed},
		"another answer, cut":  {true, answers(func(b []byte) []byte { return b[:40] }), changed},
		"not sealed, a stream": {false, func() { h.instead = sayFrames(chunk, done) }, notSealed},
		"not sealed, later":    {false, answers(func(b []byte) []byte { f := frames(b); return joinFrames(f[0], f[1], []byte(chunk), []byte(done)) }), notSealed},
		"not sealed, unary": {true, func() {
			h.instead = refuseWith(200, `{"id":"1","object":"chat.completion","choices":[]}`, "Content-Type", "application/json")
		}, notSealed},
		"stale after the beginning": {false, answers(func(b []byte) []byte {
			f := frames(b)
			return joinFrames(f[0], f[1], []byte(`data: {"error":{"code":"stale_seal","message":"x"}}`))
		}), cut},
		"an event":    {false, func() { h.instead = sayFrames("event: x\ndata: AAAA\n\n", done) }, notSealed},
		"a long line": {false, func() { h.instead = sayFrames("data: " + strings.Repeat("A", 400<<10)) }, notSealed},
		"a changed error": {true, func() {
			h.instead = refuseWith(400, `{"error":{"code":"invalid_request","message":"x","sealed":"AAAA"}}`)
		}, changed},
		"another model":    {false, asks(func(c *sealedCall) { c.model = "vectors" }), `"engine_error"`},
		"another head":     {false, asks(func(c *sealedCall) { c.head = bytes.Replace(c.head, []byte("true"), []byte("false"), 1) }), `"engine_error"`},
		"a changed call":   {false, asks(func(c *sealedCall) { c.body[9] ^= 1 }), `"engine_error"`},
		"a changed key":    {false, asks(func(c *sealedCall) { c.keys[1130] ^= 1 }), `"engine_error"`},
		"a changed sender": {false, asks(func(c *sealedCall) { c.keys[9] ^= 1 }), `"engine_error"`},
		"a wrong key id":   {false, asks(func(c *sealedCall) { c.routing.To[0].Key[0] ^= 1 }), "change faster than the call can be sealed"},
		"always stale":     {false, func() { h.instead = refuseWith(412, `{"error":{"code":"stale_seal","message":"x"}}`) }, "change faster than the call can be sealed"},
		"stale in a stream": {false, func() {
			h.instead = sayFrames(": waiting 1 ahead, 9 s left\n\n", `data: {"error":{"code":"stale_seal","message":"x"}}`+"\n\n")
		}, "change faster than the call can be sealed"},
		"a refusal": {false, func() {
			h.instead = refuseWith(503, `{"error":{"code":"machine_offline","message":"so says the hub"}}`)
		}, "so says the hub"},
		"a refusal, later": {false, func() {
			h.instead = sayFrames(": working\n\n", `data: {"error":{"code":"machine_offline","message":"so says the hub"}}`+"\n\n")
		}, "so says the hub"},
		"broken": {false, func() {
			h.instead = func(w http.ResponseWriter, r *http.Request) {
				sayFrames(": working\n\n")(w, r)
				panic(http.ErrAbortHandler)
			}
		}, "broke during the answer"},
		"no statement":      {false, func() { h.list = func(l *fleet.SealList) { l.Machines[0].Statement[70] ^= 1 } }, "ada's attic has a key that is not valid"},
		"another machine's": {false, func() { h.list = func(l *fleet.SealList) { l.Machines[0].ID = "mch_9" } }, "has a key that is not valid"},
		"an empty list":     {false, func() { h.list = func(l *fleet.SealList) { l.Machines = nil } }, "lists no machine"},
		"an old statement": {false, func() {
			h.list = func(l *fleet.SealList) { l.Machines[0].Statement = statementOf(t, "mch_1", -13*time.Hour) }
		}, "set the clock of attic"},
		"a wrong clock": {false, func() {
			h.list = func(l *fleet.SealList) {
				l.Machines[0].Statement, l.Now = statementOf(t, "mch_1", -90*time.Hour), l.Now.Add(-90*time.Hour)
			}
		}, "not valid by this computer's clock"},
		"a list that is none": {false, func() {
			h.list = func(l *fleet.SealList) {
				l.Machines[0].Class, l.Machines[0].State = "best", "eager"
				l.Machines[0].Statement[9] ^= 1
			}
		}, "not valid"},
	} {
		t.Run(name, func(t *testing.T) {
			r := h.caller(sealed.Prefer)
			h.lies(c.lie)
			resp := r.post("/v1/chat/completions", secretChat(!c.unary))
			text, _ := io.ReadAll(resp.Body) // of a stream that broke the end is unclean
			assert.Contains(t, string(text), c.want, "the answer", resp.StatusCode, string(text))
			assert.Lacks(t, string(text), "[DONE]", "an end", string(text))
			assert.Lacks(t, string(text), `"content":"hi"`, "unsealed text", string(text))
			sent := len(h.posted())
			assert.That(t, (resp.Header.Get("X-Kith-Sealed") == "yes") == (sent > 0) && resp.Header.Get("X-Kith-Sealed") != "", sent, resp.Header)
			if strings.Contains(c.want, "change faster") {
				assert.Equal(t, sent, 3)
				assert.Contains(t, string(text), `"CAPACITY_FULL"`)
			}
			if slices.Contains([]string{changed, notSealed, cut}, c.want) {
				assert.Contains(t, string(text), `"engine_error"`)
				r.await("shown to the owner", func(s Status) bool {
					return slices.ContainsFunc(s.RecentErrors, func(e RecentError) bool { return e.What == c.want })
				})
			}
			h.hid()
		})
	}
}

// After the machine's own end mark a hub can take away the token counts alone, and is named.
func TestChangedCounts(t *testing.T) {
	h := newSealHub(t, sealed.Prefer)
	r := h.caller(sealed.Prefer)
	double := sealed.NewMachine(assert.Value(sealed.OpenKeyring(t.TempDir(), h.URL, "ada"))(t), "mch_1")
	assert.OK(t, assert.Err(double.Turn(time.Now())))
	h.lies(func() {
		h.double, h.answer = double, func(b []byte) []byte {
			f := frames(b)
			f[len(f)-2] = flip(f[len(f)-2])
			return joinFrames(f...)
		}
	})
	text := read(t, r.post("/v1/chat/completions", secretChat(true)).Body)
	assert.That(t, strings.Contains(text, secretAnswer) && strings.HasSuffix(text, done), text)
	r.await("shown to the owner", func(s Status) bool {
		return slices.ContainsFunc(s.RecentErrors, func(e RecentError) bool { return strings.Contains(e.What, "changed on its way") })
	})
}

// statementOf is a statement of a machine by a key of its own.
func statementOf(t *testing.T, machine string, made time.Duration) []byte {
	prekey := assert.Value(seal.NewPrekey())(t)
	return assert.Value(seal.NewAccount([32]byte{9}).Sign(machine, prekey, time.Now().Add(made), nil))(t)
}

// A hub cannot go back behind what was sealed.
func TestDowngrade(t *testing.T) {
	h := newSealHub(t, sealed.Prefer)
	h.does(refuseWith(200, `{"id":"1","object":"chat.completion","choices":[]}`, "Content-Type", "application/json"))
	unkeyed := func(l *fleet.SealList) { l.Machines[0].Statement, l.Machines[0].Keys = nil, nil }
	silent := func(l *fleet.SealList) { l.Machines[0].Statement, l.Machines[0].Keys = nil, []fleet.SealKey{{1}} }
	ask := func(r *rig, body string) (*http.Response, string) {
		t.Helper()
		resp := r.post("/v1/chat/completions", body)
		return resp, read(t, resp.Body)
	}
	clearBody := chat(false) // a hub may see it
	confirms := false        // the caller has ada's key from the link of an invite
	for _, c := range []struct {
		name   string
		mode   sealed.Mode
		sealed bool // before
		lie    func()
		want   string // X-Kith-Sealed, or a part of the refusal
	}{
		{"no key", sealed.Prefer, false, func() { h.list = unkeyed }, "no; reason=no_key"},
		{"no key, now", sealed.Prefer, true, func() { h.list = unkeyed }, "ada was sealed to until now and the hub shows no key of attic: if it went back to an older kith, run kith trust remove ada"},
		{"another key", sealed.Prefer, true, func() { h.list = func(l *fleet.SealList) { l.Machines[0].Statement = statementOf(t, "mch_1", 0) } }, "ada's attic has another key than before"},
		{"another owner", sealed.Prefer, true, func() { h.list = func(l *fleet.SealList) { l.Machines[0].Owner = "mem_eve" } }, "has a key that is not valid"},
		{"no list", sealed.Prefer, false, func() { h.noList = true }, "no; reason=no_list"},
		{"no list, now", sealed.Prefer, true, func() { h.noList = true }, "this machine knows keys"},
		{"no list, a key of an invite", sealed.Prefer, false, func() { h.noList, confirms = true, true }, "this machine knows keys"},
		{"a key that it does not show", sealed.Prefer, false, func() { h.list = silent }, "ada's attic does not show its key, and nothing else that serves \"test-model\" can be sealed to; try again"},
		{"a key that it does not show, now", sealed.Prefer, true, func() { h.list = silent }, "ada's attic does not show its key"},
		{"require, no list", sealed.Require, false, func() { h.noList = true }, "has no sealed calls"},
		{"require, no key", sealed.Require, false, func() { h.list = unkeyed }, `ada's attic has no key (its kith is too old); run kith trust, or set [privacy] sealed = "prefer"`},
		{"require, not compared", sealed.Require, false, func() {}, "ada's attic has a key that you have not compared"},
		{"off", sealed.Off, false, func() {}, ""},
	} {
		r := h.caller(c.mode)
		h.lies(func() {})
		if c.sealed {
			resp, _ := ask(r, secretChat(false))
			assert.Equal(t, resp.Header.Get("X-Kith-Sealed"), "yes", c.name)
			r.end() // the list is fetched again after a restart
			r = run(t, Config{Home: r.home, Unshared: true, Sealed: c.mode})
			r.await("signed in", func(s Status) bool { return s.Tunnel.SignedIn })
		}
		asked := len(h.bodies)
		confirms = false
		h.lies(c.lie)
		if confirms {
			theirs := assert.Value(h.machine.Sealing())(t)
			assert.OK(t, assert.Value(r.Sealing())(t).Confirm("mem_ada", "ada", theirs.Fingerprint()))
		}
		resp, text := ask(r, clearBody)
		if strings.HasPrefix(c.want, "no;") || c.want == "" {
			assert.That(t, resp.StatusCode == 200 && resp.Header.Get("X-Kith-Sealed") == c.want, c.name, resp.StatusCode, resp.Header, text)
			assert.That(t, len(h.bodies) == asked+1 && h.bodies[asked] == clearBody, c.name)
			continue
		}
		code, again := `"CASCADE_EXHAUSTED"`, "false"
		if strings.Contains(c.want, "does not show") {
			code, again = `"CAPACITY_FULL"`, ""
		}
		assert.That(t, resp.StatusCode == 503 && strings.Contains(text, code) && resp.Header.Get("X-Should-Retry") == again, c.name, resp.StatusCode, resp.Header, text)
		var body struct {
			Error struct{ Message string }
		}
		assert.OK(t, json.Unmarshal([]byte(text), &body, json.MatchCaseInsensitiveNames(true)))
		assert.Contains(t, body.Error.Message, c.want, c.name, text)
		assert.That(t, len(h.bodies) == asked && resp.Header.Get("X-Kith-Sealed") == "no; reason=not_sent", c.name)
	}
	h.hid()
}

// A call that the hub sends twice runs once; one for another key is refused before its body
// is read.
func TestReplay(t *testing.T) {
	h := newSealHub(t, sealed.Prefer)
	r := h.caller(sealed.Prefer)
	assert.Contains(t, read(t, r.post("/v1/chat/completions", secretChat(false)).Body), secretAnswer)
	call := h.posted()[0]
	resp := h.link.served(tunnel.PathSealed, string(call.body), call.header(0)...)
	assert.That(t, resp.StatusCode == 503 && resp.Header.Get(tunnel.HeaderRefused) == "repeated", resp.StatusCode, resp.Header)
	call.routing.To[0].Key[0]++
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	body, _ := io.Pipe() // which nothing is ever written to
	req := assert.Value(http.NewRequestWithContext(ctx, http.MethodPost, "http://machine"+tunnel.PathSealed, body))(t)
	header := call.header(0)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp = assert.Value(h.link.RoundTrip(req))(t)
	resp.Body.Close()
	assert.That(t, resp.Header.Get(tunnel.HeaderRefused) == "stale_key", resp.Header)
	assert.Equal(t, h.engine.Counts().Runs, 1)
}

// A stale seal is sealed again, with the rest of the wait, for the same program.
func TestSealAgain(t *testing.T) {
	h := newSealHub(t, sealed.Prefer)
	r := h.caller(sealed.Prefer)
	stale := refuseWith(412, `{"error":{"code":"stale_seal","message":"x"}}`)
	h.lies(func() {
		h.instead = func(w http.ResponseWriter, r *http.Request) {
			h.lies(func() {})
			stale(w, r)
		}
	})
	req := assert.Value(http.NewRequest(http.MethodPost, r.base()+"/v1/chat/completions", strings.NewReader(secretChat(true))))(t)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Prefer", "wait=70")
	req.Header.Set("X-Kith-Reach", "shared")
	req.Header.Set("Authorization", "Bearer kith-run")
	resp := assert.Value(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	assert.That(t, strings.Contains(read(t, resp.Body), secretAnswer) && len(h.posted()) == 1, "not sealed again")
	asked := h.asked[len(h.asked)-1].Header
	wait := asked.Get("Prefer")
	assert.That(t, wait == "wait=70" || wait < "wait=70" && wait > "wait=1", wait)
	assert.Equal(t, asked.Get("X-Kith-Reach"), "shared")
	assert.Equal(t, asked.Get("Kith-Program"), "run")
}

// The modes of the machine: without sealed calls it has no key, no route and no file, and
// with them the owner's cache takes more than the hub's word.
func TestSealModes(t *testing.T) {
	h := newSealHub(t, sealed.Off)
	assert.That(t, h.link.ad.Seals == nil)
	assert.Equal(t, h.link.served(tunnel.PathSealed, "x").StatusCode, 404)
	assert.That(t, assert.Err(tunnel.FetchSeal(t.Context(), h.link)) != nil)
	assert.That(t, os.IsNotExist(assert.Err(os.Stat(filepath.Join(h.machine.home, "seal.json")))))
	assert.Fails(t, assert.Err(h.machine.Sealing()), `config.toml has [privacy] sealed = "off"`)
	own := &http.Request{Header: http.Header{tunnel.HeaderCaller: {"own ada"}, tunnel.HeaderCache: {"x"}}}
	assert.Equal(t, h.machine.cacheOf(own), "")

	c := h.machine.config
	c.Sealed = sealed.Require
	assert.OK(t, h.machine.Reload(t.Context(), c))
	h.link.until("it has a key", func(ad tunnel.Advertisement) bool { return len(ad.Seals) == 1 })
	assert.That(t, h.machine.cacheOf(own) != "", "the owner's cache by the hub's word")
	first, second := &sealed.Call{Cache: [16]byte{1}}, &sealed.Call{Cache: [16]byte{2}}
	other := &http.Request{Header: http.Header{tunnel.HeaderCaller: {"own ada"}, tunnel.HeaderCache: {"y"}}}
	names := []string{h.machine.sealedCacheOf(own, first), h.machine.sealedCacheOf(own, second), h.machine.sealedCacheOf(other, first), h.machine.cacheOf(own)}
	slices.Sort(names)
	assert.That(t, len(slices.Compact(names)) == 4 && names[0] != "", names)
	assert.Equal(t, h.machine.sealedCacheOf(own, &sealed.Call{Own: true}), "")

	id := h.link.ad.Seals[0]
	c.Sealed = sealed.Off
	assert.OK(t, h.machine.Reload(t.Context(), c))
	h.link.until("it has none", func(ad tunnel.Advertisement) bool { return len(ad.Seals) == 0 })
	c.Sealed = sealed.Prefer
	assert.OK(t, h.machine.Reload(t.Context(), c))
	h.link.until("it has another one", func(ad tunnel.Advertisement) bool { return len(ad.Seals) == 1 && ad.Seals[0] != id })
}

// A hub that gets lists is asked for one at the next call, not a minute later.
func TestListAppears(t *testing.T) {
	h := newSealHub(t, sealed.Prefer)
	h.does(refuseWith(200, `{"id":"1","object":"chat.completion","choices":[]}`, "Content-Type", "application/json"))
	r := h.caller(sealed.Prefer)
	for _, c := range []struct {
		noList bool
		want   string
	}{{true, "no; reason=no_list"}, {false, "yes"}} {
		h.lies(func() { h.noList = c.noList })
		resp := r.post("/v1/chat/completions", chat(false))
		assert.That(t, resp.StatusCode == 200 && resp.Header.Get("X-Kith-Sealed") == c.want, c.want, resp.StatusCode, resp.Header)
	}
}

// A call that was made here has the hub's id of it, sealed or in clear.
func TestHubID(t *testing.T) {
	for _, mode := range []sealed.Mode{sealed.Prefer, sealed.Off} {
		h := newSealHub(t, sealed.Prefer)
		h.does(refuseWith(200, `{"id":"1","object":"chat.completion","choices":[]}`, "Content-Type", "application/json", "X-Correlation-ID", hubID))
		r := h.caller(mode)
		resp := r.post("/v1/chat/completions", chat(false))
		id := resp.Header.Get("X-Correlation-ID")
		r.await("recorded after the answer", func(Status) bool { return r.calls.of(id) != nil })
		answer := assert.Value(r.socket().Get("http://localhost/call?id=" + id))(t)
		defer answer.Body.Close()
		text := read(t, answer.Body)
		assert.That(t, answer.StatusCode == 200 && strings.Contains(text, `"hub_id":"`+hubID+`"`), mode, text)
	}
	r := newSealHub(t, sealed.Prefer).caller(sealed.Prefer)
	answer := assert.Value(r.socket().Get("http://localhost/call?id="))(t)
	defer answer.Body.Close()
	assert.Equal(t, answer.StatusCode, 404)
}

// The owner learns why a call that the hub would route is not sent.
func TestRefused(t *testing.T) {
	h := newSealHub(t, sealed.Require)
	refused := func(r *rig, family string) string {
		t.Helper()
		resp := assert.Value(r.socket().Get("http://localhost/trust/refused?model=test-model&family=" + family))(t)
		defer resp.Body.Close()
		return read(t, resp.Body)
	}
	r := h.caller(sealed.Require)
	assert.Contains(t, refused(r, "chat"), "ask ada for the words of kith trust, then run kith trust ada WORDS")
	assert.Contains(t, refused(r, "audio"), "audio cannot be sealed")
	assert.Equal(t, refused(h.caller(sealed.Prefer), "chat"), `{"message":""}`)
	assert.Equal(t, refused(h.machine, "chat"), `{"message":""}`)
	assert.Equal(t, len(h.posted()), 0)
}

// A machine takes the account key of another one of its owner through the hub.
func TestAccountByControl(t *testing.T) {
	h := newSealHub(t, sealed.Prefer)
	other := assert.Value(sealed.OpenKeyring(t.TempDir(), h.URL, "ada"))(t)
	mine := assert.Value(h.machine.Sealing())(t)
	s := assert.Value(tunnel.FetchSeal(t.Context(), h.link))(t)
	words, _, err := mine.Ask("mch_1")
	assert.OK(t, err)
	assert.Fails(t, tunnel.SendControl(t.Context(), h.link, fleet.Control{Account: "AAAA"}), "cannot take the account key")
	answer := assert.Value(other.Approve(s.Ask, "mch_1", words))(t)
	yes := true
	assert.OK(t, tunnel.SendControl(t.Context(), h.link, fleet.Control{Account: base64.StdEncoding.EncodeToString(answer), Paused: &yes}))
	assert.Equal(t, mine.Words(), other.Words())
	s = assert.Value(tunnel.FetchSeal(t.Context(), h.link))(t)
	statement := assert.Value(seal.ParseStatement(s.Statement))(t)
	assert.That(t, s.Ask == nil && statement.Account.Fingerprint() == other.Fingerprint() && len(statement.Former) == 1)
	assert.That(t, h.machine.Status().Sharing.Paused)
	state := string(assert.Value(os.ReadFile(filepath.Join(h.machine.home, stateFile)))(t))
	assert.Lacks(t, state, "account", "saved", state)
}

// What is served here is shown so, and a count never carries a prompt to the hub.
func TestServedHere(t *testing.T) {
	h := newSealHub(t, sealed.Prefer)
	resp := h.machine.post("/v1/chat/completions", secretChat(true))
	assert.That(t, strings.Contains(read(t, resp.Body), secretAnswer) && resp.Header.Get("X-Kith-Sealed") == "here", resp.Header)
	h.engine.Set(enginetest.Behaviour{Status: 400})
	resp = h.machine.post("/v1/chat/completions", secretChat(false))
	assert.That(t, resp.StatusCode == 400 && resp.Header.Get("X-Kith-Sealed") == "here", resp.Header)

	r := h.caller(sealed.Prefer)
	resp = r.post("/v1/messages/count_tokens", strings.Replace(claude("test-model", false), "one two three", secretPrompt, 1))
	assert.That(t, resp.StatusCode == 200 && resp.Header.Get("X-Kith-Estimate") == "true", resp.StatusCode, resp.Header)
	resp = r.post("/v1/responses", `{"model":"test-model","input":"`+secretPrompt+`"}`)
	assert.That(t, resp.StatusCode == 404 && resp.Header.Get("X-Kith-Sealed") == "no; reason=not_sent", resp.StatusCode, resp.Header)
	for mode, want := range map[sealed.Mode]string{sealed.Prefer: "no; reason=not_sent", sealed.Off: ""} { // also of what is no call
		resp = h.caller(mode).post("/v1/chat/completions", `{"model":1}`)
		assert.That(t, resp.StatusCode == 400 && resp.Header.Get("X-Kith-Sealed") == want, mode, resp.StatusCode, resp.Header)
	}
	h.hid()

	// A file with the account key that others can read keeps the daemon from starting.
	home := shortHome(t)
	assert.OK(t, os.WriteFile(filepath.Join(home, "seal.json"), []byte("{}"), 0o644))
	assert.OK(t, os.Chmod(filepath.Join(home, "seal.json"), 0o644))
	assert.Fails(t, assert.Err(New(Config{Home: home, Sealed: sealed.Prefer})), "cannot use this machine's account key")
}
