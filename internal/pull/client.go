package pull

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/kith/kith/internal/outbound"
)

// NewClient returns a client for a Source, without a time limit for downloads.
func NewClient() *http.Client {
	transport := outbound.NewTransport()
	transport.ResponseHeaderTimeout = silence
	return &http.Client{Transport: transport, CheckRedirect: checkRedirect}
}

// checkRedirect refuses redirects from another computer to this one, or to link-local
// addresses (cloud metadata): otherwise a server on the web could send requests to local
// programs and have their answers saved as a model.
func checkRedirect(request *http.Request, via []*http.Request) error {
	from, to := via[len(via)-1].URL.Hostname(), request.URL.Hostname()
	if isHere(to) && !isHere(from) {
		return fmt.Errorf("%w: it redirects to %s, an address of this computer", errRedirect, request.URL.Host)
	}
	if len(via) >= 10 {
		return errors.New("it redirects 10 times")
	}
	return nil
}

// errRedirect is returned for a redirect that is not followed.
var errRedirect = errors.New("it cannot be followed")

// isHere reports whether a host is this computer or a link-local address.
func isHere(host string) bool {
	if host = strings.ToLower(strings.TrimSuffix(host, ".")); host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	addr = addr.Unmap()
	return err == nil && (addr.IsLoopback() || addr.IsUnspecified() || addr.IsLinkLocalUnicast())
}

// NewPublicClient returns a client for references that someone sent from elsewhere
// (spec/security.md#remote-hands). It connects to the host of the model hub at endpoint,
// which this machine's owner chose, to the environment's proxy, and otherwise to public
// addresses only, so that no one can send requests into this machine's network or learn
// what is there. Which address a host has is looked up once, for the connection itself. A
// proxy looks up the addresses of the hosts behind it and decides about them.
func NewPublicClient(endpoint string) *http.Client {
	usual, direct := outbound.NewTransport(), outbound.NewTransport()
	direct.Proxy, direct.DialContext = nil, outbound.DialPublic
	usual.ResponseHeaderTimeout, direct.ResponseHeaderTimeout = silence, silence
	hub := ""
	if u, err := url.Parse(endpoint); err == nil {
		hub = u.Host
	}
	return &http.Client{Transport: &publicTransport{hub, usual, direct}, CheckRedirect: checkRedirect}
}

// publicTransport is the transport of NewPublicClient.
type publicTransport struct {
	hub           string // the model hub's host, with its port if it has one
	usual, direct *http.Transport
}

// errPrivate is returned for an address that is not public.
var errPrivate = errors.New("it is an address of this machine or of its own network, which a pull from elsewhere does not use: " +
	"fetch it on the machine itself")

// RoundTrip implements http.RoundTripper.
func (t *publicTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.hub != "" && r.URL.Host == t.hub {
		return t.usual.RoundTrip(r)
	}
	if isPrivateName(r.URL.Hostname()) {
		return nil, errPrivate
	}
	via, err := outbound.ProxyOf(r.URL)
	if err != nil || via != nil {
		return t.usual.RoundTrip(r)
	}
	response, err := t.direct.RoundTrip(r)
	if errors.Is(err, outbound.ErrNotPublic) {
		err = errPrivate
	}
	return response, err
}

// isPrivateName reports whether a host is known not to be public without looking it up.
func isPrivateName(host string) bool {
	if isHere(host) {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && !outbound.IsPublic(addr)
}
