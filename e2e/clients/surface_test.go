package clients_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/kith/kith/internal/assert"
)

// anyKey is a key for a daemon's own surface, which takes every one.
const anyKey = "anything"

// surface is an address at which a program makes calls.
type surface struct {
	name, base, key string // base is without /v1
	// sealed is set if it is that of a daemon whose models are all on other machines. Its
	// answers are checked to be sealed. A daemon lists only what it serves itself.
	sealed bool
}

func (s surface) openAI() openai.Client {
	return openai.NewClient(option.WithBaseURL(s.base+"/v1"), option.WithAPIKey(s.key), option.WithMaxRetries(0))
}

func (s surface) messages() anthropic.Client { return messagesClient(s.base, s.key) }

// place is the surface as node's tests get it.
func (s surface) place() map[string]string {
	return map[string]string{"v1": s.base + "/v1", "base": s.base, "key": s.key}
}

// on runs the test once at each surface.
func on(t *testing.T, surfaces []surface, test func(*testing.T, surface)) {
	for _, s := range surfaces {
		t.Run(s.name, func(t *testing.T) { test(t, s) })
	}
}

// remote starts a daemon of the member that has no engine, with more of a configuration,
// and returns its surface. The test fails if an answer there was not sealed, or if a
// refusal may have left the machine in clear.
func (n *staged) remote(member string, more ...string) surface {
	n.t.Helper()
	name := remoteOf(member)
	n.daemonOf(member, name, "[engine]\nbuiltin = false\n[discovery]\nenabled = false\n"+strings.Join(more, ""))
	target := assert.Value(url.Parse(n.local(name)))(n.t)
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		FlushInterval: -1,
		ModifyResponse: func(resp *http.Response) error {
			n.checkSealed(resp)
			return nil
		},
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A ReverseProxy cuts a client off that still sends when the answer comes.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client left
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}))
	n.t.Cleanup(front.Close)
	return surface{name: "sealed", base: front.URL, key: anyKey, sealed: true}
}

// remoteOf names the daemon that remote starts.
func remoteOf(member string) string { return "remote of " + member }

// local returns the address of a daemon's own surface, without /v1.
func (n *staged) local(name string) string {
	n.t.Helper()
	var status struct{ Local string }
	n.until("the daemon shows its address", func() error {
		out, err := n.at(name, "status", "--json")
		if err == nil {
			err = json.Unmarshal(out, &status)
		}
		if err == nil && status.Local == "" {
			err = errors.New("it has none")
		}
		return err
	})
	return strings.TrimSuffix(status.Local, "/v1")
}

// at runs a command of kith with the home of a daemon.
func (n *staged) at(name string, args ...string) ([]byte, error) {
	cmd := exec.Command(n.binary, args...)
	cmd.Env = append(os.Environ(), "KITH_HOME="+filepath.Join(n.dir, name))
	return cmd.Output()
}

// checkSealed checks what a daemon reports of a call: in a header, or in a comment after
// the headers of a stream (docs/spec/sealed.md#x-kith-sealed).
func (n *staged) checkSealed(resp *http.Response) {
	switch strings.TrimPrefix(resp.Request.URL.Path, "/v1/") {
	case "chat/completions", "messages", "embeddings":
	default:
		return
	}
	what := resp.Request.URL.Path + ": " + resp.Status
	switch got := resp.Header.Get("X-Kith-Sealed"); {
	case got == "yes":
	case resp.StatusCode != http.StatusOK:
		assert.Equal(n.t, got, "no; reason=not_sent", what)
	case got == "" && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream"):
		resp.Body = &streamCheck{ReadCloser: resp.Body, t: n.t, what: what}
	default:
		n.t.Errorf("%s: X-Kith-Sealed is %q", what, got)
	}
}

// streamCheck checks at the end of a stream that a comment before its content shows that
// it is sealed.
type streamCheck struct {
	io.ReadCloser
	t    *testing.T
	what string
	text bytes.Buffer
}

func (c *streamCheck) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.text.Write(p[:n])
	return n, err
}

func (c *streamCheck) Close() error {
	comments, _, _ := strings.Cut(c.text.String(), "data: ")
	assert.Contains(c.t, comments, ": sealed=yes\n\n", c.what)
	return c.ReadCloser.Close()
}
