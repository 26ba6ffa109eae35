package cluster

import (
	"net"
	"net/netip"
	"sync"

	"github.com/kith/kith/internal/limit"
)

// maxArrivals is how many connections from one address may be in their handshake at once;
// a /64 counts as one IPv6 address. Only nodes complete the handshake, and a node opens
// only a few links.
const maxArrivals = 64

// arrivals is a listener that closes further connections from an address with
// maxArrivals. It does not count connections without an IP address.
type arrivals struct {
	net.Listener
	mu sync.Mutex
	of map[netip.Prefix]int // connections in their handshake
}

// Accept waits for the next connection from an address that is below the limit.
func (a *arrivals) Accept() (net.Conn, error) {
	for {
		conn, err := a.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from, err := netip.ParseAddrPort(conn.RemoteAddr().String())
		if err != nil {
			return conn, nil
		}
		client := limit.Network(from.Addr())
		if a.take(client) {
			return &arrival{Conn: conn, leave: sync.OnceFunc(func() { a.free(client) })}, nil
		}
		_ = conn.Close()
	}
}

func (a *arrivals) take(client netip.Prefix) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of[client] >= maxArrivals {
		return false
	}
	if a.of == nil {
		a.of = make(map[netip.Prefix]int)
	}
	a.of[client]++
	return true
}

func (a *arrivals) free(client netip.Prefix) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of[client]--; a.of[client] == 0 {
		delete(a.of, client)
	}
}

// arrival is a connection that is counted until its handshake is complete.
type arrival struct {
	net.Conn
	leave func()
}

// Close closes the connection and stops counting it.
func (c *arrival) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
