package tunnel

import (
	"bufio"
	"net"
)

// early is a connection some of whose bytes were read already.
type early struct {
	net.Conn
	in *bufio.Reader // nil once drained
}

// withEarly gives back what in holds. No one else may read from it.
func withEarly(c net.Conn, in *bufio.Reader) net.Conn {
	if in.Buffered() == 0 {
		return c
	}
	return &early{c, in}
}

// NetConn is the connection below, as tls.Conn has it.
func (e *early) NetConn() net.Conn { return e.Conn }

func (e *early) Read(p []byte) (int, error) {
	if e.in == nil {
		return e.Conn.Read(p)
	}
	n, err := e.in.Read(p) // from its buffer alone: it is not empty
	if e.in.Buffered() == 0 {
		e.in = nil
	}
	return n, err
}
