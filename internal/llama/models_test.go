package llama

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// TestSetModels changes the models of a worker that answers: the answer goes on, a new
// model serves, one that is removed serves only what it has begun, and a file that is
// no model has its problem. A worker that starts again has the models of the last
// change.
func TestSetModels(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.gguf")
	assert.OK(t, os.WriteFile(broken, []byte("no model"), 0o600))
	var changes atomic.Int32
	e := startEngine(t, Config{Models: testModels[1:], OnModels: func() { changes.Add(1) }})
	set := func(files ...ModelFile) {
		t.Helper()
		assert.OK(t, e.SetModels(t.Context(), files))
	}
	res := e.open(t.Context(), "/v1/chat/completions", ask("x", object{"model": "random", "stream": true, "temperature": 1, "seed": 3, "max_tokens": 2000}))
	defer res.Body.Close()
	begun := make([]byte, 1)
	assert.Value(res.Body.Read(begun))(t)
	if code, _ := e.refused("/v1/chat/completions", ask("Hello"), 404); code != "model_not_found" {
		t.Errorf("a model that is not there yet: %s", code)
	}
	set(testModels[1], testModels[0], ModelFile{ID: "broken", Path: broken})
	assert.Equal(t, e.say(ask("Hello")), conversation[0][1], "the new model")
	if problems := e.Problems(); len(problems) != 1 || !strings.Contains(problems["broken"], "is it GGUF") {
		t.Errorf("problems: %v", problems)
	}
	set(testModels[0])
	e.refused("/v1/chat/completions", ask("x", object{"model": "random"}), 404)
	if rest, err := io.ReadAll(res.Body); err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("the answer of a model that was removed broke off: %v", err)
	}
	again := testModels[0]
	again.Version = "2"
	set(again)
	assert.Equal(t, e.say(ask("Hello")), conversation[0][1], "the model whose file changed")
	if models := e.Models(); len(models) != 1 || models[0].ID != "tiny" || changes.Load() != 4 {
		t.Errorf("%v after %d changes", models, changes.Load())
	}
}

// crashing is a model file on which llama.cpp ends the process: two of its tokens are the
// same.
func crashing(t *testing.T) ModelFile {
	content := bytes.Replace(tinyModel, []byte("\x03\x00\x00\x00\x00\x00\x00\x00Ġt"), []byte("\x03\x00\x00\x00\x00\x00\x00\x00Ġa"), 1)
	assert.Require(t, !bytes.Equal(content, tinyModel), "the token is not there")
	return changedTiny(t, "crashing", content)
}

// TestCrashingFile starts with a file that ends each worker that reads it: the other models
// are served. It is tried again once it has changed.
func TestCrashingFile(t *testing.T) {
	bad := crashing(t)
	e := startEngine(t, Config{Models: []ModelFile{bad, testModels[0]}})
	assert.Equal(t, e.say(ask("Hello")), conversation[0][1], "beside it")
	assert.Contains(t, e.Problems()["crashing"], "ended the engine")
	assert.OK(t, e.SetModels(t.Context(), []ModelFile{testModels[1], bad}))
	assert.Contains(t, e.Problems()["crashing"], "ended the engine")
	assert.OK(t, os.WriteFile(bad.Path, tinyModel, 0o600))
	bad.Version = "2"
	assert.OK(t, e.SetModels(t.Context(), []ModelFile{bad}))
	assert.Equal(t, e.say(ask("Hello", object{"model": "crashing"})), conversation[0][1], "the file that replaced it")
	assert.Equal(t, len(e.Problems()), 0)
}

// TestCrashingFileAdded adds such a file to a worker that answers: it ends, and the next one
// serves the others.
func TestCrashingFileAdded(t *testing.T) {
	changed := make(chan struct{}, 100)
	e := startEngine(t, Config{Models: testModels[:1], OnModels: func() { changed <- struct{}{} }})
	_ = e.SetModels(t.Context(), []ModelFile{testModels[0], crashing(t)}) // fails, unless it is the next worker that gets them
	for e.Problems()["crashing"] == "" {
		<-changed
	}
	assert.Equal(t, e.say(ask("Hello")), conversation[0][1])
}
