package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/limit"
	"github.com/kith/kith/internal/outbound"
)

// OtherRegion is the cause of the fault that Identify returns for a secret of another
// region, and that region's name (spec/api.md#other-region). The secret was not looked
// up.
type OtherRegion string

func (r OtherRegion) Error() string { return "the key is of region " + string(r) }

// headerForwarded marks a forwarded request and names the region that forwarded it. No
// request is forwarded twice.
const headerForwarded = "Kith-Forwarded-From"

// correlationHeader is the header with the correlation id, which every answer of a hub
// has.
const correlationHeader = "X-Correlation-Id"

// newRegionTransport returns the transport to other regions. A region that does not send
// a status within unary, the longest time that it should take, is considered unreachable.
func newRegionTransport(unary time.Duration) *http.Transport {
	t := outbound.NewTransport()
	t.TLSHandshakeTimeout = 5 * time.Second
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second}
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, 64
	t.ResponseHeaderTimeout = unary + 10*time.Second
	t.DisableCompression = true // the caller's Accept-Encoding is passed on
	return t
}

// forward sends the request to the region of its key and returns the answer, both
// unchanged (spec/api.md#other-region). If the operator did not configure that region, it
// returns refusal.
func (x *exchange) forward(region string, refusal error) error {
	target := x.g.cfg.Regions[region]
	if target == nil {
		return refusal
	}
	if x.r.Header[headerForwarded] != nil {
		return fault.New(fault.InvalidAPIKey, "the key is of region %q, and the request was forwarded once already: the operator has to correct an address in [regions]", region)
	}
	if err := x.g.forwards.take(bucketKey{key: clientOf(x.r)}, x.arrived); err != nil {
		return err
	}
	x.region = region
	body := &forwardedBody{x: x, done: x.r.ContentLength == 0}
	if !body.done {
		x.bodyDeadline(0)
	}
	err := x.proxy(target, body)
	x.bodyDone = body.end() || x.bodyDone
	switch {
	case err == nil:
		return nil
	case x.r.Context().Err() != nil:
		return errGone
	case body.err != nil:
		return x.brokenBody(body.err)
	case x.began: // too late for anything except ending the connection
		return fault.New(fault.CascadeExhausted, "the connection to region %q broke", region).Because(err)
	}
	x.setHeaders() // an informational response clears them
	return fault.New(fault.CascadeExhausted, "region %q, which the key is of, cannot be reached just now; try again shortly", region).Because(err)
}

// proxy relays the request and its answer. If it fails before x.began, the region cannot
// be reached or its answer is not a hub's.
func (x *exchange) proxy(target *url.URL, body *forwardedBody) (err error) {
	r := x.r.WithContext(x.r.Context()) // a copy
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = body
	}
	proxy := &httputil.ReverseProxy{
		Transport: x.tuning.transport,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(target)
			p.SetXForwarded()
			h := p.Out.Header
			// These are only for this connection and site.
			for _, name := range []string{"Connection", "Upgrade", "Cookie", "Origin", "Referer"} {
				h.Del(name)
			}
			h.Set(headerForwarded, x.g.cfg.Region)
		},
		ModifyResponse: func(res *http.Response) error { return x.takeResponse(res, body) },
		ErrorHandler:   func(_ http.ResponseWriter, _ *http.Request, failed error) { err = failed },
		ErrorLog:       slog.NewLogLogger(x.g.cfg.Log.Handler(), slog.LevelDebug),
	}
	defer func() {
		if v := recover(); v == http.ErrAbortHandler { //nolint:errorlint // a panic's value
			err = errors.New("its answer broke off")
		} else if v != nil {
			panic(v)
		}
	}()
	proxy.ServeHTTP(&forwardedWriter{x}, r)
	return err
}

// takeResponse prepares the answer of another region for the caller. It refuses any
// answer that is not a hub's, such as that of a proxy without a hub behind it.
func (x *exchange) takeResponse(res *http.Response, body *forwardedBody) error {
	id := res.Header.Get(correlationHeader)
	if id == "" || res.StatusCode < 200 || res.StatusCode >= 300 && res.StatusCode < 400 {
		return fmt.Errorf("its address answers with %s, and not as a hub does", res.Status)
	}
	x.id = id
	clear(x.w.Header()) // the region has set its headers
	for name := range res.Header {
		if name == "Set-Cookie" || name == "Vary" || strings.HasPrefix(name, "Access-Control-") {
			res.Header.Del(name)
		}
	}
	x.g.cors(res.Header, x.r)
	if x.r.ProtoMajor == 1 && (x.r.TransferEncoding != nil || !body.isDone()) {
		_ = x.control.EnableFullDuplex() // or net/http would wait for the rest of the body
		res.Header.Set("Connection", "close")
	}
	return nil
}

// forwardedWriter writes the answer of another region to the caller, with the usual
// deadline for each part.
type forwardedWriter struct{ x *exchange }

func (w *forwardedWriter) Header() http.Header         { return w.x.w.Header() }
func (w *forwardedWriter) Unwrap() http.ResponseWriter { return w.x.w }

func (w *forwardedWriter) WriteHeader(status int) {
	if status >= 200 {
		w.x.began, w.x.status = true, status
		w.x.arm(time.Now())
	}
	w.x.w.WriteHeader(status)
}

func (w *forwardedWriter) Write(b []byte) (int, error) {
	w.x.arm(time.Now())
	n, err := w.x.w.Write(b)
	w.x.written += int64(n)
	return n, err
}

// forwardedBody is the body of a forwarded request, with the usual read deadlines. The
// transport may read it in the background, even after the exchange.
type forwardedBody struct {
	x               *exchange
	received, armed int

	mu          sync.Mutex // held while a deadline is set
	done, ended bool       // read to its end; the exchange ended
	err         error      // of reading from the caller
}

func (b *forwardedBody) Read(p []byte) (int, error) {
	if b.isDone() { // the transport reads on although the answer may have closed the body
		return 0, io.EOF
	}
	n, err := b.x.r.Body.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.received += n
	switch length := b.x.r.ContentLength; {
	case b.ended || b.done:
	case err == io.EOF || length > 0 && int64(b.received) >= length:
		b.done = true
		_ = b.x.control.SetReadDeadline(time.Time{}) // or it would interrupt the answer
	case err != nil:
		b.err = cmp.Or(b.err, err)
	case b.received-b.armed >= bodyStep:
		b.armed = b.received
		b.x.bodyDeadline(b.armed)
	}
	return n, err
}

// Close does nothing: net/http closes the body after the exchange.
func (b *forwardedBody) Close() error { return nil }

func (b *forwardedBody) isDone() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.done
}

// end ends the reading of the body and reports whether it was complete.
func (b *forwardedBody) end() (done bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	if !b.done {
		_ = b.x.control.SetReadDeadline(time.Now()) // net/http waits for the current read
	}
	return b.done
}

// clientOf returns the client that a request with a key of another region is counted for,
// the same as for its connections.
func clientOf(r *http.Request) string {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return limit.Network(at.Addr()).String()
}
