package cli

import (
	"bufio"
	"encoding/json/v2"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// front is an address that a test holds and that leads to a hub process, whose own
// port is known only once it runs, and differs at each start.
type front struct {
	net.Listener
	to atomic.Pointer[string] // nil: no hub runs
}

func newFront(t *testing.T) *front {
	t.Helper()
	listener := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { listener.Close() })
	f := &front{Listener: listener}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go f.relay(conn)
		}
	}()
	return f
}

// relay carries the bytes of one connection until either end closes it.
func (f *front) relay(conn net.Conn) {
	defer conn.Close()
	client, err := begun(conn)
	to := f.to.Load()
	if err != nil || to == nil {
		return
	}
	hub, err := net.Dial("tcp", *to)
	if err != nil {
		return
	}
	defer hub.Close()
	go func() {
		_, _ = io.Copy(hub, client)
		hub.Close()
	}()
	_, _ = io.Copy(conn, hub)
}

// begun waits for the first byte of a connection and returns what comes on it, that byte
// too. A client may keep a connection that it has not used yet. A hub closes one on which
// no request comes for 5 s, and the client might send its first call at that moment.
func begun(conn net.Conn) (io.Reader, error) {
	r := bufio.NewReader(conn)
	_, err := r.Peek(1)
	return r, err
}

// leadTo reads the address that a hub prints at its start.
func (f *front) leadTo(out io.Reader) {
	var at struct {
		Hub string `json:"hub"`
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil && json.Unmarshal(line, &at) == nil {
		address := strings.TrimPrefix(at.Hub, "http://")
		f.to.Store(&address)
	}
}
