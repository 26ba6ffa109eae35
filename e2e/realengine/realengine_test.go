// Package realengine_test runs kith beside llama.cpp's own llama-server, which
// scripts/llama-server.sh compiles: what an engine really sends, and when it closes its
// connections.
package realengine_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// patience is how long a test waits for an event.
const patience = time.Minute

// long runs the long form of each story: KITH_TEST_LONG=1, which make test-all sets.
var long = os.Getenv("KITH_TEST_LONG") != ""

// await waits until holds is true.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	over := time.After(patience)
	for !holds() {
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// start runs a program until the test ends and returns its process.
func start(t *testing.T, env []string, program string, args ...string) *os.Process {
	t.Helper()
	log := new(bytes.Buffer)
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	assert.OK(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		dead := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		dead.Stop()
		if t.Failed() {
			t.Logf("%s %v:\n%s", program, args, log.Bytes()[max(0, log.Len()-4000):])
		}
	})
	return cmd.Process
}

// absolute returns a file of the checkout, which has to be there.
func absolute(t *testing.T, name, why string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../..", name))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%v; %s", err, why)
	}
	return path
}

func kith(t *testing.T) string { return absolute(t, "bin/kith", "run make build, or make test") }

// llamaServer runs the real server with the tiny model and returns its address.
func llamaServer(t *testing.T, args ...string) string {
	t.Helper()
	return server(t, append([]string{"-m", absolute(t, "internal/llama/data/tiny.gguf", "")}, args...)...)
}

// server runs the real server and returns its address.
func server(t *testing.T, args ...string) string {
	t.Helper()
	address := enginetest.FreeAddress()
	serverAt(t, address, args...)
	return "http://" + address
}

// serverAt runs the real server at the address and returns its process.
func serverAt(t *testing.T, address string, args ...string) *os.Process {
	t.Helper()
	host, port, _ := strings.Cut(address, ":")
	process := start(t, nil, absolute(t, "build/llama-server/llama-server", "run make setup-test"), append([]string{"--host", host, "--port", port}, args...)...)
	await(t, "llama-server", func() bool {
		resp, err := http.Get("http://" + address + "/health")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 200
	})
	return process
}

// network is a hub with one member and a daemon.
type network struct {
	t          *testing.T
	hub, local string
	key        string
	dir, data  string                      // of all, and of the hub
	run        func(args ...string) []byte // runs kith on the member's machine
}

// newNetwork starts a hub and a daemon beside the engines.
func newNetwork(t *testing.T, engines ...string) *network {
	t.Helper()
	dir, err := os.MkdirTemp("", "kith") // sockets have short names
	assert.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &network{t: t, hub: "http://" + enginetest.FreeAddress(), dir: dir, data: filepath.Join(dir, "hub")}
	rates := filepath.Join(dir, "hub.toml")
	assert.OK(t, os.WriteFile(rates, []byte("[ratelimit]\nrps = 10000\nburst = 10000\n"), 0o600))
	home := "KITH_HOME=" + filepath.Join(dir, "home")
	start(t, []string{home}, kith(t), "hub", "--config", rates, "--listen", strings.TrimPrefix(n.hub, "http://"), "--admin", enginetest.FreeAddress(), "--data", n.data)
	await(t, "the hub", func() bool {
		_, err := os.Stat(filepath.Join(n.data, "admin.sock"))
		resp, failed := http.Get(n.hub + "/")
		if failed == nil {
			resp.Body.Close()
		}
		return errors.Join(err, failed) == nil
	})
	admin := n.at("home")
	admin("admin", "member", "create", "ana", "--data", n.data)
	n.key = member(t, admin("admin", "key", "create", "--member", "ana", "--data", n.data, "--json"), "secret")
	n.local, n.run = n.daemon("desk", engines...)
	await(t, "the models", func() bool { return len(n.models()) >= len(engines) })
	return n
}

// at returns what runs kith with a home of that name.
func (n *network) at(home string) func(args ...string) []byte {
	return func(args ...string) []byte {
		n.t.Helper()
		cmd := exec.Command(kith(n.t), args...)
		cmd.Env = append(os.Environ(), "KITH_HOME="+filepath.Join(n.dir, home))
		var failed bytes.Buffer
		cmd.Stderr = &failed
		out, err := cmd.Output()
		if err != nil {
			n.t.Fatalf("kith %v: %v %s", args, err, failed.String())
		}
		return out
	}
}

// member returns a member of a JSON object as text.
func member(t *testing.T, document []byte, name string) string {
	t.Helper()
	var values map[string]any
	assert.OK(t, json.Unmarshal(document, &values), document)
	return fmt.Sprint(values[name])
}

// daemon starts a daemon of the member's beside the engines. It returns its address, and
// what runs kith there.
func (n *network) daemon(name string, engines ...string) (local string, run func(args ...string) []byte) {
	n.t.Helper()
	home := filepath.Join(n.dir, name)
	assert.OK(n.t, os.MkdirAll(home, 0o700))
	endpoints := assert.Value(json.Marshal(append([]string{}, engines...)))(n.t)
	config := fmt.Sprintf("[engine]\nbuiltin = false\n[discovery]\nenabled = false\nendpoints = %s\n[share]\nyield_to_local = false\n[ratelimit]\nenabled = false\n", endpoints)
	assert.OK(n.t, os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o600))
	token := member(n.t, n.at("home")("admin", "machine", "token", "--member", "ana", "--name", name, "--data", n.data, "--json"), "token")
	local, run = "http://"+enginetest.FreeAddress(), n.at(name)
	run("login", "--hub", n.hub, "--token", token)
	start(n.t, []string{"KITH_HOME=" + home}, kith(n.t), "serve", "--config", filepath.Join(home, "config.toml"), "--listen", strings.TrimPrefix(local, "http://"))
	return local, run
}

// listed is a model as the hub lists it.
type listed struct {
	ID            string
	Availability  string
	Capabilities  []string
	ContextLength int `json:"context_length"`
}

// list returns the models that the hub lists.
func (n *network) list() []listed {
	req, _ := http.NewRequest(http.MethodGet, n.hub+"/v1/models", nil)
	req.Header.Set("Authorization", "Bearer "+n.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	var list struct{ Data []listed }
	_ = json.NewDecoder(resp.Body).Decode(&list)
	return list.Data
}

// models returns the ids that the hub lists.
func (n *network) models() (ids []string) {
	for _, m := range n.list() {
		ids = append(ids, m.ID)
	}
	return ids
}

// begin makes a call; the body of its answer is to be read and closed.
func (n *network) begin(ctx context.Context, base, path, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+n.key)
	req.Header.Set("Content-Type", "application/json")
	return http.DefaultClient.Do(req)
}

// post makes a call and returns its status and its complete body; err is that of an
// answer that ended uncleanly.
func (n *network) post(ctx context.Context, base, path, body string) (status int, text string, err error) {
	resp, err := n.begin(ctx, base, path, body)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(all), err
}

func chat(model, content string, tokens int, stream bool) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}],"max_tokens":%d,"stream":%v}`, model, content, tokens, stream)
}

// longest is a call whose answer is as long as the model's context: about a thousand
// tokens, because the token that ends an answer is never chosen.
func longest(model string, stream bool) string {
	return strings.TrimSuffix(chat(model, "Count", 100_000, stream), "}") + `,"logit_bias":{"2":-100}}`
}

// keepBusy makes one long call after another until ctx ends.
func (n *network) keepBusy(ctx context.Context, base, model string) {
	for ctx.Err() == nil {
		_, _, _ = n.post(ctx, base, "/v1/chat/completions", longest(model, true))
	}
}

// Six callers share the server through the hub, on the daemon's own surface, and on that of
// a daemon without an engine, which seals the calls: no stream is lost, although the server
// closes its connection after each without announcing it.
func TestStreamsAreComplete(t *testing.T) {
	n := newNetwork(t, llamaServer(t, "--alias", "real", "-np", "4", "-c", "8192"))
	remote, atRemote := n.daemon("lap")
	await(t, "the daemon without an engine", func() bool {
		status, _, err := n.post(t.Context(), remote, "/v1/chat/completions", chat("real", "Say hello", 4, false))
		return err == nil && status == 200
	})
	calls := int64(240)
	if long {
		calls = 10_000
	}
	var left, failed atomic.Int64
	left.Store(calls)
	var all sync.WaitGroup
	for caller := range 6 {
		base := [...]string{n.hub, remote, n.local}[caller%3]
		all.Go(func() {
			for left.Add(-1) >= 0 {
				stream := caller%2 == 0
				status, text, err := n.post(t.Context(), base, "/v1/chat/completions", chat("real", "Say hello", 4, stream))
				good := strings.Contains(text, `"content":"Hello`) && strings.Contains(text, `"finish_reason":"`)
				if stream {
					good = strings.HasSuffix(text, "data: [DONE]\n\n") && strings.Contains(text, `"content":"Hello`)
				}
				if err != nil || status != 200 || !good {
					failed.Add(1)
					t.Errorf("caller %d: %d %v %.400s", caller, status, err, text)
				}
			}
		})
	}
	all.Wait()
	var there struct{ Sealed struct{ Sealed, Clear int64 } }
	assert.OK(t, json.Unmarshal(atRemote("status", "--json"), &there))
	assert.That(t, there.Sealed.Clear == 0 && there.Sealed.Sealed > 0, there)
	t.Logf("%d calls, of which %d were sealed, %d failed", calls, there.Sealed.Sealed, failed.Load())
}

// A server that dies in mid-answer ends the call with an error, in clear and sealed, and is
// used again once it runs again.
func TestServerDies(t *testing.T) {
	address := enginetest.FreeAddress()
	run := func() *os.Process {
		return serverAt(t, address, "-m", absolute(t, "internal/llama/data/tiny.gguf", ""), "--alias", "real", "-np", "2", "-c", "65536")
	}
	process := run()
	n := newNetwork(t, "http://"+address)
	remote, atRemote := n.daemon("lap")
	for _, c := range []struct {
		name, base string
		stream     bool
	}{
		{"in clear, streamed", n.hub, true}, {"in clear", n.hub, false}, {"sealed, streamed", remote, true}, {"sealed", remote, false},
	} {
		await(t, "a call "+c.name, func() bool {
			status, _, err := n.post(t.Context(), c.base, "/v1/chat/completions", chat("real", "Say hello", 4, c.stream))
			return err == nil && status == 200
		})
		var resp *http.Response
		var failed error
		begun := make(chan struct{})
		go func() {
			defer close(begun)
			resp, failed = n.begin(t.Context(), c.base, "/v1/chat/completions", longest("real", c.stream))
		}()
		if c.stream {
			<-begun
			assert.OK(t, failed)
			_, failed = io.ReadFull(resp.Body, make([]byte, 1))
			assert.OK(t, failed)
		} else {
			await(t, "the long call "+c.name, func() bool { return slotsBusy(t, "http://"+address) == 1 })
		}
		assert.OK(t, process.Kill())
		<-begun
		assert.OK(t, failed)
		all, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		status, text := resp.StatusCode, string(all)
		want := map[bool]int{true: 200, false: 502}[c.stream]
		if end := text[max(0, len(text)-400):]; status != want || c.stream != errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(end, `{"error":{"code":"engine_error"`) || strings.Contains(end, "[DONE]") {
			t.Errorf("%s: %d %v …%s", c.name, status, err, end)
		}
		process = run()
	}
	await(t, "the sealed calls are counted, each after its answer", func() bool {
		var there struct{ Sealed struct{ Sealed, Clear int64 } }
		assert.OK(t, json.Unmarshal(atRemote("status", "--json"), &there))
		assert.That(t, there.Sealed.Clear == 0, there)
		return there.Sealed.Sealed >= 4
	})
}

// slotsBusy returns how many slots of the server compute.
func slotsBusy(t *testing.T, server string) (busy int) {
	t.Helper()
	resp := assert.Value(http.Get(server + "/slots"))(t)
	defer resp.Body.Close()
	var slots []struct {
		Busy bool `json:"is_processing"`
	}
	assert.OK(t, json.NewDecoder(resp.Body).Decode(&slots))
	for _, s := range slots {
		if s.Busy {
			busy++
		}
	}
	return busy
}

// A unary call whose caller leaves ends at the server, also while another stream runs.
func TestCancelledUnaryCall(t *testing.T) {
	server := llamaServer(t, "--alias", "real", "-np", "2", "-c", "32768")
	n := newNetwork(t, server)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var ended sync.WaitGroup
	ended.Go(func() { n.keepBusy(ctx, n.hub, "real") })
	await(t, "the stream", func() bool { return slotsBusy(t, server) == 1 })
	leaving, leave := context.WithCancel(t.Context())
	ended.Go(func() {
		_, _, _ = n.post(leaving, n.hub, "/v1/chat/completions", longest("real", false))
	})
	await(t, "the unary call", func() bool { return slotsBusy(t, server) == 2 })
	leave()
	await(t, "its end", func() bool { return slotsBusy(t, server) == 1 })
	stop()
	ended.Wait()
	await(t, "the end of the stream", func() bool { return slotsBusy(t, server) == 0 })
}

// What the server refuses reaches the caller as what it is.
func TestRefusals(t *testing.T) {
	n := newNetwork(t, llamaServer(t, "--alias", "real", "-np", "1", "-c", "1024"), llamaServer(t, "--alias", "vectors", "--embeddings", "--pooling", "mean"))
	picture := `{"model":"real","stream":%v,"messages":[{"role":"user","content":[{"type":"text","text":"what is it?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}]}]}`
	for _, base := range []string{n.hub, n.local} {
		for name, c := range map[string]struct {
			path, body string
			status     int
			code, has  string
		}{
			"a picture":           {"/v1/chat/completions", fmt.Sprintf(picture, false), 400, "invalid_request", "image input is not supported"},
			"a picture, streamed": {"/v1/chat/completions", fmt.Sprintf(picture, true), 400, "invalid_request", "image input is not supported"},
			"a long prompt":       {"/v1/chat/completions", chat("real", strings.Repeat("hello world ", 2000), 9, false), 400, "context_length_exceeded", " tokens > 1024 maximum"},
			"a long text":         {"/v1/embeddings", fmt.Sprintf(`{"model":"vectors","input":%q}`, strings.Repeat("hello world ", 400)), 400, "context_length_exceeded", " tokens > 512 maximum"},
		} {
			status, text, err := n.post(t.Context(), base, c.path, c.body)
			if err != nil || status != c.status || !strings.Contains(text, `"code":"`+c.code+`"`) || !strings.Contains(text, c.has) {
				t.Errorf("%s at %s: %d %v %s", name, base, status, err, text)
			}
		}
	}
}

// Calls that fill the memory that they share are refused as by a busy machine, which
// clients try again, and never as too long.
func TestSharedMemory(t *testing.T) {
	n := newNetwork(t, llamaServer(t, "--alias", "real", "-np", "4", "-c", "1024", "--kv-unified"))
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for _, stream := range []bool{true, false} {
				status, text, _ := n.post(t.Context(), n.hub, "/v1/chat/completions", chat("real", fmt.Sprint(i, strings.Repeat(" hello world", 190)), 60, stream))
				if strings.Contains(text, "context_length_exceeded") || status != 200 && status != 503 {
					t.Errorf("%d %.600s", status, text)
				}
			}
		})
	}
	all.Wait()
}

// A sleeping server sleeps on while the daemon looks at it, and its model stays offered.
func TestSleepingServer(t *testing.T) {
	server := llamaServer(t, "--alias", "real", "--sleep-idle-seconds", "1", "-c", "1024")
	n := newNetwork(t, server)
	asleep := func() bool {
		resp := assert.Value(http.Get(server + "/props"))(t)
		defer resp.Body.Close()
		var props struct {
			Sleeping bool `json:"is_sleeping"`
		}
		_ = json.NewDecoder(resp.Body).Decode(&props)
		return props.Sleeping
	}
	await(t, "its sleep", asleep)
	// kith reload looks at every engine at once.
	for range 3 {
		n.run("reload")
		assert.That(t, asleep(), "a look woke it")
	}
	if got := n.models(); !slices.Contains(got, "real") {
		t.Errorf("offered while it sleeps: %v", got)
	}
	if status, text, err := n.post(t.Context(), n.hub, "/v1/chat/completions", chat("real", "hi", 2, true)); status != 200 || !strings.HasSuffix(text, "[DONE]\n\n") {
		t.Errorf("a call that wakes it: %d %v %s", status, err, text)
	}
}

// What another program uses of the server reaches the hub, and a call made after its end
// is served.
func TestAnotherProgram(t *testing.T) {
	real := llamaServer(t, "--alias", "real", "-np", "2", "-c", "32768")
	n := newNetwork(t, real)
	availability := func() string { return n.list()[0].Availability }
	for range 2 { // its second use is no different
		ctx, stop := context.WithCancel(t.Context())
		var programs sync.WaitGroup
		for range 2 {
			programs.Go(func() { n.keepBusy(ctx, real, "real") })
		}
		await(t, "the hub to know that it is busy", func() bool { return availability() == "busy" })
		stop()
		programs.Wait()
		began := time.Now()
		status, text, err := n.post(t.Context(), n.hub, "/v1/chat/completions", chat("real", "hi", 2, false))
		assert.That(t, err == nil && status == 200, "after it", status, err, text)
		t.Logf("served %v after the program ended", time.Since(began))
	}
}

// The server as a router: every model is offered for what its arguments say, loaded or
// not, and no look loads one.
func TestRouter(t *testing.T) {
	preset := filepath.Join(t.TempDir(), "models.ini")
	tiny := absolute(t, "internal/llama/data/tiny.gguf", "")
	text := "[chatty]\nmodel = " + tiny + "\nctx-size = 2048\nparallel = 2\n[vectors]\nmodel = " + tiny + "\nembeddings = true\npooling = mean\nctx-size = 512\nparallel = 1\n"
	assert.OK(t, os.WriteFile(preset, []byte(text), 0o600))
	router := server(t, "--models-preset", preset)
	n := newNetwork(t, router)
	await(t, "both models", func() bool { return len(n.list()) == 2 })
	states := func() (states []string) {
		resp := assert.Value(http.Get(router + "/v1/models"))(t)
		defer resp.Body.Close()
		var list struct {
			Data []struct {
				ID     string
				Status struct{ Value string }
			}
		}
		_ = json.NewDecoder(resp.Body).Decode(&list)
		for _, m := range list.Data {
			states = append(states, m.ID+" "+m.Status.Value)
		}
		return states
	}
	n.run("reload")
	assert.Same(t, states(), []string{"chatty unloaded", "vectors unloaded"}, "after looks")
	if got := n.list(); slices.Contains(got[0].Capabilities, "embeddings") || !slices.Contains(got[1].Capabilities, "embeddings") {
		t.Errorf("offered: %+v", got)
	}
	for model, c := range map[string]struct{ path, body, has string }{
		"chatty":  {"/v1/chat/completions", chat("chatty", "Say hello", 4, true), `"content":"Hello`},
		"vectors": {"/v1/embeddings", `{"model":"vectors","input":"hi"}`, `"embedding":[`},
	} {
		if status, text, err := n.post(t.Context(), n.hub, c.path, c.body); err != nil || status != 200 || !strings.Contains(text, c.has) {
			t.Errorf("%s: %d %v %.300s", model, status, err, text)
		}
	}
	for model, c := range map[string]struct{ path, body string }{
		"chatty": {"/v1/embeddings", `{"model":"chatty","input":"hi"}`}, "vectors": {"/v1/chat/completions", chat("vectors", "hi", 2, false)},
	} {
		if status, text, _ := n.post(t.Context(), n.hub, c.path, c.body); status != 404 && status != 403 {
			t.Errorf("%s for the other kind: %d %.300s", model, status, text)
		}
	}
}

// shape is what of an answer the double has to have in common with the real server.
type shape struct {
	Status            int
	Server, Type      string
	Chunked, Length   bool
	Connection, Alive string
	Error             []string // members of the error
	Closed            bool     // the connection was closed after an answer that does not announce it
}

func shapeOf(t *testing.T, base, method, path, body string) shape {
	t.Helper()
	transport := new(http.Transport)
	defer transport.CloseIdleConnections()
	req := assert.Value(http.NewRequest(method, base+path, strings.NewReader(body)))(t)
	req.Header.Set("Content-Type", "application/json")
	resp := assert.Value(transport.RoundTrip(req))(t)
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	s := shape{
		Status: resp.StatusCode, Server: resp.Header.Get("Server"), Type: resp.Header.Get("Content-Type"), Chunked: len(resp.TransferEncoding) > 0,
		Length: resp.ContentLength >= 0, Alive: resp.Header.Get("Keep-Alive"), Connection: resp.Header.Get("Connection"),
	}
	if s.Connection == "" && s.Alive != "" && path == "/v1/chat/completions" {
		s.Closed = closedAfter(t, req.URL.Host, path, body)
	}
	var failed struct{ Error map[string]any }
	if json.Unmarshal(text, &failed) == nil {
		for name := range failed.Error {
			s.Error = append(s.Error, name)
		}
		slices.Sort(s.Error)
	}
	return s
}

// closedAfter reports whether a server closes the connection within a second after its
// answer.
func closedAfter(t *testing.T, host, path, body string) bool {
	t.Helper()
	conn, err := net.Dial("tcp", host)
	assert.OK(t, err)
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, host, len(body), body)
	from := bufio.NewReader(conn)
	resp, err := http.ReadResponse(from, nil)
	assert.OK(t, err)
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	_, err = from.ReadByte()
	return errors.Is(err, io.EOF)
}

// The double of llama.cpp's server has the headers, the ends and the errors of the real
// one.
func TestDouble(t *testing.T) {
	real := llamaServer(t, "--alias", "test-model", "-c", "1024", "--metrics")
	double := enginetest.New(enginetest.LlamaCpp, enginetest.Options{Models: []enginetest.Model{{ID: "test-model", ContextLength: 1024}}})
	assert.OK(t, double.Start())
	defer double.Close()
	for name, c := range map[string]struct{ method, path, body string }{
		"a stream":         {"POST", "/v1/chat/completions", chat("test-model", "hi", 3, true)},
		"a unary answer":   {"POST", "/v1/chat/completions", chat("test-model", "hi", 3, false)},
		"no such route":    {"GET", "/nope", ""},
		"no messages":      {"POST", "/v1/chat/completions", `{}`},
		"no JSON":          {"POST", "/v1/chat/completions", `x`},
		"too long":         {"POST", "/v1/chat/completions", chat("test-model", strings.Repeat("hello world ", 3000), 3, false)},
		"no embeddings":    {"POST", "/v1/embeddings", `{}`},
		"the models":       {"GET", "/v1/models", ""},
		"the properties":   {"GET", "/props", ""},
		"the slots":        {"GET", "/slots", ""},
		"health":           {"GET", "/health", ""},
		"without a method": {"GET", "/v1/chat/completions", ""},
	} {
		want, got := shapeOf(t, real, c.method, c.path, c.body), shapeOf(t, double.URL(), c.method, c.path, c.body)
		assert.Same(t, got, want, name, "-real +double")
	}
}
