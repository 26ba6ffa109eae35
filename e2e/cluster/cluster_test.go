//go:build linux

// Package cluster_test runs three hub nodes as processes, on a PostgreSQL primary and a
// synchronous standby, with a proxy on every way between two of them, and machines and
// callers in this process. Then it kills, stops and cuts off.
package cluster_test

import (
	"bytes"
	"context"
	"encoding/json/v2"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/postgres"
	"github.com/kith/kith/internal/store"
)

var machineCount = flag.Int("machines", 20, "how many machines are connected")

// soon ends a test that hangs. No rule about time is tested by it.
const soon = 2 * time.Minute

const owner = "ada" // of all machines

// cluster is three nodes, their databases, and what uses them.
type cluster struct {
	t        *testing.T
	dir      string
	network  *network
	nodes    []*node
	database [2]*postgres.Server
	address  [2]string // of the databases
	primary  int       // the index of the primary
	machines *machines
	binary   string // of the nodes

	mu       sync.Mutex
	answered []string // the ids of the calls with a complete answer
	members  int      // made so far
}

// node is one hub process.
type node struct {
	name, dir       string
	public, private string        // the addresses of its surface and for other nodes
	base            string        // of its surface
	clock           time.Duration // by how much its clock is ahead, in a binary of changedClock
	cmd             *exec.Cmd
	log             *os.File
}

// start brings everything up: each node serves a call. The machines connect to so many of
// the nodes. The clocks of the nodes are ahead by so much, if any is given.
func start(t *testing.T, homes int, clocks ...time.Duration) *cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "kith-cluster-") // short enough for sockets
	assert.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := &cluster{t: t, dir: dir, network: newNetwork(), machines: &machines{runs: make(map[string][]*run)}, binary: os.Getenv("KITH_BIN")}
	switch {
	case clocks != nil:
		c.binary = changedClock(t)
	case c.binary == "":
		c.binary, _ = filepath.Abs("../../bin/kith")
	}
	c.startDatabases()
	var public []string
	for i := range 3 {
		n := &node{name: fmt.Sprintf("node%d", i+1), public: enginetest.FreeAddress(), private: enginetest.FreeAddress()}
		n.dir, n.base = filepath.Join(dir, n.name), "http://"+n.public
		if clocks != nil {
			n.clock = clocks[i]
		}
		c.nodes, public = append(c.nodes, n), append(public, n.public)
		c.write(n)
		c.startNode(n)
		t.Cleanup(func() { n.kill() })
	}
	hub := "http://" + c.network.proxy(t, machinesWay, public[:homes]...)
	c.until("the operator's socket answers", func() error { return c.nodes[0].operate("GET", "/members", nil, nil) })
	c.member(owner)
	c.connect(hub)
	key := c.key(owner)
	for _, n := range c.nodes {
		c.until("a call is served by "+n.name, func() error { _, err := c.call(n, key, unary); return err })
	}
	return c
}

// startDatabases starts the primary, then its synchronous standby.
func (c *cluster) startDatabases() {
	for i := range c.address {
		c.address[i] = enginetest.FreeAddress()
		c.t.Cleanup(func() {
			if c.database[i] != nil {
				_ = c.database[i].Close()
			}
		})
	}
	c.startDatabase(0, "")
	c.startStandby()
}

// databases returns the URL of both databases by way of the network.
func (c *cluster) databases(from string) string {
	return fmt.Sprintf("postgres://%s@%s,%s/postgres?sslmode=disable", postgres.User, c.proxy(from, 0), c.proxy(from, 1))
}

// proxy returns the address of a database by way of the network.
func (c *cluster) proxy(from string, i int) string {
	return c.network.proxy(c.t, way{from, fmt.Sprintf("database%d", i)}, c.address[i])
}

func (c *cluster) startDatabase(i int, primary string) {
	var err error
	c.database[i], err = postgres.Start(postgres.Config{Listen: c.address[i], Settings: []string{"fsync=off"}, Primary: primary})
	assert.OK(c.t, err)
}

// startStandby starts the database that is not the primary as its synchronous standby.
func (c *cluster) startStandby() {
	c.startDatabase(1-c.primary, fmt.Sprintf("postgres://%s@%s/postgres?application_name=standby", postgres.User, c.proxy("", c.primary)))
	c.synchronous(c.primary, "standby")
	c.until("commits wait for the standby", func() error {
		return c.database[c.primary].Execute("postgres",
			"DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync') THEN RAISE 'they do not'; END IF; END $$")
	})
}

// failOver makes the standby the primary. The old primary was killed, or lives on.
func (c *cluster) failOver() {
	c.primary = 1 - c.primary
	assert.OK(c.t, c.database[c.primary].Promote())
	c.synchronous(c.primary, "") // it has no standby yet
}

// replaceStandby makes a new standby in place of the old primary.
func (c *cluster) replaceStandby() {
	_ = c.database[1-c.primary].Close()
	c.startStandby()
}

// synchronous makes the commits of a server wait for the standbys of that name.
func (c *cluster) synchronous(i int, names string) {
	if err := c.database[i].Execute("postgres", "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'", "SELECT pg_reload_conf()"); err != nil {
		c.t.Fatal(err)
	}
}

// write writes a node's configuration.
func (c *cluster) write(n *node) {
	text := fmt.Sprintf("[hub]\nnode = %q\n[database]\nurl = %q\n[peer]\nlisten = %q\naddress = %q\n[ratelimit]\nrps = 0\nconnections = 0\n[limits]\nrunning = 0\nwaiting = 0\nmachines = 0\n",
		n.name, c.databases(n.name), n.private, c.network.proxy(c.t, way{to: n.name}, n.private))
	err := os.MkdirAll(n.dir, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(n.dir, "hub.toml"), []byte(text), 0o600)
	}
	if err == nil {
		n.log, err = os.OpenFile(filepath.Join(n.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	}
	assert.OK(c.t, err)
}

// startNode starts a node's process.
func (c *cluster) startNode(n *node) {
	n.cmd = exec.Command(c.binary, "hub", "--config", filepath.Join(n.dir, "hub.toml"), "--data", n.dir, "--listen", n.public, "--admin", "")
	n.cmd.Env = append(os.Environ(), clockVariable+"="+n.clock.String())
	n.cmd.Stderr = n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // an interrupt is for this process, whose end is the node's
	if err := n.cmd.Start(); err != nil {
		c.t.Fatalf("%v; run make build", err)
	}
	c.network.started(n.name, n.cmd.Process.Pid)
}

// kill is kill -9.
func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
}

// stop stops the process for a while, as SIGSTOP does.
func (n *node) stop() (resume func()) {
	_ = n.cmd.Process.Signal(syscall.SIGSTOP)
	return func() { _ = n.cmd.Process.Signal(syscall.SIGCONT) }
}

// connect connects the machines, by a load balancer.
func (c *cluster) connect(hub string) {
	ctx, cancel := context.WithCancel(context.Background())
	c.t.Cleanup(func() { cancel(); c.machines.running.Wait() })
	group := new(errgroup.Group)
	group.SetLimit(8)
	for i := range *machineCount {
		group.Go(func() error {
			secret, err := c.machine(c.nodes[0], c.nodes[0], owner, fmt.Sprintf("box%04d", i))
			if err == nil {
				c.machines.connect(ctx, hub, secret, 4)
			}
			return err
		})
	}
	assert.OK(c.t, group.Wait())
	c.allConnected(*machineCount)
}

// machine makes a machine of a member: its token at one node, its credential at another.
func (c *cluster) machine(token, login *node, member, name string) (secret string, err error) {
	var made struct{ Token, Secret string }
	if err = token.operate("POST", "/machines/token", map[string]string{"member": member, "name": name}, &made); err == nil {
		err = exchange(http.DefaultClient, "POST", login.base+"/login", map[string]string{"token": made.Token, "name": name}, &made)
	}
	return made.Secret, err
}

func (c *cluster) allConnected(all int) {
	c.t.Helper()
	c.until("all machines are connected", func() error {
		if n := c.machines.up.Load(); n != int64(all) {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}

// operate makes a request of the operator.
func (n *node) operate(method, path string, in, out any) error {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(n.dir, "admin.sock"))
	}}}
	return exchange(client, method, "http://operator"+path, in, out)
}

// exchange sends and receives JSON.
func exchange(client *http.Client, method, url string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequest(method, url, body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return err
	case response.StatusCode >= 300:
		return fmt.Errorf("%s %s: %s: %s", method, url, response.Status, text)
	case out == nil:
		return nil
	}
	return json.Unmarshal(text, out, json.MatchCaseInsensitiveNames(true))
}

// member makes a member, with a share of all machines.
func (c *cluster) member(name string) {
	err := c.nodes[0].operate("POST", "/members", map[string]string{"name": name}, nil)
	if err == nil && name != owner {
		err = c.nodes[0].operate("POST", "/shares", map[string]string{"owner": owner, "with": name}, nil)
	}
	assert.OK(c.t, err)
}

// key is an API key.
type key struct{ ID, Secret string }

func (c *cluster) key(member string) (made key) {
	assert.OK(c.t, c.nodes[0].operate("POST", "/keys", map[string]any{"member": member, "manage": true}, &made))
	return made
}

// until tries again and again until it works.
func (c *cluster) until(what string, try func() error) {
	c.t.Helper()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	late := time.After(soon)
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-late:
			for _, n := range c.nodes {
				text, _ := os.ReadFile(n.log.Name())
				c.t.Logf("%s: %s", n.name, text[max(0, len(text)-3000):])
			}
			c.t.Fatalf("%s: not within %v: %v", what, soon, err)
		}
	}
}

// checkLedger ends the nodes and compares the ledger with what was answered: no call is
// missing, none is there twice.
func (c *cluster) checkLedger() (lost, doubled int) {
	c.t.Helper()
	for _, n := range c.nodes {
		_ = n.cmd.Process.Signal(os.Interrupt)
		_ = n.cmd.Wait()
	}
	db := assert.Value(store.Open(c.t.Context(), store.Config{URL: c.databases("")}))(c.t)
	defer db.Close()
	records := assert.Value(db.Usage(c.t.Context()))(c.t)
	count := make(map[string]int)
	for _, r := range records {
		count[r.CallID]++
		if count[r.CallID] > 1 {
			doubled++
		}
	}
	for _, id := range c.answered {
		if count[id] == 0 {
			lost++
			c.t.Errorf("call %s was answered and is not in the ledger", id)
		}
	}
	assert.That(c.t, doubled <= 0, doubled, "calls are in the ledger twice")
	c.t.Logf("ledger: %d records, %d answered calls", len(records), len(c.answered))
	return lost, doubled
}

var errRefused = errors.New("refused")
