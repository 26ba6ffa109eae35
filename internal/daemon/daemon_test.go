package daemon

import (
	"context"
	"encoding/binary"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf16"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// socketClient reaches the daemon that runs on a home.
func socketClient(home string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(home, "daemon.sock"))
		},
	}}
}

// The local surface requires no key, so it is on loopback only.
func TestListenOnLoopbackOnly(t *testing.T) {
	for _, address := range []string{
		"0.0.0.0:8701", "[::]:8701", "192.168.1.4:8701", "172.17.0.1:8701", "[fe80::1]:8701", "8.8.8.8:1",
		"localhost:8701", "example.com:8701", ":8701", "127.0.0.1", "127.1:8701", "[::ffff:127.0.0.1]:8701", "[::1%lo]:8701", "2130706433:8701",
	} {
		_, err := New(Config{Home: t.TempDir(), Listen: address, Log: slog.New(slog.DiscardHandler)})
		assert.Fails(t, err, "loopback", address)
	}
	for _, address := range []string{"", "127.0.0.1:8701", "127.0.0.2:1", "[::1]:8701"} {
		if _, err := New(Config{Home: t.TempDir(), Listen: address, Log: slog.New(slog.DiscardHandler)}); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// Only its owner can read the credential, and it is never printed.
func TestCredential(t *testing.T) {
	home := filepath.Join(t.TempDir(), "new")
	assert.Is(t, assert.Err(LoadCredential(home)), fs.ErrNotExist, "signed in")
	c := Credential{Hub: "https://hub.example/", Machine: "mch_1", Member: "ada", Region: "here", Secret: "kithm_secret"}
	assert.OK(t, SaveCredential(home, c))
	path := filepath.Join(home, "credential")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	got, err := LoadCredential(home)
	if c.Hub = "https://hub.example"; err != nil || got != c {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, text := range []string{fmt.Sprint(c), fmt.Sprintf("%v %+v %#v %s", c, c, c, c), c.LogValue().String()} {
		assert.Lacks(t, text, "secret", "printed")
	}
	for _, mode := range []fs.FileMode{0o644, 0o604, 0o660, 0o606, 0o601} {
		assert.OK(t, os.Chmod(path, mode))
		assert.Fails(t, assert.Err(LoadCredential(home)), "chmod 600", "mode", mode)
		if _, err := New(Config{Home: home, Log: slog.New(slog.DiscardHandler)}); err == nil {
			t.Errorf("mode %o: a daemon starts on it", mode)
		}
	}
	for _, text := range []string{`{}`, `{"hub":"https://h"}`, `{"secret":"s"}`, `nonsense`,
		`{"hub":"http://hub.example","secret":"s"}`, `{"hub":"ftp://127.0.0.1","secret":"s"}`, `{"hub":"https://a:b@hub.example","secret":"s"}`} {
		assert.OK(t, os.WriteFile(path, []byte(text), 0o600))
		assert.OK(t, os.Chmod(path, 0o600))
		if _, err := LoadCredential(home); err == nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// The owner's changes are kept after the daemon ends; all else follows the
// configuration.
func TestSettings(t *testing.T) {
	path := filepath.Join(t.TempDir(), stateFile)
	first := Sharing{Hours: "Mon-Fri 18:00-23:00", Timezone: "Europe/Lisbon", Slots: 2}
	s, err := openSettings(path, first)
	assert.OK(t, err)
	yes, hours := true, "Sat 00:00-24:00"
	for _, c := range []fleet.Control{{Paused: &yes}, {Hours: &hours}} {
		assert.OK(t, s.change(c))
	}
	bad, negative := "Someday", -1
	for _, c := range []fleet.Control{{Hours: &bad}, {Timezone: &bad}, {Slots: &negative}} {
		if err := s.change(c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	first.Slots, first.Hours = 5, "Sun 00:00-24:00" // the configuration was edited
	s, err = openSettings(path, first)
	assert.OK(t, err)
	want := Sharing{Paused: true, Hours: hours, Timezone: "Europe/Lisbon", Slots: 5}
	if got, open := s.current(time.Now()); got != want || !open.Open(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	no, none := false, ""
	assert.OK(t, s.change(fleet.Control{Paused: &no, Hours: &none}))
	if s, err = openSettings(path, first); err != nil {
		t.Fatal(err)
	}
	want.Paused, want.Hours = false, ""
	if got, _ := s.current(time.Now()); got != want {
		t.Errorf("taken back: got %+v, want %+v", got, want)
	}
	assert.OK(t, os.WriteFile(path, []byte(`{"paused":tr`), 0o600))
	assert.Fails(t, assert.Err(openSettings(path, first)), path, "a broken state")
	if _, err := openSettings(filepath.Join(t.TempDir(), stateFile), Sharing{Hours: "x"}); err == nil {
		t.Error("impossible hours in the configuration were taken")
	}
}

// A change that cannot be saved does not happen, except a pause.
func TestSettingsUnsaved(t *testing.T) {
	s := assert.Value(openSettings(filepath.Join(t.TempDir(), "gone", stateFile), Sharing{}))(t)
	yes, no, hours := true, false, "Sat 10:00-12:00"
	if err := s.change(fleet.Control{Hours: &hours}); err == nil || errors.Is(err, errPauseUnsaved) {
		t.Errorf("hours: %v", err)
	}
	assert.Is(t, s.change(fleet.Control{Paused: &yes}), errPauseUnsaved, "a pause")
	if now, _ := s.current(time.Now()); !now.Paused || now.Hours != "" {
		t.Errorf("in force: %+v", now)
	}
	if err := s.change(fleet.Control{Paused: &no}); err == nil {
		t.Error("the end of the pause: no error")
	}
	if now, _ := s.current(time.Now()); !now.Paused {
		t.Error("the pause has ended, but not for long")
	}
}

// A file that a full disk or a Windows editor left says so, and what to do.
func TestSpoiltFiles(t *testing.T) {
	home := t.TempDir()
	good := `{"hub":"https://hub.example","machine":"m","member":"ada","region":"eu","secret":"kithm_x"}`
	wide := utf16.Encode([]rune("\ufeff" + good))
	utf16le, _ := binary.Append(nil, binary.LittleEndian, wide)
	for text, want := range map[string]string{
		"":                 "is empty, as a full disk or a power cut leaves it: restore it, or remove it; or run `kith login` again",
		string(utf16le):    "is in UTF-16",
		"\ufeff" + good:    "",
		good[:len(good)/2]: "run `kith login` again",
	} {
		assert.OK(t, os.WriteFile(filepath.Join(home, credentialFile), []byte(text), 0o600))
		if _, err := LoadCredential(home); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	state := filepath.Join(home, stateFile)
	assert.OK(t, os.WriteFile(state, nil, 0o600))
	if _, err := openSettings(state, Sharing{}); err == nil || !strings.Contains(err.Error(), "cannot determine whether this machine is paused: "+state+" is empty") {
		t.Errorf("an empty state: %v", err)
	}
}

// The socket: what the commands ask for, for the owner alone, and the local
// surface behind it.
func TestSocket(t *testing.T) {
	e := enginetest.New(enginetest.LlamaCpp, enginetest.Options{Slots: 3})
	home := shortHome(t)
	if err := os.WriteFile(filepath.Join(home, "daemon.sock"), nil, 0o600); err != nil { // of one that was killed
		t.Fatal(err)
	}
	r := run(t, Config{Home: home}, e)
	info, err := os.Stat(filepath.Join(home, "daemon.sock"))
	if err != nil || info.Mode().Perm() != 0o600 || info.Mode().Type() != fs.ModeSocket {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	resp, err := r.socket().Get("http://localhost/status")
	assert.OK(t, err)
	defer resp.Body.Close()
	var s Status
	assert.OK(t, json.UnmarshalRead(resp.Body, &s))
	if s.Version != "test" || s.Slots != 3 || len(s.Engines) != 1 || s.Engines[0].Kind != "llama.cpp" || s.Tunnel.State != TunnelOff ||
		!strings.HasPrefix(s.Local, "http://127.0.0.1:") || !strings.HasSuffix(s.Local, "/v1") || !s.Open || len(s.Models) != 1 {
		t.Errorf("status %+v", s)
	}
	for _, step := range []struct {
		path, body string
		status     int
		want       Sharing
	}{
		{"/pause", "", 200, Sharing{Paused: true}},
		{"/hours", `{"hours":"Mon-Fri 18:00-23:00","timezone":"Europe/Lisbon"}`, 200, Sharing{Paused: true, Hours: "Mon-Fri 18:00-23:00", Timezone: "Europe/Lisbon"}},
		{"/resume", "", 200, Sharing{Hours: "Mon-Fri 18:00-23:00", Timezone: "Europe/Lisbon"}},
		{"/hours", `{"hours":"Funday"}`, 400, Sharing{Hours: "Mon-Fri 18:00-23:00", Timezone: "Europe/Lisbon"}},
		{"/hours", `{"hours":"","timezone":""}`, 200, Sharing{Timezone: "Europe/Lisbon"}},
		{"/signin", "", 204, Sharing{Timezone: "Europe/Lisbon"}},
	} {
		resp := post(t, r.socket(), "http://localhost"+step.path, step.body)
		if got := r.Status().Sharing; resp.StatusCode != step.status || got != step.want {
			t.Errorf("%s: status %d, now %+v, want %+v", step.path, resp.StatusCode, got, step.want)
		}
		assert.That(t, resp.StatusCode != 400 || faultIn(t, resp).Message != "", "a refusal without words")
	}
	if text := read(t, post(t, r.socket(), "http://localhost/v1/chat/completions", chat(true)).Body); !strings.HasSuffix(text, done) {
		t.Errorf("the local surface over the socket: %s", text)
	}
	if got := faultIn(t, r.post("/pause", "")); got.Code != "route_not_found" {
		t.Errorf("the control API over TCP: %+v", got)
	}

	second, err := New(Config{Home: home, Listen: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)})
	assert.OK(t, err)
	assert.Fails(t, second.Run(t.Context()), "another kith", "a second daemon")
	r.end()
	assert.Is(t, assert.Err(os.Stat(filepath.Join(home, "daemon.sock"))), fs.ErrNotExist, "the socket stays")
}

// A pause is kept after the daemon ends and is reported to the hub.
func TestPauseOutlivesRestart(t *testing.T) {
	e := enginetest.New(enginetest.Plain, enginetest.Options{})
	r, h, l := joined(t, Config{}, e)
	post(t, r.socket(), "http://localhost/pause", "")
	l.until("paused", func(ad tunnel.Advertisement) bool { return ad.Paused })
	r.end()
	r = run(t, Config{Home: r.home}, e)
	if l := h.connected(); !l.ad.Paused || l.ad.Generation != 2 {
		t.Errorf("advertised %+v", l.ad)
	}
	// The owner's own programs are served all the same.
	assert.Equal(t, r.post("/v1/chat/completions", chat(false)).StatusCode, 200, "a local call while paused")
}

// Signing in requires no restart. A daemon that the hub refuses, or that another one
// replaced, serves its owner, and tries again.
func TestSignIn(t *testing.T) {
	e := enginetest.New(enginetest.Plain, enginetest.Options{})
	r := run(t, Config{}, e)
	h := newHub(t)
	h.refuse = http.StatusUnauthorized
	h.signIn(r.home)
	post(t, r.socket(), "http://localhost/signin", "")
	r.await("refused", func(s Status) bool { return s.Tunnel.State == TunnelRefused && s.Tunnel.Error != "" })
	assert.Equal(t, r.post("/v1/chat/completions", chat(false)).StatusCode, 200, "a local call")
	h.mu.Lock()
	h.refuse = 0
	h.mu.Unlock()
	post(t, r.socket(), "http://localhost/signin", "")
	l := h.connected()
	r.await("acknowledged", func(s Status) bool {
		return s.Tunnel.State == string(tunnel.Acked) && s.Tunnel.Hub == h.URL && s.Tunnel.Machine == "mch_1" && s.Tunnel.Error == ""
	})

	// A newer tunnel of the same machine: this daemon reports it and stops its own.
	l.Fence(t.Context())
	r.await("fenced", func(s Status) bool {
		return s.Tunnel.State == TunnelFenced && time.Until(s.Tunnel.Retry) > 30*time.Second && s.Tunnel.Error != ""
	})
	// It tries again by itself, slowly, and at once where its owner asks for it.
	post(t, r.socket(), "http://localhost/resume", "")
	l = h.connected()
	r.await("acknowledged again", func(s Status) bool {
		return s.Tunnel.State == string(tunnel.Acked) && s.Tunnel.Error == "" && s.Tunnel.Retry.IsZero()
	})
	assert.That(t, l.Instance() != "", "the tunnel names no instance")

	assert.OK(t, os.Remove(filepath.Join(r.home, "credential")))
	post(t, r.socket(), "http://localhost/signin", "")
	r.await("signed out", func(s Status) bool { return s.Tunnel.State == TunnelOff && !s.Tunnel.SignedIn })
	assert.Lacks(t, r.log.String(), "kithm_", "the secret is in the log")
}

// A machine that is not shared keeps no tunnel.
func TestUnshared(t *testing.T) {
	r, h := away(t, nil)
	r.await("not shared", func(s Status) bool { return s.Tunnel.State == TunnelUnshared })
	r.end()
	assert.Equal(t, len(h.clients), 0, "it dialled")
}

// pipes is a network in memory: one address, connections of net.Pipe.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.done:
	default:
		close(p.done)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// What the hub cannot use is in the status until the hub takes it back, or another tunnel
// is opened.
func TestHubDoesNotKnowTheZone(t *testing.T) {
	r, _, l := joined(t, Config{Sharing: Sharing{Hours: "Mon-Sun 00:00-24:00", Timezone: "Europe/Lisbon"}})
	notify := func(unknown bool) {
		t.Helper()
		assert.OK(t, l.Notify(t.Context(), tunnel.Notice{ZoneUnknown: unknown}))
	}
	notify(true)
	r.await("the notice", func(s Status) bool { return s.Tunnel.ZoneUnknown })
	s := r.Status()
	if n := len(s.RecentErrors); n == 0 || !strings.Contains(s.RecentErrors[n-1].What, `does not know the time zone "Europe/Lisbon"`) {
		t.Errorf("%+v", s.RecentErrors)
	}
	notify(false)
	r.await("it taken back", func(s Status) bool { return !s.Tunnel.ZoneUnknown })
	notify(true)
	r.await("the notice", func(s Status) bool { return s.Tunnel.ZoneUnknown })
	l.Close()
	r.await("another tunnel", func(s Status) bool { return !s.Tunnel.ZoneUnknown })
}

// At the end of the sharing hours others are refused, the owner is served and running
// calls continue; in false time.
func TestHoursEnd(t *testing.T) {
	home := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		double := enginetest.New(enginetest.Plain, enginetest.Options{Behaviour: enginetest.Behaviour{Chunks: 12, Interval: time.Minute}})
		// A bubble's clock starts on a Saturday at midnight, UTC.
		_, l := falseTime(t, Config{Home: home, Sharing: Sharing{Hours: "Sat 00:00-00:05", Timezone: "UTC"}}, double)
		running := l.served("/v1/chat/completions", chat(true))
		time.Sleep(5 * time.Minute)
		for caller, want := range map[string]string{"shared bob": string(tunnel.RefusedHours), "own ada": ""} {
			resp := l.served("/v1/chat/completions", strings.Replace(chat(false), "three", "", 1), tunnel.HeaderCaller, caller)
			assert.Equal(t, resp.Header.Get(tunnel.HeaderRefused), want, caller, "refused")
		}
		if text := read(t, running.Body); !strings.HasSuffix(text, done) {
			t.Errorf("what ran when the hours ended: %s", text)
		}
	})
}

// An engine on a busy computer that answers the first look too late is found by the next
// one, which follows at once, and stays; so is one that a reload adds; in false time.
func TestLateEngine(t *testing.T) {
	home := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		late := enginetest.New(enginetest.LlamaCpp, enginetest.Options{}).Transport()
		c := Config{Home: home, Discovery: engine.Config{Endpoints: []string{"http://127.0.0.1:8080"}, Transport: lateTransport{late}}}
		d, _ := falseTime(t, c, enginetest.New(enginetest.Plain, enginetest.Options{}))
		found := func(n int) {
			t.Helper()
			if got := d.finder.Engines(); len(got) != n || got[0].Kind() != "llama.cpp" {
				t.Errorf("found %v: %+v", got, d.finder.Report())
			}
		}
		time.Sleep(4 * time.Second)
		found(1)
		c.Discovery.Endpoints = append(c.Discovery.Endpoints, "http://127.0.0.1:8081")
		assert.OK(t, d.Reload(t.Context(), c))
		time.Sleep(4 * time.Second)
		found(2)
		for range 60 {
			time.Sleep(time.Second)
			found(2)
		}
	})
}

// lateTransport answers 400 ms late.
type lateTransport struct{ http.RoundTripper }

func (l lateTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-time.After(400 * time.Millisecond):
		return l.RoundTripper.RoundTrip(r)
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// falseTime runs a daemon inside a synctest bubble with that engine built in,
// connected to a hub that only holds the tunnel. Both end with the test, or when
// the link's leave is called.
func falseTime(t *testing.T, c Config, double *enginetest.Engine) (*Daemon, *link) {
	t.Helper()
	assert.OK(t, SaveCredential(c.Home, Credential{Hub: "http://127.0.0.1:1", Machine: "m", Secret: "s"}))
	model := engine.Model{ID: "test-model", Families: []fleet.Family{fleet.Chat}, Endpoints: []fleet.Endpoint{fleet.ChatCompletions}, Slots: 4}
	hub := newPipes()
	clients := make(chan *tunnel.Client, 1)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, err := tunnel.Upgrade(w, r, tunnel.UpgradeConfig{Generation: 1})
		if err != nil {
			t.Errorf("Upgrade: %v", err)
			return
		}
		clients <- client
	})}
	go server.Serve(hub)
	c.Log, c.Own, c.Dial = slog.New(slog.DiscardHandler), []*engine.Engine{builtinOf(double, model)}, hub.dial
	c.ListenOn = func(string, string) (net.Listener, error) { return newPipes(), nil }
	d := assert.Value(New(c))(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	client := <-clients
	next, stop := iter.Pull2(client.Offers(ctx))
	l := &link{Client: client, t: t, next: next}
	l.leave = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		stop()
		client.Close()
		server.Close()
		hub.Close()
	})
	t.Cleanup(l.leave)
	l.until("there", func(tunnel.Advertisement) bool { return true })
	assert.OK(t, client.Ack(ctx))
	return d, l
}
