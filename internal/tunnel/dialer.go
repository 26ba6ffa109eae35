package tunnel

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"
)

// Bounds of one attempt and of the pauses between attempts.
const (
	dialWithin    = 5 * time.Second
	upgradeWithin = 10 * time.Second // dial, TLS and the hub's answer together
	ackWithin     = 10 * time.Second // from 101 to POST /ack
	defaultMin    = 200 * time.Millisecond
	defaultMax    = 30 * time.Second
	maxRetryAfter = 5 * time.Minute // no hub may send a machine away for longer
	// plainAgain is how long redials stay with a WebSocket before they try the
	// plain upgrade again: the machine or the network may have moved.
	plainAgain = time.Hour
)

var (
	// ErrRefused ends Run: the hub does not know the credential (401).
	ErrRefused = errors.New("the hub refused this machine's credential: sign in again")
	// ErrFenced ends Run: another daemon with this machine's credential
	// connected later and took over.
	ErrFenced = errors.New("another daemon took this machine's place at the hub: only one may run with one credential")

	errNoAck = fmt.Errorf("the hub did not acknowledge the tunnel in %v", ackWithin)
)

// Dialer keeps one machine connected to its hub. All fields but HubURL,
// Credential, Handler and Advertise may be left zero. It runs once.
type Dialer struct {
	// HubURL is the hub's address: https://…, or http:// on a loopback host.
	HubURL string
	// Credential gives the machine's secret, at each attempt.
	Credential func() string
	// Handler answers the calls: every path that is not the protocol's own.
	// Its context ends with the tunnel.
	Handler http.Handler
	// Advertise gives the machine's present state and a channel that is closed
	// at the next change. Version and Generation are filled in by the Dialer.
	Advertise func() (Advertisement, <-chan struct{})
	// Control takes a change the owner made elsewhere; an error is reported to the
	// hub with its text. Nil refuses every change.
	Control func(context.Context, Control) error
	// OnState is called at each step, one at a time, and must not block.
	OnState func(State)
	// Log gets what the HTTP/2 server has to say, and which way the tunnel is
	// asked for, at debug level.
	Log *slog.Logger

	// TLS adds to the client's configuration (roots); versions and protocols
	// are the Dialer's own.
	TLS *tls.Config
	// Dial opens the connection, without TLS; nil: the network. Tests and the
	// simulation bring connections in memory.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// BackoffMin and BackoffMax bound the full-jitter pause between attempts:
	// uniform from zero to a ceiling that doubles from the one to the other.
	// Zero: 200 ms and 30 s.
	BackoffMin, BackoffMax time.Duration
	// Draw gives the jitter of the pauses: a number spread over all 64 bits. Nil:
	// rand.Uint64. A simulation gives its own, so that a history repeats.
	Draw func() uint64
}

// Phase is how far the connection to the hub has come.
type Phase string

// The phases of a connection, in order.
const (
	Dialing   Phase = "dialing"
	Connected Phase = "connected" // upgraded; the hub has not taken the offers in yet
	Acked     Phase = "acked"     // the machine is routable
	Lost      Phase = "lost"
)

// State is one step of the connection to the hub.
type State struct {
	Phase Phase
	// Err is why the connection was lost; nil in the other phases.
	Err error
	// Retry is the pause until the next attempt, in phase Lost; 0: none comes.
	Retry time.Duration
}

// Run connects, serves the hub's calls and connects again until ctx ends
// (nil), the hub refuses the credential (ErrRefused) or another daemon
// took over (ErrFenced). Any other error is a Dialer that can never work.
func (d *Dialer) Run(ctx context.Context) error {
	target, err := parseHub(d.HubURL)
	if err != nil {
		return err
	}
	var way way
	for failures := 0; ; failures++ {
		d.state(State{Phase: Dialing})
		acked, err := d.attempt(ctx, target, way.at(time.Now()))
		if acked {
			failures = 0
		}
		switch {
		case ctx.Err() != nil:
			d.state(State{Phase: Lost, Err: ctx.Err()})
			return nil
		case errors.Is(err, ErrRefused), errors.Is(err, ErrFenced):
			d.state(State{Phase: Lost, Err: err})
			return err
		}
		if blocked := (*blockedError)(nil); errors.As(err, &blocked) {
			way.turn(time.Now())
			d.logger().Debug("cannot open the tunnel this way, trying the other", "websocket", way.webSocket, "error", err)
		}
		pause := d.pause(failures, err)
		d.state(State{Phase: Lost, Err: err, Retry: pause})
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// way is how to ask for the tunnel: plainly at first, then in a WebSocket and
// so on by turns, for as long as neither comes through.
type way struct {
	webSocket bool
	since     time.Time // of the last turn
}

// at says whether to ask for a WebSocket now.
func (w *way) at(now time.Time) (webSocket bool) {
	if w.webSocket && now.Sub(w.since) >= plainAgain {
		w.turn(now)
	}
	return w.webSocket
}

func (w *way) turn(now time.Time) { *w = way{webSocket: !w.webSocket, since: now} }

// blockedError is a hub that was reached and a tunnel that was not, as it is
// behind a proxy that does not pass the way it was asked for. A hub that said
// so itself (401, 503, a fence) is none.
type blockedError struct{ error }

func (e *blockedError) Unwrap() error { return e.error }

func (d *Dialer) logger() *slog.Logger {
	if d.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return d.Log
}

func (d *Dialer) state(s State) {
	if d.OnState != nil {
		d.OnState(s)
	}
}

// pause is how long to wait after so many failures in a row, the last for err.
func (d *Dialer) pause(failures int, err error) time.Duration {
	lowest, highest := d.BackoffMin, d.BackoffMax
	if lowest <= 0 {
		lowest = defaultMin
	}
	if highest <= 0 {
		highest = defaultMax
	}
	ceiling := min(lowest, highest)
	for range failures {
		if ceiling > highest/2 {
			ceiling = highest
			break
		}
		ceiling *= 2
	}
	if gate := (*gateError)(nil); errors.As(err, &gate) {
		// The admission gate: not before it says, and not all at once.
		return gate.after + d.below(gate.after/2+1)
	}
	return d.below(ceiling + 1)
}

// below returns a random duration from zero up to, and without, the limit.
func (d *Dialer) below(limit time.Duration) time.Duration {
	draw := d.Draw
	if draw == nil {
		draw = rand.Uint64
	}
	return time.Duration(draw() % uint64(limit))
}

// gateError is a hub that takes no tunnel just now.
type gateError struct {
	status int
	after  time.Duration // > 0
}

func (e *gateError) Error() string {
	return fmt.Sprintf("the hub answered %d: it takes no further machine just now, retry after %v", e.status, e.after)
}

// hubTarget is where to dial.
type hubTarget struct {
	url     *url.URL // of GET /tunnel
	address string   // host:port
	secure  bool
}

// parseHub checks a hub's address: a credential never travels in the clear
// beyond this machine.
func parseHub(raw string) (hubTarget, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return hubTarget{}, fmt.Errorf("cannot use %q as the hub's address: give https://HOST", raw)
	}
	if u.Path == "" {
		u.Path = "/" // else JoinPath makes a relative one
	}
	t := hubTarget{url: u.JoinPath("tunnel"), secure: u.Scheme == "https"}
	port := u.Port()
	switch {
	case t.secure && port == "":
		port = "443"
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return hubTarget{}, fmt.Errorf("cannot use %q as the hub's address: without TLS only a loopback host may be used; give https://", raw)
	case u.Scheme == "http" && port == "":
		port = "80"
	case !t.secure && u.Scheme != "http":
		return hubTarget{}, fmt.Errorf("cannot use %q as the hub's address: give https://HOST", raw)
	}
	t.address = net.JoinHostPort(u.Hostname(), port)
	return t, nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// attempt is one connection from dial to loss; acked says whether it got as far
// as to be routable.
func (d *Dialer) attempt(ctx context.Context, target hubTarget, inWebSocket bool) (acked bool, err error) {
	c, generation, err := d.upgrade(ctx, target, inWebSocket)
	if err != nil {
		return false, err
	}
	d.state(State{Phase: Connected})
	acked, err = newSession(d, c, generation).run(ctx)
	if !acked && !errors.Is(err, ErrFenced) {
		err = &blockedError{err}
	}
	return acked, err
}

// upgrade dials the hub and asks for the tunnel.
func (d *Dialer) upgrade(ctx context.Context, target hubTarget, inWebSocket bool) (net.Conn, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, upgradeWithin)
	defer cancel()
	raw, err := d.dial(ctx, target)
	if err != nil {
		return nil, 0, fmt.Errorf("cannot reach the hub at %s: %w", target.address, err)
	}
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	ask := d.ask
	if inWebSocket {
		ask = d.askWebSocket
	}
	below, generation, err := ask(ctx, raw, target)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		raw.Close()
		return nil, 0, err
	}
	return below, generation, nil
}

func (d *Dialer) dial(ctx context.Context, target hubTarget) (net.Conn, error) {
	dial := d.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialWithin}).DialContext
	}
	raw, err := dial(ctx, "tcp", target.address)
	if err != nil || !target.secure {
		return raw, err
	}
	config := d.TLS.Clone()
	if config == nil {
		config = new(tls.Config)
	}
	config.MinVersion = tls.VersionTLS13
	config.NextProtos = []string{"http/1.1"} // an upgrade is HTTP/1.1's
	if config.ServerName == "" {
		config.ServerName = target.url.Hostname()
	}
	secure := tls.Client(raw, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return secure, nil
}

// header is that of GET /tunnel, either way it asks.
func (d *Dialer) header() http.Header {
	return http.Header{"Authorization": {"Bearer " + d.Credential()}, HeaderVersion: {strconv.Itoa(Version)}}
}

// ask sends GET /tunnel on raw and reads the answer, for the connection that
// follows it and the generation. raw ends with ctx.
func (d *Dialer) ask(_ context.Context, raw net.Conn, target hubTarget) (net.Conn, int64, error) {
	r := &http.Request{Method: http.MethodGet, URL: target.url, Host: target.url.Host, Header: d.header()}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", Protocol)
	if err := r.Write(raw); err != nil {
		return nil, 0, &blockedError{fmt.Errorf("cannot ask the hub for a tunnel: %w", err)}
	}
	early := bufio.NewReader(&io.LimitedReader{R: raw, N: maxHead})
	answer, err := http.ReadResponse(early, r)
	switch {
	case err != nil:
		return nil, 0, &blockedError{fmt.Errorf("cannot read the hub's answer to the upgrade: %w", err)}
	case answer.StatusCode != http.StatusSwitchingProtocols:
		return nil, 0, refusal(answer)
	case !hasToken(answer.Header, "Upgrade", Protocol):
		return nil, 0, &blockedError{fmt.Errorf("the hub switched to %q, not to %s", answer.Header.Get("Upgrade"), Protocol)}
	}
	generation, err := generationOf(answer)
	return withEarly(raw, early), generation, err
}

// generationOf reads the tunnel's number from the hub's 101.
func generationOf(answer *http.Response) (int64, error) {
	generation, err := strconv.ParseInt(answer.Header.Get(HeaderGeneration), 10, 64)
	if err != nil {
		return 0, &blockedError{fmt.Errorf("cannot use the hub's tunnel: its answer has no %s", HeaderGeneration)}
	}
	return generation, nil
}

// refusal is the error of an answer other than 101.
func refusal(answer *http.Response) error {
	switch answer.StatusCode {
	case http.StatusUnauthorized:
		return ErrRefused
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		if after := retryAfter(answer.Header.Get("Retry-After")); after > 0 {
			return &gateError{status: answer.StatusCode, after: min(after, maxRetryAfter)}
		}
		return fmt.Errorf("the hub answered the upgrade with %s", answer.Status)
	}
	return &blockedError{fmt.Errorf("the hub answered the upgrade with %s", answer.Status)}
}

// retryAfter reads the value of a Retry-After header: seconds, or a time (RFC
// 9110, 10.2.3). 0: it says nothing.
func retryAfter(value string) time.Duration {
	if seconds, err := strconv.Atoi(value); err == nil {
		return time.Duration(min(max(seconds, 0), 1<<20)) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return max(time.Until(at), 0)
}
