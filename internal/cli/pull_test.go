package cli

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/llama"
	"github.com/kith/kith/internal/pull"
)

// localModelHub serves the files of ann/words as a model hub does.
func localModelHub(t *testing.T, files map[string][]byte) *httptest.Server {
	hub := http.NewServeMux()
	hub.HandleFunc("GET /api/models/ann/words/tree/main", func(w http.ResponseWriter, r *http.Request) {
		var entries []string
		for name, content := range files {
			entries = append(entries, fmt.Sprintf(`{"type":"file","path":%q,"size":%d,"lfs":{"oid":"%x","size":%d}}`, name, len(content), sha256.Sum256(content), len(content)))
		}
		fmt.Fprintf(w, "[%s]", strings.Join(entries, ","))
	})
	hub.HandleFunc("GET /ann/words/resolve/main/{file}", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(files[r.PathValue("file")])))
	})
	server := httptest.NewServer(hub)
	t.Cleanup(server.Close)
	return server
}

// TestPull fetches models while a daemon runs: it offers them without a restart, says
// why it cannot serve one, and offers a deleted one no more.
func TestPull(t *testing.T) {
	if err := llama.Available(); err != nil {
		t.Fatalf("%v: use `make test`, or scripts/fetch-llama.sh and go test -tags llama", err)
	}
	small := assert.Value(os.ReadFile("../llama/data/tiny.gguf"))(t)
	unreadable := bytes.Replace(small, []byte("{% endfor %}"), []byte("{% endfxr %}"), 1)
	hub := localModelHub(t, map[string][]byte{"words-Q4_K_M.gguf": small, "words-Q5_K_M.gguf": unreadable, "words-Q8_0.gguf": []byte("GGUF, and no more")})
	home := shortDir(t)
	t.Setenv("KITH_HOME", home)
	t.Setenv("HF_ENDPOINT", hub.URL)
	t.Setenv("PATH", home) // no llama-server
	write(t, filepath.Join(home, "config.toml"), "[discovery]\nenabled = false\n[daemon]\nlisten = \"127.0.0.1:0\"\n")

	check(t, kith(t, "", "pull", "words"), said{2, "", "`kith pull` lists names"})
	check(t, kith(t, "", "pull", "qwen3-4"), said{2, "", `did you mean "qwen3-4b"?`})
	check(t, kith(t, "", "pull", "ann/words:Q6"), said{1, "", "add one after a colon: Q4_K_M, Q5_K_M, Q8_0"})
	got := kith(t, "", "pull", "ann/words:Q4_K_M", "--json")
	path := filepath.Join(home, "models", "words-Q4_K_M.gguf")
	check(t, got, said{out: fmt.Sprintf(`{"id":"words-Q4_K_M","from":"%s/ann/words","files":[%q],"size":%d,"offered":false}`, hub.URL, path, len(small)) + "\n"})
	check(t, kith(t, "", "models", "rm", "words-Q4_K_M"), said{out: "deleted words-Q4_K_M; 3 MB are free again\n"})
	check(t, kith(t, "", "models", "rm", "words-Q4_K_M"), said{1, "", "`kith models` lists"})

	p := begin(t, "serve")
	check(t, kith(t, "", "run", "words-Q4_K_M", "Hello"), said{4, "", "cannot run"})
	if got := kith(t, "", "pull", "ann/words:Q4_K_M"); got.status != 0 || !strings.Contains(got.out, "the daemon offers it; try it with `kith run words-Q4_K_M`") {
		t.Errorf("%+v", got)
	}
	if got := kith(t, "", "run", "words-Q4_K_M", "Hello"); got.status != 0 || got.out == "" {
		t.Errorf("%+v", got)
	}
	if got := kith(t, "", "pull", "ann/words:Q8_0"); got.status != exitNoCapacity || !strings.HasPrefix(got.out, "words-Q8_0") || !strings.Contains(got.err, "cannot read the model file; is it GGUF") || !strings.Contains(got.err, "`kith models rm words-Q8_0`") {
		t.Errorf("%+v", got)
	}
	if got := kith(t, "", "status"); !strings.Contains(got.out, "built-in engine for words-Q8_0") || !strings.Contains(got.out, "is it GGUF") {
		t.Errorf("status: %+v", got)
	}
	if got := kith(t, "", "run", "words-Q8_0", "Hello"); got.status == 0 || !strings.Contains(got.err, "is it GGUF") {
		t.Errorf("a call to a model that cannot be served: %+v", got)
	}
	if got := kith(t, "", "pull", "ann/words:Q5_K_M"); got.status != 0 {
		t.Errorf("%+v", got)
	}
	if got := kith(t, "", "models"); !strings.Contains(got.out, "words-Q4_K_M   1024      default\n") || !strings.Contains(got.out, "words-Q5_K_M   1024      no\n") {
		t.Errorf("what models lack: %+v", got)
	}
	if got := kith(t, "", "status"); !strings.Contains(got.out, "words-Q4_K_M: a form of tool calls") || !strings.Contains(got.out, "words-Q5_K_M: tools: cannot read the model's chat template") {
		t.Errorf("status: %+v", got)
	}
	if got := kith(t, "", "run", "words-Q5_K_M", "Hello"); got.status != 0 || got.out == "" {
		t.Errorf("%+v", got)
	}
	if got := kith(t, "", "models", "rm", "words-Q4_K_M"); got.status != 0 {
		t.Errorf("%+v", got)
	}
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for late := time.Now().Add(soon); strings.Contains(kith(t, "", "models").out, "words-Q4_K_M"); <-again.C {
		assert.Require(t, !time.Now().After(late), "a model that was deleted is still offered")
	}
	if end := p.stop(); end.status != 0 {
		t.Errorf("the daemon ended with %+v", end)
	}
}

// TestPullWaitsForTheEngine: the start of the built-in engine does not count as time in
// which a new model should be offered.
func TestPullWaitsForTheEngine(t *testing.T) {
	const within = 500 * time.Millisecond
	starting := `"engines":[{"kind":"builtin","name":"kith","why":"` + llama.ErrStarting.Error() + `"}]`
	for name, test := range map[string]struct{ then, problem string }{
		"offered":        {`{"models":["words"]}`, ""},
		"never offered":  {`{"models":[]}`, "the daemon does not offer it yet; `kith status` says more"},
		"not served":     {`{"models":[],"engines":[{"name":"kith for words","model":"words","why":"is it GGUF?"}]}`, "is it GGUF?; `kith models rm words` deletes its files"},
		"does not start": {`{"models":[],"engines":[{"kind":"builtin","name":"kith","why":"it ended"}]}`, "the daemon does not offer it yet; `kith status` says more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			a := &app{home: onSocket(t, "daemon.sock", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if time.Since(began) < 3*within {
					io.WriteString(w, `{"models":[],`+starting+`}`)
					return
				}
				io.WriteString(w, test.then)
			}))}
			if running, problem := a.awaitOffered(t.Context(), "words", within); !running || problem != test.problem {
				t.Errorf("%v, %q", running, problem)
			}
		})
	}
}

// TestPullList lists models without a name, as text and as JSON.
func TestPullList(t *testing.T) {
	t.Setenv("KITH_HOME", shortDir(t))
	if got := kith(t, "", "pull"); got.status != 0 || !strings.Contains(got.out, "qwen3-4b") || !strings.Contains(got.out, "Apache-2.0") {
		t.Errorf("%+v", got)
	}
	if got := kith(t, "", "pull", "--json"); got.status != 0 || !strings.HasPrefix(got.out, `[{`) || !strings.Contains(got.out, `"fits":`) || !strings.Contains(got.out, `"tools":"yes","thinking":true,"trained_context":40960`) {
		t.Errorf("%+v", got)
	}
}

// TestListPage compares docs/engines.md with the list: what each model can do, and its
// context by the memory that is free, which the engine computes.
func TestListPage(t *testing.T) {
	page := string(assert.Value(os.ReadFile("../../docs/engines.md"))(t))
	for _, l := range pull.List() {
		if l.Tools == "" {
			continue
		}
		thinking := "no"
		if l.Thinking {
			thinking = "yes"
		}
		row := "| " + l.Name + " | " + l.Tools + " | " + thinking
		for _, gib := range []uint64{8, 12, 16, 24, 32, 64} {
			p := newPullable(l, gib<<30)
			text := "–"
			if p.Fits {
				text = fmt.Sprintf("%d × %s", p.Slots, api.Number(int64(p.Context)))
			}
			row += " | " + text
		}
		assert.Contains(t, page, row+" |\n")
	}
}
