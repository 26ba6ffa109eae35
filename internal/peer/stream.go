package peer

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
)

// protocolStream is the ALPN name of a connection that carries another protocol than
// HTTP: one stream of bytes, between nodes that trust each other as on a link.
const protocolStream = "kith-stream"

// HandleStreams sets what serves the streams that other nodes open. It is called before
// Serve.
func (m *Mesh) HandleStreams(serve func(net.Conn)) { m.streams = serve }

// serveStream serves a stream with a trusted node, and ends with it.
func (m *Mesh) serveStream(server *http.Server, conn *tls.Conn, _ http.Handler) {
	state := conn.ConnectionState()
	if _, ok := m.nodeOf(&state); ok && m.streams != nil {
		m.streams(conn)
	}
}

// Open opens a stream to the node.
func (p *Peer) Open(ctx context.Context) (net.Conn, error) {
	conn, _, err := p.dialTLS(ctx, protocolStream)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// Join copies what each of two connections sends to the other, until one ends; then it
// closes both.
func Join(a, b net.Conn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(a, b)
		a.Close()
	}()
	_, _ = io.Copy(b, a)
	b.Close()
	<-done
}
