package cli

import (
	"bytes"
	"encoding/json/v2"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// pane is one command in a terminal that tmux plays.
type pane struct {
	t      *testing.T
	socket string
}

// inTerminal runs the shell command in a terminal of 100 by 30.
func inTerminal(t *testing.T, command string, env ...string) *pane {
	t.Helper()
	p := &pane{t, filepath.Join(shortDir(t), "tmux")}
	args := []string{"new-session", "-d", "-x", "100", "-y", "30"}
	for _, setting := range append(env, "PATH="+os.Getenv("PATH")) {
		args = append(args, "-e", setting)
	}
	// What it ended with stays on the screen, and the screen stays.
	p.tmux(append(args, command+`; echo "[status $?]"; cat`)...)
	t.Cleanup(func() { p.tmux("kill-server") })
	return p
}

func (p *pane) tmux(args ...string) string {
	p.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-u", "-f", "/dev/null", "-S", p.socket}, args...)...).CombinedOutput()
	if err != nil {
		p.t.Fatalf("tmux %v: %v %s", args, err, out)
	}
	return string(out)
}

// keys types, by tmux's names of keys.
func (p *pane) keys(keys ...string) { p.t.Helper(); p.tmux(append([]string{"send-keys"}, keys...)...) }

// paste pastes text as a terminal does.
func (p *pane) paste(text string) {
	p.t.Helper()
	p.tmux("set-buffer", text)
	p.tmux("paste-buffer", "-p")
}

// until waits until the screen is as wanted.
func (p *pane) until(what string, holds func(screen string) bool) string {
	p.t.Helper()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for late := time.Now().Add(soon); ; <-again.C {
		screen := p.tmux("capture-pane", "-p", "-J")
		if holds(screen) {
			return screen
		}
		assert.Require(p.t, !time.Now().After(late), "the screen never", what, screen)
	}
}

// shows waits until the screen holds the text.
func (p *pane) shows(text string) string {
	p.t.Helper()
	return p.until("shows "+text, func(screen string) bool { return strings.Contains(screen, text) })
}

// prompts waits until the chat reads the next line. Until then Ctrl-C is a signal, and a
// paste comes line by line.
func (p *pane) prompts() {
	p.t.Helper()
	p.until("asks for a line", func(screen string) bool {
		lines := strings.Split(strings.TrimSpace(screen), "\n")
		return strings.TrimSpace(lines[len(lines)-1]) == ">"
	})
}

// TestChatInATerminal is `kith run` as a person has it: waiting is shown and
// wiped, Ctrl-C stops the answer and not the chat, a paste of several lines is
// one question, the arrows bring back what was typed, /clear forgets.
func TestChatInATerminal(t *testing.T) {
	questions, release := make(chan []message), make(chan struct{})
	gone := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			io.WriteString(w, `{"data":[{"id":"other"},{"id":"tiny"}]}`)
			return
		}
		var in struct {
			Model    string    `json:"model"`
			Messages []message `json:"messages"`
		}
		if err := json.UnmarshalRead(r.Body, &in); err != nil {
			t.Error(err)
		}
		say := func(text string) {
			io.WriteString(w, text+"\n\n")
			w.(http.Flusher).Flush()
		}
		switch last := in.Messages[len(in.Messages)-1].Content; last {
		case "wait":
			say(": working")
			say(": waiting 2 ahead, 41 s left")
			<-release
		case "endless":
			say(`data: {"choices":[{"delta":{"content":"Once upon"}}]}`)
			<-r.Context().Done()
			close(gone)
			return
		}
		say(`data: {"choices":[{"delta":{"content":"Said by ` + in.Model + `."}}]}`)
		say("data: [DONE]")
		questions <- in.Messages
	}))
	defer server.Close()
	asked := func(want ...string) {
		t.Helper()
		var got []string
		for _, m := range <-questions {
			got = append(got, m.Content)
		}
		assert.Equal(t, strings.Join(got, "|"), strings.Join(want, "|"), "asked", got, want)
	}
	p := inTerminal(t, "kith run tiny", "KITH_HOME="+t.TempDir(), "KITH_HUB="+server.URL, "KITH_API_KEY=k", "NO_COLOR=1")
	p.shows("Chatting with tiny.")
	p.prompts()

	p.keys("wait", "Enter")
	p.shows("waiting for a machine: 2 ahead, 41 s left …")
	close(release)
	asked("wait")
	p.until("wipes the progress", func(s string) bool { return strings.Contains(s, "Said by tiny.") && !strings.Contains(s, "ahead") })
	p.prompts()

	p.keys("endless", "Enter")
	p.shows("Once upon")
	p.keys("C-c")
	p.shows("stopped")
	<-gone

	p.prompts()
	p.paste("one\ntwo\nthree")
	p.shows("three")
	p.keys("Enter")
	asked("wait", "Said by tiny.", "one\ntwo\nthree")

	p.keys("/clear", "Enter")
	p.shows("forgotten")
	p.prompts()
	p.keys("never sent", "C-c") // empties the line
	p.keys("Up", "Up")          // /clear, three
	p.shows("> three")
	p.keys("Enter")
	asked("three")

	p.keys("/model", "Enter")
	p.shows("  other\n* tiny")
	p.keys("/model other", "Enter", "hello", "Enter")
	asked("three", "Said by tiny.", "hello")
	p.shows("Said by other.")
	p.keys("/nonsense", "Enter")
	p.shows("There is no command /nonsense")
	p.keys("/help", "Enter")
	p.shows("forget the conversation")
	p.keys("/exit", "Enter")
	p.shows("[status 0]")
}

// TestRunInATerminal: a single answer's wait is shown too, and nothing is left
// of it; where nothing serves the model the status says so.
func TestRunInATerminal(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, ": waiting 0 ahead, 7 s left\n\n")
		w.(http.Flusher).Flush()
		<-release
		io.WriteString(w, `data: {"error":{"code":"CAPACITY_FULL","message":"every machine is busy"}}`+"\n\n")
	}))
	defer server.Close()
	p := inTerminal(t, "kith run tiny hello", "KITH_HOME="+t.TempDir(), "KITH_HUB="+server.URL, "KITH_API_KEY=k")
	p.shows("waiting for a machine: next in line, 7 s left …")
	close(release)
	if screen := p.shows("[status 4]"); !strings.HasPrefix(screen, "kith: cannot run tiny: every machine is busy\n") {
		t.Errorf("the screen is\n%s", screen)
	}
}

// TestProgressInATerminal: every command that takes its time says what it waits
// for, and leaves nothing of that.
func TestProgressInATerminal(t *testing.T) {
	t.Parallel()
	handler, _ := double(t, words(`{"paused":true,"hours":"","timezone":"UTC","slots":0}`))
	home := onSocket(t, "daemon.sock", handler)
	for _, test := range []struct {
		command string
		shows   []string // one after the other
		serves  string   // what stays of one that then serves until Ctrl-C
	}{
		{"kith pause --drain", []string{"waiting for the running calls to end …"}, ""},
		{"kith rehearse model_not_found", []string{"starting the rehearsal's hub …", "staging model_not_found …"}, ""},
		{"kith dev --data dev --listen 127.0.0.1:0 --local 127.0.0.1:0", []string{
			"starting the hub …", "starting the engine and the daemon …", "connecting the daemon to the hub …"}, "Ctrl-C ends."},
	} {
		t.Run(test.command, func(t *testing.T) {
			t.Parallel()
			record := filepath.Join(t.TempDir(), "record")
			p := inTerminal(t, "read begin; cd "+t.TempDir()+"; "+test.command, "KITH_HOME="+home, "NO_COLOR=1")
			p.tmux("resize-window", "-x", "200")
			p.tmux("pipe-pane", "cat >"+record)
			p.keys("Enter")
			if test.serves != "" {
				p.shows(test.serves)
				p.keys("C-c")
			}
			screen := p.shows("[status 0]")
			var written []byte
			for late := time.Now().Add(soon); !strings.Contains(string(written), "[status 0]"); <-time.After(10 * time.Millisecond) {
				var err error
				if written, err = os.ReadFile(record); err != nil || time.Now().After(late) { // another process writes it
					t.Fatalf("what the command wrote ends with %q: %v", written, err)
				}
			}
			rest := string(written)
			for _, shows := range test.shows {
				_, after, shown := strings.Cut(rest, "\r\x1b[K\x1b[2m"+shows)
				if !shown {
					t.Errorf("%s never said %q:\n%q", test.command, shows, written)
					continue
				}
				rest = after
				assert.Lacks(t, screen, shows, test.command, "left")
			}
			assert.Contains(t, rest, "\r\x1b[K", test.command, "never wiped its last word")
		})
	}
}

// TestColours: styles reach a terminal only, and none with NO_COLOR; a chart
// neither a file nor a pipe.
func TestColours(t *testing.T) {
	page := `{"days":30,"since":"2026-10-23","as_caller":{"total":{"calls":2,"tokens_in":10,"tokens_out":30},` +
		`"days":[{"day":"2026-11-20","calls":1,"tokens_in":1,"tokens_out":9},{"day":"2026-11-21","calls":1,"tokens_in":9,"tokens_out":21}]},"as_owner":{"total":{}}}`
	handler, _ := double(t, words(page))
	server := httptest.NewServer(handler)
	defer server.Close()
	env := []string{"KITH_HOME=" + t.TempDir(), "KITH_HUB=" + server.URL, "KITH_API_KEY=k"}
	for _, test := range []struct {
		command        string
		chart, colours bool
	}{
		{"kith usage", true, true},
		{"NO_COLOR=1 kith usage", true, false},
		{"kith usage >out; cat out", false, false},
		{"kith usage --json", false, false},
	} {
		p := inTerminal(t, "cd "+shortDir(t)+"; "+test.command, env...)
		p.shows("[status 0]")
		screen := p.tmux("capture-pane", "-p", "-e", "-J")
		assert.Equal(t, strings.Contains(screen, "█"), test.chart, test.command, "a chart", screen)
		assert.Equal(t, strings.Contains(screen, "\x1b[36m"), test.colours, test.command, "colours", screen)
	}
}

func TestWaitingFor(t *testing.T) {
	for comment, want := range map[string]string{
		": working": atWork, ": waiting 3 ahead, 9 s left": "waiting for a machine: 3 ahead, 9 s left",
		": waiting 0 ahead, 9 s left": "waiting for a machine: next in line, 9 s left", ": hello": "", "": "",
	} {
		assert.Equal(t, waitingFor(comment), want, comment)
	}
}

// Without a terminal nothing of the editor or of progress reaches the output.
func TestChatCommands(t *testing.T) {
	handler, log := double(t, words(streamed))
	server := httptest.NewServer(handler)
	defer server.Close()
	var out, errs bytes.Buffer
	c := &conversation{
		app:     &app{in: strings.NewReader("one\n/clear\n/nonsense\ntwo\n/quit\nthree\n"), out: screen{&out}, err: screen{&errs}},
		surface: toHub(server.URL, ""), model: "tiny",
	}
	assert.OK(t, c.chat(t.Context()))
	if len(*log) != 2 || strings.Contains((*log)[1].body, "one") || errs.Len() > 0 {
		t.Errorf("asked %+v, said %s %s", *log, out.String(), errs.String())
	}
}
