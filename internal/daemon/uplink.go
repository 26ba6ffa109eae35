package daemon

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// messagesVersion is the version of the messages dialect that the hub is asked in
// where the caller named none.
const messagesVersion = "2023-06-01"

// maxError bounds what is read of somebody's error answer, in bytes.
const maxError = 64 << 10

// uplink is the hub as this machine's daemon sees it: one more thing that
// serves a call, by the same path and the same bytes, under the machine's
// credential. The hub leaves this machine out, so a call never comes back.
type uplink struct {
	credential Credential
	transport  http.RoundTripper
	// trouble notes what keeps every call from the hub, for status and log.
	trouble func(format string, args ...any)
}

// newHubTransport makes the transport to hubs. It follows no redirect (a
// RoundTripper never does), so the credential goes to the hub alone; pings tell
// a hub that vanished from one that thinks.
func newHubTransport(dial func(ctx context.Context, network, address string) (net.Conn, error), roots *tls.Config) *http.Transport {
	if dial == nil {
		dial = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	}
	return &http.Transport{
		DialContext:         dial,
		TLSClientConfig:     roots.Clone(),
		TLSHandshakeTimeout: 5 * time.Second,
		ForceAttemptHTTP2:   true,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second},
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true, // the bytes pass as they are
	}
}

// do sends the call up. Every failure is a fault; none is ever a 401, which
// would read as the local caller's key (decisions 6).
func (u *uplink) do(ctx context.Context, call *gateway.Call) (*gateway.Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.credential.Hub+call.Endpoint.Path(), nil)
	if err != nil {
		return nil, u.unreachable(ctx, err)
	}
	req.Header.Set("Authorization", "Bearer "+u.credential.Secret)
	for name, values := range call.Header {
		req.Header[name] = values
	}
	if call.Endpoint == fleet.Messages && req.Header.Get(dialect.VersionHeader) == "" { // the hub requires one (S9.2)
		req.Header.Set(dialect.VersionHeader, messagesVersion)
	}
	call.Attach(req, call.Body)
	if call.Form == nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if call.Wait >= 0 {
		req.Header.Set("Prefer", "wait="+strconv.FormatInt(int64(call.Wait/time.Second), 10))
	}
	resp, err := u.transport.RoundTrip(req)
	if err != nil {
		return nil, u.unreachable(ctx, err)
	}
	call.Trace.Route = resp.Header.Get("X-Kith-Route")
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, u.refusal(resp)
	}
	resp.Body = &body{ReadCloser: resp.Body, broken: func(err error) error {
		return fault.New(fault.CascadeExhausted, "the hub at %s went away in the middle of the answer; try again", u.credential.Hub).Because(err)
	}}
	return &gateway.Answer{Response: resp, Endpoint: call.Endpoint, FromHub: true, ToBody: true}, nil
}

// unreachable is the fault of a hub that gave no answer.
func (u *uplink) unreachable(ctx context.Context, cause error) *fault.Fault {
	if ctx.Err() == nil {
		u.trouble("the hub at %s cannot be reached: %v", u.credential.Hub, cause)
	}
	return fault.New(fault.CascadeExhausted, "nothing here serves this model and the hub at %s cannot be reached; check the network and `kith status`", u.credential.Hub).Because(cause)
}

// refusal is the fault in the hub's error answer.
func (u *uplink) refusal(resp *http.Response) *fault.Fault {
	document, _ := io.ReadAll(io.LimitReader(resp.Body, maxError)) // what does not parse has no code
	f, ok := dialect.ParseFault(document)
	cause := fmt.Errorf("the hub answered %d, its correlation id %q", resp.StatusCode, resp.Header.Get("X-Correlation-ID"))
	if resp.StatusCode == http.StatusUnauthorized || ok && f.Code == fault.InvalidAPIKey {
		u.trouble("the hub at %s refuses this machine's credential", u.credential.Hub)
		return fault.New(fault.CascadeExhausted, "nothing here serves this model and the hub at %s refuses this machine's credential; run `kith login`", u.credential.Hub).Because(cause)
	}
	if !ok || !passes(f.Code) {
		u.trouble("what answers at %s is no kith hub in order: status %d", u.credential.Hub, resp.StatusCode)
		return fault.New(fault.CascadeExhausted, "nothing here serves this model and what answers at %s (status %d) is no kith hub in order; check the address with `kith status`", u.credential.Hub, resp.StatusCode).Because(cause)
	}
	f = f.Because(cause)
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		f = f.WithRetryAfter(seconds)
	}
	if strings.EqualFold(resp.Header.Get("X-Should-Retry"), "false") {
		f = f.WithNoRetry()
	}
	return f
}

// passes says whether a code of the hub means to the local caller what it means
// there; those about the route or the browser speak of the daemon's own request.
func passes(code fault.Code) bool {
	switch code {
	case fault.InvalidAPIKey, fault.ForbiddenOrigin, fault.RouteNotFound, fault.MethodNotAllowed, fault.NoInferenceBackend:
		return false
	}
	return true
}

// body is an answer's body: a break of it is told as a fault, and its close
// gives back what the call held.
type body struct {
	io.ReadCloser
	broken func(error) error
	closed func() // may be nil; called at each Close
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = b.broken(err)
	}
	return n, err
}

func (b *body) Close() error {
	err := b.ReadCloser.Close()
	if b.closed != nil {
		b.closed()
	}
	return err
}
