package cli

import (
	"context"
	"encoding/json/v2"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/storetest"
)

var (
	replacements = flag.Int("replacements", 2, "how many hubs TestRollingReplacement replaces")
	callers      = flag.Int("callers", 16, "how many calls run at once in TestRollingReplacement")
)

// balancer is a TCP proxy in front of the hubs. It passes each new connection to a hub
// that says it is ready.
type balancer struct {
	net.Listener
	client http.Client

	mu   sync.Mutex
	hubs []string // addresses
}

func newBalancer(t *testing.T) *balancer {
	t.Helper()
	listener := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	b := &balancer{Listener: listener, client: http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go b.pass(c)
		}
	}()
	return b
}

func (b *balancer) add(hub string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hubs = append(b.hubs, hub)
}

// pass connects a client to a hub that is ready, if there is one.
func (b *balancer) pass(client net.Conn) {
	defer client.Close()
	requests, err := begun(client)
	if err != nil {
		return
	}
	b.mu.Lock()
	hubs := slices.Clone(b.hubs)
	b.mu.Unlock()
	rand.Shuffle(len(hubs), func(i, j int) { hubs[i], hubs[j] = hubs[j], hubs[i] })
	for _, address := range hubs {
		if b.get(address+"/readyz") != nil {
			continue
		}
		hub, err := net.Dial("tcp", address)
		if err != nil {
			continue
		}
		defer hub.Close()
		go func() {
			io.Copy(hub, requests)
			hub.(*net.TCPConn).CloseWrite()
		}()
		io.Copy(client, hub)
		return
	}
}

// get returns nil if the address answers 200.
func (b *balancer) get(address string) error {
	res, err := b.client.Get("http://" + address)
	if err != nil {
		return err
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return nil
}

// rolling is several hubs on one PostgreSQL behind a balancer, and a daemon.
type rolling struct {
	*rig
	*balancer
	settings string
	nodes    map[string]*child
	data     map[string]string // folders, by node
}

// newRolling starts hubs of those names, a member and a machine.
func newRolling(t *testing.T, names ...string) *rolling {
	t.Helper()
	b := newBalancer(t)
	r := &rolling{
		rig:      &rig{t: t, home: shortDir(t), base: "http://" + b.Addr().String()},
		balancer: b, nodes: map[string]*child{}, data: map[string]string{},
		settings: fmt.Sprintf("[ratelimit]\nrps = 0\nconnections = 0\n[limits]\nrunning = 0\nwaiting = 0\n[database]\nurl = %q\n[peer]\nlisten = \"127.0.0.1:0\"\n", storetest.Postgres(t)),
	}
	r.engine = enginetest.New(enginetest.LlamaCpp, enginetest.Options{
		Slots:     max(64, 2**callers),
		Behaviour: enginetest.Behaviour{Chunks: 40, Interval: 50 * time.Millisecond * time.Duration(max(1, *callers/100))},
	})
	assert.OK(t, r.engine.Start())
	t.Cleanup(func() { r.engine.Close() })
	config := "[engine]\nbuiltin = false\n[discovery]\nenabled = false\nendpoints = [\"" + r.engine.URL() + "\"]\n"
	assert.OK(t, os.WriteFile(filepath.Join(r.home, "config.toml"), []byte(config), 0o600))
	for _, name := range names {
		r.startNode(name)
	}
	r.dir = r.data[names[0]]
	r.signIn("ada")
	r.startDaemon()
	t.Cleanup(func() { r.daemon.kill() })
	r.until("a call is served", func() error { _, err := r.ask(false); return err })
	return r
}

// startNode starts a hub, which is ready when it returns.
func (r *rolling) startNode(name string) {
	r.t.Helper()
	address := enginetest.FreeAddress()
	r.data[name] = shortDir(r.t)
	file := filepath.Join(r.data[name], "hub.toml")
	text := fmt.Sprintf("%s[hub]\nnode = %q\npublic_url = %q\n", r.settings, name, r.base)
	assert.OK(r.t, os.WriteFile(file, []byte(text), 0o600))
	c := r.start("hub", "--listen", address, "--data", r.data[name], "--admin", "", "--config", file)
	r.nodes[name], r.hub = c, c
	r.t.Cleanup(c.kill)
	r.until("hub "+name+" is ready", func() error { return r.get(address + "/readyz") })
	r.add(address)
}

// survey is what a node says of all of them.
func (r *rolling) survey(at string) (map[string]api.Node, error) {
	nodes, _, err := fetch(r.t.Context(), r.operator(at), "list the nodes", api.OperatorListNodes.With(api.None{}))
	byName := make(map[string]api.Node)
	for _, n := range nodes {
		byName[n.Name] = n
	}
	return byName, err
}

func (r *rolling) operator(node string) *client {
	return overSocket(filepath.Join(r.data[node], "admin.sock"), "", "")
}

// homeOf is the node at which the machine's tunnel ends, as another one says.
func (r *rolling) homeOf(at string) (string, error) {
	machines, _, err := fetch(r.t.Context(), r.operator(at), "list the machines", api.OperatorListMachines.With(api.OfMember{}))
	if err != nil || len(machines) != 1 || machines[0].Node == "" {
		return "", fmt.Errorf("%+v: %w", machines, err)
	}
	return machines[0].Node, nil
}

// TestRollingReplacement replaces hubs one after the other, by SIGTERM and by
// `kith admin drain`, while calls run and new ones come: each call is served, none is cut
// (docs/faults.md#25, docs/faults.md#26).
func TestRollingReplacement(t *testing.T) {
	t.Parallel()
	r := newRolling(t, "n0", "n1")
	var load sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	served := 0
	for i := range *callers {
		load.Go(func() {
			for ctx.Err() == nil {
				_, err := r.ask(i%4 != 0)
				mu.Lock()
				if served++; err != nil {
					t.Errorf("a call was cut or refused: %v", err)
				}
				mu.Unlock()
			}
		})
	}
	for i := range *replacements {
		before, after := fmt.Sprintf("n%d", i), fmt.Sprintf("n%d", i+2)
		r.startNode(after)
		r.until("the new node is linked", func() error {
			nodes, err := r.survey(after)
			if n := nodes[before]; !n.Linked || !n.Alive {
				err = errors.Join(err, fmt.Errorf("%+v", nodes))
			}
			return err
		})
		if i%2 == 0 {
			assert.OK(t, r.nodes[before].cmd.Process.Signal(syscall.SIGTERM))
		} else {
			out, err := r.command("admin", "drain", before, "--json", "--data", r.data[after])
			assert.Require(t, err == nil && strings.Contains(out, `"state":"ended"`), out, err)
		}
		if err := r.nodes[before].cmd.Wait(); err != nil {
			t.Fatalf("%v\n%s", err, &r.nodes[before].errs)
		}
		if _, end, drained := strings.Cut(r.nodes[before].errs.String(), "msg=drained"); !drained || strings.Contains(end, "another hub node") {
			t.Errorf("after its drain it says of the other nodes: %s", end)
		}
		r.until("the machine has moved", func() error {
			home, err := r.homeOf(after)
			if home == before {
				err = errors.New(home)
			}
			return err
		})
		r.until("the node that ended is no node any more", func() error {
			nodes, err := r.survey(after)
			if nodes[before].Name != "" {
				err = errors.Join(err, fmt.Errorf("%+v", nodes))
			}
			return err
		})
	}
	stop()
	load.Wait()
	t.Logf("%d replacements under %d callers: %d calls", *replacements, *callers, served)
}

// command runs kith to its end and returns what it printed.
func (r *rig) command(args ...string) (string, error) {
	cmd := exec.Command("kith", args...)
	cmd.Env = append(os.Environ(), "KITH_HOME="+r.home)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestMachineReturnsAfterKill kills the node at which a machine's tunnel ends. The daemon
// connects to the other node, and calls are served again (docs/faults.md#24).
func TestMachineReturnsAfterKill(t *testing.T) {
	t.Parallel()
	r := newRolling(t, "a", "b")
	var home string
	r.until("a knows where the machine is", func() (err error) { home, err = r.homeOf("a"); return err })
	other := map[string]string{"a": "b", "b": "a"}[home]
	r.nodes[home].kill()
	began := time.Now()
	r.until("the machine is at the other node", func() error {
		now, err := r.homeOf(other)
		if now != other {
			err = errors.Join(err, errors.New("it is at "+now))
		}
		return err
	})
	r.until("a call is served again", func() error { _, err := r.ask(true); return err })
	t.Logf("served again %s after the kill", time.Since(began).Round(time.Millisecond))
	r.until("the node that was killed is gone", func() error {
		nodes, err := r.survey(other)
		if nodes[home].Alive || nodes[home].Name == "" {
			err = errors.Join(err, fmt.Errorf("%+v", nodes))
		}
		return err
	})
}

// TestHubEndsInOrder: a hub that is interrupted lets its calls run to their end, and a
// second signal ends them with an error frame (docs/faults.md#26).
func TestHubEndsInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	interrupt := func() {
		t.Helper()
		assert.OK(t, r.hub.cmd.Process.Signal(os.Interrupt))
	}
	begin := func(chunks int) *http.Response {
		t.Helper()
		r.engine.Set(enginetest.Behaviour{Chunks: chunks, Interval: 50 * time.Millisecond})
		res, err := r.begin(true)
		if err == nil {
			_, err = io.ReadFull(res.Body, make([]byte, 1))
		}
		assert.Require(t, err == nil && res.StatusCode == http.StatusOK, res, err)
		return res
	}
	draining := func() error {
		nodes, _, err := fetch(t.Context(), r.operator(), "list the nodes", api.OperatorListNodes.With(api.None{}))
		if err == nil && nodes[0].State != account.NodeDraining {
			err = fmt.Errorf("%+v", nodes)
		}
		return err
	}
	more, answer := r.upload() // it keeps the hub until the end
	r.client = &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	res := begin(40)
	interrupt()
	r.until("the hub takes no new connection", func() error {
		c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		if res, err := c.Get(r.base + "/readyz"); err == nil {
			res.Body.Close()
			return errors.New(res.Status)
		}
		return nil
	})
	r.until("the hub drains", draining)
	if _, err := complete(res, true); err != nil {
		t.Errorf("a call that ran was cut: %v", err)
	}
	r.engine.Set(enginetest.Behaviour{Chunks: 1})
	if _, err := r.ask(true); err != nil {
		t.Errorf("the next call on its connection was cut: %v", err)
	}
	if _, err := r.ask(true); err == nil {
		t.Error("the hub took a call too many on a connection, or a new one")
	}
	assert.Value(io.WriteString(more, `"test-model","messages":[{"role":"user","content":"hi"}]}`))(t)
	more.Close()
	if status, code := answer(); status != http.StatusOK {
		t.Errorf("a call whose body came meanwhile: %d %s", status, code)
	}
	if err := r.hub.cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, &r.hub.errs)
	}

	r.startHub()
	r.until("a call is served again", func() error { _, err := r.ask(false); return err })
	res = begin(100_000)
	_, late := r.upload()
	r.until("both calls are there", func() error {
		nodes, _, err := fetch(t.Context(), r.operator(), "list the nodes", api.OperatorListNodes.With(api.None{}))
		if err == nil && nodes[0].Calls != 2 {
			err = fmt.Errorf("%+v", nodes)
		}
		return err
	})
	interrupt()
	r.until("the hub drains again", draining)
	interrupt()
	if status, code := late(); status != http.StatusServiceUnavailable || code != "CASCADE_EXHAUSTED" {
		t.Errorf("a call whose body had not come: %d %s", status, code)
	}
	text, err := io.ReadAll(res.Body) // HTTP too reports that it is incomplete
	if !strings.Contains(string(text), "CASCADE_EXHAUSTED") || strings.Contains(string(text), "[DONE]") {
		t.Errorf("%v: the answer ends with %s", err, text[max(0, len(text)-400):])
	}
	if err := r.hub.cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, &r.hub.errs)
	}
}

// upload begins a call of which only the start of the body comes, up to the model. The
// rest may be written to more; answer waits for the call's end.
func (r *rig) upload() (more io.WriteCloser, answer func() (status int, code string)) {
	r.t.Helper()
	body, more := io.Pipe()
	ctx, cancel := context.WithTimeout(r.t.Context(), soon)
	req := assert.Value(http.NewRequestWithContext(ctx, http.MethodPost, r.base+"/v1/chat/completions", body))(r.t)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+r.key)
	type result struct {
		status int
		code   string
	}
	ended := make(chan result, 1)
	go func() {
		var out result
		res, err := new(http.Transport).RoundTrip(req)
		if err != nil {
			out.code = err.Error()
		} else {
			var f struct {
				Error struct {
					Code string `json:"code"`
				} `json:"error"`
			}
			defer res.Body.Close()
			_ = json.UnmarshalRead(res.Body, &f)
			out = result{res.StatusCode, f.Error.Code}
		}
		ended <- out
	}()
	if _, err := io.WriteString(more, `{"model":`); err != nil { // a read of it: the head was sent
		r.t.Fatal(err)
	}
	return more, func() (int, string) {
		defer cancel()
		out := <-ended
		return out.status, out.code
	}
}

// TestCloneIsFenced: a daemon whose credential is used elsewhere reports that, does not
// take the place back by itself, and does so when it is reloaded.
func TestCloneIsFenced(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	clone := &rig{t: t, home: shortDir(t)}
	for _, name := range []string{"credential", "config.toml"} {
		text, err := os.ReadFile(filepath.Join(r.home, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(clone.home, name), text, 0o600)
		}
		assert.OK(t, err)
	}
	await := func(home, state string) {
		t.Helper()
		r.until("the daemon is "+state, func() error {
			var now daemon.Status
			_, err := control(home).call(t.Context(), "look", request{http.MethodGet, "/status", nil}, &now)
			if now.Tunnel.State != state || state == daemon.TunnelFenced && now.Tunnel.Retry.IsZero() {
				err = errors.Join(err, fmt.Errorf("%+v", now.Tunnel))
			}
			return err
		})
	}
	await(r.home, tunnelUp)
	clone.startDaemon()
	defer clone.daemon.kill()
	await(clone.home, tunnelUp)
	await(r.home, daemon.TunnelFenced)
	if out, err := r.command("reload"); err != nil {
		t.Fatal(out, err)
	}
	await(r.home, tunnelUp)
	await(clone.home, daemon.TunnelFenced)
}
