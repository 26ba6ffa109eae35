package cli

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/llama"
	"github.com/kith/kith/internal/pull"
)

// TestModelsInMemory: the daemon loads a model of the built-in engine before its first call,
// frees it, and says why it cannot.
func TestModelsInMemory(t *testing.T) {
	if err := llama.Available(); err != nil {
		t.Fatalf("%v: use `make test`, or scripts/fetch-llama.sh and go test -tags llama", err)
	}
	home := shortDir(t)
	t.Setenv("KITH_HOME", home)
	t.Setenv("PATH", home) // no llama-server
	write(t, filepath.Join(home, "config.toml"), "[discovery]\nenabled = false\n[daemon]\nlisten = \"127.0.0.1:0\"\n")
	small := assert.Value(os.ReadFile("../llama/data/tiny.gguf"))(t)
	write(t, filepath.Join(home, "models", "words.gguf"), string(small))
	write(t, filepath.Join(home, "models", "broken.gguf"), "GGUF, and no more")
	check(t, kith(t, "", "models", "load", "words"), said{1, "", "start it with `kith serve`"})

	p := begin(t, "serve")
	state := func(id string) fleet.ModelFile {
		at := assert.Value((&app{home: home}).filesOn(t.Context(), ""))(t)
		now, _, err := at.act(t.Context(), "look", fleet.FileAct{Act: fleet.ActList})
		assert.OK(t, err)
		i := slices.IndexFunc(now.Files, func(f fleet.ModelFile) bool { return f.ID == id })
		assert.Require(t, i >= 0, "no file of", id, now)
		return now.Files[i]
	}
	assert.Equal(t, state("words"), fleet.ModelFile{ID: "words", Size: int64(len(small)), State: fleet.FileUnloaded}, "before")
	check(t, kith(t, "", "models", "load", "words"), said{out: "words is in the memory of this machine\n"})
	assert.Equal(t, state("words").State, fleet.FileLoaded, "after load")
	check(t, kith(t, "", "models", "unload", "words"), said{out: "words is out of the memory of this machine; the next call loads it again\n"})
	assert.Equal(t, state("words").State, fleet.FileUnloaded, "after unload")
	check(t, kith(t, "", "models", "load", "another"), said{1, "", "no file of that model"})
	if got := kith(t, "", "models", "load", "broken"); got.status != 1 || !strings.Contains(got.err, "kith: cannot load broken: ") {
		t.Errorf("%+v", got)
	}
	assert.Contains(t, state("broken").Problem, "is it GGUF", "of a broken file")
	check(t, kith(t, "", "pull", "ann/words", "--cancel"), said{1, "", "it is not being pulled"})
	check(t, kith(t, "", "pull", "--cancel"), said{2, "", "name its model"})
	if end := p.stop(); end.status != 0 {
		t.Errorf("the daemon ended with %+v", end)
	}
}

// TestModelStorePulls: by the machine's own model hub, what it saves, and no model that does
// not fit the memory.
func TestModelStorePulls(t *testing.T) {
	small := assert.Value(os.ReadFile("../llama/data/tiny.gguf"))(t)
	hub := localModelHub(t, map[string][]byte{"words-Q4_K_M.gguf": small})
	home := shortDir(t)
	t.Setenv("HF_ENDPOINT", hub.URL)
	t.Setenv("HF_TOKEN", "hf_secret")
	t.Setenv("PATH", home)
	system := t.TempDir()
	t.Setenv("KITH_SYSTEM_ROOT", system)
	config := defaultDaemonFile(home)
	var log bytes.Buffer
	m := newModelStore(config, newOwnEngines(config, false, slog.New(slog.DiscardHandler)), slog.New(slog.NewTextHandler(&log, nil)))
	act := func(verb fleet.FileVerb, model string) (fleet.ModelFiles, error) {
		return m.act(t.Context(), fleet.FileAct{Act: verb, Model: model, By: "laptop"})
	}
	for model, says := range map[string]string{
		"qwen3-4": `did you mean "qwen3-4b"?`, "words": "hf.co/ORG/REPO:QUANT names a model", "http://10.0.0.1/w.gguf": "its own network",
	} {
		_, err := act(fleet.ActPull, model)
		assert.Fails(t, err, says, model)
	}
	now := assert.Value(act(fleet.ActPull, "ann/words"))(t)
	assert.That(t, len(now.Pulls) == 1 && now.Pulls[0].State == fleet.PullWaiting && now.Pulls[0].By == "laptop", now.Pulls)
	saved := string(assert.Value(os.ReadFile(filepath.Join(home, pullsFile)))(t))
	assert.Contains(t, saved, `"reference": "ann/words"`)

	// The next process goes on with what was saved.
	m = newModelStore(config, m.engines, slog.New(slog.NewTextHandler(&log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.run(ctx) }()
	until := func(what string, holds func(fleet.ModelFiles) bool) {
		t.Helper()
		for late := time.Now().Add(soon); ; {
			now := assert.Value(act(fleet.ActList, ""))(t)
			if holds(now) {
				return
			}
			assert.Require(t, time.Now().Before(late), what, now.Pulls)
			time.Sleep(10 * time.Millisecond)
		}
	}
	until("complete", func(now fleet.ModelFiles) bool {
		return now.Pulls[0].State == fleet.PullDone && now.Pulls[0].ID == "words-Q4_K_M" && len(now.Files) == 1 && now.Files[0].Size == int64(len(small))
	})
	_, err := act(fleet.ActRemove, "words-Q4_K_M")
	assert.OK(t, err)
	_, err = act(fleet.ActRemove, "../words-Q4_K_M")
	assert.Fails(t, err, "no file of that model")
	_, err = act(fleet.ActLoad, "words-Q4_K_M")
	assert.Fails(t, err, "no file of that model")

	write(t, filepath.Join(system, "proc", "meminfo"), "MemTotal: 500000 kB\nMemFree: 400000 kB\nMemAvailable: 400000 kB\n")
	assert.Value(act(fleet.ActPull, "ann/words"))(t)
	until("refused", func(now fleet.ModelFiles) bool {
		i := slices.IndexFunc(now.Pulls, func(p fleet.ModelPull) bool { return p.State == fleet.PullFailed })
		return i >= 0 && strings.Contains(now.Pulls[i].Problem, "words-Q4_K_M needs about 540 MB of memory, and one model can use 461 MB here")
	})
	now = assert.Value(act(fleet.ActCancel, "ann/words"))(t)
	assert.Equal(t, len(now.Pulls), 0, "pulls after the failed one was canceled")
	cancel()
	assert.OK(t, <-ended)
	assert.Lacks(t, log.String(), "hf_secret")

	named := filepath.Join(home, "named.gguf")
	write(t, named, string(small))
	config.Engine.Models = append(config.Engine.Models, named)
	_, err = act(fleet.ActRemove, "named")
	assert.Fails(t, err, "remove it there first")
	assert.That(t, isFile(named), "a file that the configuration names is deleted")

	write(t, filepath.Join(home, pullsFile), "{")
	m = newModelStore(config, m.engines, slog.New(slog.NewTextHandler(&log, nil)))
	assert.Equal(t, len(m.queue.Jobs()), 0, "pulls of a broken file")
	assert.Contains(t, log.String(), "the pulls that ran before are lost")
}

// TestPullWatch: what a command makes of the states of a pull on another machine.
func TestPullWatch(t *testing.T) {
	file := fleet.ModelFile{ID: "words", Problem: "is it GGUF?"}
	for name, c := range map[string]struct {
		now  fleet.ModelFiles
		over bool
		err  string
		id   string
	}{
		"running":  {fleet.ModelFiles{Pulls: []fleet.ModelPull{{Model: "ann/words", ID: "words", State: fleet.PullRunning}}}, false, "", "words"},
		"waiting":  {fleet.ModelFiles{Pulls: []fleet.ModelPull{{Model: "other", State: fleet.PullFailed}, {Model: "ann/words", State: fleet.PullWaiting}}}, false, "", ""},
		"failed":   {fleet.ModelFiles{Pulls: []fleet.ModelPull{{Model: "ann/words", State: fleet.PullFailed, Problem: "the disk is too full"}}}, true, "the disk is too full", ""},
		"canceled": {fleet.ModelFiles{}, true, "it was canceled", ""},
		"complete": {fleet.ModelFiles{Pulls: []fleet.ModelPull{{Model: "ann/words", ID: "words", State: fleet.PullDone}}}, false, "", "words"},
		"no model": {fleet.ModelFiles{Pulls: []fleet.ModelPull{{Model: "ann/words", ID: "words", State: fleet.PullDone}}, Files: []fleet.ModelFile{file}}, true, "", "words"},
	} {
		t.Run(name, func(t *testing.T) {
			w := pullWatch{app: &app{err: screen{new(bytes.Buffer)}}, at: &filesAt{name: "attic"}, model: "ann/words"}
			got, over, err := w.look(t.Context(), c.now)
			text := ""
			if err != nil {
				text = err.Error()
			}
			assert.Equal(t, over, c.over, "over")
			assert.Equal(t, text, c.err, "error")
			assert.Equal(t, w.id, c.id, "id")
			assert.Equal(t, got.Problem != "", name == "no model", "problem")
		})
	}
	for refused, lost := range map[error]bool{
		&refusal{status: 503, code: "machine_offline"}: true, &refusal{status: 429}: true, unreachable{os.ErrDeadlineExceeded}: true,
		&refusal{status: 403, code: "not_allowed"}: false, os.ErrInvalid: false,
	} {
		assert.Equal(t, new(pullWatch).isLost(failure{1, refused}), lost, refused)
	}
	assert.Equal(t, pull.Name("https://h/w.gguf?s=1"), "https://h/w.gguf", "name")
}
