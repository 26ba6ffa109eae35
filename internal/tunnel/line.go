package tunnel

import (
	"bufio"
	"bytes"
	"context"
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
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/time/rate"
)

// Bounds on what a machine may make the hub do.
const (
	maxOffersLine = 1 << 20          // bytes of one line of GET /offers
	firstOffer    = 10 * time.Second // for the first line, after the upgrade
	fenceWait     = 2 * time.Second  // for POST /fenced to be answered
	maxRemark     = 512              // bytes kept of a daemon's text for an error
)

// ErrFull is a RoundTrip refused because the daemon grants no further stream.
var ErrFull = errors.New("cannot send the call: the machine grants no further stream on its tunnel")

var (
	// errFenced is the cause of a line's end after Fence.
	errFenced = errors.New("a newer tunnel of the machine took over")
	// errOrigin keeps the pages of browsers out, whatever they know.
	errOrigin = errors.New("cannot open a tunnel: no page in a browser may, and only one sends an Origin")
)

// UpgradeConfig is what the hub says of a tunnel it accepts.
type UpgradeConfig struct {
	// Generation is the tunnel's number, larger than any this machine had.
	Generation int64
	// Offers is the rate at which the machine's advertisements are taken in; nil: as
	// they come.
	Offers *rate.Limiter
}

// Line is the hub's end of one tunnel: an http.RoundTripper to one machine.
// Requests need a URL with any host; the path is what counts. All methods may
// be used at once.
type Line struct {
	conn       *conn
	cc         *http.ClientConn
	generation int64
	version    int           // of the daemon
	pace       *rate.Limiter // of advertisements
}

// Upgrade answers GET /tunnel of an authenticated machine with 101 and takes
// the connection over, in a WebSocket if the request asks for no better. If it
// returns an error the answer was already given and the caller has nothing left
// to write. The line must be closed.
func Upgrade(w http.ResponseWriter, r *http.Request, config UpgradeConfig) (*Line, error) {
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
	accept := acceptPlain
	if !hasToken(r.Header, "Upgrade", Protocol) {
		accept = acceptWebSocket
	}
	below, err := accept(w, r)
	if err != nil {
		return nil, fmt.Errorf("cannot open a tunnel: %w", err)
	}
	line, err := newLine(r.Context(), below, config)
	if err == nil {
		line.version, _ = strconv.Atoi(r.Header.Get(HeaderVersion)) // checkUpgrade has read it
	}
	return line, err
}

// acceptPlain answers a request for the tunnel with 101 and the header of w, and
// takes its connection over.
func acceptPlain(w http.ResponseWriter, _ *http.Request) (net.Conn, error) {
	raw, buffered, err := hijack(w)
	if err != nil {
		http.Error(w, "cannot open a tunnel here", http.StatusInternalServerError)
		return nil, err
	}
	if _, err := fmt.Fprintf(raw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s: %s\r\n%s: %s\r\n\r\n",
		Protocol, HeaderVersion, w.Header().Get(HeaderVersion), HeaderGeneration, w.Header().Get(HeaderGeneration)); err != nil {
		raw.Close()
		return nil, fmt.Errorf("cannot answer the upgrade: %w", err)
	}
	return withEarly(raw, buffered.Reader), nil
}

// hijack takes the connection of a request over, without the deadlines that the
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

// checkUpgrade says what is missing for a tunnel.
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
	return nil
}

// hasToken reports whether a comma-separated header holds the token, in any case.
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

// transport is what the lines have in common. It dials nothing: the connection of
// each is in the context that it begins with.
var transport = sync.OnceValue(func() *http.Transport {
	return &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return ctx.Value(connKey{}).(*conn), nil },
		Protocols:              priorKnowledge(),
		HTTP2:                  http2Config(),
		DisableCompression:     true, // bytes pass as they are
		MaxResponseHeaderBytes: maxHead,
		// A request with Expect: 100-continue keeps its body until the daemon reads it.
		ExpectContinueTimeout: math.MaxInt64,
	}
})

// connKey is the context's key of a line's connection.
type connKey struct{}

// newLine begins to speak HTTP/2 on an upgraded connection, which it owns.
func newLine(ctx context.Context, below net.Conn, config UpgradeConfig) (*Line, error) {
	c := newHubConn(below)
	go c.send()
	cc, err := transport().NewClientConn(context.WithValue(ctx, connKey{}, c), "http", "machine:80")
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("cannot begin HTTP/2 on a tunnel: %w", err)
	}
	pace := config.Offers
	if pace == nil {
		pace = rate.NewLimiter(rate.Inf, 1)
	}
	return &Line{conn: c, cc: cc, generation: config.Generation, pace: pace}, nil
}

// Generation is the number given to Upgrade.
func (l *Line) Generation() int64 { return l.generation }

// RoundTrip sends one request down the tunnel. It never waits for a stream to
// come free (ErrFull) and never repeats a request. Any other error means that
// this attempt is over: the tunnel ended, the daemon cut the stream, or the
// request's context did, which ends RoundTrip and a running read of the answer
// at once, whatever the daemon does. The daemon's own refusals are answers
// (HeaderRefused). The body of a request that expects 100-continue is read when
// the daemon has asked for it; one before version 6 is sent it at once.
func (l *Line) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Expect") != "" && l.version < versionAdmits {
		r = r.WithContext(r.Context())
		r.Header = r.Header.Clone()
		r.Header.Del("Expect")
	}
	if err := l.reserve(); err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	answer, err := l.cc.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body := answer.Body
	stop := context.AfterFunc(r.Context(), func() { body.Close() })
	answer.Body = &answerBody{body, r.Context(), stop}
	return answer, nil
}

// reserve takes one of the streams that the daemon grants for the next RoundTrip.
func (l *Line) reserve() error {
	if err := l.Err(); err != nil {
		return fmt.Errorf("cannot send the call: the tunnel ended: %w", err)
	}
	if l.cc.Reserve() != nil {
		return ErrFull
	}
	if l.cc.InFlight() > maxStreams { // a daemon may grant any number
		l.cc.Release()
		return ErrFull
	}
	return nil
}

// answerBody is an answer's body, whose reads end with the request's context.
// net/http's own end only after the stream's reset is written, for which a
// daemon that reads nothing can make it wait.
type answerBody struct {
	io.ReadCloser
	ctx  context.Context
	stop func() bool // of the Close at the context's end; false if it began
}

// Read satisfies io.Reader.
func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && b.ctx.Err() != nil {
		err = b.ctx.Err()
	}
	return n, err
}

// Close ends the call if the answer was not read to its end.
func (b *answerBody) Close() error {
	if !b.stop() {
		return nil
	}
	return b.ReadCloser.Close()
}

// Offers asks for the machine's advertisements and yields them: the first soon
// after the upgrade, then one at each change, until the line or ctx ends, which
// it yields as an error, once. Each is a complete state: of those that come faster
// than UpgradeConfig.Offers allows the newest alone is yielded. A line over 1 MiB
// or that is no JSON object of the right shape is an error too. It reads about
// 1 MiB a second at most.
func (l *Line) Offers(ctx context.Context) iter.Seq2[Advertisement, error] {
	return func(yield func(Advertisement, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		late := time.AfterFunc(firstOffer, func() {
			cancel(fmt.Errorf("the machine sent no offers in %v", firstOffer))
		})
		defer late.Stop()
		fail := func(err error) {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			yield(Advertisement{}, fmt.Errorf("cannot read a machine's offers: %w", err))
		}
		answer, err := l.ask(ctx, http.MethodGet, "/offers", nil)
		if err != nil {
			fail(err)
			return
		}
		defer answer.Body.Close()
		// Small, because it stays while the machine is idle.
		in := bufio.NewReaderSize(answer.Body, 512)
		next := func() ([]byte, error) { return readLine(in) }
		var lines <-chan []byte // once the machine was faster than its pace
		var ended <-chan error
		for {
			line, err := next()
			if err != nil {
				fail(err)
				return
			}
			late.Stop()
			if delay := l.pace.Reserve().Delay(); delay > 0 {
				if lines == nil {
					lines, ended = l.newest(ctx, in)
					next = func() ([]byte, error) {
						select {
						case line := <-lines:
							return line, nil
						case err := <-ended:
							return nil, err
						}
					}
				}
				select {
				case <-time.After(delay):
				case err := <-ended:
					fail(err)
					return
				}
				select {
				case line = <-lines:
				default:
				}
			}
			var ad Advertisement
			if err := json.Unmarshal(line, &ad); err != nil {
				fail(fmt.Errorf("a line of %d bytes is no advertisement: %w", len(line), err))
				return
			}
			if !yield(ad, nil) {
				return
			}
		}
	}
}

// newest reads lines until that fails or ctx ends, with the reason in ended. Of
// those that were not taken from the channel only the last is kept.
func (l *Line) newest(ctx context.Context, in *bufio.Reader) (lines <-chan []byte, ended <-chan error) {
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
			case <-l.Done():
				end <- l.Err()
				return
			case <-ctx.Done():
				end <- ctx.Err()
				return
			}
		}
	}()
	return last, end
}

// readLine is the next line without its end, at most maxOffersLine long.
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
			return nil, io.ErrUnexpectedEOF // the answer never ends by itself
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// Ack reports to the daemon that its first offers were taken in: from here the
// machine is routable (decisions 8).
func (l *Line) Ack(ctx context.Context) error { return l.post(ctx, "/ack", nil) }

// Control hands the daemon a change its owner made elsewhere. The error holds
// the daemon's words if it refused.
func (l *Line) Control(ctx context.Context, change Control) error {
	body, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("cannot write a control message: %w", err)
	}
	return l.post(ctx, "/control", body)
}

// Fence reports to the daemon that this generation is over and closes the line.
// It takes 2 s at most, which is how long a peer that is gone is waited for.
func (l *Line) Fence(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, fenceWait)
	defer cancel()
	// The line ends either way, so what went wrong in telling changes nothing.
	_ = l.post(ctx, "/fenced", nil)
	l.end(errFenced)
}

// Done is closed when the line has ended; every running body read then fails.
func (l *Line) Done() <-chan struct{} { return l.conn.done }

// Err is why the line ended; nil while it lives.
func (l *Line) Err() error {
	select {
	case <-l.conn.done:
		return l.conn.cause()
	default:
		return nil
	}
}

// Close ends the line and every request on it at once.
func (l *Line) Close() { l.end(net.ErrClosed) }

func (l *Line) end(reason error) {
	l.conn.because(reason)
	l.cc.Close()
	l.conn.Close() // in case net/http had let go of it before
}

// post sends a message of the protocol and wants a 2xx.
func (l *Line) post(ctx context.Context, path string, body []byte) error {
	answer, err := l.ask(ctx, http.MethodPost, path, body)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// ask sends a message of the protocol; an answer other than 2xx is an error.
func (l *Line) ask(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://machine"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	answer, err := l.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("cannot send %s to a machine: %w", path, err)
	}
	if answer.StatusCode/100 == 2 {
		return answer, nil
	}
	defer answer.Body.Close()
	remark, _ := io.ReadAll(io.LimitReader(answer.Body, maxRemark))
	return nil, fmt.Errorf("the machine answered %s with %d: %q", path, answer.StatusCode, remark)
}
