package tunnel

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"golang.org/x/time/rate"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/outbound"
)

// Limits on what a machine can make the hub do.
const (
	maxOffersLine     = 1 << 20          // bytes of one line of GET /offers
	maxOfferObjects   = 4096             // objects in one line: a model of two bytes takes 140 in memory
	firstOfferTimeout = 10 * time.Second // for the first line, after the upgrade
	fenceTimeout      = 2 * time.Second  // for the response to POST /fenced
	maxErrorText      = 512              // bytes kept of a daemon's error text
	maxInstance       = 64               // bytes of HeaderInstance
)

var (
	// ErrFull is the error of RoundTrip if the daemon grants no further stream.
	ErrFull = errors.New("cannot send the call: the machine grants no further stream on its tunnel")
	// ErrEnded is the error of RoundTrip if the tunnel ended before the request was sent.
	ErrEnded = errors.New("cannot send the call: the tunnel ended")
)

var (
	// errFenced is why a Client ended after Fence.
	errFenced = errors.New("a newer tunnel of the machine replaced it")
	// errOrigin refuses pages in browsers, even with a valid credential.
	errOrigin = errors.New("cannot open a tunnel: no page in a browser may, and only one sends an Origin")
)

// UpgradeConfig configures a tunnel that the hub accepts.
type UpgradeConfig struct {
	// Generation is the tunnel's number. It is larger than those of all earlier tunnels
	// of the machine.
	Generation int64
	// Node is the name of this hub node, shown to the machine's owner.
	Node string
	// Offers limits the rate of reading the machine's advertisements; nil means no limit.
	Offers *rate.Limiter
}

// Client is the hub's end of one tunnel. It is an http.RoundTripper that sends requests
// to one machine. The host of a request's URL is ignored. A Client is safe for concurrent
// use.
type Client struct {
	conn       *conn
	http       *http.ClientConn
	generation int64
	instance   string        // id of the daemon's process
	offering   atomic.Int32  // number of open responses to GET /offers
	offerRate  *rate.Limiter // limits advertisements
}

// Upgrade responds with 101 to GET /tunnel of an authenticated machine and takes over the
// connection. It uses a WebSocket if the request offers nothing else. If it fails, it has
// written the error response. The caller must Close the Client.
func Upgrade(w http.ResponseWriter, r *http.Request, config UpgradeConfig) (*Client, error) {
	if len(r.Header.Values("Origin")) > 0 {
		http.Error(w, errOrigin.Error(), http.StatusForbidden)
		return nil, errOrigin
	}
	if err := checkUpgrade(r); err != nil {
		w.Header().Set("Upgrade", Protocol)
		w.Header().Set("Connection", "Upgrade")
		http.Error(w, err.Error(), http.StatusUpgradeRequired)
		return nil, err
	}
	w.Header().Set(HeaderVersion, strconv.Itoa(Version))
	w.Header().Set(HeaderGeneration, strconv.FormatInt(config.Generation, 10))
	if config.Node != "" {
		w.Header().Set(HeaderNode, config.Node)
	}
	accept := acceptPlain
	if !hasToken(r.Header, "Upgrade", Protocol) {
		accept = acceptWebSocket
	}
	c, err := accept(w, r)
	if err != nil {
		return nil, fmt.Errorf("cannot open a tunnel: %w", err)
	}
	client, err := newClient(r.Context(), c, config)
	if err == nil {
		client.instance = r.Header.Get(HeaderInstance)
	}
	return client, err
}

// acceptPlain responds with 101 and the headers of w to a request for the tunnel, and
// takes over its connection.
func acceptPlain(w http.ResponseWriter, _ *http.Request) (net.Conn, error) {
	raw, buffered, err := hijack(w)
	if err != nil {
		http.Error(w, "cannot open a tunnel here", http.StatusInternalServerError)
		return nil, err
	}
	head := http.Header{"Connection": {"Upgrade"}, "Upgrade": {Protocol}}
	for _, name := range []string{HeaderVersion, HeaderGeneration, HeaderNode} {
		if value := w.Header().Get(name); value != "" {
			head.Set(name, value)
		}
	}
	text := bytes.NewBufferString("HTTP/1.1 101 Switching Protocols\r\n")
	_ = head.Write(text) // writes to memory never fail
	text.WriteString("\r\n")
	_ = raw.SetWriteDeadline(time.Now().Add(writeTimeout)) // later writes set their own
	if _, err := raw.Write(text.Bytes()); err != nil {
		raw.Close()
		return nil, fmt.Errorf("cannot answer the upgrade: %w", err)
	}
	return withBuffer(raw, buffered.Reader), nil
}

// hijack takes over the connection of a request and clears the deadlines that the
// server set for one request.
func hijack(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) {
	raw, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot take the connection over: %w", err)
	}
	if err := raw.SetDeadline(time.Time{}); err != nil {
		raw.Close()
		return nil, nil, fmt.Errorf("cannot clear the deadlines of a connection: %w", err)
	}
	return raw, buffered, nil
}

func checkUpgrade(r *http.Request) error {
	switch {
	case r.Method != http.MethodGet, r.ProtoMajor != 1:
		return errors.New("cannot open a tunnel: it begins with an HTTP/1.1 GET")
	case !hasToken(r.Header, "Connection", "upgrade"),
		!hasToken(r.Header, "Upgrade", Protocol) && !hasToken(r.Header, "Upgrade", webSocket):
		return fmt.Errorf("cannot open a tunnel: the request must ask for Upgrade: %s", Protocol)
	case !hasToken(r.Header, "Upgrade", Protocol) && !hasToken(r.Header, "Sec-WebSocket-Protocol", webSocketProtocol):
		return fmt.Errorf("cannot open a tunnel: a WebSocket must ask for Sec-WebSocket-Protocol: %s", webSocketProtocol)
	}
	if v, err := strconv.Atoi(r.Header.Get(HeaderVersion)); err != nil || v < 1 {
		return fmt.Errorf("cannot open a tunnel: %s must be a version number", HeaderVersion)
	}
	if n := len(r.Header.Get(HeaderInstance)); n == 0 || n > maxInstance {
		return fmt.Errorf("cannot open a tunnel: %s must have 1 to %d bytes", HeaderInstance, maxInstance)
	}
	return nil
}

// hasToken reports whether a comma-separated header contains the token, ignoring case.
func hasToken(h http.Header, name, token string) bool {
	for _, value := range h.Values(name) {
		for part := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(part), token) {
				return true
			}
		}
	}
	return false
}

// transport is shared by all Clients. It never dials.
var transport = sync.OnceValue(func() *http.Transport {
	return &http.Transport{
		DialContext:            outbound.Given,
		Protocols:              priorKnowledge(),
		HTTP2:                  http2Config(),
		DisableCompression:     true, // bytes pass unchanged
		MaxResponseHeaderBytes: maxHeader,
		// The body of a request with Expect: 100-continue is sent when the daemon reads
		// it.
		ExpectContinueTimeout: math.MaxInt64,
	}
})

// newClient starts HTTP/2 on an upgraded connection, which the Client owns.
func newClient(ctx context.Context, upgraded net.Conn, config UpgradeConfig) (*Client, error) {
	c := newConn(upgraded, hubFrames)
	go c.writeLoop()
	cc, err := outbound.ClientConn(ctx, transport(), c, "http", "machine:80")
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("cannot begin HTTP/2 on a tunnel: %w", err)
	}
	offers := config.Offers
	if offers == nil {
		offers = rate.NewLimiter(rate.Inf, 1)
	}
	return &Client{conn: c, http: cc, generation: config.Generation, offerRate: offers}, nil
}

// Generation returns the number given to Upgrade.
func (c *Client) Generation() int64 { return c.generation }

// Instance returns the random id of the daemon's process.
func (c *Client) Instance() string { return c.instance }

// Calls returns the number of requests that are running on the tunnel, without GET
// /offers.
func (c *Client) Calls() int { return max(0, c.http.InFlight()-int(c.offering.Load())) }

// RoundTrip sends one request to the machine. It does not wait for a free stream
// (ErrFull), sends nothing if the tunnel has ended (ErrEnded), and does not retry. Any
// other error means that this attempt failed: the tunnel ended, the daemon reset the
// stream, or the request's context ended, which also ends a running read of the response
// at once. If the daemon refuses the request, the response has HeaderRefused. The body of
// a request that expects 100-continue is read when the daemon asks for it.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := c.reserveStream(); err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	response, err := c.http.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body := response.Body
	stop := context.AfterFunc(r.Context(), func() { body.Close() })
	response.Body = &responseBody{body, r.Context(), stop}
	return response, nil
}

// reserveStream reserves one of the daemon's streams for the next RoundTrip.
func (c *Client) reserveStream() error {
	if err := c.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrEnded, err)
	}
	if c.http.Reserve() != nil {
		return ErrFull
	}
	if c.http.InFlight() > maxStreams { // a daemon may grant more streams than that
		c.http.Release()
		return ErrFull
	}
	return nil
}

// responseBody is a response body whose reads end with the request's context. The reads
// of net/http end only after the reset of the stream is written, and a daemon that does
// not read can delay that.
type responseBody struct {
	io.ReadCloser
	ctx  context.Context
	stop func() bool // prevents Close when the context ends; false if Close has begun
}

// Read implements io.Reader.
func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && b.ctx.Err() != nil {
		err = b.ctx.Err()
	}
	return n, err
}

// Close cancels the call unless the body was read to its end.
func (b *responseBody) Close() error {
	if !b.stop() {
		return nil
	}
	return b.ReadCloser.Close()
}

// Offers requests the machine's advertisements and yields them: the first soon after the
// upgrade, then one after each change. Each is a complete state. If they arrive faster
// than UpgradeConfig.Offers allows, only the newest is yielded. When the tunnel or ctx
// ends, Offers yields an error and stops. Lines over 1 MiB, with too many models, or with
// invalid JSON are errors, too. Offers reads about 1 MiB a second at most.
func (c *Client) Offers(ctx context.Context) iter.Seq2[Advertisement, error] {
	return func(yield func(Advertisement, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		timeout := time.AfterFunc(firstOfferTimeout, func() {
			cancel(fmt.Errorf("the machine sent no offers in %v", firstOfferTimeout))
		})
		defer timeout.Stop()
		err := c.readOffers(ctx, timeout, yield)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			yield(Advertisement{}, fmt.Errorf("cannot read a machine's offers: %w", err))
		}
	}
}

// readOffers does what Offers does until it fails, or yield returns false. It stops
// timeout at the first line.
func (c *Client) readOffers(ctx context.Context, timeout *time.Timer, yield func(Advertisement, error) bool) error {
	response, err := request(ctx, c, http.MethodGet, "/offers", nil)
	if err != nil {
		return err
	}
	c.offering.Add(1)
	defer c.offering.Add(-1)
	defer response.Body.Close()
	// Small, because it stays allocated while the machine is idle.
	in := bufio.NewReaderSize(response.Body, 512)
	next := func() ([]byte, error) { return readLine(in) }
	var lines <-chan []byte // set after the machine exceeded its rate
	var failed <-chan error
	for {
		line, err := next()
		if err != nil {
			return err
		}
		timeout.Stop()
		if delay := c.offerRate.Reserve().Delay(); delay > 0 {
			if lines == nil {
				lines, failed = c.newestLine(ctx, in)
				next = func() ([]byte, error) {
					select {
					case line := <-lines:
						return line, nil
					case err := <-failed:
						return nil, err
					}
				}
			}
			select {
			case <-time.After(delay):
			case err := <-failed:
				return err
			}
			select {
			case line = <-lines:
			default:
			}
		}
		if n := bytes.Count(line, []byte{'{'}); n > maxOfferObjects {
			return fmt.Errorf("a line of %d bytes has %d objects; it may have %d", len(line), n, maxOfferObjects)
		}
		var ad Advertisement
		if err := json.Unmarshal(line, &ad); err != nil {
			return fmt.Errorf("an advertisement of %d bytes is invalid: %w", len(line), err)
		}
		if !yield(ad, nil) {
			return nil
		}
	}
}

// newestLine reads lines until an error or the end of ctx, which it sends to failed. If
// lines are not received from the channel, it keeps only the last one.
func (c *Client) newestLine(ctx context.Context, in *bufio.Reader) (lines <-chan []byte, failed <-chan error) {
	last, end := make(chan []byte, 1), make(chan error, 1)
	go func() {
		for {
			line, err := readLine(in)
			if err != nil {
				end <- err
				return
			}
			select {
			case <-last:
			default:
			}
			last <- line
			select {
			case <-time.After(time.Millisecond + time.Duration(len(line))*time.Microsecond):
			case <-c.Done():
				end <- c.Err()
				return
			case <-ctx.Done():
				end <- ctx.Err()
				return
			}
		}
	}()
	return last, end
}

// readLine returns the next line, without its end. It fails if the line is longer than
// maxOffersLine.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxOffersLine:
			return nil, fmt.Errorf("a line is longer than %d bytes", maxOffersLine)
		case err == nil:
			return bytes.TrimSuffix(line, []byte{'\n'}), nil
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF // the daemon never ends this response
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// Ack notifies the daemon that the hub has its first offers and the machine is routable.
func (c *Client) Ack(ctx context.Context) error { return post(ctx, c, "/ack", nil) }

// Notify notifies the daemon of what the hub cannot use of its state.
func (c *Client) Notify(ctx context.Context, notice Notice) error {
	return post(ctx, c, PathNotice, notice)
}

// Move asks the daemon to open another tunnel at the hub's address. The daemon keeps this
// one open for its running calls until the hub closes it.
func (c *Client) Move(ctx context.Context) error { return post(ctx, c, PathMove, nil) }

// SendControl sends the daemon at the other end of way a change that its owner made
// elsewhere. If the daemon refuses it, the error contains the daemon's text.
func SendControl(ctx context.Context, way http.RoundTripper, change fleet.Control) error {
	return post(ctx, way, PathControl, change)
}

// FetchSeal returns what others need to seal calls for the machine at the other end of way.
func FetchSeal(ctx context.Context, way http.RoundTripper) (seal fleet.Seal, err error) {
	response, err := request(ctx, way, http.MethodGet, PathSeal, nil)
	if err != nil {
		return seal, err
	}
	defer response.Body.Close()
	err = json.UnmarshalRead(io.LimitReader(response.Body, maxSeal), &seal)
	return seal, err
}

// maxSeal limits the size of a fleet.Seal in JSON, in bytes.
const maxSeal = 16 << 10

// maxFiles is the maximum size of a fleet.ModelFiles, in bytes.
const maxFiles = 1 << 20

// SendFileAct has the daemon at the other end of way carry out an act on its model files. If
// the daemon refuses it, the error is fleet.ErrFilesOff, fleet.ErrFilesUnknown or a
// fleet.FileRefusal.
func SendFileAct(ctx context.Context, way http.RoundTripper, act fleet.FileAct) (files fleet.ModelFiles, err error) {
	body, err := json.Marshal(Control{Models: &act})
	if err != nil {
		return files, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://machine"+PathControl, bytes.NewReader(body))
	if err != nil {
		return files, err
	}
	response, err := way.RoundTrip(r)
	if err != nil {
		return files, fmt.Errorf("cannot send %s to a machine: %w", PathControl, err)
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		err = json.UnmarshalRead(io.LimitReader(response.Body, maxFiles), &files)
		if err != nil {
			err = fmt.Errorf("the machine answered %s with what is no list of models: %w", PathControl, err)
		}
		return files, err
	case http.StatusNoContent:
		return files, fleet.ErrFilesUnknown
	case http.StatusForbidden:
		return files, fleet.ErrFilesOff
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorText))
	if response.StatusCode == http.StatusUnprocessableEntity {
		return files, fleet.FileRefusal(oneLine(text))
	}
	return files, fmt.Errorf("the machine answered %s with %d: %q", PathControl, response.StatusCode, text)
}

// oneLine returns a daemon's text as one line of printable text.
func oneLine(text []byte) string {
	line := strings.Map(func(r rune) rune {
		if unicode.IsGraphic(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(string(text), ""))
	return strings.TrimSpace(line)
}

// Fence notifies the daemon that another daemon with its credential took over, and closes
// the Client. It waits at most 2 s for a response.
func (c *Client) Fence(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, fenceTimeout)
	defer cancel()
	_ = post(ctx, c, "/fenced", nil) // the tunnel ends in any case
	c.close(errFenced)
}

// Done returns a channel that is closed when the tunnel has ended. All running reads of
// bodies fail then.
func (c *Client) Done() <-chan struct{} { return c.conn.done }

// Err returns why the tunnel ended, or nil if it is open.
func (c *Client) Err() error {
	select {
	case <-c.conn.done:
		return c.conn.cause()
	default:
		return nil
	}
}

// Close ends the tunnel and all requests on it immediately.
func (c *Client) Close() { c.close(net.ErrClosed) }

func (c *Client) close(cause error) {
	c.conn.setCause(cause)
	c.http.Close()
	c.conn.Close() // in case net/http has released it already
}

// post sends a protocol message with a body, unless that is nil, and expects a 2xx
// response.
func post(ctx context.Context, way http.RoundTripper, path string, message any) (err error) {
	var body []byte
	if message != nil {
		if body, err = json.Marshal(message); err != nil {
			return fmt.Errorf("cannot write the body of %s: %w", path, err)
		}
	}
	response, err := request(ctx, way, http.MethodPost, path, body)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// request sends a protocol message. A response other than 2xx is an error.
func request(ctx context.Context, way http.RoundTripper, method, path string, body []byte) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://machine"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := way.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("cannot send %s to a machine: %w", path, err)
	}
	if response.StatusCode/100 == 2 {
		return response, nil
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorText))
	return nil, fmt.Errorf("the machine answered %s with %d: %q", path, response.StatusCode, text)
}
