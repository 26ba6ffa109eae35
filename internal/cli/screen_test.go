package cli

import (
	"bytes"
	"encoding/json/v2"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// attacks are texts that a terminal obeys: the clipboard and the title by OSC, a colour
// by CSI and by C1, a cleared line, a bell, text in the other direction.
const attacks = "\x1b]52;c;aGk=\a\x1b]0;title\x1b\\\x1b[31m\u009b31m\u009d0;t\u009c\rline\b\x7f\u202edcba\u2066x\u2069\u061c"

// harmless fails the test if a terminal would obey a part of the text.
func harmless(t *testing.T, what, text string) {
	t.Helper()
	if strings.ContainsFunc(text, isControl) || strings.Contains(text, "\x9b") || strings.Contains(text, mark) {
		t.Errorf("%s: a terminal obeys %q", what, text)
	}
}

// Whatever writes to the output, and in however many parts, only our own controls pass.
func TestScreen(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := screen{&out}
	for _, text := range []string{attacks, "\x1b", "[31m", "\x9b31m", "\x00" + "A\x1b[1m", "one\n\ttwo 日本 שלום é\n"} {
		assert.Equal(t, assert.Value(io.WriteString(s, text))(t), len(text), text)
	}
	harmless(t, "the screen", out.String())
	if !strings.HasSuffix(out.String(), "one\n\ttwo 日本 שלום é\n") {
		t.Errorf("text that is none was changed: %q", out.String())
	}
	if got := plain(strong("bold" + attacks)); !strings.HasPrefix(got, "\x1b[1mbold") || strings.ContainsAny(got[len("\x1b[1m"):len(got)-len("\x1b[m")], "\x1b\a\u009b") {
		t.Errorf("a style: %q", got)
	}
	assert.Equal(t, plain(ours("\r\x1b[K")+"\x1b[2J"), "\r\x1b[K[2J", "progress")
}

// Answers, ids of models, states and messages of servers, and names of files are shown
// without what a terminal obeys; with --json they are what they are.
func TestForeignTextsDoNothing(t *testing.T) {
	quoted := assert.Value(json.Marshal(attacks))(t)
	q := strings.Trim(string(quoted), `"`)
	answers := map[string]string{
		"/v1/chat/completions": `data: {"choices":[{"delta":{"content":"` + q + `"}}]}` + "\n\ndata: [DONE]\n\n",
		"/v1/models":           `{"data":[{"id":"m` + q + `","owner":"` + q + `","capabilities":["` + q + `"]}]}`,
		"/status": `{"version":"` + q + `","local":"` + q + `","tunnel":{"signed_in":true,"hub":"` + q + `","name":"` + q + `","state":"` + q + `","error":"` + q + `"},` +
			`"models":["` + q + `"],"engines":[{"kind":"` + q + `","name":"` + q + `","place":"` + q + `","why":"` + q + `"}],"recent_errors":[{"at":"2026-11-27T00:00:00Z","what":"` + q + `"}]}`,
		"/api/why/tiny": `{"model":"tiny","status":503,"code":"` + q + `","message":"` + q + `","machines":[{"machine":"` + q + `","owner":"` + q + `","state":"` + q + `"}]}`,
	}
	handler, _ := double(t, func(w http.ResponseWriter, path string) {
		answer, ok := answers[path]
		if !ok {
			w.WriteHeader(http.StatusBadRequest)
			answer = `{"error":{"code":"` + q + `","message":"` + q + `"}}`
		}
		io.WriteString(w, answer)
	})
	server := httptest.NewServer(handler)
	defer server.Close()
	home := onSocket(t, "daemon.sock", handler)
	t.Setenv("KITH_HOME", home)
	t.Setenv("KITH_HUB", server.URL)
	t.Setenv("KITH_API_KEY", "kith_local_key")
	models := filepath.Join(home, "models")
	assert.OK(t, os.MkdirAll(models, 0o700))
	assert.OK(t, os.WriteFile(filepath.Join(models, "a\x1b[31m\u009b.gguf"), nil, 0o600))
	for _, command := range []string{
		"run tiny hello", "models", "models --account", "status", "why tiny", "why req_0", "doctor", "pull list", "pull http://127.0.0.1:1/\u009b.gguf",
		"share list", "nonsense\x1b[31m", "run tiny --\x1b[31m",
	} {
		got := kith(t, "", strings.Split(command, " ")...)
		harmless(t, command, got.out+got.err)
		assert.That(t, got.out+got.err != "", command, "nothing is shown")
		got = kith(t, "", append(strings.Split(command, " "), "--json")...)
		harmless(t, command+" --json", got.out+got.err)
	}
	got := kith(t, "", "models", "--json")
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(got.out), &list); err != nil || len(list.Data) != 1 || list.Data[0].ID != "m"+attacks {
		t.Errorf("models --json: %v, %q", err, got.out)
	}
}
