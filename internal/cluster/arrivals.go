package cluster

import (
	"net"
	"net/netip"
	"sync"

	"github.com/kith/kith/internal/limit"
)

// maxArrivals is the maximum number of connections from one address that are in their TLS
// handshake. A /64 counts as one IPv6 address. Only nodes complete the handshake, and a
// node opens only a few links.
const maxArrivals = 64

// arrivals is a listener that closes further connections from an address with maxArrivals
// connections in their TLS handshake. It does not count connections without an IP address.
type arrivals struct {
	net.Listener
	mu         sync.Mutex
	handshakes map[netip.Prefix]int // number of connections in their TLS handshake
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
		if a.admit(client) {
			return &arrival{Conn: conn, leave: sync.OnceFunc(func() { a.free(client) })}, nil
		}
		_ = conn.Close()
	}
}

func (a *arrivals) admit(client netip.Prefix) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.handshakes[client] >= maxArrivals {
		return false
	}
	if a.handshakes == nil {
		a.handshakes = make(map[netip.Prefix]int)
	}
	a.handshakes[client]++
	return true
}

func (a *arrivals) free(client netip.Prefix) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.handshakes[client]--; a.handshakes[client] == 0 {
		delete(a.handshakes, client)
	}
}

// arrival is a connection that is counted until its TLS handshake is complete.
type arrival struct {
	net.Conn
	leave func()
}

// Close closes the connection and stops counting it.
func (c *arrival) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
