package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/host"
	"github.com/kith/kith/internal/store"
)

// The types of configuration values in addition to TOML's. Each is a struct, so that the
// decoder can only set it through UnmarshalText, which validates it. takes describes the
// valid values.

// wrong returns the error of UnmarshalText for an invalid value.
func wrong(value interface{ takes() string }) error { return errors.New("takes " + value.takes()) }

// oneOf returns the text if it is one of the words.
func oneOf(value interface{ takes() string }, text []byte, words ...string) (string, error) {
	if !slices.Contains(words, string(text)) {
		return "", wrong(value)
	}
	return string(text), nil
}

// parseURL parses the http or https URL of a site or an API. risk is what can happen with
// plain http to another machine; if it is empty, plain http is accepted.
func parseURL(value interface{ takes() string }, text, risk string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, wrong(value)
	case risk != "" && u.Scheme == "http" && !isLocalHost(u.Hostname()):
		return nil, fmt.Errorf("takes %s: without https %s", value.takes(), risk)
	}
	return u, nil
}

// convert converts each value of a list. It returns nil for nil.
func convert[From, To any](list []From, one func(From) To) []To {
	if list == nil {
		return nil
	}
	out := make([]To, len(list))
	for i, value := range list {
		out[i] = one(value)
	}
	return out
}

// isLocalHost reports whether the host is "localhost" or a loopback address.
func isLocalHost(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// duration is a time span such as "60s" or "10m"; zero is 0s.
type duration struct{ time.Duration }

func (duration) takes() string { return `a time such as "60s" or "10m"` }

func (d *duration) UnmarshalText(text []byte) (err error) {
	d.Duration, err = time.ParseDuration(string(text))
	if err != nil || d.Duration < 0 {
		return wrong(d)
	}
	return nil
}

// size is a number of bytes such as "32MiB", "64KiB" or "25MB".
type size struct{ Bytes int64 }

func (size) takes() string { return `a size such as "32MiB" or "500KB"` }

func (s *size) UnmarshalText(text []byte) error {
	number := strings.TrimRight(string(text), "BKMGTi")
	unit, known := map[string]int64{
		"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
	}[strings.TrimPrefix(string(text), number)]
	n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
	if err != nil || !known || n < 0 || n > math.MaxInt64/unit {
		return wrong(s)
	}
	s.Bytes = n * unit
	return nil
}

// address is an address to listen on, "HOST:PORT"; port 0 is any free port.
type address struct{ Text string }

func (address) takes() string { return `an address such as "127.0.0.1:8700"` }

func (a *address) UnmarshalText(text []byte) error {
	a.Text = string(text)
	_, port, err := net.SplitHostPort(a.Text)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return wrong(a)
	}
	return nil
}

// loopback is a literal loopback address. Host names are rejected, because they may later
// resolve to another address.
type loopback struct{ address }

func (loopback) takes() string { return `a loopback address such as "127.0.0.1:8701"` }

func (l *loopback) UnmarshalText(text []byte) error {
	if err := l.address.UnmarshalText(text); err != nil {
		return wrong(l)
	}
	at, err := netip.ParseAddrPort(l.Text)
	if err != nil || !at.Addr().IsLoopback() {
		return fmt.Errorf("takes %s: the local surface requires no key, so it is never opened to a network", l.takes())
	}
	return nil
}

// web is the URL of a site or an API; "" means none.
type web struct{ Text string }

func (web) takes() string { return `an address such as "https://hub.example.org"` }

func (w *web) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	w.Text = strings.TrimSuffix(string(text), "/")
	_, err := parseURL(w, w.Text, "")
	return err
}

// publicAddress is the URL of a hub for members; "" means none.
type publicAddress struct{ web }

func (p *publicAddress) UnmarshalText(text []byte) error {
	err := p.web.UnmarshalText(text)
	if u, wrong := url.Parse(p.Text); err == nil && wrong == nil && u.Path != "" {
		err = fmt.Errorf("takes %s: without a path, because the paths of the API and of the site begin at its root; give the hub a name of its own", p.takes())
	}
	return err
}

// issuer is the URL of an OpenID provider, exactly as the provider writes it; "" means
// none.
type issuer struct{ Text string }

func (issuer) takes() string { return `an address such as "https://id.example.org"` }

func (i *issuer) UnmarshalText(text []byte) error {
	i.Text = string(text)
	if i.Text == "" {
		return nil
	}
	_, err := parseURL(i, i.Text, "others on the network could sign in as any member")
	return err
}

// region is a hub's region as in its keys: 1 to 16 of a-z, 0-9 and "-".
type region struct{ Text string }

func (region) takes() string { return `a region such as "eu-west": 1 to 16 of a-z, 0-9 and "-"` }

func (r *region) UnmarshalText(text []byte) error {
	r.Text = string(text)
	if !credential.ValidRegion(r.Text) {
		return wrong(r)
	}
	return nil
}

// regionAddress is the address of a hub of another region.
type regionAddress struct{ URL *url.URL }

func (regionAddress) takes() string { return `an address such as "https://us.example.org"` }

func (r *regionAddress) UnmarshalText(text []byte) (err error) {
	r.URL, err = parseURL(r, strings.TrimSuffix(string(text), "/"), "members' keys would travel unencrypted")
	if err == nil && r.URL.Path != "" {
		err = fmt.Errorf("takes %s: without a path", r.takes())
	}
	return err
}

// proxy is the address of a proxy or a network of proxies.
type proxy struct{ Prefix netip.Prefix }

func (proxy) takes() string { return `an address or a network such as "10.0.0.0/8"` }

func (p *proxy) UnmarshalText(text []byte) (err error) {
	if addr, single := netip.ParseAddr(string(text)); single == nil {
		addr = addr.Unmap().WithZone("")
		p.Prefix = netip.PrefixFrom(addr, addr.BitLen())
		return nil
	}
	switch p.Prefix, err = netip.ParsePrefix(string(text)); {
	case err != nil || p.Prefix != p.Prefix.Masked() || p.Prefix.Addr().Is4In6():
		return wrong(p)
	case p.Prefix.Bits() == 0:
		return fmt.Errorf("takes %s: every client could claim to be another if every address were trusted", p.takes())
	}
	return nil
}

// origin is the origin of a web application, as browsers write it.
type origin struct{ Text string }

func (origin) takes() string { return `an origin such as "https://app.example.org"` }

func (o *origin) UnmarshalText(text []byte) error {
	if o.Text = string(text); o.Text == "*" {
		return fmt.Errorf("takes %s: with * every page on the web could use the keys that are entered in it; name the applications", o.takes())
	}
	u, err := parseURL(o, o.Text, "the application's key would travel unencrypted")
	if err == nil && o.Text != strings.ToLower(u.Scheme+"://"+u.Host) {
		err = wrong(o)
	}
	return err
}

// domain is the DNS name of a hub.
type domain struct{ Text string }

func (domain) takes() string { return `a name such as "hub.example.org"` }

func (d *domain) UnmarshalText(text []byte) error {
	d.Text = string(text)
	_, err := netip.ParseAddr(d.Text)
	if err == nil || !strings.Contains(strings.Trim(d.Text, "."), ".") || strings.Trim(d.Text, "abcdefghijklmnopqrstuvwxyz0123456789.-") != "" {
		return wrong(d)
	}
	return nil
}

// acmeDirectory is the URL of an ACME server's directory; "" is Let's Encrypt's.
type acmeDirectory struct{ Text string }

func (acmeDirectory) takes() string {
	return `an address such as "https://ca.example.org/acme/directory"`
}

func (a *acmeDirectory) UnmarshalText(text []byte) error {
	if a.Text = string(text); a.Text == "" {
		return nil
	}
	_, err := parseURL(a, a.Text, "others on the network could get certificates of this hub")
	return err
}

// logLevel is the lowest level that a log contains.
type logLevel struct{ Text string }

func (logLevel) takes() string { return `"debug", "info", "warn" or "error"` }

func (l *logLevel) UnmarshalText(text []byte) (err error) {
	l.Text, err = oneOf(l, text, "debug", "info", "warn", "error")
	return err
}

func (l *logLevel) level() (level slog.Level) {
	_ = level.UnmarshalText([]byte(l.Text)) // it was checked
	return level
}

// logFormat is the format of the lines in a log.
type logFormat struct{ Text string }

func (logFormat) takes() string { return `"text" or "json"` }

func (f *logFormat) UnmarshalText(text []byte) (err error) {
	f.Text, err = oneOf(f, text, "text", "json")
	return err
}

// reachWord is what calls can reach; "" means all.
type reachWord struct{ Reach fleet.KeyReach }

func (reachWord) takes() string { return `"all", "shared" or "own"` }

func (r *reachWord) UnmarshalText(text []byte) error {
	reach, ok := fleet.ParseKeyReach(string(text))
	if r.Reach = reach; !ok {
		return wrong(r)
	}
	return nil
}

// signUp is who may create an account on a hub's site.
type signUp struct{ Text string }

func (signUp) takes() string { return `"open", "invite" or "closed"` }

func (s *signUp) UnmarshalText(text []byte) (err error) {
	s.Text, err = oneOf(s, text, "open", "invite", "closed")
	return err
}

// sender is the sender's address of e-mail, with or without a name.
type sender struct{ Text string }

func (sender) takes() string { return `an address such as "kith <kith@example.org>"` }

func (s *sender) UnmarshalText(text []byte) error {
	s.Text = string(text)
	at, err := mail.ParseAddress(s.Text)
	if err != nil || strings.ContainsFunc(at.Name+at.Address, unicode.IsControl) {
		return wrong(s)
	}
	return nil
}

// mailTLS is the use of TLS with a mail server; empty means "starttls".
type mailTLS struct{ Text string }

func (mailTLS) takes() string { return `"starttls", "implicit" or "none"` }

func (m *mailTLS) UnmarshalText(text []byte) (err error) {
	m.Text, err = oneOf(m, text, "starttls", "implicit", "none")
	return err
}

// hours are weekly sharing hours; "" means always.
type hours struct{ Text string }

func (hours) takes() string {
	return `hours such as "Mon-Fri 18:00-23:00; Sat,Sun 00:00-24:00"`
}

func (h *hours) UnmarshalText(text []byte) error {
	h.Text = string(text)
	if _, err := fleet.ParseHours(h.Text, "UTC"); err != nil {
		return fmt.Errorf("takes %s: %w", h.takes(), err)
	}
	return nil
}

// timezone is the IANA name of the time zone of the sharing hours; "" means this
// computer's.
type timezone struct {
	Text    string
	unknown string // why find failed
}

// find sets the zone to this computer's if the file does not contain one.
func (z *timezone) find() {
	if z.Text != "" {
		return
	}
	var err error
	if z.Text, err = host.Zone(); err != nil {
		z.unknown = err.Error()
	}
}

func (timezone) takes() string { return `an IANA time zone such as "Europe/Lisbon"` }

func (z *timezone) UnmarshalText(text []byte) error {
	z.Text = string(text)
	if _, err := fleet.ParseHours("", z.Text); err != nil {
		return wrong(z)
	}
	return nil
}

// databaseURL is the URL of a PostgreSQL database; "" means the embedded one.
type databaseURL struct{ secret }

func (databaseURL) takes() string {
	return `a URL such as "postgres://USER:PASSWORD@HOST/NAME", or its source "env:NAME" or "file:PATH"; "" is the embedded database in hub.data`
}

// resolve replaces the URL's source by the URL and validates it. Its errors contain no
// password.
func (d *databaseURL) resolve(file string) error {
	// A file with a URL without a password may be readable for others.
	if u, err := url.Parse(d.text); err == nil && u.Scheme != "env" && u.Scheme != "file" && !u.Query().Has("password") {
		if _, password := u.User.Password(); d.text == "" || !password {
			return d.check()
		}
	}
	if err := d.secret.resolve(file); err != nil {
		return err
	}
	return d.check()
}

func (d *databaseURL) check() error {
	if d.text == "" {
		return nil
	}
	return store.CheckURL(d.text)
}

// nodeName is the name of a hub among those that share a database.
type nodeName struct{ Text string }

func (nodeName) takes() string {
	return `a name such as "hub-1": 1 to 63 of a-z, 0-9, "-" and "."`
}

func (n *nodeName) UnmarshalText(text []byte) error {
	n.Text = string(text)
	if n.Text == "" || n.Text != validNode(n.Text) {
		return wrong(n)
	}
	return nil
}

// validNode replaces the characters that a node's name cannot contain by "-", and
// shortens the text to the length of a name.
func validNode(text string) string {
	valid := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
			return r
		}
		return '-'
	}, strings.ToLower(text))
	return valid[:min(len(valid), 63)]
}
