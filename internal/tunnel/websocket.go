package tunnel

import (
	"bufio"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/tunnel/h2"
)

// A network that passes no upgrade but WebSocket's gets the tunnel in one
// (RFC 6455): the same request and answer with a WebSocket's headers, then the
// same HTTP/2 bytes as binary frames, either way. How they are cut into frames
// means nothing.
//
// The framing is our own because HTTP/2 goes on with a write that a deadline
// cut. The libraries at hand cannot: golang.org/x/net/websocket forgets how
// much of a frame was sent (and a client of it always sends an Origin), and
// github.com/coder/websocket ends the connection.

const (
	webSocket = "websocket" // its Upgrade token
	// webSocketProtocol is Protocol as a Sec-WebSocket-Protocol, which takes no
	// slash.
	webSocketProtocol = "kith-tunnel-1"
	webSocketVersion  = "13"
	webSocketGUID     = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11" // RFC 6455, 1.3
	// maxMessage bounds a data frame, in bytes, either way. None is held in
	// memory: whoever announces more speaks something else.
	maxMessage = 1 << 20
	// maxControlFrame bounds a close, ping or pong (RFC 6455, 5.5).
	maxControlFrame = 125
	// keepScratch is how large a buffer for writes may be to be kept.
	keepScratch = 1 << 10
)

// Opcodes and bits of a frame's head (RFC 6455, 5.2).
const (
	opContinuation = 0x0
	opBinary       = 0x2
	opClose        = 0x8
	opPing         = 0x9
	opPong         = 0xa

	bitFinal   = 0x80
	bitsRsv    = 0x70
	bitControl = 0x08
	bitMasked  = 0x80
)

// offerWebSocket makes a request for the tunnel one for a WebSocket.
func offerWebSocket(h http.Header) {
	var nonce [16]byte
	rand.Read(nonce[:])
	h.Set("Upgrade", webSocket)
	h.Set("Sec-WebSocket-Version", webSocketVersion)
	h.Set("Sec-WebSocket-Protocol", webSocketProtocol)
	h.Set("Sec-WebSocket-Key", base64.StdEncoding.EncodeToString(nonce[:]))
}

// checkWebSocket says what a request for a WebSocket lacks.
func checkWebSocket(h http.Header) error {
	nonce, err := base64.StdEncoding.DecodeString(h.Get("Sec-WebSocket-Key"))
	switch {
	case !hasToken(h, "Sec-WebSocket-Protocol", webSocketProtocol):
		return fmt.Errorf("cannot open a tunnel: a WebSocket must ask for Sec-WebSocket-Protocol: %s", webSocketProtocol)
	case h.Get("Sec-WebSocket-Version") != webSocketVersion:
		return fmt.Errorf("cannot open a tunnel: Sec-WebSocket-Version must be %s", webSocketVersion)
	case err != nil, len(nonce) != 16:
		return errors.New("cannot open a tunnel: Sec-WebSocket-Key must be 16 bytes in base64")
	}
	return nil
}

// checkAccepted says whether a 101 for a WebSocket is the answer to the key.
func checkAccepted(h http.Header, key string) error {
	switch {
	case h.Get("Sec-WebSocket-Accept") != acceptance(key):
		return errors.New("the hub's answer is not to this WebSocket: Sec-WebSocket-Accept is wrong")
	case h.Get("Sec-WebSocket-Protocol") != webSocketProtocol:
		return fmt.Errorf("the hub's WebSocket speaks %q, not %s", h.Get("Sec-WebSocket-Protocol"), webSocketProtocol)
	case h.Get("Sec-WebSocket-Extensions") != "":
		return fmt.Errorf("the hub's WebSocket has an extension nobody asked for: %q", h.Get("Sec-WebSocket-Extensions"))
	}
	return nil
}

// acceptance is what proves that the answerer understood a key.
func acceptance(key string) string {
	sum := sha1.Sum([]byte(key + webSocketGUID))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// frames is a connection that carries bytes in a WebSocket's binary frames. One
// may read while others write. What a deadline cut cannot be taken up again.
type frames struct {
	net.Conn
	client bool // its frames are masked and the peer's are not

	in        *bufio.Reader
	head      [8]byte
	unread    int    // bytes of the present frame
	unreadKey uint32 // masks the next of them
	partial   bool   // the present message has more frames

	pong    atomic.Pointer[[]byte] // due: what the last ping carried
	writing sync.Mutex             // guards what is below
	sentKey uint32                 // masks the frame that is sent
	scratch []byte
}

func newFrames(c net.Conn, client bool) *frames {
	// Small, because it stays while the machine is idle; what is larger is read
	// past it.
	return &frames{Conn: c, client: client, in: bufio.NewReaderSize(c, 1<<10)}
}

// NetConn is the connection below, as tls.Conn has it.
func (f *frames) NetConn() net.Conn { return f.Conn }

// Read gives the bytes of data frames and sees to the others.
func (f *frames) Read(p []byte) (int, error) {
	for f.unread == 0 && len(p) > 0 {
		if err := f.next(); err != nil {
			return 0, err
		}
	}
	n, err := f.in.Read(p[:min(len(p), f.unread)])
	if !f.client {
		f.unreadKey = mask(p[:n], f.unreadKey)
	}
	f.unread -= n
	return n, err
}

// next reads a frame's head, and a control frame whole.
func (f *frames) next() error {
	head, err := f.take(2)
	if err != nil {
		return err
	}
	final, rsv, op := head[0]&bitFinal != 0, head[0]&bitsRsv, head[0]&^(bitFinal|bitsRsv)
	size := uint64(head[1] &^ bitMasked)
	switch {
	case rsv != 0:
		return errors.New("a WebSocket frame has reserved bits set")
	case (head[1]&bitMasked != 0) == f.client:
		return errors.New("a WebSocket frame is masked from the wrong side")
	case op&bitControl != 0 && (!final || size > maxControlFrame):
		return errors.New("a WebSocket control frame is fragmented or too long")
	}
	switch size {
	case 126:
		if head, err = f.take(2); err == nil {
			size = uint64(binary.BigEndian.Uint16(head))
		}
	case 127:
		if head, err = f.take(8); err == nil {
			size = binary.BigEndian.Uint64(head)
		}
	}
	if err == nil && !f.client {
		if head, err = f.take(4); err == nil {
			f.unreadKey = binary.LittleEndian.Uint32(head)
		}
	}
	switch {
	case err != nil:
		return err
	case size > maxMessage:
		return fmt.Errorf("a WebSocket frame of %d bytes is longer than %d", size, maxMessage)
	case op&bitControl != 0:
		return f.control(op, int(size))
	case op == opBinary && !f.partial, op == opContinuation && f.partial:
		f.unread, f.partial = int(size), !final
		return nil
	}
	return fmt.Errorf("a WebSocket frame with opcode %#x has no place in a tunnel", op)
}

// take reads a few bytes, good until the next take.
func (f *frames) take(n int) ([]byte, error) {
	_, err := io.ReadFull(f.in, f.head[:n])
	return f.head[:n], err
}

// control answers a ping, ends with a close and drops a pong.
func (f *frames) control(op byte, size int) error {
	payload := make([]byte, size)
	if _, err := io.ReadFull(f.in, payload); err != nil {
		return err
	}
	if !f.client {
		mask(payload, f.unreadKey)
	}
	switch op {
	case opPing:
		f.pong.Store(&payload)
		// Whoever writes just now must not stop this reader; the pong then goes
		// with the next frame, which HTTP/2's own pings let come soon.
		if f.writing.TryLock() {
			defer f.writing.Unlock()
			return f.answer()
		}
	case opClose:
		if size < 2 {
			return io.EOF
		}
		return fmt.Errorf("the WebSocket was closed with %d: %q", binary.BigEndian.Uint16(payload), payload[2:])
	case opPong:
	default:
		return fmt.Errorf("a WebSocket frame with opcode %#x has no place in a tunnel", op)
	}
	return nil
}

// answer sends the pong that is due.
func (f *frames) answer() error {
	out := f.appendPong(nil)
	if len(out) == 0 { // it went with a frame
		return nil
	}
	// The last write's deadline may be long over: whoever only reads sends
	// nothing but this.
	err := f.Conn.SetWriteDeadline(time.Now().Add(h2.WriteWithin))
	if err == nil {
		_, err = f.Conn.Write(out)
	}
	if err != nil {
		f.Conn.Close()
		return fmt.Errorf("cannot answer a ping in a WebSocket: %w", err)
	}
	return nil
}

// Write sends p, of at most maxMessage bytes, in one frame. After an error
// nothing more can be written.
func (f *frames) Write(p []byte) (int, error) {
	f.writing.Lock()
	defer f.writing.Unlock()
	out := f.appendHead(f.appendPong(f.scratch[:0]), opBinary, len(p))
	head := len(out)
	out = append(out, p...)
	if f.client {
		mask(out[head:], f.sentKey)
	}
	if cap(out) <= keepScratch {
		f.scratch = out
	}
	if _, err := f.Conn.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// appendPong appends the pong that is due, if one is.
func (f *frames) appendPong(out []byte) []byte {
	payload := f.pong.Swap(nil)
	if payload == nil {
		return out
	}
	out = f.appendHead(out, opPong, len(*payload))
	if f.client {
		mask(*payload, f.sentKey)
	}
	return append(out, *payload...)
}

// appendHead appends the head of a final frame and draws its key.
func (f *frames) appendHead(out []byte, op byte, size int) []byte {
	var masked byte
	if f.client {
		masked = bitMasked
	}
	out = append(out, bitFinal|op)
	switch {
	case size < 126:
		out = append(out, masked|byte(size))
	case size < 1<<16:
		out = binary.BigEndian.AppendUint16(append(out, masked|126), uint16(size))
	default:
		out = binary.BigEndian.AppendUint64(append(out, masked|127), uint64(size))
	}
	if f.client {
		var key [4]byte
		rand.Read(key[:])
		f.sentKey = binary.LittleEndian.Uint32(key[:])
		out = append(out, key[:]...)
	}
	return out
}

// mask masks or unmasks b (RFC 6455, 5.3) and returns the key turned to what
// comes behind it.
func mask(b []byte, key uint32) uint32 {
	wide := uint64(key)<<32 | uint64(key)
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, binary.LittleEndian.Uint64(b)^wide)
	}
	for i := range b {
		b[i] ^= byte(key)
		key = bits.RotateLeft32(key, -8)
	}
	return key
}
