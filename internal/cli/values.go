package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/daemon/sealed"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/host"
	"github.com/kith/kith/internal/store"
)

// The types of configuration values in addition to TOML's. Each is a struct, so that the
// decoder can only set it through UnmarshalText, which validates it. takes describes the
// valid values.

// wrong returns the error of UnmarshalText for an invalid value.
func wrong(value interface{ takes() string }) error { return errors.New("takes " + value.takes()) }

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
	if string(text) == "0" {
		s.Bytes = 0
		return nil
	}
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

// set sets the address to the value of a flag, unless that is empty.
func (a *address) set(flag, value string) error {
	if value == "" {
		return nil
	}
	if err := a.UnmarshalText([]byte(value)); err != nil {
		return wrongUse("cannot use %s %s: it %w", flag, value, err)
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

// word is one of the words of W. Its field may be empty if the file does not have the key.
type word[W interface{ words() []string }] struct{ Text string }

func (word[W]) takes() string {
	quoted := convert((*new(W)).words(), strconv.Quote)
	last := len(quoted) - 1
	return strings.Join(quoted[:last], ", ") + " or " + quoted[last]
}

func (w *word[W]) UnmarshalText(text []byte) error {
	if w.Text = string(text); !slices.Contains((*new(W)).words(), w.Text) {
		return wrong(w)
	}
	return nil
}

// The words of some keys.
type (
	levels    struct{} // of a log
	formats   struct{} // of a log
	signUps   struct{}
	mailTLS   struct{} // the use of TLS with a mail server; empty means "starttls"
	dialects  struct{} // of an upstream; empty means "chat"
	cacheable struct{} // whose prompts may be cached; empty means "own"
	sealings  struct{} // whether calls are sealed; empty means defaultSealed
)

func (levels) words() []string    { return []string{"debug", "info", "warn", "error"} }
func (formats) words() []string   { return []string{"text", "json"} }
func (signUps) words() []string   { return []string{"open", "invite", "closed"} }
func (mailTLS) words() []string   { return []string{"starttls", "implicit", "none"} }
func (dialects) words() []string  { return []string{"chat", "embeddings", "responses", "messages"} }
func (cacheable) words() []string { return []string{"own", "all"} }
func (sealings) words() []string {
	return []string{string(sealed.Prefer), string(sealed.Require), string(sealed.Off)}
}

// defaultSealed is whether calls are sealed without a configuration.
const defaultSealed = sealed.Prefer

// level returns the level of a log.
func (l *logTable) level() (level slog.Level) {
	_ = level.UnmarshalText([]byte(l.Level.Text)) // it was checked
	return level
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

// serviceURL is the base URL of an upstream, including /v1.
type serviceURL struct{ Text string }

func (serviceURL) takes() string { return `an address such as "https://api.example.com/v1"` }

func (s *serviceURL) UnmarshalText(text []byte) error {
	s.Text = string(text)
	u, err := parseURL(s, s.Text, "the key would travel unencrypted")
	if err == nil && strings.Trim(u.Path, "/") == "" {
		err = fmt.Errorf("takes %s: the /v1 is missing", s.takes())
	}
	return err
}

// secret is a value that is never printed, or its source. After resolve, text is the
// value and file the file that contains it; file is empty for an environment variable.
type secret struct{ text, file string }

func (secret) takes() string {
	return `a key, or its source "env:NAME" or "file:PATH"`
}

// String hides the secret.
func (secret) String() string { return "[key]" }

func (secret) GoString() string { return "[key]" }

func (secret) LogValue() slog.Value { return slog.StringValue("[key]") }

func (s *secret) UnmarshalText(text []byte) error {
	s.text = string(text)
	return nil
}

// resolve replaces the secret's source by the secret. Its errors contain no part of the
// secret.
func (s *secret) resolve(file string) error {
	if s.text == "" {
		return nil
	}
	if err := s.read(file); err != nil {
		return err
	}
	s.text = strings.TrimSpace(s.text)
	if s.text == "" || len(s.text) > 4096 || strings.ContainsFunc(s.text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("is empty or holds spaces, line ends or other characters that no key has")
	}
	return nil
}

// read replaces the secret's source by the unchanged secret without the end of the line.
func (s *secret) read(file string) error {
	if name, ok := strings.CutPrefix(s.text, "env:"); ok {
		value := os.Getenv(name)
		if strings.TrimSpace(value) == "" {
			return fmt.Errorf("names the environment variable %s, which is not set", name)
		}
		s.text = value
		return nil
	}
	path, elsewhere := strings.CutPrefix(s.text, "file:")
	if elsewhere {
		path = pathIn(file, path)
		text, err := host.ReadText(path)
		if err != nil {
			return fmt.Errorf("names a file that cannot be read: %w", err)
		}
		s.text = strings.TrimRight(string(text), "\r\n")
	} else {
		path = file
	}
	if err := host.CheckSecretFile(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("is in %s: %w", path, err)
	}
	s.file = path
	return nil
}

// password is a secret chosen by a person: it may contain spaces and umlauts.
type password struct{ secret }

// resolve replaces the source of the password by the password.
func (p *password) resolve(file string) error {
	if p.text == "" {
		return nil
	}
	if err := p.read(file); err != nil {
		return err
	}
	if strings.TrimSpace(p.text) == "" || len(p.text) > 4096 || !utf8.ValidString(p.text) || strings.ContainsFunc(p.text, unicode.IsControl) {
		return errors.New("is empty, longer than 4,096 bytes, no UTF-8, or holds a line end or another control character")
	}
	return nil
}

// resolveUpstreams validates the keys of each [[upstream]] and reads the secrets.
func (c *daemonFile) resolveUpstreams(file string, text []byte) (problems []problem) {
	if len(c.Upstream) == 0 {
		return nil
	}
	places := tables(text, "upstream")
	refuse := func(i int, key, format string, args ...any) {
		var at problem // positions in inline tables are unknown
		if i < len(places) {
			at = cmp.Or(places[i][key], places[i][""])
		}
		at.Key = "upstream." + key
		at.Message = at.Key + " " + fmt.Sprintf(format, args...)
		problems = append(problems, at)
	}
	names := map[string]bool{}
	for i := range c.Upstream {
		u := &c.Upstream[i]
		if u.Dialect.Text == "" {
			u.Dialect.Text = "chat"
		}
		switch {
		case u.Name == "" || len(u.Name) > 64 || !fleet.ModelID(u.Name).Valid():
			refuse(i, "name", "is your name for this upstream: give it 1 to 64 printable bytes")
		case names[u.Name]:
			refuse(i, "name", "is the name of another upstream: give each its own")
		}
		names[u.Name] = true
		if u.URL.Text == "" {
			refuse(i, "url", "is missing: it takes %s", u.URL.takes())
		}
		if err := u.Key.resolve(file); err != nil {
			refuse(i, "key", "%v", err)
			problems[len(problems)-1].secret = true
			u.Key.text = ""
		}
		for _, id := range u.Models {
			if !id.Valid() {
				refuse(i, "models", "takes ids of 1 to 256 printable bytes")
			}
		}
		if u.Share && (u.Dialect.Text == "responses" || u.Dialect.Text == "messages") {
			refuse(i, "share", "cannot be true if the dialect is %q: others are served in the chat dialect only", u.Dialect.Text)
		}
	}
	return problems
}

// tables returns the positions of each [[name]] by key; "" is the table itself.
func tables(text []byte, name string) (found []map[string]problem) {
	walk(text, func(e entry) {
		if !slices.Equal(e.table, []string{name}) {
			return
		}
		if e.value == nil {
			found = append(found, map[string]problem{})
		}
		found[len(found)-1][strings.Join(e.key, ".")] = problem{Line: e.keyAt.Line, Column: e.keyAt.Column}
	})
	return found
}

func (c *daemonFile) upstreams() (all []engine.UpstreamConfig) {
	for _, u := range c.Upstream {
		all = append(all, engine.UpstreamConfig{
			Name: u.Name, URL: u.URL.Text, Dialect: u.Dialect.Text, Key: engine.Key(u.Key.text), Models: u.Models, Share: u.Share,
		})
	}
	return all
}
