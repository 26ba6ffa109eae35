package llama

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

func newTestStore(t testing.TB, limit int64) *promptStore {
	t.Helper()
	key := assert.Value(NewPromptKey())(t)
	p := assert.Value(newPromptStore(filepath.Join(t.TempDir(), "prompts"), limit, key))(t)
	return p
}

// names returns the paths of the files in the store.
func (p *promptStore) names(t *testing.T) []string {
	t.Helper()
	names := assert.Value(filepath.Glob(filepath.Join(p.dir, "*")))(t)
	return names
}

// A conversation goes on after the weights were unloaded, and in another process, without
// its prompt being computed again; nothing of it is there for another caller, with another
// key or for another file of the model.
func TestPromptsOutliveWeights(t *testing.T) {
	store := newTestStore(t, 1<<30)
	with := func(p *promptStore) *counted {
		r := newCounted(t, 2)
		r.prompts = p
		return r
	}
	question := strings.Repeat("Tell me about the owl. ", 60)
	r := with(store)
	first, all := r.ask("ann of the owls", question)
	assert.Require(t, all >= minStored, "the prompt has only", all, "tokens")
	r.unload()
	names := store.names(t)
	assert.Require(t, len(names) == 1, "stored", names)
	if info, err := os.Stat(names[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if text, err := os.ReadFile(names[0]); err != nil || bytes.Contains(text, []byte("ann of the owls")) {
		t.Errorf("the file names the caller, or %v", err)
	}
	next := []string{question, first, "Hello"}
	want, _ := newCounted(t, 1).ask("x", next...)
	if text, computed := r.ask("bob", next...); text != want || computed < all {
		t.Errorf("another caller: %d tokens were computed; %q, want %q", computed, text, want)
	}
	if text, computed := r.ask("ann of the owls", next...); text != want || computed > all/10 {
		t.Errorf("the next turn: %d of %d tokens were computed; %q, want %q", computed, all, text, want)
	}
	r.unload()
	assert.Equal(t, len(store.names(t)), 2, "files of two conversations")
	if text, computed := with(store).ask("ann of the owls", next...); text != want || computed != 1 {
		t.Errorf("another process: %d tokens were computed; %q, want %q", computed, text, want)
	}
	other := with(store)
	other.storedPrefix = storedPrefix(ModelFile{ID: "tiny", Version: "2"})
	if _, computed := other.ask("ann of the owls", next...); computed < all {
		t.Errorf("another file: %d tokens were computed", computed)
	}
	store.keepOnly(nil)
	assert.Equal(t, len(store.names(t)), 0, "files of a model that was removed")
}

// A damaged file is deleted, and its prompt computed.
func TestDamagedPrompts(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"cut":         func(text []byte) []byte { return text[:len(text)/2] },
		"empty":       func([]byte) []byte { return nil },
		"one bit":     func(text []byte) []byte { text[len(text)-100] ^= 1; return text },
		"in its head": func(text []byte) []byte { text[300] ^= 1; return text },
	} {
		t.Run(name, func(t *testing.T) {
			r := newCounted(t, 1)
			r.prompts = newTestStore(t, 1<<30)
			question := strings.Repeat("Tell me about the owl. ", 60)
			want, all := r.ask("ann of the owls", question)
			r.unload()
			path := r.prompts.names(t)[0]
			text := assert.Value(os.ReadFile(path))(t)
			assert.OK(t, os.WriteFile(path, damage(text), 0o600))
			if text, computed := r.ask("ann of the owls", question); text != want || computed != all {
				t.Errorf("%d of %d tokens were computed; %q, want %q", computed, all, text, want)
			}
			if names := r.prompts.names(t); len(names) != 0 {
				t.Errorf("still there: %v", names)
			}
		})
	}
}

// The store keeps the newest prompts within its limit, and none if it is 0.
func TestPromptsAreBounded(t *testing.T) {
	p := newTestStore(t, 3000)
	for range 5 {
		assert.Value(p.save("m-", "ann of the owls", make([]token, 10), make([]byte, 700)))(t)
	}
	if n := len(p.names(t)); n != 2 && n != 3 {
		t.Errorf("%d files of 900 bytes in 3000", n)
	}
	assert.Fails(t, assert.Err(p.save("m-", "ann of the owls", nil, make([]byte, 3001))), "more than may be kept")
	if none, err := newPromptStore(p.dir, 0, ""); none != nil || err != nil {
		t.Errorf("%v, %v", none, err)
	}
	if _, err := os.Stat(p.dir); !os.IsNotExist(err) {
		t.Errorf("what was kept is still there: %v", err)
	}
	if _, err := newPromptStore(p.dir, 1, "no key"); err == nil {
		t.Error("any key is taken")
	}
}

// longModel copies the small model with a context of 8,192 tokens: the answers make no
// sense, but their computation costs the same.
func longModel(t testing.TB) ModelFile {
	t.Helper()
	text := assert.Value(os.ReadFile(testModels[0].Path))(t)
	key := []byte("llama.context_length")
	at := bytes.Index(text, key)
	assert.Require(t, at >= 0, "the file names no context length")
	binary.LittleEndian.PutUint32(text[at+len(key)+4:], 8192) // after its type
	file := ModelFile{ID: "long", Path: filepath.Join(t.TempDir(), "long.gguf")}
	assert.OK(t, os.WriteFile(file.Path, text, 0o600))
	return file
}

// BenchmarkReload measures the first token of a long prompt after the weights were
// loaded again, with the prompt stored and without.
func BenchmarkReload(b *testing.B) {
	for _, stored := range []bool{true, false} {
		b.Run(map[bool]string{true: "stored", false: "cold"}[stored], func(b *testing.B) {
			r := newRunner(openModel(b, longModel(b), 1), 0, nil)
			if stored {
				r.prompts = newTestStore(b, 1<<30)
			}
			question := strings.Repeat("Tell me about the owl. ", 850)
			first := func() {
				j := assert.Value(r.start(b.Context(), &chat{conversation: says(question), limit: 1}))(b)
				r.admit()
				for r.busy() {
					r.step()
				}
				b.ReportMetric(float64(len(j.prompt)), "tokens")
			}
			first()
			r.unload()
			for b.Loop() {
				first()
				b.StopTimer()
				r.unload()
				b.StartTimer()
			}
		})
	}
}
