package e2e_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// modelSource serves one model file as a model hub does, as far as flow lets it.
type modelSource struct {
	*httptest.Server
	content []byte

	mu      sync.Mutex
	changed *sync.Cond
	upTo    int  // bytes of the file that may be sent
	resumed bool // a request asked for the rest of the file
	closed  bool
}

// startModelHub FILE serves FILE at $HF_ENDPOINT as words-Q4_K_M.gguf of ann/words.
func startModelHub(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 1, "modelhub FILE")
	content, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	h := &modelSource{content: content, upTo: len(content)}
	h.changed = sync.NewCond(&h.mu)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/models/ann/words/tree/main", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `[{"type":"file","path":"words-Q4_K_M.gguf","size":%[1]d,"lfs":{"oid":"%[2]x","size":%[1]d}}]`, len(content), sha256.Sum256(content))
	})
	mux.HandleFunc("GET /ann/words/resolve/main/words-Q4_K_M.gguf", h.serve)
	h.Server = httptest.NewServer(mux)
	of(ts).modelHub = h
	ts.Setenv("HF_ENDPOINT", h.URL)
}

func (h *modelSource) serve(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Range") != "" {
		h.mu.Lock()
		h.resumed = true
		h.mu.Unlock()
	}
	http.ServeContent(w, r, "", time.Time{}, &slowly{bytes.NewReader(h.content), h})
}

// slowly is the content of a file, as far as flow lets it be read.
type slowly struct {
	*bytes.Reader
	hub *modelSource
}

func (s *slowly) Read(p []byte) (int, error) {
	at := len(s.hub.content) - s.Len()
	s.hub.mu.Lock()
	for at >= s.hub.upTo && at < len(s.hub.content) && !s.hub.closed {
		s.hub.changed.Wait()
	}
	left := max(s.hub.upTo-at, 1)
	s.hub.mu.Unlock()
	return s.Reader.Read(p[:min(len(p), left)])
}

// end ends the hub, and what waits for flow.
func (h *modelSource) end() {
	h.mu.Lock()
	h.closed = true
	h.changed.Broadcast()
	h.mu.Unlock()
	h.Server.CloseClientConnections()
	h.Server.Close()
}

// flow N|all lets the model hub send the first N bytes of its file, or all of them.
func flow(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 1, "flow N|all")
	h := of(ts).modelHub
	h.mu.Lock()
	defer h.mu.Unlock()
	h.upTo = len(h.content)
	if args[0] != "all" {
		n, err := strconv.Atoi(args[0])
		ts.Check(err)
		h.upTo = n
	}
	h.changed.Broadcast()
}

// resumed checks that the model hub was asked for the rest of its file.
func resumed(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 0, "resumed")
	h := of(ts).modelHub
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.resumed {
		ts.Fatalf("the file was fetched from its beginning each time")
	}
}
