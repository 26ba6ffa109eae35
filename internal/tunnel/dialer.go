package tunnel

import (
	"bufio"
	"cmp"
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
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/outbound"
)

// Limits for one attempt and for the pauses between attempts.
const (
	upgradeTimeout = 10 * time.Second // dial, TLS and the hub's response together
	ackTimeout     = 10 * time.Second // from the 101 to POST /ack
	// The pause is uniformly random between zero and a ceiling, which doubles from
	// minPause to maxPause.
	minPause      = 200 * time.Millisecond
	maxPause      = 30 * time.Second
	maxRetryAfter = 5 * time.Minute // the longest Retry-After that is respected
	// webSocketPeriod is how long attempts use a WebSocket before they use the plain
	// upgrade again. The machine may be in another network by then.
	webSocketPeriod = time.Hour
)

// refusedPauses are the pauses after consecutive refusals of this daemon by the hub
// (ErrRefused, ErrFenced). The last one repeats.
var refusedPauses = [...]time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute}

var (
	// ErrRefused is the error of a State if the hub does not know the credential (401).
	ErrRefused = errors.New("the hub refused this machine's credential: sign in again, unless the hub itself is at fault")
	// ErrFenced is the error of a State if another daemon with this machine's credential
	// connected later and replaced this one, or is connected while this one yields (409).
	ErrFenced = errors.New("another daemon took this machine's place at the hub: only one may run with one credential")

	// errMoving ends attempt after the hub asked for another tunnel. The current one
	// continues.
	errMoving = errors.New("the hub asked for another tunnel")

	errNoAck = fmt.Errorf("the hub did not acknowledge the tunnel in %v", ackTimeout)
)

// Dialer keeps one machine connected to its hub. Only HubURL, Credential, Handler and
// Advertise are required. Run must be called only once.
type Dialer struct {
	// HubURL is the hub's address: https://…, or http:// on a loopback host.
	HubURL string
	// Credential returns the machine's secret. It is called for each attempt.
	Credential func() string
	// Instance is a random id of this process. It lets the hub distinguish this daemon,
	// when it moves from one hub node to another, from a daemon elsewhere with a copy of
	// its credential. If it is empty, every tunnel counts as one from a different daemon.
	Instance string
	// Handler serves the calls, which are the requests for all paths that the protocol
	// does not use itself. The context of a request ends with the tunnel.
	Handler http.Handler
	// Advertise returns the machine's current state and a channel that is closed at the
	// next change. The Dialer sets Version and Generation.
	Advertise func() (Advertisement, <-chan struct{})
	// Control applies a change that the owner made elsewhere. If it fails, the text of
	// the error is sent to the hub. If Control is nil, every change is refused.
	Control func(context.Context, fleet.Control) error
	// Files carries out an act on this machine's model files that its owner asked for
	// elsewhere. The text of an error is sent to the hub. If Files is nil, every act is
	// refused with fleet.ErrFilesOff.
	Files func(context.Context, fleet.FileAct) (fleet.ModelFiles, error)
	// Notice, if not nil, is called with what the hub cannot use of the machine's state.
	Notice func(Notice)
	// OnState is called for each State, never concurrently. It must not block.
	OnState func(State)
	// Log receives, at debug level, the messages of the HTTP/2 server and the kind of
	// upgrade of each attempt.
	Log *slog.Logger

	// TLS is the base of the client's configuration, for roots. The Dialer sets versions
	// and protocols.
	TLS *tls.Config
	// Dial opens the connection, without TLS. If nil, it uses the network, with the proxy
	// from the environment. Tests and the simulation use connections in memory.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Draw returns 64 random bits for the pauses. If nil, it is rand.Uint64. A simulation
	// sets it to make runs repeatable.
	Draw func() uint64

	tunnels tunnels
	yields  bool // from a fence until a tunnel is acknowledged
}

// Phase is the progress of the connection to the hub.
type Phase string

// The phases of a connection, in order.
const (
	Dialing   Phase = "dialing"
	Connected Phase = "connected" // upgraded, but the hub does not have the offers yet
	Acked     Phase = "acked"     // the machine is routable
	Lost      Phase = "lost"
	// Moving replaces all phases except Acked while an older tunnel is still in use.
	Moving Phase = "moving"
)

// State is one step in the connection to the hub.
type State struct {
	Phase Phase
	// Err is why the connection was lost. It is nil in all phases but Lost.
	Err error
	// Retry is the pause before the next attempt, in phase Lost; 0 if there is none.
	Retry time.Duration
	// Node is the name of the tunnel's hub node, in phase Acked, if the hub sends it.
	Node string
}

// Run connects, serves the hub's calls and reconnects until ctx ends, and then returns
// nil. It retries at long intervals if the credential was refused (ErrRefused) or another
// daemon replaced this one (ErrFenced). If the hub asks for it, Run opens another tunnel
// while the first one continues. It fails if the Dialer's fields are invalid.
func (d *Dialer) Run(ctx context.Context) error {
	target, err := parseHub(d.HubURL)
	if err != nil {
		return err
	}
	var mode upgradeMode
	ceilings := pauseCeilings()
	refused := 0 // number of consecutive refusals
	var older sync.WaitGroup
	defer older.Wait()
	for {
		d.state(State{Phase: Dialing})
		acked, err := d.attempt(ctx, target, mode.at(time.Now()), &older)
		if acked {
			ceilings.Reset()
			refused, d.yields = 0, false
		}
		switch {
		case ctx.Err() != nil:
			d.state(State{Phase: Lost, Err: ctx.Err()})
			return nil
		case errors.Is(err, errMoving):
			continue
		case errors.Is(err, ErrRefused), errors.Is(err, ErrFenced):
			d.yields = d.yields || errors.Is(err, ErrFenced)
			pause := refusedPauses[min(refused, len(refusedPauses)-1)]
			refused++
			err = &retryLaterError{err, pause}
		}
		if _, blocked := errors.AsType[*blockedError](err); blocked {
			mode.toggle(time.Now())
			d.logger().Debug("cannot open the tunnel this way, trying the other", "websocket", mode.webSocket, "error", err)
		}
		pause := d.pause(ceilings.NextBackOff(), err)
		d.state(State{Phase: Lost, Err: err, Retry: pause})
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// pauseCeilings returns the ceilings of the pauses, without jitter. A simulation could
// not seed the library's jitter (docs/decisions/0007).
func pauseCeilings() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{InitialInterval: minPause, Multiplier: 2, MaxInterval: maxPause}
}

// upgradeMode is how to request the tunnel: first by the plain upgrade, then in a
// WebSocket, alternating as long as both fail.
type upgradeMode struct {
	webSocket bool
	since     time.Time // of the last toggle
}

// at reports whether an attempt at a given time uses a WebSocket.
func (m *upgradeMode) at(now time.Time) (webSocket bool) {
	if m.webSocket && now.Sub(m.since) >= webSocketPeriod {
		m.toggle(now)
	}
	return m.webSocket
}

func (m *upgradeMode) toggle(now time.Time) { *m = upgradeMode{webSocket: !m.webSocket, since: now} }

// blockedError means that the hub was reached but no tunnel was opened, for example
// because of a proxy that does not pass this kind of upgrade. A refusal by the hub itself
// (401, 503, a fence) is not a blockedError.
type blockedError struct{ error }

func (e *blockedError) Unwrap() error { return e.error }

func (d *Dialer) logger() *slog.Logger {
	if d.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return d.Log
}

func (d *Dialer) state(s State) {
	if s.Phase != Acked && d.tunnels.serving() {
		s.Phase = Moving
	}
	if d.OnState != nil {
		d.OnState(s)
	}
}

// pause returns how long to wait after err. If the hub sent Retry-After, it is that time
// plus up to half of it. If the hub is of another region, it is the same for
// maxRetryAfter. Otherwise it is random up to ceiling.
func (d *Dialer) pause(ceiling time.Duration, err error) time.Duration {
	if elsewhere := (*elsewhereError)(nil); errors.As(err, &elsewhere) {
		return maxRetryAfter + d.random(maxRetryAfter/2)
	}
	if later := (*retryLaterError)(nil); errors.As(err, &later) {
		return later.after + d.random(later.after/2)
	}
	return d.random(ceiling)
}

// random returns a random duration from zero to limit, inclusive.
func (d *Dialer) random(limit time.Duration) time.Duration {
	draw := d.Draw
	if draw == nil {
		draw = rand.Uint64
	}
	return time.Duration(draw() % uint64(limit+1))
}

// retryLaterError means that the hub accepts no tunnel at the moment.
type retryLaterError struct {
	error
	after time.Duration // > 0
}

func (e *retryLaterError) Unwrap() error { return e.error }

// elsewhereError means that the machine belongs to another region. hub is the address of
// that region's hub, if known. Run does not connect to it: the credential is sent only to
// the hub that the owner configured.
type elsewhereError struct{ hub string }

func (e *elsewhereError) Error() string {
	if e.hub == "" {
		return "this machine's credential is of another region than the hub: sign in again, with kith login --hub and the address of a hub of the right region"
	}
	return fmt.Sprintf("this machine's credential is of another region, whose hub is at %s: sign in there with kith login --hub %[1]s", e.hub)
}

// CheckHub returns an error if address is not a hub's, or if the credential would be sent
// there unencrypted over a network.
func CheckHub(address string) error {
	_, err := parseHub(address)
	return err
}

type hubTarget struct {
	url     *url.URL // of GET /tunnel
	address string   // host:port
	secure  bool
}

// parseHub parses a hub's address. It fails if the credential would be sent there
// unencrypted over a network.
func parseHub(raw string) (hubTarget, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
		u.Scheme != "https" && u.Scheme != "http" {
		return hubTarget{}, fmt.Errorf("cannot use %q as the hub's address: give https://HOST", raw)
	}
	if u.Path == "" {
		u.Path = "/" // otherwise JoinPath returns a relative path
	}
	if u.Scheme == "http" && !isLoopback(u.Hostname()) {
		return hubTarget{}, fmt.Errorf("cannot use %q as the hub's address: without TLS only a loopback host may be used; give https://", raw)
	}
	port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	return hubTarget{u.JoinPath("tunnel"), net.JoinHostPort(u.Hostname(), port), u.Scheme == "https"}, nil
}

func isLoopback(host string) bool {
	a, _ := netip.ParseAddr(host)
	return host == "localhost" || a.IsLoopback()
}

// attempt runs one connection until it is lost, or until the hub asks for another one. In
// that case it returns errMoving and the connection continues in older. acked reports
// whether the machine was routable.
func (d *Dialer) attempt(ctx context.Context, target hubTarget, inWebSocket bool, older *sync.WaitGroup) (acked bool, err error) {
	on, err := d.upgrade(ctx, target, inWebSocket)
	if err != nil {
		return false, err
	}
	d.state(State{Phase: Connected})
	s, ended := newSession(d, on), make(chan error, 1)
	older.Go(func() { ended <- s.run(ctx) })
	select {
	case err = <-ended:
	case <-s.moving.done:
		return true, errMoving
	}
	acked = s.acked.isSet()
	if !acked && !errors.Is(err, ErrFenced) {
		err = &blockedError{err}
	}
	return acked, err
}

func (d *Dialer) upgrade(ctx context.Context, target hubTarget, inWebSocket bool) (upgraded, error) {
	ctx, cancel := context.WithTimeout(ctx, upgradeTimeout)
	defer cancel()
	raw, err := d.dial(ctx, target)
	if err != nil {
		return upgraded{}, fmt.Errorf("cannot reach the hub at %s: %w", target.address, err)
	}
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	request := d.requestPlain
	if inWebSocket {
		request = d.requestWebSocket
	}
	on, err := request(ctx, raw, target)
	switch ended := !stop(); {
	case ended && errors.Is(ctx.Err(), context.DeadlineExceeded): // err is that raw was closed
		err = &blockedError{fmt.Errorf("the hub at %s did not answer within %v", target.address, upgradeTimeout)}
	case ended && err == nil:
		err = ctx.Err()
	}
	if err != nil {
		raw.Close()
		return upgraded{}, err
	}
	return on, nil
}

// upgraded is a connection after the upgrade, with the headers of the hub's 101.
type upgraded struct {
	net.Conn
	generation int64
	node       string // name of the hub node; may be empty
}

func (d *Dialer) dial(ctx context.Context, target hubTarget) (net.Conn, error) {
	connect := d.Dial
	if connect == nil {
		connect = func(ctx context.Context, _, address string) (net.Conn, error) {
			return outbound.Connect(ctx, target.url, address, d.TLS)
		}
	}
	raw, err := connect(ctx, "tcp", target.address)
	if err != nil || !target.secure {
		return raw, err
	}
	config := d.TLS.Clone()
	if config == nil {
		config = new(tls.Config)
	}
	config.MinVersion = tls.VersionTLS13
	config.NextProtos = []string{"http/1.1"} // HTTP/2 has no upgrade
	if config.ServerName == "" {
		config.ServerName = target.url.Hostname()
	}
	secure := tls.Client(raw, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		raw.Close()
		if strings.HasSuffix(err.Error(), alertProtocolVersion) {
			err = fmt.Errorf("TLS 1.3 is off there, and tunnels need it; its operator, or that of the proxy in front of it, can switch it on: %w", err)
		}
		return nil, err
	}
	return secure, nil
}

// HubTransport returns a transport for a machine's own requests to hubs. It connects like
// a Dialer's tunnel: dial and roots are the Dialer's Dial and TLS. A RoundTripper does
// not follow redirects, so only the hub receives the credential. Pings detect a hub that
// is gone during a slow response.
func HubTransport(
	dial func(ctx context.Context, network, address string) (net.Conn, error), roots *tls.Config,
) *http.Transport {
	t := outbound.NewTransport()
	if dial != nil {
		t.Proxy, t.DialContext = nil, dial
	}
	t.TLSClientConfig, t.TLSHandshakeTimeout = roots.Clone(), 5*time.Second
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second}
	t.MaxIdleConns, t.MaxIdleConnsPerHost, t.IdleConnTimeout = 0, 16, time.Minute
	t.DisableCompression = true // bytes pass unchanged
	return t
}

// alertProtocolVersion is the text of crypto/tls, which has no type for it, for the alert
// of a server without TLS 1.3.
const alertProtocolVersion = "tls: protocol version not supported"

func (d *Dialer) header() http.Header {
	h := http.Header{"Authorization": {"Bearer " + d.Credential()}, HeaderVersion: {strconv.Itoa(Version)}, HeaderInstance: {d.Instance}}
	if d.yields {
		h.Set(HeaderYields, "true")
	}
	return h
}

// requestPlain sends GET /tunnel on raw, reads the response, and returns the upgraded
// connection. The caller must close raw when ctx ends.
func (d *Dialer) requestPlain(_ context.Context, raw net.Conn, target hubTarget) (upgraded, error) {
	r := &http.Request{Method: http.MethodGet, URL: target.url, Host: target.url.Host, Header: d.header()}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", Protocol)
	if err := r.Write(raw); err != nil {
		return upgraded{}, &blockedError{fmt.Errorf("cannot ask the hub for a tunnel: %w", err)}
	}
	in := bufio.NewReader(&io.LimitedReader{R: raw, N: maxHeader})
	response, err := http.ReadResponse(in, r)
	switch {
	case err != nil:
		return upgraded{}, &blockedError{fmt.Errorf("cannot read the hub's answer to the upgrade: %w", err)}
	case response.StatusCode != http.StatusSwitchingProtocols:
		return upgraded{}, refusal(response)
	case !hasToken(response.Header, "Upgrade", Protocol):
		return upgraded{}, &blockedError{fmt.Errorf("the hub switched to %q, not to %s", response.Header.Get("Upgrade"), Protocol)}
	}
	return upgradedBy(response, withBuffer(raw, in))
}

// upgradedBy returns a connection with the headers of the hub's 101.
func upgradedBy(response *http.Response, c net.Conn) (upgraded, error) {
	generation, err := strconv.ParseInt(response.Header.Get(HeaderGeneration), 10, 64)
	if err != nil {
		return upgraded{}, &blockedError{fmt.Errorf("cannot use the hub's tunnel: its answer has no %s", HeaderGeneration)}
	}
	return upgraded{c, generation, response.Header.Get(HeaderNode)}, nil
}

func refusal(response *http.Response) error {
	switch response.StatusCode {
	case http.StatusUnauthorized:
		return ErrRefused
	case http.StatusConflict:
		return ErrFenced
	case http.StatusMisdirectedRequest:
		hub := response.Header.Get(HeaderHub)
		if CheckHub(hub) != nil {
			hub = ""
		}
		return &elsewhereError{hub}
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		if after := retryAfter(response.Header.Get("Retry-After")); after > 0 {
			after = min(after, maxRetryAfter)
			return &retryLaterError{fmt.Errorf("the hub answered %d: it takes no further machine just now, retry after %v", response.StatusCode, after), after}
		}
		return fmt.Errorf("the hub answered the upgrade with %s", response.Status)
	case http.StatusUpgradeRequired: // the request asked for an upgrade
		if speaks := response.Header.Get("Upgrade"); strings.HasPrefix(speaks, protocolName) && speaks != Protocol {
			return fmt.Errorf("the hub speaks %s and this kith %s: update kith", speaks, Protocol)
		}
		return &blockedError{fmt.Errorf("a proxy in front of the hub dropped the upgrade from GET /tunnel (%s): "+
			"its operator has to let the headers Connection and Upgrade pass", response.Status)}
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return &blockedError{fmt.Errorf("a proxy in front of the hub answered the upgrade with %s: "+
			"it does not pass the upgrade, or does not reach the hub", response.Status)}
	}
	return &blockedError{fmt.Errorf("the hub answered the upgrade with %s", response.Status)}
}

// retryAfter parses a Retry-After header: seconds, or a time (RFC 9110, 10.2.3). It
// returns 0 if the header is neither.
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
