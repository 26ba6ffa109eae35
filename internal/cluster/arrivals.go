package cluster

import (
	"net"
	"net/netip"
	"sync"

	"github.com/kith/kith/internal/limit"
)

// maxArrivals is how many connections of one address may be in their handshake at once;
// of IPv6 a /64 is one. Only a node completes it, and nodes open a few links each.
const maxArrivals = 64

// arrivals is a listener that closes the connections of an address with maxArrivals.
// Connections that are not of an IP address are not counted.
type arrivals struct {
	net.Listener
	mu sync.Mutex
	of map[netip.Prefix]int // connections in their handshake
}

// Accept waits for the next connection whose address may have one more.
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

// arrival is a connection that counts until its handshake is complete.
type arrival struct {
	net.Conn
	leave func()
}

// Close closes the connection, which counts no more.
func (c *arrival) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
