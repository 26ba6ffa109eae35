package gateway

import (
	"cmp"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/limit"
)

// Clients distinguishes the clients of a server and limits what each may hold at once
// (spec/api.md#limit-connections): its connections, and behind a trusted proxy its
// requests, since a proxy's connections are shared by many clients. A client is an IPv4
// address or an IPv6 /64, the usual allocation of one customer. The nil Clients trusts no
// proxy and has no limits.
type Clients struct {
	rules atomic.Pointer[clientRules]
	log   *slog.Logger

	connections, requests tally
	warned, malformed     rate.Sometimes
}

// clientRules are the settings that Reconfigure replaces.
type clientRules struct {
	proxies []netip.Prefix
	limit   int
}

// NewClients returns the Clients of one server. The proxies are trusted to name the
// client, in a PROXY header or in X-Forwarded-For; X-Forwarded-For from any other peer is
// ignored. The limit is how many connections, or behind a proxy requests, one client may
// hold at once; 0 is off. A warning is logged, at most once a minute, when a client holds
// 80 % of the limit.
func NewClients(proxies []netip.Prefix, limit int, log *slog.Logger) *Clients {
	c := &Clients{log: log, warned: rate.Sometimes{Interval: time.Minute},
		malformed: rate.Sometimes{Interval: time.Minute}}
	c.Reconfigure(proxies, limit)
	return c
}

// Reconfigure changes the proxies and the limit for new connections and requests.
func (c *Clients) Reconfigure(proxies []netip.Prefix, limit int) {
	c.rules.Store(&clientRules{proxies, limit})
}

// tally counts what each client holds.
type tally struct {
	mu   sync.Mutex
	held map[netip.Prefix]int // entries only while they hold something
}

func (t *tally) take(client netip.Prefix, limit int) (held int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if held = t.held[client]; held >= limit {
		return held, false
	}
	if t.held == nil {
		t.held = make(map[netip.Prefix]int)
	}
	t.held[client] = held + 1
	return held + 1, true
}

func (t *tally) free(client netip.Prefix) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held[client]--; t.held[client] == 0 {
		delete(t.held, client)
	}
}

// Fullest returns the highest number of connections or requests that one client holds
// now, and the limit; 0 is off.
func (c *Clients) Fullest() (held, limit int) {
	return max(c.connections.most(), c.requests.most()), c.rules.Load().limit
}

// most returns the highest number that one client holds.
func (t *tally) most() (held int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.held {
		held = max(held, n)
	}
	return held
}

// take adds one to what a client holds. It returns the function that subtracts it again,
// nil if the client is at the limit.
func (c *Clients) take(t *tally, what string, client netip.Addr) (free func()) {
	most := c.rules.Load().limit
	if most <= 0 {
		return func() {}
	}
	counted := limit.Network(client)
	held, ok := t.take(counted, most)
	if nearLimit(held, most) {
		c.warned.Do(func() {
			c.log.Warn("one client holds nearly as many "+what+" as it may; if it is a proxy, name it in [hub] proxies",
				"client", counted, "held", held, "limit", most)
		})
	}
	if !ok {
		return nil
	}
	return sync.OnceFunc(func() { t.free(counted) })
}

// Holder is a client and what it holds.
type Holder struct {
	Client      netip.Prefix
	What        string // connections or requests
	Held, Limit int
}

// nearLimit reports whether a client holds 80 % or more of the limit.
func nearLimit(held, limit int) bool { return held*5 >= limit*4 }

// BusyClients returns the clients that hold 80 % or more of the limit, at most most of
// them, those that hold the most first.
func (c *Clients) BusyClients(most int) (all []Holder) {
	if c == nil || c.rules.Load().limit <= 0 {
		return nil
	}
	limit := c.rules.Load().limit
	for what, t := range map[string]*tally{"connections": &c.connections, "requests": &c.requests} {
		t.mu.Lock()
		for client, held := range t.held {
			if nearLimit(held, limit) {
				all = append(all, Holder{client, what, held, limit})
			}
		}
		t.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b Holder) int { return cmp.Or(b.Held-a.Held, a.Client.Compare(b.Client)) })
	return all[:min(len(all), most)]
}

// Listen wraps a listener and limits the connections of each client; those over the limit
// are closed at once. A connection of a trusted proxy is counted if a PROXY header,
// version 1 or 2, names its client. Connections other than TCP are not counted.
func (c *Clients) Listen(l net.Listener) net.Listener { return &clientListener{l, c} }

type clientListener struct {
	net.Listener
	clients *Clients
}

// Accept returns the next connection that is within its client's limit.
func (l *clientListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		tcp, ok := conn.(*net.TCPConn)
		if !ok {
			return conn, nil
		}
		from := addrOf(tcp.RemoteAddr())
		if l.clients.trusts(from) {
			return newProxyConn(l.clients, tcp), nil
		}
		if free := l.clients.take(&l.clients.connections, "connections", from); free != nil {
			return &clientConn{TCPConn: tcp, free: free}, nil
		}
		_ = conn.Close()
	}
}

// clientConn is a counted connection. It embeds *net.TCPConn because net/http half-closes
// the connection to deliver an early 413.
type clientConn struct {
	*net.TCPConn
	free func()
}

// Close closes the connection and ends its count.
func (c *clientConn) Close() error {
	defer c.free()
	return c.TCPConn.Close()
}

func (c *clientConn) uncount() { c.free() }

// ConnState is for http.Server. A connection that became a tunnel is no longer counted
// for its client: it is counted by the machine's credential instead.
func (c *Clients) ConnState(conn net.Conn, state http.ConnState) {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	if counted, ok := conn.(interface{ uncount() }); ok && state == http.StateHijacked {
		counted.uncount()
	}
}

// Resolve returns the request with the client's address as its RemoteAddr, and reports
// whether a trusted proxy named that address.
func (c *Clients) Resolve(r *http.Request) (resolved *http.Request, proxied bool) {
	if c == nil || len(c.rules.Load().proxies) == 0 {
		return r, false
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !c.trusts(peer.Addr()) {
		return r, false
	}
	resolved = new(http.Request)
	*resolved = *r
	resolved.RemoteAddr = netip.AddrPortFrom(c.behind(peer.Addr(), r.Header["X-Forwarded-For"]), 0).String()
	return resolved, true
}

// behind returns the client behind a trusted proxy: the last address in the headers that
// is not a trusted proxy's. The addresses before it may be forged by the client. If an
// entry is not an address, the proxy that sent it is the client.
func (c *Clients) behind(client netip.Addr, headers []string) netip.Addr {
	hops := strings.Split(strings.Join(headers, ","), ",")
	for i := len(hops) - 1; i >= 0; i-- {
		hop, ok := readHop(strings.TrimSpace(hops[i]))
		if !ok {
			break
		}
		if client = hop; !c.trusts(hop) {
			break
		}
	}
	return client
}

// readHop parses an address as proxies write it, some with a port.
func readHop(text string) (netip.Addr, bool) {
	if at, err := netip.ParseAddrPort(text); err == nil {
		return at.Addr().Unmap().WithZone(""), true
	}
	addr, err := netip.ParseAddr(strings.Trim(text, "[]"))
	return addr.Unmap().WithZone(""), err == nil
}

// Admit counts a request, which Resolve returned, for its client until leave is called.
func (c *Clients) Admit(r *http.Request) (leave func(), err error) {
	from, parseErr := netip.ParseAddrPort(r.RemoteAddr)
	if parseErr != nil {
		return func() {}, nil
	}
	if leave = c.take(&c.requests, "requests", from.Addr()); leave == nil {
		return nil, fault.New(fault.RateLimitExceeded,
			"your address has %d requests running here, the maximum for one address; wait until one ends",
			c.rules.Load().limit)
	}
	return leave, nil
}

func (c *Clients) trusts(peer netip.Addr) bool {
	peer = peer.Unmap().WithZone("")
	for _, proxy := range c.rules.Load().proxies {
		if proxy.Contains(peer) {
			return true
		}
	}
	return false
}
