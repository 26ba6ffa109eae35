package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
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
func (r *request) forward(region string, refusal error) error {
	target := r.edge.cfg.Regions[region]
	if target == nil {
		return refusal
	}
	if r.Header[headerForwarded] != nil {
		return fault.New(fault.InvalidAPIKey, "the key belongs to region %q, "+
			"but the request was already forwarded once: the operator must correct an address in [regions]", region)
	}
	if err := r.edge.forwards.take(bucketKey{key: clientOf(r.Request)}, r.arrived); err != nil {
		return err
	}
	r.region = region
	defer r.body.start(r.Body)()
	err := r.proxy(target)
	r.body.end()
	switch {
	case err == nil:
		return nil
	case r.Context().Err() != nil:
		return errGone
	case r.body.err != nil:
		return r.bodyError(err)
	case r.reply.began: // too late for anything except ending the connection
		return fault.New(fault.CascadeExhausted, "the connection to region %q broke", region).Because(err)
	}
	r.setHeaders() // an informational response clears them
	return fault.New(fault.CascadeExhausted, "region %q of the key cannot be reached now; try again shortly",
		region).Because(err)
}

// proxy relays the request and its answer. If it fails before the reply began, the region
// cannot be reached or its answer is not a hub's.
func (r *request) proxy(target *url.URL) (err error) {
	out := r.WithContext(r.Context()) // a copy
	if out.Body != nil && out.Body != http.NoBody {
		out.Body = &r.body
	}
	proxy := &httputil.ReverseProxy{
		Transport: r.tuning.transport,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(target)
			p.SetXForwarded()
			h := p.Out.Header
			// These are only for this connection and site.
			for _, name := range []string{"Connection", "Upgrade", "Cookie", "Origin", "Referer"} {
				h.Del(name)
			}
			h.Set(headerForwarded, r.edge.cfg.Region)
		},
		ModifyResponse: r.takeResponse,
		ErrorHandler:   func(_ http.ResponseWriter, _ *http.Request, failed error) { err = failed },
		ErrorLog:       slog.NewLogLogger(r.edge.cfg.Log.Handler(), slog.LevelDebug),
	}
	defer func() {
		if v := recover(); v == http.ErrAbortHandler { //nolint:errorlint // a panic's value
			err = errors.New("its answer ended early")
		} else if v != nil {
			panic(v)
		}
	}()
	proxy.ServeHTTP(&r.reply, out)
	return err
}

// takeResponse prepares the answer of another region for the caller. It refuses any
// answer that is not a hub's, such as that of a proxy without a hub behind it.
func (r *request) takeResponse(res *http.Response) error {
	id := res.Header.Get(correlationHeader)
	if id == "" || res.StatusCode < 200 || res.StatusCode >= 300 && res.StatusCode < 400 {
		return fmt.Errorf("its address answers with %s, unlike a hub", res.Status)
	}
	r.id = id
	clear(r.reply.Header()) // the region has set its headers
	for name := range res.Header {
		if name == "Set-Cookie" || name == "Vary" || strings.HasPrefix(name, "Access-Control-") {
			res.Header.Del(name)
		}
	}
	r.edge.cors(res.Header, r.Request)
	if r.ProtoMajor == 1 && (r.TransferEncoding != nil || !r.body.isDone()) {
		_ = r.reply.control.EnableFullDuplex() // or net/http would wait for the rest of the body
		res.Header.Set("Connection", "close")
	}
	return nil
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
