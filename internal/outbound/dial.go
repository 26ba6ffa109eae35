package outbound

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// attemptDelay is how long an address has before the next one is tried, too: the
	// Connection Attempt Delay of RFC 8305.
	attemptDelay = 250 * time.Millisecond
	// attemptTimeout bounds the look-up of the addresses and the attempt on each.
	attemptTimeout = 5 * time.Second
)

// Dial connects to address, HOST:PORT. It tries the addresses of the host one after the
// other, both families in turn, 250 ms apart or as soon as one fails, and returns the first
// connection (RFC 8305). One deadline for all, as net.Dialer has, is used up by the
// first addresses that do not answer.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := racer{net.DefaultResolver.LookupNetIP, new(net.Dialer).DialContext}
	return d.dial(ctx, network, address)
}

// ErrNotPublic is the error of DialPublic for an address that is not public.
var ErrNotPublic = errors.New("the address is not public")

// DialPublic is Dial, but connects to public addresses only. The address that it checks is
// the one that it connects to.
func DialPublic(ctx context.Context, network, address string) (net.Conn, error) {
	d := racer{net.DefaultResolver.LookupNetIP, (&net.Dialer{Control: controlPublic}).DialContext}
	return d.dial(ctx, network, address)
}

func controlPublic(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err == nil && !IsPublic(at.Addr()) {
		err = ErrNotPublic
	}
	return err
}

// notPublic are the prefixes of addresses that are global by their form and have other uses:
// shared by a provider's customers, protocols, documentation and benchmarks, reserved, and
// forms of IPv6 that lead to an IPv4 address.
var notPublic = prefixes("100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24",
	"203.0.113.0/24", "240.0.0.0/4", "0.0.0.0/8", "::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "fec0::/10")

// nat64 is the prefix behind which an IPv6 network reaches IPv4 addresses (RFC 6052).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// IsPublic reports whether an address is one of the public Internet: not this computer's,
// a local network's, or one for a special use.
func IsPublic(addr netip.Addr) bool {
	addr = addr.WithZone("").Unmap()
	if nat64.Contains(addr) {
		b := addr.As16()
		addr = netip.AddrFrom4([4]byte(b[12:]))
	}
	return addr.IsGlobalUnicast() && !addr.IsPrivate() &&
		!slices.ContainsFunc(notPublic, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// dialFunc is a function as a dialer of golang.org/x/net/proxy.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Dial implements proxy.Dialer.
func (f dialFunc) Dial(network, address string) (net.Conn, error) {
	return f(context.Background(), network, address)
}

// DialContext implements proxy.ContextDialer.
func (f dialFunc) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return f(ctx, network, address)
}

// racer is what Dial uses of the network.
type racer struct {
	lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)
	one    dialFunc // connects to one address
}

type attempt struct {
	conn net.Conn
	err  error
}

func (d racer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	rest, err := d.addresses(ctx, strings.Replace(network, "tcp", "ip", 1), host)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the other attempts
	results := make(chan attempt)
	running, delay := 0, time.NewTimer(attemptDelay)
	start := func() {
		if len(rest) == 0 {
			return
		}
		at := net.JoinHostPort(rest[0].String(), port)
		rest = rest[1:]
		running++
		delay.Reset(attemptDelay)
		go d.try(ctx, network, at, results)
	}
	start()
	for running > 0 {
		select {
		case r := <-results:
			if r.err == nil {
				return r.conn, nil
			}
			running--
			err = cmp.Or(err, r.err)
			start()
		case <-delay.C:
			start()
		case <-ctx.Done():
			return nil, cmp.Or(err, ctx.Err())
		}
	}
	return nil, err
}

// try connects to one address, and closes the connection if ctx has ended.
func (d racer) try(ctx context.Context, network, address string, results chan<- attempt) {
	limited, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	c, err := d.one(limited, network, address)
	select {
	case results <- attempt{c, err}:
	case <-ctx.Done():
		if c != nil {
			c.Close()
		}
	}
}

// addresses returns the addresses of a host, the families in turn.
func (d racer) addresses(ctx context.Context, network, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	found, err := d.lookup(ctx, network, host)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	first := found[0].Unmap().Is4()
	var a, b, all []netip.Addr
	for _, addr := range found {
		if addr = addr.Unmap(); addr.Is4() == first {
			a = append(a, addr)
		} else {
			b = append(b, addr)
		}
	}
	for i := range max(len(a), len(b)) {
		all = append(all, a[min(i, len(a)):min(i+1, len(a))]...)
		all = append(all, b[min(i, len(b)):min(i+1, len(b))]...)
	}
	return all, nil
}

// givenKey is the context key of the connection of ClientConn.
type givenKey struct{}

// ClientConn begins HTTP on a connection, by a transport that dials with Given.
func ClientConn(ctx context.Context, t *http.Transport, conn net.Conn, scheme, address string) (*http.ClientConn, error) {
	return t.NewClientConn(context.WithValue(ctx, givenKey{}, conn), scheme, address)
}

// Given is the DialContext or DialTLSContext of a transport that dials nothing: it returns the
// connection that ClientConn got.
func Given(ctx context.Context, _, _ string) (net.Conn, error) {
	return ctx.Value(givenKey{}).(net.Conn), nil
}
