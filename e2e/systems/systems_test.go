// Package systems_test runs kith as it is built for other systems than this one: kith.exe
// under Wine, and Linux's arm64 binary with its built-in engine under qemu. It is a part of
// `make test-all` alone: scripts/test-systems.sh installs the two, and builds build/systems.
package systems_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// patience is how long a test waits for anything before it fails: an emulated processor is
// ten times as slow.
const patience = 5 * time.Minute

// built returns the path of a file that scripts/test-systems.sh made.
func built(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "build", "systems", name))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%v; run scripts/test-systems.sh, or make test-all", err)
	}
	return path
}

// system runs kith on another system.
type system struct {
	t       *testing.T
	program []string // before kith's arguments
	env     []string
}

func (s *system) command(args ...string) *exec.Cmd {
	all := append(append([]string{}, s.program...), args...)
	cmd := exec.Command(all[0], all[1:]...)
	cmd.Env = s.env
	return cmd
}

// kith runs a command, and returns what it prints and its exit status.
func (s *system) kith(args ...string) (out string, status int) {
	s.t.Helper()
	cmd := s.command(args...)
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Run()
	if ended, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		s.t.Fatal(err)
	} else if ok && !ended.Exited() {
		s.t.Fatalf("kith %s did not end: %s", strings.Join(args, " "), text.String())
	}
	return strings.ReplaceAll(text.String(), "\r\n", "\n"), cmd.ProcessState.ExitCode()
}

// network is what `kith dev --json` prints.
type network struct {
	Hub, Local, Site string
	APIKey           string `json:"api_key"`
	Models           []string
}

// dev starts `kith dev` and returns its network. end interrupts it as Ctrl-C does, and
// fails unless it ends well.
func (s *system) dev(data string) (n network, end func()) {
	t := s.t
	t.Helper()
	cmd := s.command("dev", "--json", "--data", data, "--listen", "127.0.0.1:0", "--local", "127.0.0.1:0")
	var trouble bytes.Buffer
	cmd.Stderr = &trouble
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	more := json.NewDecoder(out)
	go func() { read <- more.Decode(&n) }()
	interrupted := false
	kill := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	end = func() {
		t.Helper()
		if interrupted {
			return
		}
		interrupted = true
		kill.Reset(patience)
		_ = cmd.Process.Signal(os.Interrupt)
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil {
			t.Errorf("an interrupt does not end kith dev: %v\n%s", err, trouble.String())
		}
		kill.Stop()
	}
	t.Cleanup(end)
	if err := <-read; err != nil {
		t.Fatalf("kith dev: %v", err)
	}
	kill.Stop()
	return n, end
}

// chat calls a model and returns the answer's text and where it was made.
func chat(t *testing.T, base, key, model string, stream bool) (text, route string) {
	t.Helper()
	body, _ := json.Marshal(map[string]any{
		"model": model, "stream": stream, "max_tokens": 20,
		"messages": []map[string]string{{"role": "user", "content": "What is the capital of France?"}},
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	client := &http.Client{Timeout: patience}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v\n%s", req.URL, res.Status, err, got)
	}
	type choice struct {
		Choices []struct{ Message, Delta struct{ Content string } }
	}
	answers, ended := []string{string(got)}, true
	if stream {
		var frames string
		frames, ended = strings.CutSuffix(strings.TrimSpace(string(got)), "data: [DONE]")
		answers = strings.Split(frames, "\n\n")
	}
	for _, answer := range answers {
		var c choice
		if json.Unmarshal([]byte(strings.TrimPrefix(answer, "data: ")), &c) == nil && len(c.Choices) > 0 {
			text += c.Choices[0].Message.Content + c.Choices[0].Delta.Content
		}
	}
	if text == "" || !ended {
		t.Errorf("%s answers, with stream %v:\n%s", req.URL, stream, got)
	}
	return text, res.Header.Get("X-Kith-Route")
}

// await waits until the hub lists a model: on a busy computer the first look at an engine can
// be too short.
func await(t *testing.T, n network, model string) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.Hub+"/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+n.APIKey)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		list, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if strings.Contains(string(list), `"`+model+`"`) {
			return
		}
		if time.Since(began) > patience {
			t.Fatalf("the hub does not list %s: %s", model, list)
		}
	}
}

// callAll calls a model through the hub and its tunnel, and at the daemon, unary and as a
// stream. want is a part of each answer.
func callAll(t *testing.T, n network, model, want string) {
	t.Helper()
	await(t, n, model)
	for _, stream := range []bool{false, true} {
		text, route := chat(t, n.Hub, n.APIKey, model, stream)
		if !strings.Contains(text, want) || !strings.Contains(route, "you") {
			t.Errorf("through the hub: %q by %q", text, route)
		}
		if text, _ := chat(t, n.Local, "", model, stream); !strings.Contains(text, want) {
			t.Errorf("at the daemon: %q", text)
		}
	}
}
