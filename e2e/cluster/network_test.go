//go:build linux

package cluster_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// network carries every connection between the processes of a cluster. It can cut the
// way from one of them to another, as a network does that loses every packet: a
// connection neither ends nor carries anything until the way is restored.
type network struct {
	mu   sync.Mutex
	cuts map[way]chan struct{} // closed when the way is restored
	pids map[int]string        // the processes by id
}

// way is the direction in which connections are made; what they carry goes both ways.
type way struct{ from, to string }

func newNetwork() *network {
	return &network{cuts: make(map[way]chan struct{}), pids: make(map[int]string)}
}

// cut cuts ways, until restore is called.
func (n *network) cut(ways ...way) (restore func()) {
	restored := make(chan struct{})
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range ways {
		n.cuts[w] = restored
	}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, w := range ways {
			delete(n.cuts, w)
		}
		close(restored)
	}
}

// pass returns once a way is not cut.
func (n *network) pass(w way) {
	for {
		n.mu.Lock()
		restored := n.cuts[w]
		n.mu.Unlock()
		if restored == nil {
			return
		}
		<-restored
	}
}

// started names a process.
func (n *network) started(name string, pid int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pids[pid] = name
}

// proxy passes the connections to its address on to the first of the targets that
// accepts them, beginning with another one each time. Who connects to a node is found out.
func (n *network) proxy(t testing.TB, w way, targets ...string) (address string) {
	t.Helper()
	listener := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for turn := 0; ; turn++ {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go n.relay(client, w, turn, targets)
		}
	}()
	return listener.Addr().String()
}

// machinesWay leads from the machines to the nodes.
var machinesWay = way{to: "hub"}

func (n *network) relay(client net.Conn, w way, turn int, targets []string) {
	defer client.Close()
	var server net.Conn
	for i := range targets {
		var err error
		if server, err = net.Dial("tcp", targets[(turn+i)%len(targets)]); err == nil {
			break
		}
	}
	if server == nil {
		return
	}
	defer server.Close()
	if strings.HasPrefix(w.to, "node") {
		w.from = n.owner(client)
	}
	n.pass(w)
	var both sync.WaitGroup
	both.Go(func() { n.copy(w, server, client); server.(*net.TCPConn).CloseWrite() })
	both.Go(func() { n.copy(w, client, server); client.(*net.TCPConn).CloseWrite() })
	both.Wait()
}

// copy copies until the end of in.
func (n *network) copy(w way, out io.Writer, in io.Reader) {
	buffer := make([]byte, 32<<10)
	for {
		read, err := in.Read(buffer)
		n.pass(w)
		if _, writeErr := out.Write(buffer[:read]); err != nil || writeErr != nil {
			return
		}
	}
}

// owner returns the name of the process that made a connection: "" for this one and for
// those that are not named.
func (n *network) owner(conn net.Conn) string {
	inode, err := inodeOf(conn.RemoteAddr().(*net.TCPAddr).Port, conn.LocalAddr().(*net.TCPAddr).Port)
	if err != nil {
		return ""
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for pid, name := range n.pids {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, file := range files {
			if at, err := os.Readlink(file); err == nil && at == "socket:["+inode+"]" {
				return name
			}
		}
	}
	return ""
}

// inodeOf returns the inode of the socket that connects two ports of loopback.
func inodeOf(local, remote int) (string, error) {
	text, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) > 9 && port(f[1]) == local && port(f[2]) == remote {
			return f[9], nil
		}
	}
	return "", errors.New("there is no such socket")
}

// port returns the port of an address as /proc writes it.
func port(address string) int {
	_, hex, _ := strings.Cut(address, ":")
	number, err := strconv.ParseInt(hex, 16, 32)
	if err != nil {
		return -1
	}
	return int(number)
}
