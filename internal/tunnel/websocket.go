package tunnel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/coder/websocket"
)

// A network that passes no upgrade but WebSocket's gets the tunnel in one
// (RFC 6455): the same request and answer with a WebSocket's headers, then the
// same HTTP/2 bytes as binary messages, either way. How they are cut into
// messages means nothing.

const (
	webSocket = "websocket" // its Upgrade token
	// webSocketProtocol is Protocol as a Sec-WebSocket-Protocol, which takes no
	// slash.
	webSocketProtocol = "kith-tunnel-1"

	// A WebSocket may spend on itself, in frames' heads, pings and empty messages,
	// spareBytes and sparePerByte for each byte of the tunnel that it carries. The
	// shortest useful frame spends less, and the tunnel's own pings pay for those of
	// a proxy in between.
	spareBytes   = 64 << 10
	sparePerByte = 16
)

// errSpare ends a WebSocket over its budget.
var errSpare = errors.New("the peer's WebSocket carries pings and empty messages, and too little else")

// webSocketConn carries bytes in a WebSocket's binary messages. What a deadline
// cut cannot be continued: the connection is over.
type webSocketConn struct {
	net.Conn // of websocket.NetConn
	wire     *wire
}

// newWebSocketConn carries bytes in ws, which reads from wire.
func newWebSocketConn(ws *websocket.Conn, wire *wire) *webSocketConn {
	return &webSocketConn{websocket.NetConn(context.Background(), ws, websocket.MessageBinary), wire}
}

// NetConn is the connection below, as tls.Conn has it.
func (c *webSocketConn) NetConn() net.Conn { return c.wire }

// Read satisfies net.Conn.
func (c *webSocketConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.wire.carried += int64(n)
	return n, err
}

// wire is the connection below a WebSocket. It holds the peer to the budget of
// what a WebSocket may spend on itself.
type wire struct {
	net.Conn
	read    int64 // bytes, of which
	carried int64 // were the tunnel's
}

// NetConn is the connection below, as tls.Conn has it.
func (w *wire) NetConn() net.Conn { return w.Conn }

// Read satisfies net.Conn.
func (w *wire) Read(p []byte) (int, error) {
	if w.read-w.carried > spareBytes+sparePerByte*w.carried {
		return 0, errSpare
	}
	n, err := w.Conn.Read(p)
	w.read += int64(n)
	return n, err
}

// acceptWebSocket answers a request for the tunnel in a WebSocket with 101 and
// takes its connection over.
func acceptWebSocket(w http.ResponseWriter, r *http.Request) (net.Conn, error) {
	taken := &hijacker{ResponseWriter: w}
	// The subprotocol was checked, and no request with an Origin comes here.
	ws, err := websocket.Accept(taken, r, &websocket.AcceptOptions{Subprotocols: []string{webSocketProtocol}})
	if err != nil {
		return nil, err
	}
	return newWebSocketConn(ws, taken.wire), nil
}

// hijacker puts a wire below the connection that is taken over.
type hijacker struct {
	http.ResponseWriter
	wire *wire
}

// Hijack satisfies http.Hijacker.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, buffered, err := hijack(h.ResponseWriter)
	if err != nil {
		return nil, nil, err
	}
	h.wire = &wire{Conn: c}
	return h.wire, buffered, nil
}

// askWebSocket is ask for the tunnel in a WebSocket.
func (d *Dialer) askWebSocket(ctx context.Context, raw net.Conn, target hubTarget) (net.Conn, int64, error) {
	below := &wire{Conn: raw}
	dial := func(context.Context, string, string) (net.Conn, error) { return below, nil }
	ws, answer, err := websocket.Dial(ctx, target.url.String(), &websocket.DialOptions{
		HTTPClient: &http.Client{
			Transport: &http.Transport{
				DialContext: dial, DialTLSContext: dial, // it is dialled, with TLS
				DisableCompression: true, MaxResponseHeaderBytes: maxHead,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		HTTPHeader: d.header(), Subprotocols: []string{webSocketProtocol},
	})
	switch {
	case answer == nil:
		return nil, 0, &blockedError{fmt.Errorf("cannot read the hub's answer to the upgrade: %w", err)}
	case answer.StatusCode != http.StatusSwitchingProtocols:
		return nil, 0, refusal(answer)
	case err != nil:
		return nil, 0, &blockedError{fmt.Errorf("the hub's answer is not to this WebSocket: %w", err)}
	case ws.Subprotocol() != webSocketProtocol:
		return nil, 0, &blockedError{fmt.Errorf("the hub's WebSocket speaks %q, not %s", ws.Subprotocol(), webSocketProtocol)}
	}
	generation, err := generationOf(answer)
	return newWebSocketConn(ws, below), generation, err
}
