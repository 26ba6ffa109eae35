package cli

import (
	"bufio"
	"context"
	"encoding/json/v2"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
)

func TestModelFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"a.gguf", "notes.txt", "b.c.gguf", "large-00001-of-00002.gguf", "large-00002-of-00002.gguf", "half.gguf.0a1b2c3d.part",
		"sees/sees.gguf", "sees/mmproj-F16.gguf", "sees/deeper/no.gguf", ".hidden/no.gguf", "other/a.gguf",
	} {
		path := filepath.Join(dir, name)
		assert.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
		assert.OK(t, os.WriteFile(path, []byte(name), 0o600))
	}
	got := assert.Value(modelFiles([]string{dir, filepath.Join(dir, "absent"), filepath.Join(dir, "a.gguf")}))(t)
	for i := range got {
		if got[i].Version == "" {
			t.Errorf("%s has no version", got[i].ID)
		}
		got[i].Version = ""
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	want := []modelFile{
		{ID: "a", Path: in("a.gguf")},
		{ID: "b.c", Path: in("b.c.gguf")},
		{ID: "large", Path: in("large-00001-of-00002.gguf")},
		{ID: "sees", Path: in("sees/sees.gguf"), Projector: in("sees/mmproj-F16.gguf")},
	}
	assert.Same(t, got, want)
	if _, err := modelFiles([]string{filepath.Join(dir, "absent.gguf")}); err == nil {
		t.Error("a model file that is not there is passed over in silence")
	}
}

func TestSocketIsOursAlone(t *testing.T) {
	dir := onSocket(t, "live.sock", http.NotFoundHandler())
	if _, err := daemon.ListenSocket(filepath.Join(dir, "live.sock")); err == nil || !strings.Contains(err.Error(), "another kith") {
		t.Errorf("took a live socket over: %v", err)
	}
	dead := filepath.Join(dir, "new", "dead.sock")
	first, err := daemon.ListenSocket(dead)
	assert.OK(t, err)
	first.(*net.UnixListener).SetUnlinkOnClose(false) // as a killed process leaves it
	first.Close()
	second, err := daemon.ListenSocket(dead)
	assert.OK(t, err, "a dead socket is in the way")
	defer second.Close()
	info, err := os.Stat(dead)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %v (%v), want 0600", info.Mode(), err)
	}
}

func TestDevStaysOnLoopback(t *testing.T) {
	t.Setenv("KITH_HOME", t.TempDir())
	check(t, kith(t, "", "dev", "--listen", "0.0.0.0:8700"), said{2, "", "cannot use --listen 0.0.0.0:8700"})
	check(t, kith(t, "", "dev", "--local", "example.org:1"), said{2, "", "cannot use --local"})
	check(t, kith(t, "", "serve", "--listen", "0.0.0.0:8701"), said{2, "", "never opened to a network"})
}

// TestReadyText: a daemon without a model says what to do about it, or that its engine starts.
func TestReadyText(t *testing.T) {
	status := daemon.Status{Local: "http://127.0.0.1:1/v1"}
	if got, want := readyText(status), "daemon on "+strong(status.Local)+"\nno model yet: `kith pull` lists some that fit this machine, or start an engine that has one\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	status.Engines = []daemon.EngineStatus{{Kind: "builtin", Models: 1, Why: "the built-in engine is starting"}}
	if got, want := readyText(status), "daemon on "+strong(status.Local)+"\nno model yet: the built-in engine is starting\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	status.Models = []fleet.ModelID{"tiny"}
	assert.Equal(t, readyText(status), "daemon on "+strong(status.Local)+"\n")
}

// process is a command that serves, in this process.
type process struct {
	first string // its first line
	stop  func() said
}

// shared is a buffer that may be written to while it is read: the line of a
// machine may log its end after the command's own.
type shared struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *shared) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// begin starts a command and waits for its first line; the command is ended
// with the test at the latest.
func begin(t *testing.T, args ...string) process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	read, write := io.Pipe()
	errs := new(shared)
	ended := make(chan said, 1)
	go func() {
		status := Main(ctx, args, strings.NewReader(""), write, errs)
		write.Close()
		ended <- said{status: status, err: errs.String()}
	}()
	lines := bufio.NewReader(read)
	first, err := lines.ReadString('\n')
	if err != nil {
		cancel()
		t.Fatalf("kith %s printed nothing: %+v", strings.Join(args, " "), <-ended)
	}
	rest := make(chan struct{})
	go func() {
		io.Copy(io.Discard, lines)
		close(rest)
	}()
	var end said
	stopped := false
	p := process{first: first, stop: func() said {
		if !stopped {
			stopped = true
			cancel()
			<-rest
			end = <-ended
		}
		return end
	}}
	t.Cleanup(func() { p.stop() })
	return p
}

// shortDir is a folder whose path leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	dir := assert.Value(os.MkdirTemp("", "kith"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// awaitRefusal waits until the key of the environment, which was revoked, is
// refused. That it is within 5 s everywhere is for internal/sim to
// show, in false time.
func awaitRefusal(t *testing.T) {
	t.Helper()
	home := os.Getenv("KITH_HOME")
	t.Setenv("KITH_HOME", t.TempDir()) // a machine that is signed in uses its credential
	defer t.Setenv("KITH_HOME", home)
	for late := time.Now().Add(soon); ; {
		got := kith(t, "", "models", "--account")
		if got.status == exitNotSignedIn {
			check(t, got, said{3, "", "cannot list the models"})
			return
		}
		assert.Require(t, !time.Now().After(late), "a revoked key is still good", got)
	}
}

// TestHubAndItsOperator runs a real hub and walks an operator's and a member's
// first steps through the commands.
func TestHubAndItsOperator(t *testing.T) {
	dir := shortDir(t)
	t.Setenv("KITH_HOME", filepath.Join(dir, "home"))
	t.Setenv("KITH_HUB", "")
	p := begin(t, "hub", "--data", dir, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--json")
	var at struct{ Hub, Admin string }
	assert.OK(t, json.Unmarshal([]byte(p.first), &at, json.MatchCaseInsensitiveNames(true)), "first line", p.first)
	admin := func(args string) string {
		t.Helper()
		got := kith(t, "", append([]string{"admin", "--data", dir, "--json"}, strings.Fields(args)...)...)
		assert.Require(t, got.status == 0, "admin", args, got)
		return got.out
	}
	field := func(text, name string) string {
		t.Helper()
		var members map[string]any
		assert.OK(t, json.Unmarshal([]byte(text), &members))
		value, _ := members[name].(string)
		assert.Require(t, value != "", text, "has no", name)
		return value
	}
	admin("member create ann")
	key := admin("key create --member ann")
	token := field(admin("machine token --member ann"), "token")

	if got := kith(t, "", "login", "--hub", at.Hub, "--token", token); got.status != 0 {
		t.Fatalf("login: %+v", got)
	}
	check(t, kith(t, "", "login", "--hub", at.Hub, "--token", token), said{3, "", "cannot sign in"})
	check(t, kith(t, "", "models", "--account"), said{0, "none\n", ""})

	t.Setenv("KITH_HUB", at.Hub)
	t.Setenv("KITH_API_KEY", field(key, "secret"))
	check(t, kith(t, "", "run", "tiny", "hello"), said{4, "", "cannot run tiny"})
	admin("key revoke " + field(key, "id"))
	awaitRefusal(t)

	for path, want := range map[string]string{"/healthz": "ok", "/readyz": "ok", "/metrics": "kith_machines_online 0", "/debug/pprof/cmdline": ""} {
		res, err := http.Get(at.Admin + path)
		assert.OK(t, err)
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != 200 || !strings.Contains(string(text), want) {
			t.Errorf("GET %s: %s %q %v", path, res.Status, text, err)
		}
	}
	other := kith(t, "", "hub", "--data", dir, "--listen", "127.0.0.1:0", "--admin", "")
	check(t, other, said{1, "", "another kith process has it open"})
	other = kith(t, "", "hub", "--data", filepath.Join(dir, "b"), "--listen", strings.TrimPrefix(at.Hub, "http://"), "--admin", "")
	// On a busy computer it says that its new database takes long.
	other.err = regexp.MustCompile("time=.* level=INFO .*\n").ReplaceAllString(other.err, "")
	check(t, other, said{1, "", "choose another address with --listen"})
	if end := p.stop(); end.status != 0 {
		t.Errorf("ended with %+v", end)
	}
}

// TestDevKeepsTheMemberAndReplacesTheKey starts `kith dev` twice on one
// folder, in a build without the built-in engine.
func TestDevKeepsTheMemberAndReplacesTheKey(t *testing.T) {
	dir := shortDir(t)
	t.Setenv("KITH_HOME", dir)
	args := []string{"dev", "--data", dir, "--listen", "127.0.0.1:0", "--local", "127.0.0.1:0", "--json"}
	start := func() (process, network) {
		t.Helper()
		p := begin(t, args...)
		var n network
		assert.OK(t, json.Unmarshal([]byte(p.first), &n, json.RejectUnknownMembers(true)), "first line", p.first)
		return p, n
	}
	p, first := start()
	if first.Hub != first.MessagesBase+"/v1" || first.Site != first.MessagesBase || !strings.HasSuffix(first.Local, "/v1") {
		t.Errorf("addresses do not fit together: %+v", first)
	}
	check(t, kith(t, "", args...), said{1, "", "another kith process has it open"})
	members := kith(t, "", "admin", "member", "list", "--data", dir, "--json").out
	machines := kith(t, "", "admin", "machine", "list", "--data", dir, "--json").out
	if !strings.Contains(members, `"name":"you"`) || strings.Count(machines, `"id"`) != 1 || !strings.Contains(machines, `"online":true`) {
		t.Errorf("members %s machines %s", members, machines)
	}
	if end := p.stop(); end.status != 0 {
		t.Errorf("ended with %+v", end)
	}

	p, second := start()
	assert.That(t, second.APIKey != first.APIKey, "the key was not replaced")
	assert.Equal(t, kith(t, "", "admin", "member", "list", "--data", dir, "--json").out, members, "another member")
	if got := kith(t, "", "admin", "machine", "list", "--data", dir, "--json").out; strings.Count(got, `"id"`) != 1 {
		t.Errorf("another machine: %s", got)
	}
	t.Setenv("KITH_HUB", second.Hub)
	t.Setenv("KITH_API_KEY", first.APIKey)
	awaitRefusal(t)
	t.Setenv("KITH_API_KEY", second.APIKey)
	if got := kith(t, "", "models", "--account"); got.status != 0 {
		t.Errorf("the new key: %+v", got)
	}
	if end := p.stop(); end.status != 0 {
		t.Errorf("ended with %+v", end)
	}
}

// TestAMachineJoins brings a real daemon, with an engine at a configured
// place, to a real hub: sign-in while it runs, then calls over the hub and here.
func TestAMachineJoins(t *testing.T) {
	engine := httptest.NewServer(enginetest.New(enginetest.Ollama, enginetest.Options{
		Models: []enginetest.Model{{ID: "llama3:8b"}}, Behaviour: enginetest.Behaviour{Text: "Hello from here"},
	}))
	defer engine.Close()
	dir := shortDir(t)
	home := filepath.Join(dir, "home")
	t.Setenv("KITH_HOME", home)
	t.Setenv("KITH_HUB", "")
	assert.OK(t, os.Mkdir(home, 0o700))
	config := "[daemon]\nlisten = \"127.0.0.1:0\"\n[engine]\nbuiltin = false\n" +
		"[discovery]\nenabled = false\nendpoints = [\"" + engine.URL + "/v1\"]\n"
	assert.OK(t, os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o600))
	p := begin(t, "hub", "--data", dir, "--listen", "127.0.0.1:0", "--admin", "", "--json")
	base, _, _ := strings.Cut(strings.TrimPrefix(p.first, `{"hub":"`), `"`)
	daemon := begin(t, "serve", "--json")
	if !strings.HasPrefix(daemon.first, `{"local":"http://127.0.0.1:`) {
		t.Fatalf("serve printed %s", daemon.first)
	}

	// Not signed in yet, it serves what is here, once it has found it: on a busy computer
	// the engine's pages may be late for its first look.
	for late := time.Now().Add(soon); !strings.Contains(kith(t, "", "models").out, "llama3:8b") && time.Now().Before(late); {
		time.Sleep(50 * time.Millisecond)
	}
	check(t, kith(t, "", "models"), said{0, "MODEL       CONTEXT   TOOLS\nllama3:8b   -         -\n", ""})
	check(t, kith(t, "", "run", "llama3:8b", "hi"), said{0, "Hello from here\n", ""})
	check(t, kith(t, "", "run", "nope", "hi"), said{4, "", "cannot run nope"})
	check(t, kith(t, "", "serve"), said{1, "", "another kith is listening there"})

	secret := func(args ...string) string {
		t.Helper()
		got := kith(t, "", append([]string{"admin", "--data", dir}, args...)...)
		line, _, _ := strings.Cut(got.out, "\n")
		assert.Require(t, got.status == 0 && line != "", args, got)
		return line
	}
	secret("member", "create", "ann")
	got := kith(t, "", "login", "--hub", base, "--token", secret("machine", "token", "--member", "ann", "--name", "desk"))
	assert.Require(t, got.status == 0 && strings.Contains(got.out, "its daemon connects now"), "login", got)
	t.Setenv("KITH_HUB", base)
	t.Setenv("KITH_API_KEY", secret("key", "create", "--member", "ann"))
	want := "MODEL       CONTEXT   TOOLS   AVAILABILITY   MACHINES   ACCESS\nllama3:8b   -         -       ready          1          own\n"
	for late := time.Now().Add(soon); ; <-time.After(50 * time.Millisecond) { // it is its owner's for a while yet; and the key has a rate
		got := kith(t, "", "models", "--account")
		if got.out == want {
			break
		}
		if time.Now().After(late) {
			t.Fatalf("the machine did not become reachable: %+v\n%s", got, kith(t, "", "status").out)
		}
	}
	check(t, kith(t, "", "run", "llama3:8b", "hi"), said{0, "Hello from here\n", ""}) // by the daemon, which is signed in
	call := assert.Value(http.NewRequest("POST", base+"/v1/chat/completions", strings.NewReader(`{"model":"llama3:8b","stream":true,"messages":[{"role":"user","content":"hi"}]}`)))(t)
	call.Header.Set("Authorization", "Bearer "+os.Getenv("KITH_API_KEY"))
	answer := assert.Value(http.DefaultClient.Do(call))(t)
	text := assert.Value(io.ReadAll(answer.Body))(t)
	answer.Body.Close()
	assert.Require(t, answer.StatusCode == 200 && strings.Contains(string(text), "[DONE]"), answer.StatusCode, string(text))
	if got := kith(t, "", "admin", "--data", dir, "machine", "list"); !strings.Contains(got.out, "desk") || !strings.Contains(got.out, "online") || !strings.Contains(got.out, "   now    ") {
		t.Errorf("machine list: %+v", got)
	}
	for late := time.Now().Add(soon); ; <-time.After(50 * time.Millisecond) { // the hub measures a call after its end
		got := kith(t, "", "status")
		if strings.Contains(got.out, ": connected") && strings.Contains(got.out, "\nspeed     llama3:8b: about ") {
			break
		}
		assert.Require(t, !time.Now().After(late), "status", got)
	}
	for _, each := range []process{daemon, p} {
		if end := each.stop(); end.status != 0 {
			t.Errorf("ended with %+v", end)
		}
	}
}
