package pull

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/shirou/gopsutil/v4/disk"

	"github.com/kith/kith/internal/assert"
)

// Without a checksum: what is no model, more than was announced, or refused is not kept.
func TestFetchUnverified(t *testing.T) {
	model := noise("model", 300_000)
	page := []byte("<!doctype html><title>Sign in</title>" + strings.Repeat(" ", 2000))
	serve := func(content []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			if r.Method == http.MethodGet {
				w.Write(content)
			}
		}
	}
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	redirect := func(to string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) }
	}
	bits := func(w http.ResponseWriter, _ *http.Request) {
		w.Write(page[:2])
		http.NewResponseController(w).Flush()
		w.Write(page[2:])
	}
	for name, c := range map[string]struct {
		head, get http.HandlerFunc
		want      string // in the error; empty: the model is there
	}{
		"good":               {serve(model), serve(model), ""},
		"a page":             {serve(page), serve(page), `begins with "<!do", and a GGUF file with "GGUF"`},
		"a page in bits":     {serve(page), bits, "is not the model"},
		"a short page":       {serve(page[:2]), serve(page[:2]), `begins with "<!"`},
		"empty":              {serve(nil), serve(nil), `begins with ""`},
		"more than HEAD":     {serve(model[:1000]), serve(model[:2000]), "announced 1000 bytes and sends more"},
		"HEAD is forbidden":  {status(http.StatusForbidden), serve(model), ""},
		"HEAD is not known":  {status(http.StatusNotImplemented), serve(model), ""},
		"both are forbidden": {status(http.StatusForbidden), status(http.StatusForbidden), "refuses access (403 Forbidden): it needs an account, or the address has expired"},
		"gone":               {status(http.StatusGone), status(http.StatusGone), "check the name"},
		"a teapot":           {status(http.StatusTeapot), status(http.StatusTeapot), "check the address"},
		"to this computer":   {serve(model), redirect("http://127.0.0.1:11434/api/tags"), "it redirects to 127.0.0.1:11434, an address of this computer"},
		"to the metadata":    {redirect("http://[::ffff:169.254.169.254]/latest"), status(http.StatusForbidden), "refuses access"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, h *modelHub, s *Source) {
				h.files["model.gguf"] = model
				h.fault = func(w http.ResponseWriter, r *http.Request) bool {
					map[string]http.HandlerFunc{http.MethodHead: c.head, http.MethodGet: c.get}[r.Method](w, r)
					return true
				}
				folder := t.TempDir()
				_, err := fetch(t, s, folder, "http://files.test/model.gguf")
				if c.want == "" {
					assert.OK(t, err)
					h.holds(folder, map[string]string{"model.gguf": "model.gguf"})
					return
				}
				assert.Fails(t, err, c.want)
				h.holds(folder, nil)
			})
		})
	}
}

// A redirect to this computer is followed from this computer only.
func TestRedirects(t *testing.T) {
	for _, c := range []struct {
		from, to string
		refused  bool
	}{
		{"https://a.test", "https://b.test", false},
		{"http://localhost:1", "http://127.0.0.1:2", false},
		{"http://[::1]:1", "http://models.localhost", false},
		{"https://a.test", "http://localhost.", true},
		{"https://a.test", "http://[::1]", true},
		{"https://a.test", "http://[::ffff:127.0.0.1]", true},
		{"https://a.test", "http://0.0.0.0:80", true},
		{"https://a.test", "http://169.254.169.254", true},
		{"https://a.test", "http://10.0.0.1", false},
	} {
		from, _ := http.NewRequest(http.MethodGet, c.from, nil)
		to, _ := http.NewRequest(http.MethodGet, c.to, nil)
		if err := checkRedirect(to, []*http.Request{from}); (err != nil) != c.refused {
			t.Errorf("%s to %s: %v", c.from, c.to, err)
		}
	}
}

// A file without a checksum that is replaced before the download goes on is fetched from
// its start, whatever its server sends to distinguish its versions.
func TestReplacedBeforeResume(t *testing.T) {
	first, second := noise("first", 300_000), noise("second", 300_000)
	dates := map[string]string{string(first): "Mon, 02 Nov 2026 10:00:00 GMT", string(second): "Tue, 03 Nov 2026 10:00:00 GMT"}
	for name, header := range map[string]func(content []byte) (key, value string){
		"by a tag":      func(content []byte) (string, string) { return "ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(content)) },
		"by a date":     func(content []byte) (string, string) { return "Last-Modified", dates[string(content)] },
		"by a weak tag": func(content []byte) (string, string) { return "ETag", fmt.Sprintf(`W/"%x"`, sha256.Sum256(content)) },
		"by nothing":    func([]byte) (string, string) { return "Server", "old" },
	} {
		for _, honest := range []bool{true, false} { // whether it heeds If-Range
			t.Run(fmt.Sprint(name, honest), func(t *testing.T) {
				inBubble(t, func(t *testing.T, h *modelHub, s *Source) {
					h.files["a.gguf"] = first
					broken := false
					h.fault = func(w http.ResponseWriter, r *http.Request) bool {
						content := h.files["a.gguf"]
						key, value := header(content)
						w.Header().Set(key, value)
						if !honest {
							r.Header.Del("If-Range")
						}
						if r.Method == http.MethodGet && !broken {
							broken = true
							w.Header().Set("Content-Length", "300000")
							w.Write(content[:100_000])
							http.NewResponseController(w).Flush()
							h.files["a.gguf"] = second
							panic(http.ErrAbortHandler)
						}
						changed, _ := http.ParseTime(w.Header().Get("Last-Modified"))
						http.ServeContent(w, r, "", changed, bytes.NewReader(content))
						return true
					}
					folder := t.TempDir()
					assert.Value(fetch(t, s, folder, "http://files.test/a.gguf"))(t)
					h.holds(folder, map[string]string{"a.gguf": "a.gguf"})
				})
			})
		}
	}
}

// A body without an end stops before it fills the disk, and nothing of it is kept.
func TestEndlessBody(t *testing.T) {
	free := uint64(1 << 30)
	diskUsage = func(string) (*disk.UsageStat, error) {
		free /= 2
		return &disk.UsageStat{Free: free}, nil
	}
	defer func() { diskUsage = disk.Usage }()
	inBubble(t, func(t *testing.T, h *modelHub, s *Source) {
		h.files["endless.gguf"] = nil
		h.fault = func(w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusOK)
			http.NewResponseController(w).Flush()
			for block := noise("endless", 1<<20); r.Method == http.MethodGet; {
				if _, err := w.Write(block); err != nil {
					return true
				}
			}
			return true
		}
		folder := t.TempDir()
		assert.Is(t, assert.Err(fetch(t, s, folder, "http://files.test/endless.gguf")), ErrNoSpace, "an endless body")
		h.holds(folder, nil)
	})
}
