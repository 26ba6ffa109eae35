package pull

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
)

// modelHub plays a model hub in memory: the API's list of files, and the files with
// ranges, by way of a redirect to another host, as the real one does.
type modelHub struct {
	t     *testing.T
	files map[string][]byte // by path in ORG/REPO
	// fault answers a request for a file in place of the hub, unless it returns false.
	fault  func(w http.ResponseWriter, r *http.Request) bool
	gated  bool     // files and lists need the token "t0ken"
	pages  int      // of the list; 0 is 1
	ranges []string // asked for
}

const endpoint = "http://hub.test"

// start serves the hub in a bubble and returns a Source for it.
func (h *modelHub) start() *Source {
	conns := make(pipes)
	server := &http.Server{Handler: h}
	go server.Serve(conns)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		if strings.HasPrefix(address, "nowhere") {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: fmt.Errorf("no such host")}
		}
		here, there := net.Pipe()
		select {
		case conns <- there:
			return here, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
	h.t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
	})
	return &Source{Endpoint: endpoint, Client: &http.Client{Transport: transport, CheckRedirect: checkRedirect}}
}

// pipes is a listener whose connections are in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (h *modelHub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.gated && r.Host == "hub.test" && r.Header.Get("Authorization") != "Bearer t0ken" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	assert.That(h.t, r.Host == "hub.test" || r.Header.Get("Authorization") == "", r.Host, "got the token")
	if strings.HasPrefix(r.URL.Path, "/api/models/ann/words/tree/main") {
		h.list(w, r)
		return
	}
	name, ok := strings.CutPrefix(r.URL.Path, "/ann/words/resolve/main/")
	if ok {
		http.Redirect(w, r, "http://files.test/"+name, http.StatusFound)
		return
	}
	content, ok := h.files[strings.TrimPrefix(r.URL.Path, "/")]
	if r.Host != "files.test" || !ok {
		http.NotFound(w, r)
		return
	}
	if r.Method == http.MethodGet {
		h.ranges = append(h.ranges, r.Header.Get("Range"))
	}
	if h.fault != nil && h.fault(w, r) {
		return
	}
	w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(content)))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

// list answers with the files, a page at a time.
func (h *modelHub) list(w http.ResponseWriter, r *http.Request) {
	var entries []string
	for name, content := range h.files {
		lfs := fmt.Sprintf(`,"lfs":{"oid":"%x","size":%d,"pointerSize":134}`, sha256.Sum256(content), len(content))
		if !strings.HasSuffix(name, ".gguf") {
			lfs = ""
		}
		entries = append(entries, fmt.Sprintf(`{"type":"file","oid":"%x","path":%q,"size":%d%s}`, len(content), name, len(content), lfs))
	}
	slices.Sort(entries)
	page, _ := strconv.Atoi(r.FormValue("cursor"))
	pages := max(h.pages, 1)
	if page+1 < pages {
		w.Header().Set("Link", fmt.Sprintf(`<%s%s?recursive=true&cursor=%d>; rel="next"`, endpoint, r.URL.Path, page+1))
	}
	each := (len(entries) + pages - 1) / pages
	fmt.Fprintf(w, "[%s]", strings.Join(entries[min(page*each, len(entries)):min((page+1)*each, len(entries))], ","))
}

// noise is n bytes that depend on name.
func noise(name string, n int) []byte {
	seed := sha256.Sum256([]byte(name))
	b := make([]byte, n)
	rand.NewChaCha8(seed).Read(b)
	copy(b, ggufMagic)
	return b
}

// words are the files of ann/words.
func words() map[string][]byte {
	files := map[string][]byte{"README.md": []byte("# words"), "config.json": []byte("{}")}
	for _, name := range []string{
		"words-Q4_K_M.gguf", "words-Q8_0.gguf", "mmproj-words-BF16.gguf", "mmproj-words-F16.gguf",
		"BF16/words-BF16-00001-of-00003.gguf", "BF16/words-BF16-00002-of-00003.gguf", "BF16/words-BF16-00003-of-00003.gguf",
	} {
		files[name] = noise(name, 300_000)
	}
	return files
}

// inBubble runs a test with a hub of ann/words.
func inBubble(t *testing.T, test func(t *testing.T, h *modelHub, s *Source)) {
	synctest.Test(t, func(t *testing.T) {
		h := &modelHub{t: t, files: words()}
		test(t, h, h.start())
	})
}

// fetch resolves and fetches a reference.
func fetch(t *testing.T, s *Source, folder, reference string) (*Model, error) {
	t.Helper()
	m, err := s.Resolve(t.Context(), reference)
	if err != nil {
		return nil, err
	}
	last := Progress{}
	err = s.Fetch(t.Context(), m, folder, func(p Progress) { last = p })
	if err == nil && (last.Done != last.Total && last.Total >= 0) {
		t.Errorf("%s ended at %d of %d bytes", reference, last.Done, last.Total)
	}
	return m, err
}

// holds checks that a folder holds just these files, as the hub has them.
func (h *modelHub) holds(folder string, want map[string]string) {
	h.t.Helper()
	found := map[string]bool{}
	filepath.WalkDir(folder, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			name, _ := filepath.Rel(folder, path)
			found[filepath.ToSlash(name)] = true
		}
		return nil
	})
	for name, from := range want {
		content, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil || !bytes.Equal(content, h.files[from]) {
			h.t.Errorf("%s is not %s: %d bytes, %v", name, from, len(content), err)
		}
		delete(found, name)
	}
	assert.That(h.t, len(found) == 0, "also there", found)
}

// The references that Resolve takes, and what they are.
func TestResolve(t *testing.T) {
	inBubble(t, func(t *testing.T, h *modelHub, s *Source) {
		h.pages = 3
		parts := []string{"words-BF16-00001-of-00003.gguf", "words-BF16-00002-of-00003.gguf", "words-BF16-00003-of-00003.gguf"}
		for reference, want := range map[string]struct {
			id    string
			files []string
		}{
			"hf.co/ann/words":                                                  {"words-Q4_K_M", []string{"words-Q4_K_M.gguf"}},
			"huggingface.co/ann/words:q8_0":                                    {"words-Q8_0", []string{"words-Q8_0.gguf"}},
			"ann/words:words-Q8_0.gguf":                                        {"words-Q8_0", []string{"words-Q8_0.gguf"}},
			"https://huggingface.co/ann/words":                                 {"words-Q4_K_M", []string{"words-Q4_K_M.gguf"}},
			"ann/words:BF16":                                                   {"words-BF16", parts},
			endpoint + "/ann/words/resolve/main/words-Q8_0.gguf":               {"words-Q8_0", []string{"words-Q8_0.gguf"}},
			"https://hf.co/ann/words/blob/main/words-Q8_0.gguf":                {"words-Q8_0", []string{"words-Q8_0.gguf"}},
			endpoint + "/ann/words/blob/main/BF16/" + parts[0]:                 {"words-BF16", parts},
			"http://files.test/words-Q8_0.gguf":                                {"words-Q8_0", []string{"words-Q8_0.gguf"}},
			"http://files.test/BF16/words-BF16-00001-of-00003.gguf?download=1": {"words-BF16-00001-of-00003", parts[:1]},
		} {
			m, err := s.Resolve(t.Context(), reference)
			if err != nil {
				t.Errorf("%s: %v", reference, err)
				continue
			}
			var names []string
			for _, f := range m.Files {
				names = append(names, f.Name)
			}
			if m.ID != want.id || !slices.Equal(names, want.files) || m.Size() != int64(300_000*len(names)) {
				t.Errorf("%s: %s %v, %d bytes", reference, m.ID, names, m.Size())
			}
		}
		s.Images = true
		m, err := s.Resolve(t.Context(), "ann/words")
		if err != nil || len(m.Files) != 2 || m.Files[0].Name != "words-Q4_K_M/words-Q4_K_M.gguf" || m.Files[1].Name != "words-Q4_K_M/mmproj-words-F16.gguf" {
			t.Errorf("with images: %+v, %v", m, err)
		}
	})
}

// Every wrong reference has an error that says what to do.
func TestResolveFaults(t *testing.T) {
	inBubble(t, func(t *testing.T, h *modelHub, s *Source) {
		for reference, want := range map[string]string{
			"words":                             "neither a name in the list",
			"ann/words:Q3_K":                    "add one after a colon: BF16, Q4_K_M, Q8_0",
			"ann/nothing":                       "check the name",
			"ann/":                              "neither a name in the list",
			"ann/words/more":                    "neither a name in the list",
			"ftp://files.test/words-Q8_0.gguf":  "neither https:// nor http://",
			"http://files.test/README.md":       "ends in .gguf",
			"http://files.test/..%5cx.gguf":     "not a valid file name",
			"http://nowhere.test/a.gguf":        "cannot be reached",
			"http://files.test/other-Q8_0.gguf": "is not there",
			endpoint + "/ann":                   "does not contain a repository",
		} {
			assert.Fails(t, assert.Err(s.Resolve(t.Context(), reference)), want, reference)
		}
		wrong := *s
		for wrong.Endpoint = range map[string]bool{"garbage": true, "ftp://hub.test": true, "http://": true} {
			if _, err := wrong.Resolve(t.Context(), "ann/words"); err == nil || !strings.Contains(err.Error(), "HF_ENDPOINT is") {
				t.Errorf("endpoint %s: %v", wrong.Endpoint, err)
			}
		}
		h.gated = true
		assert.Fails(t, assert.Err(s.Resolve(t.Context(), "ann/words")), "set HF_TOKEN", "without a token")
		s.Token = "another"
		assert.Fails(t, assert.Err(s.Resolve(t.Context(), "ann/words")), "refuses the token", "with a wrong token")
		s.Token = "t0ken"
		if _, err := fetch(t, s, t.TempDir(), "ann/words"); err != nil {
			t.Error(err)
		}
	})
}

// A model of several files, one with a file for images and one of a plain URL get
// their names once they are complete.
func TestFetch(t *testing.T) {
	inBubble(t, func(t *testing.T, h *modelHub, s *Source) {
		folder := t.TempDir()
		for _, reference := range []string{"ann/words:BF16", "http://files.test/words-Q8_0.gguf"} {
			assert.Value(fetch(t, s, folder, reference))(t)
		}
		s.Images = true
		assert.Value(fetch(t, s, folder, "ann/words"))(t)
		want := map[string]string{
			"words-BF16-00001-of-00003.gguf": "BF16/words-BF16-00001-of-00003.gguf",
			"words-BF16-00002-of-00003.gguf": "BF16/words-BF16-00002-of-00003.gguf",
			"words-BF16-00003-of-00003.gguf": "BF16/words-BF16-00003-of-00003.gguf",
			"words-Q8_0.gguf":                "words-Q8_0.gguf", "words-Q4_K_M/words-Q4_K_M.gguf": "words-Q4_K_M.gguf",
			"words-Q4_K_M/mmproj-words-F16.gguf": "mmproj-words-F16.gguf",
		}
		h.holds(folder, want)
		asked := len(h.ranges)
		if _, err := fetch(t, s, folder, "ann/words"); err != nil || len(h.ranges) != asked {
			t.Errorf("a model that is there was fetched again: %v", err)
		}
		damaged := filepath.Join(folder, "words-BF16-00002-of-00003.gguf")
		assert.OK(t, os.WriteFile(damaged, noise("other", 300_000), 0o600))
		s.Images = false
		if _, err := fetch(t, s, folder, "ann/words:BF16"); err != nil || len(h.ranges) != asked+1 {
			t.Errorf("%v, %d requests", err, len(h.ranges)-asked)
		}
		h.holds(folder, want)
	})
}

// A download that breaks off is continued where it ended, in the same call; servers
// that are busy are asked again, when they say.
func TestFetchContinues(t *testing.T) {
	inBubble(t, func(t *testing.T, h *modelHub, s *Source) {
		broken := 0
		h.fault = func(w http.ResponseWriter, r *http.Request) bool {
			broken++
			switch broken {
			case 1, 2, 3, 4, 5, 6, 7, 8: // each goes on for a while
				w.Header().Set("Content-Length", "300000")
				from, content := 0, h.files["words-Q4_K_M.gguf"]
				if text := r.Header.Get("Range"); text != "" {
					fmt.Sscanf(text, "bytes=%d-", &from)
					w.Header().Set("Content-Length", strconv.Itoa(len(content)-from))
					w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(content)-1, len(content)))
					w.WriteHeader(http.StatusPartialContent)
				}
				w.Write(content[from : from+30_000])
				http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			case 9:
				w.Header().Set("Retry-After", "100")
				w.WriteHeader(http.StatusTooManyRequests)
			case 10:
				w.WriteHeader(http.StatusBadGateway)
			case 11: // silence
				w.Header().Set("Content-Range", "bytes 240000-299999/300000")
				w.WriteHeader(http.StatusPartialContent)
				http.NewResponseController(w).Flush()
				<-r.Context().Done()
			default:
				return false
			}
			return true
		}
		began := time.Now()
		folder := t.TempDir()
		assert.Value(fetch(t, s, folder, "ann/words"))(t)
		h.holds(folder, map[string]string{"words-Q4_K_M.gguf": "words-Q4_K_M.gguf"})
		assert.Equal(t, h.ranges[len(h.ranges)-1], "bytes=240000-", "the last request was for")
		if took := time.Since(began); took < 160*time.Second {
			t.Errorf("it took %s: the server was not given its time, or the silence was not", took)
		}
	})
}

// A download that does not go on ends with an error, and the next call continues it,
// unless the file is another one by then.
func TestFetchLater(t *testing.T) {
	for _, reference := range []string{"ann/words:Q8_0", "http://files.test/words-Q8_0.gguf"} {
		for _, changed := range []bool{false, true} {
			inBubble(t, func(t *testing.T, h *modelHub, s *Source) {
				folder := t.TempDir()
				down := false
				h.fault = func(w http.ResponseWriter, r *http.Request) bool {
					if r.Method == http.MethodHead {
						return false
					}
					if down {
						w.WriteHeader(http.StatusServiceUnavailable)
						return true
					}
					down = true
					w.Header().Set("Content-Length", "300000")
					w.Write(h.files["words-Q8_0.gguf"][:100_000])
					http.NewResponseController(w).Flush()
					panic(http.ErrAbortHandler)
				}
				assert.Fails(t, assert.Err(fetch(t, s, folder, reference)), "run the same command again")
				if gguf, _ := filepath.Glob(filepath.Join(folder, "*.gguf")); len(gguf) > 0 {
					t.Errorf("a file that is not complete has its name: %v", gguf)
				}
				want := "bytes=100000-"
				if changed {
					h.files["words-Q8_0.gguf"] = noise("later", 300_000)
					want = ""
				}
				h.fault, h.ranges = nil, nil
				assert.Value(fetch(t, s, folder, reference))(t)
				h.holds(folder, map[string]string{"words-Q8_0.gguf": "words-Q8_0.gguf"})
				if !slices.Equal(h.ranges, []string{want}) {
					t.Errorf("%s, changed %v: requests for %q", reference, changed, h.ranges)
				}
			})
		}
	}
}

// A file whose SHA-256 is another one never gets its name.
func TestFetchDamaged(t *testing.T) {
	inBubble(t, func(t *testing.T, h *modelHub, s *Source) {
		folder := t.TempDir()
		m := assert.Value(s.Resolve(t.Context(), "ann/words"))(t)
		right := h.files["words-Q4_K_M.gguf"]
		h.files["words-Q4_K_M.gguf"] = noise("evil", len(right))
		assert.Fails(t, s.Fetch(t.Context(), m, folder, func(Progress) {}), "is damaged", "another file was taken")
		h.holds(folder, nil)
		h.files["words-Q4_K_M.gguf"] = right
		if err := s.Fetch(t.Context(), m, folder, func(Progress) {}); err != nil {
			t.Error(err)
		}
		h.holds(folder, map[string]string{"words-Q4_K_M.gguf": "words-Q4_K_M.gguf"})
	})
}

// A model that the disk has no room for, and one that another process fetches.
func TestFetchRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, h *modelHub, s *Source) {
		folder := t.TempDir()
		m := assert.Value(s.Resolve(t.Context(), "ann/words"))(t)
		large := *m
		large.Files = []File{{Name: "large.gguf", URL: m.Files[0].URL, Size: 1 << 60}}
		if err := s.Fetch(t.Context(), &large, folder, func(Progress) {}); err == nil || !strings.Contains(err.Error(), "make room") {
			t.Errorf("a model larger than the disk: %v", err)
		}
		h.fault = func(w http.ResponseWriter, r *http.Request) bool {
			h.fault = nil
			if err := s.Fetch(t.Context(), m, folder, func(Progress) {}); err == nil || !strings.Contains(err.Error(), "another kith") {
				t.Errorf("two downloads of one file: %v", err)
			}
			return false
		}
		if err := s.Fetch(t.Context(), m, folder, func(Progress) {}); err != nil {
			t.Error(err)
		}
		h.holds(folder, map[string]string{"words-Q4_K_M.gguf": "words-Q4_K_M.gguf"})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		assert.Equal(t, s.Fetch(ctx, m, t.TempDir(), func(Progress) {}), context.Canceled, "interrupted")
	})
}

// The list is sound: names are plain, each reference is a repository's.
func TestList(t *testing.T) {
	seen := map[string]bool{}
	for _, l := range List() {
		repo, ok := strings.CutPrefix(l.From, "hf.co/")
		if !ok || strings.Count(repo, "/") != 1 || l.Size < 100e6 || l.Licence == "" || l.About == "" || strings.ContainsAny(l.Name, "/: ") || seen[l.Name] {
			t.Errorf("%+v", l)
		}
		chats := l.Tools != ""
		if known := l.Trained > 0 && l.Attention.Layers*l.Attention.KVHeads*l.Attention.KeyLength > 0; known != chats || l.Thinking && !chats {
			t.Errorf("what %s can do is not complete", l.Name)
		}
		seen[l.Name] = true
	}
	assert.That(t, Find(strings.ToUpper(List()[0].Name)) != nil && Find("") == nil, "Find")
}

// A lock has one owner at a time, also while owners remove its file.
func TestLockFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var owners, taken atomic.Int32
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 500 {
				unlock, err := lockFile(path)
				if err != nil {
					t.Error(err)
				} else if unlock != nil {
					assert.Equal(t, owners.Add(1), 1, "owners")
					taken.Add(1)
					runtime.Gosched()
					owners.Add(-1)
					unlock()
				}
			}
		})
	}
	group.Wait()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) || taken.Load() == 0 {
		t.Errorf("locked %d times, then %v", taken.Load(), err)
	}
}
