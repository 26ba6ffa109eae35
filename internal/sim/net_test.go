package sim

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// network is an address in memory: a listener, and the way to dial it.
type network struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
	delay atomic.Int64 // of what is sent over later connections, a time.Duration

	mu    sync.Mutex
	links map[*link]struct{}
}

func newNetwork() *network {
	return &network{conns: make(chan net.Conn), done: make(chan struct{}), links: map[*link]struct{}{}}
}

func (n *network) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.done:
		return nil, net.ErrClosed
	}
}

func (n *network) Close() error   { n.once.Do(func() { close(n.done) }); return nil }
func (n *network) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

var errNoRoute = errors.New("nobody listens there")

// dial connects, if there is a listener.
func (n *network) dial(ctx context.Context) (*end, error) {
	a, b := net.Pipe()
	if d := time.Duration(n.delay.Load()); d > 0 {
		b = delayed(b, d)
	}
	l := &link{ends: [2]net.Conn{a, b}, net: n}
	n.mu.Lock()
	n.links[l] = struct{}{}
	n.mu.Unlock()
	select {
	case n.conns <- &end{Conn: b, link: l, closed: make(chan struct{})}:
		return &end{Conn: a, link: l, closed: make(chan struct{})}, nil
	case <-n.done:
		l.cut()
		return nil, &net.OpError{Op: "dial", Net: "mem", Err: errNoRoute}
	case <-ctx.Done():
		l.cut()
		return nil, ctx.Err()
	}
}

// delayed returns a connection whose other end is that of conn, d away. No Write takes
// longer for it: HTTP/2 writes under locks, and a bubble's time stands still while a
// goroutine waits for one.
func delayed(conn net.Conn, d time.Duration) net.Conn {
	near, far := net.Pipe()
	pump := func(from, to net.Conn) {
		type sent struct {
			data []byte
			due  time.Time
		}
		way := make(chan sent, 1<<12)
		go func() {
			defer close(way)
			for {
				data := make([]byte, 32<<10)
				n, err := from.Read(data)
				if n > 0 {
					way <- sent{data[:n], time.Now().Add(d)}
				}
				if err != nil {
					return
				}
			}
		}()
		for s := range way {
			time.Sleep(time.Until(s.due))
			if _, err := to.Write(s.data); err != nil {
				from.Close()
			}
		}
		to.Close()
	}
	go pump(conn, near)
	go pump(near, conn)
	return far
}

// cut breaks every connection, as a process does that dies.
func (n *network) cut() {
	n.mu.Lock()
	links := n.links
	n.links = map[*link]struct{}{}
	n.mu.Unlock()
	for l := range links {
		l.cut()
	}
}

// link is one connection. Once lost, what either end sends vanishes and neither
// learns that the other left.
type link struct {
	net  *network
	from string // the hub node that dialled it, if one did
	ends [2]net.Conn
	lost atomic.Bool
	over atomic.Bool
	used atomic.Int64 // when an end last wrote, in Unix nanoseconds
}

func (l *link) cut() {
	l.over.Store(true)
	for _, c := range l.ends {
		c.Close()
	}
}

// dead reports whether nothing passes the link any more.
func (l *link) dead() bool { return l.lost.Load() || l.over.Load() }

// end is one end of a link.
type end struct {
	net.Conn
	link   *link
	closed chan struct{}
	once   sync.Once
}

func (e *end) Write(p []byte) (int, error) {
	e.link.used.Store(time.Now().UnixNano())
	if !e.link.lost.Load() {
		n, err := e.Conn.Write(p)
		if err == nil || !e.link.lost.Load() {
			return n, err
		}
	}
	select {
	case <-e.closed:
		return 0, net.ErrClosed
	default:
		return len(p), nil
	}
}

func (e *end) Read(p []byte) (int, error) {
	n, err := e.Conn.Read(p)
	if err != nil && e.link.lost.Load() {
		<-e.closed // the other end's leaving is not heard of
		return 0, net.ErrClosed
	}
	return n, err
}

func (e *end) Close() error {
	e.once.Do(func() { close(e.closed) })
	e.link.over.Store(true)
	e.link.net.mu.Lock()
	delete(e.link.net.links, e.link)
	e.link.net.mu.Unlock()
	return e.Conn.Close()
}
