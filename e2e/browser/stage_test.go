package browser_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// stage is a hub of its own process, and what a machine needs to sign in to it.
type stage struct {
	t      *testing.T
	binary string
	home   string // of the machine, with everything else in it
	base   string // the site
	first  string // the one-time link of the first account
	engine *enginetest.Engine
	hub    *os.Process
	env    []string // more of the environment of what is started
}

// newStage starts a fresh hub. Its machine will offer the models, of which qwen3 thinks, llava
// sees, voxtral hears and nomic-embed-text only makes embeddings.
func newStage(t *testing.T, models ...string) *stage {
	t.Helper()
	return newStageWith(t, "127.0.0.1:0", "", models...)
}

// newStageWith is newStage for a hub that listens there, with more in its
// configuration.
func newStageWith(t *testing.T, listen, config string, models ...string) *stage {
	t.Helper()
	return newStageOver(t, func(string) {}, listen, config, models...)
}

// newStageOver is newStageWith for a hub whose data folder seed fills before it starts.
func newStageOver(t *testing.T, seed func(folder string), listen, config string, models ...string) *stage {
	t.Helper()
	s := &stage{t: t, binary: os.Getenv("KITH_BIN"), home: shortDir(t)}
	if s.binary == "" {
		s.binary, _ = filepath.Abs("../../bin/kith")
	}
	if _, err := os.Stat(s.binary); err != nil {
		t.Fatalf("cannot find the binary under test: %v; run make build, or make test", err)
	}
	var offered []enginetest.Model
	for i, id := range models {
		offered = append(offered, enginetest.Model{ID: id, ContextLength: 4096 << (i % 4), Tools: i == 0,
			Thinking: id == "qwen3", Vision: id == "llava", Audio: id == "voxtral", Embeddings: id == "nomic-embed-text"})
	}
	engine := enginetest.New(enginetest.Ollama, enginetest.Options{Models: offered, Behaviour: enginetest.Behaviour{Text: "Hello from the attic"}})
	assert.OK(t, engine.Start())
	t.Cleanup(func() { engine.Close() })
	s.engine = engine
	s.write("hub.toml", "[site]\nsignup = \"invite\"\n[ratelimit]\nrps = 0\n"+config)
	s.write("config.toml", fmt.Sprintf("[daemon]\nlisten = \"127.0.0.1:0\"\n[engine]\nbuiltin = false\n[discovery]\nenabled = false\nendpoints = [%q]\n", engine.URL()+"/v1"))

	seed(filepath.Join(s.home, "hub"))
	s.hub = s.start("hub", "--json", "--config", filepath.Join(s.home, "hub.toml"), "--listen", listen, "--admin", "127.0.0.1:0", "--data", filepath.Join(s.home, "hub"))
	var told struct {
		Hub   string `json:"hub"`
		First string `json:"first_link_file"`
	}
	s.until("the hub listens", func() bool { return json.Unmarshal([]byte(s.read("hub.out")), &told) == nil })
	s.base = told.Hub
	if link, err := os.ReadFile(told.First); err == nil {
		s.first = strings.TrimSpace(string(link))
	}
	return s
}

func (s *stage) write(name, text string) {
	s.t.Helper()
	assert.OK(s.t, os.WriteFile(filepath.Join(s.home, name), []byte(text), 0o600))
}

// read is what a file of the stage holds by now: "hub.err" is what the hub said
// on standard error.
func (s *stage) read(name string) string {
	text, _ := os.ReadFile(filepath.Join(s.home, name))
	return string(text)
}

// start runs kith, to the test's end at most.
func (s *stage) start(args ...string) *os.Process {
	s.t.Helper()
	cmd := exec.Command(s.binary, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.home, "KITH_HOME=" + s.home, "KITH_SYSTEM_ROOT=" + s.home, "NO_COLOR=1"}, s.env...)
	for ending, to := range map[string]*io.Writer{".out": &cmd.Stdout, ".err": &cmd.Stderr} {
		file := assert.Value(os.Create(filepath.Join(s.home, args[0]+ending)))(s.t)
		defer file.Close() // the process has its own
		*to = file
	}
	assert.OK(s.t, cmd.Start())
	s.t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt) // it may have ended by itself
		if err := cmd.Wait(); err != nil || s.t.Failed() {
			s.t.Logf("kith %s ended (%v) and said:\n%s", args[0], err, s.read(args[0]+".err"))
		}
	})
	return cmd.Process
}

// kith runs a command of the machine to its end.
func (s *stage) kith(args ...string) {
	s.t.Helper()
	cmd := exec.Command(s.binary, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.home, "KITH_HOME=" + s.home, "KITH_SYSTEM_ROOT=" + s.home, "NO_COLOR=1"}
	if said, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("kith %s: %v: %s", strings.Join(args, " "), err, said)
	}
}

// until waits until something holds.
func (s *stage) until(what string, holds func() bool) {
	s.t.Helper()
	for late := time.After(patience); !holds(); {
		select {
		case <-time.After(100 * time.Millisecond): // most look at a page, which takes as long
		case <-late:
			s.t.Fatalf("it never happened that %s", what)
		}
	}
}

// code is the code that `kith login` shows.
func (s *stage) code() (code string) {
	s.t.Helper()
	s.until("kith login shows a code", func() bool {
		_, after, _ := strings.Cut(s.read("login.err"), "\nType ")
		line, _, complete := strings.Cut(after, "\n")
		code = strings.TrimSpace(line)
		return complete
	})
	return code
}

// call makes a call as any client would, and returns the answer's status, its
// code if it was refused, and through what it came.
func (s *stage) call(key, model string) (status int, code, route string) {
	s.t.Helper()
	body, _ := json.Marshal(map[string]any{"model": model, "messages": []any{map[string]string{"role": "user", "content": "Hello"}}})
	req, _ := http.NewRequest("POST", s.base+"/v1/chat/completions", strings.NewReader(string(body)))
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	resp := assert.Value(http.DefaultClient.Do(req))(s.t)
	defer resp.Body.Close()
	var answer struct {
		Error struct{ Code string }
	}
	assert.OK(s.t, json.NewDecoder(resp.Body).Decode(&answer))
	return resp.StatusCode, answer.Error.Code, resp.Header.Get("X-Kith-Route")
}
