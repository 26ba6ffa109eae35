package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// fakeFiles is a Config.Files that knows one model, and keeps the acts that change something.
type fakeFiles struct{ acts []fleet.FileAct }

func (f *fakeFiles) act(_ context.Context, act fleet.FileAct) (fleet.ModelFiles, error) {
	if act.Model == "busy" {
		return fleet.ModelFiles{}, errors.New("a call runs on it")
	}
	if act.Act != fleet.ActList {
		f.acts = append(f.acts, act)
	}
	return fleet.ModelFiles{Files: []fleet.ModelFile{{ID: "words", State: fleet.FileLoaded}}}, nil
}

// TestFilesFromElsewhere: acts of the hub reach the model files, are logged without what may
// be secret, and are bounded in number and form.
func TestFilesFromElsewhere(t *testing.T) {
	files := new(fakeFiles)
	r, _, l := joined(t, Config{Files: files.act, FilesHere: false})
	send := func(act fleet.FileAct) error {
		_, err := tunnel.SendFileAct(t.Context(), l, act)
		return err
	}
	now := assert.Value(tunnel.SendFileAct(t.Context(), l, fleet.FileAct{Act: fleet.ActList}))(t)
	assert.Equal(t, len(now.Files), 1, "files")
	pull := fleet.FileAct{Act: fleet.ActPull, Model: "https://files.test/w.gguf?signature=abc", By: "laptop"}
	assert.OK(t, send(pull))
	assert.Equal(t, files.acts[0], pull, "the act")
	assert.Fails(t, send(fleet.FileAct{Act: fleet.ActUnload, Model: "busy"}), "a call runs on it")
	assert.OK(t, send(fleet.FileAct{Act: fleet.ActPull, Model: "https://ada:pass@files.test/w.gguf"})) // these refuse none
	files.acts = files.acts[:1]
	log := r.log.String()
	assert.Lacks(t, log, "pass@")
	assert.Contains(t, log, "act=pull model=https://files.test/w.gguf by=laptop")
	assert.Contains(t, log, `act=unload model=busy by="" cause="a call runs on it"`)
	assert.Lacks(t, log, "signature")
	for _, act := range []fleet.FileAct{
		{Act: fleet.ActLoad}, {Act: fleet.ActLoad, Model: strings.Repeat("x", fleet.MaxReference+1)}, {Act: fleet.ActLoad, Model: "a\nb"},
		{Act: fleet.ActLoad, Model: "a\u202eb"}, {Act: fleet.ActLoad, Model: "a", By: strings.Repeat("x", maxBy+1)}, {Act: fleet.ActLoad, Model: "a", By: "\x1b[2J"},
	} {
		err := send(act)
		if _, refused := errors.AsType[fleet.FileRefusal](err); !refused {
			t.Errorf("%+v: %v", act, err)
		}
	}
	assert.Equal(t, len(files.acts), 1, "acts")
	var err error
	for range 30 {
		if err = send(fleet.FileAct{Act: fleet.ActLoad, Model: "words"}); err != nil {
			break
		}
	}
	assert.Fails(t, err, "too many requests")
	assert.OK(t, send(fleet.FileAct{Act: fleet.ActList})) // looking has a limit of its own
}

// TestFilesHere: a machine may take acts from its own commands only.
func TestFilesHere(t *testing.T) {
	files := new(fakeFiles)
	r, _, l := joined(t, Config{Files: files.act, FilesHere: true})
	_, err := tunnel.SendFileAct(t.Context(), l, fleet.FileAct{Act: fleet.ActList})
	assert.Is(t, err, fleet.ErrFilesOff)
	ask := func(body string) (int, string) {
		resp, err := r.socket().Post("http://daemon/models", "application/json", bytes.NewReader([]byte(body)))
		assert.OK(t, err)
		defer resp.Body.Close()
		return resp.StatusCode, string(assert.Value(io.ReadAll(resp.Body))(t))
	}
	status, text := ask(`{"act":"load","model":"words"}`)
	assert.That(t, status == http.StatusOK && strings.Contains(text, `"id":"words"`), status, text)
	for _, body := range []string{`{"act":"load","model":"busy"}`, `{"act":"load"}`, `{"act":"load","model":"words","more":1}`, `x`} {
		status, text = ask(body)
		assert.Equal(t, status, http.StatusBadRequest, body, text)
	}
	assert.Equal(t, fmt.Sprint(files.acts), "[{load words }]", "acts")
	// The local surface, which programs use without a key, has no such path.
	resp := r.post("/models", `{"act":"remove","model":"words"}`)
	resp.Body.Close()
	assert.Equal(t, resp.StatusCode, http.StatusNotFound, "on the local surface")
}
