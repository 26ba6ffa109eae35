package clients_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// staged is a network of separate processes in a folder.
type staged struct {
	t            *testing.T
	binary, data string
	dir, hub     string
	keys         map[string]string
	clients      map[string]openai.Client // one a member: each keeps connections of its own
}

// startNetwork starts a hub with that configuration and its first member, ada.
func startNetwork(t *testing.T, config string) *staged {
	t.Helper()
	dir := shortDir(t)
	n := &staged{t: t, binary: kithBinary(t), dir: dir, data: filepath.Join(dir, "hub"), keys: map[string]string{}, clients: map[string]openai.Client{}}
	addr := enginetest.FreeAddress()
	n.hub = "http://" + addr
	file := filepath.Join(dir, "hub.toml")
	assert.OK(t, os.WriteFile(file, []byte("# an empty file is refused\n"+config), 0o600))
	n.start("hub", "hub", "--config", file, "--data", n.data, "--listen", addr, "--admin", "")
	n.until("the hub answers", func() error {
		_, err := n.try("admin", "member", "list", "--data", n.data)
		return err
	})
	n.member("ada")
	return n
}

// shortDir makes a folder for the test whose name is short enough for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kith-six-")
	assert.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// start runs kith with a home of its own until it is killed, or the test ends.
func (n *staged) start(home string, args ...string) (kill func()) {
	cmd := exec.Command(n.binary, args...)
	cmd.Env = append(os.Environ(), "KITH_HOME="+filepath.Join(n.dir, home))
	cmd.Stderr = n.t.Output()
	assert.OK(n.t, cmd.Start())
	killed := false
	kill = func() {
		if !killed {
			killed = true
			cmd.Process.Kill()
			cmd.Wait()
		}
	}
	n.t.Cleanup(kill)
	return kill
}

func (n *staged) try(args ...string) ([]byte, error) {
	cmd := exec.Command(n.binary, args...)
	cmd.Env = append(os.Environ(), "KITH_HOME="+filepath.Join(n.dir, "nobody"))
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("kith %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return out, err
}

func (n *staged) kith(args ...string) []byte {
	n.t.Helper()
	out := assert.Value(n.try(args...))(n.t)
	return out
}

func (n *staged) member(name string) {
	n.kith("admin", "member", "create", name, "--data", n.data)
	var key struct {
		Secret string `json:"secret"`
	}
	if err := json.Unmarshal(n.kith("admin", "key", "create", "--member", name, "--data", n.data, "--json"), &key); err != nil {
		n.t.Fatal(err)
	}
	n.keys[name] = key.Secret
	n.clients[name] = n.atHub(name).openAI()
}

// atHub returns the hub's surface, with the key of the member.
func (n *staged) atHub(member string) surface {
	return surface{name: "hub", base: n.hub, key: n.keys[member]}
}

// machine is one daemon of ada's over an engine that serves one model.
type machine struct {
	home    string
	kill    func()
	running chan struct{} // closed once a call runs that is never answered
}

func (n *staged) machine(model, hours string) *machine {
	m := &machine{home: filepath.Join(n.dir, model), running: make(chan struct{})}
	engine := httptest.NewServer(m.engine(model))
	n.t.Cleanup(engine.Close)
	m.kill = n.daemon(model, engineConfig(engine.URL)+fmt.Sprintf("[share]\nslots = 1\nhours = %q\ntimezone = \"UTC\"\n", hours))
	return m
}

// engineConfig makes a daemon serve the engine there and no other.
func engineConfig(url string) string {
	return fmt.Sprintf("[engine]\nbuiltin = false\n[discovery]\nenabled = false\nendpoints = [%q]\n", url)
}

// daemon signs a machine of ada's in and serves on it under that configuration.
func (n *staged) daemon(name, config string) (kill func()) { return n.daemonOf("ada", name, config) }

func (n *staged) daemonOf(member, name, config string) (kill func()) {
	home := filepath.Join(n.dir, name)
	assert.OK(n.t, os.MkdirAll(home, 0o700))
	assert.OK(n.t, os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o600))
	var made struct {
		Token string `json:"token"`
	}
	if err := json.Unmarshal(n.kith("admin", "machine", "token", "--member", member, "--name", name, "--data", n.data, "--json"), &made); err != nil {
		n.t.Fatal(err)
	}
	login := exec.Command(n.binary, "login", "--hub", n.hub, "--token", made.Token)
	login.Env = append(os.Environ(), "KITH_HOME="+home)
	if out, err := login.CombinedOutput(); err != nil {
		n.t.Fatalf("login: %v: %s", err, out)
	}
	return n.start(name, "serve", "--listen", "127.0.0.1:0")
}

// engine is as little of an engine as a daemon takes for one. It never answers
// a call that says "hang".
func (m *machine) engine(model string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model"}]}`, model)
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		var ask struct {
			Messages []struct{ Content string }
		}
		if json.NewDecoder(r.Body).Decode(&ask) == nil && ask.Messages[0].Content == "hang" {
			close(m.running)
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"c","object":"chat.completion","created":1,"model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}]}`, model)
	})
	return mux
}

func (n *staged) ask(ctx context.Context, name, model, text string, options ...option.RequestOption) error {
	client, params := n.clients[name], ask(text)
	params.Model = model
	_, err := client.Chat.Completions.New(ctx, params, options...)
	return err
}

func (n *staged) askStreamed(ctx context.Context, name, model string, options ...option.RequestOption) error {
	client, params := n.clients[name], ask("Hello")
	params.Model = model
	events := client.Chat.Completions.NewStreaming(ctx, params, options...)
	defer events.Close()
	for events.Next() {
	}
	return events.Err()
}

// eventually waits until the member's call gives that code; empty: is served.
func (n *staged) eventually(name, model, code string) {
	n.until(fmt.Sprintf("%s's call of %s gives %q", name, model, code), func() error {
		err := n.ask(n.t.Context(), name, model, "Hello", option.WithHeader("Prefer", "wait=0"))
		var api *openai.Error
		if code == "" && err == nil || errors.As(err, &api) && api.Code == code {
			return nil
		}
		return fmt.Errorf("it gives %w", err)
	})
}

func (n *staged) until(what string, does func() error) {
	n.t.Helper()
	late := time.After(time.Minute)
	for {
		err := does()
		if err == nil {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-late:
			n.t.Fatalf("a minute long not: %s: %v", what, err)
		}
	}
}

// curl posts to a daemon's own socket, as its owner may.
func (n *staged) curl(home, path string) {
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(home, "daemon.sock"))
	}}}
	response, err := client.Post("http://localhost"+path, "", nil)
	assert.Require(n.t, err == nil && response.StatusCode == 200, "POST", path, response, err)
	response.Body.Close()
}
