package tunnel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// If a network passes no other upgrade, the tunnel runs in a WebSocket (RFC 6455). The
// request and response are the same with a WebSocket's headers. Then the same HTTP/2
// bytes follow in binary messages, whose boundaries have no meaning.

const (
	webSocket = "websocket" // the Upgrade token of WebSocket
	// webSocketProtocol is Protocol for Sec-WebSocket-Protocol, which must not contain a
	// slash.
	webSocketProtocol = "kith-tunnel-1"

	// The overhead of a WebSocket (frame headers, pings, empty messages) may be
	// overheadBytes, plus overheadPerByte for each byte of the tunnel. The shortest
	// useful frame needs less, and the tunnel's own pings provide enough for the pings of
	// a proxy in between.
	overheadBytes   = 64 << 10
	overheadPerByte = 16
)

// errOverhead ends a WebSocket that exceeds the allowed overhead.
var errOverhead = errors.New("the peer's WebSocket carries pings and empty messages, and too little else")

// webSocketConn carries bytes in a WebSocket's binary messages. It cannot be used after a
// deadline has passed.
type webSocketConn struct {
	net.Conn // from websocket.NetConn
	raw      *meteredConn
	reading  sync.Mutex // held by Read
	readErr  error      // of the last Read
}

func newWebSocketConn(ws *websocket.Conn, raw *meteredConn) *webSocketConn {
	return &webSocketConn{Conn: websocket.NetConn(context.Background(), ws, websocket.MessageBinary), raw: raw}
}

// NetConn returns the underlying connection, like the method of tls.Conn.
func (c *webSocketConn) NetConn() net.Conn { return c.raw }

// Read implements net.Conn.
func (c *webSocketConn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	n, err := c.Conn.Read(p)
	c.raw.payload += int64(n)
	c.readErr = err
	return n, err
}

// Write implements net.Conn. If a Read closes the WebSocket, for example because of an
// invalid frame, both return the error of that Read.
func (c *webSocketConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if errors.Is(err, net.ErrClosed) {
		closeInnermost(c.raw) // otherwise Read could wait forever for the rest of the frame
		c.reading.Lock()
		defer c.reading.Unlock()
		if c.readErr != nil {
			err = c.readErr
		}
	}
	return n, err
}

// meteredConn is the connection under a WebSocket. It limits the overhead that the peer
// may send.
type meteredConn struct {
	net.Conn
	read    int64 // bytes
	payload int64 // bytes of the tunnel among them
}

// NetConn returns the underlying connection, like the method of tls.Conn.
func (c *meteredConn) NetConn() net.Conn { return c.Conn }

// Read implements net.Conn.
func (c *meteredConn) Read(p []byte) (int, error) {
	if c.read-c.payload > overheadBytes+overheadPerByte*c.payload {
		return 0, errOverhead
	}
	n, err := c.Conn.Read(p)
	c.read += int64(n)
	return n, err
}

// acceptWebSocket responds with 101 to a request for the tunnel in a WebSocket, and takes
// over its connection.
func acceptWebSocket(w http.ResponseWriter, r *http.Request) (net.Conn, error) {
	hijacker := &meteringHijacker{ResponseWriter: w}
	// The server writes the response, and Hijack then clears the deadline.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	// Upgrade has checked the subprotocol, and that there is no Origin header.
	ws, err := websocket.Accept(hijacker, r, &websocket.AcceptOptions{Subprotocols: []string{webSocketProtocol}})
	if err != nil {
		return nil, err
	}
	return newWebSocketConn(ws, hijacker.conn), nil
}

// meteringHijacker is a ResponseWriter that wraps the hijacked connection in a
// meteredConn.
type meteringHijacker struct {
	http.ResponseWriter
	conn *meteredConn
}

// Hijack implements http.Hijacker.
func (h *meteringHijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, buffered, err := hijack(h.ResponseWriter)
	if err != nil {
		return nil, nil, err
	}
	h.conn = &meteredConn{Conn: c}
	return h.conn, buffered, nil
}

// requestWebSocket is requestPlain for a tunnel in a WebSocket.
func (d *Dialer) requestWebSocket(ctx context.Context, raw net.Conn, target hubTarget) (upgraded, error) {
	metered := &meteredConn{Conn: raw}
	dial := func(context.Context, string, string) (net.Conn, error) { return metered, nil }
	ws, response, err := websocket.Dial(ctx, target.url.String(), &websocket.DialOptions{
		HTTPClient: &http.Client{
			Transport: &http.Transport{
				DialContext: dial, DialTLSContext: dial, // raw is connected already, with TLS
				DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		HTTPHeader: d.header(), Subprotocols: []string{webSocketProtocol},
	})
	switch {
	case response == nil:
		return upgraded{}, &blockedError{fmt.Errorf("cannot read the hub's answer to the upgrade: %w", err)}
	case response.StatusCode != http.StatusSwitchingProtocols:
		return upgraded{}, refusal(response)
	case err != nil:
		return upgraded{}, &blockedError{fmt.Errorf("the hub's answer is not to this WebSocket: %w", err)}
	case ws.Subprotocol() != webSocketProtocol:
		return upgraded{}, &blockedError{fmt.Errorf("the hub's WebSocket speaks %q, not %s", ws.Subprotocol(), webSocketProtocol)}
	}
	return upgradedBy(response, newWebSocketConn(ws, metered))
}
