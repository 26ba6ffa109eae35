// Package outbound opens the connections that leave this computer's network: to a hub, an
// upstream, a model hub. They use the proxy that the environment names (HTTPS_PROXY,
// HTTP_PROXY and NO_PROXY), and try the addresses of a host as RFC 8305 describes.
//
// Every failure of the proxy, as opposed to one of the host behind it, is a *net.OpError
// whose Op is "proxyconnect", as net/http has it.
package outbound

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http/httpproxy"
	"golang.org/x/net/proxy"
)

// maxHeader bounds the proxy's response to a CONNECT request, in bytes.
const maxHeader = 64 << 10

// NewTransport returns a transport that uses the proxies which the environment names now.
// Otherwise it is as http.DefaultTransport.
func NewTransport() *http.Transport {
	choose := httpproxy.FromEnvironment().ProxyFunc()
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Proxy = func(r *http.Request) (*url.URL, error) { return choose(r.URL) }
	t.DialContext = Dial
	t.OnProxyConnectResponse = func(_ context.Context, via *url.URL, r *http.Request, response *http.Response) error {
		return refusal(via, r.Host, response)
	}
	return t
}

// ProxyOf returns the proxy that the environment names for an address, or nil: requests to
// this computer, and to the hosts in NO_PROXY, use none.
func ProxyOf(target *url.URL) (*url.URL, error) {
	return httpproxy.FromEnvironment().ProxyFunc()(target)
}

// IsProxyFailure reports whether err is a failure of the proxy, and not of the host behind it.
func IsProxyFailure(err error) bool {
	failed, ok := errors.AsType[*net.OpError](err)
	return ok && failed.Op == "proxyconnect"
}

// Connect connects to address, the host and port of target, directly or through the proxy
// that the environment names for target. The host must not speak first. roots, if not nil,
// verify a proxy that is itself reached over TLS.
func Connect(ctx context.Context, target *url.URL, address string, roots *tls.Config) (net.Conn, error) {
	via, err := ProxyOf(target)
	if err != nil {
		return nil, proxyFailure(err)
	}
	if via == nil {
		return Dial(ctx, "tcp", address)
	}
	c, err := connectThrough(ctx, via, address, roots)
	if err != nil && !IsProxyFailure(err) {
		err = proxyFailure(err)
	}
	return c, err
}

func proxyFailure(err error) error { return &net.OpError{Op: "proxyconnect", Net: "tcp", Err: err} }

func connectThrough(ctx context.Context, via *url.URL, address string, roots *tls.Config) (net.Conn, error) {
	ports := map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}
	port, known := ports[via.Scheme]
	if !known {
		return nil, fmt.Errorf("cannot use the proxy %s: its scheme is http, https or socks5", via.Redacted())
	}
	at := net.JoinHostPort(via.Hostname(), cmp.Or(via.Port(), port))
	if strings.HasPrefix(via.Scheme, "socks5") {
		var auth *proxy.Auth
		if via.User != nil {
			password, _ := via.User.Password()
			auth = &proxy.Auth{User: via.User.Username(), Password: password}
		}
		socks, err := proxy.SOCKS5("tcp", at, auth, dialFunc(Dial))
		if err != nil {
			return nil, err
		}
		return socks.(proxy.ContextDialer).DialContext(ctx, "tcp", address)
	}
	c, err := Dial(ctx, "tcp", at)
	if err != nil {
		return nil, err
	}
	if via.Scheme == "https" {
		config := roots.Clone()
		if config == nil {
			config = new(tls.Config)
		}
		config.ServerName, config.NextProtos = via.Hostname(), []string{"http/1.1"}
		c = tls.Client(c, config) // the handshake is part of the first Write
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	err = requestConnect(c, via, address)
	if !stop() {
		err = cmp.Or(ctx.Err(), err)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// requestConnect asks the proxy at the other end of c for a connection to address.
func requestConnect(c net.Conn, via *url.URL, address string) error {
	r := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{}}
	if via.User != nil {
		password, _ := via.User.Password()
		secret := base64.StdEncoding.EncodeToString([]byte(via.User.Username() + ":" + password))
		r.Header.Set("Proxy-Authorization", "Basic "+secret)
	}
	if err := r.Write(c); err != nil {
		return err
	}
	in := bufio.NewReader(&io.LimitedReader{R: c, N: maxHeader})
	response, err := http.ReadResponse(in, r)
	switch {
	case err != nil:
		return fmt.Errorf("the proxy %s gave no answer to CONNECT: %w", via.Host, err)
	case response.StatusCode != http.StatusOK:
		return refusal(via, address, response)
	case in.Buffered() > 0:
		return fmt.Errorf("the proxy %s sent more than its answer to CONNECT", via.Host)
	}
	return nil
}

// refusal returns the error of a proxy's response to a CONNECT request for address, or nil
// if the response is a success.
func refusal(via *url.URL, address string, response *http.Response) error {
	schemes := response.Header.Values("Proxy-Authenticate")
	switch {
	case response.StatusCode == http.StatusOK:
		return nil
	case response.StatusCode != http.StatusProxyAuthRequired:
		return proxyFailure(fmt.Errorf("the proxy %s does not connect to %s: it answered %s",
			via.Host, address, response.Status))
	case len(schemes) > 0 && !slices.ContainsFunc(schemes, isBasic):
		return proxyFailure(fmt.Errorf("the proxy %s signs in by %s, and kith by Basic only; "+
			"run a proxy such as cntlm or px here, and name that in HTTPS_PROXY", via.Host, strings.Join(schemes, ", ")))
	case via.User == nil:
		return proxyFailure(fmt.Errorf("the proxy %s wants a user and a password (407); set HTTPS_PROXY=%s://USER:PASSWORD@%[1]s",
			via.Host, via.Scheme))
	}
	return proxyFailure(fmt.Errorf("the proxy %s refuses the user and password in HTTPS_PROXY (407); "+
		"a character such as @ or : in them is written as %%40 or %%3A", via.Host))
}

func isBasic(scheme string) bool {
	name, _, _ := strings.Cut(strings.TrimSpace(scheme), " ")
	return strings.EqualFold(name, "basic")
}
