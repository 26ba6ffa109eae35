package gateway

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// NewServer is an http.Server that bounds what a hostile client can hold
// (trust 22 to 24): 5 s for the headers, 16 KiB of them, two minutes of idling,
// and on HTTP/2 (over TLS only) 100 streams with windows of 64 KiB and 1 MiB.
// Bodies and writes have their own limits in the handler that New makes; a
// handler beside it must set its own. What net/http has to say goes to log, for
// debugging.
func NewServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          100,
			MaxReceiveBufferPerStream:     64 << 10,
			MaxReceiveBufferPerConnection: 1 << 20,
			MaxReadFrameSize:              16 << 10,
			SendPingTimeout:               30 * time.Second,
			PingTimeout:                   15 * time.Second,
			WriteByteTimeout:              writeLimit,
		},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// LimitPerAddress wraps a listener so that one address holds at most perAddress
// connections; those beyond are closed at once. An IPv6 address counts as its
// /64, which is what one customer has. 0 is off; connections that are not TCP
// are not counted.
func LimitPerAddress(l net.Listener, perAddress int) net.Listener {
	if perAddress <= 0 {
		return l
	}
	return &addressLimiter{Listener: l, limit: perAddress, held: make(map[netip.Prefix]int)}
}

type addressLimiter struct {
	net.Listener
	limit int

	mu   sync.Mutex
	held map[netip.Prefix]int // entries only while they hold a connection
}

// Accept waits for the next connection of an address that may have one more.
func (l *addressLimiter) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		tcp, ok := c.(*net.TCPConn)
		if !ok {
			return c, nil
		}
		from := origin(tcp)
		if l.take(from) {
			return &limitedConn{TCPConn: tcp, free: sync.OnceFunc(func() { l.free(from) })}, nil
		}
		_ = c.Close()
	}
}

// origin is whose connection c is.
func origin(c *net.TCPConn) netip.Prefix {
	addr := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	prefix, _ := addr.Prefix(bits) // an address of the kernel's is valid
	return prefix
}

func (l *addressLimiter) take(from netip.Prefix) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[from] >= l.limit {
		return false
	}
	l.held[from]++
	return true
}

func (l *addressLimiter) free(from netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[from]--; l.held[from] == 0 {
		delete(l.held, from)
	}
}

// limitedConn gives its place back when it is closed. It stays a *net.TCPConn
// in all else: net/http half-closes one to deliver an early 413.
type limitedConn struct {
	*net.TCPConn
	free func()
}

// Close closes the connection.
func (c *limitedConn) Close() error {
	defer c.free()
	return c.TCPConn.Close()
}
