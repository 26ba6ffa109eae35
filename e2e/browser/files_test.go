package browser_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// modelHub serves the small model as ann/words, as a model hub does. It sends a part of the
// file, and the rest when more is closed.
func modelHub(t *testing.T) (address string, more chan struct{}) {
	model := assert.Value(os.ReadFile("../../internal/llama/data/tiny.gguf"))(t)
	more = make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/models/ann/words/tree/main", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `[{"type":"file","path":"words.gguf","size":%[1]d,"lfs":{"oid":"%[2]x","size":%[1]d}}]`, len(model), sha256.Sum256(model))
	})
	mux.HandleFunc("GET /ann/words/resolve/main/words.gguf", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") != "" {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(model))
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(model)))
		_, _ = w.Write(model[:len(model)/4]) // a shorter answer is a failure of the machine's side
		_ = http.NewResponseController(w).Flush()
		select {
		case <-more:
		case <-r.Context().Done():
		}
		_, _ = w.Write(model[len(model)/4:])
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL, more
}

// TestModelFiles manages the models of a machine on its page: pulled while the page follows
// it, loaded, unloaded and removed.
func TestModelFiles(t *testing.T) {
	t.Parallel()
	browser := chromium(t, nil)
	for name, scripts := range map[string]bool{"scripts": true, "no scripts": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hub, more := modelHub(t)
			w := &walk{stage: stageAt(t, enginetest.FreeAddress(), "llama3"), scripts: scripts}
			w.env = []string{"HF_ENDPOINT=" + hub}
			w.write("config.toml", "[daemon]\nlisten = \"127.0.0.1:0\"\n[discovery]\nenabled = false\n")
			w.op = newTab(t, browser, w.base, scripts)
			op := w.op
			op.open(w.first)
			op.send("#sign-up", "#name", "op", "#password", "correct horse battery")
			w.machine()
			w.until("the machine is connected", func() bool { op.open("/machines"); return strings.Contains(op.text("#machines tbody"), "now") })
			op.leads(200, clickOn("#machines tbody a"))
			op.leads(200, clickOn("#machine .tabs a[href$='?tab=models']"))
			machine := op.at()
			shows := func(selector, want string) {
				t.Helper()
				w.until(selector+" shows "+want, func() bool {
					if !scripts {
						op.open(machine)
					}
					return strings.Contains(op.text(selector), want)
				})
			}
			op.see("No model files yet")
			w.look(op, "machine-no-files")
			op.send("#pull-other button", "#pull-other input[name=model]", "ann/another")
			shows("#pulls", "ann/another is not there")
			op.open(machine)
			w.look(op, "machine-pull-failed")
			op.send(`button[aria-label="Dismiss: ann/another"]`)

			run(op, chromedp.SetValue(chromedp.CSS("#pull-other input[name=model]"), "http://127.0.0.1:1/words.gguf"))
			op.leads(403, clickOn("#pull-other button"))
			op.see("an address of this machine or of its own network")
			op.send("#pull-other button", "#pull-other input[name=model]", "ann/words")
			op.see("is pulling ann/words; this page shows its progress.")
			shows("#pulls", "ann/words: 25 %")
			w.look(op, "machine-pull")
			close(more)
			shows("#pulls", "complete")
			shows("#files", "not loaded")
			op.open(machine)
			w.look(op, "machine-files")
			w.until("the engine has the model", func() bool { op.open(machine); return strings.Contains(op.text("#machine"), "First token") })
			op.send(`button[aria-label="Load: words"]`)
			shows("#files", "in memory")
			op.send(`button[aria-label="Unload: words"]`)
			op.see("words is unloaded")
			op.leads(200, clickOn(`a[aria-label="Remove words"]`))
			op.see("Its files are deleted.")
			w.look(op, "files-question")
			op.send("#do")
			op.see("words is removed.")
			shows("#machine", "No model files yet")
			op.open("/notices")
			for _, text := range []string{"pulls ann/words", "loads words into memory", "freed the memory of words", "removed words"} {
				op.see(text)
			}
			op.quiet()
		})
	}
}
