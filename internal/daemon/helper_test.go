package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json/v2"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/tunnel"
)

// patience bounds every wait of a test that uses real time.
const patience = 2 * time.Minute

// rig is a daemon that runs on loopback, with its log.
type rig struct {
	*Daemon
	t    *testing.T
	home string
	log  *logbook
	end  func() // ends the daemon and waits for it
}

// logbook is a log that tests read.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// shortHome is a folder whose path leaves room for a socket's name.
func shortHome(t *testing.T) string {
	t.Helper()
	home := assert.Value(os.MkdirTemp("", "kith"))(t)
	t.Cleanup(func() { os.RemoveAll(home) })
	return home
}

// run starts a daemon on a free port with the engines at these addresses.
func run(t *testing.T, c Config, engines ...*enginetest.Engine) *rig {
	t.Helper()
	r := &rig{t: t, home: c.Home, log: new(logbook)}
	if r.home == "" {
		r.home = shortHome(t)
	}
	c.Home, c.Listen, c.Name, c.Version = r.home, "127.0.0.1:0", "laptop", "test"
	c.Log = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	for _, e := range engines {
		if e.URL() == "" {
			assert.OK(t, e.Start())
			t.Cleanup(func() { e.Close() })
		}
		c.Discovery.Endpoints = append(c.Discovery.Endpoints, e.URL())
	}
	d := assert.Value(New(c))(t)
	r.Daemon = d
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	r.end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(r.end)
	select {
	case <-d.Ready():
	case err := <-ended:
		t.Fatalf("Run ended at once: %v", err)
	}
	// On a busy computer an engine can be late for the first look.
	r.await("found its engines", func(s Status) bool {
		return !slices.ContainsFunc(s.Engines, func(f EngineStatus) bool {
			return slices.Contains(c.Discovery.Endpoints, f.Place) && strings.HasPrefix(f.Why, "it did not answer")
		})
	})
	return r
}

// base is the local surface's base URL, without /v1.
func (r *rig) base() string { return strings.TrimSuffix(r.Status().Local, "/v1") }

// post makes a call of the local surface.
func (r *rig) post(path, body string) *http.Response {
	r.t.Helper()
	return post(r.t, http.DefaultClient, r.base()+path, body)
}

func post(t *testing.T, client *http.Client, url, body string) *http.Response {
	t.Helper()
	resp := assert.Value(client.Post(url, "application/json", strings.NewReader(body)))(t)
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// socket is a client of the daemon's socket.
func (r *rig) socket() *http.Client { return socketClient(r.home) }

// await returns once holds is true of the daemon's status.
func (r *rig) await(what string, holds func(Status) bool) {
	r.t.Helper()
	for end := time.Now().Add(patience); !holds(r.Status()); <-time.After(time.Millisecond) {
		assert.Require(r.t, !time.Now().After(end), "never", what, r.Status(), r.log)
	}
}

func read(t *testing.T, r io.Reader) string {
	t.Helper()
	text, err := io.ReadAll(r)
	assert.OK(t, err, "after", text)
	return string(text)
}

// decodedFault is the error member of a response.
type decodedFault struct {
	Status  int
	Code    string
	Message string
	Reason  string
}

func faultIn(t *testing.T, resp *http.Response) decodedFault {
	t.Helper()
	var envelope struct {
		Error struct{ Code, Message, Reason string } `json:"error"`
	}
	text := read(t, resp.Body)
	if err := json.Unmarshal([]byte(text), &envelope, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatalf("status %d, body %q: %v", resp.StatusCode, text, err)
	}
	return decodedFault{resp.StatusCode, envelope.Error.Code, envelope.Error.Message, envelope.Error.Reason}
}

// chat is a chat body for the double's usual model.
func chat(stream bool) string {
	if stream {
		return `{"model":"test-model","stream":true,"messages":[{"role":"user","content":"one two three"}]}`
	}
	return `{"model":"test-model","messages":[{"role":"user","content":"one two three"}]}`
}

// fakeHub is a hub as a daemon sees it: its end of tunnels, and its surface.
type fakeHub struct {
	*httptest.Server
	t       *testing.T
	clients chan *tunnel.Client
	mu      sync.Mutex
	refuse  int // status of GET /tunnel; 0: 101
	asked   []*http.Request
	bodies  []string
	answer  http.HandlerFunc
}

func newHub(t *testing.T) *fakeHub { return newHubWith(t, func(*http.ServeMux, *httptest.Server) {}) }

// newHubWith is newHub with more routes, or on another listener.
func newHubWith(t *testing.T, prepare func(*http.ServeMux, *httptest.Server)) *fakeHub {
	t.Helper()
	h := &fakeHub{t: t, clients: make(chan *tunnel.Client, 10)}
	var generation int64
	mux := http.NewServeMux()
	mux.HandleFunc("GET /tunnel", func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		generation++
		number, refuse := generation, h.refuse
		h.mu.Unlock()
		if refuse != 0 {
			w.WriteHeader(refuse)
			return
		}
		client, err := tunnel.Upgrade(w, r, tunnel.UpgradeConfig{Generation: number})
		if err != nil {
			t.Errorf("Upgrade: %v", err)
			return
		}
		t.Cleanup(client.Close)
		h.clients <- client
	})
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		h.mu.Lock()
		h.asked, h.bodies = append(h.asked, r), append(h.bodies, string(body))
		answer := h.answer
		h.mu.Unlock()
		answer(w, r)
	})
	h.Server = httptest.NewUnstartedServer(mux)
	prepare(mux, h.Server)
	h.Start()
	t.Cleanup(h.CloseClientConnections)
	t.Cleanup(h.Close)
	return h
}

// does sets the handler of the hub's surface.
func (h *fakeHub) does(answer http.HandlerFunc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = answer
}

// signIn saves a credential of the hub in a home.
func (h *fakeHub) signIn(home string) {
	h.t.Helper()
	h.signInAs(home, "mch_1", "ada")
}

// signInAs is signIn for another machine and member.
func (h *fakeHub) signInAs(home, machine, member string) {
	h.t.Helper()
	c := Credential{Hub: h.URL, Machine: machine, Member: member, Region: "here", Secret: "kithm_here_secret"}
	assert.OK(h.t, SaveCredential(home, c))
}

// link is a daemon's tunnel as the hub sees it.
type link struct {
	*tunnel.Client
	t     *testing.T
	next  func() (tunnel.Advertisement, error, bool)
	ad    tunnel.Advertisement // the newest read
	leave func()               // of falseTime: ends daemon and hub
}

// connected waits for a daemon's tunnel, reads its first offers and
// acknowledges them.
func (h *fakeHub) connected() *link {
	h.t.Helper()
	select {
	case client := <-h.clients:
		ctx, cancel := context.WithTimeout(h.t.Context(), patience)
		h.t.Cleanup(cancel)
		next, stop := iter.Pull2(client.Offers(ctx))
		h.t.Cleanup(stop)
		l := &link{Client: client, t: h.t, next: next}
		l.until("there", func(tunnel.Advertisement) bool { return true })
		assert.OK(h.t, client.Ack(ctx))
		return l
	case <-time.After(patience):
		h.t.Fatal("no daemon came")
		return nil
	}
}

// until reads advertisements until holds is true of one.
func (l *link) until(what string, holds func(tunnel.Advertisement) bool) {
	l.t.Helper()
	for {
		ad, err, ok := l.next()
		assert.Require(l.t, ok && err == nil, "waiting until", what, err, "last", l.ad)
		if l.ad = ad; holds(ad) {
			return
		}
	}
}

// call sends a call down the tunnel as the hub does.
func (l *link) call(ctx context.Context, path, body string, header ...string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://machine"+path, strings.NewReader(body))
	assert.OK(l.t, err)
	r.Header.Set(tunnel.HeaderCorrelation, "req_1")
	r.Header.Set(tunnel.HeaderCaller, "shared bob")
	r.Header.Set(tunnel.HeaderModel, tunnel.EscapeModel(modelIn(body)))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return l.RoundTrip(r)
}

var modelMember = regexp.MustCompile(`"model"(?: ?: ?"|\r\n\r\n)([^"\r]*)`)

// modelIn returns the model that a body names, JSON or a form; "test-model" if none.
func modelIn(body string) string {
	if m := modelMember.FindStringSubmatch(body); m != nil {
		return m[1]
	}
	return "test-model"
}

// served is call, and fails the test on an error.
func (l *link) served(path, body string, header ...string) *http.Response {
	l.t.Helper()
	resp := assert.Value(l.call(l.t.Context(), path, body, header...))(l.t)
	l.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// joined is a daemon with these engines that has a tunnel to a hub.
func joined(t *testing.T, c Config, engines ...*enginetest.Engine) (*rig, *fakeHub, *link) {
	t.Helper()
	h := newHub(t)
	c.Home = shortHome(t)
	h.signIn(c.Home)
	r := run(t, c, engines...)
	return r, h, h.connected()
}

// firstFrame reads a stream up to its first frame with content.
func firstFrame(t *testing.T, body io.Reader) *bufio.Reader {
	t.Helper()
	lines := bufio.NewReader(body)
	for {
		line := assert.Value(lines.ReadString('\n'))(t)
		if strings.Contains(line, `"content":"`) && !strings.Contains(line, `"content":""`) {
			return lines
		}
	}
}

// builtinOf is a built-in engine that is a double.
func builtinOf(e *enginetest.Engine, models ...engine.Model) *engine.Engine {
	return engine.Builtin("built-in", e.Transport(), engine.BuiltinState{Models: models})
}

var _ gateway.Backend = (*Daemon)(nil)
