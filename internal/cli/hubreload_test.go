//go:build unix

package cli

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// TestHubReload changes a hub's configuration while it serves, by the command and by
// SIGHUP: no call is cut, and a file with a mistake changes nothing.
func TestHubReload(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	reload := func(settings string) string {
		t.Helper()
		r.write("hub.toml", settings)
		out, _ := r.command("admin", "reload", "--data", r.dir, "--json")
		return strings.TrimSpace(out)
	}
	const before = "[ratelimit]\nrps = 0\nconnections = 0\n"
	status := func(size int) int {
		t.Helper()
		body := fmt.Sprintf(`{"model":"test-model","messages":[{"role":"user","content":%q}]}`, strings.Repeat("x", size))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.base+"/v1/chat/completions", strings.NewReader(body))
		assert.OK(t, err)
		req.Header.Set("Authorization", "Bearer "+r.key)
		res, err := http.DefaultClient.Do(req)
		assert.OK(t, err)
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode
	}
	assert.Equal(t, reload(before), `{"applied":[],"restart":[]}`, "without a change")
	r.engine.Set(enginetest.Behaviour{Chunks: 40, Interval: 50 * time.Millisecond})
	running := assert.Value(r.begin(true))(t)
	r.engine.Set(enginetest.Behaviour{Chunks: 1})

	if got := reload(before + "[limits]\nbody = \"2KiB\"\nspool = \"1GiB\"\n[site]\nsignup = \"open\"\n"); got != `{"applied":["limits.body"],"restart":["limits.spool","site.signup"]}` {
		t.Errorf("a smaller body: %s", got)
	}
	assert.Equal(t, status(3000), http.StatusRequestEntityTooLarge, "over the new limit")
	if got := reload("[ratelimit]\nrps = \"many\"\n"); !strings.Contains(got, "hub.toml:2:7: ratelimit.rps takes") || !strings.Contains(got, "nothing has changed") {
		t.Errorf("a mistake: %s", got)
	}
	assert.Equal(t, status(3000), http.StatusRequestEntityTooLarge, "after a mistake")

	// By the signal.
	r.write("hub.toml", before+"[log]\nlevel = \"error\"\n")
	assert.OK(t, r.hub.cmd.Process.Signal(syscall.SIGHUP))
	r.until("the limit is the default again", func() error {
		if got := status(3000); got != http.StatusOK {
			return fmt.Errorf("%d", got)
		}
		return nil
	})
	if got := reload("[ratelimit]\nrps = 1\nburst = 1\n[hub]\ncors = [\"https://app.example\"]\n"); got != `{"applied":["hub.cors","ratelimit.rps","ratelimit.burst","ratelimit.connections","log.level"],"restart":[]}` {
		t.Errorf("a rate: %s", got)
	}
	r.until("more than one request a second is refused", func() error {
		if got := status(1); got != http.StatusTooManyRequests {
			return fmt.Errorf("%d", got)
		}
		return nil
	})
	if got := reload(before); !strings.HasPrefix(got, `{"applied":["hub.cors",`) {
		t.Errorf("without a rate: %s", got)
	}
	if _, err := complete(running, true); err != nil {
		t.Errorf("a call was cut: %v", err)
	}
	r.hub.stop(t)
	if said := r.hub.errs.String(); strings.Count(said, "was read again") != 4 { // not the one with level = "error"
		t.Errorf("logged: %s", said)
	}
}

// TestHubReloadsCertificate replaces a hub's certificate and sends it SIGHUP: new
// connections get the new one, and those that are open stay open.
func TestHubReloadsCertificate(t *testing.T) {
	t.Parallel()
	chain, key := selfSigned(t)
	r := emptyRig(t)
	r.listen = enginetest.FreeAddress()
	r.write("hub.toml", fmt.Sprintf("[ratelimit]\nconnections = 0\n[tls]\ncertificate = %q\nkey = %q\n", chain, key))
	r.startHub()
	t.Cleanup(func() { r.hub.kill() })
	get := func() (used []byte, err error) {
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		defer transport.CloseIdleConnections()
		res, err := (&http.Client{Transport: transport}).Get("https://" + r.listen + "/readyz")
		if err != nil {
			return nil, err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return nil, errors.New(res.Status)
		}
		return res.TLS.PeerCertificates[0].Raw, nil
	}
	var before []byte
	r.until("the hub serves", func() (err error) { before, err = get(); return err })

	open := assert.Value(tls.Dial("tcp", r.listen, &tls.Config{InsecureSkipVerify: true}))(t)
	defer open.Close()
	answers := bufio.NewReader(open)
	ask := func() {
		t.Helper()
		if _, err := io.WriteString(open, "GET /readyz HTTP/1.1\r\nHost: hub\r\n\r\n"); err != nil {
			t.Error(err)
		}
		res, err := http.ReadResponse(answers, nil)
		assert.Require(t, err == nil && res.StatusCode == http.StatusOK, "on a connection from before", res, err)
		_, _ = io.Copy(io.Discard, res.Body)
	}
	ask()
	newChain, newKey := selfSigned(t)
	for to, from := range map[string]string{chain: newChain, key: newKey} {
		assert.OK(t, os.Rename(from, to))
	}
	assert.OK(t, r.hub.cmd.Process.Signal(syscall.SIGHUP))
	r.until("the new certificate is used", func() error {
		now, err := get()
		if err == nil && string(now) == string(before) {
			err = errors.New("the old one is")
		}
		return err
	})
	// A key that others can read is refused, and the certificate stays.
	assert.OK(t, os.Chmod(key, 0o644))
	if out, err := r.command("admin", "reload", "--data", r.dir); err == nil || !strings.Contains(out, "chmod 640 "+filepath.Clean(key)) {
		t.Errorf("%s %v", out, err)
	}
	ask()
}

// TestStreamsAtSIGTERM ends a hub under 200 streams: those that end within [hub] drain
// have their end, each other one an error frame, and none is cut.
func TestStreamsAtSIGTERM(t *testing.T) {
	t.Parallel()
	const streams = 200
	r := emptyRig(t)
	r.open("[hub]\ndrain = \"1s\"\n[limits]\nrunning = 0\n")
	r.serve("ada", enginetest.Options{Slots: streams, Behaviour: enginetest.Behaviour{Chunks: 4, Interval: time.Millisecond}})
	r.until("a call is served", func() error { _, err := r.ask(false); return err })
	// A hub gives a request 5 s for its headers to come. On a busy computer it may not read
	// those of a hundred within that time: ten begin at a time.
	beginning := make(chan struct{}, 10)
	var begun, ended sync.WaitGroup
	var mu sync.Mutex
	ends := map[string]int{}
	start := func(n int, b enginetest.Behaviour) {
		r.engine.Set(b)
		for range n {
			begun.Add(1)
			ended.Go(func() {
				beginning <- struct{}{}
				res, err := r.begin(true)
				var body *bufio.Reader
				if err == nil {
					body = bufio.NewReader(res.Body)
					for line := ""; err == nil && !strings.HasPrefix(line, "data: "); { // not a sign of life from the hub
						line, err = body.ReadString('\n')
					}
				}
				<-beginning
				begun.Done()
				if err != nil || res.StatusCode != http.StatusOK {
					t.Errorf("a stream does not begin: %v, %v", res, err)
					return
				}
				defer res.Body.Close()
				text, err := io.ReadAll(body)
				end := "cut"
				switch {
				case strings.HasSuffix(string(text), "data: [DONE]\n\n"):
					end = "complete"
				case strings.Contains(string(text), `"code":"CASCADE_EXHAUSTED"`):
					end = "error frame"
				default:
					t.Errorf("cut after %d bytes: %v: …%s", len(text), err, text[max(0, len(text)-200):])
				}
				mu.Lock()
				ends[end]++
				mu.Unlock()
			})
		}
		begun.Wait()
	}
	start(streams/2, enginetest.Behaviour{Chunks: 3600, Interval: time.Second})
	start(streams/2, enginetest.Behaviour{Chunks: 4, Interval: 200 * time.Millisecond})
	assert.OK(t, r.hub.cmd.Process.Signal(syscall.SIGTERM))
	ended.Wait()
	if err := r.hub.cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, &r.hub.errs)
	}
	t.Log(ends)
	if ends["error frame"] < streams/2 || ends["complete"]+ends["error frame"] != streams {
		said := r.hub.errs.String()
		t.Errorf("%v; hub: …%s", ends, said[max(0, len(said)-3000):])
	}
}
